"""Functions that order the elements of arrays: sorts, medians, quantiles.

Near a point, each is a fixed linear function of the sorted elements. Equal elements are ordered by
position; of equal elements that `np.unique` merges, the first one has the derivative.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import Request, addition, declare, derivative, understands
from tapegrad.transform.rules.numpy_functions.positions import scatter

declare("sort", "a")
declare("partition", "a", "kth", calls=False)
declare("unique", "ar", chooses=True)
declare("median", "a", chooses=True)
declare("nanmedian", "a", chooses=True, like="median")
declare("quantile_0", "a", "q", calls=False, chooses=True)
declare("quantile_1", "a", "q", calls=False, chooses=True)
declare("percentile_0", "a", "q", calls=False, chooses=True)
declare("percentile_1", "a", "q", calls=False, chooses=True)


@understands("partition")
def _(call: Request, a: Any, kth: Any) -> Any:
    return call.whole("partition") if call.ndim(a) == 1 else None


@understands("quantile", "percentile", "nanquantile", "nanpercentile")
def _(call: Request, a: Any, q: Any) -> Any:
    if not call.ndim(a) or call.ndim(q) > 1:
        return None
    name = call.text.removeprefix("nan")
    return call.whole(f"{name}_{call.ndim(q)}", a=a, q=q)


@jit
def order_of(x):
    """Return the indices that sort the flattened elements, without those of nan."""
    flat = x.flatten()
    order = np.argsort(flat, kind="mergesort")
    return order[: np.sum(flat == flat)]


@jit
def order_in_rows(x):
    """Return the flat indices of the elements sorted along the last axis."""
    flat = x.flatten()
    size = x.shape[-1]
    order = np.empty(flat.size, np.int64)
    for start in range(0, flat.size, max(size, 1)):
        found = np.argsort(flat[start : start + size], kind="mergesort")
        for k in range(size):
            order[start + k] = start + found[k]
    return order


@derivative
def sort_vjp_a(a, a_bar, g):
    scatter(a_bar, order_in_rows(a), g)


@derivative
def sort_jvp_a(a, a_dot):
    return a_dot.flatten()[order_in_rows(a)].reshape(a.shape)


@jit
def partitioned(a, z):
    """Return the indices of the elements in the order of their partition z."""
    found = np.empty(a.size, np.int64)
    order = np.argsort(a, kind="mergesort")
    places = np.argsort(z, kind="mergesort")
    for k in range(a.size):
        found[places[k]] = order[k]
    return found


@derivative
def partition_vjp_a(a, a_bar, z, g):
    scatter(a_bar, partitioned(a, z), g)


@derivative
def partition_jvp_a(a, a_dot, z):
    return a_dot[partitioned(a, z)]


@jit
def firsts(x, size):
    """Return the indices of the first of equal elements, in sorted order."""
    flat = x.flatten()
    order = np.argsort(flat, kind="mergesort")
    found = np.empty(size, np.int64)
    count = 0
    for k in range(flat.size):
        if k == 0 or flat[order[k]] != flat[order[k - 1]]:
            if count < size:
                found[count] = order[k]
                count += 1
    return found


@derivative
def unique_vjp_ar(ar, ar_bar, z, g):
    scatter(ar_bar, firsts(ar, z.size), g)


@derivative
def unique_jvp_ar(ar, ar_dot, z):
    return ar_dot.flatten()[firsts(ar, z.size)]


@jit
def ranked(x, z):
    """Return the indices in sorted order; if z is nan, only that of the last nan."""
    order = order_of(x)
    if z != z and order.size < x.size:
        flat = x.flatten()
        order = np.flatnonzero(flat != flat)[-1:]
    return order


@jit
def middle_of(order):
    """Return the one or two indices in the middle."""
    return order[(order.size - 1) // 2 : order.size // 2 + 1].copy()


@derivative
def median_vjp_a(a, a_bar, z, g):
    middle = middle_of(ranked(a, z))
    scatter(a_bar, middle, np.full(middle.size, g / max(middle.size, 1)))


@derivative
def median_jvp_a(a, a_dot, z):
    return np.mean(a_dot.flatten()[middle_of(ranked(a, z))])


@jit
def between(size, q):
    """Return the two positions around a quantile, and its distance from the first."""
    place = q * (size - 1)
    below = min(max(math.floor(place), 0), size - 1)
    return below, min(below + 1, size - 1), place - below


@addition
def add_quantile(bar, order, q, g):
    """Add the cotangent of a quantile to the two elements around it."""
    if order.size:
        below, above, part = between(order.size, q)
        total = np.zeros(bar.size, bar.dtype)
        total[order[below]] += g * (1.0 - part)
        total[order[above]] += g * part
        bar += total.reshape(bar.shape)


@jit
def quantile_tangent(a_dot, order, q):
    """Return the tangent of a quantile."""
    found = 0.0
    if order.size:
        below, above, part = between(order.size, q)
        flat = a_dot.flatten()
        found = flat[order[below]] * (1.0 - part) + flat[order[above]] * part
    return found


@derivative
def quantile_0_vjp_a(a, a_bar, q, z, g):
    add_quantile(a_bar, ranked(a, z), q, g)


@derivative
def quantile_0_jvp_a(a, a_dot, q, z):
    return quantile_tangent(a_dot, ranked(a, z), q)


@derivative
def quantile_1_vjp_a(a, a_bar, q, z, g):
    order = ranked(a, np.sum(z))
    for k in range(q.size):
        add_quantile(a_bar, order, q[k], g[k])


@derivative
def quantile_1_jvp_a(a, a_dot, q, z):
    order = ranked(a, np.sum(z))
    found = np.empty_like(z)
    for k in range(q.size):
        found[k] = quantile_tangent(a_dot, order, q[k])
    return found


@derivative
def percentile_0_vjp_a(a, a_bar, q, z, g):
    add_quantile(a_bar, ranked(a, z), q / 100.0, g)


@derivative
def percentile_0_jvp_a(a, a_dot, q, z):
    return quantile_tangent(a_dot, ranked(a, z), q / 100.0)


@derivative
def percentile_1_vjp_a(a, a_bar, q, z, g):
    order = ranked(a, np.sum(z))
    for k in range(q.size):
        add_quantile(a_bar, order, q[k] / 100.0, g[k])


@derivative
def percentile_1_jvp_a(a, a_dot, q, z):
    order = ranked(a, np.sum(z))
    found = np.empty_like(z)
    for k in range(q.size):
        found[k] = quantile_tangent(a_dot, order, q[k] / 100.0)
    return found
