"""A line on a terminal while code is compiled for longer than a moment."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tapegrad.kernels.collection import rare_collections

DELAY = 2.0  # seconds of compiling, after which the line is written
_state = threading.local()  # `depth`: compilations in this thread, one inside of the other
_said: list[str] = []  # what this process has written


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Say once in a process that it compiles, if that takes long; collect garbage less often.

    The line is written to standard error if this is a terminal, unless the environment variable
    ``TAPEGRAD_QUIET`` is set.

    Parameters
    ----------
    what
        What is compiled.
    """
    depth = getattr(_state, "depth", 0)
    if depth or _said or os.environ.get("TAPEGRAD_QUIET") or not _is_terminal():
        with rare_collections():
            yield
        return
    timer = threading.Timer(DELAY, _say, [what])
    timer.daemon = True
    _state.depth = depth + 1
    timer.start()
    try:
        with rare_collections():
            yield
    finally:
        timer.cancel()
        _state.depth = depth


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _say(what: str) -> None:
    if not _said:
        _said.append(what)
        sys.stderr.write(
            f"tapegrad: compiling {what}; later processes load it from disk "
            "(TAPEGRAD_QUIET=1 hides this line)\n"
        )
        sys.stderr.flush()
