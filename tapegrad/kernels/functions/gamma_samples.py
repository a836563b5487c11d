"""How samples of a gamma distribution depend on its shape, for float64, under the rules of `vmath`.

A sample z = e**y of the gamma distribution with shape a moves with a so that its probability
P(a, z) stays the same: dy/da = -(dP/da) / (z p), where p is the density. With the substitution
t = z e**s in the incomplete gamma functions and d = y - digamma(a), this is

    dy/da = integral over s > 0 of (s + d) e**(a s - z (e**s - 1))
          = integral over s > 0 of (s - d) e**(-a s + z (1 - e**-s))

The first form has a positive integrand if d >= 0, the second one if d <= 0. So no digits cancel,
wherever the sample is. The integrands are smooth. They are computed by Gauss-Legendre quadrature up
to where they have decayed, which follows from the slope and the curvature of the exponent. The
series of P is used where the second form has no such end, or the series is shorter.
"""

import math

from tapegrad.kernels.functions.special import digamma, polygamma
from tapegrad.kernels.functions.vmath import exp, expm1, log1p

LEAST_EXPONENT = 36.0  # what is below e**-36 is not integrated


def _curved(s):
    """e**s - 1 - s, with the relative accuracy that large multiples of it in an exponent need."""
    t = 1.0 + s * (1.0 / 7.0) * (1.0 + s * (1.0 / 8.0) * (1.0 + s * (1.0 / 9.0)))
    t = 1.0 + s * (1.0 / 4.0) * (1.0 + s * (1.0 / 5.0) * (1.0 + s * (1.0 / 6.0) * t))
    t = 0.5 * s * s * (1.0 + s * (1.0 / 3.0) * t)
    return t if abs(s) < 0.1 else expm1(s) - s


def _integral(a, z, sign, p0, p1, p2):
    """Integral over s > 0 of (p0 + p1 s + p2 s**2) e**(sign a s - z (e**(sign s) - 1)).

    For z >= 1.5 with sign 1 and for a >= 15 with sign -1, where the exponent decreases, except for
    a slope of at most 1 near s = 0.
    """
    slope = sign * (z - a)
    c = LEAST_EXPONENT / z
    end = math.sqrt(2.0 * c)
    if sign > 0.0:
        end = min(end, log1p(c + end))  # solves e**s - 1 - s = c in one step from above
    else:
        end += 0.4 * c
    if slope * end > LEAST_EXPONENT:
        end = LEAST_EXPONENT / slope
    total = 0.0
    # nodes and weights of degree 24 on [0, 1]
    for node, weight in (
        (0.00240639000148932, 0.0061706148999936),
        (0.012635722014345251, 0.014265694314466832),
        (0.030862723998633622, 0.022138719408709904),
        (0.056792236497799485, 0.02964929245771839),
        (0.08999900701304854, 0.03667324070554015),
        (0.12993790421072282, 0.04309508076597664),
        (0.17595317403151223, 0.04880932605205694),
        (0.22728926430558022, 0.05372213505798282),
        (0.2831032461869774, 0.0577528340268628),
        (0.3424786601519183, 0.060835236463901696),
        (0.40444056626319186, 0.06291872817341415),
        (0.4679715535686972, 0.06396909767337608),
        (0.5320284464313028, 0.06396909767337608),
        (0.5955594337368082, 0.06291872817341415),
        (0.6575213398480817, 0.060835236463901696),
        (0.7168967538130225, 0.0577528340268628),
        (0.7727107356944197, 0.05372213505798282),
        (0.8240468259684878, 0.04880932605205694),
        (0.8700620957892772, 0.04309508076597664),
        (0.9100009929869515, 0.03667324070554015),
        (0.9432077635022005, 0.02964929245771839),
        (0.9691372760013663, 0.022138719408709904),
        (0.9873642779856547, 0.014265694314466832),
        (0.9975936099985107, 0.0061706148999936),
    ):
        s = end * node
        total += weight * (p0 + s * (p1 + s * p2)) * exp(-slope * s - z * _curved(sign * s))
    return end * total


def _distance(a, y, z):
    """y - digamma(a) for z = e**y, without cancellation where a is large and z is close to it."""
    i = 1.0 / a
    relative = (z - a) * i
    if a > 100.0 and abs(relative) < 0.5:
        w = i * i  # log(a) - digamma(a) is the asymptotic series
        return log1p(relative) + i * (0.5 + i * (1.0 / 12.0 - w * (1.0 / 120.0 - w / 252.0)))
    return y - digamma(a)


def _takes_series(a, z, d):
    """Whether the series of P converges fast and does not cancel."""
    return z < 1.5 or (d < 0.0 and a < 15.0)


def log_gamma_slope(a, y):
    """dy/da of the logarithm y of a gamma sample at constant probability, for a > 0.

    Relative accuracy 1e-13. The series is
    P(a, z) = z**a e**-z / gamma(a + 1) * (sum over k of z**k / ((a + 1) ... (a + k))).
    """
    if not a > 0.0:
        return math.nan
    z = exp(y)
    d = _distance(a, y, z)
    if not _takes_series(a, z, d):
        return _integral(a, z, 1.0 if d >= 0.0 else -1.0, abs(d), 1.0, 0.0)
    k = a + 1.0
    h = 1.0 / k
    t = z * h
    m = 1.0 + t
    rate = t * h  # minus the derivative of m
    while t * h > 1e-17 * rate:
        k += 1.0
        h += 1.0 / k
        t *= z / k
        m += t
        rate += t * h
    return (rate - m * (y - digamma(a + 1.0))) / a


def log_gamma_curvature(a, y):
    """Derivative of `log_gamma_slope` with respect to a, at constant y.

    Relative accuracy 1e-11 for a up to 1e5, absolute (to the slope over a) near its zeros.
    """
    if not a > 0.0:
        return math.nan
    z = exp(y)
    d = _distance(a, y, z)
    if not _takes_series(a, z, d):
        sign = 1.0 if d >= 0.0 else -1.0
        return sign * _integral(a, z, sign, -polygamma(1.0, a), abs(d), 1.0)
    k = a + 1.0
    h = 1.0 / k
    squares = h * h
    t = z * h
    m = 1.0 + t
    rate = t * h
    bend = t * (h * h + squares)  # second derivative of m
    while t * h * h > 1e-17 * bend:
        k += 1.0
        h += 1.0 / k
        squares += 1.0 / (k * k)
        t *= z / k
        m += t
        rate += t * h
        bend += t * (h * h + squares)
    e = y - digamma(a + 1.0)
    slope = (rate - m * e) / a
    return (rate * e - bend + m * polygamma(1.0, a + 1.0) - slope) / a
