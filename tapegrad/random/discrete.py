"""The state of a generator, and samples without derivatives."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from tapegrad.eager.creation import as_tensor
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import refuse_when_recording
from tapegrad.random.draws import (
    Shape,
    draw,
    drawn_in_each_call,
    float_type,
    parameters,
    refuse_differentiated,
    require,
    shape_of_samples,
    values_of,
)

CLOSE = float(np.finfo(np.float32).eps) ** 0.5  # sums of probabilities that were float32 once
SCORE = "and differentiate the logarithm of the probability (the score-function estimate)"


@drawn_in_each_call
class DiscreteGenerator:
    """A generator of random numbers, with its discrete distributions.

    Parameters
    ----------
    numpys
        The generator of NumPy's that it draws from; by default one with entropy from the operating
        system, which is made when it is needed (`numpy.random` takes a while to import).
    """

    def __init__(self, numpys: np.random.Generator | None = None) -> None:
        refuse_when_recording("a random generator is made")
        if numpys is not None:
            self._made = numpys

    @property
    def _numpys(self) -> np.random.Generator:
        made: np.random.Generator | None = self.__dict__.get("_made")
        # what another thread has made meanwhile stays
        return made or self.__dict__.setdefault("_made", np.random.default_rng())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._numpys,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.bit_generator).__name__})"

    @property
    def bit_generator(self) -> np.random.BitGenerator:
        """NumPy's bit generator, which holds the state."""
        refuse_when_recording("the state of a random generator is used")
        return self._numpys.bit_generator

    @property
    def state(self) -> dict[str, Any]:
        """The state, as `numpy.random.BitGenerator.state`; it can be assigned to."""
        return dict(self.bit_generator.state)

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.bit_generator.state = state

    def restart(self, seed: Any = None) -> None:
        """Start anew from a seed; see `default_rng`."""
        self._made = numpys_generator(seed)

    def spawn(self, n_children: int) -> list[Self]:
        """Return independent generators, for example one for each thread or process.

        Parameters
        ----------
        n_children
            How many.

        Examples
        --------
        >>> import tapegrad as tg
        >>> one, two = tg.random.default_rng(0).spawn(2)
        >>> bool(one.random() == two.random())
        False
        """
        return [type(self)(child) for child in self._numpys.spawn(n_children)]

    def random(self, size: Any = None, dtype: Any = None) -> Tensor:
        """Numbers between 0, included, and 1, excluded.

        Parameters
        ----------
        size
            Shape of the result.
        dtype
            float32 or float64 (default).
        """
        made: Any = float_type("random", dtype, ())  # not rounded from float64, to 1
        return draw(
            self._numpys,
            "random",
            lambda shape: self._numpys.random(shape, made),
            shape_of_samples("random", size, [()]),
        )

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: Any = None,
        dtype: Any = np.int64,
        endpoint: bool = False,
    ) -> Tensor:
        """Integers from `low` to `high`, or below `low` if there is no `high`.

        Parameters
        ----------
        low, high
            Numbers or arrays of integers.
        size
            Shape of the result.
        dtype
            Type of the integers.
        endpoint
            Whether `high` is included.
        """
        refuse_differentiated("integers", "as the result is made of integers", low=low, high=high)
        kind: Any = np.dtype(dtype)
        given = [as_tensor(end) for end in (low, high) if end is not None]
        least, most = [as_tensor(0), *given][-2:]
        above = values_of(FUNCTIONS["greater_equal"](most, least))
        if not endpoint:
            above = values_of(FUNCTIONS["greater"](most, least))
        argument, other = ("low", "0") if high is None else ("high", "low")
        require("integers", argument, above, f"{'at least' if endpoint else 'above'} {other}")

        def make(*args: Any) -> Any:
            *ends, wide = (0, *args)
            return self._numpys.integers(ends[-2], ends[-1], wide, kind, endpoint)

        shape = shape_of_samples("integers", size, [end.shape for end in given])
        return draw(self._numpys, "integers", make, shape, *given)

    def bernoulli(self, p: Any = 0.5, size: Any = None, *, dtype: Any = None) -> Tensor:
        """1 with probability `p`, otherwise 0, as floating point numbers.

        Parameters
        ----------
        p
            Probability.
        size
            Shape of the result; default: that of the parameters.
        dtype
            float32 or float64; default: that of the parameters.

        Raises
        ------
        TypeError
            If `p` requires grad: the samples do not change with it, except by jumps.

        Examples
        --------
        >>> import tapegrad as tg
        >>> rng = tg.random.default_rng(0)
        >>> rng.bernoulli(0.9, size=5)
        tensor([1., 1., 1., 1., 1.])
        """
        refuse_differentiated("bernoulli", SCORE, p=p)
        (chance,) = parameters("bernoulli", dtype, p)
        _require_probability("bernoulli", chance)
        shape = shape_of_samples("bernoulli", size, [chance.shape])
        uniform = draw(self._numpys, "bernoulli", self._numpys.random, shape)
        return FUNCTIONS["astype"](uniform < chance, chance.dtype)

    def binomial(self, n: Any, p: Any, size: Any = None) -> Tensor:
        """Number of successes in `n` trials with probability `p`; see `bernoulli`.

        Parameters
        ----------
        n, p
            Number of trials, and probability.
        size
            Shape of the result; default: that of the parameters.
        """
        refuse_differentiated("binomial", SCORE, n=n, p=p)
        count = as_tensor(n)
        if count.dtype.kind not in "biu":
            raise TypeError(f"binomial: n must be integers, got {count.dtype}")
        (chance,) = parameters("binomial", np.float64, p)
        require("binomial", "n", values_of(count) >= 0, "at least 0")
        _require_probability("binomial", chance)
        shape = shape_of_samples("binomial", size, [count.shape, chance.shape])
        return draw(self._numpys, "binomial", self._numpys.binomial, shape, count, chance)

    def poisson(self, lam: Any = 1.0, size: Any = None) -> Tensor:
        """Counts with mean `lam`; see `bernoulli`.

        Parameters
        ----------
        lam
            Mean.
        size
            Shape of the result; default: that of the parameters.
        """
        refuse_differentiated("poisson", SCORE, lam=lam)
        (mean,) = parameters("poisson", np.float64, lam)
        most = np.iinfo(np.int64).max - 10.0 * np.sqrt(float(np.iinfo(np.int64).max))
        array = values_of(mean)
        require("poisson", "lam", (array >= 0.0) & (array < most), "from 0 to 9.2e18")
        shape = shape_of_samples("poisson", size, [mean.shape])
        return draw(self._numpys, "poisson", self._numpys.poisson, shape, mean)

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Tensor:
        """Elements of `a` at random, differentiable with respect to them.

        Parameters
        ----------
        a
            An array or tensor, or a number for ``arange(a)``.
        size
            Shape of the choice; default: one element.
        replace
            Whether an element may be chosen more than once.
        p
            Probabilities of the elements, along one axis; equal by default. Samples have no
            derivative with respect to them: if it is required, TypeError is raised.
        axis
            The axis of `a` along which to choose.
        shuffle
            Whether the order of a choice without replacement is random.

        Examples
        --------
        >>> import tapegrad as tg
        >>> rng = tg.random.default_rng(0)
        >>> x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
        >>> rng.choice(x, size=4).sum().backward()
        >>> x.grad  # how often each was chosen
        tensor([1., 2., 1.])
        """
        refuse_differentiated("choice", SCORE, p=p)
        values = None if isinstance(a, (int, np.integer)) else as_tensor(a)
        if values is not None and not values.ndim:
            raise ValueError("choice: a must be a number, or have an axis to choose along")
        count = int(a) if values is None else values.shape[axis]
        shape = shape_of_samples("choice", size, [()])
        chosen = int(np.prod(shape, dtype=np.int64))
        require("choice", "a", count > 0 or not chosen, "a positive number, or have elements")
        require("choice", "size", replace or chosen <= count, "at most that of a, without replace")
        chances = [] if p is None else parameters("choice", np.float64, p)
        for chance in chances:
            if chance.shape != (count,):
                raise ValueError(f"choice: p has shape {chance.shape} for {count} elements")
            array = values_of(chance)
            is_one = np.abs(np.sum(array, axis=-1) - 1.0) < CLOSE
            require("choice", "p", np.all(array >= 0.0) & is_one, "at least 0, with a sum of 1")

        def make(*args: Any) -> Any:
            *given, wide = args
            items = int(np.prod(wide[: len(wide) - len(shape)], dtype=np.int64))
            rows = [g.reshape(-1, count) for g in given]
            if not given and (replace or items == 1):
                return self._numpys.choice(count, wide, replace, None, 0, shuffle)
            found = np.empty((items, *shape), np.int64)
            for k in range(items):
                chance = rows[0][k] if rows else None
                found[k] = self._numpys.choice(count, shape, replace, chance, 0, shuffle)
            return found.reshape(wide)

        places = draw(self._numpys, "choice", make, shape, *chances)
        return places if values is None else FUNCTIONS["take"](values, places, axis)

    def permutation(self, x: Any, axis: int = 0) -> Tensor:
        """The elements of `x` in random order, differentiable with respect to them.

        Parameters
        ----------
        x
            An array or tensor, or a number for ``arange(x)``.
        axis
            The axis of `x` along which to change the order.

        Examples
        --------
        >>> import tapegrad as tg
        >>> tg.random.default_rng(0).permutation(4)
        tensor([2, 0, 1, 3])
        """
        values = None if isinstance(x, (int, np.integer)) else as_tensor(x)
        if values is not None and not values.ndim:
            raise ValueError("permutation: x must be a number, or have an axis")
        count = int(x) if values is None else values.shape[axis]

        def make(shape: Shape) -> Any:
            if len(shape) == 1:
                return self._numpys.permutation(count)
            return self._numpys.permuted(np.broadcast_to(np.arange(count), shape), axis=-1)

        order = draw(self._numpys, "permutation", make, (count,))
        return order if values is None else FUNCTIONS["take"](values, order, axis)


def _require_probability(name: str, chance: Tensor) -> None:
    array = values_of(chance)
    require(name, "p", (array >= 0.0) & (array <= 1.0), "from 0 to 1")


def numpys_generator(seed: Any) -> np.random.Generator:
    """Return a generator of NumPy's; see `default_rng`."""
    return np.random.default_rng(seed._numpys if isinstance(seed, DiscreteGenerator) else seed)
