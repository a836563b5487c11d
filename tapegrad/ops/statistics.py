"""Composite averages, order statistics and reductions that ignore nan, with NumPy's names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapegrad.ops import elementwise as ew
from tapegrad.ops import reduction
from tapegrad.ops.complex import conj, real
from tapegrad.ops.cumulative import cumprod, cumsum, prod
from tapegrad.ops.indexing import sort, take_along_axis
from tapegrad.ops.piecewise import where
from tapegrad.ops.products import matmul
from tapegrad.ops.shape import astype, concatenate, laid_out, moveaxis, reshape
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import (
    array_of,
    copied,
    dtype_of,
    in_precision_of,
    memory_order,
    normalize_axes,
    rank,
    refuse_complex,
    shape_of,
    undifferentiated,
)


@composite
def average(x, axis=None, weights=None, *, keepdims=False):
    """Mean over axes, optionally weighted."""
    if weights is None:
        return reduction.mean(x, axis=axis, keepdims=keepdims)
    weights = array_of(weights)
    if shape_of(weights) != shape_of(x):
        axes = normalize_axes(axis, rank(x))
        if axis is None or rank(weights) != 1 or len(axes) != 1:
            raise TypeError(
                "average: weights must have the shape of the array, or that of one axis"
            )
        weights = reshape(weights, tuple(-1 if k in axes else 1 for k in range(rank(x))))
        weights = weights * np.ones(shape_of(x), dtype_of(weights))
    total = reduction.sum(x * weights, axis=axis, keepdims=keepdims)
    return total / reduction.sum(weights, axis=axis, keepdims=keepdims)


@composite
def cov(x, y=None, rowvar=True, bias=False, ddof=None):
    """Covariance matrix of variables in rows (or, with ``rowvar=False``, in columns)."""
    rows = _rows(x, rowvar)
    if y is not None:
        rows = concatenate([rows, _rows(array_of(y), rowvar)], 0)
    count = shape_of(rows)[1] - (ddof if ddof is not None else 0 if bias else 1)
    if count <= 0:
        raise ValueError("cov: there are no more observations than degrees of freedom")
    centred = rows - reduction.mean(rows, axis=1, keepdims=True)
    found = matmul(centred, conj(centred).T) / count
    return reshape(found, ()) if shape_of(found) == (1, 1) else found


def _rows(x: Any, rowvar: bool) -> Any:
    """Return variables as rows in double precision, as NumPy does."""
    dtype = np.result_type(dtype_of(x), np.float64)
    x = x if dtype_of(x) == dtype else x.astype(dtype)
    if rank(x) < 2:
        return reshape(x, (1, -1))
    return x if rowvar or shape_of(x)[0] == 1 else x.T


@composite
def corrcoef(x, y=None, rowvar=True):
    """Correlation coefficients of variables in rows (or columns)."""
    found = cov(x, y, rowvar)
    if rank(found) == 0:
        return found / found
    places = np.arange(shape_of(found)[0])
    scale = ew.sqrt(found[places, places])
    return found / scale[:, None] / scale[None, :]


# -- order ----------------------------------------------------------------------------------------


def _flattened(x: Any, axis: Any) -> tuple[Any, tuple[int, ...]]:
    """Return x with some axes flattened into the last one, and its shape with these kept."""
    axes = normalize_axes(axis, rank(x))
    shape = shape_of(x)
    kept = tuple(1 if k in axes else n for k, n in enumerate(shape))
    lead = tuple(n for k, n in enumerate(shape) if k not in axes)
    moved = moveaxis(x, axes, tuple(range(-len(axes), 0))) if axes else x
    count = math.prod(shape[k] for k in axes)
    return reshape(moved, (*lead, count)), kept


_METHODS = {
    "linear": lambda at: at,
    "lower": np.floor,
    "higher": np.ceil,
    "nearest": np.rint,
    "midpoint": lambda at: 0.5 * (np.floor(at) + np.ceil(at)),
}


@composite
def quantile(x, q, axis=None, *, method="linear", keepdims=False):
    """Quantiles over axes; nan if there is nan among the elements."""
    refuse_complex("quantile", x)
    flat, kept = _flattened(x, axis)
    ordered = sort(flat, -1)  # nan last
    unknown = np.isnan(undifferentiated(ordered)[..., -1:])
    return _quantiles(ordered, shape_of(flat)[-1], unknown, q, method, kept if keepdims else None)


def _quantiles(ordered, count, unknown, q, method, kept):
    """Return quantiles of sorted numbers.

    Parameters
    ----------
    ordered
        The numbers, sorted along the last axis.
    count
        How many of the first numbers to use: one integer, or one for each row.
    unknown
        Mask of the rows whose quantiles are nan, which is their last number.
    q, method
        As for `quantile`.
    kept
        Shape of one quantile of all rows; default: the leading shape of `ordered`.
    """
    if method not in _METHODS:
        raise ValueError(f"quantile: method {method!r} is none of {', '.join(_METHODS)}")
    q = np.asarray(q, float)
    if not np.all((q >= 0) & (q <= 1)):
        raise ValueError("quantile: q must be between 0 and 1")
    if q.ndim:  # an array, which has a say in the dtype of the result
        ordered = astype(ordered, np.result_type(dtype_of(ordered), q))
    shape = (*q.shape, *(shape_of(ordered)[:-1] if kept is None else kept))
    if not shape_of(ordered)[-1]:
        return np.full(shape, np.nan, dtype_of(ordered))
    at = _METHODS[method](q.reshape(-1) * (count - 1))
    low, high = np.floor(at).astype(int), np.ceil(at).astype(int)
    part = in_precision_of(ordered, at - low)
    last = ordered[..., -1:]
    ordered = where(np.isnan(undifferentiated(ordered)), 0.0, ordered)
    if at.ndim == 1:
        first, second = ordered[..., low], ordered[..., high]
    else:
        first, second = take_along_axis(ordered, low), take_along_axis(ordered, high)
    infinite = np.isinf(undifferentiated(first)) | np.isinf(undifferentiated(second))
    with np.errstate(invalid="ignore"):
        weighted = first * (1.0 - part) + second * part
        between = where(infinite, weighted, first + (second - first) * part)
    found = where(part == 0.0, first, between)
    found = moveaxis(where(unknown, last, found), -1, 0)
    return reshape(laid_out(found, (*range(rank(found)),)), shape)


@composite
def percentile(x, q, axis=None, *, method="linear", keepdims=False):
    """Percentiles over axes: quantiles on a scale from 0 to 100."""
    return quantile(x, np.asarray(q, float) / 100.0, axis, method=method, keepdims=keepdims)


@composite(batching="axis")
def median(x, axis=None, *, keepdims=False):
    """Median over axes; the two middle elements share the cotangent."""
    found = quantile(x, 0.5, axis, keepdims=keepdims)
    axes = normalize_axes(axis, rank(x))
    left = [a for a in range(rank(x)) if a not in axes]
    if not left:
        return found
    if len(axes) == 1:
        order = [a for a in memory_order(array_of(x)) if a not in axes]
    else:  # they are flattened first
        order = [left[k] for k in memory_order(_flattened(x, axis)[0]) if k < len(left)]
    order = [*order, *axes] if keepdims else [left.index(a) for a in order]
    return laid_out(found, tuple(order))


# -- ignoring nan ---------------------------------------------------------------------------------


def _counted(x: Any, axis: Any, keepdims: bool) -> Any:
    counts = where(np.isnan(undifferentiated(x)), 0.0, 1.0)
    return in_precision_of(x, reduction.sum(counts, axis=axis, keepdims=keepdims))


@composite
def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    """Replace nan and infinities by numbers, with derivative 0."""
    refuse_complex("nan_to_num", x)
    if not copy:
        raise TypeError("nan_to_num: copy=False is not supported; assign the result to x[...]")
    values = undifferentiated(x)
    if values.dtype.kind not in "fc":  # they are finite
        return copied(array_of(x))
    limits = np.finfo(values.dtype)
    order = memory_order(array_of(x))
    x = where(values == np.inf, limits.max if posinf is None else posinf, x)
    x = where(values == -np.inf, limits.min if neginf is None else neginf, x)
    return laid_out(where(np.isnan(values), nan, x), order)


@composite(batching="axis")
def nansum(x, axis=None, *, keepdims=False):
    """Sum over axes, ignoring nan."""
    return reduction.sum(where(np.isnan(undifferentiated(x)), 0.0, x), axis=axis, keepdims=keepdims)


@composite(batching="axis")
def nanprod(x, axis=None, *, keepdims=False):
    """Product over axes, ignoring nan."""
    return prod(where(np.isnan(undifferentiated(x)), 1.0, x), axis=axis, keepdims=keepdims)


def _replaced(x: Any, number: float) -> Any:
    """Return a copy with a number in place of nan."""
    return laid_out(where(np.isnan(undifferentiated(x)), number, x), memory_order(array_of(x)))


@composite(batching="axis")
def nancumsum(x, axis=None):
    """Cumulative sums, ignoring nan."""
    return cumsum(_replaced(x, 0.0), axis)


@composite(batching="axis")
def nancumprod(x, axis=None):
    """Cumulative products, ignoring nan."""
    return cumprod(_replaced(x, 1.0), axis)


@composite(batching="axis")
def nanmean(x, axis=None, *, keepdims=False):
    """Mean over axes, ignoring nan."""
    return nansum(x, axis, keepdims=keepdims) / _counted(x, axis, keepdims)


@composite(batching="axis")
def nanvar(x, axis=None, *, ddof=0, keepdims=False):
    """Variance over axes, ignoring nan."""
    centred = where(np.isnan(undifferentiated(x)), 0.0, x - nanmean(x, axis, keepdims=True))
    squares = reduction.sum(real(centred * conj(centred)), axis=axis, keepdims=keepdims)
    return squares / (_counted(x, axis, keepdims) - ddof)


@composite(batching="axis")
def nanstd(x, axis=None, *, ddof=0, keepdims=False):
    """Standard deviation over axes, ignoring nan; where it is 0, the derivative is 0."""
    variance = nanvar(x, axis, ddof=ddof, keepdims=keepdims)
    is_zero = undifferentiated(variance) == 0.0
    return where(is_zero, 0.0, ew.sqrt(where(is_zero, 1.0, variance)))


@composite
def nanquantile(x, q, axis=None, *, method="linear", keepdims=False):
    """Quantiles over axes, ignoring nan; nan if all elements are nan."""
    refuse_complex("nanquantile", x)
    flat, kept = _flattened(x, axis)
    count = np.sum(~np.isnan(undifferentiated(flat)), axis=-1, keepdims=True)
    ordered = sort(flat, -1)  # nan last
    unknown = count == 0
    return _quantiles(ordered, np.maximum(count, 1), unknown, q, method, kept if keepdims else None)


@composite
def nanpercentile(x, q, axis=None, *, method="linear", keepdims=False):
    """Percentiles over axes, ignoring nan."""
    return nanquantile(x, np.asarray(q, float) / 100.0, axis, method=method, keepdims=keepdims)


@composite(batching="axis")
def nanmedian(x, axis=None, *, keepdims=False):
    """Median over axes, ignoring nan."""
    return nanquantile(x, 0.5, axis, keepdims=keepdims)


@composite(batching="axis")
def nanmax(x, axis=None, *, keepdims=False):
    """Maximum over axes, ignoring nan; nan if all elements are nan."""
    found = reduction.max(
        where(np.isnan(undifferentiated(x)), -np.inf, x), axis=axis, keepdims=keepdims
    )
    return where(_counted(x, axis, keepdims) == 0, np.nan, found)


@composite(batching="axis")
def nanmin(x, axis=None, *, keepdims=False):
    """Minimum over axes, ignoring nan; nan if all elements are nan."""
    found = reduction.min(
        where(np.isnan(undifferentiated(x)), np.inf, x), axis=axis, keepdims=keepdims
    )
    return where(_counted(x, axis, keepdims) == 0, np.nan, found)
