"""What a call of a recorded function costs: ``python -m benchmarks.studies.jitted_calls``.

The functions compute next to nothing, for arguments of several kinds. JAX runs the same beside them
if it is installed.
"""

import argparse
import importlib.util
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import tapegrad as tg
from benchmarks.measure.tables import duration, show_table
from benchmarks.measure.timing import elapsed

CALLS = 1000  # in a row
REPETITIONS = 15


def product(xp: Any, x: Any, y: Any) -> Any:
    return xp.sum(x * y)


def of_parameters(xp: Any, p: Any, y: Any) -> Any:
    return xp.sum(p["a"] * y + p["b"][0] * p["b"][1])


def cases(array: Callable[[Any], Any]) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions and their arguments, made of arrays of a library."""
    x = array(np.linspace(0.0, 1.0, 10))
    return {
        "two arrays": (product, (x, x)),
        "an array and a number": (product, (x, 0.5)),
        "a dict with a list of arrays": (of_parameters, ({"a": x, "b": [x, x]}, x)),
    }


def seconds(call: Callable[[], Any]) -> float:
    """Return the median of the seconds of a call."""

    def many() -> None:
        for _ in range(CALLS):
            call()

    many()
    return median(elapsed(many) for _ in range(REPETITIONS)) / CALLS


def measured(lib: Any, xp: Any, array: Callable[[Any], Any], wait: Any) -> dict[str, list[float]]:
    """Seconds of values, and of values and gradients."""
    found = {}
    for name, (function, args) in cases(array).items():
        value = lib.jit(partial(function, xp))
        both = lib.jit(lib.value_and_grad(partial(function, xp)))
        found[name] = [seconds(lambda f=f, a=args: wait(f(*a))) for f in (value, both)]
    return found


def main() -> None:
    """Print the table."""
    prog = "python -m benchmarks.studies.jitted_calls"
    argparse.ArgumentParser(prog=prog, description=__doc__).parse_args()
    sides = {
        "tg.jit": measured(tg, tg, np.array, lambda z: z),
        "tg.jit, tensors": measured(tg, tg, tg.tensor, lambda z: z),
    }
    if importlib.util.find_spec("jax") is not None:
        import jax  # it is optional

        jax.config.update("jax_enable_x64", True)
        sides["jax.jit"] = measured(jax, jax.numpy, jax.numpy.asarray, jax.block_until_ready)
    rows = [
        (f"{case}: {what}", *(duration(side[case][k]) for side in sides.values()))
        for case in next(iter(sides.values()))
        for k, what in enumerate(("value", "value and gradient"))
    ]
    show_table("A call of a recorded function", ("", *sides), rows)


if __name__ == "__main__":
    main()
