"""Reading and writing elements at indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, as_array, device_of, zeros
from tapegrad.ops.devices import on_device_of
from tapegrad.ops.piecewise import where
from tapegrad.ops.shape import (
    atleast_1d,
    copied_as,
    embed,
    getitem,
    laid_out,
    moveaxis,
    order_of_copies,
    reshape,
    stand_in,
    unbroadcast,
)
from tapegrad.ops.table.array_kinds import linear
from tapegrad.ops.table.batching import place_of_batch, shifted_index, with_rank
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import (
    internal,
    is_differentiated,
    normalize_axis,
    plain,
    public,
    rank,
    shape_of,
    undifferentiated,
)


def is_basic(index: Any) -> bool:
    """Whether an index gives a view: it has only integers, slices, None and Ellipsis."""
    for part in index if type(index) is tuple else (index,):
        kind = type(part)
        if kind is int or kind is slice or part is None or part is Ellipsis:
            continue
        if isinstance(part, bool) or not isinstance(part, np.integer):
            return False
    return True


def at(x: Any, index: Any) -> Any:
    """Return ``x[index]`` for any index."""
    return getitem(x, index) if is_basic(index) else gather(x, index)


# -- primitives -----------------------------------------------------------------------------------


@internal
@linear(arrays=1)
def gather(x, index):
    """Copy the elements at an index with arrays; cotangents of repeated elements add up."""
    return as_array(x)[index]


@gather.transpose("x")
def _(g, x_shape, index):
    return scatter_add(g, x_shape, index)


@gather.batching
def _(x, index):
    found = gather(x, shifted_index(index))
    place = place_of_batch(index)
    return moveaxis(found, place, 0) if place else found


@linear(arrays=1)
def scatter_add(x, shape, index):
    """Return zeros of `shape` with x added at an index; repeated indices add up."""
    out = zeros(shape, x.dtype, device_of(x))
    np.add.at(out, index, x)
    return out


@scatter_add.transpose("x")
def _(g, index):
    return at(g, index)


@scatter_add.batching
def _(x, shape, index):
    wide = (shape_of(x)[0], *shape)
    return scatter_add(moveaxis(x, 0, place_of_batch(index)), wide, shifted_index(index))


@internal
@linear(arrays=2)
def put(x, value, index):
    """Return a copy of x with a value at an index; the last of repeated indices wins."""
    out = as_array(x).copy()
    out[index] = value
    return out


@put.transpose("x")
def _(g, index):
    return put(g, np.zeros((), g.dtype), index)


@put.transpose("value")
def _(g, x_shape, value_shape, index):
    found = at(g, index)
    if not is_basic(index):
        # only the last of several values for one element is used
        order = np.arange(found.size).reshape(shape_of(found))
        last = np.full(x_shape, -1)
        places = on_host(index)
        last[places] = order
        is_used = on_device_of(last[places] == order, found)
        found = where(is_used, found, np.zeros((), g.dtype))
    return unbroadcast(found, value_shape)


def on_host(index: Any) -> Any:
    """Return an index with arrays of the host in place of those on a device."""
    if type(index) is tuple:
        return tuple(map(on_host, index))
    return index.to_host() if type(index) is DeviceArray else index


@put.batching
def _(x, value, index):
    return put(x, _fitted(value, x, index), shifted_index(index))


def _fitted(value: Any, x: Any, index: Any) -> Any:
    """Return a batch of values with its axes arranged like the result of a shifted index."""
    ndim = stand_in(shape_of(x)[1:])[index].ndim
    return moveaxis(with_rank(value, ndim), 0, place_of_batch(index))


@linear(arrays=2)
def add_at(x, value, index):
    """Return a copy of x with a value added at an index; repeated indices add up."""
    out = as_array(x).copy()
    np.add.at(out, index, value)
    return out


@add_at.transpose("x")
def _(g):
    return g


@add_at.transpose("value")
def _(g, value_shape, index):
    return unbroadcast(at(g, index), value_shape)


@add_at.batching
def _(x, value, index):
    return add_at(x, _fitted(value, x, index), shifted_index(index))


@internal
@linear(arrays=2)
def put_view(x, value, steps):
    """Return a copy of x with a value in the elements that a chain of views selects."""
    out = as_array(x).copy()
    window = show(out, steps)
    if isinstance(out, np.ndarray) and not np.may_share_memory(window, out):
        return _put_at_places(out, value, steps)
    window.flags.writeable = True
    window[...] = value
    return out


def _put_at_places(out: np.ndarray, value: Any, steps: tuple[Any, ...]) -> np.ndarray:
    """Write to a view that is a copy of this array, whose axes are in another order in memory."""
    if out.dtype.kind != "c":
        places = show(np.arange(out.size).reshape(out.shape), steps)
        out.reshape(-1)[places] = value
        return out
    even = np.arange(0, 2 * out.size, 2).reshape(out.shape)
    places = show(even + 1j * (even + 1), steps)
    flat = out.reshape(-1).view(out.real.dtype)
    flat[places.real.astype(int)] = np.real(value)
    if places.dtype.kind == "c":
        flat[places.imag.astype(int)] = np.imag(value)
    return out


@put_view.transpose("x")
def _(g, steps):
    return put_view(g, 0.0, steps)


@put_view.transpose("value")
def _(g, value_shape, steps):
    return unbroadcast(show(g, steps), value_shape)


@put_view.batching
def _(x, value, steps):
    size, *shape = shape_of(x)
    item = stand_in(shape)
    shifted = []
    for op, parameters in steps:
        shifted.append((op, op.shifted(size, item.shape, parameters)))
        item = op.function(item, **parameters)
    return put_view(x, with_rank(value, item.ndim), tuple(shifted))


def show(x: Any, steps: tuple[Any, ...]) -> Any:
    """Apply a chain of views."""
    for op, parameters in steps:
        x = op(x, **parameters)
    return x


# -- composites -----------------------------------------------------------------------------------


@public(method=True)
@composite
def take(x, indices, axis=None, mode="raise"):
    """Take elements along an axis (by default, of the flattened array)."""
    x, axis = (reshape(x, (-1,)), 0) if axis is None else (atleast_1d(x), axis)
    axis = normalize_axis(axis, rank(x))
    indices = undifferentiated(indices)
    if indices.dtype == bool:  # 0 and 1; in a subscript it would be a mask
        indices = indices.astype(np.intp)
    length = shape_of(x)[axis]
    if mode == "wrap":
        indices = indices % length
    elif mode == "clip":
        indices = np.clip(indices, 0, length - 1)
    elif mode != "raise":
        raise ValueError(f"take: mode {mode!r} is not one of raise, wrap, clip")
    found = gather(x, (*(slice(None),) * axis, indices))
    return laid_out(found, (*range(rank(found)),))


@composite
def take_along_axis(x, indices, axis=-1):
    """Take elements along an axis, with separate indices for every position of the other axes."""
    indices = undifferentiated(indices)
    if axis is None:
        x, indices, axis = reshape(x, (-1,)), indices.ravel(), 0
    axis = normalize_axis(axis, rank(x))
    if indices.ndim != rank(x):
        raise ValueError(
            f"take_along_axis: `indices` has {indices.ndim} dimensions, the array {rank(x)}"
        )
    shape = shape_of(x)
    index: list[Any] = []
    for k, dim in enumerate(shape):
        along = np.arange(dim).reshape((1,) * k + (-1,) + (1,) * (len(shape) - k - 1))
        index.append(indices if k == axis else along)
    return gather(x, tuple(index))


@public(method=True)
@composite
def repeat(x, repeats, axis=None):
    """Repeat elements along an axis (by default, of the flattened array)."""
    x, axis = (reshape(x, (-1,)), 0) if axis is None else (atleast_1d(x), axis)
    axis = normalize_axis(axis, rank(x))
    return take(x, np.repeat(np.arange(shape_of(x)[axis]), plain(repeats)), axis=axis)


@composite(batching="axis")
def sort(x, axis=-1):
    """Sort along an axis; the cotangents follow the elements."""
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    order = np.argsort(undifferentiated(x), axis=axis, kind="stable")
    return laid_out(take_along_axis(x, order, axis=axis), order_of_copies(x, "K"))


@composite
def pad(x, pad_width, mode="constant", constant_values=0.0):
    """Extend every axis by a constant, or by NumPy's modes edge, wrap, reflect and symmetric."""
    shape = shape_of(x)
    if isinstance(pad_width, dict):  # of some axes
        given, pad_width = pad_width, [(0, 0) for _ in shape]
        for axis, width in given.items():
            before, after = width if np.ndim(width) else (width, width)
            pad_width[normalize_axis(axis, len(shape))] = before, after
    widths = np.broadcast_to(np.asarray(pad_width), (len(shape), 2)).tolist() if shape else []
    if any(width < 0 for pair in widths for width in pair):
        raise ValueError(
            f"pad: pad_width {pad_width!r} must not be negative; use slices to cut off"
        )
    if mode == "constant":
        if is_differentiated(constant_values):
            raise TypeError(
                "pad: there is no derivative with respect to constant_values; detach() them, or "
                "write tg.where(tg.pad(np.ones_like(x), ...), tg.pad(x, ...), c)"
            )
        outer = tuple(
            before + dim + after for (before, after), dim in zip(widths, shape, strict=True)
        )
        index = tuple(
            slice(before, before + dim) for (before, _), dim in zip(widths, shape, strict=True)
        )
        placed = embed(x, outer, getitem, {"index": index})
        if np.any(constant_values):
            edges = np.pad(np.zeros(shape, x.dtype), widths, constant_values=constant_values)
            placed = placed + edges
        return laid_out(placed, order_of_copies(x, "A"))
    if mode not in ("edge", "wrap", "reflect", "symmetric"):
        raise ValueError(
            f"pad: mode {mode!r} is not supported; use constant, edge, wrap, reflect or symmetric"
        )
    given = x
    for axis, (before, after) in enumerate(widths):
        if before or after:
            where_from = np.pad(np.arange(shape[axis]), (before, after), mode=mode)
            x = take(x, where_from, axis=axis)
    return (copied_as if x is given else laid_out)(x, order_of_copies(given, "A"))
