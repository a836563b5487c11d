"""Times of the records of sweeps, while a profile runs."""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from _thread import get_ident
from collections.abc import Iterator
from typing import Any

import numpy as np

from tapegrad.kernels.structs import address_of
from tapegrad.tape import codes
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

_USES_CYCLES = platform.machine().lower() in ("x86_64", "amd64")


def _clock() -> tuple[int, int]:
    """Return the address of `clock_gettime`, or 0, and the clock of `time.perf_counter_ns`."""
    try:
        function = ctypes.CDLL(None).clock_gettime
    except (AttributeError, OSError, TypeError):  # no such function
        return 0, 0
    number = 8 if sys.platform == "darwin" else time.CLOCK_MONOTONIC  # CLOCK_UPTIME_RAW
    return ctypes.cast(function, ctypes.c_void_p).value or 0, number


CLOCK, CLOCK_ID = (0, 0) if _USES_CYCLES else _clock()


class SweepLog:
    """The times of all sweeps while a profile runs.

    Where the processor has a counter of cycles, which advances at a constant rate, records are
    timed by it, since it is read in a tenth of the time of a clock. It is compared with the clock
    at the begin and at the end.
    """

    def __init__(self) -> None:
        self.sweeps: list[SweepTimes] = []
        self._begin = self._end = (0, 0)

    def start(self) -> None:
        """Log the sweeps that begin from now on."""
        global LOG
        self._begin = _now()
        LOG = self

    def stop(self) -> None:
        """Log no more sweeps."""
        global LOG
        LOG = None
        self._end = _now()

    def nanoseconds(self, words: np.ndarray) -> np.ndarray:
        """Return times of records on the clock of `time.perf_counter_ns`."""
        if CLOCK:
            return words[:, 0] * 1_000_000_000 + words[:, 1]
        (begin, first), (end, last) = self._begin, self._end
        rate = (end - begin) / max(last - first, 1)
        return begin + ((words[:, 0] - first) * rate).astype(np.int64)


def _now() -> tuple[int, int]:
    """Return the clock, and the counter of cycles at the same moment."""
    cycles = np.zeros(1, np.int64)
    if _USES_CYCLES:
        read = codes.service("requests", "read_cycles")
        read(address_of(cycles))  # the first call loads code
        read(address_of(cycles))
    return time.perf_counter_ns(), int(cycles[0])


LOG: SweepLog | None = None  # of the running profile


class SweepTimes:
    """When the records of one sweep were done; made when the first one is about to be swept.

    Parameters
    ----------
    log
        The log that it belongs to.
    state
        The state of the sweep.
    table
        The list that compiled code fills.
    address
        Its address.
    """

    def __init__(
        self, log: SweepLog, state: memoryview[int], table: np.ndarray, address: int
    ) -> None:
        self.log = log
        self.thread = get_ident()
        self.start = time.perf_counter_ns()
        self.names: dict[int, str] = {}  # of records whose rules are Python, by slot
        self.allocated: list[tuple[int, int]] = []  # times and bytes
        self._state = state
        self._table = table
        self._blocks: list[np.ndarray] = []
        self._by_python: list[tuple[int, int]] = []  # slots and times
        state[S_NTIMES] = 0
        state[S_TIMES] = address if CLOCK or _USES_CYCLES else 0
        state[S_CLOCK], state[S_CLOCK_ID] = CLOCK, CLOCK_ID

    def note(self, slot: int) -> None:
        """Note that a record is done, which compiled code has not seen."""
        self._by_python.append((slot, time.perf_counter_ns()))

    def note_name(self, slot: int, owner: Owner) -> None:
        """Note the name of a record whose rule is Python."""
        name = getattr(owner[-1], "op_name", "")
        if name:  # else it is that of the record's op
            self.names[slot] = name

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
        self.log.sweeps.append(self)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield slot, op (-1: see `names`) and end of each record, in order."""
        found: list[tuple[int, int, int]] = [(end, slot, -1) for slot, end in self._by_python]
        for block in self._blocks:
            ends = self.log.nanoseconds(block[:, TIME_SECONDS : TIME_NANOSECONDS + 1])
            columns: Any = ends, block[:, TIME_SLOT], block[:, TIME_OP]
            found += zip(*(column.tolist() for column in columns), strict=True)
        seen: set[int] = set()
        for end, slot, op in sorted(found):
            if slot not in seen:  # one of a chain is reported by both
                seen.add(slot)
                yield slot, -1 if slot in self.names else op, end
