"""Derivatives of reductions, and of functions that make arrays from numbers."""

from __future__ import annotations

import numpy as np

from tapegrad.transform.array_specs import declare, derivative

declare("sum", "x")
declare("sum_axis", "x", "axis")
declare("mean", "x")
declare("prod", "x")
declare("max", "x")
declare("min", "x")
declare("var", "x")
declare("std", "x")
declare("norm", "x")
declare("trace", "x")
declare("cumsum", "x")
declare("flatten", "x")


@derivative
def sum_pull_x(x_bar, g):
    x_bar += g


@derivative
def sum_push_x(x_dot):
    return np.sum(x_dot)


@derivative
def sum_axis_pull_x(x_bar, axis, g):
    # g with the axis that was summed, and as long as x there
    for index in np.ndindex(x_bar.shape):
        flat = 0
        for k in range(x_bar.ndim):
            if k != axis % x_bar.ndim:
                flat = flat * x_bar.shape[k] + index[k]
        x_bar[index] += g.flat[flat]


@derivative
def sum_axis_push_x(x_dot, axis):
    return np.sum(x_dot, axis)


@derivative
def mean_pull_x(x_bar, g):
    x_bar += g / x_bar.size


@derivative
def mean_push_x(x_dot):
    return np.mean(x_dot)


@derivative
def prod_pull_x(x, x_bar, g):
    flat = x.copy().reshape(-1)
    gains = np.empty_like(flat)
    before = 1.0
    for k in range(flat.size):
        gains[k] = before
        before *= flat[k]
    after = 1.0
    for k in range(flat.size - 1, -1, -1):
        gains[k] *= after
        after *= flat[k]
    x_bar += g * gains.reshape(x.shape)


@derivative
def prod_push_x(x, x_dot):
    flat = x.copy().reshape(-1)
    tangents = x_dot.copy().reshape(-1)
    product = 1.0
    found = 0.0
    for k in range(flat.size):
        found = found * flat[k] + product * tangents[k]
        product *= flat[k]
    return found


@derivative
def max_pull_x(x, x_bar, z, g):
    hits = x == z
    x_bar += np.where(hits, g / np.sum(hits), 0.0)


@derivative
def max_push_x(x, x_dot, z):
    hits = x == z
    return np.sum(np.where(hits, x_dot, 0.0)) / np.sum(hits)


@derivative
def min_pull_x(x, x_bar, z, g):
    hits = x == z
    x_bar += np.where(hits, g / np.sum(hits), 0.0)


@derivative
def min_push_x(x, x_dot, z):
    hits = x == z
    return np.sum(np.where(hits, x_dot, 0.0)) / np.sum(hits)


@derivative
def var_pull_x(x, x_bar, g):
    x_bar += (2.0 * g / x.size) * (x - np.mean(x))


@derivative
def var_push_x(x, x_dot):
    return 2.0 * np.mean((x - np.mean(x)) * x_dot)


@derivative
def std_pull_x(x, x_bar, z, g):
    x_bar += (g / (x.size * z)) * (x - np.mean(x))


@derivative
def std_push_x(x, x_dot, z):
    return np.mean((x - np.mean(x)) * x_dot) / z


@derivative
def norm_pull_x(x, x_bar, z, g):
    if z != 0.0:
        x_bar += (g / z) * x


@derivative
def norm_push_x(x, x_dot, z):
    return np.sum(x * x_dot) / z if z != 0.0 else 0.0


@derivative
def trace_pull_x(x_bar, g):
    for k in range(min(x_bar.shape[0], x_bar.shape[1])):
        x_bar[k, k] += g


@derivative
def trace_push_x(x_dot):
    return np.trace(x_dot)


@derivative
def cumsum_pull_x(x_bar, g):
    total = 0.0
    for k in range(g.size - 1, -1, -1):
        total += g[k]
        x_bar[k] += total


@derivative
def cumsum_push_x(x_dot):
    return np.cumsum(x_dot)


@derivative
def flatten_pull_x(x_bar, g):
    x_bar += g.reshape(x_bar.shape)


@derivative
def flatten_push_x(x_dot):
    return x_dot.flatten()


# -- arrays from numbers -------------------------------------------------------------------------

declare("full", "shape", "fill_value")
declare("full_like", "like", "fill_value")
declare("linspace", "start", "stop", "num")
declare("diag", "x")


@derivative
def full_pull_fill_value(g):
    return np.sum(g)


@derivative
def full_push_fill_value(shape, fill_value_dot):
    return np.full(shape, fill_value_dot)


@derivative
def full_like_pull_fill_value(g):
    return np.sum(g)


@derivative
def full_like_push_fill_value(like, fill_value_dot):
    return np.full_like(like, fill_value_dot)


@derivative
def linspace_pull_start(g):
    n = g.size
    found = 0.0
    for k in range(n):
        found += g[k] * (1.0 - k / (n - 1.0) if n > 1 else 1.0)
    return found


@derivative
def linspace_pull_stop(g):
    n = g.size
    found = 0.0
    for k in range(n):
        found += g[k] * (k / (n - 1.0) if n > 1 else 0.0)
    return found


@derivative
def linspace_push_start(start_dot, num):
    return np.linspace(start_dot, 0.0, num)


@derivative
def linspace_push_stop(stop_dot, num):
    return np.linspace(0.0, stop_dot, num)


@derivative
def diag_pull_x(x_bar, g):
    if x_bar.ndim == 1:
        for k in range(x_bar.size):
            x_bar[k] += g[k, k]
    else:
        for k in range(g.size):
            x_bar[k, k] += g[k]


@derivative
def diag_push_x(x_dot):
    return np.diag(x_dot)
