"""Lengths and angles of points for float64, written under the rules of ``vmath``."""

# ruff: noqa: FURB136

import math

from tapegrad.kernels.functions.vmath import _bits, _with_sign


def hypot(x, y):
    """sqrt(x**2 + y**2), infinite if x or y is, also if the other is nan. At most 1 ulp.

    The rounding errors of the squares are taken off afterwards: C. F. Borges, Algorithm 1014: An
    improved algorithm for hypot(x, y), ACM Transactions on Mathematical Software 47 (2021).
    """
    x, y = abs(x), abs(y)
    a = x if x >= y else y
    b = y if x >= y else x
    # powers of 2 with which the squares neither overflow nor underflow
    there = 2.409919865102884e-181 if a > 3.273390607896142e150 else 1.0
    there = 4.149515568880993e180 if a < 3.872591914849318e-121 else there
    back = 4.149515568880993e180 if a > 3.273390607896142e150 else 1.0
    back = 2.409919865102884e-181 if a < 3.872591914849318e-121 else back
    a, b = a * there, b * there
    h = math.sqrt(a * a + b * b)
    by_b, by_a = h - b, h - a
    near = a * (2.0 * by_b - a) + (by_b - 2.0 * (a - b)) * by_b
    far = 2.0 * by_a * (a - 2.0 * b) + (4.0 * by_a - b) * b + by_a * by_a
    h = 0.0 if h == 0.0 else h - (near if h <= 2.0 * b else far) / (2.0 * h)
    return math.inf if (x == math.inf) | (y == math.inf) else h * back


def _arctan_positive(a):
    """The arc tangent of a >= 0, also infinite.

    Source: the rational approximation of S. L. Moshier's Cephes library, on [0, 0.66].
    """
    large = a > 2.414213562373095  # tan(3 pi / 8)
    middle = a > 0.66
    over = a if large else 1.0
    r = -1.0 / over if large else ((a - 1.0) / (a + 1.0) if middle else a)
    z = r * r
    p = -0.8750608600031904
    p = -16.157537187333652 + z * p
    p = -75.00855792314705 + z * p
    p = -122.88666844901361 + z * p
    p = -64.85021904942025 + z * p
    q = 24.858464901423062 + z
    q = 165.02700983169885 + z * q
    q = 432.88106049129027 + z * q
    q = 485.3903996359137 + z * q
    q = 194.5506571482614 + z * q
    y = r * (z * p / q) + r
    low = 6.123233995736766e-17 if large else (3.061616997868383e-17 if middle else 0.0)
    high = 1.5707963267948966 if large else (0.7853981633974483 if middle else 0.0)
    return high + (y + low)


def arctan(x):
    """Arc tangent, which keeps the sign of zero. At most 1 ulp."""
    return _with_sign(_arctan_positive(abs(x)), x)


def arctan2(y, x):
    """The angle of the point (x, y), with C's results for zeros and infinities. At most 1.5 ulp."""
    a, b = abs(y), abs(x)
    large = a if a >= b else b
    both = (a == b) & (a == math.inf)
    # powers of 2 with which the quotient neither overflows nor loses digits
    by = 2.409919865102884e-181 if large > 3.273390607896142e150 else 1.0
    by = 4.149515568880993e180 if large < 3.872591914849318e-121 else by
    a, b = a * by, b * by
    ratio = a / (1.0 if b == 0.0 else b)
    ratio = (0.0 if a == 0.0 else math.inf) if b == 0.0 else ratio
    angle = _arctan_positive(1.0 if both else ratio)
    is_left = _bits(x) < 0
    angle = 3.141592653589793 - (angle - 1.2246467991473532e-16) if is_left else angle
    return x + y if math.isnan(x) | math.isnan(y) else _with_sign(angle, y)


def arcsin(x):
    """Arc sine, nan beyond -1 and 1. At most 2.5 ulp."""
    a = abs(x)
    y = 2.0 * _arctan_positive(a / (1.0 + math.sqrt((1.0 - a) * (1.0 + a))))
    return math.nan if a > 1.0 else _with_sign(y, x)


def arccos(x):
    """Arc cosine, nan beyond -1 and 1. At most 2 ulp."""
    over = 1.0 if x == -1.0 else 1.0 + x
    y = 2.0 * _arctan_positive(math.sqrt((1.0 - x) / over))
    y = 3.141592653589793 if x == -1.0 else y
    return math.nan if abs(x) > 1.0 else y
