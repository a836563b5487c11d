"""Programs of many different steps, to be recorded or compiled by JAX."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np


def program(xp: Any, steps: int) -> Callable[[Any], Any]:
    """Return a function of an array: steps drawn at random, none of which repeats another."""
    rng = np.random.default_rng(1)
    kinds = rng.integers(0, 5, steps).tolist()
    factors = rng.uniform(0.5, 1.5, steps).tolist()

    def function(x: Any) -> Any:
        z, w = x, x * 0.5
        for kind, c in zip(kinds, factors, strict=True):
            if kind == 0:
                z = xp.sin(z) * c
            elif kind == 1:
                z, w = z * w + 0.1 * c, z
            elif kind == 2:
                z = z / (1.0 + w * w)
            elif kind == 3:
                w = xp.tanh(w) + z * 0.1
            else:
                z = z - 0.1 * w
        return xp.sum(z + w)

    return function


def measured(side: str, steps: int) -> tuple[float, float, float, float]:
    """Return seconds of the first call and of later ones, the value, a sum of the gradient."""
    x = np.linspace(0.1, 1.0, 50)
    value_and_grad: Callable[[Any], Any]
    if side == "jax.jit":
        import jax  # it is optional

        jax.config.update("jax_enable_x64", True)
        compiled = jax.jit(jax.value_and_grad(program(jax.numpy, steps)))

        def value_and_grad(x: Any) -> Any:
            return jax.block_until_ready(compiled(x))
    else:
        import tapegrad as tg  # not beside JAX

        value_and_grad = tg.value_and_grad(tg.jit(program(tg, steps)))

    seconds = []
    for _ in range(22):
        start = perf_counter()
        value, gradient = value_and_grad(x)
        seconds.append(perf_counter() - start)
    return seconds[0], median(seconds[1:]), float(value), float(gradient.sum())
