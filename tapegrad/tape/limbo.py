"""Values that are dropped while compiled code may still read them.

A sweep with much work does not hold the interpreter. Another thread may then release values that
this sweep is about to read. They are dropped from their owners at once, but live here until no such
sweep runs any more.
"""

from __future__ import annotations

import threading
from typing import Any

_lock = threading.Lock()
_readers = 0  # sweeps that run without the interpreter
_kept: list[Any] = []


def enter() -> None:
    """Begin to read without the interpreter."""
    global _readers
    with _lock:
        _readers += 1


def leave() -> None:
    """End it; what nobody reads any more goes."""
    global _readers
    done: list[Any] = []
    with _lock:
        _readers -= 1
        if not _readers:
            done.extend(_kept)
            _kept.clear()
    done.clear()  # what dies here may run any code: not under the lock


def has_readers(besides: int = 0) -> bool:
    """Whether somebody (besides so many) reads without the interpreter."""
    return _readers > besides


def keep(value: Any) -> None:
    """Keep a value that is dropped as long as somebody may read it."""
    with _lock:
        if _readers:
            _kept.append(value)
