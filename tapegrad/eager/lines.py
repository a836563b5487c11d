"""The user's line: where warnings and errors say that something happened."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from types import FrameType, TracebackType

import numpy as np

_OWN_FILES = (f"{Path(__file__).parents[1]}{os.sep}", "<tapegrad")
# NumPy's functions ask a list of tensors for arrays in lines of its own
_FILES_BETWEEN = (*_OWN_FILES, f"{Path(np.__file__).parent}{os.sep}")
_NUMBA = f"{os.sep}numba{os.sep}"  # which calls what compiles derivatives


def is_own_file(filename: str) -> bool:
    """Whether the code of a file belongs to this package."""
    return filename.startswith(_OWN_FILES)


def level_of_user() -> int:
    """Return the `stacklevel` of a warning that names the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_between(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level


def frame_of_user() -> FrameType:
    """Return the innermost frame of code that is neither this package's nor NumPy's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def line_of_user_in(traceback: TracebackType | None) -> tuple[str, int] | None:
    """Return the file and number of the innermost line of such code in a traceback."""
    found = None
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if not _is_between(filename):
            found = filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def line_of_user() -> tuple[str, int]:
    """Return the file and number of the line that such code is at."""
    frame = frame_of_user()
    return frame.f_code.co_filename, frame.f_lineno


def described(filename: str, number: int) -> str:
    """Return what errors and warnings say of a line: its number, file and text."""
    text = linecache.getline(filename, number).strip()
    return f"line {number} of {Path(filename).name}" + (text and f", `{text}`,")


def _is_between(filename: str) -> bool:
    return filename.startswith(_FILES_BETWEEN) or _NUMBA in filename
