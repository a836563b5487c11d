"""Arguments of corpus functions, written as short texts.

A text is a Python expression of the words below, of ``N`` (how long arrays are) and of numbers:
``"num(0.2, 0.8)"``, ``"arr(1, 3, N, 2)"``, ``"N - 1"``, ``"None"``. The texts of a function are
evaluated in order with one random generator, whose seed is the number of the point.
"""

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

SMALL = 6
"""How long arrays are where derivatives are checked."""


@numba.njit
def bowl(x):
    """A smooth function of a number for functions that take one."""
    return (x - 0.4) * (x + 1.7) + 0.1 * math.sin(3.0 * x)


class Words:
    """What the texts are made of."""

    def __init__(self, point: int, size: int) -> None:
        self.rng = np.random.default_rng([20_240, point])
        self.names = {
            "N": size,
            "bowl": bowl,
            **{
                word: getattr(self, word)
                for word in ("num", "arr", "asc", "ints", "spd", "fill", "f32", "flag")
            },
        }

    def num(self, low: float, high: float) -> float:
        """Return a number."""
        return float(self.rng.uniform(low, high))

    def arr(self, low: float, high: float, *shape: int) -> np.ndarray:
        """Return an array."""
        return self.rng.uniform(low, high, shape)

    def asc(self, low: float, high: float, *shape: int) -> np.ndarray:
        """Return an array that increases along its last axis."""
        steps = self.rng.uniform(0.5, 1.5, shape)
        steps = np.cumsum(steps, axis=-1) - 0.5 * steps[..., :1]
        return low + (high - low) * steps / (steps[..., -1:] + 0.5)

    def ints(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Return an array of integers, from low to below high."""
        return self.rng.integers(low, high, shape)

    def flag(self, *shape: int) -> np.ndarray:
        """Return an array of truth values."""
        return self.rng.uniform(0, 1, shape) < 0.5

    def spd(self, size: int) -> np.ndarray:
        """Return a symmetric positive definite matrix."""
        m = self.rng.uniform(-1, 1, (size, size))
        return m @ m.T / size + 2 * np.eye(size)

    def fill(self, value: float, *shape: int) -> np.ndarray:
        """Return an array of one value."""
        return np.full(shape, value)

    def f32(self, value: Any) -> Any:
        """Return an array or number in single precision."""
        return value.astype(np.float32) if isinstance(value, np.ndarray) else np.float32(value)


def make(texts: Sequence[str], point: int, size: int) -> list[Any]:
    """Return the arguments that the texts stand for."""
    words = Words(point, size)
    return [eval(text, {"__builtins__": {}, "np": np}, words.names) for text in texts]


def copied(value: Any) -> Any:
    """Return a copy whose arrays are new."""
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def is_real(value: Any) -> bool:
    """Whether an argument is differentiated by: floats, and arrays and tuples of nothing else."""
    if isinstance(value, tuple):
        return bool(value) and all(map(is_real, value))
    return isinstance(value, (float, np.floating)) or (
        isinstance(value, np.ndarray) and value.dtype.kind == "f"
    )


def flat(value: Any) -> np.ndarray:
    """Return all numbers of a value as one vector."""
    if isinstance(value, tuple):
        return np.concatenate([np.zeros(0), *map(flat, value)])
    return np.array(value, np.float64).ravel()


def moved(value: Any, step: np.ndarray) -> Any:
    """Return a value whose numbers are changed by the elements of a vector."""
    if isinstance(value, tuple):
        items, at = [], 0
        for item in value:
            size = flat(item).size
            items.append(moved(item, step[at : at + size]))
            at += size
        return tuple(items)
    if isinstance(value, np.ndarray):
        return (value + step.reshape(value.shape)).astype(value.dtype)
    return type(value)(value + step[0])
