"""Constants: values from outside a function that are not functions."""

from __future__ import annotations

import enum
from _ctypes import CFuncPtr
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform.frontend.source import MISSING

_POINTERS = (CFuncPtr,)


def plain(value: Any) -> Any:
    """Return a value as a literal for the source of a function, or MISSING."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return MISSING  # a member has a different type than its value
    if isinstance(value, (int, float, str)):
        return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
    # other types compute differently: uint64 and int64 give a float64, int8 may wrap
    return value.item() if isinstance(value, (np.int64, np.bool_)) else MISSING


def member_like(kind: Any, statics: dict[str, Any]) -> str | None:
    """Return the name of some member of an integer enumeration, None if there is none."""
    if not isinstance(kind, types.EnumMember) or not isinstance(kind.dtype, types.Integer):
        return None
    return next((text for text, v in statics.items() if type(v) is kind.instance_class), None)


def is_plain_tuple(value: Any) -> bool:
    """Whether a value is a tuple that can be written as a literal."""
    if not isinstance(value, tuple) or hasattr(value, "_fields"):
        return False
    return all(is_plain_tuple(item) or plain(item) is not MISSING for item in value)


def is_followed(value: Any) -> bool:
    """Whether uses of a value are analysed, as for arrays and functions."""
    return isinstance(value, (np.ndarray, *_POINTERS)) or hasattr(value, "py_func")
