"""Values that are dropped while compiled code may still read them.

A sweep with much work does not hold the GIL. Another thread may then release values that
this sweep is about to read. They are dropped from their owners at once, but live here until no such
sweep runs any more.
"""

from __future__ import annotations

import threading
from typing import Any

_lock = threading.Lock()
READERS: dict[int, None] = {}  # sweeps that run without the GIL; each takes itself out
_kept: list[Any] = []


def enter(key: int) -> None:
    """Begin to read without the GIL."""
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
    done.clear()  # what dies here may run any code: not under the lock


def keep(value: Any) -> None:
    """Keep a value that is dropped as long as somebody may read it."""
    with _lock:
        if READERS:
            _kept.append(value)
