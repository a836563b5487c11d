"""Elementwise functions for statistics and machine learning."""

from __future__ import annotations

import math

import numpy as np

from tapegrad.kernels import special, vmath
from tapegrad.ops.composite import composite
from tapegrad.ops.elementwise import LN2, absolute
from tapegrad.ops.kinds import elementwise
from tapegrad.ops.op import Fact, internal, public, refuse_complex
from tapegrad.ops.piecewise import INFINITY, where

TWO_OVER_SQRT_PI = 1.1283791670955126


@elementwise(np.logaddexp, compiled=True, facts=Fact.VANISHING)
def logaddexp(x, y):
    """log(exp(x) + exp(y)) without overflow; equal arguments, even infinite ones, share equally."""
    return x + LN2 if x == y else max(x, y) + vmath.softplus(-abs(x - y))


@logaddexp.partials
def _(x, y):
    # equal infinities must not be subtracted; equal finite numbers are, for second derivatives
    alike = (x == y) & (absolute(x) == INFINITY)  # their difference is nan
    return sigmoid(where(alike, 0.0, x - y)), sigmoid(where(alike, 0.0, y - x))


@elementwise(np.logaddexp2, facts=Fact.VANISHING)
def logaddexp2(x, y):
    """log2(2**x + 2**y) without overflow; equal arguments, even infinite ones, share equally."""
    return x + 1.0 if x == y else max(x, y) + vmath.softplus(-abs(x - y) * LN2) / LN2


@logaddexp2.partials
def _(x, y):
    alike = (x == y) & (absolute(x) == INFINITY)
    return sigmoid(where(alike, 0.0, x - y) * LN2), sigmoid(where(alike, 0.0, y - x) * LN2)


@elementwise(complex_function=lambda x: 1.0 / (1.0 + np.exp(-x)), facts=Fact.VANISHING)
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow (scipy.special.expit)."""
    return vmath.sigmoid(x)


@sigmoid.partial("x")
def _(z):
    return z * (1.0 - z)


@elementwise(facts=Fact.VANISHING)
def softplus(x):
    """log(1 + exp(x)), without overflow."""
    return vmath.softplus(x)


@softplus.partial("x")
def _(x):
    return sigmoid(x)


@internal
@elementwise(facts=Fact.VANISHING)
def gaussian(x):
    """exp(-x**2), with slope 0 at infinity."""
    return vmath.exp(-x * x)


@gaussian.in_numba
def _(x):
    return math.exp(-x * x)


@gaussian.partial("x")
def _(x, z):
    finite = where(absolute(x) > 40.0, 40.0, x)  # z is 0 there
    return -2.0 * finite * z


@public("erf", "special.erf")
@elementwise(facts=Fact.VANISHING)
def erf(x):
    """Error function."""
    return special.erf(x)


@erf.partial("x")
def _(x):
    return TWO_OVER_SQRT_PI * gaussian(x)


@public("erfc", "special.erfc")
@elementwise(facts=Fact.VANISHING)
def erfc(x):
    """Complementary error function, accurate for large x."""
    return special.erfc(x)


@erfc.partial("x")
def _(x):
    return -TWO_OVER_SQRT_PI * gaussian(x)


@public("gammaln", "special.gammaln")
@elementwise(domains={"x": (0.5, 3.0)}, facts=Fact.SINGULAR)
def gammaln(x):
    """Logarithm of the absolute value of the gamma function."""
    return special.log_gamma(x)


@gammaln.partial("x")
def _(x):
    return digamma(x)


@public("digamma", "special.digamma")
@elementwise(domains={"x": (0.5, 3.0)}, facts=Fact.SINGULAR)
def digamma(x):
    """Derivative of gammaln (scipy.special.digamma)."""
    return special.digamma(x)


@digamma.partial("x")
def _(x):
    return polygamma(1.0, x)


@public("polygamma", "special.polygamma")
@elementwise(domains={"x": (0.5, 3.0)}, facts=Fact.SINGULAR)
def polygamma(n, x):
    """n-th derivative of digamma, for integer-valued n (scipy.special.polygamma)."""
    return special.polygamma(n, x)


@polygamma.partial("x")
def _(n, x):
    return polygamma(n + 1.0, x)


@public("expit", "special.expit")
@composite
def expit(x):
    """1 / (1 + exp(-x)) (SciPy's name of `sigmoid`)."""
    return sigmoid(x)


# -- angles ---------------------------------------------------------------------------------------


@public("deg2rad", "radians")
@composite
def deg2rad(x):
    """Convert degrees to radians."""
    refuse_complex("deg2rad", x)
    return x * (np.pi / 180.0)


@public("rad2deg", "degrees")
@composite
def rad2deg(x):
    """Convert radians to degrees."""
    refuse_complex("rad2deg", x)
    return x * (180.0 / np.pi)
