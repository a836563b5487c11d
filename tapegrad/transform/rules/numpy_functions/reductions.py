"""Reductions and cumulative sums and products.

Equal largest or smallest elements share the derivative. The derivative of a norm or a standard
deviation that is 0 is taken as 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapegrad.kernels.intrinsics import index
from tapegrad.transform.cache.machine_code import inlined, jit
from tapegrad.transform.extremes import flat_view
from tapegrad.transform.rules.array_specs import (
    Request,
    addition,
    declare,
    derivative,
    partial,
    short_derivative,
    understands,
)
from tapegrad.transform.rules.numpy_functions.additions import (
    add_along,
    add_cumulated,
    add_cumulated_along,
)

for _name in ("sum", "cumsum"):
    for _axis, _value in (((), ""), (("axis",), f"np.{_name}(x, axis)")):
        declare(
            *("_".join([_name, *_axis]), "x", *_axis),
            calls=False,
            holomorphic=True,
            linear=("x",),
            value=_value,
        )
declare("mean", "x", calls=False, holomorphic=True, linear=("x",))
declare("prod", "x", calls=False, holomorphic=True)
declare("max", "x", calls=False, chooses=True)
declare("min", "x", calls=False, chooses=True, like="max")
declare("ptp", "a", chooses=True)
declare("var", "x", calls=False)
declare("std", "x", calls=False)
declare("average", "x", "weights", calls=False)
declare("trace", "a", chooses=True, holomorphic=True, linear=("a",))
declare("cumprod", "x", calls=False, holomorphic=True)


@understands("sum")
def _(call: Request, a: Any, axis: Any, dtype: Any) -> Any:
    if not call.ndim(a):
        return call.linear(a)
    if axis is None or not call.is_whole:  # there is one axis only
        return call.whole("sum", x=a)
    return call.whole("sum_axis", x=a, axis=axis)


@understands("mean", "prod", "max", "amax", "min", "amin", "nanmax", "nanmin")
def _(call: Request, a: Any) -> Any:
    if not call.ndim(a):
        return call.linear(a)
    return call.whole({"amax": "max", "amin": "min"}.get(call.text, call.text), x=a)


@understands("var", "std")
def _(call: Request, a: Any) -> Any:
    return call.whole(call.text, x=a) if call.ndim(a) else None


@understands("average")
def _(call: Request, a: Any, axis: Any, weights: Any) -> Any:
    if not call.ndim(a) or axis is not None:
        return None
    if weights is None:
        return call.whole("mean", x=a)
    return call.whole("average", x=a, weights=weights)


@understands("cumsum", "cumprod")
def _(call: Request, a: Any, axis: Any) -> Any:
    if not call.ndim(a):
        return None
    if axis is None or call.ndim(a) == 1:
        return call.whole(call.text, x=a)
    return call.whole("cumsum_axis", x=a, axis=axis) if call.text == "cumsum" else None


@derivative
def sum_vjp_x(x_bar, g):
    x_bar += g


@derivative
def sum_axis_vjp_x(x_bar, axis, g):
    add_along(x_bar, axis, g)


@derivative
def mean_vjp_x(x_bar, g):
    x_bar += g / max(x_bar.size, 1)


@jit
def products_of_others(flat):
    """Return, for each element, the product of all others."""
    gains = np.empty_like(flat)
    before = 1.0
    for k in range(flat.size):
        gains[k] = before
        before *= flat[k]
    after = 1.0
    for k in range(flat.size - 1, -1, -1):
        gains[k] *= after
        after *= flat[k]
    return gains


@jit
def tangent_of_product(flat, tangents):
    """Return the tangent of the product of all elements."""
    product = 1.0
    found = 0.0
    for k in range(flat.size):
        found = found * flat[k] + product * tangents[k]
        product *= flat[k]
    return found


@derivative
def prod_vjp_x(x, x_bar, g):
    x_bar += g * products_of_others(x.flatten()).reshape(x.shape)


@derivative
def prod_jvp_x(x, x_dot):
    return tangent_of_product(x.flatten(), x_dot.flatten())


@inlined
def hits(x, z, with_nan=True):
    """Return which elements equal the extreme z, or are nan; the extreme is nan where one is."""
    return (x == z) | (with_nan & (x != x))


@inlined
def add_to_extremes_of_vector(x, x_bar, z, g, with_nan=True):
    """Add to the elements of a vector that are the extreme, without arrays.

    Return the first and the end of the indices among which they are.
    """
    count = 0
    first = x.size
    end = 0
    for start in range(0, x.size, 256):  # without branches in the inner loop
        stop = min(start + 256, x.size)
        own = 0
        for k in range(start, stop):
            own += hits(x[index(k)], z, with_nan)
        if own > 0:
            count += own
            first = min(first, start)
            end = stop
    if count == 1:
        last = first
        for k in range(first, end):
            if hits(x[index(k)], z, with_nan):
                last = k
        x_bar[last] += g
        return last, last + 1
    for k in range(first, end):
        if hits(x[index(k)], z, with_nan):
            x_bar[index(k)] += g / count
    return first, end


@addition
def add_to_extremes(x_bar, x, z, with_nan, g):
    """Add equal parts of a cotangent to those of the elements of an array that are the extreme."""
    in_rows = x.flags.c_contiguous and x_bar.flags.c_contiguous
    in_columns = x.flags.f_contiguous and x_bar.flags.f_contiguous
    if in_rows or in_columns:
        add_to_extremes_of_vector(flat_view(x), flat_view(x_bar), z, g, with_nan)
    else:
        count = 0
        for value in x.flat:
            count += hits(value, z, with_nan)
        for at, value in np.ndenumerate(x):
            if hits(value, z, with_nan):
                x_bar[at] += g / count


@short_derivative
def max_vjp_x(x, x_bar, z, g):
    if x.ndim == 1:
        add_to_extremes_of_vector(x, x_bar, z, g)
    else:
        add_to_extremes(x_bar, x, z, True, g)


@derivative
def max_jvp_x(x, x_dot, z):
    chosen = hits(x, z)
    return np.sum(np.where(chosen, x_dot, 0.0)) / np.sum(chosen)


@derivative
def ptp_vjp_a(a, a_bar, g):
    add_to_extremes(a_bar, a, np.max(a), True, g)
    add_to_extremes(a_bar, a, np.min(a), True, -g)


@derivative
def ptp_jvp_a(a, a_dot):
    highest = hits(a, np.max(a))
    lowest = hits(a, np.min(a))
    above = np.sum(np.where(highest, a_dot, 0.0)) / np.sum(highest)
    return above - np.sum(np.where(lowest, a_dot, 0.0)) / np.sum(lowest)


@derivative
def var_vjp_x(x, x_bar, g):
    x_bar += (2.0 * g / max(x.size, 1)) * (x - np.mean(x))


@derivative
def var_jvp_x(x, x_dot):
    return 2.0 * np.mean((x - np.mean(x)) * x_dot)


@derivative
def std_vjp_x(x, x_bar, z, g):
    # the mean of equal values is rounded, so their deviation may be slightly above 0
    if x.size and np.max(x) - np.min(x) != 0.0:
        x_bar += (g / (x.size * z)) * (x - np.mean(x))


@derivative
def std_jvp_x(x, x_dot, z):
    found = 0.0
    if x.size and np.max(x) - np.min(x) != 0.0:
        found = np.mean((x - np.mean(x)) * x_dot) / z
    return found


@derivative
def average_vjp_x(x_bar, weights, g):
    x_bar += (g / np.sum(weights)) * weights


@derivative
def average_vjp_weights(x, weights, weights_bar, z, g):
    weights_bar += (g / np.sum(weights)) * (x - z)


@derivative
def average_jvp_x(x_dot, weights):
    return np.sum(weights * x_dot) / np.sum(weights)


@derivative
def average_jvp_weights(x, weights, weights_dot, z):
    return np.sum((x - z) * weights_dot) / np.sum(weights)


@derivative
def trace_vjp_a(a_bar, g):
    for k in range(min(a_bar.shape[0], a_bar.shape[1])):
        a_bar[k, k] += g


# -- cumulative ------------------------------------------------------------------------------------


@derivative
def cumsum_vjp_x(x_bar, g):
    add_cumulated(x_bar, g)


@derivative
def cumsum_axis_vjp_x(x_bar, axis, g):
    add_cumulated_along(x_bar, axis, g)


@jit
def gains_of_products(flat, g):
    """Return the cotangents of the elements of a cumulative product, without a division."""
    gains = np.empty_like(flat)
    before = 1.0
    for k in range(flat.size):
        gains[k] = before
        before *= flat[k]
    after = 0.0
    for k in range(flat.size - 1, -1, -1):
        after += g[k]
        gains[k] *= after
        after *= flat[k]
    return gains


@derivative
def cumprod_vjp_x(x, x_bar, g):
    x_bar += gains_of_products(x.flatten(), g).reshape(x.shape)


@jit
def tangents_of_products(flat, tangents):
    """Return the tangents of the cumulated products."""
    found = np.empty_like(flat)
    product = 1.0
    total = 0.0
    for k in range(flat.size):
        total = total * flat[k] + product * tangents[k]
        product *= flat[k]
        found[k] = total
    return found


@derivative
def cumprod_jvp_x(x, x_dot):
    return tangents_of_products(x.flatten(), x_dot.flatten())


# -- ignoring nan ---------------------------------------------------------------------------------

for _name in ("nansum", "nanmean", "nanvar", "nanstd", "nanprod", "nancumsum", "nancumprod"):
    declare(_name, "a", chooses=True)
declare("nanmax", "x", calls=False, chooses=True)
declare("nanmin", "x", calls=False, chooses=True, like="nanmax")


@derivative
def nansum_vjp_a(a, a_bar, g):
    a_bar += np.where(np.isnan(a), 0.0, g)


@derivative
def nansum_jvp_a(a, a_dot):
    return np.sum(np.where(np.isnan(a), 0.0, a_dot))


@derivative
def nanmean_vjp_a(a, a_bar, g):
    there = ~np.isnan(a)
    a_bar += np.where(there, g / np.sum(there), 0.0)


@derivative
def nanmean_jvp_a(a, a_dot):
    there = ~np.isnan(a)
    return np.sum(np.where(there, a_dot, 0.0)) / np.sum(there)


@jit
def known(a):
    """Return the number of elements that are not nan, at least 1."""
    return max(np.sum(~np.isnan(a)), 1)


@jit
def centred(a):
    """Return the differences from the mean, 0 where an element is nan."""
    return np.where(np.isnan(a), 0.0, a - np.nanmean(a))


@partial
def nanvar_partial_a(a):
    return (2.0 / known(a)) * centred(a)


@partial
def nanstd_partial_a(a, z):
    low, high = np.nanmin(a), np.nanmax(a)
    if high - low == 0.0 or low != low:  # equal numbers, or none, are known
        return np.zeros(a.shape)  # of the type of the other result
    return centred(a) / (known(a) * z)


@derivative
def nanprod_vjp_a(a, a_bar, g):
    gains = products_of_others(np.where(np.isnan(a), 1.0, a).flatten())
    a_bar += np.where(np.isnan(a), 0.0, g * gains.reshape(a.shape))


@derivative
def nanprod_jvp_a(a, a_dot):
    known = np.where(np.isnan(a), 1.0, a).flatten()
    return tangent_of_product(known, np.where(np.isnan(a), 0.0, a_dot).flatten())


@short_derivative
def nanmax_vjp_x(x, x_bar, z, g):
    if x.ndim == 1:
        add_to_extremes_of_vector(x, x_bar, z, g, False)
    else:
        add_to_extremes(x_bar, x, z, False, g)


@derivative
def nanmax_jvp_x(x, x_dot, z):
    chosen = x == z
    return np.sum(np.where(chosen, x_dot, 0.0)) / np.sum(chosen)


@derivative
def nancumsum_vjp_a(a, a_bar, g):
    total = np.zeros_like(a_bar)
    add_cumulated(total, g)
    a_bar += np.where(np.isnan(a), 0.0, total)


@derivative
def nancumsum_jvp_a(a, a_dot):
    return np.cumsum(np.where(np.isnan(a), 0.0, a_dot))


@derivative
def nancumprod_vjp_a(a, a_bar, g):
    known = np.where(np.isnan(a), 1.0, a)
    gains = gains_of_products(known.flatten(), g).reshape(a.shape)
    a_bar += np.where(np.isnan(a), 0.0, gains)


@derivative
def nancumprod_jvp_a(a, a_dot):
    known = np.where(np.isnan(a), 1.0, a).flatten()
    return tangents_of_products(known, np.where(np.isnan(a), 0.0, a_dot).flatten())


# -- norms -----------------------------------------------------------------------------------------

declare("norm", "x", calls=False)
declare("norm_1", "x", calls=False)
declare("norm_p", "x", "ord", calls=False)
declare("norm_extreme", "x", "ord", calls=False, chooses=True)
declare("norm_lines", "x", "ord", calls=False)
declare("norm_spectral", "x", "ord", calls=False)


@understands("norm")
def _(call: Request, x: Any, ord: Any) -> Any:
    power = call.constant(ord)
    ndim = call.ndim(x)
    if not ndim:
        return None
    if power is None or (ndim == 1 and power == 2) or power == "fro":
        return call.whole("norm", x=x)
    if not isinstance(power, (int, float)):
        return "np.linalg.norm with this `ord`; write it as a number"
    if ndim == 2:
        if power in (1, -1, math.inf, -math.inf):
            return call.whole("norm_lines", x=x, ord=ord)
        return call.whole("norm_spectral", x=x, ord=ord) if power in (2, -2) else None
    if power == 0:
        return None
    if abs(power) == math.inf:
        return call.whole("norm_extreme", x=x, ord=ord)
    return call.whole("norm_1", x=x) if power == 1 else call.whole("norm_p", x=x, ord=ord)


@derivative
def norm_vjp_x(x, x_bar, z, g):
    if z != 0.0:
        x_bar += (g / z) * x


@derivative
def norm_jvp_x(x, x_dot, z):
    found = 0.0
    if z != 0.0:
        found = np.sum(x * x_dot) / z
    return found


@derivative
def norm_1_vjp_x(x, x_bar, g):
    x_bar += g * np.sign(x)


@derivative
def norm_1_jvp_x(x, x_dot):
    return np.sum(np.sign(x) * x_dot)


@partial
def norm_p_partial_x(x, ord, z):
    found = np.zeros_like(x)
    for k in range(x.size):
        if x[k] != 0.0 and z != 0.0:
            found[k] = np.sign(x[k]) * (abs(x[k]) / z) ** (ord - 1.0)
    return found


@derivative
def norm_extreme_vjp_x(x, x_bar, z, g):
    chosen = np.abs(x) == z
    x_bar += np.where(chosen, g / np.sum(chosen), 0.0) * np.sign(x)


@derivative
def norm_extreme_jvp_x(x, x_dot, z):
    chosen = np.abs(x) == z
    return np.sum(np.where(chosen, np.sign(x) * x_dot, 0.0)) / np.sum(chosen)


@partial
def norm_lines_partial_x(x, ord):
    sums = np.sum(np.abs(x), 0 if abs(ord) == 1 else 1)
    chosen = sums == (np.max(sums) if ord > 0 else np.min(sums))
    weights = np.where(chosen, 1.0 / np.sum(chosen), 0.0)
    found = np.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            found[i, j] = weights[j if abs(ord) == 1 else i] * np.sign(x[i, j])
    return found


@partial
def norm_spectral_partial_x(x, ord):
    u, s, vt = np.linalg.svd(x, False)
    chosen = s == (s[0] if ord > 0 else s[-1])
    weights = np.where(chosen, 1.0 / np.sum(chosen), 0.0)  # equal singular values share it
    found = np.zeros_like(x)
    for k in range(s.size):
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                found[i, j] += weights[k] * u[i, k] * vt[k, j]
    return found
