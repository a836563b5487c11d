"""The effects of forward code on numbers and arrays, and the cotangents or tangents that follow.

An `Event` is one execution of a statement. The cotangents of all values follow from the events,
from the last to the first: that of a result is added to those of the operands, through a linear map
for each; a store consumes the cotangent of the elements that it writes and leaves zero. Tangents
follow from the events from the first to the last. Derivatives are not known here; each one is a
separate map (`linear`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tapegrad.transform.verifier.linear import ONE, ZERO, Map, Maps, negative, product, total


class Number:
    """A value that is not an array.

    Attributes
    ----------
    key
        Equal for values that are computed in the same way.
    truth
        Whether it is true, once this is drawn.
    event, place
        The event that made it, and its position among the results.
    """

    __slots__ = ("event", "key", "place", "truth")

    def __init__(self, key: Hashable, truth: bool | None = None) -> None:
        self.key, self.truth = key, truth
        self.event: Event | None = None
        self.place = 0


class Memory:
    """The elements of an array, which its views share."""

    __slots__ = ()


class Handle:
    """An array: the elements of a `Memory` that some view steps select."""

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
    """An operand of an operation.

    Attributes
    ----------
    count
        How often the operation adds to its cotangent; None if unknown.
    sign
        1 or -1 in a sum, 0 if the derivative is unknown.
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
        The values that it makes.
    operands
        The values that it reads, by name.
    stored, is_lost
        The elements that a store writes, and whether their old values are lost.
    used
        How often the reverse code added to the cotangents of the operands, by name; in forward
        mode, how often their tangents were added to those of the results, by position and name.
    taken
        The positions of the results whose cotangents were used.
    joined
        Whether the cotangents of all results are first combined, as in calls.
    silent
        The positions of results without cotangents or tangents, such as integers.
    instance
        The instance of a method call.
    passed, read
        The arrays whose cotangents the reverse of a call changes, or whose tangents a call in
        forward mode changes; whether it reads these cotangents.
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

    def makes(self, value: Value) -> None:
        """Add a value to the results."""
        value.event, value.place = self, len(self.results)
        self.results.append(value)


class Contents:
    """Cotangents, or tangents, of the elements of arrays."""

    def __init__(self, maps: Maps) -> None:
        self.maps = maps
        self.known: dict[Memory, Map] = {}

    def read(self, handle: Handle) -> Map:
        found = self.known.get(handle.memory, ZERO)
        for step in handle.steps:
            found = product(self.maps.of("read", step), found)
        return found

    def add(self, handle: Handle, value: Map) -> None:
        if value is ZERO:
            return
        for step in reversed(handle.steps):
            value = product(self.maps.of("add", step), value)
        self.known[handle.memory] = total(self.known.get(handle.memory, ZERO), value)

    def clear(self, handle: Handle) -> None:
        found = self.known.get(handle.memory, ZERO)
        cleared = self.maps.of("clear", *handle.steps)
        self.known[handle.memory] = product(cleared, found) if handle.steps else ZERO

    def call(self, event: Event, handles: list[Handle], seeds: list[Map]) -> list[Map]:
        """Apply the reverse of a call to cotangents; return those of its numbers."""
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
        """Process the events from the last to the first."""
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
        """Process the events in order."""
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
        """Return the tangent of a result, or the change of the tangent of an array."""
        found = ZERO
        for name, value in values.items():
            count, used = event.operands[name].count, event.used.get((place, name), 0)
            for k in range(max(used, 1) if count is None else used if count < 0 else count):
                found = total(found, product(weight(self.maps, event, place, name, k), value))
        return found


def changed(name: str) -> Hashable:
    """Return the key of the elements of an array that a call changes."""
    return ("array", name)


def joined(maps: Maps, event: Event, found: list[Map]) -> Map:
    """Return the combined cotangents of several results."""
    result = ZERO
    for place, g in enumerate(found):
        result = total(result, product(maps.of(event.number, "in", place), g))
    return result


def weight(maps: Maps, event: Event, place: Hashable, name: str, k: int) -> Map:
    """Return the map between the cotangents, or tangents, of a result and of an operand."""
    sign = event.operands[name].sign
    if sign:
        return ONE if sign > 0 or k else negative(ONE)
    return maps.of(event.number, place, name, k)
