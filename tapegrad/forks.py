"""Locks that are free in a forked process.

A forked process has one thread. What another thread had locked would stay locked there for ever,
and half changed. So a fork waits until no other thread holds one of the locks that are made here,
or compiles something: machine code is made by numba and LLVM, whose locks it takes as well.
"""

from __future__ import annotations

import logging  # noqa: F401 (so that it has its locks taken, too, before a fork that waits for us)
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

PATIENCE = 60.0  # seconds after which a process is forked although a lock is held

_of_process: list[Any] = []
_of_objects: WeakSet[Any] = WeakSet()


class _Fork(threading.local):
    """What a thread does that forks the process.

    Attributes
    ----------
    taken
        The locks that it has taken.
    """

    def __init__(self) -> None:
        self.taken: list[Any] = []


_fork = _Fork()


def process_lock() -> Any:
    """Return a lock for data of the process, which is never held for longer than a computation."""
    made = threading.RLock()
    _of_process.append(made)
    return made


_gate = process_lock()
_undivided: dict[object, int] = {}  # the threads that are in such blocks


def object_lock() -> Any:
    """Return a lock for data of one object, which may be held while code of the user's runs.

    A fork does not wait for it; it is free in the forked process.
    """
    made = threading.RLock()
    _of_objects.add(made)
    return made


@contextmanager
def undivided() -> Iterator[None]:
    """Let no process be forked while the block runs in this thread."""
    this = object()
    try:
        with _gate:
            _undivided[this] = threading.get_ident()
        yield
    finally:
        _undivided.pop(this, None)


def in_forked_process(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function in forked processes: it forgets what belongs to threads they do not have."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


def _locks() -> Iterator[Any]:
    yield from _of_process
    places = (
        ("numba.core.compiler_lock", "global_compiler_lock", "_lock"),
        ("llvmlite.binding.ffi", "lib", "_lock", "_lock"),
    )
    for module, *names in places:
        found: Any = sys.modules.get(module)
        for name in names:
            found = getattr(found, name, None)
        if found is not None:
            yield found


def _take() -> None:
    """Take all locks, or none while one of them is held: threads take them in any order."""
    end = time.monotonic() + PATIENCE
    held: Any = _gate  # what was held last time
    while True:
        for found in (held, *(other for other in _locks() if other is not held)):
            # wait for one with no other one in hand
            seconds = 0.01 if _fork.taken else max(0.0, end - time.monotonic())
            _fork.taken.append(found)  # before it is, for an interrupt may come
            if not found.acquire(timeout=seconds):
                _fork.taken.pop()
                held = found
                break
        else:
            if not _is_divided():
                return
        if time.monotonic() > end:
            return
        _release()
        time.sleep(0.001)


def _is_divided() -> bool:
    """Whether another thread is in an undivided block."""
    return any(thread != threading.get_ident() for thread in _undivided.values())


def _release() -> None:
    while _fork.taken:
        found = _fork.taken.pop()
        if found._is_owned():
            found.release()


def _free() -> None:
    """Free all locks in a forked process."""
    for key, thread in [*_undivided.items()]:
        if thread != threading.get_ident():
            del _undivided[key]
    for found in [*_locks(), *_of_objects]:
        if not found._is_owned():
            found._at_fork_reinit()
    _release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_release, after_in_child=_free)
