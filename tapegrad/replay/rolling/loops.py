"""Steps that are alike become a loop.

Steps are found that differ in nothing but what they read: values of the step before, elements of
arrays at other places, other numbers and constants. One of them becomes the body of a loop. Its
numbers and constants become rows of arrays, its places are computed from the number of the step if
they run, and what is read after the loop of several steps is stacked. Steps that one loop nest
computes are left to `tapegrad.replay.repeats`: their values are numbers in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Body, Node, replaced
from tapegrad.ops.table.op import TABLE
from tapegrad.replay.forms import INTEGER, Form, form_of
from tapegrad.replay.lowering import of
from tapegrad.replay.rolling.slots import (
    are_alike,
    are_equal,
    form_of_value,
    running,
    stacked,
    with_slots,
)
from tapegrad.replay.rolling.stacks import item_of, joined

LEAST = 3  # steps that are worth a loop
LONGEST = 1024  # values of a step
_FEW = 64  # lines that are compiled as they are, even if they repeat
_MOST = 600  # values of one loop nest that are not taken apart
_MOST_BYTES = 1 << 26  # of the constants that become rows
_TRIED = 4  # places at which a step may begin, for each number of values that it may have

# about how many lines a value takes when it is compiled; those of complex numbers have two parts
_OF_A_CALL, _OF_A_TRANSFORM, _OF_COMPLEX = 6, 24, 3
_TRANSFORMS = ("fourier", "fourier_adjoint", "half_fourier", "real_fourier")


def rolled(nodes: list[Node], outputs: list[Node]) -> tuple[list[Node], list[Node]]:
    """Return recorded values with loops in place of steps that are alike, and the results.

    Parameters
    ----------
    nodes
        The values, in the order in which they were recorded.
    outputs
        The results.
    """
    while True:
        loop = _longest_loop(_Values(nodes, outputs))
        if loop is None:
            break
        nodes, outputs = loop.written(nodes, outputs)
    return nodes, outputs


class _Values:
    """Values in the order in which they are computed, as forms and what they are of.

    Attributes
    ----------
    nodes
        The values.
    slots
        For each, what it is computed from and what may differ between steps: nodes, numbers and
        places.
    forms
        For each, the number of what does not differ.
    places
        Where each is.
    readers
        The places of those that read each; the number of values stands for the results.
    """

    def __init__(self, nodes: list[Node], outputs: list[Node]) -> None:
        self.nodes = nodes
        self.places = {node: place for place, node in enumerate(nodes)}
        known: dict[Any, int] = {}
        self.slots: list[list[Any]] = []
        forms = []
        for node in nodes:
            slots: list[Any] = []
            form = form_of_value(node, slots)
            forms.append(known.setdefault(form, len(known)))
            self.slots.append(slots)
        self.forms = np.array(forms, np.int64)
        self.readers: dict[Node, list[int]] = {}
        for place, node in enumerate(nodes):
            for read in node.inputs():
                self.readers.setdefault(read, []).append(place)
        for output in outputs:
            self.readers.setdefault(output, []).append(len(nodes))

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield where values may repeat, and the number of values of a step, the longest first."""
        found = []
        most = 0
        for period in range(1, min(len(self.nodes) // LEAST, LONGEST) + 1):
            other = np.flatnonzero(self.forms[period:] != self.forms[:-period])
            ends = np.concatenate(([-1], other, [len(self.nodes) - period]))
            longest = int(np.argmax(np.diff(ends)))
            start, end = int(ends[longest]) + 1, int(ends[longest + 1]) + period
            if end - start < max(LEAST * period, most + period):
                continue  # or steps of so many values are several of fewer
            most = end - start
            found.append((start, end, period))
        yield from reversed(found)


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Own:
    """What the same step computes, at a place in it."""

    place: int


@dataclass(frozen=True)
class _Carried:
    """What the step before computes, at a place in it."""

    place: int


@dataclass(frozen=True)
class _Fixed:
    """A value that all steps read."""

    node: Node


@dataclass(frozen=True)
class _Varying:
    """A number, a place or a constant of each step."""

    place: int
    slot: int


Source = _Own | _Carried | _Fixed | _Varying


def _longest_loop(values: _Values) -> _Loop | None:
    """Return the loop of the longest run of steps that are alike, None if there is none."""
    for start, end, period in values.runs():
        for shift in _best_shifts(values, start, end, period)[:_TRIED]:
            loop = _Loop.found(values, start + shift, end, period)
            if loop is not None and loop.is_worthwhile():
                return loop
    return None


def _best_shifts(values: _Values, start: int, end: int, period: int) -> list[int]:
    """Return how far from the start steps may begin; first where the fewest values are carried."""
    first = start + (end - start) // (2 * period) * period
    edges = {  # values, and places from which they are read as far away in each step
        (values.places[read] - first, place - first)
        for place in range(first, first + period)
        for read in values.slots[place]
        if isinstance(read, Node) and values.places.get(read, -1) >= start
    }
    found = []
    for shift in range(period):
        steps = [((to - shift) // period - (of_ - shift) // period, of_) for of_, to in edges]
        if all(back <= 1 or start + period > of_ + first for back, of_ in steps):
            carried = {of_ % period for back, of_ in steps if back}
            found.append((len(carried), shift))
    return [shift for _, shift in sorted(found)]


@dataclass
class _Loop:
    """Steps that become a loop.

    Attributes
    ----------
    values
        The values that they are among.
    start, period, count
        The place of the first value, the values of a step, and the number of steps.
    sources
        For each value of a step, what is in its slots.
    starts
        What the first step reads in place of what is carried, by the places of this.
    """

    values: _Values
    start: int
    period: int
    count: int
    sources: list[list[Source]]
    starts: dict[int, Node] = field(default_factory=dict)

    @classmethod
    def found(cls, values: _Values, start: int, end: int, period: int) -> _Loop | None:
        """Return the loop of the steps between two places that are like one in the middle."""
        count = (end - start) // period
        middle = count // 2
        if count < LEAST:
            return None
        made = cls(values, start, period, count, [])
        for place in range(period):
            found = [made._source(middle, place, slot) for slot in range(made._slots(place))]
            if None in found:
                return None
            made.sources.append([source for source in found if source is not None])
        last = middle + 1
        while last < count and made._is_like(last):
            last += 1
        first = middle
        while first > 0 and made._is_like(first - 1):
            first -= 1
        if first > 0 and made._begins(first - 1):
            first -= 1
        elif not made._begins(first):
            return None
        made.start, made.count = start + first * period, last - first
        return made if made.count >= LEAST and made._are_fixed_before() else None

    def _slots(self, place: int) -> int:
        return len(self.values.slots[self.start + place])

    def _slot(self, step: int, place: int, slot: int) -> Any:
        return self.values.slots[self.start + step * self.period + place][slot]

    def _node(self, step: int, place: int) -> Node:
        return self.values.nodes[self.start + step * self.period + place]

    def _source(self, step: int, place: int, slot: int) -> Source | None:
        """Return what is in a slot of a value, by that of two steps; None if that is unlike."""
        one, other = self._slot(step, place, slot), self._slot(step + 1, place, slot)
        if not isinstance(one, Node):
            return _Varying(place, slot)
        if one is other:
            return _Fixed(one)
        at = self.values.places.get(other)
        if at is not None and self.values.places.get(one) == at - self.period:
            back, own = divmod(at - self.start, self.period)
            if back == step + 1 and own < place:
                return _Own(own)
            return _Carried(own) if back == step else None
        return _Varying(place, slot) if are_alike(one, other) else None

    def _is_like(self, step: int, is_first: bool = False) -> bool:
        """Whether the slots of a step have the same sources; carried values may be others."""
        for place, sources in enumerate(self.sources):
            for slot, source in enumerate(sources):
                value = self._slot(step, place, slot)
                match source:
                    case _Own(own):
                        fits = value is self._node(step, own)
                    case _Carried(own):
                        fits = is_first or (step > 0 and value is self._node(step - 1, own))
                    case _Fixed(node):
                        fits = value is node
                    case _Varying():
                        fits = are_alike(value, self._slot(self.count // 2, place, slot))
                if not fits:
                    return False
        return True

    def _begins(self, step: int) -> bool:
        """Whether a step may be the first; note what it reads in place of what is carried."""
        starts: dict[int, Node] = {}
        for place, sources in enumerate(self.sources):
            for slot, source in enumerate(sources):
                if isinstance(source, _Carried):
                    value = self._slot(step, place, slot)
                    out = self._node(step, source.place)
                    if starts.setdefault(source.place, value) is not value:
                        return False
                    if (value.shape, value.dtype) != (out.shape, out.dtype) or out.dtype is None:
                        return False
                    if self.values.places.get(value, -1) >= self.start + step * self.period:
                        return False
        if not self._is_like(step, is_first=True):
            return False
        self.starts = starts
        return True

    def _are_fixed_before(self) -> bool:
        """Whether what all steps read is computed before the loop."""
        return all(
            self.values.places.get(source.node, -1) < self.start
            for sources in self.sources
            for source in sources
            if isinstance(source, _Fixed)
        )

    # -- is it worth it -----------------------------------------------------------------------

    @functools.cached_property
    def kept(self) -> list[int]:
        """The places in a step of values that are read afterwards, of several steps."""
        end = self.start + self.period * self.count
        found = []
        for place in range(self.period):
            steps = {
                step
                for step in range(self.count)
                if any(by >= end for by in self.values.readers.get(self._node(step, place), ()))
            }
            if steps - ({self.count - 1} if place in self.starts else set()):
                found.append(place)
        return found

    @functools.cached_property
    def _rows(self) -> dict[_Varying, list[Any]]:
        """The values that may vary, of all steps."""
        return {
            source: [self._slot(step, source.place, source.slot) for step in range(self.count)]
            for sources in self.sources
            for source in sources
            if isinstance(source, _Varying)
        }

    def _invariant(self, equal: Container[Source]) -> set[int]:
        """Return the places in a step of values that are the same in all steps.

        Parameters
        ----------
        equal
            What does not vary although it may.
        """
        # what has several results is only outside of the loop if all of these are
        split = {
            source.place
            for place in self.starts
            for source in self.sources[place]
            if isinstance(source, _Own) and self._node(0, source.place).dtype is None
        }
        found: set[int] = set()
        for place, sources in enumerate(self.sources):
            if place not in {*self.starts, *split} and all(
                isinstance(source, _Fixed)
                or source in equal
                or (isinstance(source, _Own) and source.place in found)
                for source in sources
            ):
                found.add(place)
        return found

    def is_worthwhile(self) -> bool:
        """Whether a loop is better than the steps, and other passes find none."""
        step = self.values.nodes[self.start : self.start + self.period]
        if (self.count - 1) * sum(map(_lines, step)) <= _FEW:
            return False
        if any(node.name == "callback" or node.decides_by_values for node in step):
            return False
        if any(step[place].dtype is None for place in self.kept):
            return False
        rows = self._rows.values()
        constants = [value for row in rows for value in row if isinstance(value, Node)]
        if sum(constant.example.nbytes for constant in constants) > _MOST_BYTES:
            return False
        if self.kept or not _is_one_nest(step):
            return True
        varies = not all(map(are_equal, rows))
        return varies and self.period * self.count > _MOST

    # -- the loop -----------------------------------------------------------------------------

    def written(self, nodes: list[Node], outputs: list[Node]) -> tuple[list[Node], list[Node]]:
        """Return the values and results with a loop in place of the steps."""
        end = self.start + self.period * self.count
        before, loop, invariant = self._loop()
        made = [*before, loop]
        same: dict[Node, Node] = {}
        for place, node in invariant.items():
            same |= {self._node(k, place): node for k in range(self.count)}
        carried = len(self.starts)
        kept = [place for place in self.kept if place not in invariant]
        for number, place in enumerate([*self.starts, *kept]):
            out = self._node(self.count - 1, place)
            shape = (self.count, *out.shape) if number >= carried else out.shape
            part = Node("item", of(shape, out.dtype), (loop,), {"number": number})
            made.append(part)
            if number < carried:
                same[out] = part
            else:
                same |= {self._node(k, place): item_of(part, k) for k in range(self.count)}
        outputs = [replaced(output, same) for output in outputs]
        items = {*same.values()} - {*made}  # which are not among the values yet
        for node in nodes[end:]:
            node.args = replaced(node.args, same)
            if node.name == "concatenate":
                node.args = (joined(node, made), *node.args[1:])
            for read in node.inputs():
                if read in items:
                    items.remove(read)
                    made.append(read)
            made.append(node)
        made += [output for output in dict.fromkeys(outputs) if output in items]
        return [*nodes[: self.start], *made], outputs

    def _loop(self) -> tuple[list[Node], Node, dict[int, Node]]:
        """Return the loop, the values before it, and those by their places in a step."""
        step = Node("input", np.asarray(0), (), {"range": (0, self.count)})
        before: list[Node] = []
        body: list[Node] = []
        arrays: list[Node] = []
        rows: list[Node] = []
        filled: dict[_Varying, Any] = {}
        equal: set[Source] = set()
        for varying, values in self._rows.items():
            run = running(values)
            if are_equal(values):
                equal.add(varying)
                filled[varying] = values[0].number if run is not None else values[0]
            elif run is not None:
                filled[varying] = _affine(step, *run, body)
            else:
                arrays.append(stacked(values))
                rows.append(_input(arrays[-1].shape[1:], arrays[-1].dtype))
                filled[varying] = rows[-1]
        states = {place: _input(node.shape, node.dtype) for place, node in self.starts.items()}
        given: dict[Node, Node] = {}
        invariant = self._invariant(equal)
        own: list[Node] = []
        for place, sources in enumerate(self.sources):
            slots: list[Any] = []
            for source in sources:
                match source:
                    case _Own(other):
                        found: Any = own[other]
                        is_outside = place not in invariant and other in invariant
                    case _Carried(other):
                        found, is_outside = states[other], False
                    case _Fixed(found):
                        is_outside = place not in invariant and found.name != "constant"
                    case _Varying():
                        found, is_outside = filled[source], False
                if is_outside:
                    found = given.setdefault(found, _input(found.shape, found.dtype))
                slots.append(found)
            own.append(with_slots(self._node(0, place), slots))
            (before if place in invariant else body).append(own[-1])
        kept = [place for place in self.kept if place not in invariant]
        outputs = [own[place] for place in [*self.starts, *kept]]
        made = Body(body, [*states.values(), step, *rows, *given.values()], outputs)
        args = ([*self.starts.values()], arrays, [*given], [0, self.count])
        named = {"bodies": (made,), "memory": None, "recorded": self.count}
        loop = Node("for_loop", (), args, named)
        return before, loop, {place: own[place] for place in sorted(invariant)}


def _lines(node: Node) -> int:
    """Return about how many lines a value takes when it is compiled."""
    lines = _OF_A_TRANSFORM if node.name in _TRANSFORMS else 1
    if lines == 1 and node.dtype is not None and form_of(node) in (Form.CALL, Form.ROWS):
        lines = _OF_A_CALL
    return lines * (_OF_COMPLEX if node.dtype is not None and node.dtype.kind == "c" else 1)


def _is_one_nest(step: list[Node]) -> bool:
    """Whether one loop nest computes all values of steps."""
    shape = step[0].shape
    return bool(shape) and all(form_of(n) is Form.MAP and n.shape == shape for n in step)


def _affine(step: Node, first: int, by: int, made: list[Node]) -> Node:
    """Add values that compute ``first + by * step``; return the last one."""
    found = step
    for name, number, neutral in (("multiply", by, 1), ("add", first, 0)):
        if number != neutral:
            found = Node(name, of((), INTEGER), (found, number), {}, TABLE[name])
            made.append(found)
    return found


def _input(shape: tuple[int, ...], dtype: Any) -> Node:
    return Node("input", np.zeros(shape, dtype))
