"""Cumulative sums, products and extrema, and the product over axes."""

from __future__ import annotations

import math

import numpy as np

from tapegrad.ops import elementwise as ew
from tapegrad.ops import reduction
from tapegrad.ops.indexing import take_along_axis
from tapegrad.ops.shape import (
    atleast_1d,
    concatenate,
    copied_as,
    flip,
    getitem,
    laid_out,
    moveaxis,
    order_of_copies,
    reshape,
)
from tapegrad.ops.table.array_kinds import linear
from tapegrad.ops.table.batching import flattened, shifted_axes
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import (
    array_of,
    copied,
    dtype_of,
    normalize_axes,
    normalize_axis,
    plain,
    public,
    rank,
    refuse_complex,
    shape_of,
)


@public(method=True)
@linear(np.cumsum, arrays=1)
def cumsum(x, axis=None):
    """Cumulative sums (by default, of the flattened array)."""


@cumsum.transpose("x")
def _(g, x_shape, axis):
    along = 0 if axis is None else axis
    return reshape(flip(cumsum(flip(g, along), along), along), x_shape)


@cumsum.batching
def _(x, axis):
    axes = (1,) if axis is None else shifted_axes(axis, x)
    if axis is None or not axes:  # items without axes are like those of one element
        return cumsum(flattened(x), 1)
    return cumsum(x, *axes)


@public(method=True)
@composite
def prod(x, axis=None, *, keepdims=False):
    """Product over axes, with exact derivatives even if elements are zero.

    Products are formed pairwise, so that no derivative divides by an element.
    """
    shape = shape_of(x)
    if dtype_of(x).kind in "biu":
        return np.prod(plain(x), axis=axis, keepdims=keepdims)
    axes = normalize_axes(axis, len(shape))
    kept = tuple(dim for k, dim in enumerate(shape) if k not in axes)
    x = moveaxis(x, axes, tuple(range(len(axes))))
    x = reshape(x, (math.prod(shape[a] for a in axes), *kept))
    if shape_of(x)[0] == 1:
        x = copied(x)  # the only factor must not be a view
    while (n := shape_of(x)[0]) > 1:
        pairs = ew.multiply(getitem(x, slice(0, n - 1, 2)), getitem(x, slice(1, n, 2)))
        x = concatenate([pairs, getitem(x, slice(n - 1, n))], 0) if n % 2 else pairs
    x = getitem(x, 0) if n else reduction.sum(x, axis=0) + np.ones((), x.dtype)
    if keepdims:
        x = reshape(x, tuple(1 if k in axes else dim for k, dim in enumerate(shape)))
    return x


@public(method=True)
@composite
def cumprod(x, axis=None):
    """Cumulative products, with exact derivatives even if elements are zero.

    A prefix scan by doubling in log2(n) rounds, so that no derivative divides by an element.
    """
    if dtype_of(x).kind in "biu":
        return np.cumprod(plain(x), axis=axis)
    x, axis = (reshape(x, (-1,)), 0) if axis is None else (atleast_1d(x), axis)
    axis = normalize_axis(axis, rank(x))
    order = order_of_copies(x, "K")
    before = (slice(None),) * axis
    n = shape_of(x)[axis]
    step = 1
    while step < n:
        head = getitem(x, (*before, slice(0, step)))
        later = getitem(x, (*before, slice(step, n)))
        earlier = getitem(x, (*before, slice(0, n - step)))
        x = concatenate([head, ew.multiply(later, earlier)], axis)
        step *= 2
    return copied_as(x, order)


def _accumulated(name, x, axis, compute, exceeds):
    """Take, at each position, the largest or smallest element up to there."""
    refuse_complex(name, x)
    axis = normalize_axis(axis, rank(x))
    values = plain(x)
    reached = compute.accumulate(values, axis=axis)
    before = np.roll(reached, 1, axis)
    is_new = exceeds(values, before) | (np.isnan(values) & ~np.isnan(before))
    along = np.arange(values.shape[axis]).reshape((-1,) + (1,) * (values.ndim - 1 - axis))
    return take_along_axis(x, np.maximum.accumulate(np.where(is_new, along, 0), axis=axis), axis)


@composite(batching="axis")
def cummax(x, axis=0):
    """Cumulative maximum (numpy.maximum.accumulate); the first of equal elements is taken."""
    return _accumulated("cummax", x, axis, np.maximum, np.greater)


@composite(batching="axis")
def cummin(x, axis=0):
    """Cumulative minimum (numpy.minimum.accumulate); the first of equal elements is taken."""
    return _accumulated("cummin", x, axis, np.minimum, np.less)


def _from_initial(accumulate, x, initial, axis, include_initial):
    if axis is None:
        if rank(x) > 1:
            raise ValueError(f"{accumulate.name}: an array of {rank(x)} axes needs `axis`")
        axis = 0
    x = atleast_1d(x)
    found = accumulate(x, axis)
    if not include_initial:
        return found
    axis = normalize_axis(axis, rank(x))
    shape = tuple(1 if k == axis else n for k, n in enumerate(shape_of(x)))
    whole = concatenate([np.full(shape, initial, dtype_of(found)), found], axis)
    return laid_out(whole, order_of_copies(array_of(x), "K"))


@composite
def cumulative_sum(x, axis=None, include_initial=False):
    """Cumulative sums along an axis; `include_initial` prepends 0."""
    return _from_initial(cumsum, x, 0, axis, include_initial)


@composite
def cumulative_prod(x, axis=None, include_initial=False):
    """Cumulative products along an axis; `include_initial` prepends 1."""
    return _from_initial(cumprod, x, 1, axis, include_initial)
