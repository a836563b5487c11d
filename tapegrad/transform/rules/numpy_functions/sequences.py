"""Functions of sequences: interpolation, differences, integrals, convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import Request, addition, declare, derivative, understands

for _rank in ("0", "1"):
    declare(
        *(f"interp_{_rank}", "x", "xp", "fp"),
        calls=False,
        chooses=True,
        linear=("fp",),
        value="np.interp(x, xp, fp)",
    )
declare("diff", "a", "n", linear=("a",))
declare("ediff1d", "ary", calls=False, linear=("ary",))
declare(*("trapezoid", "y", "dx"), calls=False, linear=("y", "dx"), value="dx * np.trapezoid(y)")
declare(*("trapezoid_of", "y", "x"), calls=False, linear=("y", "x"), value="np.trapezoid(y, x)")
declare("convolve", "a", "v", calls=False)
declare("correlate", "a", "v", calls=False)
declare("vander", "x", "N", "increasing")
declare("unwrap", "p", calls=False, linear=("p",), value="p.copy()")
declare("bincount", "x", "weights", "minlength")
declare("logspace", "start", "stop", "num")
declare("geomspace", "start", "stop", "num")


# -- interpolation ---------------------------------------------------------------------------------


@understands("interp")
def _(call: Request, x: Any, xp: Any, fp: Any) -> Any:
    return call.whole(f"interp_{call.ndim(x)}", x=x, xp=xp, fp=fp) if call.ndim(x) < 2 else None


@jit
def segment(x, xp):
    """Return the index of the last knot at or left of x, -1 if there is none."""
    return np.searchsorted(xp, x, side="right") - 1


@jit
def slope_at(x, xp, fp):
    """Return the slope of the interpolant at x; at a knot, the slope to the right of it."""
    k = segment(x, xp)
    found = 0.0
    if k >= 0 and k < xp.size - 1:
        # differences of unsigned integers wrap
        found = (float(fp[k + 1]) - float(fp[k])) / (xp[k + 1] - xp[k])
    return found


@jit
def add_to_knots(x, xp, xp_bar, fp, g):
    """Add the cotangent of an interpolated value to those of the knot positions."""
    k = segment(x, xp)
    if k >= 0 and k < xp.size - 1:
        slope = (float(fp[k + 1]) - float(fp[k])) / (xp[k + 1] - xp[k])
        part = (x - xp[k]) / (xp[k + 1] - xp[k])
        xp_bar[k] -= g * slope * (1.0 - part)
        xp_bar[k + 1] -= g * slope * part


@jit
def add_to_values(x, xp, fp_bar, g):
    """Add the cotangent of an interpolated value to those of the knot values."""
    k = segment(x, xp)
    if k < 0:
        fp_bar[0] += g
    elif k >= xp.size - 1:
        fp_bar[xp.size - 1] += g
    else:
        part = (x - xp[k]) / (xp[k + 1] - xp[k])
        fp_bar[k] += g * (1.0 - part)
        fp_bar[k + 1] += g * part


@jit
def tangent_of_knots(x, xp, xp_dot, fp):
    """Return the tangent of an interpolated value from those of the knot positions."""
    k = segment(x, xp)
    found = 0.0
    if k >= 0 and k < xp.size - 1:
        slope = (float(fp[k + 1]) - float(fp[k])) / (xp[k + 1] - xp[k])
        part = (x - xp[k]) / (xp[k + 1] - xp[k])
        found = -slope * (xp_dot[k] * (1.0 - part) + xp_dot[k + 1] * part)
    return found


@derivative
def interp_0_vjp_x(x, xp, fp, g):
    return g * slope_at(x, xp, fp)


@derivative
def interp_0_vjp_xp(x, xp, xp_bar, fp, g):
    add_to_knots(x, xp, xp_bar, fp, g)


@derivative
def interp_0_vjp_fp(x, xp, fp_bar, g):
    add_to_values(x, xp, fp_bar, g)


@derivative
def interp_0_jvp_x(x, x_dot, xp, fp):
    return x_dot * slope_at(x, xp, fp)


@derivative
def interp_0_jvp_xp(x, xp, xp_dot, fp):
    return tangent_of_knots(x, xp, xp_dot, fp)


@derivative
def interp_1_vjp_x(x, x_bar, xp, fp, g):
    for i in range(x.size):
        x_bar[i] += g[i] * slope_at(x[i], xp, fp)


@derivative
def interp_1_vjp_xp(x, xp, xp_bar, fp, g):
    for i in range(x.size):
        add_to_knots(x[i], xp, xp_bar, fp, g[i])


@derivative
def interp_1_vjp_fp(x, xp, fp_bar, g):
    for i in range(x.size):
        add_to_values(x[i], xp, fp_bar, g[i])


@derivative
def interp_1_jvp_x(x, x_dot, xp, fp, z):
    found = np.empty_like(z)
    for i in range(x.size):
        found[i] = x_dot[i] * slope_at(x[i], xp, fp)
    return found


@derivative
def interp_1_jvp_xp(x, xp, xp_dot, fp, z):
    found = np.empty_like(z)
    for i in range(x.size):
        found[i] = tangent_of_knots(x[i], xp, xp_dot, fp)
    return found


# -- differences and integrals ---------------------------------------------------------------------


@addition
def add_differences(bar, n, g):
    """Add the cotangents of nth differences along the last axis."""
    if bar.size and g.size:  # there may be no differences of this order
        size = bar.shape[-1]
        total = np.zeros(bar.size, bar.dtype)
        flat = g.flatten()
        inner = g.shape[-1]
        row = np.zeros(size, bar.dtype)
        for start in range(0, bar.size, size):
            row[:] = 0.0
            for k in range(inner):
                row[k] = flat[start // size * inner + k]
            for turn in range(n):
                for k in range(inner + turn, -1, -1):
                    row[k] = (row[k - 1] if k else 0.0) - (row[k] if k < inner + turn else 0.0)
            for k in range(size):
                total[start + k] = row[k]
        bar += total.reshape(bar.shape)


@derivative
def diff_vjp_a(a_bar, n, g):
    add_differences(a_bar, n, g)


@understands("diff")
def _(call: Request, a: Any, n: Any) -> Any:
    return call.whole("diff", a=a, n=n if n is not None else call.number(1))


@understands("ediff1d")
def _(call: Request, ary: Any) -> Any:
    return call.whole("ediff1d") if call.ndim(ary) else None


@derivative
def ediff1d_vjp_ary(ary_bar, g):
    add_flat_differences(ary_bar, g)


@addition
def add_flat_differences(bar, g):
    """Add the cotangents of differences of neighbouring elements in row-major order."""
    total = np.zeros(bar.size, bar.dtype)
    for k in range(bar.size - 1):
        total[k + 1] += g[k]
        total[k] -= g[k]
    bar += total.reshape(bar.shape)


@understands("trapezoid", "trapz")  # trapz before NumPy 2.0
def _(call: Request, y: Any, x: Any, dx: Any) -> Any:
    if call.ndim(y) != 1 or call.ndim(dx) or (x is not None and call.ndim(x) != 1):
        return None
    if x is None:
        return call.whole("trapezoid", y=y, dx=dx if dx is not None else call.number(1.0))
    return call.whole("trapezoid_of", y=y, x=x)


@derivative
def trapezoid_vjp_y(y_bar, dx, g):
    for k in range(y_bar.size - 1):
        y_bar[k] += 0.5 * g * dx
        y_bar[k + 1] += 0.5 * g * dx


@derivative
def trapezoid_vjp_dx(y, g):
    return g * np.trapezoid(y)


@jit
def pieces(steps, means):
    """Return how many trapezoids there are; one step, or one mean, is used for all."""
    return max(steps, means) if min(steps, means) > 0 else 0


@derivative
def trapezoid_of_vjp_y(y_bar, x, g):
    steps = np.diff(x)  # of the same type as in np.trapezoid
    size = y_bar.size - 1
    for k in range(pieces(steps.size, size)):
        half = 0.5 * g * steps[k if steps.size > 1 else 0]
        j = k if size > 1 else 0
        y_bar[j] += half
        y_bar[j + 1] += half


@derivative
def trapezoid_of_vjp_x(y, x_bar, g):
    size = x_bar.size - 1
    for k in range(pieces(size, y.size - 1)):
        i = k if y.size > 2 else 0
        middle = 0.5 * g * (y[i] + y[i + 1])
        j = k if size > 1 else 0
        x_bar[j] -= middle
        x_bar[j + 1] += middle


# -- convolutions ----------------------------------------------------------------------------------


@understands("convolve", "correlate")
def _(call: Request, a: Any, v: Any, mode: Any) -> Any:
    return call.whole(call.text, a=a, v=v)


@jit
def first_of(n, m, size):
    """Return where a result of some size starts in the full convolution of n and m elements."""
    if size == n + m - 1:
        return 0
    return (min(n, m) - 1) // 2 if size == max(n, m) else min(n, m) - 1


@jit
def first_of_correlation(n, m, size):
    """Return where a correlation starts in the full convolution with v reversed."""
    if size == n + m - 1:
        return 0
    if size < max(n, m):
        return min(n, m) - 1
    return (m - 1) // 2 if n >= m else n - 1 - (n - 1) // 2


@jit
def add_convolved(bar, other, first, g):
    """Add to the cotangent of one factor of a part of a convolution."""
    for k in range(bar.size):
        for j in range(other.size):
            if k + j - first >= 0 and k + j - first < g.size:
                bar[k] += g[k + j - first] * other[j]


@derivative
def convolve_vjp_a(a_bar, v, g):
    add_convolved(a_bar, v, first_of(a_bar.size, v.size, g.size), g)


@derivative
def convolve_vjp_v(a, v_bar, g):
    add_convolved(v_bar, a, first_of(a.size, v_bar.size, g.size), g)


@jit
def convolved(a, v, first, z):
    """Return a part of a convolution, of the size and dtype of z."""
    size = z.size
    found = np.zeros_like(z)
    for k in range(a.size):
        for j in range(v.size):
            if k + j - first >= 0 and k + j - first < size:
                found[k + j - first] += a[k] * v[j]
    return found


@derivative
def convolve_jvp_a(a_dot, v, z):
    return convolved(a_dot, v, first_of(a_dot.size, v.size, z.size), z)


@derivative
def convolve_jvp_v(a, v_dot, z):
    return convolved(a, v_dot, first_of(a.size, v_dot.size, z.size), z)


@derivative
def correlate_vjp_a(a_bar, v, g):
    first = first_of_correlation(a_bar.size, v.size, g.size)
    add_convolved(a_bar, v[::-1], first, g)


@derivative
def correlate_vjp_v(a, v_bar, g):
    first = first_of_correlation(a.size, v_bar.size, g.size)
    add_convolved(v_bar[::-1], a, first, g)


@derivative
def correlate_jvp_a(a_dot, v, z):
    return convolved(a_dot, v[::-1], first_of_correlation(a_dot.size, v.size, z.size), z)


@derivative
def correlate_jvp_v(a, v_dot, z):
    first = first_of_correlation(a.size, v_dot.size, z.size)
    return convolved(a, v_dot[::-1], first, z)


# -- others ----------------------------------------------------------------------------------------


@understands("vander")
def _(call: Request, x: Any, N: Any, increasing: Any) -> Any:
    rising = increasing if increasing is not None else call.number(False)
    return call.whole("vander", x=x, N=N, increasing=rising)


@derivative
def vander_vjp_x(x, x_bar, increasing, g):
    columns = g.shape[1]
    for j in range(columns):
        power = j if increasing else columns - 1 - j
        if power > 0:
            for i in range(x.size):
                x_bar[i] += g[i, j] * power * x[i] ** (power - 1)


@derivative
def vander_jvp_x(x, x_dot, increasing, z):
    found = np.zeros_like(z)
    columns = z.shape[1]
    for j in range(columns):
        power = j if increasing else columns - 1 - j
        if power > 0:
            for i in range(x.size):
                found[i, j] = x_dot[i] * power * x[i] ** (power - 1)
    return found


@understands("unwrap")
def _(call: Request, p: Any) -> Any:
    return call.whole("unwrap")


@derivative
def unwrap_vjp_p(p_bar, g):
    p_bar += g


@derivative
def bincount_vjp_weights(x, weights_bar, g):
    for k in range(x.size):
        weights_bar[k] += g[x[k]]


@derivative
def bincount_jvp_weights(x, weights_dot, z):
    found = np.zeros_like(z)
    for k in range(x.size):
        found[x[k]] += weights_dot[k]
    return found


@jit
def slope_by_start(z, g):
    """Return the cotangent of the logarithm of the first of numbers at equal ratios."""
    found = 0.0
    for k in range(z.size):
        found += g[k] * z[k] * (1.0 - k / (z.size - 1.0) if z.size > 1 else 1.0)
    return found


@jit
def slope_by_stop(z, g):
    """Return the cotangent of the logarithm of the last of numbers at equal ratios."""
    found = 0.0
    for k in range(1, z.size):
        found += g[k] * z[k] * k / (z.size - 1.0)
    return found


@derivative
def logspace_vjp_start(z, g):
    return slope_by_start(z, g) * np.log(10.0)


@derivative
def logspace_vjp_stop(z, g):
    return slope_by_stop(z, g) * np.log(10.0)


@derivative
def logspace_jvp_start(start_dot, z):
    return z * np.linspace(np.log(10.0) * start_dot, 0.0, z.size)


@derivative
def logspace_jvp_stop(stop_dot, z):
    return z * np.linspace(0.0, np.log(10.0) * stop_dot, z.size)


@derivative
def geomspace_vjp_start(start, z, g):
    return slope_by_start(z, g) / start


@derivative
def geomspace_vjp_stop(stop, z, g):
    return slope_by_stop(z, g) / stop


@derivative
def geomspace_jvp_start(start, start_dot, z):
    return z * np.linspace(start_dot / start, 0.0, z.size)


@derivative
def geomspace_jvp_stop(stop, stop_dot, z):
    return z * np.linspace(0.0, stop_dot / stop, z.size)
