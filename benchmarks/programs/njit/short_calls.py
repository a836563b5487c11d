"""Short functions, of which a call is what costs."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import tapegrad as tg


def product(x, y):
    """A number."""
    return x * y + x


def doubled(a):
    """An array."""
    return a * 2.0


def scaled(x, a):
    """Two arrays."""
    return x * a, a + 1.0


def short_calls() -> dict[str, Callable[[], Any]]:
    """Calls of short functions, from numbers and from tensors."""
    plain, ours = numba.njit(product), tg.njit(product)
    array, several = tg.njit(doubled), tg.njit(scaled)
    gradient = tg.grad(ours)
    x = tg.tensor(0.5, requires_grad=True)
    a = tg.tensor(np.ones(8), requires_grad=True)
    return {
        "numba": lambda: plain(0.5, 1.5),
        "gradient": lambda: gradient(0.5, 1.5),
        "tensor to number": lambda: ours(x, 1.5),
        "tensor to array": lambda: array(a),
        "tensors to two arrays": lambda: several(x, a),
        "NumPy function of a tensor": lambda: np.sin(a),
    }
