"""Functions that add to cotangents of arrays that were broadcast, summed or indexed.

They add their last argument to the first one (see `addition` in
`tapegrad.transform.rules.array_specs`).
"""

from __future__ import annotations

import numpy as np
from numba.core import types
from numba.extending import overload

from tapegrad.kernels.intrinsics import index
from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import addition
from tapegrad.transform.rules.effects import has_effect
from tapegrad.transform.runtime import INFINITESIMAL


def as_array(g, bar):
    """Return a cotangent as an array; a number is broadcast to the shape of `bar`."""
    return g if isinstance(g, np.ndarray) else np.full_like(bar, g)


@overload(as_array)
def _as_array(g, bar):
    if isinstance(g, types.Array):
        return lambda g, bar: g
    return lambda g, bar: np.full_like(bar, g)


@jit
def step_along(own, other):
    """Return the step along an axis that was broadcast: 0, or 1 if it was not.

    numba lets in-place operations read past the end of an operand that has too few elements; the
    derivative would write there.
    """
    if own == 1:
        return 0
    if own != other:
        raise ValueError("operands have shapes that do not broadcast")
    return 1


@addition
def add_to(bar, given):
    """Add a cotangent (an array or number) to that of an input that was broadcast."""
    g = as_array(given, bar)
    if g.ndim == bar.ndim:
        if g.shape == bar.shape:
            bar += g
            return
    extra = g.ndim - bar.ndim
    for axis in range(bar.ndim):
        step_along(bar.shape[axis], g.shape[axis + extra])
    total = np.zeros(bar.size, bar.dtype)
    for place in np.ndindex(g.shape):
        flat = 0
        for axis in range(bar.ndim):
            size = bar.shape[axis]
            flat = flat * size + (place[axis + extra] if size > 1 else 0)
        total[flat] += g[place]
    bar += total.reshape(bar.shape)


@addition
def add_1_to_1(bar, g):
    """Add a vector."""
    step = step_along(bar.size, g.size)
    for i in range(g.size):
        bar[i * step] += g[i]


@addition
def add_2_to_1(bar, g):
    """Add a matrix to a vector that was broadcast to its rows."""
    step = step_along(bar.size, g.shape[1])
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            bar[j * step] += g[i, j]


@addition
def add_2_to_2(bar, g):
    """Add a matrix."""
    down = step_along(bar.shape[0], g.shape[0])
    right = step_along(bar.shape[1], g.shape[1])
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            bar[i * down, j * right] += g[i, j]


@addition
def add_3_to_3(bar, g):
    """Add a three-dimensional array."""
    first = step_along(bar.shape[0], g.shape[0])
    second = step_along(bar.shape[1], g.shape[1])
    third = step_along(bar.shape[2], g.shape[2])
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            for k in range(g.shape[2]):
                bar[i * first, j * second, k * third] += g[i, j, k]


@jit
@has_effect(assigns=0)
def assign_1(x, y):
    """Copy the elements of a vector to another."""
    for i in range(x.size):
        x[i] = y[i]


@jit
@has_effect(assigns=0)
def assign_2(x, y):
    """Copy the elements of a matrix to another."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = y[i, j]


@addition
def add_element(bar, index, g):
    """Add to an element, given its position in row-major order."""
    bar.flat[index] += g


@jit
def numbered(x):
    """Return the numbers from 1 of the elements, in the shape of the array."""
    return np.arange(1, x.size + 1).reshape(x.shape)


@jit
def unnumbered(x):
    """Return zeros in the shape of an array, for elements without a number."""
    return np.zeros(x.shape, np.int64)


@jit
def sum_numbered(numbers, g):
    """Return the sum of the cotangents of numbered elements."""
    total = 0.0
    where = numbers.flatten()
    values = g.flatten()
    for k in range(where.size):
        if where[k] > 0:
            total += values[k]
    return total


@jit
def mark_at_once(bar):
    """Mark cotangents of 0 of an array of any rank."""
    bar += np.where(bar == 0.0, INFINITESIMAL, 0.0)


@jit
def mark_matrix(bar):
    """Mark the cotangents of 0 of a matrix."""
    for i in range(bar.shape[0]):
        for j in range(bar.shape[1]):
            if bar[i, j] == 0.0:
                bar[i, j] += INFINITESIMAL


@jit
def mark_zeros(bar, given):
    """Mark cotangents of 0, as `runtime.nonzero` does, of an array that is used as a whole.

    It is used if `given` is not 0, a cotangent of the result or whether any of them is not 0.
    """
    # loops over indices, not over `np.ndindex` or `bar.flat`: they are differentiated as well;
    # numba drops branches by the rank of a variable that is not assigned, also in place
    if given != 0:
        if bar.ndim == 1:
            for i in range(bar.size):
                if bar[i] == 0.0:
                    bar[i] += INFINITESIMAL
        elif bar.ndim == 2:
            mark_matrix(bar)
        elif bar.ndim == 3:
            for k in range(bar.shape[0]):
                mark_matrix(bar[k])
        else:
            mark_at_once(bar)


@jit
def is_matrix_used(g):
    """Whether any cotangent of a matrix is not 0."""
    found = False
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            if g[i, j] != 0.0:
                found = True
    return found


@jit
def is_used(g):
    """Whether any cotangent of a result is not 0."""
    found = False
    if g.ndim == 1:
        for i in range(g.size):
            if g[i] != 0.0:
                found = True
    elif g.ndim == 2:
        found = is_matrix_used(g)
    elif g.ndim == 3:
        for k in range(g.shape[0]):
            found = found or is_matrix_used(g[k])
    else:
        found = np.count_nonzero(g) > 0
    return found


@addition
def scatter_numbered(bar, numbers, g):
    """Add cotangents to the elements with the given numbers; 0 means no element."""
    total = np.zeros(bar.size, bar.dtype)
    where = numbers.flatten()
    values = g.flatten()
    for k in range(where.size):
        if where[k] > 0:
            total[where[k] - 1] += values[k]
    bar += total.reshape(bar.shape)


@addition
def add_along(bar, axis, g):
    """Add the cotangents of sums along an axis."""
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
    """Add the cotangents of cumulative sums of the elements in row-major order."""
    total = g.flatten()
    cumulate_backwards(total, 0, total.size)
    bar += total.reshape(bar.shape)


@jit
def cumulate_backwards(x, start, end):
    """Replace elements of a vector by the sums of those from them on, up to an end."""
    found = 0.0
    for k in range(end - 1, start - 1, -1):
        found += x[index(k)]
        x[index(k)] = found


@addition
def add_cumulated_along(bar, axis, g):
    """Add the cotangents of cumulative sums along an axis."""
    total = g.flatten()
    size = bar.shape[axis]
    inner = 1
    for k in range(axis % bar.ndim + 1, bar.ndim):
        inner *= bar.shape[k]
    for start in range(0, total.size, max(size * inner, 1)):
        if inner == 1:
            cumulate_backwards(total, start, start + size)
        else:
            for place in range(start + (size - 1) * inner - 1, start - 1, -1):
                total[index(place)] += total[index(place + inner)]
    bar += total.reshape(bar.shape)
