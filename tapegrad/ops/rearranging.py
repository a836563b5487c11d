"""Functions that only move elements.

NumPy's own function is called with the indices of the elements in place of the elements. Options
and corner cases are therefore NumPy's, and the derivative is that of indexing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.ops.indexing import at
from tapegrad.ops.shape import (
    astype,
    broadcast_to,
    concatenate,
    laid_out,
    order_of_copies,
    ravel,
)
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import array_of, dtype_of, plain, rank, refuse_masked, shape_of


def rearranged(move: Callable[..., Any], arrays: list[Any], dtype: Any = None) -> Any:
    """Return the result of a function that only moves elements of arrays.

    Parameters
    ----------
    move
        The function, called with integer arrays of the same shapes.
    arrays
        Arrays to call it with.
    dtype
        Type of the result; default: the common type of the arrays.
    """
    arrays = [array_of(x) for x in arrays]
    places, start = [], 0
    for x in arrays:
        shape = shape_of(x)
        places.append(np.arange(start, start + plain(x).size).reshape(shape))
        start += plain(x).size
    source = concatenate([ravel(x) for x in arrays])
    if dtype is not None and dtype_of(source) != dtype:
        source = astype(source, dtype)
    return at(source, np.asarray(move(*places)))


@composite
def insert(x, obj, values, axis=None):
    """Insert values before given indices of an axis (by default, of the flattened array)."""
    refuse_masked(obj)
    dtype = plain(array_of(x)).dtype
    found = rearranged(lambda x, values: np.insert(x, obj, values, axis), [x, values], dtype)
    return found if axis is None else laid_out(found, order_of_copies(array_of(x), "A"))


@composite
def delete(x, obj, axis=None):
    """Remove given indices of an axis (by default, of the flattened array)."""
    refuse_masked(obj)
    found = rearranged(lambda x: np.delete(x, obj, axis), [x])
    return found if axis is None else laid_out(found, order_of_copies(array_of(x), "A"))


@composite
def compress(condition, x, axis=None):
    """Keep the slices of an axis (by default, of the flattened array) where a condition holds."""
    condition = plain(condition)
    return rearranged(lambda x: np.compress(condition, x, axis), [x])


@composite
def extract(condition, x):
    """Return the elements where a condition holds, as one axis."""
    condition = plain(condition)
    return rearranged(lambda x: np.extract(condition, x), [x])


@composite(lists=("choices",))
def choose(x, choices, mode="raise"):
    """Choose every element from one of several arrays, by the number of the array."""
    x = plain(x)
    refuse_masked(list(choices))
    choices = [np.asarray(c) if isinstance(c, (list, tuple)) else c for c in choices]
    dtype = np.result_type(*(plain(c) if hasattr(c, "shape") else c for c in choices))
    return rearranged(lambda *choices: np.choose(x, choices, mode=mode), list(choices), dtype)


@composite
def resize(x, new_shape):
    """Return an array of a new shape, with the elements repeated as needed."""
    if not plain(x).size:
        return np.zeros(new_shape, dtype_of(x))
    return rearranged(lambda x: np.resize(x, new_shape), [x])


@composite(lists=("condlist", "funclist"))
def piecewise(x, condlist, funclist, *args, **kw):
    """Apply functions (or constants) to the elements where their conditions hold.

    If several conditions hold, the last one counts. An additional function is applied to elements
    for which no condition holds, which are 0 otherwise.
    """
    x = array_of(x)
    shape = shape_of(x)
    if np.ndim(condlist) == 0 or (shape and rank(condlist[0]) == 0):
        condlist = [condlist]
    conditions = [np.broadcast_to(plain(c).astype(bool), shape) for c in condlist]
    if len(funclist) == len(conditions) + 1:
        conditions.append(~np.any(conditions, axis=0))
    if len(funclist) != len(conditions):
        raise ValueError(
            f"piecewise: got {len(funclist)} functions for {len(conditions)} conditions, expected "
            "as many, or one more"
        )
    parts = [np.zeros(1)]
    for condition, function in zip(conditions, funclist, strict=True):
        value = function
        count = np.count_nonzero(condition)
        if callable(function):  # as in NumPy, not called without elements
            value = function(at(x, condition), *args, **kw) if count else np.zeros(0)
        parts.append(broadcast_to(array_of(value), (count,)))

    def placed(zero: Any, *places: Any) -> Any:
        found = np.full(shape, zero[0])
        for condition, chosen in zip(conditions, places, strict=True):
            found[condition] = chosen
        return found

    return laid_out(rearranged(placed, parts, dtype_of(x)), order_of_copies(x, "K"))
