"""Deferred release of values that compiled code may still read.

A large sweep does not hold the GIL, so another thread may release values that it is about to read.
These are dropped from their owners at once, but kept here until no such sweep is running.
"""

from __future__ import annotations

import threading
from typing import Any

_lock = threading.Lock()
READERS: dict[int, None] = {}  # sweeps running without the GIL; each removes itself
_kept: list[Any] = []


def enter(key: int) -> None:
    """Register a sweep that reads without the GIL."""
    with _lock:
        READERS[key] = None


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
