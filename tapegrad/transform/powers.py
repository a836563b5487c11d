"""Powers of all numbers of an array with all exponents of another, as for fits of polynomials.

Exponents are mostly 0, 1, 2, ...: then powers are products of a few others.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from tapegrad.kernels.intrinsics import index, scaled_copy, smaller
from tapegrad.transform import vector_math
from tapegrad.transform.cache.machine_code import inlined, jit
from tapegrad.transform.tape_memory.large_arrays import empty, zeros

_WIDTH = 32  # powers that are products of squares; the others are these times another power
_HEAD = -(1 << 27)  # the bits of a double without the last 27, so that its square is exact
_MOST_EXACT = 1 << 53  # float64 has all whole numbers up to this

_scaled_copy = scaled_copy(_WIDTH)


@jit
def outer_power(x, y, z):
    """Compute ``z[i, j] = x[i] ** y[j]``.

    Where exponents are whole numbers, not negative, and each is one more than the one before (or
    one less), the error is at most 4 units in the last place, else one.

    Parameters
    ----------
    x, y
        Numbers and exponents, arrays of one dimension.
    z
        A matrix in C order, which shares no memory with the others; it may have more rows and
        columns, which stay as they are.
    """
    count = y.size
    is_falling = count > 1 and y[0] > y[-1]
    exponents = empty((count,))
    for j in range(count):
        exponents[j] = y[count - 1 - j] if is_falling else y[j]
    first = _start_of_chain(exponents)
    begin = exponents[first] if first < count else 0.0
    squares, scales = _squares(x), _scales(x, (count - first) // _WIDTH)
    low = empty((_WIDTH,))
    for i in range(x.size):  # a slice would take longer to compile than an index
        if first > 0 or begin != 0.0:
            _compute_each(x[i], exponents, smaller(first + 1, count), z, i)
        if first < count:
            start = 1.0 if begin == 0.0 else z[i, first]
            _chain(start, squares, scales, low, z, i, first, count - first)
        if is_falling:
            for j in range(count // 2):
                z[i, j], z[i, count - 1 - j] = z[i, count - 1 - j], z[i, j]


@jit
def _compute_each(base, exponents, count, z, i):
    """Compute powers one by one; a function of its own, since its loop takes long to compile."""
    for j in range(count):
        z[i, j] = vector_math.pow(base, exponents[j])


@jit
def _start_of_chain(exponents):
    """Return from which exponent on each is a whole number, not negative, one after the other."""
    first = exponents.size
    if first == 0:
        return 0
    expected = exponents[-1]
    if not (expected < _MOST_EXACT and expected == np.floor(expected)):
        return first
    while first > 0 and exponents[first - 1] == expected and expected >= 0.0:
        first -= 1
        expected -= 1.0
    return first


@inlined
def _head(x):
    """Return the leading 26 bits of a number."""
    return np.int64(np.float64(x).view(np.int64) & _HEAD).view(np.float64)


@jit
def _squares(x):
    """Return numbers and their powers 2, 4, 8 and 16, rounded from pairs of doubles."""
    found, rests = empty((5, x.size)), zeros((x.size,))
    for i in range(x.size):  # numba takes a second for an assignment of arrays
        found[0, i] = x[i]
    for k in range(4):
        for i in range(x.size):
            high = found[k, i]
            square = high * high
            head = _head(high)
            tail = high - head
            rest = (head * head - square) + 2.0 * head * tail
            rest += tail * tail + 2.0 * high * rests[i]
            # a square that is too large or small for the rest to be known is itself rounded
            rest = rest if (square > 1e-250) & (square < 1e300) else 0.0
            rounded = square + rest
            rests[i] = (square - rounded) + rest
            found[k + 1, i] = rounded
    return found


@jit
def _scales(x, count):
    """Return the powers 32, 64, 96, ... of numbers."""
    found = empty((x.size, count))
    exponents = empty((count,))
    for k in range(count):
        exponents[k] = _WIDTH * (k + 1.0)
    if count > 0:
        for i in range(x.size):
            _compute_each(x[i], exponents, count, found, i)
    return found


@inlined
def _chain(start, squares, scales, low, z, i, first, count):
    """Compute powers of a number with exponents one after the other.

    Parameters
    ----------
    start
        The first power.
    squares, scales
        The powers 1, 2, 4, 8 and 16 of all numbers, and 32, 64, 96, ...
    low
        Memory for the first powers.
    z, i, first, count
        What is computed: these elements of this row of a matrix.
    """
    p0, p1 = start, start * squares[0, i]
    two, four = squares[1, i], squares[2, i]
    p2, p3 = p0 * two, p1 * two
    p4, p5, p6, p7 = p0 * four, p1 * four, p2 * four, p3 * four
    eight, sixteen = squares[3, i], squares[4, i]
    scale = 1.0
    for k in range(0, smaller(count, _WIDTH), 8):
        low[k], low[k + 1], low[k + 2], low[k + 3] = p0 * scale, p1 * scale, p2 * scale, p3 * scale
        low[k + 4], low[k + 5] = p4 * scale, p5 * scale
        low[k + 6], low[k + 7] = p6 * scale, p7 * scale
        scale = eight if k == 0 else sixteen if k == 8 else eight * sixteen
    for k in range(smaller(count, _WIDTH)):
        z[i, index(first + k)] = low[k]
    for block in range(scales.shape[1]):
        begin, scale = (block + 1) * _WIDTH, scales[i, block]
        if begin + _WIDTH <= count:
            _scaled_copy(low, scale, z, i * z.shape[1] + first + begin)
        else:
            for k in range(count - begin):
                z[i, index(first + begin + k)] = low[k] * scale
