"""Array programs that are recorded, beside JAX: ``python -m benchmarks.studies.array_programs``.

Times are of value and gradient, in one thread, medians of calls in turn. Values and gradients are
compared before. The programs are in ``programs/array_programs.py``.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import tapegrad as tg
from benchmarks.measure.tables import duration, show_table
from benchmarks.measure.timing import elapsed, medians_in_turn
from benchmarks.programs.array_programs import PROGRAMS

REPETITIONS = 15
SAMPLE_SECONDS = 0.01


def compare(name: str, jax: Any) -> tuple[list[str], float]:
    """Return the row of a program, and the ratio of the times."""
    function, shapes = PROGRAMS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    given = [*map(jax.numpy.asarray, arrays)]
    numbers = tuple(range(len(arrays)))
    recorded = tg.value_and_grad(tg.jit(partial(function, tg)), numbers)
    own = partial(recorded, *arrays)
    jitted = jax.jit(jax.value_and_grad(partial(function, jax.numpy), numbers))
    other = lambda: jax.block_until_ready(jitted(*given))  # noqa: E731
    found: list[Any] = []
    firsts = [elapsed(lambda f=f: found.append(f())) for f in (own, other)]
    (value, gradients), (expected, slopes) = found
    np.testing.assert_allclose(value, expected, rtol=1e-8, atol=1e-8)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-7)
    own()
    count = max(1, round(SAMPLE_SECONDS / elapsed(own)))
    runs = [lambda f=f: [f() for _ in range(count)] for f in (own, other)]
    times = [seconds / count for seconds in medians_in_turn(runs, REPETITIONS)]
    ratio = times[0] / times[1]
    return [name, *map(duration, times), f"{ratio:.2f}", *map(duration, firsts)], ratio


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all programs, or those that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.array_programs", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="program", help="only these: part of a name")
    chosen = parser.parse_args(arguments).names or [""]
    import jax  # not before: the options can be shown without it

    names = [name for name in PROGRAMS if any(part in name for part in chosen)]
    rows, ratios = [], []
    for name in names:
        print("...", name, file=sys.stderr, flush=True)
        row, ratio = compare(name, jax)
        rows.append(row)
        ratios.append(ratio)
    columns = ("program", "tg.jit", "JAX (jit)", "ratio", "first call", "that of JAX")
    show_table("Array programs: value and gradient", columns, rows)
    mean = statistics.geometric_mean(ratios)
    print(f"geometric mean {mean:.2f}; behind JAX in {sum(r > 1 for r in ratios)} of {len(rows)}")


if __name__ == "__main__":
    main()
