"""From what was logged to a tree of events."""

from __future__ import annotations

import bisect
import itertools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tapegrad.eager.frames import maker_of, title
from tapegrad.eager.lines import is_own_file
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.used_outputs import SELECT
from tapegrad.kernels.structs import address_of
from tapegrad.probes import PROBES, Event
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import OWN_SLOT
from tapegrad.tape.timing import SweepTimes

RANGE = -1  # in place of the number of a probe: a range that the user named
_DEPTH = 8  # lines kept of a stack
Shapes = tuple[tuple[int, ...], ...]


class Detail(NamedTuple):
    """What is known of a call besides its time."""

    shapes: Shapes = ()
    stack: tuple[str, ...] = ()
    memory: tuple[tuple[int, int], ...] = ()  # addresses and bytes of new arrays
    slots: tuple[int, ...] = ()  # of the records that it made


@dataclass(eq=False)
class FunctionEvent:
    """A call of an op or function, a range, a backward pass, or one of the records that it swept.

    Attributes
    ----------
    name
        The name of the op or function; of a record, that of its `grad_fn`.
    category
        "op", "function" (a `Function` or a compiled function), "sweep" (a record), "pass"
        (`backward` or `grad`), "tangent" (an op in forward mode), "compile", or "range"
        (`record_function`).
    thread
        The identifier of its thread.
    start, end : int
        Nanoseconds on the clock of `time.perf_counter_ns`.
    count
        The number of calls that it stands for: of short ops, one of 64 calls is timed.
    input_shapes
        The shapes of the arguments (with ``record_shapes``); for a record, those of its op.
    stack
        The lines that called it, innermost first (with ``with_stack``); for a record, its op.
    self_cpu_memory_usage : int
        Bytes of the arrays that it made (with ``profile_memory``).
    parent, cpu_children
        The event that it is part of, and those that are part of it.
    """

    name: str
    category: str
    thread: int
    start: int
    end: int
    count: int = 1
    input_shapes: Shapes = ()
    stack: tuple[str, ...] = ()
    self_cpu_memory_usage: int = 0
    parent: FunctionEvent | None = None
    cpu_children: list[FunctionEvent] = field(default_factory=list)

    @property
    def cpu_time_total(self) -> float:
        """The time of one call, in µs."""
        return (self.end - self.start) / 1e3

    @property
    def cpu_time(self) -> float:
        """The time of one call, in µs."""
        return self.cpu_time_total

    @property
    def own_time(self) -> float:
        """The time of one call minus that of its parts, in µs.

        It is negative if parts were timed that stand for others; the mean over many calls is right.
        """
        inner = sum(child.count * child.cpu_time_total for child in self.cpu_children)
        return self.cpu_time_total - inner

    @property
    def self_cpu_time_total(self) -> float:
        """The time of one call without the events that are part of it, in µs."""
        return max(self.own_time, 0.0)

    @property
    def cpu_memory_usage(self) -> int:
        """Bytes of the arrays that it and its parts made."""
        total, open_events = 0, [self]
        while open_events:
            event = open_events.pop()
            total += event.self_cpu_memory_usage * (1 if event is self else event.count)
            open_events += event.cpu_children
        return total

    def path(self) -> tuple[str, ...]:
        """Return the names of the events that it is part of, outermost first, and its own."""
        names: list[str] = []
        event: FunctionEvent | None = self
        while event is not None:
            names.append(event.name)
            event = event.parent
        return tuple(names[::-1])

    def __repr__(self) -> str:
        return f"<FunctionEvent {self.name}: {self.cpu_time_total:.3f} µs, {self.count} calls>"


def describer(
    shapes: bool, memory: bool, stack: bool
) -> Callable[[tuple[Any, ...], Any], Detail] | None:
    """Return a function from the arguments and the result of a call to its details."""
    if not (shapes or memory or stack):
        return None

    def describe(args: tuple[Any, ...], result: Any) -> Detail:
        try:
            outputs = result if isinstance(result, (tuple, list)) else (result,)
            # a result that was given was made by another call
            made = [t for t in outputs if type(t) is Tensor and all(t is not x for x in args)]
            return Detail(
                _shapes(args) if shapes else (),
                _callers() if stack else (),
                tuple(map(_allocated, made)) if memory else (),
                tuple(slot for t in made for slot in _slots(t)),
            )
        except Exception:  # the call does not fail because it is profiled
            return Detail()

    return describe


def _slots(tensor: Tensor) -> list[int]:
    """Return the slots of the records that made a tensor: of an output, and of its op."""
    owners = (tensor._own, maker_of(tensor._own)[0])
    return [own[OWN_SLOT] for own in owners if own is not None]


def _shapes(args: Iterable[Any]) -> Shapes:
    """Return the shapes of tensors, arrays and numbers, and of tensors and arrays in lists."""
    found: list[tuple[int, ...]] = []
    for value in args:
        if type(value) in (list, tuple):
            found += [item.shape for item in value if isinstance(item, (Tensor, np.ndarray))]
        elif isinstance(value, (Tensor, np.ndarray, np.generic)):
            found.append(value.shape)
        elif type(value) in (int, float, complex):
            found.append(())
    return tuple(found)


def _allocated(tensor: Tensor) -> tuple[int, int]:
    array = tensor._a
    return address_of(array), array.nbytes if array.base is None else 0


def _callers() -> tuple[str, ...]:
    """Return the innermost lines of the stack outside of this package."""
    frame = sys._getframe(2)
    found: list[str] = []
    while frame is not None and len(found) < _DEPTH:
        code = frame.f_code
        if found or not is_own_file(code.co_filename):
            found.append(f"{code.co_filename}({frame.f_lineno}): {code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def tree_of_events(
    log: Iterable[tuple[Any, ...]], missing: dict[int, int], sweeps: Iterable[SweepTimes]
) -> list[FunctionEvent]:
    """Return all events in the order of their starts, each with its parent and children.

    Parameters
    ----------
    log
        The fields of the logged events.
    missing
        The number of calls after the last event, by the number of the probe.
    sweeps
        The times of the sweeps.
    """
    logged = _with_last_calls([Event(*entry) for entry in log], missing)
    details: dict[int, Detail] = {}  # by slot
    made: list[FunctionEvent] = []
    addresses: dict[int, dict[int, int]] = {}  # bytes by address, by the id of the event
    records: list[tuple[FunctionEvent, int]] = []  # that were swept, and their slots
    for event in logged:
        probe = PROBES[event.probe] if event.probe != RANGE else None
        name = event.name if probe is None or callable(probe.name) else probe.name
        if name is None:
            continue
        found = FunctionEvent(
            name,
            "range" if probe is None else probe.category,
            event.thread,
            event.start,
            event.end,
            event.weight,
        )
        detail = event.detail
        if type(detail) is int:  # the slot of a record
            records.append((found, detail))
        elif detail is not None:
            found.input_shapes, found.stack = detail.shapes, detail.stack
            if found.category != "pass":  # gradients are made by the records
                addresses[id(found)] = dict(detail.memory)
            for slot in detail.slots:
                details.setdefault(slot, detail)
        made.append(found)
    for sweep in sweeps:
        timed = _records(sweep)
        records += timed
        made += [found for found, _ in timed]
    for found, slot in records:
        if slot in details:
            found.input_shapes, found.stack = details[slot].shapes, details[slot].stack
    _nest(made)
    for found in reversed(made):  # parts come after what they are part of
        own = addresses.get(id(found))
        if own:
            inner = [addresses.get(id(child), {}) for child in found.cpu_children]
            for address in {address for made_by in inner for address in made_by}:
                own[address] = 0  # a part has made it
            found.self_cpu_memory_usage = sum(own.values())
    return made


def _with_last_calls(logged: list[Event], missing: dict[int, int]) -> list[Event]:
    """Return events of which the last one of a function stands for the calls after it as well."""
    last = {event.probe: position for position, event in enumerate(logged)}
    for number, count in missing.items():
        if count and number in last:
            event = logged[last[number]]
            logged[last[number]] = event._replace(weight=event.weight + count)
    return logged


def _records(sweep: SweepTimes) -> list[tuple[FunctionEvent, int]]:
    """Return the events of the records of a sweep, and the slots of the records."""
    found = []
    start = sweep.start
    for slot, op, end in sweep.rows():
        if op == SELECT:  # an output of the next record
            continue
        name = sweep.names.get(slot) or (OPS.ops[op].name if op >= 0 else "function")
        event = FunctionEvent(f"{title(name)}Backward", "sweep", sweep.thread, start, end)
        found.append((event, slot))
        start = end
    ends = [event.end for event, _ in found]
    for time, nbytes in sweep.allocated:
        at = bisect.bisect_left(ends, time)
        if at < len(found):
            found[at][0].self_cpu_memory_usage += nbytes
    return found


def _nest(events: list[FunctionEvent]) -> None:
    """Sort events by thread and start, and set their parents and children."""
    events.sort(key=lambda event: (event.thread, event.start, -event.end))
    for _, group in itertools.groupby(events, key=lambda event: event.thread):
        open_events: list[FunctionEvent] = []
        for event in group:
            while open_events and open_events[-1].end < event.end:
                open_events.pop()
            if open_events:
                event.parent = open_events[-1]
                event.parent.cpu_children.append(event)
            open_events.append(event)
