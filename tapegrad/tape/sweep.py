"""Run the compiled sweep: feed it memory, code and Python rules, and collect what it computed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tapegrad.kernels.structs import address_of
from tapegrad.tape import code
from tapegrad.tape.aval import AVALS
from tapegrad.tape.code import OPS
from tapegrad.tape.layout import (
    AVAL_SHIFT,
    BLOCK_ELEMENTS,
    BLOCKS,
    BORROWED,
    CAPTURE,
    EVENT_ARRAY,
    EVENT_CAPTURE,
    EVENT_DONE,
    EVENT_EXTERNALS,
    EVENT_FREED,
    EVENT_HANDLER,
    EVENT_KERNEL,
    EVENT_MEMORY,
    EVENT_MUTATED,
    EVENT_PYTHON,
    EVENT_SEGMENT,
    FOREIGN,
    FREED,
    HANDLER_CHECK,
    LEAF_CLOCK,
    NARY,
    NEEDED,
    NUMBERS,
    OP_INPUTS,
    OP_TRAITS,
    OWN_INPUTS,
    OWN_SEGMENT,
    OWN_SLOT,
    REACHED,
    S_ADDRESS,
    S_ARG0,
    S_ARG1,
    S_ARG2,
    S_AVALS,
    S_BLOCKS,
    S_BOOL,
    S_BUMP,
    S_BUMP_END,
    S_CURRENT,
    S_EVENT,
    S_EXTERNAL_CAPACITY,
    S_EXTERNALS,
    S_FINISH,
    S_FREE,
    S_HANDLERS,
    S_HOOKED,
    S_KERNELS,
    S_LAST,
    S_MUTATED,
    S_NEED_MODE,
    S_NEXTERNALS,
    S_NMUTATED,
    S_NNEEDED,
    S_NONE,
    S_NREACHED,
    S_NSEGMENTS,
    S_OPS,
    S_PARTIAL,
    S_PENDING,
    S_RETAIN,
    S_SAVED_SEEN,
    S_SEGMENTS,
    S_WALKS,
    SAVES,
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
    STATE_WORDS,
    TOUCHED,
    TRAIT_SAVES,
    USE_SHIFT,
    WALK_WORDS,
    WALKS,
)
from tapegrad.tape.tape import TAPE, Segment

Owner = list[Any]
Contribution = tuple[int, np.ndarray]
PythonRule = Callable[["Sweep", int, Owner, np.ndarray], Iterable[Contribution] | None]
Hooks = Callable[["Sweep", int], None]

ARENA_CHUNK = 1 << 18
ARENA_KEPT = 1 << 26  # an arena larger than this is given back after the sweep
_INDEX = SEGMENT_ROWS - 1


class FreedError(Exception):
    """The sweep met a record whose saved values are gone."""


class MutatedError(Exception):
    """The sweep met a saved value that was mutated after it was saved."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.slot = slot


def owner_at(address: int) -> Owner:
    """Return the live list at an address that a record holds."""
    owner: Owner = ctypes.cast(address, ctypes.py_object).value
    return owner


class Workspace:
    """Memory of one running sweep, kept and reused by later ones: state, windows, arena, scratch.

    What Python reads and writes word by word is seen through memoryviews: they give plain integers.
    """

    def __init__(self) -> None:
        state, self.state = words(STATE_WORDS)
        scratch, _ = words(BLOCKS * BLOCK_ELEMENTS + WALKS * WALK_WORDS)
        self._kept = (state, scratch)
        self.windows: list[memoryview[int]] = []
        self.window_addresses: list[int] = []
        self._window_arrays: list[np.ndarray] = []
        self.chunks: list[np.ndarray] = []
        self.arena_bytes = 0
        self.address = address_of(state)
        fixed = {
            S_ADDRESS: self.address,
            S_BLOCKS: address_of(scratch),
            S_WALKS: address_of(scratch) + 8 * BLOCKS * BLOCK_ELEMENTS,
            S_NONE: id(None),
            S_BOOL: id(np.dtype(bool)),
        }
        for word, value in fixed.items():
            self.state[word] = value
        self.table = memoryview(b"").cast("q")
        self.externals = np.zeros(0, np.int64)
        self.grow_table(16)
        self.grow_externals(256)

    def grow_table(self, rows: int) -> None:
        """Give the segment table room for more rows, keeping its contents."""
        old = self.table.tolist()
        self._table, self.table = words(rows * SEG_WORDS)
        self.table_rows = rows
        self._table[: len(old)] = old
        self.state[S_SEGMENTS] = address_of(self._table)

    def grow_externals(self, count: int) -> None:
        """Give the list of externals room for more, keeping its contents."""
        old = self.externals
        self.externals = np.zeros(count, np.int64)
        self.externals[: len(old)] = old
        self.state[S_EXTERNALS] = address_of(self.externals)
        self.state[S_EXTERNAL_CAPACITY] = count

    def add_window(self) -> None:
        """Make one more window, of untouched entries."""
        array, window = words(2 * SEGMENT_ROWS)
        self._window_arrays.append(array)
        self.windows.append(window)
        self.window_addresses.append(address_of(array))

    def clean_window(self, k: int, low: int, high: int) -> None:
        """Make the entries of rows ``low..high`` untouched again."""
        self._window_arrays[k][2 * low : 2 * high + 2] = 0

    def add_memory(self, nbytes: int) -> None:
        """Give the arena a new chunk of at least `nbytes`."""
        size = max(nbytes, ARENA_CHUNK)
        chunk = np.empty(size + 64, np.uint8)
        self.chunks.append(chunk)
        self.arena_bytes += size
        start = address_of(chunk)
        start += -start % 64
        self.state[S_BUMP] = start
        self.state[S_BUMP_END] = start + size

    def trim(self) -> None:
        """Give back an arena that has grown large; its blocks are all free."""
        if self.arena_bytes > ARENA_KEPT:
            self.chunks.clear()
            self.arena_bytes = 0
            for word in range(S_FREE, STATE_WORDS):
                self.state[word] = 0
            self.state[S_BUMP] = self.state[S_BUMP_END] = 0


def words(count: int) -> tuple[np.ndarray, memoryview[int]]:
    """Return zeroed words as an array and as a memoryview."""
    array = np.zeros(count, np.int64)
    return array, memoryview(array)  # type: ignore[arg-type]


_idle: list[Workspace] = []
_idle_lock = threading.Lock()


class Sweep:
    """One reverse pass over the tape.

    Parameters
    ----------
    rule
        Called where a record needs Python, with the sweep, the slot, the owner and the adjoint;
        returns contributions to inputs as pairs of slot and array (contiguous, of the input's
        shape and dtype), or None if hooks have run (see `replace`) and the sweep is to go on.
    hooks
        Called with the sweep and the slot when a requested adjoint is finished; may `replace` it.
    retain
        Keep saved values for another sweep.
    """

    def __init__(self, rule: PythonRule, hooks: Hooks, retain: bool) -> None:
        with _idle_lock:
            self.space = _idle.pop() if _idle else Workspace()
        self.rule = rule
        self.hooks = hooks
        self.retain = retain
        self.segments: dict[int, int] = {}  # segment number -> row of the table
        self._held: list[Segment] = []
        self.arrays: dict[int, np.ndarray] = {}  # adjoints whose memory Python owns
        self.borrowed: set[int] = set()
        self.hooked: set[int] = set()  # slots whose hooks have run
        self.captured: dict[int, np.ndarray] = {}
        self.tuples: dict[int, dict[int, np.ndarray]] = {}  # cotangents of several outputs
        state = self.state = self.space.state
        for word in (S_NSEGMENTS, S_LAST, S_PENDING, S_NEED_MODE, S_FINISH, S_NEXTERNALS):
            state[word] = 0
        state[S_SAVED_SEEN] = state[S_NREACHED] = state[S_NNEEDED] = state[S_HOOKED] = 0
        state[S_PARTIAL] = 0
        state[S_CURRENT] = -1
        state[S_RETAIN] = retain
        state[S_AVALS] = AVALS.address
        state[S_OPS] = OPS.meta_address
        state[S_KERNELS] = OPS.kernels_address
        state[S_NMUTATED] = 0
        if TAPE.mutations:
            pairs = [(key, known.slots[-1]) for key, known in TAPE.mutations.items()]
            self._mutated = np.array(pairs, np.int64)
            state[S_NMUTATED] = len(pairs)
            state[S_MUTATED] = address_of(self._mutated)
            self._set_handler(HANDLER_CHECK)

    # -- segments and windows ---------------------------------------------------------------------

    def _add_segment(self, number: int) -> int:
        """Put a segment into the table, with a clean window; return its row."""
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
        """Return the window of a slot, the index of its entry, and its row of the table."""
        number = slot >> SEGMENT_BITS
        k = self.segments.get(number)
        if k is None:
            k = self._add_segment(number)
        return self.space.windows[k], 2 * (slot & _INDEX), k

    def _count(self, slot: int, k: int, waiting: bool = True) -> None:
        """Note that a row is in use and, if it is not a leaf's, waiting to be swept."""
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

    # -- what a caller does -----------------------------------------------------------------------

    def seed(self, slot: int, aval: int, cotangent: np.ndarray) -> None:
        """Start from a root, with a contiguous cotangent of its aval."""
        if slot in self.arrays:
            self.arrays[slot] = cotangent = np.asarray(self.arrays[slot] + cotangent)
        else:
            self.arrays[slot] = cotangent
        self.borrowed.add(slot)
        window, index, k = self._entry(slot)
        if not window[index + 1] & TOUCHED:
            self._count(slot, k)
        window[index] = address_of(cotangent)
        window[index + 1] |= TOUCHED | FOREIGN | BORROWED | (aval << AVAL_SHIFT)

    def request(self, roots: Sequence[int], slots: Iterable[int]) -> None:
        """Compute only what these slots need; call before `seed`, with the roots' slots."""
        requested = set(slots)
        for slot in requested:
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
        self.state[S_PARTIAL] = self.state[S_NREACHED] != self.state[S_NNEEDED]
        self.state[S_CURRENT] = -1
        self.state[S_LAST] = 0

    def is_needed(self, slot: int) -> bool:
        """Whether a slot's adjoint is wanted."""
        if not self.state[S_NEED_MODE]:
            return True
        window, index, _ = self._entry(slot)
        return bool(window[index + 1] & NEEDED)

    def run(self) -> None:
        """Sweep until nothing is left to do.

        Afterwards `arrays` has the adjoints of all leaves reached and `captured` those of other
        requested slots. Slots in `borrowed` share memory with something else.
        """
        self._drive("driver", "sweep")

    # -- events -----------------------------------------------------------------------------------

    def _drive(self, module: str, name: str) -> None:
        """Call compiled code until it reports that it is done."""
        call = code.service(module, name)
        state, address = self.state, self.space.address
        while True:
            call(address)
            event = state[S_EVENT]
            if event == EVENT_DONE:
                return
            self._serve(event, state[S_ARG0], state[S_ARG1], state[S_ARG2])

    def _serve(self, event: int, arg0: int, arg1: int, arg2: int) -> None:
        if event == EVENT_ARRAY:
            self._give_array(arg0, arg1, copy=bool(arg2))
        elif event == EVENT_SEGMENT:
            self._add_segment(arg0)
        elif event == EVENT_PYTHON:
            self._run_rule(arg0, owner_at(arg1))
        elif event == EVENT_MEMORY:
            self.space.add_memory(arg0)
        elif event == EVENT_KERNEL:
            OPS.compile(arg0, arg1, arg2)
            self.state[S_KERNELS] = OPS.kernels_address
        elif event == EVENT_HANDLER:
            self._set_handler(arg0)
        elif event == EVENT_CAPTURE:
            self._capture(arg0)
        elif event == EVENT_FREED:
            raise FreedError
        elif event == EVENT_MUTATED:
            raise MutatedError(arg0)
        elif event == EVENT_EXTERNALS:
            self.space.grow_externals(2 * len(self.space.externals))
        else:
            raise AssertionError(f"unknown event {event}")

    def _set_handler(self, number: int) -> None:
        self.state[S_HANDLERS + number] = code.handler(number)

    def _give_array(self, slot: int, aval: int, copy: bool) -> None:
        """Back an adjoint by an array of Python's."""
        array = AVALS.empty(aval)
        if copy:
            array[...] = self.arrays[slot]
        self.arrays[slot] = array
        self.borrowed.discard(slot)
        window, index, _ = self._entry(slot)
        window[index] = address_of(array)
        window[index + 1] = (window[index + 1] | FOREIGN) & ~BORROWED

    def _capture(self, slot: int) -> None:
        """Keep the finished adjoint of a requested slot that has inputs of its own."""
        self.hooks(self, slot)
        self.captured[slot] = self.arrays[slot]
        self.borrowed.add(slot)
        window, index, _ = self._entry(slot)
        window[index + 1] &= ~CAPTURE

    def _run_rule(self, slot: int, owner: Owner) -> None:
        contributions = self.rule(self, slot, owner, self.arrays[slot])
        if contributions is None:
            self.state[S_HOOKED] = slot
            return
        for target, array in contributions:
            self.contribute(target, array, borrowed=True)
        self.arrays.pop(slot, None)
        self.state[S_FINISH] = 1
        if not self.retain and not self.state[S_PARTIAL]:
            for target in input_slots(owner):
                if target:
                    window, index, _ = self._entry(target)
                    window[index + 1] += 1 << USE_SHIFT

    def replace(self, slot: int, array: np.ndarray) -> None:
        """Put another array (contiguous, of its aval) in the place of an adjoint."""
        self.arrays[slot] = array
        self.borrowed.add(slot)
        window, index, _ = self._entry(slot)
        window[index] = address_of(array)
        window[index + 1] |= FOREIGN | BORROWED

    def contribute(self, slot: int, array: np.ndarray, borrowed: bool) -> None:
        """Add an array to an adjoint; `borrowed` says that somebody else may hold its memory."""
        state = self.state
        place = state[S_CURRENT]
        call = code.service("requests", "contribute")
        while True:
            state[S_ARG0], state[S_ARG1] = slot, id(array)
            state[S_ARG2] = BORROWED if borrowed else 0
            call(self.space.address)
            event = state[S_EVENT]
            if event == EVENT_DONE:
                break
            self._serve(event, state[S_ARG0], state[S_ARG1], state[S_ARG2])
        state[S_CURRENT] = place
        if state[S_ARG0]:
            self.arrays[slot] = array
            if borrowed:
                self.borrowed.add(slot)

    # -- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Set saved values free (unless retained) and give the workspace back."""
        state, space = self.state, self.space
        if not self.retain and state[S_SAVED_SEEN]:
            addresses = space.externals[: state[S_NEXTERNALS]].tolist()
            owners = [owner_at(address) for address in addresses]
            partial = state[S_PARTIAL]
            whole: set[int] = set()
            for owner in owners:
                if partial:
                    release_saved(owner)
                elif holds_freed(owner, whole):
                    owner[OWN_SEGMENT].set_flags(owner[OWN_SLOT], FREED)
                    del owner[OWN_INPUTS:]
        for k in self.segments.values():
            row = k * SEG_WORDS
            if space.table[row + SEG_HIGH] >= 0:
                space.clean_window(k, space.table[row + SEG_LOW], space.table[row + SEG_HIGH])
        space.trim()
        with _idle_lock:
            _idle.append(space)


# -- owners --------------------------------------------------------------------------------------


def inputs_of(owner: Owner) -> list[Owner | None]:
    """Return the owners of a record's inputs, None for passive ones."""
    if len(owner) <= OWN_INPUTS:
        return []
    words = _record(owner)
    op, flags = words & 0xFFFFFFFF, words >> 32
    if flags & NARY:
        return list(owner[OWN_INPUTS + 1])
    return owner[OWN_INPUTS : OWN_INPUTS + int(OPS.meta[op, OP_INPUTS])]


def input_slots(owner: Owner) -> list[int]:
    """Return the slots of a record's inputs, 0 for passive ones."""
    return [0 if parent is None else parent[OWN_SLOT] for parent in inputs_of(owner)]


def _record(owner: Owner) -> int:
    """Return the op and flags word of an owner's record."""
    segment = owner[OWN_SEGMENT]
    segment.rows()
    return int(segment.words[owner[OWN_SLOT] - segment.base, 1])


def release_saved(owner: Owner) -> None:
    """Drop the saved values of a swept record, and keep its place in the graph."""
    if _record(owner) >> 32 & FREED:
        del owner[OWN_INPUTS + (2 if _record(owner) >> 32 & NARY else len(inputs_of(owner))) :]


def holds_freed(owner: Owner, whole: set[int]) -> bool:
    """Whether a record or one below it has lost its saved values, so that it cannot run again.

    `whole` collects slots below which nothing was lost, so that they are looked at once.
    """
    seen: set[int] = set()
    stack = [owner]
    while stack:
        owner = stack.pop()
        slot = owner[OWN_SLOT]
        if slot in seen or slot in whole or slot >= LEAF_CLOCK:
            continue
        seen.add(slot)
        if _record(owner) >> 32 & FREED:
            return True
        stack.extend(parent for parent in inputs_of(owner) if parent is not None)
    whole |= seen
    return False


def free(owner: Owner) -> None:
    """Set the saved values of one record free, if its op saves any."""
    words = _record(owner)
    by_op = OPS.meta[words & 0xFFFFFFFF, OP_TRAITS] & TRAIT_SAVES and not words >> 32 & NUMBERS
    if words >> 32 & SAVES or by_op:
        owner[OWN_SEGMENT].set_flags(owner[OWN_SLOT], FREED)
        release_saved(owner)
