"""Repeated steps in the values of a loop nest: they become a loop of the program again.

A Python loop is recorded as the values of all its iterations. Where the values of one iteration are
computed from those of the one before as these were from theirs, one iteration is written, in a
loop.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from tapegrad.eager.traced import Node
from tapegrad.replay.program import key_of

LEAST = 6  # iterations that are worth a loop
LONGEST = 256  # values of an iteration


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
    """

    start: int
    period: int
    count: int
    carried: list[int]

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
    places = {node: place for place, node in enumerate(nodes)}
    forms = [_form(node, place, places) for place, node in enumerate(nodes)]
    best: Repeat | None = None
    for period in range(1, min(len(nodes) // LEAST, LONGEST) + 1):
        place = period
        while place < len(nodes):
            first = place
            while place < len(nodes) and forms[place] == forms[place - period]:
                place += 1
            # the last iteration stays as it is: what it computes may be read elsewhere
            found = Repeat(first - period, period, (place - first) // period, [])
            if found.count >= LEAST and (best is None or found.length > best.length):
                if _is_closed(found, nodes, places, needed):
                    best = found
            place += 1
        if best is not None and best.length * 2 > len(nodes):
            break  # longer periods are several of these
    return best


def _form(node: Node, place: int, places: dict[Node, int]) -> Any:
    """Return what is equal for values that are computed alike from values as far before them."""
    args = [("before", place - places[a]) if a in places else key_of(a) for a in node.args]
    return (node.name, node.op, tuple(args), key_of(node.parameters))


def _is_closed(
    repeat: Repeat, nodes: list[Node], places: dict[Node, int], needed: Container[Node]
) -> bool:
    """Note what is carried; return whether nothing else is read from outside of an iteration."""
    start, period, end = repeat.start, repeat.period, repeat.end
    carried: set[int] = set()
    for own in range(period):
        for arg in nodes[start + own].inputs():
            back = start + own - places[arg] if arg in places else 0
            if back > own + period:  # of the iteration before the last one
                return False
            if back > own:
                carried.add(own + period - back)
    readers: dict[Node, int] = {}  # the last of each value
    for place, node in enumerate(nodes):
        readers |= dict.fromkeys(node.inputs(), place)
    for place in range(start, end):
        is_kept = place >= end - period and (place - start) % period in carried
        if not is_kept and (nodes[place] in needed or readers.get(nodes[place], 0) >= end):
            return False
    repeat.carried = sorted(carried)
    return bool(carried)
