"""Elementary functions for float64 that a compiler can vectorise.

Every function takes and returns one float64. The bodies are straight-line arithmetic: no branches,
table look-ups or libm calls, only conditional expressions with cheap operands, which become vector
selects. A loop ``for i in range(n): out[i] = exp(x[i])`` therefore vectorises, which a loop over
``math.exp`` does not. The exceptions are ``sin``, ``cos`` and ``tan``: they fall back to libm above
``REDUCED_LIMIT``, and a branch per element prevents vectorisation. If ``abs(x) <= REDUCED_LIMIT``
holds for a whole block, a caller uses ``sin_reduced`` and its siblings.

The source text of the functions is copied into generated modules, together with the functions and
constants they use. They are therefore plain functions with numeric constants and no arrays.

Compilation assumes

* ``error_model="numpy"``, since Python's check for ZeroDivisionError is a branch;
* ``forceinline=True``, since a call that is not inlined is not vectorised;
* no fastmath flag except, optionally, ``"contract"``. Results stay within the stated bounds with
  and without contraction. Error-free sums are used only on values that are not products, or
  whose products are exact in 53 bits, so fusing them changes nothing. All other flags (``reassoc``,
  ``nnan``, ``nsz``...) would break the rounding and compensation steps.

The functions also work in plain Python, on float or numpy.float64; NumPy may then warn about an
intended overflow or invalid operation. Clamps are conditional expressions, since min and max do not
specify nan.

Bounds in docstrings are the largest errors observed in comparison with mpmath, in units in the last
place (ulp), rounded up. Polynomials are minimax approximations from a weighted Remez exchange in
50-digit arithmetic, rounded to doubles; a comment at each states the approximated function, the
interval, and the maximal error relative to the function that uses it.
"""

# ruff: noqa: FURB136

import math

import numpy as np

# Adding and subtracting 1.5 * 2**52 rounds to the nearest integer; after the addition alone,
# the low bits of the double are that integer in two's complement.
ROUND_SHIFT = 6755399441055744.0
SIGN_BIT = -9223372036854775808
HEAD_MASK = -134217728  # clears the low 27 bits, which leaves 26 significant bits
MANTISSA_MASK = 4503599627370495
SQRT_HALF_BITS = 4604544271217802189
SQRT_HALF_TO_ONE = 2638147582215219  # bits(1.0) - SQRT_HALF_BITS
MIN_NORMAL = 2.2250738585072014e-308

# A constant that is split into _HI and _LO has a short _HI: its product with an integer of up to 11
# bits (LN2, LOG10_2) or with a 26-bit double (INV_LN2, INV_LN10) is exact.
LN2 = 0.6931471805599453
LN2_HI = 0.6931471805598903
LN2_LO = 5.497923018708371e-14
INV_LN2 = 1.4426950408889634
INV_LN2_HI = 1.4426950216293335
INV_LN2_LO = 1.9259629911266175e-08
INV_LN10_HI = 0.4342944771051407
INV_LN10_LO = 4.798111141615973e-09
LOG10_2_HI = 0.30102999566395283
LOG10_2_LO = 2.8363394551044964e-14
THIRD = 0.3333333333333333

# pi/2 in three parts of 37, 37 and 53 bits: multiples up to 2**16 of the first two are exact.
TWO_OVER_PI = 0.6366197723675814
PIO2_HI = 1.5707963267923333
PIO2_MID = 2.5633441515839558e-12
PIO2_LO = 1.0562999066987428e-23
# Largest abs(x) for sin_reduced, cos_reduced and tan_reduced (below 2**16 * pi/2).
REDUCED_LIMIT = 100000.0


def _bits(x):
    """Bit pattern of a float64 as int64."""
    return np.float64(x).view(np.int64)


def _from_bits(b):
    """The float64 with the int64 bit pattern b."""
    return np.int64(b).view(np.float64)


def _head(x):
    """The leading 26 bits of x, so that products of two heads are exact."""
    return _from_bits(_bits(x) & HEAD_MASK)


def _with_sign(magnitude, x):
    """A non-negative magnitude with the sign bit of x."""
    return _from_bits(_bits(magnitude) | (_bits(x) & SIGN_BIT))


# ---------------------------------------------------------------------------------------------
# exponentials


def _pow2(b):
    """2**k, where k in [-1022, 1023] is the integer in the low bits of b."""
    return _from_bits((b + 1023) << 52)


def _scale(p, b):
    """p * 2**k for k in [-2044, 2046] in the low bits of b, rounded once.

    It uses two factors, since 2**k itself may overflow or underflow. The first product is exact.
    """
    half = b >> 1
    return (p * _pow2(half)) * _pow2(b - half)


def _exp_tail(r):
    """e**r - 1 - r for abs(r) <= log(2)/2."""
    # (e**r - 1 - r) / r**2, degree 9; error 2**-57 of e**r and 2**-55.4 of e**r - 1
    z = r * r
    even = 2.4801506689829066e-05 + z * 2.7625545974027996e-07
    odd = 2.7557229642645187e-06 + z * 2.5113975604656118e-08
    even = 0.0013888888930172149 + z * even
    odd = 0.00019841269900989223 + z * odd
    even = 0.04166666666658206 + z * even
    odd = 0.008333333333315613 + z * odd
    even = 0.5000000000000004 + z * even
    odd = 0.16666666666666685 + z * odd
    return z * (even + r * odd)


def _exp_reduced(x, shift):
    """e**x * 2**shift for x in [-746, 712], by x = k log(2) + r."""
    kb = x * INV_LN2 + ROUND_SHIFT
    k = kb - ROUND_SHIFT
    r = (x - k * LN2_HI) - k * LN2_LO
    return _scale(1.0 + (r + _exp_tail(r)), _bits(kb) + shift)


def exp(x):
    """e**x. inf above 709.78, gradual underflow to 0 below -745.13. At most 1 ulp."""
    # nan passes the tests. Both limits are beyond the last finite, nonzero result. Below, the
    # product would underflow, for which processors take more than a hundred cycles.
    y = 710.0 if x > 710.0 else x
    y = _exp_reduced(0.0 if x < -746.0 else y, 0)
    return 0.0 if x < -746.0 else y


def exp2(x):
    """2**x, exact for integers. inf from 1024, gradual underflow to 0 at -1075. At most 1 ulp."""
    y = 1025.0 if x > 1025.0 else x
    y = 0.0 if x < -1080.0 else y  # as in `exp`
    kb = y + ROUND_SHIFT
    r = (y - (kb - ROUND_SHIFT)) * LN2
    y = _scale(1.0 + (r + _exp_tail(r)), _bits(kb))
    return 0.0 if x < -1080.0 else y


def _expm1_parts(x, shift):
    """e**x - 1 as an unevaluated sum (hi, lo), for x in [-60, 709]; 2**shift * e**x - 1 in general.

    With x = k log(2) + r: 2**k * (1 + r + tail) - 1, where (2**k - 1) + 2**k * r is summed without
    error. For k >= 54 the first difference is rounded, with an error of at most half an ulp.
    """
    kb = x * INV_LN2 + ROUND_SHIFT
    k = kb - ROUND_SHIFT
    t = x - k * LN2_HI
    u = k * LN2_LO
    r = t - u
    # (t - r) - u is the rounding error of r
    tail = _exp_tail(r) + ((t - r) - u)
    s = _pow2(_bits(kb) + shift)
    a = s - 1.0
    b = s * r
    hi = a + b
    c = hi - a
    err = (a - (hi - c)) + (b - c)
    return hi, err + s * tail


def expm1(x):
    """e**x - 1, accurate near 0 (sign of zero kept). inf above 709.78. At most 1.4 ulp."""
    c = 710.0 if x > 710.0 else x
    c = -60.0 if c < -60.0 else c
    # 2**1024 is not a double: near the overflow bound, twice e**x / 2
    big = x > 709.0
    hi, lo = _expm1_parts(c, -1 if big else 0)
    y = hi + lo
    y = 2.0 * y if big else y
    return x if abs(x) < 1e-300 else y


def sigmoid(x):
    """1 / (1 + e**-x), without overflow and with e**x for the negative tail. At most 2.1 ulp."""
    z = exp(-abs(x))
    return (z if x < 0.0 else 1.0) / (1.0 + z)


def _half_exp(x):
    """e**x / 2 for x >= 0, finite up to x = 710.47."""
    return _exp_reduced(712.0 if x > 712.0 else x, -1)


def cosh(x):
    """Hyperbolic cosine. At most 1.5 ulp."""
    h = _half_exp(abs(x))
    return h + 0.25 / h


def sinh(x):
    """Hyperbolic sine, odd including signed zeros. At most 1.6 ulp."""
    a = abs(x)
    h = _half_exp(a)
    large = h - 0.25 / h
    # (sinh(x) - x) / x**3 in x**2 on [0, 1], degree 6, error 2**-63
    z = x * x
    p = 1.6057243127615994e-10 + z * 7.759236948052229e-13
    p = 2.5052123357738043e-08 + z * p
    p = 2.755731915563601e-06 + z * p
    p = 0.00019841269841436545 + z * p
    p = 0.00833333333333314 + z * p
    p = 0.16666666666666669 + z * p
    small = x + x * (z * p)
    return small if a < 1.0 else _with_sign(large, x)


def tanh(x):
    """Hyperbolic tangent, odd including signed zeros. At most 1 ulp.

    (E - 1) / (E + 1) with E = e**(2 abs(x)), where both sums are pairs and the quotient is
    corrected by its exact remainder.
    """
    a = 2.0 * abs(x)
    n, lo = _expm1_parts(709.4 if a > 709.4 else a, 0)
    hi = n + lo
    lo = (n - hi) + lo
    s = hi + 2.0
    c = s - hi
    err = (hi - (s - c)) + (2.0 - c)
    d = _head(s)
    rest = (s - d) + (err + lo)
    inv = 1.0 / s
    q = _head(hi * inv)
    y = q + (((hi - q * d) - q * rest) + lo) * inv
    return x if abs(x) < 1e-9 else _with_sign(y, x)


# ---------------------------------------------------------------------------------------------
# logarithms


def _log_split(x):
    """(k, m) with x = m * 2**k, sqrt(1/2) <= m < sqrt(2) for finite x > 0; k is a float."""
    tiny = x < MIN_NORMAL
    b = _bits(x * 18014398509481984.0 if tiny else x) + SQRT_HALF_TO_ONE
    # The biased exponent with the exponent bits of 2**52 is a double, without conversion.
    k = _from_bits(((b >> 52) & 2047) | 4841369599423283200)
    k = k - (4503599627371573.0 if tiny else 4503599627371519.0)
    return k, _from_bits((b & MANTISSA_MASK) + SQRT_HALF_BITS)


def _log_tail(s):
    """log((1 + s) / (1 - s)) / s - 2 for abs(s) <= (sqrt(2) - 1) / (sqrt(2) + 1)."""
    z = s * s
    # the result divided by s**2, in s**2 on [0, 0.02944], degree 6, error 2**-58.4
    w = z * z
    even = 0.18183546408088985 + w * 0.14792036429186128
    odd = 0.22222198954490036 + w * 0.15314471584586065
    even = 0.2857142873818299 + w * even
    odd = 0.39999999999436864 + w * odd
    even = 0.6666666666666731 + w * even
    return z * (even + z * odd)


def _log_domain(x, y):
    """y where 0 < x < inf, else the value of a logarithm: -inf at 0, nan below, inf at inf."""
    y = y if x < math.inf else x
    edge = -math.inf if x == 0.0 else math.nan
    return y if x > 0.0 else edge


def log(x):
    """Natural logarithm. -inf at both zeros, nan below. At most 1 ulp.

    x = 2**k (1 + f); log(1 + f) = log((1 + s) / (1 - s)) with s = f / (2 + f), in the form
    f - f**2/2 + s (f**2/2 + tail), whose largest term f is exact.
    """
    k, m = _log_split(x)
    f = m - 1.0
    h = 0.5 * f * f
    s = f / (2.0 + f)
    y = k * LN2_HI - ((h - (s * (h + _log_tail(s)) + k * LN2_LO)) - f)
    return _log_domain(x, y)


def _log_scaled(x, c_hi, c_lo, k_hi, k_lo):
    """k * (k_hi + k_lo) + log(m) * (c_hi + c_lo) for x = 2**k m: log to another base."""
    k, m = _log_split(x)
    f = m - 1.0
    h = 0.5 * f * f
    s = f / (2.0 + f)
    hi = _head(f - h)
    lo = ((f - hi) - h) + s * (h + _log_tail(s))
    a = k * k_hi
    b = hi * c_hi
    y = a + b
    # abs(a) > abs(b) or a == 0, so this is the rounding error of the sum
    err = (a - y) + b
    return _log_domain(x, y + (err + (k * k_lo + ((lo + hi) * c_lo + lo * c_hi))))


def log2(x):
    """Base 2 logarithm, exact for powers of 2; otherwise like log. At most 1 ulp."""
    return _log_scaled(x, INV_LN2_HI, INV_LN2_LO, 1.0, 0.0)


def log10(x):
    """Base 10 logarithm, domain as for log. At most 1 ulp."""
    return _log_scaled(x, INV_LN10_HI, INV_LN10_LO, LOG10_2_HI, LOG10_2_LO)


def log1p(x):
    """log(1 + x), accurate near 0 (sign of zero kept). -inf at -1, nan below. At most 1.4 ulp.

    It is log(u) for u = 1 + x, with the rounding error of that sum, scaled like u, added to f.
    """
    u = 1.0 + x
    c = u - x
    err = (x - (u - c)) + (1.0 - c)
    # u is at least 2**-53, never subnormal
    b = _bits(u) + SQRT_HALF_TO_ONE
    e = (b >> 52) & 2047
    k = _from_bits(e | 4841369599423283200) - 4503599627371519.0
    m = _from_bits((b & MANTISSA_MASK) + SQRT_HALF_BITS)
    # err * 2**-k, halved first: k may be 1024
    f = (m - 1.0) + (0.5 * err) * _from_bits((2047 - e) << 52)
    h = 0.5 * f * f
    s = f / (2.0 + f)
    y = k * LN2_HI - ((h - (s * (h + _log_tail(s)) + k * LN2_LO)) - f)
    y = _log_domain(u, y)
    return x if abs(x) < 1e-300 else y


def softplus(x):
    """log(1 + e**x), without overflow and with e**x for the negative tail. At most 2.1 ulp."""
    z = exp(-abs(x))
    # log(1 + z) for z in [0, 1], as in log with k = 0 or 1
    big = z > 0.41421356237309503
    f = 0.5 * (z - 1.0) if big else z
    h = 0.5 * f * f
    s = f / (2.0 + f)
    y = f - (h - s * (h + _log_tail(s)))
    return (x if x > 0.0 else 0.0) + (y + LN2 if big else y)


# ---------------------------------------------------------------------------------------------
# powers


def _log_pair(x):
    """log(x) as an unevaluated sum (hi, lo) with relative error below 2**-64, for finite x > 0.

    log(m) = 2 s (1 + T), T = s**2/3 + s**4 Q(s**2), for s = (m - 1) / (m + 1). Here s and T are
    pairs with 26-bit heads, so that the leading products are exact.
    """
    k, m = _log_split(x)
    f = m - 1.0
    d = m + 1.0
    d_lo = m - (d - 1.0)
    dh = _head(d)
    inv = 1.0 / d
    s = _head(f * inv)
    sl = ((f - s * dh) - s * ((d - dh) + d_lo)) * inv
    # s**2
    z = s * s
    zl = sl * (2.0 * s + sl)
    zz = z + zl
    # (atanh(s)/s - 1 - s**2/3) / s**4 in s**2 on [0, 0.02944], degree 6, error 2**-66.2
    w = zz * zz
    even = 0.0769335666757936 + w * 0.06594143348665416
    odd = 0.09090892712077077 + w * 0.06628877643636161
    even = 0.11111111253161772 + w * even
    odd = 0.14285714285093706 + w * odd
    even = 0.2000000000000102 + w * even
    # T
    t = _head(zz * THIRD)
    tl = ((z - 3.0 * t) + zl) * THIRD + w * (even + zz * odd)
    # s + s T
    g = s * t
    hi = s + g
    lo = ((s - hi) + g) + (sl + (s * tl + sl * (t + tl)))
    # k log(2) + 2 (hi + lo)
    a = k * LN2_HI
    b = 2.0 * hi
    y = a + b
    return y, ((a - y) + b) + (2.0 * lo + k * LN2_LO)


def pow(x, y):
    """x**y with the special values of IEEE 754. At most 1 ulp.

    y log(abs(x)) as a pair of doubles, then its exponential; signs and exceptions follow.
    """
    a = abs(x)
    hi, lo = _log_pair(a)
    log_a = hi + lo
    h = _head(log_a)
    yh = _head(y)
    e_hi = yh * h
    e_lo = yh * ((hi - h) + lo) + (y - yh) * log_a
    e = e_hi + e_lo
    e_lo = (e_hi - e) + e_lo
    e = 0.0 if e < -801.0 else e  # as in `exp`: the power is 0, see below
    # the exponential of e + e_lo, where every sum but the last carries its rounding error
    kb = e * INV_LN2 + ROUND_SHIFT
    k = kb - ROUND_SHIFT
    t = e - k * LN2_HI
    u = e_lo - k * LN2_LO
    r = t + u
    u = (t - r) + u
    v = 1.0 + r
    w = (1.0 - v) + r
    out = _scale(v + (w + (_exp_tail(r) + u)), _bits(kb))
    # far overflow and underflow, where the steps above may give nan, and base 0 or inf
    log_a = -math.inf if a == 0.0 else log_a
    log_a = math.inf if a == math.inf else log_a
    e = y * log_a
    out = 0.0 if e < -800.0 else out
    out = math.inf if e > 800.0 else out
    # negative bases
    whole = np.floor(y) == y
    half = 0.5 * y
    odd = whole & (np.floor(half) != half)
    out = _from_bits(_bits(out) | (_bits(x) & (SIGN_BIT if odd else 0)))
    out = math.nan if (x < 0.0) & (a < math.inf) & (not whole) else out
    out = x + y if math.isnan(x) | math.isnan(y) else out
    one = (y == 0.0) | (x == 1.0) | ((x == -1.0) & (abs(y) == math.inf))
    return 1.0 if one else out


# ---------------------------------------------------------------------------------------------
# trigonometric functions


def _trig_reduce(x):
    """(bits, hi, lo): x = n pi/2 + hi + lo, abs(hi) <= pi/4, n in the low bits.

    Cody-Waite reduction for abs(x) <= REDUCED_LIMIT: the first two differences are exact up to the
    error term that is kept, and the total error is less than 2**-111.
    """
    nb = x * TWO_OVER_PI + ROUND_SHIFT
    n = nb - ROUND_SHIFT
    t = x - n * PIO2_HI
    u = n * PIO2_MID
    r = t - u
    lo = ((t - r) - u) - n * PIO2_LO
    hi = r + lo
    return _bits(nb), hi, (r - hi) + lo


def _sin_quarter(r, lo):
    """sin(r + lo) for abs(r) <= pi/4 and lo below half an ulp of r."""
    z = r * r
    # (sin(r) - r) / r**3 in r**2, degree 5, error 2**-58
    p = -2.5050762037867578e-08 + z * 1.5896998479529607e-10
    p = 2.7557313720548577e-06 + z * p
    p = -0.00019841269829904703 + z * p
    p = 0.008333333333322562 + z * p
    p = -0.16666666666666632 + z * p
    return r + ((r * z) * p + lo * (1.0 - 0.5 * z))


def _cos_quarter(r, lo):
    """cos(r + lo) for abs(r) <= pi/4 and lo below half an ulp of r."""
    z = r * r
    # (cos(r) - 1 + r**2/2) / r**4 in r**2, degree 5, error 2**-64
    p = 2.0875758062882802e-09 + z * -1.1361303221124646e-11
    p = -2.755731463436247e-07 + z * p
    p = 2.4801587290576154e-05 + z * p
    p = -0.0013888888888876133 + z * p
    p = 0.041666666666666616 + z * p
    h = 0.5 * z
    w = 1.0 - h
    return w + (((1.0 - w) - h) + ((z * z) * p - r * lo))


def _sin_shifted(x, quarters):
    """sin(x + quarters * pi/2) for abs(x) <= REDUCED_LIMIT."""
    b, r, lo = _trig_reduce(x)
    b = b + quarters
    y = _cos_quarter(r, lo) if (b & 1) != 0 else _sin_quarter(r, lo)
    return _from_bits(_bits(y) ^ ((b & 2) << 62))


def sin_reduced(x):
    """sin(x) for abs(x) <= REDUCED_LIMIT; keeps the sign of zero. At most 0.8 ulp."""
    return x if abs(x) < 1e-9 else _sin_shifted(x, 0)


def cos_reduced(x):
    """cos(x) for abs(x) <= REDUCED_LIMIT. At most 0.8 ulp."""
    return _sin_shifted(x, 1)


def tan_reduced(x):
    """tan(x) for abs(x) <= REDUCED_LIMIT; keeps the sign of zero. At most 2 ulp."""
    b, r, lo = _trig_reduce(x)
    s = _sin_quarter(r, lo)
    c = _cos_quarter(r, lo)
    odd = (b & 1) != 0
    y = (c if odd else s) / (s if odd else c)
    y = -y if odd else y
    return x if abs(x) < 1e-9 else y


def sin(x):
    """sin(x) for every x, nan for infinities: sin_reduced up to its limit, then libm."""
    if abs(x) <= REDUCED_LIMIT:
        return sin_reduced(x)
    return math.sin(x) if abs(x) < math.inf else x - x


def cos(x):
    """cos(x) for every x, nan for infinities: cos_reduced up to its limit, then libm."""
    if abs(x) <= REDUCED_LIMIT:
        return cos_reduced(x)
    return math.cos(x) if abs(x) < math.inf else x - x


def tan(x):
    """tan(x) for every x, nan for infinities: tan_reduced up to its limit, then libm."""
    if abs(x) <= REDUCED_LIMIT:
        return tan_reduced(x)
    return math.tan(x) if abs(x) < math.inf else x - x
