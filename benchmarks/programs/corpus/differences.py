"""Derivatives by differences of what a function computes, with an estimate of their error."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .inputs import copied, flat, is_real, moved


@dataclass
class Outcome:
    """The arrays and numbers that a call gave: its result, and arguments that it wrote to."""

    leaves: list[Any]

    def numbers(self) -> np.ndarray:
        """Return all real numbers as one vector; complex ones have two."""
        parts = [np.zeros(0)]
        for leaf in self.leaves:
            values = np.asarray(leaf).ravel()
            parts += [values.real, values.imag] if values.dtype.kind == "c" else [values]
        return np.concatenate(parts).astype(np.float64)


def leaves_of(value: Any) -> list[Any]:
    """Return the arrays and numbers in a result; what is neither real nor complex is left out."""
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in leaves_of(item)]
    if isinstance(value, (float, complex, np.floating, np.complexfloating)):
        return [value]
    return [value] if isinstance(value, np.ndarray) and value.dtype.kind in "fc" else []


def outcome(
    function: Callable[..., Any], arguments: Sequence[Any], writes: Sequence[int]
) -> Outcome:
    """Call a function with copies of the arguments."""
    given = [copied(argument) for argument in arguments]
    result = function(*given)
    return Outcome([*leaves_of(result), *(given[place] for place in writes)])


def same_in_python(function: Any, arguments: Sequence[Any], writes: Sequence[int]) -> bool:
    """Whether the function computes the same when Python runs it.

    Where it does not, it reads or writes out of bounds, or slices by fractions: numba does not see
    that in ``x[:6] += y[:5]``. What it calls is compiled.
    """
    compiled = outcome(function, arguments, writes)
    try:
        plain = outcome(function.py_func, arguments, writes)
    except Exception:
        return False
    loose = 1e-3 if is_single([*compiled.leaves, *plain.leaves, *arguments]) else 1e-7
    one, other = compiled.numbers(), plain.numbers()
    return one.shape == other.shape and np.allclose(one, other, rtol=loose, atol=1e-12)


def weights_of(count: int) -> np.ndarray:
    """Return fixed weights for the numbers of an outcome."""
    return np.random.default_rng(31).uniform(0.5, 1.5, count)


def is_single(values: Sequence[Any]) -> bool:
    """Whether a value in single precision is among these."""
    return any(
        np.asarray(leaf).dtype in (np.float32, np.complex64)
        for value in values
        for leaf in (value if isinstance(value, tuple) else [value])
    )


def has_single_variables(function: Callable[..., Any]) -> bool:
    """Whether variables of a compiled function were declared to be of single precision."""
    declared = getattr(function, "locals", {})
    return any(str(kind) == "float32" for kind in declared.values())


@dataclass
class Slopes:
    """A gradient by differences, in one vector for each argument."""

    gradient: list[np.ndarray]
    errors: list[np.ndarray]
    single: bool

    @property
    def largest(self) -> float:
        return max((float(np.abs(g).max(initial=0.0)) for g in self.gradient), default=0.0)

    def converged(self) -> bool:
        """Whether every element is known well enough to judge by."""
        loose = 3e-3 if self.single else 1e-6
        return all(
            bool(np.all(np.isfinite(g)) and np.all(e <= loose * self.largest + loose * np.abs(g)))
            for g, e in zip(self.gradient, self.errors, strict=True)
        )

    def agrees(self, place: int, found: np.ndarray) -> bool:
        """Whether a gradient by an argument is the same within the errors."""
        expected, error = self.gradient[place], self.errors[place]
        loose = 1e-2 if self.single else 3e-6
        allowed = loose * self.largest + loose * np.abs(expected) + 5 * error
        return found.shape == expected.shape and bool(np.all(np.abs(found - expected) <= allowed))

    def agrees_along(self, steps: Sequence[np.ndarray], found: float) -> bool:
        """Whether a derivative in a direction is the same within the errors."""
        expected = sum(g @ step for g, step in zip(self.gradient, steps, strict=True))
        error = sum(e @ np.abs(step) for e, step in zip(self.errors, steps, strict=True))
        sizes = sum(np.abs(g) @ np.abs(step) for g, step in zip(self.gradient, steps, strict=True))
        return bool(abs(found - expected) <= (1e-2 if self.single else 3e-6) * sizes + 5 * error)


def slopes(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    active: Sequence[int],
    writes: Sequence[int],
) -> Slopes | None:
    """Return the gradient of the weighted sum of all that a function computes.

    None where it is not smooth, as far as differences tell.
    """
    first = outcome(function, arguments, writes)
    single = is_single([*first.leaves, *(arguments[place] for place in active)])
    single |= has_single_variables(function)
    count = first.numbers().size
    weights = weights_of(count)

    def total(place: int, step: np.ndarray) -> float:
        new = list(arguments)
        new[place] = moved(arguments[place], step)
        numbers = outcome(function, new, writes).numbers()
        return float(weights @ numbers) if numbers.size == count else np.nan

    gradient, errors, bends = [], [], []
    for place in active:
        at = flat(arguments[place])
        found = [
            along(lambda t, u=u, p=place: total(p, t * u), at[k], single)
            for k, u in enumerate(np.eye(at.size))
        ]
        columns = np.array(found).reshape(at.size, 3).T
        gradient.append(columns[0])
        errors.append(columns[1])
        bends.append(columns[2])
    result = Slopes(gradient, errors, single)
    if not result.converged() or result.largest == 0.0:
        return None
    bent = 3e-2 if single else 1e-3
    if any(np.any(bend > bent * result.largest) for bend in bends):
        return None
    return result


def along(
    evaluate: Callable[[float], float], at: float, single: bool
) -> tuple[float, float, float]:
    """Derivative at zero by Ridders' extrapolation of central differences, its error, and a bend.

    The bend is how much the slopes to both sides differ close by. The method is in C. J. F.
    Ridders, Accurate computation of F'(x) and F'(x)F''(x), Advances in Engineering Software 4
    (1982).
    """
    shrink = 1.6
    step = (0.2 if single else 0.05) * abs(at) if abs(at) > 1e-8 else 0.01
    previous: list[float] = []
    best, error = np.nan, np.inf
    steps = 6 if single else 11
    for _ in range(steps):
        row = [(evaluate(step) - evaluate(-step)) / (2 * step)]
        factor = shrink**2
        for older in previous:
            row.append((row[-1] * factor - older) / (factor - 1))
            factor *= shrink**2
            guess = max(abs(row[-1] - row[-2]), abs(row[-1] - older))
            if guess < error:
                best, error = row[-1], guess
        previous = row
        step /= shrink
    near = step * (8 if single else 0.01)
    middle = evaluate(0.0)
    bend = abs(evaluate(near) - 2 * middle + evaluate(-near)) / near
    return best, error, bend


def active_places(arguments: Sequence[Any]) -> list[int]:
    """Return which arguments are differentiated by."""
    return [place for place, value in enumerate(arguments) if is_real(value)]
