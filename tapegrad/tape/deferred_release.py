"""Deferred release of values that compiled code may still read.

A large sweep does not hold the GIL, so another thread may release values that it is about to read.
These are dropped from their owners at once, but kept here until no such sweep is running.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

from tapegrad.forks import in_forked_process, process_lock

_lock = process_lock()
# sweeps running without the GIL, each with its thread; each removes itself
READERS: dict[int, int] = {}
_kept: list[Any] = []


def enter(key: int) -> None:
    """Register a sweep that reads without the GIL."""
    with _lock:
        READERS[key] = get_ident()


def clear() -> None:
    """Free the values after their last reader."""
    if not _kept:
        return
    done: list[Any] = []
    with _lock:
        if not READERS:
            done.extend(_kept)
            _kept.clear()
    done.clear()  # finalizers may run arbitrary code, so not under the lock


def keep(value: Any) -> None:
    """Keep a released value while sweeps may read it."""
    with _lock:
        if READERS:
            _kept.append(value)


@in_forked_process
def _forget_threads() -> None:
    for key, thread in [*READERS.items()]:
        if thread != get_ident():
            del READERS[key]
