"""Fewer garbage collections while something is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from tapegrad.forks import in_forked_process, process_lock

FEWEST = 50_000  # objects that are made between two collections
_lock = process_lock()
_compiling: dict[object, int] = {}  # the thread of each compilation
_before = gc.get_threshold()  # the thresholds when the first of them began


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector run less often.

    numba makes many objects that live until a function is compiled. To look through them every 700
    objects takes a tenth of the time, and frees next to nothing.
    """
    global _before
    this = object()
    try:
        with _lock:
            found = gc.get_threshold()
            if not _compiling and found[0] != FEWEST:  # else an interrupt has left it so
                _before = found
            _compiling[this] = get_ident()
            if 0 < found[0] < FEWEST:  # 0: there are none
                gc.set_threshold(FEWEST, *found[1:])
        yield
    finally:
        with _lock:
            _compiling.pop(this, None)
            _restore()


def _restore() -> None:
    """Collect as before if nothing compiles any more, unless somebody else has changed that."""
    if not _compiling and gc.get_threshold()[0] == FEWEST:
        gc.set_threshold(*_before)


@in_forked_process
def _forget_threads() -> None:
    if _compiling:
        for key, thread in [*_compiling.items()]:
            if thread != get_ident():
                del _compiling[key]
        _restore()
