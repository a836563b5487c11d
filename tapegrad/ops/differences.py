"""Composite differences, interpolation and convolution, with NumPy's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.cuda.array import HOST
from tapegrad.ops import reduction
from tapegrad.ops.complex import conjugate, conjugated
from tapegrad.ops.cumulative import cumsum
from tapegrad.ops.indexing import take
from tapegrad.ops.piecewise import where
from tapegrad.ops.shape import (
    astype,
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    laid_out,
    moveaxis,
    order_of_copies,
    ravel,
    reshape,
)
from tapegrad.ops.table.array_kinds import bilinear
from tapegrad.ops.table.batching import aligned
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import (
    array_of,
    copied,
    dtype_of,
    in_precision_of,
    internal,
    normalize_axes,
    normalize_axis,
    plain,
    public,
    rank,
    refuse_complex,
    shape_of,
    undifferentiated,
)


def _along(axis: int, part: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, part)


@composite
def diff(x, n=1, axis=-1, prepend=None, append=None):
    """Differences of neighbours along an axis, n times."""
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    if n == 0:  # without `prepend` and `append`, as in NumPy
        return copied(x)
    axis = normalize_axis(axis, rank(x))
    parts = [array_of(part) for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        shape = tuple(1 if k == axis else size for k, size in enumerate(shape_of(x)))
        x = concatenate([p if rank(p) else broadcast_to(p, shape) for p in parts], axis)
    for _ in range(n):
        after, before = x[_along(axis, slice(1, None))], x[_along(axis, slice(None, -1))]
        x = after != before if dtype_of(x).kind == "b" else after - before
    return x


@composite
def ediff1d(x, to_end=None, to_begin=None):
    """Differences of neighbours in the flattened array, with values put before and after them."""
    parts = [to_begin, diff(ravel(x)), to_end]
    given = [ravel(in_precision_of(x, array_of(part))) for part in parts if part is not None]
    return concatenate(given, 0) if len(given) > 1 else given[0]


@composite
def gradient(x, *spacing, axis=None, edge_order=1):
    """Derivatives by central differences, second-order accurate in the interior.

    Source: the formulas of NumPy's reference, for uniform and for given coordinates.
    """
    axes = normalize_axes(axis, rank(x))
    if not spacing:
        spacing = (1.0,) * len(axes)
    elif len(spacing) == 1 and rank(array_of(spacing[0])) == 0:
        spacing = spacing * len(axes)
    if len(spacing) != len(axes):
        raise TypeError(f"gradient: got {len(spacing)} spacings for {len(axes)} axes")
    if edge_order not in (1, 2):
        raise ValueError("gradient: edge_order must be 1 or 2")
    found = [_slope(x, step, a, edge_order) for step, a in zip(spacing, axes, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


def _slope(x: Any, spacing: Any, axis: int, edge_order: int) -> Any:
    count = shape_of(x)[axis]
    if count < edge_order + 1:
        raise ValueError(f"gradient: axis {axis} needs {edge_order + 1} elements or more")
    x, spacing = _as_real(x), _as_real(spacing)
    whole, after = (slice(None),) * axis, (1,) * (rank(x) - 1 - axis)

    def part(a: Any, start: int, stop: int) -> Any:
        return a[(*whole, slice(start, stop))]

    is_uniform = rank(spacing) == 0
    steps = spacing if is_uniform else reshape(diff(spacing), (count - 1, *after))
    steps = in_precision_of(x, steps)  # coordinates may be closer than that

    def step(start: int, stop: int) -> Any:
        return steps if is_uniform else steps[start:stop]

    def slopes(start: int, stop: int) -> Any:
        """Return those from some elements to the next ones."""
        there, here = part(x, start + 1, stop + 1), part(x, start, stop)
        return (there - here) / step(start, stop)

    if is_uniform:  # without the element between, which may be large or not finite
        inside = (part(x, 2, count) - part(x, 0, count - 2)) / (steps + steps)
    else:
        before, behind = step(0, count - 2), step(1, count - 1)
        inside = behind * slopes(0, count - 2) + before * slopes(1, count - 1)
        inside = inside / (before + behind)
    first, last = slopes(0, 1), slopes(count - 2, count - 1)
    if edge_order == 2:
        one, two = step(0, 1), step(1, 2)
        first = first + (first - slopes(1, 2)) * one / (one + two)
        one, two = step(count - 2, count - 1), step(count - 3, count - 2)
        last = last + (last - slopes(count - 3, count - 2)) * one / (one + two)
    return laid_out(concatenate([first, inside, last], axis), order_of_copies(x, "K"))


def _as_real(x: Any) -> Any:
    """Return an array, integers as floats: differences of integers may overflow."""
    x = array_of(x)
    return np.asarray(plain(x), np.float64) if dtype_of(x).kind in "biu" else x


def _in_double(x: Any) -> Any:
    """Return an array in double precision, in which NumPy interpolates."""
    wide = np.result_type(dtype_of(x), np.float64)
    return x if dtype_of(x) == wide else astype(x, wide)


@composite
def trapezoid(y, x=None, dx=1.0, axis=-1):
    """Integral by the trapezoidal rule, for given coordinates or a constant step."""
    steps = dx if x is None else diff(array_of(x), axis=axis if rank(array_of(x)) > 1 else -1)
    whole = (slice(None),) * normalize_axis(axis, rank(y))
    y = array_of(y)
    heights = 0.5 * (y[(*whole, slice(1, None))] + y[(*whole, slice(None, -1))])
    if rank(steps) == 1:
        return reduction.sum(moveaxis(heights, axis, -1) * steps, axis=-1)
    return reduction.sum(steps * heights, axis=axis)  # as NumPy, if their ranks differ


@composite
def interp(x, xp, fp, left=None, right=None, period=None):
    """Linear interpolation between points with increasing xp, constant outside them.

    At a point, the derivative is that of the piece on its right; at nan it is 0.
    """
    if period is not None:
        raise TypeError("interp: periods are not supported; take x % period, and extend xp and fp")
    x, xp, fp = (_in_double(_as_real(given)) for given in (x, xp, fp))
    refuse_complex("interp", x, xp)
    points, at = undifferentiated(xp), undifferentiated(x)
    if rank(points) != 1 or shape_of(points) != shape_of(fp)[:1]:
        raise ValueError("interp: xp and fp must be 1-d arrays of one length")
    inside = fp[0] + 0.0 * x if shape_of(points)[0] == 1 else _on_pieces(x, xp, fp)
    below = fp[0] if left is None else left
    above = fp[-1] if right is None else right
    inside = where(at == points[-1], fp[-1], where(np.isnan(at), np.nan, inside))
    return where(at < points[0], below, where(at > points[-1], above, inside))


def _on_pieces(x: Any, xp: Any, fp: Any) -> Any:
    """Interpolate on the pieces between points, from the other end where the first gives nan.

    The first and the last piece go on outside of the points.
    """
    ends = xp[:-1], xp[1:], fp[:-1], fp[1:]
    at = undifferentiated(x)
    k = np.searchsorted(undifferentiated(xp)[1:-1], at, side="right")
    is_table = shape_of(xp)[0] > np.prod(shape_of(x))  # most pieces are not needed
    with np.errstate(invalid="ignore"):
        slopes = None if is_table else _slopes(*ends)
        start, end, first, last = (take(of_piece, k, 0) for of_piece in ends)
        slope = _slopes(start, end, first, last) if slopes is None else take(slopes, k, 0)
        inside = first + slope * (x - start)
        inside = where(np.isnan(inside), last + slope * (x - end), inside)
        # beside infinite values, as in NumPy: the points themselves
        low, high = undifferentiated(first), undifferentiated(last)
        is_point = (undifferentiated(start) == at) | (low == high)
        return where(np.isnan(inside) & is_point, first, inside)


def _slopes(start: Any, end: Any, first: Any, last: Any) -> Any:
    """Return the slopes of pieces; those of length 0 are used outside of all points only."""
    length = end - start
    return (last - first) / where(undifferentiated(length) == 0.0, 1.0, length)


@internal
@bilinear(np.convolve)
def full_convolution(a, v):
    """All elements of the discrete convolution of two 1-d arrays."""


@full_convolution.vjp("a")
def _(g, v):
    return valid_correlation(g, conjugated(v))


@full_convolution.vjp("v")
def _(g, a):
    return valid_correlation(g, conjugated(a))


@full_convolution.batching
def _(a, v, batched):
    return _of_windows(*aligned((a, v), batched))


def _valid_correlation(a, v):
    return np.correlate(a, np.conjugate(v), "valid")


@internal
@bilinear(_valid_correlation)
def valid_correlation(a, v):
    """Sums of the products of v with as many elements of a, which is not shorter, at each shift."""


@valid_correlation.vjp("a")
def _(g, v):
    return full_convolution(g, conjugated(v))


@valid_correlation.vjp("v")
def _(g, a):
    return valid_correlation(conjugated(a), g)


@valid_correlation.batching
def _(a, v, batched):
    a, v = aligned((a, v), batched)
    size = shape_of(v)[-1]
    windows = np.arange(shape_of(a)[-1] - size + 1)[:, None] + np.arange(size)
    return reduction.sum(a[..., windows] * expand_dims(v, -2), axis=-1)


def _of_windows(a: Any, v: Any) -> Any:
    """Return convolutions of the last axes, as sums of windows of a: on devices, and of batches."""
    n, m = shape_of(a)[-1], shape_of(v)[-1]
    zeros = np.zeros((*shape_of(a)[:-1], m - 1), dtype_of(a))
    padded = concatenate([zeros, a, zeros], -1) if m > 1 else a
    windows = np.arange(n + m - 1)[:, None] + np.arange(m)
    # infinite factors of the zeros beside the array would make nan
    is_inside = (windows >= m - 1) & (windows < n + m - 1)
    factors = where(is_inside, expand_dims(flip(v, -1), -2), 0)
    return reduction.sum(padded[..., windows] * factors, axis=-1)


@composite
def convolve(a, v, mode="full"):
    """Discrete convolution of two 1-d arrays."""
    v = array_of(v)
    if rank(a) != 1 or rank(v) != 1 or not shape_of(a)[0] or not shape_of(v)[0]:
        raise ValueError("convolve: expected two 1-d arrays that are not empty")
    if shape_of(v)[0] > shape_of(a)[0]:
        a, v = v, a
    n, m = shape_of(a)[0], shape_of(v)[0]
    are_on_host = getattr(a, "device", HOST) == HOST == getattr(v, "device", HOST)
    full = full_convolution(a, v) if are_on_host else _of_windows(a, v)
    if mode == "full":
        return full
    if mode == "same":
        start = (m - 1) // 2
        return full[start : start + n]
    if mode == "valid":
        return full[m - 1 : n]
    raise ValueError(f"convolve: mode {mode!r} is none of 'full', 'same', 'valid'")


@composite
def correlate(a, v, mode="valid"):
    """Correlation of two 1-d arrays: sums of products with v shifted and conjugated."""
    v = flip(conjugate(array_of(v)))
    if shape_of(v)[0] > shape_of(a)[0] and mode == "same":
        full = convolve(a, v)  # the middle part has the length of the longer array
        start = shape_of(a)[0] // 2
        return full[start : start + shape_of(v)[0]]
    return convolve(a, v, mode)


@public("cross", "linalg.cross")
@composite
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    """Cross product of vectors of length 3."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = moveaxis(a, axisa, -1), moveaxis(array_of(b), axisb, -1)
    if shape_of(a)[-1] != 3 or shape_of(b)[-1] != 3:
        raise ValueError("cross: vectors must have length 3")
    ahead, behind = [1, 2, 0], [2, 0, 1]
    found = a[..., ahead] * b[..., behind] - a[..., behind] * b[..., ahead]
    return moveaxis(laid_out(found, (*range(rank(found)),)), -1, axisc)


@composite(batching="axis")
def unwrap(p, discont=None, axis=-1, *, period=2.0 * np.pi):
    """Add multiples of the period so that neighbours differ by at most half of it."""
    refuse_complex("unwrap", p)
    p = array_of(p)
    values = undifferentiated(p)
    steps = diff(values, axis=axis)
    low = -0.5 * period
    short = (steps - low) % period + low
    short = where((short == low) & (steps > 0.0), -low, short)
    few = 0.5 * period if discont is None else discont
    turns = cumsum(where(np.abs(steps) < few, 0.0, short - steps), axis=axis)
    start = values[_along(normalize_axis(axis, rank(p)), slice(0, 1))]
    none = where(start == start, 0.0, 0.0)
    found = p + in_precision_of(p, concatenate([none, turns], axis))
    return laid_out(found, order_of_copies(p, "K"))
