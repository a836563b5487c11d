"""Elementwise ops: a scalar formula and its partial derivatives.

In formulas and partials, ``z`` is the output. Where a function has no derivative, the partial
takes the value named in its docstring; ties share the cotangent equally.
"""

from __future__ import annotations

import math

import numpy as np

from tapegrad.kernels import special, vmath
from tapegrad.ops.kinds import composite, elementwise

LN2 = 0.6931471805599453
LN10 = 2.302585092994046
PI = 3.141592653589793
TWO_OVER_SQRT_PI = 1.1283791670955126

# -- arithmetic ------------------------------------------------------------------------------------


@elementwise(np.add)
def add(x, y):
    """Sum."""
    return x + y


@add.partial("x")
def _():
    return 1.0


@add.partial("y")
def _():
    return 1.0


@elementwise(np.subtract)
def subtract(x, y):
    """Difference."""
    return x - y


@subtract.partial("x")
def _():
    return 1.0


@subtract.partial("y")
def _():
    return -1.0


@elementwise(np.multiply)
def multiply(x, y):
    """Product."""
    return x * y


@multiply.partial("x")
def _(y):
    return y


@multiply.partial("y")
def _(x):
    return x


@elementwise(np.divide)
def divide(x, y):
    """Quotient; at y = 0 the derivatives are the infinities or nan of floating-point division."""
    return x / y


@divide.partial("x")
def _(y):
    return 1.0 / y


@divide.partial("y")
def _(z, y):
    return -z / y


@elementwise(np.negative)
def negative(x):
    """Negation."""
    return -x


@negative.partial("x")
def _():
    return -1.0


@elementwise(np.positive)
def positive(x):
    """The value itself, copied."""
    return +x


@positive.partial("x")
def _():
    return 1.0


@elementwise(np.reciprocal)
def reciprocal(x):
    """1 / x."""
    return 1.0 / x


@reciprocal.partial("x")
def _(z):
    return -z * z


@elementwise(np.power, compiled=True)
def power(x, y):
    """X to the power y.

    The derivative in x at y = 0 is 0, also at 0 ** 0; the derivative in y at x = 0 is 0 for y >= 0.
    """
    return vmath.pow(x, y)


@power.partial("x")
def _(x, y):
    return where(y == 0.0, 0.0, y * power(x, y - 1.0))


@power.partial("y")
def _(z, x, y):
    return where((x == 0.0) & (y >= 0.0), 0.0, z * log(where(x == 0.0, 1.0, x)))


@elementwise(np.square)
def square(x):
    """X * x."""
    return x * x


@square.partial("x")
def _(x):
    return 2.0 * x


@elementwise(np.sqrt)
def sqrt(x):
    """Square root; the derivative at 0 is infinite."""
    return math.sqrt(x)


@sqrt.partial("x")
def _(z):
    return 0.5 / z


@elementwise(np.cbrt)
def cbrt(x):
    """Cube root; the derivative at 0 is infinite."""
    return np.cbrt(x)


@cbrt.partial("x")
def _(z):
    return 1.0 / (3.0 * z * z)


@elementwise(np.absolute)
def absolute(x):
    """Absolute value; the derivative at 0 is 0."""
    return abs(x)


@absolute.partial("x")
def _(x):
    return sign(x)


@elementwise(np.hypot)
def hypot(x, y):
    """Square root of x² + y²; the derivatives at (0, 0) are 0."""
    return math.hypot(x, y)


@hypot.partial("x")
def _(z, x):
    return x / where(z == 0.0, 1.0, z)


@hypot.partial("y")
def _(z, y):
    return y / where(z == 0.0, 1.0, z)


# -- exponentials and logarithms -------------------------------------------------------------------


@elementwise(np.exp)
def exp(x):
    """E to the power x."""
    return vmath.exp(x)


@exp.partial("x")
def _(z):
    return z


@elementwise(np.exp2)
def exp2(x):
    """2 to the power x."""
    return vmath.exp2(x)


@exp2.partial("x")
def _(z):
    return z * LN2


@elementwise(np.expm1)
def expm1(x):
    """exp(x) - 1, accurate near 0."""
    return vmath.expm1(x)


@expm1.partial("x")
def _(z):
    return z + 1.0


@elementwise(np.log)
def log(x):
    """Natural logarithm; the derivative at 0 is infinite."""
    return vmath.log(x)


@log.partial("x")
def _(x):
    return 1.0 / x


@elementwise(np.log2)
def log2(x):
    """Logarithm to base 2; the derivative at 0 is infinite."""
    return vmath.log2(x)


@log2.partial("x")
def _(x):
    return 1.0 / (x * LN2)


@elementwise(np.log10)
def log10(x):
    """Logarithm to base 10; the derivative at 0 is infinite."""
    return vmath.log10(x)


@log10.partial("x")
def _(x):
    return 1.0 / (x * LN10)


@elementwise(np.log1p)
def log1p(x):
    """log(1 + x), accurate near 0; the derivative at -1 is infinite."""
    return vmath.log1p(x)


@log1p.partial("x")
def _(x):
    return 1.0 / (1.0 + x)


@elementwise(np.logaddexp, compiled=True)
def logaddexp(x, y):
    """log(exp(x) + exp(y)) without overflow; equal arguments, infinite ones too, share equally."""
    return x + LN2 if x == y else max(x, y) + vmath.softplus(-abs(x - y))


@logaddexp.partial("x")
def _(x, y):
    return sigmoid(where(x == y, 0.0, x - y))


@logaddexp.partial("y")
def _(x, y):
    return sigmoid(where(x == y, 0.0, y - x))


@elementwise(np.logaddexp2)
def logaddexp2(x, y):
    """log2(2**x + 2**y) without overflow; equal arguments, infinite ones too, share equally."""
    return x + 1.0 if x == y else max(x, y) + vmath.softplus(-abs(x - y) * LN2) / LN2


@logaddexp2.partial("x")
def _(x, y):
    return sigmoid(where(x == y, 0.0, x - y) * LN2)


@logaddexp2.partial("y")
def _(x, y):
    return sigmoid(where(x == y, 0.0, y - x) * LN2)


# -- trigonometric and hyperbolic functions --------------------------------------------------------


@elementwise(np.sin, compiled=True)
def sin(x):
    """Sine."""
    return vmath.sin(x)


@sin.partial("x")
def _(x):
    return cos(x)


@elementwise(np.cos, compiled=True)
def cos(x):
    """Cosine."""
    return vmath.cos(x)


@cos.partial("x")
def _(x):
    return -sin(x)


@elementwise(np.tan)
def tan(x):
    """Tangent."""
    return vmath.tan(x)


@tan.partial("x")
def _(z):
    return 1.0 + z * z


@elementwise(np.arcsin)
def arcsin(x):
    """Inverse sine; the derivative at ±1 is infinite."""
    return math.asin(x)


@arcsin.partial("x")
def _(x):
    return 1.0 / sqrt((1.0 - x) * (1.0 + x))


@elementwise(np.arccos)
def arccos(x):
    """Inverse cosine; the derivative at ±1 is infinite."""
    return math.acos(x)


@arccos.partial("x")
def _(x):
    return -1.0 / sqrt((1.0 - x) * (1.0 + x))


@elementwise(np.arctan)
def arctan(x):
    """Inverse tangent."""
    return math.atan(x)


@arctan.partial("x")
def _(x):
    return 1.0 / (1.0 + x * x)


@elementwise(np.arctan2)
def arctan2(x, y):
    """Angle of the point (y, x), in NumPy's order of arguments; the derivatives at 0, 0 are nan."""
    return math.atan2(x, y)


@arctan2.partial("x")
def _(x, y):
    return y / (x * x + y * y)


@arctan2.partial("y")
def _(x, y):
    return -x / (x * x + y * y)


@elementwise(np.sinh)
def sinh(x):
    """Hyperbolic sine."""
    return vmath.sinh(x)


@sinh.partial("x")
def _(x):
    return cosh(x)


@elementwise(np.cosh)
def cosh(x):
    """Hyperbolic cosine."""
    return vmath.cosh(x)


@cosh.partial("x")
def _(x):
    return sinh(x)


@elementwise(np.tanh)
def tanh(x):
    """Hyperbolic tangent."""
    return vmath.tanh(x)


@tanh.partial("x")
def _(z):
    return 1.0 - z * z


@elementwise(np.arcsinh)
def arcsinh(x):
    """Inverse hyperbolic sine."""
    return math.asinh(x)


@arcsinh.partial("x")
def _(x):
    return 1.0 / hypot(x, 1.0)


@elementwise(np.arccosh)
def arccosh(x):
    """Inverse hyperbolic cosine; the derivative at 1 is infinite."""
    return math.acosh(x)


@arccosh.partial("x")
def _(x):
    return 1.0 / (sqrt(x - 1.0) * sqrt(x + 1.0))


@elementwise(np.arctanh)
def arctanh(x):
    """Inverse hyperbolic tangent; the derivative at ±1 is infinite."""
    return math.atanh(x)


@arctanh.partial("x")
def _(x):
    return 1.0 / ((1.0 - x) * (1.0 + x))


@elementwise(np.sinc)
def sinc(x):
    """sin(πx) / (πx), and 1 at 0."""
    return 1.0 if x == 0.0 else math.sin(PI * x) / (PI * x)


@sinc.partial("x")
def _(x):
    # (cos(πx) - sinc(x)) / x cancels near 0, where the Taylor series takes over
    u = PI * x
    v = u * u
    series = -PI * u / 3.0 * (1.0 - v / 10.0 * (1.0 - v / 28.0 * (1.0 - v / 54.0)))
    near = absolute(x) < 0.03
    safe = where(near, 1.0, x)
    return where(near, series, (cos(PI * safe) - sin(PI * safe) / (PI * safe)) / safe)


# -- choices and steps -----------------------------------------------------------------------------


@elementwise(np.where)
def where(condition, x, y):
    """X where the condition holds, else y; the condition is not differentiable."""
    return x if condition else y


@where.partial("x")
def _(condition):
    return where(condition, 1.0, 0.0)


@where.partial("y")
def _(condition):
    return where(condition, 0.0, 1.0)


@elementwise(np.maximum)
def maximum(x, y):
    """The larger value, nan if either is; equal values share the cotangent."""
    return x if x >= y or x != x else y


@maximum.partial("x")
def _(x, y):
    return where(x > y, 1.0, where(x == y, 0.5, 0.0))


@maximum.partial("y")
def _(x, y):
    return where(y > x, 1.0, where(x == y, 0.5, 0.0))


@elementwise(np.minimum)
def minimum(x, y):
    """The smaller value, nan if either is; equal values share the cotangent."""
    return x if x <= y or x != x else y


@minimum.partial("x")
def _(x, y):
    return where(x < y, 1.0, where(x == y, 0.5, 0.0))


@minimum.partial("y")
def _(x, y):
    return where(y < x, 1.0, where(x == y, 0.5, 0.0))


@elementwise(np.fmax)
def fmax(x, y):
    """The larger value that is not nan; equal values share the cotangent."""
    return x if x >= y or y != y else y


@fmax.partial("x")
def _(x, y):
    return where((x > y) | (y != y), 1.0, where(x == y, 0.5, 0.0))


@fmax.partial("y")
def _(x, y):
    return where((y > x) | ((x != x) & (y == y)), 1.0, where(x == y, 0.5, 0.0))


@elementwise(np.fmin)
def fmin(x, y):
    """The smaller value that is not nan; equal values share the cotangent."""
    return x if x <= y or y != y else y


@fmin.partial("x")
def _(x, y):
    return where((x < y) | (y != y), 1.0, where(x == y, 0.5, 0.0))


@fmin.partial("y")
def _(x, y):
    return where((y < x) | ((x != x) & (y == y)), 1.0, where(x == y, 0.5, 0.0))


@elementwise(np.maximum)
def at_least(x, y):
    """X raised to the bound y: `maximum`, but x alone gets the cotangent where it is on the bound."""
    return x if x >= y or x != x else y


@at_least.partial("x")
def _(x, y):
    return where(x >= y, 1.0, 0.0)


@at_least.partial("y")
def _(x, y):
    return where(x < y, 1.0, 0.0)


@elementwise(np.minimum)
def at_most(x, y):
    """X lowered to the bound y: `minimum`, but x alone gets the cotangent where it is on the bound."""
    return x if x <= y or x != x else y


@at_most.partial("x")
def _(x, y):
    return where(x <= y, 1.0, 0.0)


@at_most.partial("y")
def _(x, y):
    return where(x > y, 1.0, 0.0)


@elementwise(np.sign)
def sign(x):
    """-1, 0 or 1; the derivative is 0 everywhere."""
    return x if x != x else (1.0 if x > 0.0 else (-1.0 if x < 0.0 else 0.0))


@sign.partial("x")
def _():
    return 0.0


@elementwise(np.floor)
def floor(x):
    """Largest integer not above x; the derivative is 0 everywhere."""
    return np.floor(x)


@floor.partial("x")
def _():
    return 0.0


@elementwise(np.ceil)
def ceil(x):
    """Smallest integer not below x; the derivative is 0 everywhere."""
    return np.ceil(x)


@ceil.partial("x")
def _():
    return 0.0


@elementwise(np.rint)
def rint(x):
    """Nearest integer, halves to even; the derivative is 0 everywhere."""
    return np.rint(x)


@rint.partial("x")
def _():
    return 0.0


@elementwise(np.trunc)
def trunc(x):
    """X without its fraction; the derivative is 0 everywhere."""
    return np.trunc(x)


@trunc.partial("x")
def _():
    return 0.0


@elementwise(np.floor_divide)
def floor_divide(x, y):
    """Largest integer not above x / y; the derivatives are 0 everywhere."""
    return np.floor(x / y)


@floor_divide.partial("x")
def _():
    return 0.0


@floor_divide.partial("y")
def _():
    return 0.0


@elementwise(np.mod)
def mod(x, y):
    """X - y * floor(x / y); at a jump the derivative is that of the side to the right."""
    return x - y * np.floor(x / y)


@mod.partial("x")
def _():
    return 1.0


@mod.partial("y")
def _(x, y):
    return -floor_divide(x, y)


@elementwise(np.fmod)
def fmod(x, y):
    """X - y * trunc(x / y); at a jump the derivative is that of the side away from 0."""
    return math.fmod(x, y)


@fmod.partial("x")
def _():
    return 1.0


@fmod.partial("y")
def _(x, y):
    return -trunc(x / y)


# -- functions of statistics and machine learning --------------------------------------------------


@elementwise()
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow (scipy.special.expit)."""
    return vmath.sigmoid(x)


@sigmoid.partial("x")
def _(z):
    return z * (1.0 - z)


@elementwise()
def softplus(x):
    """log(1 + exp(x)), without overflow."""
    return vmath.softplus(x)


@softplus.partial("x")
def _(x):
    return sigmoid(x)


def _relu(x):
    return np.maximum(x, np.zeros((), x.dtype) if isinstance(x, np.ndarray) else 0.0)


@elementwise(_relu)
def relu(x):
    """max(x, 0); the derivative at 0 is 0."""
    return x if x > 0.0 or x != x else 0.0


@relu.partial("x")
def _(z):
    return where(z > 0.0, 1.0, 0.0)


@elementwise()
def erf(x):
    """Error function."""
    return special.erf(x)


@erf.partial("x")
def _(x):
    return TWO_OVER_SQRT_PI * exp(-x * x)


@elementwise()
def erfc(x):
    """Complementary error function, accurate for large x."""
    return special.erfc(x)


@erfc.partial("x")
def _(x):
    return -TWO_OVER_SQRT_PI * exp(-x * x)


@elementwise()
def gammaln(x):
    """Logarithm of the absolute value of the gamma function."""
    return special.log_gamma(x)


@gammaln.partial("x")
def _(x):
    return digamma(x)


@elementwise()
def digamma(x):
    """Derivative of gammaln (scipy.special.digamma)."""
    return special.digamma(x)


@digamma.partial("x")
def _(x):
    return polygamma(1.0, x)


@elementwise()
def polygamma(n, x):
    """n-th derivative of digamma, n an integer of value (scipy.special.polygamma)."""
    return special.polygamma(n, x)


@polygamma.partial("x")
def _(n, x):
    return polygamma(n + 1.0, x)


@composite
def clip(x, min=None, max=None):
    """Limit to [min, max]; on a bound the cotangent goes to x, beyond it to the bound."""
    if min is not None:
        x = at_least(x, min)
    if max is not None:
        x = at_most(x, max)
    return x


@composite
def expit(x):
    """1 / (1 + exp(-x)) (scipy's name of `sigmoid`)."""
    return sigmoid(x)
