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


_TYPINGS: dict[str, tuple[int, Typing]] = {  # with the number of arguments
    "empty": (1, _of_shape),
    "zeros": (1, _of_shape),
    "ones": (1, _of_shape),
    "full": (2, _of_shape),
    "empty_like": (1, _like),
    "zeros_like": (1, _like),
    "ones_like": (1, _like),
    "dot": (2, _product),
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


_STAND_INS = {name: _stand_in(name, typing) for name, (_, typing) in _TYPINGS.items()}


def stand_in_for(name: str, count: int) -> Any:
    """Return what stands for a function of NumPy where types are inferred, None for itself.

    Parameters
    ----------
    name
        The name in NumPy.
    count
        The number of positional arguments; there are no others.
    """
    return _STAND_INS[name] if name in _TYPINGS and _TYPINGS[name][0] == count else None
