"""The user's line: where warnings and errors say that something happened."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_OWN_FILES = (f"{Path(__file__).parents[1]}{os.sep}", "<tapegrad")
_NUMBA = f"{os.sep}numba{os.sep}"  # which calls what compiles derivatives


def is_own_file(filename: str) -> bool:
    """Whether the code of a file belongs to this package."""
    return filename.startswith(_OWN_FILES)


def level_of_user() -> int:
    """Return the `stacklevel` of a warning that names the line outside of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (
        is_own_file(frame.f_code.co_filename) or _NUMBA in frame.f_code.co_filename
    ):
        level, frame = level + 1, frame.f_back
    return level
