"""What adds arrays to cotangents: to what was broadcast, summed, or chosen.

Their last argument is what they add to the first one (see `addition` in
`tapegrad.transform.rules.array_specs`).
"""

from __future__ import annotations

import numpy as np
from numba.core import types
from numba.extending import overload

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import addition


def as_array(g, bar):
    """Return a cotangent as an array; a number is that of all elements of another array."""
    return g if isinstance(g, np.ndarray) else np.full_like(bar, g)


@overload(as_array)
def _as_array(g, bar):
    if isinstance(g, types.Array):
        return lambda g, bar: g
    return lambda g, bar: np.full_like(bar, g)


@addition
def add_to(bar, given):
    """Add a cotangent (an array or number) to one of an input that was broadcast."""
    g = as_array(given, bar)
    if g.ndim == bar.ndim:
        if g.shape == bar.shape:
            bar += g
            return
    extra = g.ndim - bar.ndim
    total = np.zeros(bar.size, bar.dtype)
    for index in np.ndindex(g.shape):
        flat = 0
        for axis in range(bar.ndim):
            size = bar.shape[axis]
            flat = flat * size + (index[axis + extra] if size > 1 else 0)
        total[flat] += g[index]
    bar += total.reshape(bar.shape)


@addition
def add_1_to_1(bar, g):
    """Add a vector."""
    step = 0 if bar.size == 1 else 1
    for i in range(g.size):
        bar[i * step] += g[i]


@addition
def add_2_to_1(bar, g):
    """Add a matrix to what was repeated in its rows."""
    step = 0 if bar.size == 1 else 1
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            bar[j * step] += g[i, j]


@addition
def add_2_to_2(bar, g):
    """Add a matrix."""
    down = 0 if bar.shape[0] == 1 else 1
    right = 0 if bar.shape[1] == 1 else 1
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            bar[i * down, j * right] += g[i, j]


@addition
def add_3_to_3(bar, g):
    """Add an array of three dimensions."""
    first = 0 if bar.shape[0] == 1 else 1
    second = 0 if bar.shape[1] == 1 else 1
    third = 0 if bar.shape[2] == 1 else 1
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            for k in range(g.shape[2]):
                bar[i * first, j * second, k * third] += g[i, j, k]


@jit
def assign_1(x, y):
    """Give a vector the elements of another."""
    for i in range(x.size):
        x[i] = y[i]


@jit
def assign_2(x, y):
    """Give a matrix the elements of another."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = y[i, j]


@addition
def add_element(bar, index, g):
    """Add to an element, given its position in row-major order."""
    bar.flat[index] += g


@jit
def places(x):
    """Return the position of every element in row-major order, in an array of the same shape."""
    return np.arange(x.size).reshape(x.shape)


@addition
def scatter(bar, chosen, g):
    """Add the cotangents of chosen elements, given their positions."""
    total = np.zeros(bar.size, bar.dtype)
    where = chosen.flatten()
    values = g.flatten()
    for k in range(where.size):
        total[where[k]] += values[k]
    bar += total.reshape(bar.shape)


@jit
def taken(bar, chosen, clear):
    """Return the cotangents of values that were stored to chosen positions.

    Of several values for one position, the last counts. With `clear`, what was there before the
    store had no influence on what came later.
    """
    where = chosen.flatten()
    flat = bar.flatten()
    found = np.zeros(where.size, bar.dtype)
    for k in range(where.size - 1, -1, -1):
        found[k] = flat[where[k]]
        flat[where[k]] = 0.0
    if clear:
        bar[...] = flat.reshape(bar.shape)
    return found.reshape(chosen.shape)


@jit
def numbered(x):
    """Return the numbers from 1 of the elements of an array, in its shape."""
    return np.arange(1, x.size + 1).reshape(x.shape)


@jit
def unnumbered(x):
    """Return zeros in the shape of an array, for elements that do not count."""
    return np.zeros(x.shape, np.int64)


@jit
def sum_numbered(numbers, g):
    """Return the sum of the cotangents of elements that have a number."""
    total = 0.0
    where = numbers.flatten()
    values = g.flatten()
    for k in range(where.size):
        if where[k] > 0:
            total += values[k]
    return total


@addition
def scatter_numbered(bar, numbers, g):
    """Add cotangents to the elements that have some numbers; 0 is none of them."""
    total = np.zeros(bar.size, bar.dtype)
    where = numbers.flatten()
    values = g.flatten()
    for k in range(where.size):
        if where[k] > 0:
            total[where[k] - 1] += values[k]
    bar += total.reshape(bar.shape)


@addition
def add_along(bar, axis, g):
    """Add to all elements along an axis what they have in common."""
    flat = g.flatten()
    size = bar.shape[axis]
    inner = 1
    for k in range(axis % bar.ndim + 1, bar.ndim):
        inner *= bar.shape[k]
    total = np.zeros(bar.size, bar.dtype)
    for k in range(bar.size):
        total[k] = flat[k // (inner * size) * inner + k % inner]
    bar += total.reshape(bar.shape)


@addition
def add_cumulated(bar, g):
    """Add the cotangents of cumulated sums, of the elements in row-major order."""
    flat = g.flatten()
    total = np.zeros(bar.size, bar.dtype)
    found = 0.0
    for k in range(bar.size - 1, -1, -1):
        found += flat[k]
        total[k] = found
    bar += total.reshape(bar.shape)


@addition
def add_cumulated_along(bar, axis, g):
    """Add the cotangents of sums that are cumulated along an axis."""
    total = g.flatten()
    size = bar.shape[axis]
    inner = 1
    for k in range(axis % bar.ndim + 1, bar.ndim):
        inner *= bar.shape[k]
    for k in range(bar.size - 1, -1, -1):
        if k // inner % size < size - 1:
            total[k] += total[k + inner]
    bar += total.reshape(bar.shape)
