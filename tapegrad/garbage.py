"""Python's search for garbage, which is put off."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Do not look for garbage among many new objects, nearly all of which stay.

    That took a sixth of the first call of a recorded program with 3300 values, and takes a
    twentieth of the time in which numba compiles a function.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
