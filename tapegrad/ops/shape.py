"""Ops that rearrange elements: views, casts, and functions composed of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.array import as_array, device_of, zeros
from tapegrad.ops import reduction
from tapegrad.ops.devices import on_device_of
from tapegrad.ops.piecewise import where
from tapegrad.ops.table.array_kinds import linear
from tapegrad.ops.table.batching import flattened, shifted_axes, shifted_index, with_rank
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.kinds import cast, flat, view
from tapegrad.ops.table.op import (
    array_of,
    copied,
    internal,
    layout_order,
    memory_order,
    memory_strides,
    normalize_axes,
    normalize_axis,
    public,
    rank,
    shape_of,
)

# -- primitives -----------------------------------------------------------------------------------


@cast
def astype(x, dtype):
    """Convert to another dtype; differentiable between float types."""
    return as_array(x).astype(dtype)


@astype.transposes
def _(g, x_shape, dtype):
    return g


@flat
def reshape(x, shape):
    """Give the elements another shape, in row-major order."""
    return np.reshape(x, shape)


@reshape.transposes
def _(g, x_shape, **parameters):
    return reshape(g, x_shape)


@reshape.shifts
def _(size, x_shape, shape):
    return {"shape": (size, *stand_in(x_shape).reshape(shape).shape)}


@view
def transpose(x, axes=None):
    """Permute the axes (by default, reverse them)."""
    return np.transpose(x, axes)


def permutation_of(axes: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes that `transpose` is given as non-negative numbers."""
    return (*range(ndim),)[::-1] if axes is None else normalize_axes(axes, ndim)


@transpose.transposes
def _(g, x_shape, axes):
    inverse = None
    if axes is not None:
        inverse = tuple(np.argsort(permutation_of(axes, len(x_shape))).tolist())
    return transpose(g, inverse)


@transpose.shifts
def _(x_shape, axes):
    return {"axes": (0, *(a + 1 for a in permutation_of(axes, len(x_shape))))}


@public("matrix_transpose", "linalg.matrix_transpose")
@view
def matrix_transpose(x):
    """Exchange the last two axes."""
    return np.swapaxes(x, -1, -2)


@matrix_transpose.shifts
def _(x_shape):
    normalize_axes((-2, -1), len(x_shape))  # a batch of vectors is no matrix
    return {}


@matrix_transpose.transposes
def _(g, x_shape):
    return matrix_transpose(g)


@public(method=True)
@view
def broadcast_to(x, shape):
    """Repeat along new and size-1 axes, as a read-only view."""
    return np.broadcast_to(x, shape)


@broadcast_to.transposes
def _(g, x_shape, **parameters):
    return unbroadcast(g, x_shape)


@broadcast_to.batching
def _(x, shape):
    shape = np.broadcast_to(0, shape).shape
    return broadcast_to(with_rank(x, len(shape)), (shape_of(x)[0], *shape))


@internal
@view
def getitem(x, index):
    """Return the elements at an index of integers, slices, None and Ellipsis (see `gather`)."""
    parts = index if type(index) is tuple else (index,)
    if Ellipsis not in parts:  # so that a single element is a view, not a scalar
        parts = (*parts, Ellipsis)
    return as_array(x)[parts]


@getitem.transposes
def _(g, x_shape, **parameters):
    return embed(g, x_shape, getitem, parameters)


@getitem.shifts
def _(index):
    return {"index": shifted_index(index)}


@public(method=True)
@view
def diagonal(x, offset=0, axis1=0, axis2=1):
    """Return the diagonal of two axes as the last axis of a view."""
    return np.diagonal(x, offset, axis1, axis2)


@diagonal.transposes
def _(g, x_shape, **parameters):
    return embed(g, x_shape, diagonal, parameters)


@diagonal.shifts
def _(x_shape, axis1, axis2):
    axis1, axis2 = (a % len(x_shape) + 1 for a in (axis1, axis2))
    return {"axis1": axis1, "axis2": axis2}


@internal
@linear(arrays=1)
def embed(x, shape, shown, parameters):
    """Return zeros of `shape` with x in the elements of the view `shown`: a view's transpose."""
    out = zeros(shape, x.dtype, device_of(x))
    window = shown.function(out, **parameters)
    window.flags.writeable = True
    window[...] = x
    return out


@embed.transpose("x")
def _(g, shown, parameters):
    return shown(g, **parameters)


@embed.batching
def _(x, shape, shown, parameters):
    size = shape_of(x)[0]
    return embed(x, (size, *shape), shown, shown.shifted(size, shape, parameters))


@public("concatenate", "concat")
@linear(arrays=1, of_list=True)
def concatenate(arrays, axis=0):
    """Join arrays along an existing axis (None: join the flattened arrays)."""
    return np.concatenate(arrays, axis)


@concatenate.transpose("arrays")
def _(g, arrays_shape, axis):
    if axis is None:
        sizes = [math.prod(shape) for shape in arrays_shape]
        pieces = _cut(g, sizes, 0)
        return [reshape(p, shape) for p, shape in zip(pieces, arrays_shape, strict=True)]
    return _cut(g, [shape[axis] for shape in arrays_shape], axis)


@concatenate.batching
def _(arrays, axis):
    if axis is None:
        return concatenate([flattened(x) for x in arrays], 1)
    (axis,) = shifted_axes(axis, arrays[0])
    return concatenate(arrays, axis)


def _cut(x: Any, sizes: Sequence[int], axis: int) -> list[Any]:
    """Split into consecutive pieces along an axis."""
    axis = normalize_axis(axis, rank(x))
    before = (slice(None),) * axis
    stops = np.cumsum(sizes).tolist()
    return [
        getitem(x, (*before, slice(stop - size, stop)))
        for stop, size in zip(stops, sizes, strict=True)
    ]


def unbroadcast(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum over broadcast axes, so that the result has `shape`."""
    wide = shape_of(g)
    if wide == shape:
        return g
    lead = len(wide) - len(shape)
    if lead < 0:  # of a value with more axes of one element than what it was assigned to
        return reshape(unbroadcast(g, shape[-lead:]), shape)
    axes = tuple(range(lead)) + tuple(
        lead + k for k, dim in enumerate(shape) if dim == 1 and wide[lead + k] != 1
    )
    return reshape(reduction.sum(g, axis=axes) if axes else g, shape)


# -- composites -----------------------------------------------------------------------------------


def in_order(x: Any, shape: Any, order: str, name: str) -> Any:
    """Give the elements another shape, in an order of NumPy's.

    These are row-major ("C"), column-major ("F"), column-major for arrays that are so in memory and
    row-major for others ("A"), and, to flatten arrays, the order in memory ("K").
    """
    allowed = "CFA" if name == "reshape" else "CFAK"
    if order not in (*allowed,):
        raise ValueError(f"{name}: order {order!r} is none of {', '.join(map(repr, allowed))}")
    x = array_of(x)
    if order == "A":
        order = "F" if is_packed(x, 1) and not is_packed(x, -1) else "C"
    if order == "F":
        sizes = (shape,) if np.ndim(shape) == 0 else tuple(shape)
        return transpose(reshape(transpose(x), sizes[::-1]))
    if order == "K" and 0 not in shape_of(x):
        if any(n > 1 and not step for n, step in zip(shape_of(x), x.strides, strict=True)):
            raise ValueError(f"{name}: order 'K' of a broadcast array is not supported; copy() it")
        x = transpose(x, layout_order(x.strides))
    return reshape(x, shape)


def order_of_copies(x: Any, order: str) -> tuple[int, ...]:
    """Return the axes, in their order in memory, of what NumPy makes of an array in an order."""
    axes = (*range(rank(x)),)
    if len(axes) < 2:
        return axes
    if order == "K":
        return memory_order(x)
    if order == "A" and not is_contiguous(x) and is_contiguous(transpose(x)):
        return axes[::-1]
    return axes


def laid_out(x: Any, axes: tuple[int, ...], is_new: bool = True) -> Any:
    """Return an array without gaps in memory, whose axes are there in a given order: x or a copy.

    Ops that compute a function of NumPy in another way than NumPy do it, so that `reshape` and
    `ravel` of the result are views where they are views in NumPy. If x `is_new`, so that nobody
    else has it, a tensor gets other memory rather than a record more.
    """
    if is_contiguous(x) if len(axes) < 2 else _is_laid_out(x, axes):
        return x
    lay_out = getattr(x, "_laid_out", None)  # of a tensor
    return relaid(x, axes) if lay_out is None else lay_out(axes, is_new)


def _is_laid_out(x: Any, axes: tuple[int, ...]) -> bool:
    """Whether an array has no gaps in memory, and its axes are there in a given order."""
    shape = shape_of(x)
    if 0 in shape:
        return True
    strides, packed = memory_strides(x), x.itemsize
    for axis in reversed(axes):
        if shape[axis] != 1 and strides[axis] != packed:
            return False
        packed *= shape[axis]
    return True


def relaid(array: Any, axes: tuple[int, ...]) -> Any:
    """Return a copy of an array without gaps in memory, whose axes are there in a given order."""
    arranged = array.transpose(axes)
    if type(array) is np.ndarray:
        rows = np.ascontiguousarray(arranged)
    else:
        rows = copied(reshape(arranged, (-1,))).reshape(arranged.shape)
    return rows.transpose(np.argsort(axes).tolist())


def copied_as(x: Any, axes: tuple[int, ...]) -> Any:
    """Return a copy without gaps in memory, whose axes are there in a given order."""
    found = laid_out(x, axes, is_new=False)
    return copied(x) if found is x else found


def is_contiguous(x: Any) -> bool:
    """Whether the elements of an array or a tensor are in row-major order, without gaps."""
    flags = getattr(x, "flags", None)  # those of an array
    return x._is_contiguous if flags is None else flags.c_contiguous


def is_packed(x: Any, step: int) -> bool:
    """Whether an array has no gaps in memory, in column-major (1) or row-major order (-1)."""
    packed = x.itemsize
    for size, stride in [*zip(shape_of(x), x.strides, strict=True)][::step]:
        if size != 1 and stride != packed:
            return 0 in shape_of(x)
        packed *= size
    return True


@public(method=True)
@composite
def ravel(x, order="C"):
    """Flatten, in one of NumPy's orders: "C", "F", "A" or "K".

    The result is a view where the elements lie in memory one after the other, otherwise a copy.
    """
    found = in_order(x, (-1,), order, "ravel")
    return found if is_contiguous(found) else copied(found)


@composite
def rollaxis(x, axis, start=0):
    """Move an axis before another one."""
    count = rank(x)
    axis = normalize_axis(axis, count)
    start = normalize_axis(start + count if start < 0 else start, count + 1)
    axes = [k for k in range(count) if k != axis]
    axes.insert(start - (axis < start), axis)
    return transpose(x, tuple(axes))


@public(method=True)
@composite
def swapaxes(x, axis1, axis2):
    """Exchange two axes."""
    axes = list(range(rank(x)))
    first, second = normalize_axis(axis1, rank(x)), normalize_axis(axis2, rank(x))
    axes[first], axes[second] = second, first
    return transpose(x, tuple(axes))


@public(method=True)
@composite
def moveaxis(x, source, destination):
    """Move axes to new positions, keeping the order of the others."""
    ndim = rank(x)
    source, destination = normalize_axes(source, ndim), normalize_axes(destination, ndim)
    if len(source) != len(destination):
        raise ValueError("moveaxis: `source` and `destination` must have as many axes")
    order = [a for a in range(ndim) if a not in source]
    for to, axis in sorted(zip(destination, source, strict=True)):
        order.insert(to, axis)
    return transpose(x, tuple(order))


@composite
def permute_dims(x, axes):
    """Permute the axes (the array API's name of `transpose`)."""
    return transpose(x, axes)


@public(method=True)
@composite
def expand_dims(x, axis):
    """Insert axes of length 1."""
    return reshape(x, np.expand_dims(stand_in(shape_of(x)), axis).shape)


@public(method=True)
@composite
def squeeze(x, axis=None):
    """Remove axes of length 1 (by default, all)."""
    return reshape(x, np.squeeze(stand_in(shape_of(x)), axis).shape)


def stand_in(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of a shape, for calling NumPy functions to find result shapes."""
    return np.broadcast_to(np.zeros(()), shape)


@composite
def atleast_1d(x, *more):
    """Give 0-d arrays one axis; returns a tuple for several arrays."""
    if more:
        return tuple(map(atleast_1d, map(array_of, (x, *more))))
    return reshape(x, (1,)) if rank(x) == 0 else x


@public(method=True)
@composite
def flip(x, axis=None):
    """Reverse the order along axes (by default, all)."""
    axes = normalize_axes(axis, rank(x))
    index = tuple(slice(None, None, -1) if a in axes else slice(None) for a in range(rank(x)))
    return getitem(x, index)


@composite(of_list=True)
def stack(arrays, axis=0):
    """Join arrays of one shape along a new axis."""
    return concatenate([expand_dims(a, axis) for a in arrays], axis)


@composite(of_list=True)
def hstack(arrays):
    """Join along the second axis (the first for 1-d arrays)."""
    arrays = [atleast_1d(a) for a in arrays]
    if not arrays:
        raise ValueError("hstack: need at least one array to join")
    return concatenate(arrays, 0 if rank(arrays[0]) == 1 else 1)


@composite(of_list=True)
def vstack(arrays):
    """Join along the first axis, 1-d arrays as rows."""
    return concatenate([reshape(a, (1, -1)) if rank(a) < 2 else a for a in arrays], 0)


@composite(gives_views=True)
def array_split(x, indices_or_sections, axis=0):
    """Split along an axis at indices, or into a number of nearly equal pieces."""
    axis = normalize_axis(axis, rank(x))
    length = shape_of(x)[axis]
    if np.ndim(indices_or_sections):
        before = (slice(None),) * axis
        stops = [*map(int, indices_or_sections), length]
        starts = [0, *stops[:-1]]
        return [
            getitem(x, (*before, slice(start, stop)))
            for start, stop in zip(starts, stops, strict=True)
        ]
    sections = int(indices_or_sections)
    if sections <= 0:
        raise ValueError("split: number of sections must be larger than 0")
    size, extra = divmod(length, sections)
    return _cut(x, [size + 1] * extra + [size] * (sections - extra), axis)


@composite(gives_views=True)
def split(x, indices_or_sections, axis=0):
    """Split along an axis at indices, or into a number of equal pieces."""
    axis = normalize_axis(axis, rank(x))
    if not np.ndim(indices_or_sections) and shape_of(x)[axis] % int(indices_or_sections):
        raise ValueError("split: the array does not divide into equal pieces; use array_split")
    return array_split(x, indices_or_sections, axis)


@composite(gives_views=True)
def unstack(x, axis=0):
    """Return the slices along an axis as a tuple."""
    axis = normalize_axis(axis, rank(x))
    before = (slice(None),) * axis
    return tuple(getitem(x, (*before, k)) for k in range(shape_of(x)[axis]))


@public(method=True)
@composite
def roll(x, shift, axis=None):
    """Shift elements along axes, cyclically."""
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), shape_of(x))
    shifts, axes = np.broadcast_arrays(shift, axis)
    given = x
    for step, a in zip(shifts.ravel().tolist(), axes.ravel().tolist(), strict=True):
        a = normalize_axis(a, rank(x))
        length = shape_of(x)[a]
        if length and step % length:
            at = length - step % length
            head, tail = _cut(x, [at, length - at], a)
            x = concatenate([tail, head], a)
    return (copied_as if x is given else laid_out)(x, order_of_copies(given, "K"))


@composite
def tile(x, reps):
    """Repeat the whole array along every axis."""
    reps = tuple(reps) if np.ndim(reps) else (int(reps),)
    shape = shape_of(x)
    ndim = max(len(reps), len(shape))
    shape = (1,) * (ndim - len(shape)) + shape
    reps = (1,) * (ndim - len(reps)) + reps
    if all(rep == 1 for rep in reps):
        x = reshape(array_of(x), shape)
        return copied_as(x, order_of_copies(x, "K"))
    spaced = reshape(x, tuple(n for dim in shape for n in (1, dim)))
    wide = broadcast_to(
        spaced, tuple(n for r, dim in zip(reps, shape, strict=True) for n in (r, dim))
    )
    found = reshape(wide, tuple(r * dim for r, dim in zip(reps, shape, strict=True)))
    # `reshape` has copied, unless there are no elements, or no axis is both long and repeated
    is_view = not all(shape_of(found)) or all(
        r == 1 or dim == 1 for r, dim in zip(reps, shape, strict=True)
    )
    return copied_as(found, (*range(ndim),)) if is_view else found


@composite
def triu(x, k=0):
    """Upper triangle of the last two axes, zeros below diagonal k."""
    return _masked(x, ~np.tri(*shape_of(x)[-2:], k=k - 1, dtype=bool))


@composite
def tril(x, k=0):
    """Lower triangle of the last two axes, zeros above diagonal k."""
    return _masked(x, np.tri(*shape_of(x)[-2:], k=k, dtype=bool))


def _masked(x: Any, mask: np.ndarray) -> Any:
    return where(on_device_of(mask, x), x, np.zeros((), x.dtype))


@public(method=True)
@composite
def trace(x, offset=0, axis1=0, axis2=1):
    """Sum of a diagonal."""
    return reduction.sum(diagonal(x, offset, axis1, axis2), axis=-1)


@public("linalg.diagonal")
@composite
def matrix_diagonal(x, *, offset=0):
    """Diagonals of matrices in the last two axes (``diagonal`` of `tapegrad.linalg`)."""
    return diagonal(x, offset, -2, -1)


@public("linalg.trace")
@composite
def matrix_trace(x, *, offset=0):
    """Traces of matrices in the last two axes (``trace`` of `tapegrad.linalg`)."""
    return trace(x, offset, -2, -1)


@composite
def diag(x, k=0):
    """Diagonal of a matrix, or a matrix with a given diagonal."""
    if rank(x) == 2:
        return diagonal(x, k)
    if rank(x) != 1:
        raise ValueError(f"diag: expected 1 or 2 dimensions, got {rank(x)}")
    n = shape_of(x)[0] + abs(k)
    return embed(x, (n, n), diagonal, {"offset": k, "axis1": 0, "axis2": 1})
