"""What numba's types say of derivatives: which values are real, and which are arrays."""

from __future__ import annotations

from typing import Any

from numba.core import types


def is_array(kind: Any) -> bool:
    """Whether a numba type is an array."""
    return isinstance(kind, types.Array)


def is_real(kind: Any) -> bool:
    """Whether a numba type is a float, or an array of floats: what has a derivative."""
    return isinstance(kind.dtype if is_array(kind) else kind, types.Float)


def holds_real(kind: Any) -> bool:
    """Whether a numba type is or holds floats (None: it does not)."""
    if isinstance(kind, types.BaseTuple):
        return any(map(holds_real, kind))
    return kind is not None and is_real(kind)


def holds_array(kind: Any) -> bool:
    """Whether a numba type is or holds an array."""
    if isinstance(kind, types.BaseTuple):
        return any(map(holds_array, kind))
    return is_array(kind)


def is_instance(kind: Any) -> bool:
    """Whether a numba type is one of instances of a class, which hold values by name."""
    return isinstance(kind, (types.ClassInstanceType, types.StructRef))


def holds_instance(kind: Any) -> bool:
    """Whether a numba type is or holds an instance of a class."""
    if isinstance(kind, types.BaseTuple):
        return any(map(holds_instance, kind))
    return is_instance(kind)
