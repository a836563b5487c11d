"""Reductions over axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, as_array
from tapegrad.ops import elementwise as ew
from tapegrad.ops.composite import composite
from tapegrad.ops.kinds import reduction
from tapegrad.ops.op import internal, is_complex, normalize_axes, public, shape_of
from tapegrad.ops.piecewise import INFINITY, where

# -- primitives -----------------------------------------------------------------------------------


def _sum(x, axis, keepdims):
    return np.add.reduce(x, axis=axis, keepdims=keepdims)


@public(method=True)
@reduction(_sum)
def sum(x, axis=None, *, keepdims=False):
    """Sum over axes."""


@sum.partial("x")
def _():
    return 1.0


def _logsumexp(x, axis, keepdims):
    x = as_array(x)
    if x.dtype.kind not in "fc":
        x = x.astype(np.float64)
    if x.size == 0:
        with np.errstate(divide="ignore"):
            return np.log(np.sum(x, axis=axis, keepdims=keepdims))
    if type(x) is DeviceArray:
        return _logsumexp_on_device(x, axis, keepdims)
    high = np.max(x.real, axis=axis, keepdims=True)
    high = np.where(np.isfinite(high), high, np.zeros((), high.dtype))
    shifted = as_array(np.subtract(x, high))
    with np.errstate(divide="ignore", over="ignore"):
        total = np.log(np.sum(np.exp(shifted, out=shifted), axis=axis, keepdims=True))
    total += high
    return total if keepdims else np.squeeze(total, axis=axis)


def _term(x, high):
    return 1.0 if x == high else ew.exp(x - high)


def _logsumexp_on_device(x, axis, keepdims):
    """Read the elements twice; a result that is infinite needs no special case."""
    high = np.max(x, axis=axis, keepdims=True)
    total = np.log(x.sum_of(_term, high, axis)) + high
    return total if keepdims else np.squeeze(total, axis=axis)


@public(method=True)
@reduction(_logsumexp)
def logsumexp(x, axis=None, *, keepdims=False):
    """log(sum(exp(x))) without overflow; elements equal to an infinite result share equally."""


def ties(x, z, axis):
    """Count the elements that equal the reduced value."""
    if axis is None or x.ndim == 0:
        kept, axes = np.reshape(z, ()), None
    else:
        axes = normalize_axes(axis, x.ndim)
        kept = np.reshape(z, tuple(1 if k in axes else dim for k, dim in enumerate(x.shape)))
    if type(x) is DeviceArray:
        return x.sum_of(_is_tie, kept, axes, counts=True).astype(z.dtype).reshape(z.shape)
    chosen = x == kept
    if np.isnan(kept).any():
        chosen |= x != x
    count = np.count_nonzero(chosen, axis=axes)
    return as_array(count).astype(z.dtype).reshape(z.shape)


def _is_tie(x, z):
    return (x == z) | ((x != x) & (z != z))


def infinities(x, z, axis):
    """Count the elements that equal the reduced value if it is infinite; otherwise return 1."""
    infinite = np.isinf(z)
    if type(z) is not DeviceArray and not infinite.any():  # it would wait for a device
        return np.ones_like(z)
    return np.where(infinite, np.maximum(ties(x, z, axis), 1.0), 1.0)


logsumexp.extra(infinities)


@logsumexp.partial("x")
def _(z, x, infinities):
    # equal infinities must not be subtracted; finite elements are, for second derivatives
    infinite = (x == z) & (ew.absolute(x) == INFINITY)
    return where(infinite, 1.0 / infinities, ew.exp(where(infinite, 0.0, x - z)))


def _euclidean_norm(x, axis, keepdims):
    x = np.abs(x)
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    return np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))


@internal
@reduction(_euclidean_norm)
def euclidean_norm(x, axis=None, *, keepdims=False):
    """Square root of the sum of squares; at 0 the derivatives of every order are 0."""


@euclidean_norm.partial("x")
def _(z, x):
    return where(z == 0.0, 0.0, x / where(z == 0.0, 1.0, z))


def _max(x, axis, keepdims):
    return np.maximum.reduce(x, axis=axis, keepdims=keepdims)


@public(method=True)
@reduction(_max, real=True, chooses=True)
def max(x, axis=None, *, keepdims=False):
    """Largest element; equal elements share the cotangent."""


def _min(x, axis, keepdims):
    return np.minimum.reduce(x, axis=axis, keepdims=keepdims)


@public(method=True)
@reduction(_min, real=True, chooses=True)
def min(x, axis=None, *, keepdims=False):
    """Smallest element; equal elements share the cotangent."""


for _op in (max, min):
    _op.extra(ties)

    @_op.partial("x")
    def _(z, x, ties):
        return where((x == z) | (x != x), 1.0 / ties, 0.0)


# -- composites -----------------------------------------------------------------------------------


@public(method=True)
@composite
def mean(x, axis=None, *, keepdims=False):
    """Mean over axes."""
    shape = shape_of(x)
    count = math.prod(shape[a] for a in normalize_axes(axis, len(shape)))
    total = sum(x, axis=axis, keepdims=keepdims)
    if count == 0:
        return total * math.nan  # as in NumPy, but without its warning
    return total / count


@public(method=True)
@composite
def var(x, axis=None, *, ddof=0, keepdims=False, correction=None):
    """Variance over axes: the sum of squares divided by (number of elements - ddof)."""
    return _centred_moment(
        x, axis, ddof if correction is None else correction, keepdims, square=True
    )


@public(method=True)
@composite
def std(x, axis=None, *, ddof=0, keepdims=False, correction=None):
    """Standard deviation over axes; where it is 0, the derivative is 0."""
    return _centred_moment(
        x, axis, ddof if correction is None else correction, keepdims, square=False
    )


def _centred_moment(x: Any, axis: Any, ddof: float, keepdims: bool, square: bool) -> Any:
    shape = shape_of(x)
    free = math.prod(shape[a] for a in normalize_axes(axis, len(shape))) - ddof
    centred = x - mean(x, axis=axis, keepdims=True)
    if square:
        size = ew.absolute(centred) if is_complex(x) else centred
        total = sum(ew.square(size), axis=axis, keepdims=keepdims)
    else:
        total = euclidean_norm(centred, axis=axis, keepdims=keepdims)
    if free > 0:
        return total / (free if square else math.sqrt(free))
    with np.errstate(invalid="ignore"):  # no degrees of freedom: inf, or nan for 0 / 0
        return total * math.inf


@composite
def amax(x, axis=None, *, keepdims=False):
    """Largest element (another name of `max`)."""
    return max(x, axis=axis, keepdims=keepdims)


@composite
def amin(x, axis=None, *, keepdims=False):
    """Smallest element (another name of `min`)."""
    return min(x, axis=axis, keepdims=keepdims)


@public(method=True)
@composite
def ptp(x, axis=None, *, keepdims=False):
    """Difference between the largest and the smallest element."""
    return max(x, axis=axis, keepdims=keepdims) - min(x, axis=axis, keepdims=keepdims)
