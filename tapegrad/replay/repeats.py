"""Repeated steps in the values of a loop nest: they become a loop of the program again.

A Python loop is recorded as the values of all its iterations. Where the values of one iteration are
computed from those of the one before as these were from theirs, one iteration is written, in a
loop. Vectors may be shorter in each iteration, or longer, all of them by the same number of
elements, as in binomial trees and schemes of differences.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node, nodes_in
from tapegrad.replay.forms import Form, form_of
from tapegrad.replay.program import key_of

LEAST = 6  # iterations that are worth a loop
LONGEST = 256  # values of an iteration
_SHORTER = (0, 1, -1)  # by how many elements vectors may be shorter in each iteration
_MOST_TRIED = 1_000_000  # values that are looked at to find where iterations begin best


@dataclass
class Repeat:
    """Values that repeat.

    Attributes
    ----------
    start
        The place of the first of them in the list of values.
    period
        How many values an iteration has.
    count
        How many iterations there are.
    carried
        The places in an iteration of the values that the next one reads.
    starts
        What the first iteration reads in place of these.
    shorter
        By how many elements vectors are shorter in each iteration.
    """

    start: int
    period: int
    count: int
    shorter: int = 0
    carried: list[int] = field(default_factory=list)
    starts: list[Node] = field(default_factory=list)

    @property
    def length(self) -> int:
        """How many values repeat."""
        return self.period * self.count

    @property
    def end(self) -> int:
        """The place after the last value."""
        return self.start + self.length


def longest_repeat(nodes: list[Node], needed: Container[Node]) -> Repeat | None:
    """Return the repeat with which the fewest values are left, None if there is none.

    Parameters
    ----------
    nodes
        The values, in the order in which they are computed.
    needed
        Values that something else reads.
    """
    found = (_longest_repeat(_Values(nodes, shorter), needed) for shorter in _SHORTER)
    return next((repeat for repeat in found if repeat is not None), None)


def _longest_repeat(values: _Values, needed: Container[Node]) -> Repeat | None:
    nodes = values.nodes
    best: Repeat | None = None
    run = 0, 0  # the places where the repeat begins and ends, if its iterations do not matter
    for period in range(1, min(len(nodes) // LEAST, LONGEST) + 1):
        if values.longest_run(period) < LEAST * period:
            continue
        place = period
        while place < len(nodes):
            first = place
            while place < len(nodes) and values.repeats(place, period, place >= first + period):
                place += 1
            found = values.repeat(first - period, place, period, needed)
            if found is not None and (best is None or found.length > best.length):
                best, run = found, (first - period, place)
            place += 1
        if best is not None and best.length * 2 > len(nodes):
            break  # longer periods are several of these
    return None if best is None else _with_best_start(values, best, *run, needed)


def _with_best_start(
    values: _Values, best: Repeat, start: int, end: int, needed: Container[Node]
) -> Repeat:
    """Return a repeat whose iterations begin where most values are in it, and few are carried."""
    values.begin_earlier(best, needed)
    for shift in range(1, best.period if best.period * (end - start) < _MOST_TRIED else 0):
        found = values.repeat(start + shift, end, best.period, needed)
        if found is not None:
            values.begin_earlier(found, needed)
            if (found.length, -len(found.carried)) > (best.length, -len(best.carried)):
                best = found
    return best


class _Values:
    """Values in the order in which they are computed.

    Parameters
    ----------
    nodes
        The values.
    shorter
        By how many elements vectors are shorter in each iteration.
    """

    def __init__(self, nodes: list[Node], shorter: int) -> None:
        self.nodes, self.shorter = nodes, shorter
        self.places = {node: place for place, node in enumerate(nodes)}
        self.inputs = [nodes_in(node.args) for node in nodes]
        known: dict[Any, int] = {}  # the numbers of forms
        are_vectors = [shorter != 0 and _may_be_shorter(node) for node in nodes]
        forms = [
            (n.name, n.op, n.dtype, _without_nodes(n.args), key_of(n.parameters))
            + ((is_vector,) if is_vector else (n.shape, shorter and _counts_from_end(n) and id(n)))
            for n, is_vector in zip(nodes, are_vectors, strict=True)
        ]
        self.sizes = np.array(
            [
                n.shape[0] if is_vector else 0
                for n, is_vector in zip(nodes, are_vectors, strict=True)
            ]
        )
        self.steps = np.where(are_vectors, shorter, 0)
        self.numbers = np.array([known.setdefault(form, len(known)) for form in forms], np.int64)
        self.readers: dict[Node, int] = {}  # the last of each value
        for place, read in enumerate(self.inputs):
            self.readers |= dict.fromkeys(read, place)

    def longest_run(self, period: int) -> int:
        """Return how many values in a row have the same form as those a period before them."""
        is_other = self.numbers[period:] != self.numbers[:-period]
        is_other |= self.sizes[:-period] - self.sizes[period:] != self.steps[period:]
        other = np.flatnonzero(is_other)
        ends = np.concatenate(([-1], other, [len(self.nodes) - period]))
        return int(np.diff(ends).max()) - 1

    def moves(self, place: int, period: int) -> list[bool] | None:
        """Return which inputs of a value are as far before it as those of an earlier one.

        The others are the same. None if there is an input that is neither.
        """
        found = []
        for one, other in zip(self.inputs[place - period], self.inputs[place], strict=True):
            is_moved = one in self.places and self.places.get(other) == self.places[one] + period
            if not is_moved and one is not other:
                return None
            found.append(is_moved)
        return found

    def are_alike(self, one: int, other: int) -> bool:
        """Whether values at two places, in iterations one after the other, have the same form."""
        is_shorter = self.sizes[one] - self.sizes[other] == self.steps[other]
        return bool(self.numbers[one] == self.numbers[other] and is_shorter)

    def repeats(self, place: int, period: int, is_next: bool) -> bool:
        """Whether a value is computed as the one a period before it.

        With `is_next`, that one is computed in the same way from the one before it, too.
        """
        if not self.are_alike(place - period, place):
            return False
        moves = self.moves(place, period)
        return moves is not None and (not is_next or moves == self.moves(place - period, period))

    def repeat(self, start: int, end: int, period: int, needed: Container[Node]) -> Repeat | None:
        """Return the repeat between two places, None if there is none of enough iterations."""
        count = (end - start) // period
        for less in (0, 1):  # the last iteration stays as it is if something else reads it
            found = Repeat(start, period, count - less, self.shorter)
            if count > LEAST and self.is_closed(found, needed):
                return found
        return None

    def is_closed(self, repeat: Repeat, needed: Container[Node]) -> bool:
        """Note what is carried; return whether nothing else is read from another iteration."""
        start, period, end = repeat.start, repeat.period, repeat.end
        carried: set[int] = set()
        fixed: set[Node] = set()  # what all iterations read
        for own in range(period):
            moves = self.moves(start + own + period, period)
            assert moves is not None
            for arg, is_moved in zip(self.inputs[start + own], moves, strict=True):
                back = start + own - self.places.get(arg, -1)
                if not is_moved:
                    fixed.add(arg)
                    if back <= own and arg in self.places:  # of the first iteration alone
                        return False
                elif back > own + period:  # of the iteration before the last one
                    return False
                elif back > own:
                    carried.add(own + period - back)
        for place in range(start, end):
            node = self.nodes[place]
            is_kept = place >= end - period and (place - start) % period in carried
            if not is_kept and (node in needed or self.readers.get(node, 0) >= end):
                return False
        repeat.carried = sorted(carried)
        repeat.starts = [self.nodes[start - period + own] for own in repeat.carried]
        if self.shorter:
            once = range(start, start + period)
            if any(node.shape for node in fixed) or any(
                self.nodes[place].shape and not self.steps[place] for place in once
            ):
                return False  # their extents do not change, which may be those of others
        return bool(carried) and not fixed & {*repeat.starts}

    def begin_earlier(self, repeat: Repeat, needed: Container[Node]) -> None:
        """Let an iteration be the first one that reads other values in place of carried ones."""
        start, period = repeat.start, repeat.period
        before = range(start - period, start)
        if before.start < 0:
            return
        starts: dict[int, Node] = {}
        others: set[Node] = set()  # what all iterations read
        for place in before:
            if not self.are_alike(place, place + period):
                return
            node = self.nodes[place]
            if node in needed or self.readers.get(node, 0) >= start + period:
                return
            for one, other in zip(self.inputs[place], self.inputs[place + period], strict=True):
                own = self.places.get(other, -1) - before.start
                if 0 <= own < period:  # carried
                    is_own = self.places.get(one, -1) >= before.start
                    if starts.setdefault(own, one) is not one or is_own:
                        return
                elif own >= period:
                    if self.places.get(one) != before.start + own - period:
                        return
                elif one is not other:
                    return
                else:
                    others.add(one)
        found = [starts.get(own) for own in repeat.carried]
        if len({*found}) < len(found) or others & {*found} or starts.keys() - {*repeat.carried}:
            return
        for own, begins in zip(repeat.carried, found, strict=True):
            carried = self.nodes[before.start + own]
            if begins is None or begins.dtype != carried.dtype:
                return
            if begins.shape != tuple(extent + self.shorter for extent in carried.shape):
                return
        repeat.start -= period
        repeat.count += 1
        repeat.starts = [starts[own] for own in repeat.carried]


def _may_be_shorter(node: Node) -> bool:
    """Whether a value is a vector of which each element has the same place in longer ones."""
    if len(node.shape) != 1 or node.shape == (1,):
        return False
    if node.name == "getitem":
        return not _counts_from_end(node)
    return form_of(node) is Form.MAP


def _counts_from_end(node: Node) -> bool:
    """Whether elements are read whose places depend on the length of a vector."""
    if node.name != "getitem":
        return False
    index = node.parameters["index"]
    return not all(
        ((part.start or 0) >= 0 and part.step in (None, 1))
        if type(part) is slice
        else type(part) is int and part >= 0
        for part in (index if type(index) is tuple else (index,))
    )


def _without_nodes(value: Any) -> Any:
    """Return what is equal for equal arguments, whatever the nodes are."""
    if isinstance(value, Node):
        return Node
    if type(value) in (list, tuple):
        return tuple(map(_without_nodes, value))
    return key_of(value)
