"""Functions for float64 that derivatives consist of, written under the rules of ``vmath``.

They are those whose values other functions have lost: slopes next to bounds, shares of sums of
exponentials, quotients of squares that overflow.
"""

# ruff: noqa: FURB136

import math

from tapegrad.kernels.functions.vmath import LN2, _bits, _expm1_parts, _from_bits, exp, exp2, log


def sigmoid_slope(x):
    """Derivative of sigmoid, with relative accuracy down to the underflow. At most 3 ulp.

    It has the exponential of sigmoid, so that loops which compute both have one.
    """
    z = exp(-abs(x))
    s = 1.0 + z
    return z / (s * s)


def tanh_slope(x):
    """1 / cosh(x)**2, 0 instead of numbers below 3.3e-308. At most 5 ulp.

    It is 4 E / (E + 1)**2 with the exponential of tanh, so that loops which compute both have one.
    """
    a = 2.0 * abs(x)
    n, lo = _expm1_parts(709.4 if a > 709.4 else a, 0)
    hi = n + lo
    inv = 1.0 / (hi + 2.0)
    y = 4.0 * ((hi + 1.0) * inv) * inv
    return 0.0 if a > 709.4 else y


def _difference(x, y):
    """x - y as a sum (hi, lo) without error; lo is 0 if a number is infinite."""
    hi = x - y
    v = hi - x
    lo = (x - (hi - v)) - (y + v)
    return hi, lo if abs(hi) < math.inf else 0.0


def exp_of_difference(x, y):
    """e**(x - y), as if the difference were not rounded; 1 for equal infinities. At most 2 ulp."""
    d, e = _difference(x, y)
    z = exp(d)
    z = z + z * e if z < math.inf else z
    return 1.0 if x == y else z


def _share(x, y, z, e):
    """The share of x, from z = exp(-abs(x - y)) and e, by which x - y was rounded."""
    d = x - y
    s = 1.0 + z
    found = (1.0 if d > 0.0 else z) / s
    found = found + found * (e * ((z if d > 0.0 else 1.0) / s))
    return 0.5 if x == y else found


def share(x, y):
    """e**x / (e**x + e**y), as if the difference were not rounded. At most 5 ulp."""
    d, e = _difference(x, y)
    return _share(x, y, exp(-abs(d)), e)


def share2(x, y):
    """2**x / (2**x + 2**y), as if the difference were not rounded. At most 5 ulp."""
    d, e = _difference(x, y)
    return _share(x, y, exp2(-abs(d)), e * LN2)


def inverted(x, y):
    """x / (x**2 + y**2) without overflow or underflow of the squares; nan at (0, 0)."""
    a = abs(x)
    b = abs(y)
    m = a if a > b else b
    e = _bits(m) >> 52
    e = 1 if e < 1 else e
    e = 2044 if e > 2044 else e
    s = _from_bits((2046 - e) << 52)  # a power of two by which m becomes less than 8
    u = s * x
    v = s * y
    found = s * (u / (u * u + v * v))
    return 0.0 if (m == math.inf) & (x == x) else found


def log_ratio(x, y):
    """log(x / y), also where the quotient of numbers of one sign overflows or underflows."""
    q = x / y
    limit = (_bits(q) == 0) | (q == math.inf)  # not -0
    return log(abs(x)) - log(abs(y)) if limit else log(q)
