"""Functions that join, split and arrange arrays, composed of `tapegrad.ops.shape`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.ops.piecewise import where
from tapegrad.ops.shape import (
    broadcast_to,
    concatenate,
    copied_as,
    expand_dims,
    flip,
    laid_out,
    moveaxis,
    ravel,
    reshape,
    split,
    stack,
    swapaxes,
)
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import (
    array_of,
    copied,
    dtype_of,
    normalize_axes,
    normalize_axis,
    rank,
    shape_of,
)


@composite
def append(x, values, axis=None):
    """Append values along an axis, or (by default) to the flattened array."""
    if axis is None:
        return concatenate([ravel(x), ravel(array_of(values))], 0)
    return concatenate([x, array_of(values)], axis)


@composite
def atleast_2d(x, *more):
    """Return an array with at least two axes, new ones first, or a tuple for several arrays."""
    if more:
        return tuple(map(atleast_2d, map(array_of, (x, *more))))
    return x if rank(x) > 1 else reshape(x, (1, -1))


@composite
def atleast_3d(x, *more):
    """Return an array with at least three axes, placed as in NumPy, or a tuple for several."""
    if more:
        return tuple(map(atleast_3d, map(array_of, (x, *more))))
    if rank(x) > 2:
        return x
    return expand_dims(x, 2) if rank(x) == 2 else reshape(x, (1, -1, 1))


@composite(of_list=True)
def column_stack(arrays):
    """Join along the second axis, 1-d arrays as columns."""
    return concatenate([x if rank(x) > 1 else reshape(x, (-1, 1)) for x in arrays], 1)


@composite(of_list=True)
def dstack(arrays):
    """Join along the third axis."""
    return concatenate([atleast_3d(array_of(x)) for x in arrays], 2)


@composite(of_list=True, nested=True)
def block(arrays):
    """Join nested lists of arrays: the innermost lists along the last axis, and so on."""
    depth = _depth(arrays)

    def joined(part: Any, level: int) -> Any:
        if level == depth:
            part = array_of(part)
            return reshape(part, (1,) * max(depth - rank(part), 0) + shape_of(part))
        parts = [joined(inner, level + 1) for inner in part]
        ndim = max(map(rank, parts))
        parts = [reshape(p, (1,) * (ndim - rank(p)) + shape_of(p)) for p in parts]
        return concatenate(parts, level - depth)

    return joined(arrays, 0) if depth else copied(array_of(arrays))


def _depth(value: Any) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, (list, tuple)) else 0


@composite
def hsplit(x, indices_or_sections):
    """Split along the second axis (the first for 1-d arrays)."""
    return split(x, indices_or_sections, min(rank(x), 2) - 1)


@composite
def vsplit(x, indices_or_sections):
    """Split along the first axis."""
    return split(x, indices_or_sections, 0)


@composite
def dsplit(x, indices_or_sections):
    """Split along the third axis."""
    return split(x, indices_or_sections, 2)


@composite
def fliplr(x):
    """Reverse the order along the second axis."""
    return flip(x, 1)


@composite
def flipud(x):
    """Reverse the order along the first axis."""
    return flip(x, 0)


@composite
def rot90(x, k=1, axes=(0, 1)):
    """Rotate by 90 degrees in the plane of two axes, k times."""
    first, second = normalize_axes(tuple(axes), rank(x))
    if first == second:
        raise ValueError("rot90: axes must be different")
    if k % 4 == 0:
        return x
    if k % 4 == 2:
        return flip(x, (first, second))
    if k % 4 == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second)


@composite
def meshgrid(x, *more, indexing="xy", sparse=False, copy=True):
    """Return the coordinates of a grid, one array per axis."""
    axes = [reshape(array_of(a), (-1,)) for a in (x, *more)]
    count = len(axes)
    places = list(range(count))
    if indexing == "xy" and count > 1:
        places[:2] = 1, 0
    elif indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing {indexing!r} is neither 'xy' nor 'ij'")
    shape = [0] * count
    for a, place in zip(axes, places, strict=True):
        shape[place] = shape_of(a)[0]
    spaced = [
        reshape(a, tuple(-1 if k == place else 1 for k in range(count)))
        for a, place in zip(axes, places, strict=True)
    ]
    found = spaced if sparse else [broadcast_to(a, tuple(shape)) for a in spaced]
    return [copied_as(a, (*range(count),)) for a in found] if copy else found


_NUMBERS = (int, float, complex)


def _dtypes(value: Any, kept: tuple[type, ...] = _NUMBERS) -> list[Any]:
    """Return what the dtype of a choice follows from; a number by itself has none."""
    if type(value) in (list, tuple):
        return [dtype for item in value for dtype in _dtypes(item, ())]
    return [value if type(value) in kept else dtype_of(array_of(value))]


@composite(of_list=True, lists=("choicelist",))
def select(condlist, choicelist, default=0):
    """Choose every element from the first choice whose condition holds."""
    if len(condlist) != len(choicelist) or not condlist:
        raise ValueError(
            f"select: got {len(condlist)} conditions for {len(choicelist)} choices, expected as "
            "many, and one at least"
        )
    # numbers of Python take the dtype of the arrays, also where two numbers meet
    given = (*choicelist, default)
    dtype = np.result_type(*(dtype for x in given for dtype in _dtypes(x)))
    *choices, found = (np.asarray(x, dtype) if type(x) in _NUMBERS else x for x in given)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        found = where(condition, choice, found)
    return laid_out(found, (*range(rank(found)),))


@composite
def broadcast_arrays(x, *more):
    """Broadcast arrays to their common shape."""
    arrays = [array_of(a) for a in (x, *more)]
    shape = np.broadcast_shapes(*map(shape_of, arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)


@composite
def apply_along_axis(func1d, axis, arr, *args, **kwargs):
    """Call a function with each 1-d slice along an axis, and join the results."""
    arr = array_of(arr)
    axis = normalize_axis(axis, rank(arr))
    rows = moveaxis(arr, axis, -1)
    lead = shape_of(rows)[:-1]
    if 0 in lead:
        raise ValueError("apply_along_axis: there is no slice to call the function with")
    found = [array_of(func1d(rows[k], *args, **kwargs)) for k in np.ndindex(lead)]
    inner = shape_of(found[0])
    joined = reshape(stack(found), (*lead, *inner))
    places = tuple(range(axis, axis + len(inner)))
    return moveaxis(joined, tuple(range(len(lead), len(lead) + len(inner))), places)
