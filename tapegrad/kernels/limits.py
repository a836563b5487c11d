"""Limits of memory that users set."""

from __future__ import annotations

from typing import Any


def checked_limit(function: str, limit: Any) -> int:
    """Return a limit in bytes that was given to a function.

    Raises
    ------
    ValueError
        If the limit is negative.
    TypeError
        If it is not an integer.
    """
    if isinstance(limit, bool) or not hasattr(limit, "__index__"):
        raise TypeError(
            f"{function}(): limit must be an integer number of bytes or None, "
            f"not {type(limit).__name__}"
        )
    size = int(limit.__index__())
    if size < 0:
        raise ValueError(f"{function}(): limit must not be negative, got {size}")
    return min(size, 1 << 62)
