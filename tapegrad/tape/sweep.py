"""Run the compiled sweep: provide memory, code and Python rules, and collect the results."""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.array import Array, DeviceArray, as_array
from tapegrad.kernels.structs import address_of
from tapegrad.tape import codes, deferred_release, timing
from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import (
    AVAL_SHIFT,
    BORROWED,
    CAPTURE,
    CONTRIBUTION_WORDS,
    EVENT_ARRAY,
    EVENT_CAPTURE,
    EVENT_DONE,
    EVENT_FREED,
    EVENT_HANDLER,
    EVENT_KERNEL,
    EVENT_LARGE,
    EVENT_MEMORY,
    EVENT_MUTATED,
    EVENT_PYTHON,
    EVENT_SEGMENT,
    EVENT_SWEPT,
    EVENT_TIMES,
    FOREIGN,
    FRESH,
    HANDLER_CHECK,
    LEAF_CLOCK,
    NARY,
    NEEDED,
    OP_INPUTS,
    OWN_AVAL,
    OWN_HOLDER,
    OWN_INPUTS,
    OWN_SLOT,
    PASSES,
    REACHED,
    S_ARG0,
    S_ARG1,
    S_ARG2,
    S_AVALS,
    S_CONTRIBUTION,
    S_CURRENT,
    S_EVENT,
    S_FINISH,
    S_HANDLERS,
    S_HOOKED,
    S_KERNELS,
    S_LAST,
    S_MUTATED,
    S_NCONTRIBUTIONS,
    S_NEED_MODE,
    S_NMUTATED,
    S_NSEGMENTS,
    S_NSWEPT,
    S_OPS,
    S_PENDING,
    S_RETAIN,
    S_WORK,
    SEG_COUNT,
    SEG_HIGH,
    SEG_LEAF,
    SEG_LOW,
    SEG_NUMBER,
    SEG_ROWS,
    SEG_TOP,
    SEG_WINDOW,
    SEG_WORDS,
    SEGMENT_BITS,
    SEGMENT_ROWS,
    TOUCHED,
)
from tapegrad.tape.owner import Frame, Notes, Owner, owner_at
from tapegrad.tape.tape import TAPE, Segment
from tapegrad.tape.workspace import give_workspace_back, take_workspace

Contributions = list[tuple[Owner, Array]]  # contributions to inputs, with the owners of these
PythonRule = Callable[["Sweep", int, Owner, Any], Contributions | None]
Hooks = Callable[["Sweep", int], None]

_INDEX = SEGMENT_ROWS - 1


class FreedError(Exception):
    """The sweep reached a record whose saved values were freed."""


class MutatedError(Exception):
    """The sweep reached a saved value that was mutated after it was saved."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.slot = slot


class Sweep:
    """One reverse pass over the tape.

    Parameters
    ----------
    rule
        Called for a record that needs Python, with the sweep, the slot, the owner and the adjoint
        (None if undefined); returns contributions to inputs as pairs of owner and array
        (contiguous, with the input's shape and dtype), or None if only hooks have run (see
        `replace`) and the sweep should process the record.
    hooks
        Called with the sweep and the slot when a requested adjoint is complete; may `replace` it.
    retain
        Keep saved values for another sweep.
    """

    def __init__(self, rule: PythonRule, hooks: Hooks, retain: bool) -> None:
        self.space = take_workspace()
        self.rule = rule
        self.hooks = hooks
        self.retain = retain
        self.segments: dict[int, int] = {}  # segment number to table row
        self._held: list[Segment] = []
        self.arrays: dict[int, Array] = {}  # adjoints whose memory Python owns
        self.borrowed: set[int] = set()
        self.hooked: set[int] = set()  # slots whose hooks have run
        self.captured: dict[int, Array] = {}
        self.tuples: dict[int, dict[int, Array]] = {}  # cotangents of several outputs
        self.undefined: set[int] = set()  # leaves whose gradient a Function left undefined
        self.requested: set[int] = set()
        self.roots: set[int] = set()  # slots with a cotangent from outside
        self.stops: dict[int, Callable[[], None]] = {}
        self._contributions: Contributions = []
        self._waiting: list[int] = []  # a heap: slots with adjoints from Python, negated
        self._mutations_seen = 0
        state = self.state = self.space.state
        for word in (S_NSEGMENTS, S_LAST, S_PENDING, S_NEED_MODE, S_FINISH, S_NSWEPT, S_HOOKED):
            state[word] = 0
        state[S_NCONTRIBUTIONS] = state[S_CONTRIBUTION] = state[S_NMUTATED] = state[S_WORK] = 0
        state[S_CURRENT] = -1
        state[S_RETAIN] = retain
        state[S_AVALS] = AVALS.address
        state[S_OPS] = OPS.meta_address
        state[S_KERNELS] = OPS.kernels_address
        self.times: timing.SweepTimes | None = None  # while a profile runs
        if TAPE.mutations:
            self._load_mutations()

    def _load_mutations(self) -> None:
        """Pass the last mutations of buffers to compiled code."""
        self._mutations_seen = TAPE.mutation_count
        pairs = TAPE.last_mutations()
        self._mutated = np.array(pairs, np.int64)
        self.state[S_NMUTATED] = len(pairs)
        self.state[S_MUTATED] = address_of(self._mutated)
        self._set_handler(HANDLER_CHECK)

    # -- segments and windows ---------------------------------------------------------------------

    def _add_segment(self, number: int) -> int:
        """Add a segment to the table, with a clean window; return its row."""
        space = self.space
        segment = TAPE.segments.get(number)
        if segment is None:
            raise FreedError
        segment.rows()
        self._held.append(segment)
        k = len(self.segments)
        if k == space.table_rows:
            space.grow_table(2 * k)
        if k == len(space.windows):
            space.add_window()
        table, row = space.table, k * SEG_WORDS
        table[row + SEG_NUMBER] = number
        table[row + SEG_ROWS] = segment.address
        table[row + SEG_WINDOW] = space.window_addresses[k]
        table[row + SEG_TOP] = table[row + SEG_HIGH] = -1
        table[row + SEG_LOW] = SEGMENT_ROWS
        table[row + SEG_COUNT] = 0
        table[row + SEG_LEAF] = number >= LEAF_CLOCK >> SEGMENT_BITS
        self.segments[number] = k
        self.state[S_NSEGMENTS] = k + 1
        return k

    def _entry(self, slot: int) -> tuple[memoryview[int], int, int]:
        """Return the window of a slot, the index of its entry, and its table row."""
        number = slot >> SEGMENT_BITS
        k = self.segments.get(number)
        if k is None:
            k = self._add_segment(number)
        return self.space.windows[k], 2 * (slot & _INDEX), k

    def _count(self, slot: int, k: int, waiting: bool = True) -> None:
        """Note that a row is in use and, unless it is a leaf's, waiting to be swept."""
        table, row, index = self.space.table, k * SEG_WORDS, slot & _INDEX
        if index < table[row + SEG_LOW]:
            table[row + SEG_LOW] = index
        if index > table[row + SEG_HIGH]:
            table[row + SEG_HIGH] = index
        if not waiting:
            return
        if index > table[row + SEG_TOP]:
            table[row + SEG_TOP] = index
        if not table[row + SEG_LEAF]:
            table[row + SEG_COUNT] += 1
            self.state[S_PENDING] += 1

    # -- interface for callers --------------------------------------------------------------------

    def seed(self, slot: int, aval: int, cotangent: Array) -> None:
        """Set the contiguous cotangent of a root."""
        self.roots.add(slot)
        if slot in self.arrays:
            self.arrays[slot] = cotangent = as_array(self.arrays[slot] + cotangent)
        else:
            self.arrays[slot] = cotangent
        self.borrowed.add(slot)
        if type(cotangent) is DeviceArray:
            self.touch(slot)
            return
        window, index, k = self._entry(slot)
        if not window[index + 1] & TOUCHED:
            self._count(slot, k)
        window[index] = address_of(cotangent)
        window[index + 1] |= TOUCHED | FOREIGN | BORROWED | (aval << AVAL_SHIFT)

    def touch(self, slot: int) -> None:
        """Sweep a record even if its cotangent remains undefined."""
        if slot >= LEAF_CLOCK:
            self.undefined.add(slot)
            return
        window, index, k = self._entry(slot)
        if not window[index + 1] & TOUCHED and self.is_needed(slot):
            self._count(slot, k)
            window[index + 1] |= TOUCHED | FOREIGN

    def request(self, roots: Sequence[int], slots: Iterable[int]) -> None:
        """Restrict the sweep to records between roots and these slots; call before `seed`."""
        self.requested = set(slots)
        for slot in self.requested:
            window, index, k = self._entry(slot)
            window[index + 1] |= NEEDED | CAPTURE
            self._count(slot, k, waiting=False)
        for slot in roots:
            window, index, k = self._entry(slot)
            if not window[index + 1] & REACHED:
                window[index + 1] |= REACHED
                self._count(slot, k)
        self._drive("requests", "mark")
        self.state[S_NEED_MODE] = 1
        self.state[S_CURRENT] = -1
        self.state[S_LAST] = 0

    def stop_before(self, slot: int, function: Callable[[], None]) -> None:
        """Call a function before a record is swept; call this after `request` and before `run`."""
        self.stops[slot] = function
        window, index, k = self._entry(slot)
        window[index + 1] |= CAPTURE
        self._count(slot, k, waiting=False)

    def is_needed(self, slot: int) -> bool:
        """Whether a slot's adjoint is wanted."""
        if not self.state[S_NEED_MODE]:
            return True
        window, index, _ = self._entry(slot)
        return bool(window[index + 1] & NEEDED)

    def marked(self, wanted: int) -> np.ndarray:
        """Return, in order, the slots that `request` marked with all of the wanted bits."""
        found = [np.empty(0, np.int64)]
        table = self.space.table
        for number, k in sorted(self.segments.items()):
            low, high = table[k * SEG_WORDS + SEG_LOW], table[k * SEG_WORDS + SEG_HIGH]
            flags = self.space.window_flags(k)[low : high + 1]
            rows = np.flatnonzero(flags & wanted == wanted)
            found.append(rows + (low + (number << SEGMENT_BITS)))
        return np.concatenate(found)

    def take(self, slot: int) -> np.ndarray | None:
        """Remove and return the adjoint of a complete leaf; None if it is undefined."""
        found = self.arrays.pop(slot, None)
        window, index, _ = self._entry(slot)
        window[index] = 0  # later contributions would start a new adjoint
        window[index + 1] &= NEEDED
        self.undefined.discard(slot)
        if found is not None and slot in self.borrowed:
            self.borrowed.remove(slot)
            found = found.copy()
        return found

    def readers(self, slot: int) -> Iterator[tuple[int, Owner | None]]:
        """Yield the ops (their codes) of the records that read a record, and their owners.

        There is no owner of records that may not be alive: those that this sweep did not reach, and
        some of Functions.
        """
        for k, segment in enumerate(self._held):
            rows, flags = segment.rows(), self.space.window_flags(k)
            is_nary = (rows["flags"] & NARY) != 0
            is_second = (rows["y"] == slot) & (OPS.meta[rows["op"], OP_INPUTS] > 1)
            reaches = rows["slot"] - (rows["y"] >> 32) <= slot
            may_read = np.where(is_nary, reaches, (rows["x"] == slot) | is_second)
            for index in np.flatnonzero(may_read & (rows["slot"] > slot)):
                is_alive = flags[index] & (TOUCHED | REACHED)
                owner = owner_at(int(rows["owner"][index])) if is_alive else None
                if owner is None or not is_nary[index] or slot in owner[OWN_INPUTS]:
                    yield int(rows["op"][index]), owner

    def wants(self, owner: Owner) -> bool:
        """Whether the adjoint of a record's output is wanted."""
        return self.is_needed(owner[OWN_SLOT])

    def run(self) -> None:
        """Run the sweep to its end.

        Afterwards `arrays` holds the adjoints of all reached leaves and `captured` those of other
        requested slots. The arrays of slots in `borrowed` share memory with other arrays.
        """
        key = id(self)
        try:
            TAPE.begin_sweep(key)
            if timing.LOG is not None:
                self.times = timing.SweepTimes(timing.LOG, self.state, *self.space.times())
            self._drive("sweep", "sweep")
        finally:
            TAPE.sweeping.pop(key, None)  # first, since any other call may be interrupted
            deferred_release.READERS.pop(key, None)
            if self.times is not None:
                self.times.finish()
            if self.state[S_NSWEPT]:
                self._release_swept()
            deferred_release.clear()

    # -- events -----------------------------------------------------------------------------------

    def _drive(self, module: str, name: str) -> None:
        """Call compiled code, and serve its events, until it is done."""
        call = codes.service(module, name)
        state, address = self.state, self.space.address
        while True:
            call(address)
            if self._contributions:
                self._adopt_contributions()
            event = state[S_EVENT]
            if event == EVENT_PYTHON:
                self._run_rule(state[S_ARG0], owner_at(state[S_ARG1]))
            elif event == EVENT_DONE:
                return
            elif event == EVENT_LARGE:
                self._give_up_gil()
                call = codes.service(module, name, True)
            else:
                self._serve(event, state[S_ARG0], state[S_ARG1], state[S_ARG2])

    def _serve(self, event: int, arg0: int, arg1: int, arg2: int) -> None:
        if event == EVENT_ARRAY:
            self._give_array(arg0, arg1, copy=bool(arg2))
        elif event == EVENT_SEGMENT:
            self._add_segment(arg0)
        elif event == EVENT_MEMORY:
            size = self.space.add_memory(arg0)
            if self.times is not None:
                self.times.note_memory(size)
        elif event == EVENT_KERNEL:
            OPS.compile(arg0, arg1, arg2)
            self.state[S_KERNELS] = OPS.kernels_address
        elif event == EVENT_HANDLER:
            self._set_handler(arg0)
        elif event == EVENT_CAPTURE:
            self._capture(arg0)
        elif event == EVENT_SWEPT:
            self._release_swept()
        elif event == EVENT_TIMES:
            assert self.times is not None
            self.times.keep()
        elif event == EVENT_FREED:
            raise FreedError
        elif event == EVENT_MUTATED:
            raise MutatedError(arg0)
        else:
            raise AssertionError(f"unknown event {event}")

    def _set_handler(self, number: int) -> None:
        self.state[S_HANDLERS + number] = codes.handler(number)

    def _give_array(self, slot: int, aval: int, copy: bool) -> None:
        """Use a Python array as the memory of an adjoint."""
        array = AVALS.empty(aval)
        if self.times is not None:
            self.times.note_memory(array.nbytes)
        if copy:
            array[...] = self.arrays[slot]
        self.arrays[slot] = array
        self.borrowed.discard(slot)
        window, index, _ = self._entry(slot)
        if window[index + 1] & TOUCHED and not copy:  # the adjoint was undefined
            window[index + 1] |= FRESH | aval << AVAL_SHIFT
        window[index] = address_of(array)
        window[index + 1] = (window[index + 1] | FOREIGN) & ~BORROWED

    def _capture(self, slot: int) -> None:
        """Run the stop at a record; keep its complete adjoint if it was requested."""
        if slot in self.stops:
            self.stops.pop(slot)()
        if slot in self.requested:
            self.hooks(self, slot)
            if slot in self.arrays:  # otherwise undefined
                self.captured[slot] = self.arrays[slot]
                self.borrowed.add(slot)
        window, index, _ = self._entry(slot)
        window[index + 1] &= ~CAPTURE
        if TAPE.mutation_count != self._mutations_seen:
            self._load_mutations()

    def _run_rule(self, slot: int, owner: Owner) -> None:
        while self._waiting and -self._waiting[0] > slot:  # it has been swept
            self.arrays.pop(-heapq.heappop(self._waiting), None)
        if self.times is not None:
            self.times.note_name(slot, owner)
        contributions = self.rule(self, slot, owner, self._adjoint(slot, owner))
        if contributions is None:
            self.state[S_HOOKED] = slot
        else:
            self.arrays.pop(slot, None)
            self.state[S_FINISH] = 1
            frame = owner[-1]
            if isinstance(frame, Frame):
                if not self.retain:
                    frame.release()
                if frame.direct:
                    contributions = self._run_chain(slot, contributions)
            if contributions:
                self._give(contributions)
        if TAPE.mutation_count != self._mutations_seen:
            self._load_mutations()

    def _adjoint(self, slot: int, owner: Owner) -> np.ndarray | None:
        """Return the adjoint of a record, or None if it is undefined."""
        found = self.arrays.get(slot)
        if found is None:
            window, index, _ = self._entry(slot)
            if window[index]:
                # in the arena, because its hook was added during the sweep
                found = AVALS.empty(owner[OWN_AVAL])
                ctypes.memmove(address_of(found), window[index], found.nbytes)
                self.replace(slot, found)
        return found

    def _run_chain(self, slot: int, contributions: Contributions) -> Contributions:
        """Run a chain of consecutive Functions without returning to compiled code.

        The next record must be the one just before the slot, without hooks, and its window entry
        must be untouched: compiled code has not contributed to it. Contributions to other records
        are returned at the end of the chain.
        """
        if self.times is not None:
            self.times.note(slot)
        window = self.space.windows[self.state[S_CURRENT]]
        untouched = NEEDED | PASSES if self.state[S_NEED_MODE] else 0
        waiting: dict[int, tuple[Owner, Array]] = {}
        while True:
            for owner, array in contributions:
                target = owner[OWN_SLOT]
                if target in waiting:
                    array = as_array(waiting[target][1] + array)
                waiting[target] = owner, array
            index = slot & _INDEX
            slot -= 1
            if slot not in waiting or not index:
                break
            owner, array = waiting[slot]
            frame = owner[-1]
            if (
                window[2 * index - 1] & ~REACHED != untouched
                or type(owner[OWN_HOLDER]) is Notes
                or not isinstance(frame, Frame)
                or not frame.direct
            ):
                break
            del waiting[slot]
            contributions = frame.contributions(self, owner, array)
            if self.times is not None:
                self.times.note_name(slot, owner)
                self.times.note(slot)
            if not self.retain:
                frame.release()
        return list(waiting.values())

    def _give(self, contributions: Contributions) -> None:
        """Pass arrays computed by Python to compiled code, which adds them to adjoints."""
        state, space = self.state, self.space
        if any(type(array) is DeviceArray for _, array in contributions):
            contributions = self._add_on_device(contributions)
        if len(contributions) * CONTRIBUTION_WORDS > len(space.contributions):
            space.grow_contributions(2 * len(contributions))
        table = space.contributions
        k = 0
        for owner, array in contributions:
            table[k], table[k + 1], table[k + 2] = owner[OWN_SLOT], id(array), 0
            k += CONTRIBUTION_WORDS
        state[S_CONTRIBUTION] = 0
        state[S_NCONTRIBUTIONS] = len(contributions)
        self._contributions = contributions

    def _add_on_device(self, contributions: Contributions) -> Contributions:
        """Add the arrays of a device to adjoints; return the others.

        Compiled code sees records whose adjoint it does not know, and calls Python for each.
        """
        others: Contributions = []
        for owner, array in contributions:
            slot = owner[OWN_SLOT]
            if type(array) is not DeviceArray:
                others.append((owner, array))
            elif self.is_needed(slot):
                known = self.arrays.get(slot)
                if known is None:
                    self.arrays[slot] = array
                    self.borrowed.add(slot)
                elif slot in self.borrowed:  # something else may refer to the first one
                    self.arrays[slot] = known + array
                    self.borrowed.remove(slot)
                else:
                    known += array
                if slot < LEAF_CLOCK:
                    self.touch(slot)
        return others

    def _adopt_contributions(self) -> None:
        """Keep the arrays that became adjoints alive, and drop the others."""
        table, state = self.space.contributions, self.state
        at = 2
        for owner, array in self._contributions:
            if table[at]:
                slot = owner[OWN_SLOT]
                self.arrays[slot] = array
                self.borrowed.add(slot)
                table[at] = 0
                if slot < LEAF_CLOCK:
                    heapq.heappush(self._waiting, -slot)
            at += CONTRIBUTION_WORDS
        if state[S_CONTRIBUTION] == state[S_NCONTRIBUTIONS]:
            state[S_CONTRIBUTION] = state[S_NCONTRIBUTIONS] = 0
            self._contributions = []

    def replace(self, slot: int, array: Array) -> None:
        """Replace an adjoint with another array (contiguous, with the same aval)."""
        self.arrays[slot] = array
        self.borrowed.add(slot)
        if type(array) is DeviceArray:
            return
        window, index, _ = self._entry(slot)
        window[index] = address_of(array)
        window[index + 1] |= FOREIGN | BORROWED

    # -- the GIL and other threads -----------------------------------------------------------------

    def _give_up_gil(self) -> None:
        """Let other threads run Python while compiled code runs."""
        self.state[S_WORK] = -1
        deferred_release.enter(id(self))

    def _release_swept(self) -> None:
        """Drop the saved values of the records swept so far."""
        if deferred_release.READERS.keys() - {id(self)}:
            swept = self.space.swept
            for k in range(self.state[S_NSWEPT]):
                deferred_release.keep(owner_at(swept[2 * k])[OWN_INPUTS:])
        codes.service("requests", "release")(self.space.address)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Return the workspace (after an error it is not reused)."""
        space = self.space
        for k in self.segments.values():
            row = k * SEG_WORDS
            if space.table[row + SEG_HIGH] >= 0:
                space.clean_window(k, space.table[row + SEG_LOW], space.table[row + SEG_HIGH])
        give_workspace_back(space)
