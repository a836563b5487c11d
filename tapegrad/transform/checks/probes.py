"""Arguments and results as vectors of real numbers: copies, directions and random state of checks.

A value is a number, an array, a (named) tuple of values, or anything else. Its real parts, in
order, are the elements of one vector of float64; a complex number is two of them.
"""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import numpy as np


def parts(value: Any) -> list[Any]:
    """Return the parts of a value, with tuples flattened."""
    if isinstance(value, tuple):
        return [part for item in value for part in parts(item)]
    return [value]


def is_real(part: Any) -> bool:
    """Whether a part has a derivative: floats, complex numbers, and arrays of these."""
    if isinstance(part, np.ndarray):
        return part.dtype.kind in "fc"
    return isinstance(part, (float, complex, np.inexact))


def is_complex(part: Any) -> bool:
    """Whether a part is a complex number, or an array of them."""
    return np.asarray(part).dtype.kind == "c"


def size_of(part: Any) -> int:
    """Return the number of real numbers in a part."""
    return int(np.size(part)) * (2 if is_complex(part) else 1)


def _numbers(part: Any) -> np.ndarray:
    if is_complex(part):
        return np.array(part, np.complex128).ravel().view(np.float64)
    return np.asarray(part, np.float64).ravel()


def rebuilt(value: tuple[Any, ...], items: list[Any]) -> Any:
    """Return a tuple of items, of the type of another tuple."""
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def copied(value: Any) -> Any:
    """Return a copy with the same numba type: arrays have the same layout and flags."""
    if isinstance(value, tuple):
        return rebuilt(value, [copied(item) for item in value])
    if isinstance(value, np.ndarray):
        found = _array(value)
        found[...] = value
        found.flags.writeable = value.flags.writeable
        return found
    if isinstance(value, list):
        return [copied(item) for item in value]
    if isinstance(value, np.random.Generator):
        return copy.deepcopy(value)
    return value.copy() if hasattr(value, "copy") and not hasattr(value, "py_func") else value


def _array(like: np.ndarray) -> np.ndarray:
    """Return a new array with the same numba type as another."""
    if like.flags.c_contiguous or like.flags.f_contiguous:
        return np.empty(like.shape, like.dtype, "C" if like.flags.c_contiguous else "F")
    return np.empty((*like.shape[:-1], 2 * like.shape[-1]), like.dtype)[..., ::2]


def vector(value: Any, like: Any = None) -> np.ndarray:
    """Return the real parts of a value, or those of it that belong to real parts of another."""
    pairs = zip(parts(value), parts(value if like is None else like), strict=True)
    found = []
    for one, other in pairs:
        if is_real(other):
            # a real tangent of a complex number has no imaginary part
            same = is_complex(one) or not is_complex(other)
            found.append(_numbers(one if same else np.asarray(one) + 0j))
    return np.concatenate([*found, np.zeros(0)])


def with_numbers(value: Any, numbers: np.ndarray) -> Any:
    """Return a value of the same type with other numbers as real parts, and zeros for integers."""
    return _with_numbers(value, iter(_pieces(value, numbers)), zeros=True)


def moved(value: Any, step: np.ndarray) -> Any:
    """Return a value with a vector added to its real parts."""
    return _with_numbers(value, iter(_pieces(value, vector(value) + step)), zeros=False)


def _pieces(value: Any, numbers: np.ndarray) -> list[np.ndarray]:
    sizes = [size_of(part) for part in parts(value) if is_real(part)]
    return np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []


def _with_numbers(value: Any, pieces: Any, zeros: bool) -> Any:
    if isinstance(value, tuple):
        return rebuilt(value, [_with_numbers(item, pieces, zeros) for item in value])
    if not is_real(value):
        if not zeros or not isinstance(value, (int, np.integer, np.bool_, np.ndarray)):
            return copied(value)
        return np.zeros_like(value) if isinstance(value, np.ndarray) else type(value)(0)
    piece = next(pieces)
    if is_complex(value):
        piece = np.ascontiguousarray(piece).view(np.complex128)
    if not isinstance(value, np.ndarray):
        return type(value)(piece[0])
    found = _array(value)
    found[...] = piece.reshape(value.shape)
    found.flags.writeable = value.flags.writeable
    return found


def is_like(value: Any, like: Any) -> bool:
    """Whether a value has the structure of another, and its real parts have the same shapes."""
    if isinstance(like, tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(like)
            and all(is_like(one, two) for one, two in zip(value, like, strict=True))
        )
    return not is_real(like) or np.shape(value) == np.shape(like)


def direction(value: Any, draw: np.random.Generator) -> np.ndarray:
    """Return a random direction: every real number changes in proportion to its size.

    For small numbers and zeros, the size is derived from the largest number of the same part.
    Numbers that are not finite do not change.
    """
    found = [np.zeros(0)]
    for part in parts(value):
        if is_real(part):
            numbers = _numbers(part)
            finite = np.isfinite(numbers)
            sizes = np.abs(np.where(finite, numbers, 0.0))
            largest = sizes.max(initial=0.0) or 1.0
            sizes = np.maximum(sizes, 0.01 * largest) * finite
            found.append(sizes * weights(numbers.size, draw))
    return np.concatenate(found)


def weights(size: int, draw: np.random.Generator) -> np.ndarray:
    """Return random numbers of both signs, none of them small."""
    return draw.uniform(0.5, 1.0, size) * draw.choice([-1.0, 1.0], size)


class _Twister(ctypes.Structure):
    """The state of a random generator of compiled code (numba's ``rnd_state_t``)."""

    _fields_ = [
        ("index", ctypes.c_int32),
        ("words", ctypes.c_int32 * 624),
        ("has_gauss", ctypes.c_int32),
        ("gauss", ctypes.c_double),
        ("is_initialized", ctypes.c_int32),
    ]


def random_state() -> list[bytes]:
    """Return the state of the random numbers that compiled code draws in this thread."""
    return [ctypes.string_at(place, ctypes.sizeof(_Twister)) for place in _places()]


def restore(state: list[bytes]) -> None:
    """Restore the random state of this thread."""
    for place, content in zip(_places(), state, strict=True):
        ctypes.memmove(place, content, len(content))


def _places() -> list[int]:
    from numba import _helperlib

    return [_helperlib.rnd_get_np_state_ptr(), _helperlib.rnd_get_py_state_ptr()]
