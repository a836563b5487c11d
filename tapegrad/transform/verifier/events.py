"""What the forward code does to numbers and arrays, and what follows for cotangents or tangents.

An `Event` is one execution of a statement. The cotangents of all values follow from the events,
from the last to the first: that of a result goes, by a linear map for each, to the operands; a
store takes the cotangent of the elements that it writes and leaves zero. Tangents follow from the
events from the first to the last. No derivative is known here; each is a map of its own (`linear`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tapegrad.transform.verifier.linear import ONE, ZERO, Map, Maps, negative, product, total


class Number:
    """A value that is no array.

    Attributes
    ----------
    key
        Equal for values that are computed in the same way.
    truth
        Whether it is true, once that is drawn.
    event, place
        What made it, and the how-manieth of the results it is.
    """

    __slots__ = ("event", "key", "place", "truth")

    def __init__(self, key: Hashable, truth: bool | None = None) -> None:
        self.key, self.truth = key, truth
        self.event: Event | None = None
        self.place = 0


class Memory:
    """The elements of an array, of which views show some."""

    __slots__ = ()


class Handle:
    """An array: the elements that some steps lead to from those of a `Memory`."""

    __slots__ = ("event", "memory", "place", "steps")

    def __init__(self, memory: Memory, steps: tuple[Hashable, ...] = ()) -> None:
        self.memory, self.steps = memory, steps
        self.event: Event | None = None
        self.place = 0

    def view(self, step: Hashable) -> Handle:
        return Handle(self.memory, (*self.steps, step))


Value = Number | Handle


@dataclass(eq=False)
class Operand:
    """What an operation reads.

    Attributes
    ----------
    count
        How often it adds to its cotangent; None if that is not known.
    sign
        1 or -1 for a sum, 0 where the derivative is not known.
    """

    value: Value
    count: int | None = 1
    sign: int = 0


@dataclass(eq=False)
class Event:
    """One execution of a statement.

    Attributes
    ----------
    results
        What it makes.
    operands
        What it reads, by names.
    stored
        The elements that a store writes, with whether what was there is lost.
    used
        How often the reverse code added to the cotangents of the operands, by names; in forward
        mode how often their tangents were added to those of the results, by places and names.
    taken
        The places of the results whose cotangents were.
    joined
        Whether the cotangents of all results are first brought together, as calls do.
    silent
        The places of results that have no cotangents then, or no tangents: whole numbers, for
        example.
    instance
        Of the call of a method: the instance.
    passed, read
        Of a call: the arrays whose cotangents its reverse changes, in forward mode those whose
        tangents it changes; whether it reads the cotangents.
    """

    number: int
    results: list[Value | None] = field(default_factory=list)
    operands: dict[str, Operand] = field(default_factory=dict)
    stored: Handle | None = None
    is_lost: bool = True
    used: dict[Hashable, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    joined: bool = False
    silent: set[int] = field(default_factory=set)
    function: str = ""
    arguments: tuple[Hashable, ...] = ()
    instance: Hashable | None = None
    passed: list[Handle] | None = None
    read: list[bool] = field(default_factory=list)
    seeds: list[Value | None] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)


class Contents:
    """Cotangents, or tangents, of the elements of arrays."""

    def __init__(self, maps: Maps) -> None:
        self.maps = maps
        self.known: dict[Memory, Map] = {}

    def read(self, handle: Handle) -> Map:
        found = self.known.get(handle.memory, ZERO)
        return product(self.maps.of("read", *handle.steps), found) if handle.steps else found

    def add(self, handle: Handle, value: Map) -> None:
        if value is ZERO:
            return
        if handle.steps:
            value = product(self.maps.of("add", *handle.steps), value)
        self.known[handle.memory] = total(self.known.get(handle.memory, ZERO), value)

    def clear(self, handle: Handle) -> None:
        found = self.known.get(handle.memory, ZERO)
        cleared = self.maps.of("clear", *handle.steps)
        self.known[handle.memory] = product(cleared, found) if handle.steps else ZERO

    def call(self, event: Event, handles: list[Handle], seeds: list[Map]) -> list[Map]:
        """Change cotangents as the reverse of a call does; return those of its numbers."""
        read = [
            self.read(handle) if is_read else ZERO
            for handle, is_read in zip(handles, event.read, strict=True)
        ]
        given = [*read, *seeds]

        def mixed(place: Hashable) -> Map:
            found = ZERO
            for k, value in enumerate(given):
                found = total(found, product(self.maps.of(event.number, place, k), value))
            return found

        parts = [mixed(("part", k)) for k in range(len(event.parts))]
        changes = [mixed(("array", k)) for k in range(len(handles))]
        for handle, change in zip(handles, changes, strict=True):
            self.add(handle, change)
        return parts


class Expected:
    """The cotangents that follow from events."""

    def __init__(self, maps: Maps) -> None:
        self.maps = maps
        self.contents = Contents(maps)
        self.numbers: dict[Number, Map] = {}

    def get(self, value: Value | None) -> Map:
        if value is None:
            return ZERO
        if isinstance(value, Handle):
            return self.contents.read(value)
        return self.numbers.get(value, ZERO)

    def add(self, value: Value, change: Map) -> None:
        if isinstance(value, Handle):
            self.contents.add(value, change)
        elif change is not ZERO:
            self.numbers[value] = total(self.numbers.get(value, ZERO), change)

    def run(self, events: list[Event]) -> None:
        """Go backwards through what was done."""
        for event in reversed(events):
            if event.stored is not None:
                self.store(event, event.stored)
            elif event.passed is not None:
                self.call(event, event.passed)
            else:
                self.operation(event)

    def store(self, event: Event, stored: Handle) -> None:
        found = self.contents.read(stored)
        if event.is_lost:
            self.contents.clear(stored)
        for operand in event.operands.values():
            self.add(operand.value, negative(found) if operand.sign < 0 else found)

    def call(self, event: Event, passed: list[Handle]) -> None:
        parts = self.contents.call(event, passed, list(map(self.get, event.seeds)))
        for name, part in zip(event.parts, parts, strict=True):
            self.add(event.operands[name].value, part)

    def operation(self, event: Event) -> None:
        found = [self.get(result) for result in event.results]
        if all(g is ZERO for g in found):
            return
        for result in event.results:
            if isinstance(result, Handle) and not result.steps:
                self.contents.known[result.memory] = ZERO
        if event.joined:
            heard = [ZERO if k in event.silent else g for k, g in enumerate(found)]
            found = [joined(self.maps, event, heard)]
        for name, operand in event.operands.items():
            count = operand.count
            if count is None:
                count = max(event.used.get(name, 0), 1)
            elif count < 0:
                count = event.used.get(name, 0)
            for place, g in enumerate(found):
                if event.taken and place not in event.taken and not event.joined:
                    continue  # the derivative with respect to it is zero
                for k in range(count):
                    self.add(operand.value, product(weight(self.maps, event, place, name, k), g))


class ExpectedTangents(Expected):
    """The tangents that follow from events."""

    def run(self, events: list[Event]) -> None:
        """Go through what was done."""
        for event in events:
            if event.stored is not None:
                self.store(event, event.stored)
            else:
                self.operation(event)

    def store(self, event: Event, stored: Handle) -> None:
        found = ZERO
        for operand in event.operands.values():
            value = self.get(operand.value)
            found = total(found, negative(value) if operand.sign < 0 else value)
        if event.is_lost:
            self.contents.clear(stored)
        self.contents.add(stored, found)

    def operation(self, event: Event) -> None:
        values = {name: self.get(operand.value) for name, operand in event.operands.items()}
        changes = [
            (array, self.together(event, changed(name), values))
            for name, array in zip(event.parts, event.passed or (), strict=True)
        ]
        for place, result in enumerate(event.results):
            found = ZERO if place in event.silent else self.together(event, place, values)
            if isinstance(result, Number):
                self.numbers[result] = found
            elif result is not None:
                self.contents.known[result.memory] = found
        for array, change in changes:
            self.contents.add(array, change)

    def together(self, event: Event, place: Hashable, values: dict[str, Map]) -> Map:
        """Return the tangent of a result, or what is added to that of an array."""
        found = ZERO
        for name, value in values.items():
            count, used = event.operands[name].count, event.used.get((place, name), 0)
            for k in range(max(used, 1) if count is None else used if count < 0 else count):
                found = total(found, product(weight(self.maps, event, place, name, k), value))
        return found


def changed(name: str) -> Hashable:
    """Return the place that stands for the elements of an array that a call changes."""
    return ("array", name)


def joined(maps: Maps, event: Event, found: list[Map]) -> Map:
    """Return what the cotangents of several results come to together."""
    result = ZERO
    for place, g in enumerate(found):
        result = total(result, product(maps.of(event.number, "in", place), g))
    return result


def weight(maps: Maps, event: Event, place: Hashable, name: str, k: int) -> Map:
    """Return the map from the cotangent of a result to that of an operand, or of tangents back."""
    sign = event.operands[name].sign
    if sign:
        return ONE if sign > 0 or k else negative(ONE)
    return maps.of(event.number, place, name, k)
