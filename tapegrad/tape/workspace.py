"""The memory of running sweeps, which is reused."""

from __future__ import annotations

import ctypes

import numpy as np

from tapegrad.forks import process_lock
from tapegrad.kernels.structs import address_of
from tapegrad.tape.layout import (
    BLOCK_ELEMENTS,
    BLOCKS,
    CONTRIBUTION_WORDS,
    S_ADDRESS,
    S_BLOCKS,
    S_BOOL,
    S_BUMP,
    S_BUMP_END,
    S_CONTRIBUTIONS,
    S_DECREF,
    S_FREE,
    S_INCREF,
    S_NONE,
    S_RELEASED,
    S_SEGMENTS,
    S_SWEPT,
    S_WALKS,
    SEG_WORDS,
    SEGMENT_ROWS,
    STATE_WORDS,
    SWEPT_CAPACITY,
    TIME_WORDS,
    TIMES_CAPACITY,
    WALK_WORDS,
    WALKS,
)
from tapegrad.tape.owner import RELEASED

ARENA_CHUNK = 1 << 18
ARENA_KEPT = 1 << 26  # an arena larger than this is freed after the sweep


def _function_address(name: str) -> int:
    """Return the address of a CPython function."""
    function = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
    assert function.value is not None
    return function.value


class Workspace:
    """Memory of one sweep, reused by later ones: state, windows, arena, scratch.

    Python accesses single words through memoryviews, which give plain integers.
    """

    def __init__(self) -> None:
        state, self.state = words(STATE_WORDS)
        scratch, _ = words(BLOCKS * BLOCK_ELEMENTS + WALKS * WALK_WORDS)
        swept, self.swept = words(2 * SWEPT_CAPACITY)
        self._kept = (state, scratch, swept)
        self.windows: list[memoryview[int]] = []
        self.window_addresses: list[int] = []
        self._window_arrays: list[np.ndarray] = []
        self.chunks: list[np.ndarray] = []
        self.arena_bytes = 0
        self._times: tuple[np.ndarray, int] | None = None  # while a profile runs
        self.address = address_of(state)
        fixed = {
            S_ADDRESS: self.address,
            S_BLOCKS: address_of(scratch),
            S_WALKS: address_of(scratch) + 8 * BLOCKS * BLOCK_ELEMENTS,
            S_SWEPT: address_of(swept),
            S_NONE: id(None),
            S_RELEASED: id(RELEASED),
            S_INCREF: _function_address("Py_IncRef"),
            S_DECREF: _function_address("Py_DecRef"),
            S_BOOL: id(np.dtype(bool)),
        }
        for word, value in fixed.items():
            self.state[word] = value
        self.table = memoryview(b"").cast("q")
        self.grow_table(16)
        self.grow_contributions(16)

    def grow_table(self, rows: int) -> None:
        """Enlarge the segment table, keeping its contents."""
        old = self.table.tolist()
        self._table, self.table = words(rows * SEG_WORDS)
        self.table_rows = rows
        self._table[: len(old)] = old
        self.state[S_SEGMENTS] = address_of(self._table)

    def grow_contributions(self, count: int) -> None:
        """Make room for a number of contributions."""
        self._contributions, self.contributions = words(count * CONTRIBUTION_WORDS)
        self.state[S_CONTRIBUTIONS] = address_of(self._contributions)

    def add_window(self) -> None:
        """Add a window with untouched entries."""
        array, window = words(2 * SEGMENT_ROWS)
        self._window_arrays.append(array)
        self.windows.append(window)
        self.window_addresses.append(address_of(array))

    def window_flags(self, k: int) -> np.ndarray:
        """Return the second words of a window's entries."""
        return self._window_arrays[k][1::2]

    def clean_window(self, k: int, low: int, high: int) -> None:
        """Reset the entries of rows ``low..high`` to untouched."""
        self._window_arrays[k][2 * low : 2 * high + 2] = 0

    def times(self) -> tuple[np.ndarray, int]:
        """Return the list for the times of records, and its address."""
        if self._times is None:
            table = np.zeros((TIMES_CAPACITY, TIME_WORDS), np.int64)
            self._times = table, address_of(table)
        return self._times

    def add_memory(self, nbytes: int) -> int:
        """Add a chunk of at least `nbytes` to the arena; return its size."""
        size = max(nbytes, ARENA_CHUNK)
        chunk = np.empty(size + 64, np.uint8)
        self.chunks.append(chunk)
        self.arena_bytes += size
        start = address_of(chunk)
        start += -start % 64
        self.state[S_BUMP] = start
        self.state[S_BUMP_END] = start + size
        return size

    def trim(self) -> None:
        """Free an arena that has grown large; none of its blocks is in use."""
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
_lock = process_lock()


def take_workspace() -> Workspace:
    """Return an unused workspace."""
    with _lock:
        return _idle.pop() if _idle else Workspace()


def give_workspace_back(space: Workspace) -> None:
    """Return a clean workspace for use by a later sweep."""
    space.trim()
    with _lock:
        _idle.append(space)
