"""Values that are kept in place of several others, which only they need.

A stencil reads four neighbours, and its reverse needs their sum alone: then the sum is kept::

    around = u[i - 1] + u[i + 1] + ...      (four numbers, or one)
    v = tanh(around)

A value may take the place of those that it *dominates*: all ways from what the reverse needs to
them lead through it (K. D. Cooper, T. J. Harvey, K. Kennedy, "A Simple, Fast Dominance Algorithm").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

_ROOT = ""


@dataclass
class Needs:
    """What it takes to have values of a block in its reverse.

    Attributes
    ----------
    again
        The statements that are run again, by their ids.
    counted
        The loops whose trip counts are made again, by their ids.
    views
        The shadows that are views, made again.
    stored
        The values that are kept.
    outer
        Those from outside.
    reads
        What each value that is made again is made from.
    seen
        All of them.
    """

    again: set[int] = field(default_factory=set)
    counted: set[int] = field(default_factory=set)
    views: set[str] = field(default_factory=set)
    stored: dict[str, None] = field(default_factory=dict)
    outer: dict[str, None] = field(default_factory=dict)
    reads: dict[str, list[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)


def kept_instead(
    reads: Mapping[str, Sequence[str]],
    needed: Sequence[str],
    weights: Mapping[str, int],
    candidates: Collection[str],
) -> list[str]:
    """Return the values that are kept in place of at least two others.

    Parameters
    ----------
    reads
        What each value is computed from, if it is computed again: no value from itself.
    needed
        The values that the reverse reads.
    weights
        How many numbers each of the values that are kept has; others are not kept.
    candidates
        The values that may be kept instead: single numbers.
    """
    above = _dominators(reads, needed)
    saved = dict.fromkeys(above, 0)
    below: dict[str, list[str]] = {}
    for value, dominator in reversed(above.items()):  # each after all that it dominates
        saved[value] += weights.get(value, 0)
        if dominator != _ROOT:
            saved[dominator] += saved[value]
        below.setdefault(dominator, []).append(value)
    found: list[str] = []
    waiting = below.get(_ROOT, [])
    while waiting:
        value = waiting.pop()
        if value in candidates and value not in weights and saved[value] >= 2:
            found.append(value)
        else:
            waiting += below.get(value, [])
    return found


def _dominators(reads: Mapping[str, Sequence[str]], needed: Sequence[str]) -> dict[str, str]:
    """Return the immediate dominator of each value, which come after all that read them."""
    order = _in_order(reads, needed)
    readers: dict[str, list[str]] = {value: [] for value in order}
    for value in needed:
        readers[value].append(_ROOT)
    for value in order:
        for read in reads.get(value, ()):
            readers[read].append(value)
    above: dict[str, str] = {}
    depth = {_ROOT: 0}
    for value in order:
        one, *others = readers[value]
        for other in others:
            while one != other:
                if depth[one] >= depth[other]:
                    one = above[one]
                else:
                    other = above[other]
        above[value], depth[value] = one, depth[one] + 1
    return above


def _in_order(reads: Mapping[str, Sequence[str]], needed: Sequence[str]) -> list[str]:
    """Return all values, each after those that read it."""
    done: dict[str, None] = {}
    for start in needed:
        waiting = [(start, iter(reads.get(start, ())))]
        seen = {start}
        if start in done:
            continue
        while waiting:
            value, rest = waiting[-1]
            following = next((read for read in rest if read not in done and read not in seen), None)
            if following is None:
                waiting.pop()
                done[value] = None
            else:
                seen.add(following)
                waiting.append((following, iter(reads.get(following, ()))))
    return [*reversed(done)]
