"""How gamma samples depend on their shape: accuracy against mpmath, compiled and in Python."""

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.special

from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.kernels.functions import gamma_samples

SHAPES = [1e-3, 0.02, 0.5, 1.0, 1.7, 3.0, 14.9, 15.1, 80.0, 3e3, 1e5]
# lower and upper tails, and where the code changes from one formula to another
PROBABILITIES = [1e-300, 1e-30, 1e-6, 0.03, 0.4, 0.6, 0.97]
SURVIVALS = [1e-6, 1e-30, 1e-250]


def places(a):
    """Logarithms of samples of a shape, over the whole range."""
    z = [*scipy.special.gammaincinv(a, PROBABILITIES), *scipy.special.gammainccinv(a, SURVIVALS)]
    z += [1.499, 1.501, a, 0.98 * math.exp(scipy.special.digamma(a) + 1e-3)]
    found = [math.log(value) for value in z if value > 0.0]
    return [*found, math.log(1e-6) / a, -30.0 / a]


def exact_slope(a, y):
    """d log z / da at constant probability, from the integrals of the density's derivative."""
    a, y = mp.mpf(a), mp.mpf(y)
    z = mp.exp(y)
    d = y - mp.digamma(a)
    if d > 0 and z > 0.5:
        width = 1 / mp.sqrt(z) if z > 1 else mp.mpf(1)
        points = [width * k for k in (0, 1, 2, 4, 7, 12, 25)]
        return mp.quad(lambda s: (s + d) * mp.exp(a * s - z * mp.expm1(s)), points)
    # P(a, z) = z**a e**-z m / gamma(a + 1), with a series m
    m, rate, t, h, k = mp.mpf(1), mp.mpf(0), mp.mpf(1), mp.mpf(0), 0
    while k < 2 or t * h > mp.eps * rate:
        k += 1
        t *= z / (a + k)
        h += 1 / (a + k)
        m += t
        rate += t * h
    return (rate - m * (y - mp.digamma(a + 1))) / a


@pytest.mark.parametrize("a", SHAPES)
def test_slopes_of_log_gamma_samples(a):
    y = np.array(places(a))
    with mp.workdps(30):
        exact = np.array([float(exact_slope(a, value)) for value in y])
    found = [gamma_samples.log_gamma_slope(a, value) for value in y]
    np.testing.assert_allclose(found, exact, rtol=1e-13)
    np.testing.assert_allclose(FUNCTIONS["log_gamma_slope"](a, y), exact, rtol=1e-13)


@pytest.mark.parametrize("a", [1e-3, 0.5, 14.9, 15.1, 1e5])
def test_curvatures_of_log_gamma_samples(a):
    y = np.array(places(a))
    with mp.workdps(50):
        h = mp.mpf(a) * mp.mpf(10) ** -12
        exact, slopes = [], []
        for value in y:
            one, other = exact_slope(a + h, value), exact_slope(a - h, value)
            exact.append(float((one - other) / (2 * h)))
            slopes.append(float(one + other) / 2)
    found = [gamma_samples.log_gamma_curvature(a, value) for value in y]
    error = np.abs(np.subtract(found, exact)) / (np.abs(exact) + np.array(slopes) / a)
    assert error.max() < 1e-11
    np.testing.assert_allclose(FUNCTIONS["log_gamma_curvature"](a, y), found, rtol=1e-10)


@pytest.mark.parametrize("a", [1e7, 1e9, 1e12])
def test_slopes_of_very_large_shapes(a):
    for u in (-4.0, -0.5, 0.0, 1.5, 5.0):
        y = math.log(a + u * math.sqrt(a))
        with mp.workdps(40):
            # by Gauss-Legendre quadrature in units of the width, which is small
            d = mp.mpf(y) - mp.digamma(a)
            z, width, sign = mp.exp(y), 1 / mp.sqrt(a), 1 if d > 0 else -1

            def density(s):
                return (s + abs(d)) * mp.exp(sign * a * s - z * mp.expm1(sign * s))

            exact = float(mp.quad(density, [width * k for k in range(16)]))
        assert abs(gamma_samples.log_gamma_slope(a, y) / exact - 1.0) < 1e-13


@pytest.mark.parametrize("function", ["log_gamma_slope", "log_gamma_curvature"])
def test_outside_the_domain(function):
    f = getattr(gamma_samples, function)
    for a, y in [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (2.0, math.nan)]:
        assert math.isnan(f(a, y))
    assert gamma_samples.log_gamma_slope(2.0, -math.inf) == math.inf
    assert np.isnan(FUNCTIONS[function](np.array([math.nan]), 1.0)._a).all()
