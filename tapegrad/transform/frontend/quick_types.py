"""Types of the results of some functions of NumPy, for which numba would compile a function.

numba finds the type of ``np.zeros(n)`` by compiling its implementation, to the end. Where types are
all that is wanted, the common cases are decided here, and only the others by numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import type_callable

Typing = Callable[..., Any]  # of types of arguments; None if numba has to decide


def _of_shape(shape: Any, *filled: Any) -> Any:
    """The type of a new array."""
    if any(types.unliteral(kind) != types.float64 for kind in filled):
        return None
    if isinstance(types.unliteral(shape), types.Integer):
        return types.Array(types.float64, 1, "C")
    if isinstance(shape, types.UniTuple) and isinstance(shape.dtype, types.Integer):
        return types.Array(types.float64, len(shape), "C")
    return None


def _like(x: Any) -> Any:
    """The type of a new array of the shape of another one."""
    return x if x == types.Array(types.float64, getattr(x, "ndim", 1), "C") else None


def _product(x: Any, y: Any) -> Any:
    """The type of the product of matrices and vectors."""
    for kind in (x, y):
        if not isinstance(kind, types.Array) or kind.dtype != types.float64:
            return None
        if kind.layout == "A" or kind.ndim not in (1, 2):
            return None
    ndim = x.ndim + y.ndim - 2
    return types.Array(types.float64, ndim, "C") if ndim else types.float64


def _is_of_floats(kind: Any, layouts: str = "C") -> bool:
    """Whether a type is that of arrays of float64 with axes."""
    is_array = isinstance(kind, types.Array) and kind.dtype == types.float64 and kind.aligned
    return is_array and kind.ndim > 0 and kind.layout in layouts


def _number_of(result: Any) -> Typing:
    """The typing of a function from an array of floats to a number."""
    return lambda x: result if _is_of_floats(x, "CFA") else None


def _sum_along(x: Any, axis: Any) -> Any:
    """The type of the sums along an axis."""
    if not _is_of_floats(x, "CFA") or types.unliteral(axis) != types.int64:
        return None
    return types.Array(types.float64, x.ndim - 1, "C") if x.ndim > 1 else None


def _chosen(condition: Any, x: Any, y: Any) -> Any:
    """The type of elements that a condition chooses, or numbers."""
    if not isinstance(condition, types.Array) or condition.dtype != types.boolean:
        return None
    for kind in (x, y):
        is_like = _is_of_floats(kind) and kind.ndim == condition.ndim
        if not is_like and kind != types.float64:
            return None
    is_plain = condition.ndim > 0 and condition.layout == "C" and condition.aligned
    return types.Array(types.float64, condition.ndim, "C") if is_plain else None


def _outer(x: Any, y: Any) -> Any:
    """The type of the products of the elements of two vectors."""
    are_vectors = all(_is_of_floats(kind) and kind.ndim == 1 for kind in (x, y))
    return types.Array(types.float64, 2, "C") if are_vectors else None


def _clipped(x: Any, low: Any, high: Any) -> Any:
    """The type of an array between two numbers."""
    return _like(x) if low == high == types.float64 and _is_of_floats(x) else None


def _of_vector(x: Any) -> Any:
    """The type of a vector that a vector becomes."""
    return types.Array(types.float64, 1, "C") if _is_of_floats(x) and x.ndim == 1 else None


_REAL = "max", "mean", "min", "ptp", "std", "var"
_TYPINGS: dict[tuple[str, int], Typing] = {  # by name and number of arguments
    **{(name, 1): _of_shape for name in ("empty", "zeros", "ones")},
    ("full", 2): _of_shape,
    **{(f"{name}_like", 1): _like for name in ("empty", "zeros", "ones")},
    ("dot", 2): _product,
    ("outer", 2): _outer,
    **{(name, 1): _number_of(types.float64) for name in _REAL},
    **{(name, 1): _number_of(types.int64) for name in ("argmax", "argmin")},
    ("sum", 2): _sum_along,
    ("where", 3): _chosen,
    ("clip", 3): _clipped,
    **{(name, 1): _of_vector for name in ("cumsum", "diff", "sort")},
}


def _stand_in(name: str, typing: Typing) -> Any:
    """Return what stands for a function where types are inferred."""
    function = getattr(np, name)

    def stand_in(*args: Any) -> Any:
        return function(*args)

    def typer_in(context: Any) -> Any:
        def typer(*args: Any) -> Any:
            found = typing(*args)
            if found is None:
                called = context.resolve_value_type(function)
                found = called.get_call_type(context, args, {}).return_type
            return found

        return typer

    type_callable(stand_in)(typer_in)
    return stand_in


_STAND_INS = {key: _stand_in(key[0], typing) for key, typing in _TYPINGS.items()}


def stand_in_for(name: str, count: int) -> Any:
    """Return what stands for a function of NumPy where types are inferred, None for itself.

    Parameters
    ----------
    name
        The name in NumPy.
    count
        The number of positional arguments; there are no others.
    """
    return _STAND_INS.get((name, count))
