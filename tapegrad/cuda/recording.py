"""What a function does on the device, noted to be done again without the function.

While a function runs under `recording`, the kernels that it starts are noted with their arguments.
All memory but that of its arguments and results is that of the recording: nothing else uses it, and
each time that the kernels run they write to it again.

A function may do nothing but start kernels that differs between calls. The recording says so where
it is known that it does: where the host reads an element, or another library gets the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


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
    taken
        Blocks that its arrays get from the pool, each with how many kernels there were before.
    kept
        What has memory that they use, other than the pool: of constants, which they read in each
        call, and of other recordings.
    reason
        Why they cannot be started again in place of the function; "" if they can.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.launches: list[tuple[Any, Any, Any, tuple[Any, ...]]] = []
        self.taken: list[tuple[int, Any]] = []
        self.reason = ""
        self.kept: list[Any] = []

    def keep(self, user: Any) -> None:
        """Keep what has memory that kernels use."""
        self.kept.append(user)

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
