"""Kernels that are started again: what a function does on the device, without the function.

While a function runs under `recording`, the kernels that it starts are noted with their arguments.
`Launches` starts them again with the memory of other arguments and results in place of the first.
All other memory is that of the recording: nothing else uses it, and each call writes to it again.

A function may do nothing but start kernels that differs between calls. The recording says so where
it is known that it does: where the host reads an element, or another library gets the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np


class Recording:
    """The kernels that a function starts.

    Parameters
    ----------
    pool
        Where its arrays get their memory from.

    Attributes
    ----------
    pool
        As above.
    launches
        The kernels, with their grid, their block and their arguments.
    reason
        Why they cannot be started again in place of the function; "" if they can.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.launches: list[tuple[Any, Any, Any, tuple[Any, ...]]] = []
        self.reason = ""
        self._kept: list[Any] = []

    def keep(self, memory: Any) -> None:
        """Keep the memory of a constant, which kernels read in each call."""
        self._kept.append(memory)

    def refuse(self, reason: str) -> None:
        """Note that the function does what starting kernels does not repeat."""
        self.reason = self.reason or reason


NOW: ContextVar[Recording | None] = ContextVar("NOW", default=None)
"""The recording that is made, in this thread and in those that work for it."""


@contextmanager
def recording(pool: Any) -> Iterator[Recording]:
    """Note the kernels that are started in the context."""
    made = Recording(pool)
    before = NOW.set(made)
    try:
        yield made
    finally:
        NOW.reset(before)


class _Part(NamedTuple):
    """An argument of a kernel: some elements of memory that is replaced."""

    place: int
    number: int  # of the memory
    dtype: np.dtype
    elements: slice


class Launches:
    """Kernels that are started again, with other memory for arguments and results.

    Parameters
    ----------
    recorded
        The recording.
    memories
        The memory that is replaced in each call.
    """

    def __init__(self, recorded: Recording, memories: Sequence[Any]) -> None:
        self._recorded = recorded
        self._lock = threading.Lock()
        self._parts = [
            [
                _Part(place, number, arg.dtype, slice(first, first + arg.size))
                for place, arg in enumerate(args)
                if hasattr(arg, "copy_to_host")  # an array of numba
                for number, memory in enumerate(memories)
                if (first := memory.place_of(arg)) is not None
            ]
            for *_, args in recorded.launches
        ]

    def __len__(self) -> int:
        return len(self._parts)

    def start(self, memories: Sequence[Any]) -> None:
        """Start the kernels with other memory."""
        with self._lock:  # calls share the memory of what is computed on the way
            for (kernel, grid, block, args), parts in zip(
                self._recorded.launches, self._parts, strict=True
            ):
                given = [*args]
                for place, number, dtype, elements in parts:
                    given[place] = memories[number].of(dtype)[elements]
                kernel.start(grid, block, *given)
