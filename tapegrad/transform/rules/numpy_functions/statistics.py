"""Covariances and correlations of the rows, or columns, of one or two arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.kinds import is_array
from tapegrad.transform.rules.array_specs import (
    VARIABLE,
    Request,
    addition,
    declare,
    derivative,
    understands,
)
from tapegrad.transform.runtime import product

declare("cov", "m", "rowvar", "ddof", calls=False)
declare("cov_pair", "m", "y", "rowvar", "ddof", calls=False)
declare("corrcoef", "x", "rowvar", calls=False)
declare("corrcoef_pair", "x", "y", "rowvar", calls=False)


@understands("cov")
def _(call: Request, m: Any, y: Any, rowvar: Any, bias: Any, ddof: Any) -> Any:
    if ddof is None:
        if (is_biased := call.constant(bias, False)) is VARIABLE:
            return None
        ddof = call.number(0 if is_biased else 1)
    return _of_rows(call, {"m": m, "y": y}, rowvar, ddof=ddof)


@understands("corrcoef")
def _(call: Request, x: Any, y: Any, rowvar: Any) -> Any:
    return _of_rows(call, {"x": x, "y": y}, rowvar)


_OF_ONE = {
    "cov": "np.cov of one vector; write np.var(x) * x.size / (x.size - 1)",
    "corrcoef": "np.corrcoef of one vector, which is 1",
}


def _of_rows(call: Request, arrays: dict[str, Any], rowvar: Any, **more: Any) -> Any:
    """Return the rule of the covariances of the rows, or columns, of one or two arrays."""
    if not all(call.ndim(a) in (1, 2) for a in arrays.values() if a is not None):
        return None
    if not is_array(call.kind) or not call.kind.ndim:
        return _OF_ONE[call.text]
    name = call.text if arrays["y"] is None else f"{call.text}_pair"
    return call.whole(name, **arrays, rowvar=rowvar or call.number(True), **more)


@jit
def is_turned(m, rowvar, is_alone):
    """Whether the variables are the columns of a matrix; one row stays one beside another array."""
    return m.ndim == 2 and not rowvar and (is_alone or m.shape[0] != 1)


@jit
def without_means(m, rowvar, is_alone):
    """Return the variables without their means, as the rows of a matrix of float64."""
    whole = np.atleast_2d(m)
    turned = is_turned(m, rowvar, is_alone)
    n = whole.shape[1] if turned else whole.shape[0]
    k = whole.shape[0] if turned else whole.shape[1]
    found = np.empty((n, k))
    for i in range(n):
        total = 0.0
        for j in range(k):
            if turned:
                found[i, j] = whole[j, i]
            else:
                found[i, j] = whole[i, j]
            total += found[i, j]
        for j in range(k):
            found[i, j] -= total / k
    return found


@jit
def joined(x, y):
    """Return the rows of two matrices as those of one."""
    n = x.shape[0]
    found = np.empty((n + y.shape[0], x.shape[1]))
    found[:n] = x
    found[n:] = y
    return found


@jit
def both_without_means(m, y, rowvar):
    """Return the variables of two arrays without their means, as the rows of a matrix."""
    return joined(without_means(m, rowvar, False), without_means(y, rowvar, False))


@addition
def add_rows(m_bar, rowvar, is_alone, rows):
    """Add the cotangents of variables to that of the array that they are from."""
    whole = np.atleast_2d(m_bar)
    turned = is_turned(m_bar, rowvar, is_alone)
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            if turned:
                whole[j, i] += rows[i, j]
            else:
                whole[i, j] += rows[i, j]


@jit
def scatter_vjp(rows, count, g):
    """Return the cotangent of rows without means from that of their covariances."""
    return np.dot(np.ascontiguousarray(g + g.T), rows) / count


@jit
def scatter_jvp(rows, tangent, count):
    """Return the tangent of the covariances of rows without means."""
    product = np.dot(rows, np.ascontiguousarray(tangent.T))
    return (product + product.T) / count


@jit
def correlation_vjp(rows, z, g):
    """Return the cotangent of rows without means from that of their correlations."""
    c = np.dot(rows, np.ascontiguousarray(rows.T))  # z[i, j] is c[i, j] / sqrt(c[i, i] * c[j, j])
    total = np.empty_like(c)
    # a constant variable has no correlations: they are nan, and no cotangents if they are unused
    for i in range(c.shape[0]):
        own = 0.0
        for j in range(c.shape[0]):
            total[i, j] = product(g[i, j], 1.0 / np.sqrt(c[i, i] * c[j, j]))
            own += product(g[i, j] + g[j, i], z[i, j])
        total[i, i] -= 0.5 * product(own, 1.0 / c[i, i])
    return scatter_vjp(rows, 1.0, total)


@jit
def correlation_jvp(rows, tangent, z):
    """Return the tangent of the correlations of rows without means."""
    c = np.dot(rows, np.ascontiguousarray(rows.T))
    c_dot = scatter_jvp(rows, tangent, 1.0)
    found = np.empty_like(c)
    for i in range(c.shape[0]):
        for j in range(c.shape[0]):
            size = np.sqrt(c[i, i] * c[j, j])
            share = c_dot[i, i] / c[i, i] + c_dot[j, j] / c[j, j]
            found[i, j] = c_dot[i, j] / size - 0.5 * z[i, j] * share
    return found


@derivative
def cov_vjp_m(m, m_bar, rowvar, ddof, g):
    rows = without_means(m, rowvar, True)
    add_rows(m_bar, rowvar, True, scatter_vjp(rows, max(rows.shape[1] - ddof, 0.0), g))


@derivative
def cov_jvp_m(m, m_dot, rowvar, ddof):
    rows = without_means(m, rowvar, True)
    tangent = without_means(m_dot, rowvar, True)
    return scatter_jvp(rows, tangent, max(rows.shape[1] - ddof, 0.0))


@derivative
def cov_pair_vjp_m(m, m_bar, y, rowvar, ddof, g):
    rows = both_without_means(m, y, rowvar)
    found = scatter_vjp(rows, max(rows.shape[1] - ddof, 0.0), g)
    add_rows(m_bar, rowvar, False, found[: without_means(m, rowvar, False).shape[0]])


@derivative
def cov_pair_vjp_y(m, y, y_bar, rowvar, ddof, g):
    rows = both_without_means(m, y, rowvar)
    found = scatter_vjp(rows, max(rows.shape[1] - ddof, 0.0), g)
    add_rows(y_bar, rowvar, False, found[without_means(m, rowvar, False).shape[0] :])


@derivative
def cov_pair_jvp_m(m, m_dot, y, rowvar, ddof):
    rows = both_without_means(m, y, rowvar)
    tangent = joined(without_means(m_dot, rowvar, False), 0.0 * without_means(y, rowvar, False))
    return scatter_jvp(rows, tangent, max(rows.shape[1] - ddof, 0.0))


@derivative
def cov_pair_jvp_y(m, y, y_dot, rowvar, ddof):
    rows = both_without_means(m, y, rowvar)
    tangent = joined(0.0 * without_means(m, rowvar, False), without_means(y_dot, rowvar, False))
    return scatter_jvp(rows, tangent, max(rows.shape[1] - ddof, 0.0))


@derivative
def corrcoef_vjp_x(x, x_bar, rowvar, z, g):
    add_rows(x_bar, rowvar, True, correlation_vjp(without_means(x, rowvar, True), z, g))


@derivative
def corrcoef_jvp_x(x, x_dot, rowvar, z):
    rows = without_means(x, rowvar, True)
    return correlation_jvp(rows, without_means(x_dot, rowvar, True), z)


@derivative
def corrcoef_pair_vjp_x(x, x_bar, y, rowvar, z, g):
    found = correlation_vjp(both_without_means(x, y, rowvar), z, g)
    add_rows(x_bar, rowvar, False, found[: without_means(x, rowvar, False).shape[0]])


@derivative
def corrcoef_pair_vjp_y(x, y, y_bar, rowvar, z, g):
    found = correlation_vjp(both_without_means(x, y, rowvar), z, g)
    add_rows(y_bar, rowvar, False, found[without_means(x, rowvar, False).shape[0] :])


@derivative
def corrcoef_pair_jvp_x(x, x_dot, y, rowvar, z):
    tangent = joined(without_means(x_dot, rowvar, False), 0.0 * without_means(y, rowvar, False))
    return correlation_jvp(both_without_means(x, y, rowvar), tangent, z)


@derivative
def corrcoef_pair_jvp_y(x, y, y_dot, rowvar, z):
    tangent = joined(0.0 * without_means(x, rowvar, False), without_means(y_dot, rowvar, False))
    return correlation_jvp(both_without_means(x, y, rowvar), tangent, z)
