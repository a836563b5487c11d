"""Times of the records of sweeps, while a profile runs."""

from __future__ import annotations

import ctypes
import sys
import time
from _thread import get_ident
from collections.abc import Iterator
from typing import Any

import numpy as np

from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import (
    S_CLOCK,
    S_CLOCK_ID,
    S_NTIMES,
    S_TIMES,
    TIME_NANOSECONDS,
    TIME_OP,
    TIME_SECONDS,
    TIME_SLOT,
)
from tapegrad.tape.owner import Owner, record_owner

LOG: list[SweepTimes] | None = None  # gets the times of every sweep, if a profile runs


def _clock() -> tuple[int, int]:
    """Return the address of `clock_gettime`, or 0, and the clock of `time.perf_counter_ns`."""
    try:
        function = ctypes.CDLL(None).clock_gettime
    except (AttributeError, OSError, TypeError):  # no such function: on Windows
        return 0, 0
    number = 8 if sys.platform == "darwin" else time.CLOCK_MONOTONIC  # CLOCK_UPTIME_RAW
    return ctypes.cast(function, ctypes.c_void_p).value or 0, number


CLOCK, CLOCK_ID = _clock()


class SweepTimes:
    """When the records of one sweep were done.

    Parameters
    ----------
    state
        The state of the sweep.
    table
        The list that compiled code fills.
    address
        Its address.
    """

    def __init__(self, state: memoryview[int], table: np.ndarray, address: int) -> None:
        self.thread = get_ident()
        self.start = 0
        self.names: dict[int, str] = {}  # of records whose rules are Python, by slot
        self.allocated: list[tuple[int, int]] = []  # times and bytes
        self._state = state
        self._table = table
        self._blocks: list[np.ndarray] = []
        self._by_python: list[tuple[int, int]] = []  # slots and times
        state[S_NTIMES] = 0
        state[S_TIMES] = address if CLOCK else 0
        state[S_CLOCK], state[S_CLOCK_ID] = CLOCK, CLOCK_ID

    def begin(self) -> None:
        """Note that the first record is about to be swept."""
        self.start = time.perf_counter_ns()

    def note(self, slot: int) -> None:
        """Note that a record is done, which compiled code has not seen."""
        self._by_python.append((slot, time.perf_counter_ns()))

    def note_name(self, slot: int, owner: Owner) -> None:
        """Note the name of a record whose rule is Python."""
        self.names[slot] = getattr(owner[-1], "op_name", "")

    def note_memory(self, nbytes: int) -> None:
        """Note that memory was allocated."""
        self.allocated.append((time.perf_counter_ns(), nbytes))

    def keep(self) -> None:
        """Empty the list that compiled code fills."""
        count = self._state[S_NTIMES]
        rows = self._table[:count].copy()
        self._blocks.append(rows)
        if OPS.products:  # their records have names of their own
            for slot, op, *_ in rows.tolist():
                if op in OPS.products and (owner := record_owner(slot)) is not None:
                    self.note_name(slot, owner)
        self._state[S_NTIMES] = 0

    def finish(self) -> None:
        """Note that the sweep has ended, and log it."""
        self._state[S_TIMES] = 0
        self.keep()
        if LOG is not None:
            LOG.append(self)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield slot, op (-1: see `names`) and end of each record, in order."""
        found: list[tuple[int, int, int]] = [(end, slot, -1) for slot, end in self._by_python]
        for block in self._blocks:
            ends = block[:, TIME_SECONDS] * 1_000_000_000 + block[:, TIME_NANOSECONDS]
            columns: Any = ends, block[:, TIME_SLOT], block[:, TIME_OP]
            found += zip(*(column.tolist() for column in columns), strict=True)
        seen: set[int] = set()
        for end, slot, op in sorted(found):
            if slot not in seen:  # one of a chain is reported by both
                seen.add(slot)
                yield slot, -1 if slot in self.names else op, end
