"""Claims of derivatives: products ``u . J v``, which each derivative determines.

``u`` are weights of the results, ``v`` is a direction of the arguments; both are real vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core.dispatcher import OmittedArg

from tapegrad.transform import composed, derivatives
from tapegrad.transform.base import Derivative
from tapegrad.transform.checks import probes
from tapegrad.transform.protocols import Returns


class ShapeError(Exception):
    """A derivative has a wrong shape."""


class Arguments:
    """Arguments of a call; omitted ones are omitted from all other calls as well."""

    def __init__(self, function: Any, args: tuple[Any, ...]) -> None:
        code = function.py_func.__code__
        self.names = code.co_varnames[: code.co_argcount]
        self.omitted = {k for k, arg in enumerate(args) if isinstance(arg, OmittedArg)}
        self.values = [arg.value if isinstance(arg, OmittedArg) else arg for arg in args]

    def moved(self, steps: dict[int, np.ndarray]) -> list[Any]:
        """Return the values, some of them changed."""
        return [
            probes.moved(value, steps[k]) if k in steps else value
            for k, value in enumerate(self.values)
        ]


class Claim:
    """A derivative in comparable form: as products ``u . J v``.

    Attributes
    ----------
    derivative, function
        The derivative, and the function that it differentiates.
    args
        The arguments of the function.
    numbers
        Positions of the arguments to differentiate with respect to.
    builds_on
        Derivatives to check first, with the number of their arguments.
    mode
        Its name in messages.
    """

    writes = True  # whether it leaves arguments as the function does, or as they were

    def __init__(self, derivative: Any, args: tuple[Any, ...]) -> None:
        self.derivative = derivative
        self.function, self.numbers = self.differentiated(derivative)
        self.count = derivative.py_func.__code__.co_argcount - derivative.given
        self.args = Arguments(derivative, args[: self.count])
        self.extra = list(args[self.count :])
        self.state: list[bytes] = []
        self._kept: Any = None
        self.builds_on: list[tuple[Any, int]] = []
        if isinstance(self.function, Derivative):
            self.builds_on.append((self.function, self.count))

    def differentiated(self, derivative: Any) -> tuple[Any, tuple[int, ...]]:
        """Return the function, and the positions of its arguments."""
        return derivative.base, derivative.numbers

    def call(self, function: Any, values: list[Any], extra: list[Any]) -> tuple[Any, list[Any]]:
        """Call a function with copies of values; return the result and the copies afterwards."""
        probes.restore(self.state)
        given = [probes.copied(value) for value in [*values, *extra]]
        if self.args.omitted and not extra:
            left_out = {k for k in self.args.omitted if values[k] is self.args.values[k]}
            named = zip(self.args.names, given, strict=True)
            kept = {n: v for k, (n, v) in enumerate(named) if k not in left_out}
            return function(**kept), given
        return function(*given), given

    def value(self, found: Any) -> Any:
        """Return the value of the function in the result of a call, None if it has none."""
        return None

    def first(self) -> tuple[Any, list[Any]]:
        """Return the result of the derivative for the given call, and the arguments after it."""
        return self.call(self.derivative, self.args.values, self.extra)

    def results(self, values: list[Any], extra: list[Any]) -> Any:
        """Return the result of the derivative, which is kept for the arguments of the call."""
        if values is not self.args.values:
            return self.call(self.derivative, values, extra)[0]
        if self._kept is None:
            self._kept = self.call(self.derivative, values, extra)
        return self._kept[0]

    def direction(self, number: int, draw: np.random.Generator) -> np.ndarray:
        """Return a random direction of an argument."""
        return probes.direction(self.args.values[number], draw)

    def product(self, values: list[Any], u: np.ndarray, v: dict[int, np.ndarray]) -> Product:
        """Return ``u . J v`` at some values of the arguments."""
        raise NotImplementedError

    def others(self, result: Any) -> Iterator[tuple[str, Callable[..., Product]]]:
        """Yield other ways to compute the product, with their names."""
        raise NotImplementedError


@dataclass(frozen=True)
class Product:
    """A dot product, and the sum of the magnitudes of its terms."""

    value: float
    size: float


def _dot(one: np.ndarray, other: np.ndarray) -> Product:
    if one.shape != other.shape:
        raise ShapeError
    terms = (one * other)[other != 0.0]
    return Product(float(terms.sum()), float(np.abs(terms).sum()))


def _sum(products: list[Product]) -> Product:
    return Product(sum(p.value for p in products), sum(p.size for p in products))


class PullbackClaim(Claim):
    """Reverse mode."""

    mode = "reverse mode"

    def value(self, found: Any) -> Any:
        return found[0] if Returns.VALUE in self.derivative.returns else None

    def gradients(self, found: Any) -> tuple[Any, ...]:
        """Return the gradients in a result, a tuple."""
        if Returns.VALUE in self.derivative.returns:
            found = found[1]
        return found if Returns.GRADIENTS in self.derivative.returns else (found,)

    def product(self, values: list[Any], u: np.ndarray, v: dict[int, np.ndarray]) -> Product:
        extra = _seeds(self.extra, u)
        gradients = self.gradients(self.results(values, extra))
        return _along(gradients, self.numbers, values, u, v, bool(extra))

    def others(self, result: Any) -> Iterator[tuple[str, Callable[..., Product]]]:
        yield "forward mode", _forward(self)


class PushforwardClaim(Claim):
    """Forward mode."""

    mode = "forward mode"

    def value(self, found: Any) -> Any:
        return found[0]

    def direction(self, number: int, draw: np.random.Generator) -> np.ndarray:
        given = self.extra[self.numbers.index(number)]
        return _possible(given, self.args.values[number], super().direction(number, draw))

    def product(self, values: list[Any], u: np.ndarray, v: dict[int, np.ndarray]) -> Product:
        tangents = []
        for number, given in zip(self.numbers, self.extra, strict=True):
            step = v.get(number)
            if step is None:
                step = np.zeros(probes.vector(values[number]).size)
            tangents.append(_tangent(given, values[number], step))
        value, tangent = self.call(self.derivative, values, tangents)[0]
        return _dot(probes.vector(tangent, value), u)

    def others(self, result: Any) -> Iterator[tuple[str, Callable[..., Product]]]:
        yield "reverse mode", _reverse(self, result)


class JacobianClaim(Claim):
    """A matrix of derivatives."""

    mode = "the Jacobian"
    writes = False

    def product(self, values: list[Any], u: np.ndarray, v: dict[int, np.ndarray]) -> Product:
        found = self.results(values, [])
        matrices = (found,) if self.derivative.single else found
        products = []
        for number, matrix in zip(self.numbers, matrices, strict=True):
            if number in v:
                if np.size(matrix) != u.size * v[number].size:
                    raise ShapeError
                rows = np.asarray(matrix, np.float64).reshape(u.size, -1)
                products.append(_dot((rows * u[:, None]).sum(0), v[number]))
        return _sum(products)

    def others(self, result: Any) -> Iterator[tuple[str, Callable[..., Product]]]:
        yield "forward mode", _forward(self)
        yield "reverse mode", _reverse(self, result)


class HessianProductClaim(Claim):
    """The second derivative times a vector: forward mode over reverse mode."""

    mode = "the Hessian times a vector"

    def differentiated(self, derivative: Any) -> tuple[Any, tuple[int, ...]]:
        numbers = (derivative.number,)
        return derivatives.pullback(derivative.base, numbers, 0, Returns.GRADIENT), numbers

    def direction(self, number: int, draw: np.random.Generator) -> np.ndarray:
        given = self.extra[0]
        return _possible(given, self.args.values[number], super().direction(number, draw))

    def product(self, values: list[Any], u: np.ndarray, v: dict[int, np.ndarray]) -> Product:
        (number,) = self.numbers
        vectors = [_tangent(self.extra[0], values[number], v[number])]
        found = self.call(self.derivative, values, vectors)[0]
        return _dot(_gradient(found, values[number]), u)

    def others(self, result: Any) -> Iterator[tuple[str, Callable[..., Product]]]:
        (number,) = self.numbers

        def transposed(values: list[Any], u: np.ndarray, v: dict[int, np.ndarray]) -> Product:
            return self.product(values, v[number], {number: u})

        yield "its transpose", transposed


_CLAIMS = {
    derivatives.Pullback: PullbackClaim,
    derivatives.Pushforward: PushforwardClaim,
    composed.Jacobian: JacobianClaim,
    composed.HessianProduct: HessianProductClaim,
}


def claim_of(derivative: Any, args: tuple[Any, ...]) -> Any:
    """Return the claim of a derivative; None for one that only generated code calls."""
    found = [_CLAIMS[kind] for kind in type(derivative).__mro__ if kind in _CLAIMS]
    own = len(args) - derivative.given
    if not found or any(isinstance(arg, OmittedArg) for arg in args[own:]):
        return None  # with omitted defaults, the arguments have other positions
    return found[0](derivative, args)


def _forward(claim: Any) -> Callable[..., Product]:
    def product(values: list[Any], u: np.ndarray, v: dict[int, np.ndarray]) -> Product:
        pushforward = derivatives.pushforward(claim.function, claim.numbers)
        tangents = []
        for number in claim.numbers:
            size = probes.vector(values[number]).size
            step = v.get(number, np.zeros(size))
            tangents.append(_tangent(values[number], values[number], step))
        value, tangent = claim.call(pushforward, values, tangents)[0]
        return _dot(probes.vector(tangent, value), u)

    return product


def _reverse(claim: Any, result: Any) -> Callable[..., Product]:
    real = [part for part in probes.parts(result) if probes.is_real(part)]
    if len(real) == 1 and not isinstance(real[0], np.ndarray):
        real = []  # value_and_grad is likely to be compiled already
    returns = Returns.GRADIENTS if real else Returns.VALUE | Returns.GRADIENTS

    def product(values: list[Any], u: np.ndarray, v: dict[int, np.ndarray]) -> Product:
        pullback = derivatives.pullback(claim.function, claim.numbers, len(real), returns)
        found = claim.call(pullback, values, _seeds(real, u))[0]
        return _along(found if real else found[1], claim.numbers, values, u, v, bool(real))

    return product


def _along(
    gradients: tuple[Any, ...],
    numbers: tuple[int, ...],
    values: list[Any],
    u: np.ndarray,
    v: dict[int, np.ndarray],
    seeded: bool,
) -> Product:
    """Return the product of gradients with a direction; scaled by `u` if not seeded."""
    found = [
        _dot(_gradient(gradient, values[number]), v[number])
        for number, gradient in zip(numbers, gradients, strict=True)
        if number in v
    ]
    scale = 1.0 if seeded else float(u[0])
    total = _sum(found)
    return Product(total.value * scale, total.size * abs(scale))


def _seeds(given: list[Any], u: np.ndarray) -> list[Any]:
    """Return cotangents of the same types as given ones, with other numbers."""
    pieces = np.split(u, np.cumsum([probes.size_of(s) for s in given])[:-1]) if given else []
    return [_numbers(seed, piece) for seed, piece in zip(given, pieces, strict=True)]


def _numbers(part: Any, numbers: np.ndarray) -> Any:
    """Return a value of the type of a part of a result with given numbers; integers are rounded."""
    if probes.is_real(part):
        return probes.with_numbers(part, numbers)
    return type(part)(round(float(numbers[0])))


def _tangent(given: Any, value: Any, step: np.ndarray) -> Any:
    """Return a tangent of the same type as a given one, which may be an integer for a number."""
    if isinstance(given, tuple):
        items, start = [], 0
        for one, part in zip(given, value, strict=True):
            size = probes.vector(part).size
            items.append(_tangent(one, part, step[start : start + size]))
            start += size
        return probes.rebuilt(given, items)
    if probes.is_real(value) and not probes.is_real(given):
        return type(given)(step[0])
    return probes.with_numbers(given, step if probes.is_real(value) else np.zeros(np.size(given)))


def _possible(given: Any, value: Any, step: np.ndarray) -> np.ndarray:
    """Return a direction that the types of the given tangents can represent.

    It is integral where a given tangent is an integer, and real where a tangent of a complex number
    is real.
    """
    pairs = [
        (tangent, part)
        for tangent, part in zip(probes.parts(given), probes.parts(value), strict=True)
        if probes.is_real(part)
    ]
    whole = [np.full(probes.size_of(part), not probes.is_real(tangent)) for tangent, part in pairs]
    missing = [
        np.tile([False, not probes.is_complex(tangent)], np.size(part))
        if probes.is_complex(part)
        else np.zeros(np.size(part), bool)
        for tangent, part in pairs
    ]
    step = np.where(np.concatenate(missing), 0.0, step)
    return np.where(np.concatenate(whole), np.sign(step) * np.ceil(np.abs(step)), step)


def _gradient(found: Any, value: Any) -> np.ndarray:
    """Return the numbers of a gradient, which has the structure of the argument."""
    if not probes.is_like(found, value):
        raise ShapeError
    return probes.vector(found, value)
