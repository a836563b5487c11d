"""Generators of random numbers that depend differentiably on their parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.eager.numeric import FUNCTIONS, NAMESPACES
from tapegrad.eager.tensor import Tensor
from tapegrad.random.discrete import DiscreteGenerator, numpys_generator
from tapegrad.random.draws import (
    Shape,
    beside,
    draw,
    drawn_in_each_call,
    parameters,
    require,
    require_positive,
    require_scale,
    shape_of_samples,
    values_of,
)


@drawn_in_each_call
class Generator(DiscreteGenerator):
    """A generator of random numbers, made by `default_rng`.

    Its methods have the names and parameters of `numpy.random.Generator`. Parameters are numbers,
    arrays or tensors, and broadcast; samples are tensors. Their gradients with respect to the
    parameters are those at fixed randomness: of ``loc + scale * noise``, and of the quantile where
    it has no such form. It can be copied and pickled, with its state.

    For equal seeds the numbers are NumPy's, except those of `beta`, `dirichlet`, `standard_t`,
    `student_t` and `multivariate_normal`. They are drawn in double precision, and rounded for
    float32 (`random` draws float32 numbers as NumPy does).

    Examples
    --------
    >>> import tapegrad as tg
    >>> rng = tg.random.default_rng(7)
    >>> shape = tg.tensor([0.5, 20.0], requires_grad=True)
    >>> z = rng.gamma(shape)
    >>> z.sum().backward()
    >>> z
    tensor([ 0.41469522, 18.47582281], grad_fn=<MultiplyBackward>)
    >>> shape.grad
    tensor([1.21015158, 0.9689319 ])
    """

    # -- location and scale -----------------------------------------------------------------------

    def standard_normal(self, size: Any = None, dtype: Any = None) -> Tensor:
        """Samples of the normal distribution with mean 0 and standard deviation 1.

        Parameters
        ----------
        size
            Shape of the result.
        dtype
            float32 or float64 (default).
        """
        return self.normal(0.0, 1.0, size, dtype=dtype)

    def normal(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, *, dtype: Any = None
    ) -> Tensor:
        """Samples of the normal distribution.

        Parameters
        ----------
        loc, scale
            Mean and standard deviation.
        size
            Shape of the result; default: that of the parameters.
        dtype
            float32 or float64; default: that of the parameters.

        Raises
        ------
        ValueError
            If a parameter is out of its domain, or does not broadcast to `size`.

        Examples
        --------
        >>> import tapegrad as tg
        >>> rng = tg.random.default_rng(0)
        >>> tg.grad(lambda loc: rng.normal(loc, 2.0, size=5).sum())(1.0)
        np.float64(5.0)
        """
        return self._moved("normal", loc, scale, size, dtype)

    def laplace(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, *, dtype: Any = None
    ) -> Tensor:
        """Samples of the Laplace distribution; see `normal`."""
        return self._moved("laplace", loc, scale, size, dtype)

    def logistic(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, *, dtype: Any = None
    ) -> Tensor:
        """Samples of the logistic distribution; see `normal`."""
        return self._moved("logistic", loc, scale, size, dtype)

    def gumbel(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, *, dtype: Any = None
    ) -> Tensor:
        """Samples of the Gumbel distribution; see `normal`."""
        return self._moved("gumbel", loc, scale, size, dtype)

    def _moved(self, name: str, loc: Any, scale: Any, size: Any, dtype: Any) -> Tensor:
        """Return samples of a distribution of NumPy's, moved and scaled."""

        def make(shape: Shape) -> Any:
            return getattr(self._numpys, name)(size=shape)

        center, width = parameters(name, dtype, loc, scale)
        require_scale(name, width)
        shape = shape_of_samples(name, size, [center.shape, width.shape])
        return center + width * beside(self._noise(name, make, shape, center.dtype), center, width)

    def _noise(self, name: str, make: Any, shape: Shape, dtype: np.dtype, *given: Tensor) -> Tensor:
        """Draw numbers in double precision, and round them."""
        return draw(
            self._numpys,
            name,
            lambda *args: np.asarray(make(*args)).astype(dtype, copy=False),
            shape,
            *given,
        )

    def uniform(
        self, low: Any = 0.0, high: Any = 1.0, size: Any = None, *, dtype: Any = None
    ) -> Tensor:
        """Numbers from `low` to `high`.

        Parameters
        ----------
        low, high
            The ends; `high` is excluded, except by rounding.
        size, dtype
            As for `normal`.
        """
        least, most = parameters("uniform", dtype, low, high)
        shape = shape_of_samples("uniform", size, [least.shape, most.shape])
        length = most - least
        is_valid = (values_of(length) >= 0.0) & np.isfinite(values_of(length))
        require("uniform", "high", is_valid, "at least low, and at a finite distance")
        noise = self._noise("uniform", self._numpys.random, shape, least.dtype)
        return least + length * beside(noise, length)

    def standard_exponential(self, size: Any = None, dtype: Any = None) -> Tensor:
        """Samples of the exponential distribution with mean 1; see `standard_normal`."""
        return self.exponential(1.0, size, dtype=dtype)

    def exponential(self, scale: Any = 1.0, size: Any = None, *, dtype: Any = None) -> Tensor:
        """Samples of the exponential distribution.

        Parameters
        ----------
        scale
            Mean.
        size, dtype
            As for `normal`.
        """
        (width,) = parameters("exponential", dtype, scale)
        require_scale("exponential", width)
        shape = shape_of_samples("exponential", size, [width.shape])
        make = self._numpys.standard_exponential
        return width * beside(self._noise("exponential", make, shape, width.dtype), width)

    # -- gamma distributions ----------------------------------------------------------------------

    def standard_gamma(self, shape: Any, size: Any = None, dtype: Any = None) -> Tensor:
        """Samples of the gamma distribution with scale 1; see `gamma`.

        Parameters
        ----------
        shape
            Shape of the distribution, positive.
        size, dtype
            As for `normal`.
        """
        (a,) = parameters("standard_gamma", dtype, shape)
        return self._gamma("standard_gamma", a, shape_of_samples("standard_gamma", size, [a.shape]))

    def gamma(self, shape: Any, scale: Any = 1.0, size: Any = None, *, dtype: Any = None) -> Tensor:
        """Samples of the gamma distribution.

        With the shape a sample moves so that its probability stays the same (implicit
        reparameterisation). It may be differentiated twice. A sample of a small shape may underflow
        to 0, and so does its derivative.

        Parameters
        ----------
        shape, scale
            Shape of the distribution, positive, and scale.
        size, dtype
            As for `normal`.

        Examples
        --------
        >>> import tapegrad as tg
        >>> rng = tg.random.default_rng(0)
        >>> slopes = [tg.grad(lambda a: rng.gamma(a, 2.0))(5.0) for _ in range(100)]
        >>> bool(abs(sum(slopes) / 100 - 2.0) < 0.2)  # the mean is 2 a
        True
        """
        a, width = parameters("gamma", dtype, shape, scale)
        require_scale("gamma", width)
        return width * self._gamma(
            "gamma", a, shape_of_samples("gamma", size, [a.shape, width.shape])
        )

    def _gamma(self, name: str, a: Tensor, shape: Shape) -> Tensor:
        require_positive(name, shape=a)
        drawn = self._noise(name, self._numpys.standard_gamma, shape, a.dtype, a)
        return FUNCTIONS["gamma_sample"](a, drawn)

    def _log_gamma(self, name: str, a: Tensor, shape: Shape) -> Tensor:
        """Return logarithms of samples of gamma distributions, which do not underflow."""

        def make(a: Any, wide: Shape) -> Any:
            a = np.asarray(a, np.float64)
            larger = np.maximum(self._numpys.standard_gamma(a + 1.0, wide), np.finfo(float).tiny)
            # a sample of shape a is one of shape a + 1 times a power 1 / a of a uniform one
            return np.log(larger) - self._numpys.standard_exponential(wide) / a

        return FUNCTIONS["log_gamma_sample"](a, self._noise(name, make, shape, a.dtype, a))

    def beta(self, a: Any, b: Any, size: Any = None, *, dtype: Any = None) -> Tensor:
        """Samples of the beta distribution: the share of one of two gamma samples.

        The logarithms of the gamma samples are drawn, so that parameters may be small.

        Parameters
        ----------
        a, b
            Shapes of the distribution, positive.
        size, dtype
            As for `normal`.
        """
        one, two = parameters("beta", dtype, a, b)
        require_positive("beta", a=one, b=two)
        shape = shape_of_samples("beta", size, [one.shape, two.shape])
        first = self._log_gamma("beta", one, shape)
        return FUNCTIONS["sigmoid"](first - self._log_gamma("beta", two, shape))

    def dirichlet(self, alpha: Any, size: Any = None, *, dtype: Any = None) -> Tensor:
        """Samples of the Dirichlet distribution: shares of gamma samples; see `beta`.

        Parameters
        ----------
        alpha
            Positive parameters of a distribution, along the last axis.
        size
            Shape of the result without its last axis; default: that of `alpha`.
        dtype
            As for `normal`.

        Examples
        --------
        >>> import tapegrad as tg
        >>> rng = tg.random.default_rng(0)
        >>> rng.dirichlet([0.001, 2.0, 3.0], size=4).sum(axis=1)
        tensor([1., 1., 1., 1.])
        """
        (a,) = parameters("dirichlet", dtype, alpha)
        if not a.ndim or not a.shape[-1]:
            raise ValueError(f"dirichlet: alpha must have elements along an axis, got {a.shape}")
        require_positive("dirichlet", alpha=a)
        shape = shape_of_samples("dirichlet", size, [a.shape[:-1]], 1)
        logs = self._log_gamma("dirichlet", a, (*shape, a.shape[-1]))
        return NAMESPACES["special"]["softmax"](logs, axis=-1)

    def standard_t(self, df: Any, size: Any = None, *, dtype: Any = None) -> Tensor:
        """Samples of Student's t distribution; see `student_t`.

        Parameters
        ----------
        df
            Degrees of freedom, positive.
        size, dtype
            As for `normal`.
        """
        (free,) = parameters("standard_t", dtype, df)
        return self._standard_t(
            "standard_t", free, shape_of_samples("standard_t", size, [free.shape])
        )

    def student_t(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, *, dtype: Any = None
    ) -> Tensor:
        """Samples of Student's t distribution with a location and a scale.

        They are normal samples over roots of gamma samples, both of which stay the same random
        numbers when `df` changes.

        Parameters
        ----------
        df
            Degrees of freedom, positive.
        loc, scale
            Location and scale of the distribution.
        size, dtype
            As for `normal`.
        """
        free, center, width = parameters("student_t", dtype, df, loc, scale)
        require_scale("student_t", width)
        shape = shape_of_samples("student_t", size, [free.shape, center.shape, width.shape])
        return center + width * self._standard_t("student_t", free, shape)

    def _standard_t(self, name: str, free: Tensor, shape: Shape) -> Tensor:
        require_positive(name, df=free)
        half = 0.5 * free
        noise = self._noise(name, self._numpys.standard_normal, shape, free.dtype)
        logs = 0.5 * (FUNCTIONS["log"](half) - self._log_gamma(name, half, shape))
        with np.errstate(over="ignore"):  # small degrees of freedom have samples out of range
            found: Tensor = noise * FUNCTIONS["exp"](logs)
        return found

    # -- several normal variables -----------------------------------------------------------------

    def multivariate_normal(
        self,
        mean: Any,
        cov: Any = None,
        size: Any = None,
        *,
        scale_tril: Any = None,
        dtype: Any = None,
    ) -> Tensor:
        """Samples of a multivariate normal distribution.

        Parameters
        ----------
        mean
            Mean, along the last axis.
        cov
            Covariance, symmetric and positive definite, in the last two axes.
        size
            Shape of the result without its last axis; default: that of the parameters.
        scale_tril
            In place of `cov`, a lower triangular matrix L with covariance ``L @ L.T``, which saves
            its decomposition.
        dtype
            As for `normal`.

        Examples
        --------
        >>> import numpy as np
        >>> import tapegrad as tg
        >>> rng = tg.random.default_rng(0)
        >>> cov = np.array([[2.0, 0.5], [0.5, 1.0]])
        >>> rng.multivariate_normal(np.zeros(2), cov, size=3).shape
        (3, 2)
        """
        name = "multivariate_normal"
        if (cov is None) == (scale_tril is None):
            raise ValueError(f"{name}: give either cov or scale_tril")
        argument = "cov" if scale_tril is None else "scale_tril"
        center, matrix = parameters(name, dtype, mean, cov if scale_tril is None else scale_tril)
        if not center.ndim:
            raise ValueError(f"{name}: mean must have an axis, got a number")
        count = center.shape[-1]
        if matrix.shape[-2:] != (count, count):
            raise ValueError(
                f"{name}: {argument} has shape {matrix.shape} for a mean of {count} elements"
            )
        shape = shape_of_samples(name, size, [center.shape[:-1], matrix.shape[:-2]], 1)
        factor = _root(name, matrix) if scale_tril is None else _triangle(name, matrix)
        noise = self._noise(name, self._numpys.standard_normal, (*shape, count), center.dtype)
        if factor.ndim == 2:
            return center + noise @ factor.mT
        return center + FUNCTIONS["matvec"](factor, noise)


def _root(name: str, cov: Tensor) -> Tensor:
    """Return the Cholesky factor of a covariance."""
    array = values_of(cov)
    close = 10.0 * float(np.finfo(array.dtype).eps) ** 0.5
    is_symmetric = np.isclose(
        array, array.mT, rtol=close, atol=close * np.max(abs(array), initial=0)
    )
    require(name, "cov", is_symmetric, "symmetric")
    try:
        found: Tensor = NAMESPACES["linalg"]["cholesky"](cov)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"{name}: cov must be positive definite; for a singular covariance pass scale_tril, "
            "which may be singular"
        ) from None
    return found


def _triangle(name: str, factor: Tensor) -> Tensor:
    require(name, "scale_tril", np.triu(values_of(factor), 1) == 0.0, "lower triangular")
    return FUNCTIONS["tril"](factor)


def default_rng(seed: Any = None) -> Generator:
    """Return a generator of random numbers.

    Parameters
    ----------
    seed
        A number, or what else `numpy.random.default_rng` takes; None for entropy from the operating
        system. A generator, of NumPy's or of this package, is drawn from itself.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> rng = tg.random.default_rng(3)
    >>> state = rng.state
    >>> first = rng.normal(size=2)
    >>> rng.state = state
    >>> bool((rng.normal(size=2) == first).all())
    True
    >>> bool((np.random.default_rng(3).normal(size=2) == first).all())
    True
    """
    return seed if isinstance(seed, Generator) else Generator(numpys_generator(seed))
