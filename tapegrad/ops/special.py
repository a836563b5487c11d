"""Elementwise functions for statistics and machine learning."""

from __future__ import annotations

import numpy as np

from tapegrad.kernels.functions import slopes, special, vmath
from tapegrad.ops.elementwise import LN2, absolute, tanh
from tapegrad.ops.piecewise import INFINITY, where
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.kinds import elementwise
from tapegrad.ops.table.op import Fact, internal, public, refuse_complex

TWO_OVER_SQRT_PI = 1.1283791670955126


@elementwise(np.logaddexp, compiled=True, facts=Fact.VANISHING)
def logaddexp(x, y):
    """log(exp(x) + exp(y)) without overflow; equal arguments, even infinite ones, share equally."""
    found = max(x, y) + vmath.softplus(-abs(x - y))
    return x + LN2 if x == y else found


@internal
@elementwise(facts=Fact.VANISHING)
def share(x, y):
    """exp(x) / (exp(x) + exp(y)) of the difference without rounding; 0.5 for equal infinities."""
    return slopes.share(x, y)


@share.partials
def _(z, x, y):
    alike = (x == y) & (absolute(x) == INFINITY)
    slope = where(alike, 0.0, z * share(y, x))
    return slope, -slope


@logaddexp.partials
def _(x, y):
    return share(x, y), share(y, x)


@elementwise(np.logaddexp2, facts=Fact.VANISHING)
def logaddexp2(x, y):
    """log2(2**x + 2**y) without overflow; equal arguments, even infinite ones, share equally."""
    found = max(x, y) + vmath.softplus(-abs(x - y) * LN2) / LN2
    return x + 1.0 if x == y else found


@internal
@elementwise(facts=Fact.VANISHING)
def share2(x, y):
    """2**x / (2**x + 2**y) of the difference without rounding; 0.5 for equal infinities."""
    return slopes.share2(x, y)


@share2.partials
def _(z, x, y):
    alike = (x == y) & (absolute(x) == INFINITY)
    slope = where(alike, 0.0, LN2 * z * share2(y, x))
    return slope, -slope


@logaddexp2.partials
def _(x, y):
    return share2(x, y), share2(y, x)


@elementwise(complex_function=lambda x: 1.0 / (1.0 + np.exp(-x)), facts=Fact.VANISHING)
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow (scipy.special.expit)."""
    return vmath.sigmoid(x)


@internal
@elementwise(
    complex_function=lambda x, y: y * (1.0 - y),
    given={"y": sigmoid},
    facts=Fact.VANISHING,
)
def sigmoid_slope(x, y):
    """Derivative of sigmoid at x, where it is y; ``1 - y`` has lost digits where y is next to 1."""
    return slopes.sigmoid_slope(x)


@sigmoid_slope.in_numba
def _(x, y):
    return y * (1.0 - y) if y < 0.75 else slopes.sigmoid_slope(x)


@sigmoid_slope.partials
def _(x, z):
    return (-z * tanh(0.5 * x),)


@sigmoid.partial("x")
def _(x, z):
    return sigmoid_slope(x, z)


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
    return special.gaussian(x)


@gaussian.partial("x")
def _(x, z):
    finite = where(absolute(x) > 40.0, 40.0, x)  # z is 0 there
    return -2.0 * finite * z


@internal
@elementwise(facts=Fact.VANISHING)
def normal(x):
    """exp(-x**2 / 2), with slope 0 at infinity."""
    return special.normal(x)


@normal.partial("x")
def _(x, z):
    finite = where(absolute(x) > 60.0, 60.0, x)  # z is 0 there
    return -finite * z


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


@internal
@elementwise()
def erfcx_derivative(n, x):
    """n-th derivative of ``exp(x**2) * erfc(x)``, which cancels in terms of lower ones."""
    return special.erfcx_derivative(n, x)


@erfcx_derivative.partial("x")
def _(n, x):
    return erfcx_derivative(n + 1.0, x)


@internal
@elementwise(facts=Fact.SINGULAR | Fact.POLE)
def log_ratio(x, y):
    """log(x / y), also where the quotient overflows or underflows."""
    return slopes.log_ratio(x, y)


@log_ratio.partials
def _(x, y):
    return 1.0 / x, -1.0 / y


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
