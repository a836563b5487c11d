"""Elementary functions, each with a scalar formula and partial derivatives.

In partials, ``z`` is the output. Where a function has no derivative, the partial has the value
named in the docstring. Choices and steps are in `tapegrad.ops.piecewise`, statistical functions in
`tapegrad.ops.special`.
"""

from __future__ import annotations

import math

import numpy as np

from tapegrad.kernels.functions import angles, slopes, special, vmath
from tapegrad.ops.piecewise import sign, where
from tapegrad.ops.table.kinds import elementwise
from tapegrad.ops.table.op import Fact, internal, public

SMALLEST = 1.1754943508222875e-38  # 2 ** -126, whose inverse is finite in float32 too
LN2 = 0.6931471805599453
LN10 = 2.302585092994046
PI = 3.141592653589793

# -- arithmetic -----------------------------------------------------------------------------------


@elementwise(np.add, facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC)
def add(x, y):
    """Sum."""
    return x + y


@add.partials
def _():
    return 1.0, 1.0


@elementwise(np.subtract, facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC)
def subtract(x, y):
    """Difference."""
    return x - y


@subtract.partials
def _():
    return 1.0, -1.0


@elementwise(np.multiply, facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC)
def multiply(x, y):
    """Product."""
    return x * y


@multiply.partials
def _(x, y):
    return y, x


@public("divide", "true_divide")
@elementwise(
    np.divide,
    facts=Fact.ARITHMETIC | Fact.SINGULAR | Fact.POLE | Fact.HOLOMORPHIC,
)
def divide(x, y):
    """Quotient; at y = 0, the derivatives are inf or nan by floating-point division."""
    return x / y


@divide.partials
def _(z, y):
    return 1.0 / y, -z / y


@elementwise(np.negative, facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC)
def negative(x):
    """Negation."""
    return -x


@negative.partial("x")
def _():
    return -1.0


@elementwise(np.positive, facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC)
def positive(x):
    """Copy of the value."""
    return +x


@positive.partial("x")
def _():
    return 1.0


@elementwise(np.reciprocal, facts=Fact.ARITHMETIC | Fact.SINGULAR | Fact.POLE | Fact.HOLOMORPHIC)
def reciprocal(x):
    """1 / x."""
    return 1.0 / x


@reciprocal.partial("x")
def _(z):
    return -z * z


@public("power", "pow")
@elementwise(np.power, compiled=True, facts=Fact.SINGULAR | Fact.HOLOMORPHIC)
def power(x, y):
    """Power x**y.

    The derivative with respect to x is 0 at y = 0, even at 0 ** 0; with respect to y it is 0 at x =
    0 for y >= 0, and -inf for y < 0. At x = 0 with 0 <= y <= 1 there is no mixed second derivative:
    the computed value follows from these conventions or is nan, and depends on the order.
    """
    return vmath.pow(x, y)


@power.partials
def _(z, x, y):
    # avoids 0 times infinity or nan; elsewhere the product has to depend on y even at y = 0
    constant = (y == 0.0) & ((absolute(x) < SMALLEST) | (x != x))
    exponent = where(constant, 1.0, y)
    zero = (x == 0.0) & (absolute(z) <= 1.0)  # means y >= 0, without comparing a complex y
    base = where(zero, 1.0, x)
    return where(constant, 0.0, y * power(x, exponent - 1.0)), where(zero, 0.0, z * log(base))


@elementwise(np.square, facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC)
def square(x):
    """x * x."""
    return x * x


@square.partial("x")
def _(x):
    return 2.0 * x


@elementwise(np.sqrt, facts=Fact.ARITHMETIC | Fact.SINGULAR | Fact.HOLOMORPHIC)
def sqrt(x):
    """Square root; the derivative at 0 is infinite."""
    return math.sqrt(x)


@sqrt.partial("x")
def _(z):
    return 0.5 / z


@public("cbrt", "special.cbrt")
@elementwise(np.cbrt, facts=Fact.SINGULAR)
def cbrt(x):
    """Cube root; the derivative at 0 is infinite."""
    return np.cbrt(x)


@cbrt.partial("x")
def _(z):
    return 1.0 / (3.0 * z * z)


@public("absolute", "abs", "fabs")
@elementwise(np.absolute, facts=Fact.ARITHMETIC)
def absolute(x):
    """Absolute value; the derivative at 0 is 0."""
    return abs(x)


@absolute.partial("x")
def _(x):
    return sign(x)


@elementwise(np.hypot)
def hypot(x, y):
    """Square root of x² + y²; at (0, 0) the derivatives of every order are 0."""
    return angles.hypot(x, y)


@internal
@elementwise(given={"length": hypot})
def cosine(x, y, length):
    """x / hypot(x, y), and 0 at (0, 0); the derivatives of the quotient would cancel."""
    return 0.0 if length == 0.0 else x / length


@cosine.partials
def _(z, x, y):
    length = hypot(x, y)
    across = cosine(y, x, length)
    inverse = where(length == 0.0, 0.0, 1.0 / where(length == 0.0, 1.0, length))
    return across * across * inverse, -z * across * inverse


@hypot.partials
def _(z, x, y):
    return cosine(x, y, z), cosine(y, x, z)


# -- exponentials and logarithms ------------------------------------------------------------------


@elementwise(np.exp, facts=Fact.OVERFLOWING | Fact.VANISHING | Fact.HOLOMORPHIC)
def exp(x):
    """Exponential e**x."""
    return vmath.exp(x)


@exp.partial("x")
def _(z):
    return z


@public("exp2", "special.exp2")
@elementwise(np.exp2, facts=Fact.OVERFLOWING | Fact.VANISHING | Fact.HOLOMORPHIC)
def exp2(x):
    """Power 2**x."""
    return vmath.exp2(x)


@exp2.partial("x")
def _(x):
    root = exp2(0.5 * x)
    return LN2 * root * root  # finite up to x = 1024.5


@public("expm1", "special.expm1")
@elementwise(np.expm1, facts=Fact.OVERFLOWING | Fact.VANISHING | Fact.HOLOMORPHIC)
def expm1(x):
    """exp(x) - 1, accurate near 0."""
    return vmath.expm1(x)


@expm1.partial("x")
def _(x):
    return exp(x)  # z + 1 has lost digits where z is next to -1


@elementwise(np.log, facts=Fact.SINGULAR | Fact.POLE | Fact.HOLOMORPHIC)
def log(x):
    """Natural logarithm; the derivative at 0 is infinite."""
    return vmath.log(x)


@log.partial("x")
def _(x):
    return 1.0 / x


@elementwise(np.log2, facts=Fact.SINGULAR | Fact.POLE | Fact.HOLOMORPHIC)
def log2(x):
    """Logarithm to base 2; the derivative at 0 is infinite."""
    return vmath.log2(x)


@log2.partial("x")
def _(x):
    return 1.0 / (x * LN2)


@elementwise(np.log10, facts=Fact.SINGULAR | Fact.POLE | Fact.HOLOMORPHIC)
def log10(x):
    """Logarithm to base 10; the derivative at 0 is infinite."""
    return vmath.log10(x)


@log10.partial("x")
def _(x):
    return 1.0 / (x * LN10)


@public("log1p", "special.log1p")
@elementwise(np.log1p, facts=Fact.SINGULAR | Fact.POLE | Fact.HOLOMORPHIC)
def log1p(x):
    """log(1 + x), accurate near 0; the derivative at -1 is infinite."""
    return vmath.log1p(x)


@log1p.partial("x")
def _(x):
    return 1.0 / (1.0 + x)


# -- trigonometric and hyperbolic functions -------------------------------------------------------


@elementwise(np.sin, compiled=True, facts=Fact.HOLOMORPHIC)
def sin(x):
    """Sine."""
    return vmath.sin(x)


@sin.partial("x")
def _(x):
    return cos(x)


@elementwise(np.cos, compiled=True, facts=Fact.HOLOMORPHIC)
def cos(x):
    """Cosine."""
    return vmath.cos(x)


@cos.partial("x")
def _(x):
    return -sin(x)


@elementwise(np.tan, facts=Fact.HOLOMORPHIC)
def tan(x):
    """Tangent."""
    return vmath.tan(x)


@tan.partial("x")
def _(z):
    return 1.0 + z * z


@internal
@elementwise(complex_function=lambda x: (1.0 - x) * (1.0 + x), facts=Fact.ARITHMETIC)
def one_minus_square(x):
    """1 - x * x, accurate next to 1, with a derivative that is accurate next to 0."""
    return (1.0 - x) * (1.0 + x)


@one_minus_square.partial("x")
def _(x):
    return -2.0 * x


@public("arcsin", "asin")
@elementwise(np.arcsin, facts=Fact.SINGULAR | Fact.HOLOMORPHIC)
def arcsin(x):
    """Inverse sine; the derivative at ±1 is infinite."""
    return angles.arcsin(x)


@arcsin.partial("x")
def _(x):
    return 1.0 / sqrt(one_minus_square(x))


@public("arccos", "acos")
@elementwise(np.arccos, facts=Fact.SINGULAR | Fact.HOLOMORPHIC)
def arccos(x):
    """Inverse cosine; the derivative at ±1 is infinite."""
    return angles.arccos(x)


@arccos.partial("x")
def _(x):
    return -1.0 / sqrt(one_minus_square(x))


@internal
@elementwise(
    complex_function=lambda x, y: x / (x * x + y * y), facts=Fact.SINGULAR | Fact.VANISHING
)
def inverted(x, y):
    """x / (x * x + y * y), where the squares may overflow or underflow; nan at (0, 0)."""
    return slopes.inverted(x, y)


@inverted.in_numba
def _(x, y):
    square = x * x + y * y
    return x / square if 1e-30 < square < 1e30 else slopes.inverted(x, y)


@inverted.partials
def _(z, x, y):
    other = inverted(y, x)
    return (other - z) * (other + z), -2.0 * z * other


@public("arctan", "atan")
@elementwise(np.arctan, facts=Fact.VANISHING | Fact.HOLOMORPHIC)
def arctan(x):
    """Inverse tangent."""
    return angles.arctan(x)


@arctan.partial("x")
def _(x):
    return inverted(1.0, x)


@public("arctan2", "atan2")
@elementwise(np.arctan2, facts=Fact.SINGULAR)
def arctan2(x, y):
    """Angle of the point (y, x), with NumPy's order of arguments; derivatives at (0, 0) are nan."""
    return angles.arctan2(x, y)


@arctan2.partials
def _(x, y):
    return inverted(y, x), -inverted(x, y)


@elementwise(np.sinh, facts=Fact.OVERFLOWING | Fact.HOLOMORPHIC)
def sinh(x):
    """Hyperbolic sine."""
    return vmath.sinh(x)


@sinh.partial("x")
def _(x):
    return cosh(x)


@elementwise(np.cosh, facts=Fact.OVERFLOWING | Fact.HOLOMORPHIC)
def cosh(x):
    """Hyperbolic cosine."""
    return vmath.cosh(x)


@cosh.partial("x")
def _(x):
    return sinh(x)


@elementwise(np.tanh, facts=Fact.VANISHING | Fact.HOLOMORPHIC)
def tanh(x):
    """Hyperbolic tangent."""
    return vmath.tanh(x)


@internal
@elementwise(
    complex_function=lambda x, y: 1.0 - y * y,
    given={"y": tanh},
    facts=Fact.VANISHING,
)
def tanh_slope(x, y):
    """Derivative of tanh at x, where it is y; ``1 - y * y`` has lost digits if y is next to 1."""
    return slopes.tanh_slope(x)


@tanh_slope.in_numba
def _(x, y):
    return 1.0 - y * y if abs(y) < 0.75 else slopes.tanh_slope(x)


@tanh_slope.partials
def _(z, x):
    return (-2.0 * tanh(x) * z,)


@tanh.partial("x")
def _(x, z):
    return tanh_slope(x, z)


@public("arcsinh", "asinh")
@elementwise(np.arcsinh, facts=Fact.HOLOMORPHIC)
def arcsinh(x):
    """Inverse hyperbolic sine."""
    return math.asinh(x)


@arcsinh.partial("x")
def _(x):
    return 1.0 / hypot(x, 1.0)


@public("arccosh", "acosh")
@elementwise(np.arccosh, domains={"x": (1.3, 2.5)}, facts=Fact.SINGULAR | Fact.HOLOMORPHIC)
def arccosh(x):
    """Inverse hyperbolic cosine; the derivative at 1 is infinite."""
    return math.acosh(x)


@arccosh.partial("x")
def _(x):
    return 1.0 / (sqrt(x - 1.0) * sqrt(x - -1.0))  # keeps the sign of zero


@public("arctanh", "atanh")
@elementwise(np.arctanh, facts=Fact.SINGULAR | Fact.HOLOMORPHIC)
def arctanh(x):
    """Inverse hyperbolic tangent; the derivative at ±1 is infinite."""
    return math.atanh(x)


@arctanh.partial("x")
def _(x):
    return 1.0 / one_minus_square(x)


@public("sinc", "special.sinc")
@elementwise(np.sinc)
def sinc(x):
    """sin(πx) / (πx), and 1 at 0."""
    return 1.0 if x == 0.0 else math.sin(PI * x) / (PI * x)


def _complex_sinc_derivative(n, x):
    """Return the derivative of one order n, as `special.sinc_derivative`."""
    order = int(np.max(np.real(n), initial=0.0))
    near = np.abs(x) < 0.25 + 0.25 * order
    far = np.where(near, 1.0, x)
    found = np.sin(PI * far) / (PI * far)
    for k in range(order):
        found = (PI**k * np.cos(PI * far + 0.5 * PI * k) - (k + 1) * found) / far
    close = np.where(near, x, 0.0)
    series = np.zeros_like(close)
    for k in range(order + order % 2, order + 28, 2):
        term = PI**k * close ** (k - order) / (math.factorial(k - order) * (k + 1))
        series = series - term if k % 4 else series + term
    return np.where(near, series, found)


@internal
@elementwise(complex_function=_complex_sinc_derivative)
def sinc_derivative(n, x):
    """n-th derivative of sinc, which cancels near 0 if it is computed from sine and cosine."""
    return special.sinc_derivative(n, x)


@sinc_derivative.partial("x")
def _(n, x):
    return sinc_derivative(n + 1.0, x)


@sinc.partial("x")
def _(x):
    return sinc_derivative(1.0, x)
