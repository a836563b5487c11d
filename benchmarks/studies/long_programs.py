"""Programs of many different steps: how the time to compile grows with their number.

From the root of the repository::

    python -m benchmarks.studies.long_programs 20 100 300

Each program is recorded and compiled in a process of its own, with an empty cache. JAX compiles the
same beside it if it is installed.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.programs.fresh import run_fresh_cold
from benchmarks.reports.comparison import duration, show_table


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
        import jax

        jax.config.update("jax_enable_x64", True)
        compiled = jax.jit(jax.value_and_grad(program(jax.numpy, steps)))

        def value_and_grad(x: Any) -> Any:
            return jax.block_until_ready(compiled(x))
    else:
        import tapegrad as tg

        value_and_grad = tg.value_and_grad(tg.jit(program(tg, steps)))

    seconds = []
    for _ in range(22):
        start = perf_counter()
        value, gradient = value_and_grad(x)
        seconds.append(perf_counter() - start)
    return seconds[0], median(seconds[1:]), float(value), float(gradient.sum())


def main(arguments: Sequence[str]) -> None:
    """Measure programs and show a table."""
    parser = argparse.ArgumentParser(description="Compile long programs.")
    parser.add_argument("steps", nargs="*", type=int, default=[20, 100, 300])
    steps = parser.parse_args(arguments).steps
    sides = ["tapegrad.jit"]
    if importlib.util.find_spec("jax"):
        sides.append("jax.jit")
    rows = []
    for count in steps:
        row, results = [str(count)], []
        for side in sides:
            first, later, *result = run_fresh_cold("long_program", side, count)
            row += [duration(first), duration(later)]
            results.append(result)
        np.testing.assert_allclose(results, np.broadcast_to(results[0], np.shape(results)), 1e-9)
        rows.append(row)
    columns = ["steps", *(f"{side}, {what}" for side in sides for what in ("first", "later"))]
    show_table("value and gradient", columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
