"""Densities and distribution functions, with the names and arguments of scipy.stats.

They are differentiable with respect to all arguments except the shapes of `gamma.cdf`, `beta.cdf`
and `t.cdf`, and the counts of `poisson`. Outside its support a density is 0, with derivative 0.

Examples
--------
>>> import numpy as np
>>> import tapegrad as tg
>>> x = np.array([0.5, 1.5])
>>> def loss(scale):
...     return -tg.sum(tg.stats.norm.logpdf(x, 0.0, scale))
>>> tg.grad(loss)(1.0)
np.float64(-0.5)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.eager.creation import as_tensor
from tapegrad.eager.numeric import FUNCTIONS, NAMESPACES
from tapegrad.eager.tensor import Tensor

__all__ = ["beta", "gamma", "norm", "poisson", "t"]

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_log, _exp, _where = FUNCTIONS["log"], FUNCTIONS["exp"], FUNCTIONS["where"]
_log1p, _gammaln = FUNCTIONS["log1p"], FUNCTIONS["gammaln"]
_SPECIAL = NAMESPACES["special"]
_xlogy, _xlog1py = _SPECIAL["xlogy"], _SPECIAL["xlog1py"]


def _standard(x: Any, loc: Any, scale: Any) -> tuple[Tensor, Tensor]:
    """Return ``(x - loc) / scale``, and the scale as a tensor."""
    wide = as_tensor(scale)
    return (as_tensor(x) - loc) / wide, wide


def _inside(y: Tensor, is_inside: Any) -> Tensor:
    """Return `y` with numbers outside the support replaced, so that no logarithm sees them."""
    return _where(is_inside, y, 0.5)


def _density(
    y: Tensor,
    is_edge: Any,
    inside: float,
    powers: Callable[..., Any],
    log_density: Callable[..., Any],
) -> Tensor:
    """Return a density at `y`: from its logarithm, or from its powers on the edge of the support.

    On the edge the logarithm may be infinite, and the slope would be 0 times infinity. Each
    function gets the number `inside`, which is in the support, in place of the other's elements.
    """
    on_edge = powers(_where(is_edge, y, inside))
    return _where(is_edge, on_edge, _exp(log_density(_where(is_edge, inside, y))))


class Normal:
    """Normal distribution."""

    @staticmethod
    def logpdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Logarithm of the density.

        Parameters
        ----------
        x
            Where to evaluate it.
        loc, scale
            Mean and standard deviation.
        """
        y, wide = _standard(x, loc, scale)
        return -0.5 * y * y - _log(wide) - _LOG_SQRT_2PI

    @staticmethod
    def pdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Density; see `logpdf`."""
        return _exp(Normal.logpdf(x, loc, scale))

    @staticmethod
    def cdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Distribution function; see `logpdf`."""
        return _SPECIAL["ndtr"](_standard(x, loc, scale)[0])

    @staticmethod
    def logcdf(x: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Logarithm of the distribution function, accurate far below the mean; see `logpdf`."""
        return _SPECIAL["log_ndtr"](_standard(x, loc, scale)[0])

    @staticmethod
    def ppf(q: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Quantile: inverse of `cdf`.

        Parameters
        ----------
        q
            Probability.
        loc, scale
            Mean and standard deviation.
        """
        return as_tensor(loc) + as_tensor(scale) * _SPECIAL["ndtri"](as_tensor(q))


class StudentT:
    """Student's t distribution."""

    @staticmethod
    def logpdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Logarithm of the density.

        Parameters
        ----------
        x
            Where to evaluate it.
        df
            Degrees of freedom.
        loc, scale
            Location and scale of the distribution.
        """
        y, wide = _standard(x, loc, scale)
        free = as_tensor(df)
        half = 0.5 * (free + 1.0)
        found = -_SPECIAL["betaln"](np.full((), 0.5), 0.5 * free) - 0.5 * _log(free)
        return found - half * _log1p(y * y / free) - _log(wide)

    @staticmethod
    def pdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Density; see `logpdf`."""
        return _exp(StudentT.logpdf(x, df, loc, scale))

    @staticmethod
    def cdf(x: Any, df: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Distribution function, not differentiable with respect to `df`; see `logpdf`."""
        return _SPECIAL["stdtr"](as_tensor(df), _standard(x, loc, scale)[0])


class Gamma:
    """Gamma distribution."""

    @staticmethod
    def logpdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Logarithm of the density.

        Parameters
        ----------
        x
            Where to evaluate it.
        a
            Shape.
        loc, scale
            Location and scale of the distribution.
        """
        y, wide = _standard(x, loc, scale)
        shape = as_tensor(a)
        is_inside = y >= 0.0
        y = _inside(y, is_inside)
        found = _xlogy(shape - 1.0, y) - y - _gammaln(shape) - _log(wide)
        return _where(is_inside, found, -math.inf)

    @staticmethod
    def pdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Density; see `logpdf`."""
        y, wide = _standard(x, loc, scale)
        shape = as_tensor(a)

        def powers(y: Tensor) -> Tensor:
            return y ** (shape - 1.0) * _exp(-y - _gammaln(shape))

        return _density(y, y == 0.0, 1.0, powers, lambda y: Gamma.logpdf(y, shape)) / wide

    @staticmethod
    def cdf(x: Any, a: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Distribution function, not differentiable with respect to `a`; see `logpdf`."""
        y, _ = _standard(x, loc, scale)
        is_inside = y >= 0.0
        found = _SPECIAL["gammainc"](as_tensor(a), _inside(y, is_inside))
        return _where(is_inside, found, 0.0)


class Beta:
    """Beta distribution."""

    @staticmethod
    def logpdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Logarithm of the density.

        Parameters
        ----------
        x
            Where to evaluate it.
        a, b
            Shapes.
        loc, scale
            Location and scale of the distribution.
        """
        y, wide = _standard(x, loc, scale)
        one, two = as_tensor(a), as_tensor(b)
        is_inside = (y >= 0.0) & (y <= 1.0)
        y = _inside(y, is_inside)
        found = _xlogy(one - 1.0, y) + _xlog1py(two - 1.0, -y)
        found = found - _SPECIAL["betaln"](one, two) - _log(wide)
        return _where(is_inside, found, -math.inf)

    @staticmethod
    def pdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Density; see `logpdf`."""
        y, wide = _standard(x, loc, scale)
        one, two = as_tensor(a), as_tensor(b)
        is_edge = (y == 0.0) | (y == 1.0)

        def powers(y: Tensor) -> Tensor:
            factor = _exp(-_SPECIAL["betaln"](one, two))
            return y ** (one - 1.0) * (1.0 - y) ** (two - 1.0) * factor

        return _density(y, is_edge, 0.5, powers, lambda y: Beta.logpdf(y, one, two)) / wide

    @staticmethod
    def cdf(x: Any, a: Any, b: Any, loc: Any = 0.0, scale: Any = 1.0) -> Tensor:
        """Distribution function, not differentiable with respect to `a` and `b`; see `logpdf`."""
        y, _ = _standard(x, loc, scale)
        is_inside = (y >= 0.0) & (y <= 1.0)
        found = _SPECIAL["betainc"](as_tensor(a), as_tensor(b), _inside(y, is_inside))
        return _where(is_inside, found, _where(y > 0.5, 1.0, 0.0))


class Poisson:
    """Poisson distribution."""

    @staticmethod
    def logpmf(k: Any, mu: Any, loc: Any = 0.0) -> Tensor:
        """Logarithm of the probability.

        Parameters
        ----------
        k
            Count; the probability of a number that is not a count is 0.
        mu
            Mean.
        loc
            Location of the distribution.
        """
        count, is_count = _count("poisson.logpmf", k, loc)
        found = _xlogy(count, as_tensor(mu)) - _gammaln(count + 1.0) - mu
        return _where(is_count, found, -math.inf)

    @staticmethod
    def pmf(k: Any, mu: Any, loc: Any = 0.0) -> Tensor:
        """Probability; see `logpmf`."""
        count, is_count = _count("poisson.pmf", k, loc)
        mean = as_tensor(mu)

        def powers(mean: Tensor) -> Tensor:
            return _where(is_count, mean**count * _exp(-mean - _gammaln(count + 1.0)), 0.0)

        is_edge = mean == 0.0
        return _density(mean, is_edge, 1.0, powers, lambda mean: Poisson.logpmf(k, mean, loc))

    @staticmethod
    def cdf(k: Any, mu: Any, loc: Any = 0.0) -> Tensor:
        """Probability of at most k; see `logpmf`."""
        least = np.floor(_number("poisson.cdf", k) - _number("poisson.cdf", loc))
        found = _SPECIAL["gammaincc"](np.maximum(least, 0.0) + 1.0, as_tensor(mu))
        return _where(least >= 0.0, found, 0.0)


def _number(name: str, value: Any) -> np.ndarray:
    """Return a count, which must not be differentiated."""
    if isinstance(value, Tensor) and value._is_tracked:
        raise TypeError(f"{name} has no derivative with respect to counts; detach() them")
    return np.asarray(as_tensor(value)._a, float)


def _count(name: str, k: Any, loc: Any) -> tuple[Tensor, np.ndarray]:
    """Return the counts, with 0 in place of other numbers, and a mask of the counts."""
    given = _number(name, k) - _number(name, loc)
    is_count = (given >= 0.0) & (given == np.floor(given))
    return as_tensor(np.where(is_count, given, 0.0)), is_count


norm, t, gamma, beta, poisson = Normal(), StudentT(), Gamma(), Beta(), Poisson()
