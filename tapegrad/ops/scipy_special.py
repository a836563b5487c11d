"""Special functions with the names of scipy.special, most of them computed by SciPy.

Derivatives are from the NIST Digital Library of Mathematical Functions (https://dlmf.nist.gov); its
sections are named below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.kernels.functions import bessel, slopes, special, vmath
from tapegrad.ops import reduction
from tapegrad.ops.elementwise import absolute, exp, log, log1p, multiply, square
from tapegrad.ops.piecewise import sign, where
from tapegrad.ops.shape import reshape
from tapegrad.ops.special import digamma, erfcx_derivative, gammaln, log_ratio, normal
from tapegrad.ops.table.array_kinds import pointwise
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.kinds import elementwise
from tapegrad.ops.table.op import (
    Fact,
    array_of,
    dtype_of,
    internal,
    is_complex,
    known,
    plain,
    public,
    refuse_complex,
    shape_of,
)
from tapegrad.ops.table.scipy_functions import scipy_function

NAMESPACE = "special"  # of the functions declared here

HALF_SQRT_PI = math.sqrt(math.pi) / 2.0
SQRT_2PI = math.sqrt(2.0 * math.pi)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
SQRT_HALF = math.sqrt(0.5)


def computed(name: str) -> Callable[..., Any]:
    """Return a function that calls SciPy's function of that name, for real numbers."""

    def compute(*values: Any) -> Any:
        refuse_complex(name, *values)
        return scipy_function("special", name)(*values)

    return compute


def no_slope(name: str, argument: str) -> Callable[..., Any]:
    """Return a rule that raises, for an argument without a derivative."""

    def rule() -> Any:
        raise TypeError(
            f"{name} has no derivative with respect to {argument!r} in tapegrad; detach() it, or "
            "write a Function with one"
        )

    return rule


# -- gamma and beta functions (DLMF 5, 8) ---------------------------------------------------------


@pointwise(computed("gamma"), arrays=1)
def gamma(x):
    """Gamma function."""


@gamma.partial("x")
def _(x, z):
    return z * digamma(x)


@elementwise(domains={"a": (0.5, 3.0), "b": (0.5, 3.0)}, facts=Fact.SINGULAR)
def betaln(a, b):
    """Logarithm of the absolute value of the beta function."""
    return special.log_beta(a, b)


@betaln.partials
def _(a, b):
    return digamma(a) - digamma(a + b), digamma(b) - digamma(a + b)


@pointwise(computed("beta"), arrays=2)
def beta(a, b):
    """Beta function."""


@beta.partials
def _(z, a, b):
    return z * (digamma(a) - digamma(a + b)), z * (digamma(b) - digamma(a + b))


@pointwise(computed("gammainc"), arrays=2)
def gammainc(a, x):
    """Regularized lower incomplete gamma function; no derivative with respect to a."""


@pointwise(computed("gammaincc"), arrays=2)
def gammaincc(a, x):
    """Regularized upper incomplete gamma function; no derivative with respect to a."""


def _gamma_density(a, x):
    return exp(xlogy(a - 1.0, x) - x - gammaln(a))


gammainc.partial("a")(no_slope("gammainc", "a"))
gammaincc.partial("a")(no_slope("gammaincc", "a"))


@gammainc.partial("x")
def _(a, x):
    return _gamma_density(a, x)


@gammaincc.partial("x")
def _(a, x):
    return -_gamma_density(a, x)


@pointwise(computed("betainc"), arrays=3)
def betainc(a, b, x):
    """Regularized incomplete beta function; no derivative with respect to a and b."""


betainc.partial("a")(no_slope("betainc", "a"))
betainc.partial("b")(no_slope("betainc", "b"))


@betainc.partial("x")
def _(a, b, x):
    return exp(xlogy(a - 1.0, x) + xlog1py(b - 1.0, -x) - betaln(a, b))


# -- error functions and the normal distribution (DLMF 7) -----------------------------------------


@pointwise(computed("erfinv"), arrays=1)
def erfinv(x):
    """Inverse of the error function."""


def _exp_of_square(z, tail):
    """Return ``exp(z**2)``, given erfc(abs(z)): where this is small, z has lost digits."""
    outer = tail < 0.25
    scaled = erfcx(absolute(where(outer, z, 1.0))) / where(outer, tail, 1.0)
    scaled = where(tail == 0.0, math.inf, scaled)
    return where(outer, scaled, exp(square(where(outer, 0.0, z))))


@erfinv.partial("x")
def _(x, z):
    return HALF_SQRT_PI * _exp_of_square(z, 1.0 - absolute(x))


@pointwise(computed("erfcinv"), arrays=1)
def erfcinv(x):
    """Inverse of the complementary error function."""


@erfcinv.partial("x")
def _(x, z):
    return -HALF_SQRT_PI * _exp_of_square(z, where(x > 1.0, 2.0 - x, x))


@elementwise(facts=Fact.VANISHING)
def ndtr(x):
    """Distribution function of the standard normal distribution."""
    return special.ndtr(x)


@ndtr.partial("x")
def _(x):
    return normal(x) / SQRT_2PI


@elementwise()
def log_ndtr(x):
    """Logarithm of `ndtr`, accurate far below 0."""
    return special.log_ndtr(x)


@log_ndtr.partial("x")
def _(x):
    below = x < 0.0
    tail = SQRT_2_OVER_PI / erfcx(where(below, x, 0.0) * -SQRT_HALF)
    return where(below, tail, normal(x) / (SQRT_2PI * ndtr(where(below, 0.0, x))))


@elementwise(facts=Fact.OVERFLOWING)
def erfcx(x):
    """``exp(x**2) * erfc(x)``."""
    return special.erfcx(x)


@erfcx.partial("x")
def _(x):
    return erfcx_derivative(1.0, x)


@pointwise(computed("ndtri"), arrays=1)
def ndtri(p):
    """Inverse of `ndtr`: quantiles of the standard normal distribution."""


@ndtri.partial("p")
def _(p, z):
    tail = where(p > 0.5, 1.0 - p, p)
    return SQRT_2PI * _exp_of_square(z * math.sqrt(0.5), 2.0 * tail)


@pointwise(computed("stdtr"), arrays=2)
def stdtr(df, t):
    """Distribution function of Student's t distribution; no derivative with respect to df."""


stdtr.partial("df")(no_slope("stdtr", "df"))


@stdtr.partial("t")
def _(df, t):
    scale = -betaln(np.full((), 0.5), 0.5 * df) - 0.5 * log(df)
    return exp(scale - 0.5 * (df + 1.0) * log1p(t * t / df))


# -- Bessel functions (DLMF 10.6, 10.29) ----------------------------------------------------------


@pointwise(computed("jv"), arrays=2)
def jv(v, x):
    """Bessel function of the first kind, of order v; no derivative with respect to v."""


jv.partial("v")(no_slope("jv", "v"))


@jv.partial("x")
def _(v, x):
    return (jv(v - 1.0, x) - jv(v + 1.0, x)) * 0.5


@pointwise(computed("j0"), arrays=1)
def j0(x):
    """Bessel function of the first kind, of order 0."""


@j0.partial("x")
def _(x):
    return -j1(x)


@pointwise(computed("j1"), arrays=1)
def j1(x):
    """Bessel function of the first kind, of order 1."""


@j1.partial("x")
def _(x):
    return (j0(x) - jv(2.0, x)) * 0.5


@pointwise(computed("yv"), arrays=2)
def yv(v, x):
    """Bessel function of the second kind, of order v; no derivative with respect to v."""


yv.partial("v")(no_slope("yv", "v"))


@yv.partial("x")
def _(v, x):
    return (yv(v - 1.0, x) - yv(v + 1.0, x)) * 0.5


@pointwise(computed("kv"), arrays=2)
def kv(v, x):
    """Modified Bessel function of the second kind, of order v; no derivative with respect to v."""


kv.partial("v")(no_slope("kv", "v"))


@kv.partial("x")
def _(v, x):
    return -(kv(v - 1.0, x) + kv(v + 1.0, x)) * 0.5


@pointwise(computed("iv"), arrays=2)
def iv(v, x):
    """Modified Bessel function of order v; no derivative with respect to v."""


iv.partial("v")(no_slope("iv", "v"))


@iv.partial("x")
def _(v, x):
    return (iv(v - 1.0, x) + iv(v + 1.0, x)) * 0.5


@pointwise(computed("ive"), arrays=2)
def ive(v, x):
    """``exp(-abs(x)) * iv(v, x)``."""


ive.partial("v")(no_slope("ive", "v"))


@ive.partial("x")
def _(v, x, z):
    return (ive(v - 1.0, x) + ive(v + 1.0, x)) * 0.5 - sign(x) * z


@public("i0", "special.i0")
@elementwise(facts=Fact.OVERFLOWING)
def i0(x):
    """Modified Bessel function of order 0."""
    return bessel.i0(x)


@i0.partial("x")
def _(x):
    return i1(x)


@elementwise(facts=Fact.OVERFLOWING)
def i1(x):
    """Modified Bessel function of order 1."""
    return bessel.i1(x)


@i1.partial("x")
def _(x):
    half = exp(0.5 * absolute(x))  # its square may overflow
    return half * (i0e(x) - ie_ratio(1.0, x)) * half


@elementwise(facts=Fact.VANISHING)
def i0e(x):
    """``exp(-abs(x)) * i0(x)``."""
    return bessel.i0e(x)


@i0e.partial("x")
def _(x, z):
    return i1e(x) - sign(x) * z


@elementwise(facts=Fact.VANISHING)
def i1e(x):
    """``exp(-abs(x)) * i1(x)``."""
    return bessel.i1e(x)


@i1e.partial("x")
def _(x, z):
    return i0e(x) - ie_ratio(1.0, x) - sign(x) * z


@internal
@elementwise(facts=Fact.VANISHING)
def ie_ratio(n, x):
    """``ive(n, x) / x**n``, for integer-valued n."""
    return bessel.ie_ratio(n, x)


@ie_ratio.partial("x")
def _(n, x, z):
    return x * ie_ratio(n + 1.0, x) - sign(x) * z


# -- logarithms -----------------------------------------------------------------------------------


@elementwise(facts=Fact.SINGULAR)
def xlogy(x, y):
    """``x * log(y)``, 0 where x is 0."""
    return x * vmath.log(y) if x != 0.0 or y != y else 0.0


@xlogy.partials
def _(x, y):
    none = (x == 0.0) & (y == 0.0)
    return log(y), x / where(none, 1.0, y)


@elementwise(domains={"y": (-0.8, 0.8)}, facts=Fact.SINGULAR)
def xlog1py(x, y):
    """``x * log1p(y)``, 0 where x is 0."""
    return x * vmath.log1p(y) if x != 0.0 or y != y else 0.0


@xlog1py.partials
def _(x, y):
    none = (x == 0.0) & (y == -1.0)
    return log1p(y), x / where(none, 1.0, 1.0 + y)


@elementwise(facts=Fact.SINGULAR)
def entr(x):
    """``-x * log(x)``, 0 at 0 and -inf below."""
    if x == 0.0:
        return 0.0
    return -math.inf if x < 0.0 else -x * vmath.log(x)


@entr.partial("x")
def _(x):
    return where(x < 0.0, 0.0, -1.0 - log(where(x < 0.0, 1.0, x)))


@elementwise(facts=Fact.SINGULAR)
def rel_entr(x, y):
    """``x * log(x / y)``, 0 where x is 0."""
    if x > 0.0 and y > 0.0:
        is_close = 0.5 < x / y < 2.0
        return x * (vmath.log1p((x - y) / y) if is_close else slopes.log_ratio(x, y))
    if x == 0.0 and y >= 0.0:
        return 0.0
    return math.inf if x == x and y == y else math.nan


@rel_entr.partials
def _(x, y):
    return log_ratio(x, y) + 1.0, -(x / y)


@elementwise(facts=Fact.SINGULAR)
def logit(p):
    """``log(p / (1 - p))``."""
    s = 2.0 * p - 1.0
    return vmath.log(p / (1.0 - p)) if abs(s) > 0.3 else vmath.log1p(s) - vmath.log1p(-s)


@logit.partial("p")
def _(p):
    return 1.0 / p + 1.0 / (1.0 - p)


@public("special.logsumexp")
@composite
def weighted_logsumexp(a, axis=None, b=None, keepdims=False, return_sign=False):
    """``log(sum(b * exp(a)))`` without overflow, as in scipy.special.logsumexp.

    With `return_sign`, it returns the logarithm of the absolute value, and the sign. The derivative
    with respect to a weight of 0 is 0 if its exponential overflows relative to the others. All
    derivatives are 0 where the sum is 0. Infinite elements share the derivative of an infinite sum.
    """
    if b is None and not return_sign:
        return reduction.logsumexp(a, axis=axis, keepdims=keepdims)
    refuse_complex("logsumexp with weights", a, 1.0 if b is None else b)
    a = array_of(a)
    if b is None or not isinstance(b, (int, float)):
        b = 1.0 if b is None else array_of(b)
    is_infinite = (plain(a) == math.inf) & (plain(b) > 0.0)
    shares = np.sum(is_infinite, axis=axis, keepdims=True)
    count = np.maximum(shares, 1).astype(dtype_of(a))
    infinite = reduction.sum(where(is_infinite, a / count, 0.0), axis, keepdims=True)
    a = where(shares > 0, 0.0, a)
    used = np.where(plain(b) == 0.0, -math.inf, plain(a))
    high = np.max(used, axis=axis, keepdims=True, initial=-math.inf)
    high = np.where(np.isfinite(high), high, 0.0).astype(dtype_of(a))
    limit = math.log(np.finfo(dtype_of(a)).max)
    away = (plain(b) == 0.0) & ~(plain(a) - high < limit)
    terms = multiply(b, exp(where(away, -math.inf, a) - high))
    total = reduction.sum(terms, axis=axis, keepdims=True)
    signs = np.sign(plain(total))
    if return_sign:
        total = multiply(total, np.where(signs < 0.0, signs, np.ones((), signs.dtype)))
    none = plain(total) == 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        found = where(none, -math.inf, log(where(none, 1.0, total)) + high)
    found = where(shares > 0, infinite, found)
    shape = shape_of(reduction.sum(plain(total), axis=axis, keepdims=keepdims))
    found = found if keepdims else reshape(found, shape)
    return (found, np.reshape(signs, shape)) if return_sign else found


@composite
def log_softmax(x, axis=None):
    """Logarithm of `softmax`, without overflow."""
    if is_complex(x) or known(x) is not None:
        total = reduction.logsumexp(x, axis=axis, keepdims=True)
        if is_complex(x) or reduction.are_small_exponents(total):
            return x - total
    x = x - reduction.finite_max(x, axis=axis, keepdims=True)  # without rounding its differences
    return x - reduction.logsumexp(x, axis=axis, keepdims=True)


@composite
def softmax(x, axis=None):
    """``exp(x) / sum(exp(x))``, without overflow."""
    return exp(log_softmax(x, axis))
