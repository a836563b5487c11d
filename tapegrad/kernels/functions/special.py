"""Special functions for float64, written under the rules of ``vmath``.

``erf`` and ``erfc`` are straight-line code and vectorise; the gamma family has loops or branches
and runs one element at a time.
"""

# ruff: noqa: FURB136

import math

import numpy as np

from tapegrad.kernels.functions.vmath import (
    INV_LN2,
    LN2_HI,
    LN2_LO,
    ROUND_SHIFT,
    _bits,
    _exp_reduced,
    _exp_tail,
    _head,
    _scale,
    _with_sign,
    log,
    log1p,
    pow,
)

# ---------------------------------------------------------------------------------------------
# error functions


def _erf_small(x):
    """erf(x) for abs(x) <= 1."""
    z = x * x
    w = z * z
    # erf(x)/x - 1 in x**2 on [0, 1], degree 11, error 2**-57
    even = 1.3722976265924504e-08 * w + 1.6447517677871873e-06
    odd = -7.801188874097751e-10 * w - 1.6209175911748696e-07
    even = 0.00012055295320494294 + w * even
    odd = -1.4924744663335489e-05 + w * odd
    even = 0.005223977607423468 + w * even
    odd = -0.0008548325989696758 + w * odd
    even = 0.11283791670945253 + w * even
    odd = -0.02686617064327622 + w * odd
    even = 0.12837916709551256 + w * even
    odd = -0.3761263890318355 + w * odd
    return x + x * (even + z * odd)


def _times_gaussian(p, a, c, limit):
    """p * e**(-c a**2) for c = 1 or 1/2, 0 above a limit: the square is a head and a remainder."""
    # above, the product would underflow, for which processors take more than a hundred cycles
    b = 0.0 if a > limit else a
    h = _head(b)
    e = -c * (h * h)
    kb = e * INV_LN2 + ROUND_SHIFT
    k = kb - ROUND_SHIFT
    r = (e - k * LN2_HI) - (k * LN2_LO + c * (b - h) * (b + h))
    y = _scale(p + p * (r + _exp_tail(r)), _bits(kb))
    return 0.0 if a > limit else y


def gaussian(x):
    """e**(-x**2), with gradual underflow to 0 at abs(x) = 27.3. At most 1.5 ulp."""
    return _times_gaussian(1.0, abs(x), 1.0, 27.38)


def normal(x):
    """e**(-x**2 / 2), with gradual underflow to 0 at abs(x) = 38.61. At most 1.5 ulp."""
    return _times_gaussian(1.0, abs(x), 0.5, 38.7)


def erf(x):
    """Error function, odd including signed zeros; 1 from x = 5.93. At most 1.4 ulp.

    A polynomial below 1; 1 - e**-q(x) above, where e**-q <= 0.16 makes its error small.
    """
    a = abs(x)
    # q = -log(erfc(x)) in v = x - 1 on [0, 4.95], degree 17, error 2**-57 of erf
    v = a - 1.0
    v = 4.95 if v > 4.95 else v
    v = 0.0 if v < 0.0 else v
    w = v * v
    even = -8.51772969907861e-09 + w * -1.1930549703635482e-10
    odd = 1.3189129789771446e-09 + w * 4.864045641678259e-12
    even = -5.800224662873835e-08 + w * even
    odd = 3.338750548272611e-08 + w * odd
    even = 2.1319609769997407e-06 + w * even
    odd = -2.0482849220162566e-07 + w * odd
    even = 2.7198985727296682e-05 + w * even
    odd = -9.671396522753962e-06 + w * odd
    even = -0.00023731643271278382 + w * even
    odd = -2.629633314855126e-05 + w * odd
    even = -0.010033825179069937 + w * even
    odd = 0.001977901215362629 + w * odd
    even = 0.8431072563594125 + w * even
    odd = 0.04156109802507827 + w * odd
    even = 1.8496055099332482 + w * even
    odd = 2.6389675142347757 + w * odd
    large = 1.0 - _exp_reduced(-(even + v * odd), 0)
    return _erf_small(x) if a < 1.0 else _with_sign(large, x)


def erfc(x):
    """1 - erf(x), with relative accuracy down to the underflow at x = 26.54. At most 4 ulp.

    From 0.5, e**(-x**2) p(t) / (1 + 2 x) with t = (x - 4)/(x + 4); 2 - erfc(-x) below -0.5.
    """
    a = abs(x)
    y = _times_gaussian(_erfcx_positive(28.0 if a > 28.0 else a), a, 1.0, 27.38)
    y = 2.0 - y if x < 0.0 else y
    return 1.0 - _erf_small(x) if abs(x) < 0.5 else y


def _erfcx_positive(a):
    """e**(a**2) erfc(a) for a in [0, 28]."""
    u = a + 4.0
    v = 1.0 + 2.0 * a
    inv = 1.0 / (u * v)
    t = 2.0 * a * (v * inv) - 1.0
    w = t * t
    # (1 + 2 x) e**(x**2) erfc(x) in t on [-1, 0.75], that is x in [0, 28]; degree 22, error 2**-56
    even = -7.778819922698865e-09 + w * -1.7176657419873469e-09
    odd = 1.1456161459134871e-07 + w * -1.3386357445872746e-08
    even = 6.238911111141741e-08 + w * even
    odd = -8.342407973826317e-07 + w * odd
    even = 3.0195631126658334e-07 + w * even
    odd = 5.717295510837618e-06 + w * odd
    even = -1.1225282972598687e-05 + w * even
    odd = -2.440294160468718e-05 + w * odd
    even = 0.00015062247155323718 + w * even
    odd = -0.00019925556124444566 + w * odd
    even = -0.0007577734048620464 + w * even
    odd = 0.005031969763567606 + w * odd
    even = -0.016197734048423115 + w * even
    odd = 0.03716751556185251 + w * odd
    even = -0.0663303658125642 + w * even
    odd = 0.09373283499682383 + w * odd
    even = -0.10103906603630113 + w * even
    odd = 0.0680970542547366 + w * odd
    even = 0.015379652102619762 + w * even
    odd = -0.1396211168405629 + w * odd
    even = 1.2329951186255526 + w * even
    return (even + t * odd) * (u * inv)


def erfcx(x):
    """e**(x**2) erfc(x). At most 4 ulp, x**2 ulp below 0."""
    a = abs(x)
    y = _erfcx_positive(28.0 if a > 28.0 else a)
    if x > 28.0:
        y = _erfcx_large(x)
    g = gaussian(x)
    below = math.inf if g == 0.0 else 2.0 / g
    return below - y if x < 0.0 else y


def _erfcx_large(x):
    """e**(x**2) erfc(x) for x >= 28."""
    i = 0.5 / x / x
    y = 1.0 - 7.0 * i * (1.0 - 9.0 * i * (1.0 - 11.0 * i))
    return 0.5641895835477563 / x * (1.0 - i * (1.0 - 3.0 * i * (1.0 - 5.0 * i * y)))


SQRT_HALF = 0.7071067811865476
HALF_LOG_2PI = 0.9189385332046728


def ndtr(x):
    """erfc(-x / sqrt(2)) / 2, with relative accuracy down to the underflow at -38.5."""
    a = abs(x)
    tail = _erfcx_positive((38.7 if a > 38.7 else a) * SQRT_HALF)
    y = 0.5 * _times_gaussian(tail, a, 0.5, 38.7)
    y = 1.0 - y if x > 0.0 else y
    return 0.5 + 0.5 * _erf_small(x * SQRT_HALF) if abs(x) < 0.7 else y


def log_ndtr(x):
    """Logarithm of `ndtr`, from that of erfcx below 0."""
    if x > 0.0:
        return log1p(-ndtr(-x))
    return log(0.5 * erfcx(-x * SQRT_HALF)) - 0.5 * x * x


def erfcx_derivative(n, x):
    """Derivative of order n >= 0 of e**(x**2) erfc(x). At most 10 ulp up to n = 2.

    It is (-2)**n n! times the scaled n-th integral of erfc. From 1 on, ratios of these are computed
    by their continued fraction, without cancellation (DLMF 7.18.7); below, the derivatives follow
    from those of lower orders.
    """
    if not 0.0 <= n <= 100.0:
        return np.nan
    y = erfcx(x)
    if n == 0.0:
        return y
    if x < 1.0:
        before = 0.0
        k = 0.0
        f = y
        while k < n:
            after = 2.0 * x * f + (2.0 * k * before if k > 0.0 else -1.1283791670955126)
            before = f
            f = after
            k += 1.0
        return f
    r = 0.0
    k = n + 8.0 + np.floor(300.0 / (x if x < 300.0 else 300.0))
    while k > 0.0:
        r = 1.0 / (2.0 * x + 2.0 * (k + 1.0) * r)
        if k <= n:
            y *= -2.0 * k * r
        k -= 1.0
    return y


# ---------------------------------------------------------------------------------------------
# sinc


def _cos_of_half_turns(x, quarters):
    """cos(pi x + quarters pi / 2) for finite x and an integer >= 0, accurate next to its zeros."""
    r = x - 2.0 * np.rint(0.5 * x)
    a = abs(r)
    if quarters % 2.0 == 1.0:
        y = _with_sign(math.sin(math.pi * (a if a < 0.5 else 1.0 - a)), -r)
    else:
        y = math.cos(math.pi * a) if a < 0.25 else math.sin(math.pi * (0.5 - a))
    return -y if quarters % 4.0 > 1.0 else y


def sinc_derivative(n, x):
    """Derivative of order n >= 0 of sin(pi x) / (pi x). At most 8 ulp up to n = 2, but at zeros.

    It follows from (x f)' = cos(pi x) by recurrence, and near 0 from the series.
    """
    if not 0.0 <= n <= 100.0:
        return np.nan
    if abs(x) == math.inf:
        return 0.0
    if abs(x) < 0.25 + 0.25 * n:
        v = (math.pi * x) * (math.pi * x)
        j = n % 2.0  # the power of x
        t = x if j else 1.0
        i = 0.0
        while i < n + j:
            t *= math.pi
            i += 1.0
        t = -t if (n + j) % 4.0 else t
        k = n + j + 1.0
        y = 0.0
        while abs(t) > 1e-18 * abs(y):
            y += t / k
            t *= -v / ((j + 1.0) * (j + 2.0))
            j += 2.0
            k += 2.0
        return y
    y = _cos_of_half_turns(x, 3.0) / (math.pi * x)
    p = 1.0
    i = 0.0
    while i < n:
        y = (p * _cos_of_half_turns(x, i) - (i + 1.0) * y) / x
        p *= math.pi
        i += 1.0
    return y


# ---------------------------------------------------------------------------------------------
# gamma function family


def log_gamma(x):
    """log(abs(gamma(x))), inf at the poles, by math.lgamma.

    Relative accuracy 1e-14, absolute near the zeros. The guards are for errors of math.lgamma.
    """
    if x <= 0.0 and x == np.floor(x):
        return math.inf
    return math.lgamma(x) if x < 2.5e305 else x * math.inf


def log_beta(a, b):
    """log(abs(beta(a, b))). Relative accuracy 1e-14 for positive arguments, absolute near zeros.

    Where the larger argument is at least 10, the difference of its log_gamma and that of the sum is
    taken from Stirling's series, without cancellation (DLMF 5.11.1).
    """
    if a != a or b != b or (a == np.inf and b == np.inf):
        return math.nan
    large, small = (a, b) if a >= b else (b, a)
    total = large + small
    if small <= 0.0 and small == np.floor(small):
        if large != np.floor(large) or total > 0.0 or small == -np.inf or large == np.inf:
            return math.inf
        small = 1.0 - total  # the poles of both gamma functions cancel
        large, small = (large, small) if large >= small else (small, large)
        total = large + small
    if large == np.inf:
        return -math.inf if small > 0.0 else math.inf
    if large < 10.0 or total < 10.0:
        return log_gamma(large) + log_gamma(small) - log_gamma(total)
    change = _stirling_rest(large) - _stirling_rest(total)
    change -= (large - 0.5) * log1p(small / large)
    if small < 10.0:
        return log_gamma(small) + (change + small * (1.0 - log(total)))
    # log_gamma of the smaller one from the series, too: its leading terms cancel against the sum's
    rest = _stirling_rest(small) + HALF_LOG_2PI - 0.5 * log(small)
    return rest + change + small * log(small / total)


def _stirling_rest(x):
    """log_gamma(x) - ((x - 1/2) log(x) - x + log(2 pi) / 2), for x of 10 or more."""
    y = 1.0 / x
    z = y * y
    # B(2j) / (2j (2j - 1) x**(2j - 1)) for j = 1..6
    series = 1.0 / 1188.0 - z * (691.0 / 360360.0)
    series = -1.0 / 1680.0 + z * series
    series = 1.0 / 1260.0 + z * series
    series = -1.0 / 360.0 + z * series
    return y * (1.0 / 12.0 + z * series)


def digamma(x):
    """Derivative of log_gamma. nan at negative integers and -inf; -inf at 0, inf at -0.

    Relative accuracy 1e-14, absolute near the zeros. Reflection for x < 0, recurrence up to
    x >= 10, then the asymptotic series.
    """
    if x == 0.0:
        return _with_sign(np.inf, -x)
    shift = 0.0
    a = x
    if x < 0.0:
        if x == np.floor(x):
            return math.nan
        shift = -math.pi / math.tan(math.pi * (x - np.rint(x)))
        a = 1.0 - x
    while a < 10.0:
        shift -= 1.0 / a
        a += 1.0
    if a == math.inf:
        return a
    # B(2j) / (2j a**(2j)) for j = 1..8
    i = 1.0 / a
    z = i * i
    s = 0.08333333333333333 - z * 0.4432598039215686
    s = -0.021092796092796094 + z * s
    s = 0.007575757575757576 + z * s
    s = -0.004166666666666667 + z * s
    s = 0.003968253968253968 + z * s
    s = -0.008333333333333333 + z * s
    s = 0.08333333333333333 + z * s
    return log(a) - 0.5 * i - z * s + shift


_FEW_FACTORS = 8.0  # of a power that is a product


def _factorial_over_power(n, x):
    """n! / x**(n + 1) for x > 0, without intermediate overflow."""
    y = 1.0 / x
    i = 1.0
    while i <= n and y != 0.0 and y != math.inf:
        y *= i / x
        i += 1.0
    return y


def _trigamma_positive(a):
    """The sum of 1 / (a + j)**2 over j >= 0, for a > 0: recurrence, then the asymptotic series."""
    total = 0.0
    while a < 10.0:
        i = 1.0 / a
        total += i * i
        a += 1.0
    # B(2j) / a**(2j + 1) for j = 1..8 (DLMF 5.15.8)
    i = 1.0 / a
    z = i * i
    s = 1.1666666666666667 - z * 7.092156862745098
    s = -0.2531135531135531 + z * s
    s = 0.07575757575757576 + z * s
    s = -0.03333333333333333 + z * s
    s = 0.023809523809523808 + z * s
    s = -0.03333333333333333 + z * s
    s = 0.16666666666666666 + z * s
    return total + i * (1.0 + i * (0.5 + i * s))


def _polygamma_positive(n, a):
    """n! zeta(n + 1, a), the sum of n! / (a + j)**(n + 1) over j >= 0, for n >= 1 and a > 0.

    It sums the first terms directly and the rest by the Euler-Maclaurin formula. Both are relative
    to (n - 1)! / a**n, as numerator and denominator leave the range of doubles before the quotient.
    """
    if n == 1.0:
        return _trigamma_positive(a)
    lead = _factorial_over_power(n - 1.0, a)
    if lead == 0.0 or lead == math.inf:
        return lead
    c = n / a
    s = n + 1.0
    total = 0.0
    b = a
    term = 1.0
    while b < 10.0 + s:
        total += term
        b += 1.0
        ratio = a / b
        if s > _FEW_FACTORS:
            term = pow(ratio, s)
        else:
            term = ratio * ratio * ratio
            for _ in range(3, int(s)):
                term *= ratio
        if term < 1e-18 * total:
            return lead * (c * total)
    i = 1.0 / b
    z = i * i
    # B(2j) / (2j)! * s (s + 1) ... (s + 2j - 2) / b**(2j - 1) for j = 1..9
    f = 8.586062056277845e-15 * ((s + 15.0) * (s + 16.0) * z)
    f = (f - 3.3896802963225827e-13) * ((s + 13.0) * (s + 14.0) * z)
    f = (f + 1.3382536530684679e-11) * ((s + 11.0) * (s + 12.0) * z)
    f = (f - 5.284190138687493e-10) * ((s + 9.0) * (s + 10.0) * z)
    f = (f + 2.08767569878681e-08) * ((s + 7.0) * (s + 8.0) * z)
    f = (f - 8.267195767195768e-07) * ((s + 5.0) * (s + 6.0) * z)
    f = (f + 3.306878306878307e-05) * ((s + 3.0) * (s + 4.0) * z)
    f = (f - 0.001388888888888889) * ((s + 1.0) * (s + 2.0) * z)
    f = (f + 0.08333333333333333) * (s * i)
    return lead * (c * total + term * (b / a + c * (0.5 + f)))


def polygamma(n, x):
    """Derivative of order n of digamma; nan unless n is an integer-valued number >= 0.

    It is (-1)**(n + 1) inf at the poles; for n = 0 it is digamma. Relative accuracy 1e-13 for n up
    to 100, absolute (to the largest term of the reflection) near the zeros on the negative axis.
    """
    n = np.float64(n)
    if not (n >= 0.0 and n == np.floor(n) and n < math.inf):
        return math.nan
    if n == 0.0:
        return digamma(x)
    odd = n != 2.0 * np.floor(0.5 * n)
    if x > 0.0:
        y = _polygamma_positive(n, x) if x < math.inf else 0.0
    elif x == np.floor(x):
        y = math.inf
    else:
        # The sum over j >= 0 is the sum over all integers j, which depends only on the distance d
        # of x from the nearest integer, minus the sum over j < 0. nan is handled here too.
        d = x - np.rint(x)
        y = _factorial_over_power(n, abs(d))
        y = -y if d < 0.0 and not odd else y
        if abs(y) < math.inf:
            rest = _polygamma_positive(n, 1.0 - d) - _polygamma_positive(n, 1.0 - x)
            y += _polygamma_positive(n, 1.0 + d) + (rest if odd else -rest)
    return y if odd else -y
