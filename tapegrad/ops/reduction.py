"""Reductions over axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, as_array
from tapegrad.kernels.functions import slopes
from tapegrad.ops import elementwise as ew
from tapegrad.ops.piecewise import INFINITY, where
from tapegrad.ops.table.array_kinds import opaque
from tapegrad.ops.table.batching import shifted_axes
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.kinds import elementwise, reduction
from tapegrad.ops.table.op import (
    Fact,
    internal,
    is_complex,
    known,
    normalize_axes,
    public,
    shape_of,
)

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
    kept, axes = _kept(x, z, axis)
    if type(x) is DeviceArray:
        return x.sum_of(_is_tie, kept, axes, counts=True).astype(z.dtype).reshape(z.shape)
    chosen = x == kept
    if np.isnan(kept).any():
        chosen |= x != x
    count = np.count_nonzero(chosen, axis=axes)
    return as_array(count).astype(z.dtype).reshape(z.shape)


def _kept(x, z, axis):
    """Return a reduced value that is broadcast with the elements, and the axes of the reduction."""
    if axis is None or x.ndim == 0:
        return np.reshape(z, ()), None
    axes = normalize_axes(axis, x.ndim)
    return np.reshape(z, tuple(1 if k in axes else dim for k, dim in enumerate(x.shape))), axes


def _is_tie(x, z):
    return (x == z) | ((x != x) & (z != z))


def _exp_of_difference(x, y):
    x, y = np.broadcast_arrays(x, y)
    return np.exp(np.where(x == y, np.zeros((), x.dtype), x - y))


@internal
@elementwise(complex_function=_exp_of_difference, facts=Fact.VANISHING)
def exp_of_difference(x, y):
    """exp(x - y) of the difference without rounding; 1, as a constant, for equal infinities."""
    return slopes.exp_of_difference(x, y)


@exp_of_difference.partials
def _(z, x):
    slope = where(ew.absolute(x) == INFINITY, 0.0, z)
    return slope, -slope


def are_small_exponents(x):
    """Whether rounding numbers changes their exponentials by a few ulp only, as far as is known."""
    values = known(x)  # those on a device would have to be waited for
    return values is not None and bool((np.abs(values) < 16.0).all())


def sum_of_shares(x, z, axis):
    """Sum exp(x - z), which is 1 but for the rounding of a large z; 1 for each equal infinity."""
    if are_small_exponents(z):
        return np.ones_like(z)
    kept, axes = _kept(x, z, axis)
    if type(x) is DeviceArray:
        return x.sum_of(_term, kept, axes).reshape(z.shape)
    with np.errstate(invalid="ignore"):
        total = np.sum(exp_of_difference(x, kept), axis=axes)
    return as_array(total).astype(z.dtype).reshape(z.shape)


logsumexp.extra(sum_of_shares)


@logsumexp.partial("x")
def _(z, x, sum_of_shares):
    return exp_of_difference(x, z) / sum_of_shares


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


def _finite_max(x, axis=None, keepdims=False):
    found = _max(x, axis, keepdims)
    return np.where(np.isfinite(found), found, np.zeros((), found.dtype))


@internal
@opaque(_finite_max, arrays=1)
def finite_max(x, axis=None, keepdims=False):
    """Largest element, 0 in place of one that is not finite, as a constant."""


@finite_max.batching
def _(x, axis, keepdims):
    return finite_max(x, shifted_axes(axis, x), keepdims)


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
