"""Many small programs at once: compiled functions and gradients under `tapegrad.vmap`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numba
import numpy as np

import tapegrad as tg
from benchmarks.measure.tables import duration, ratio, show_table
from benchmarks.measure.timing import medians_in_turn
from benchmarks.programs.njit.options import NO_CHECKS
from benchmarks.programs.njit.oscillators import van_der_pol
from benchmarks.programs.peers import Side

from .njit_threads import THREADS

PARAMETERS = (0, 1, 2, 3)


def one_by_one(gradient: Any) -> Callable[..., Any]:
    """Return a loop over calls of a gradient."""

    @numba.njit
    def loop(x, y, mu, omega, steps):
        found = np.empty((5, x.size))
        for i in range(x.size):
            found[0, i], bars = gradient(x[i], y[i], mu[i], omega[i], steps)
            found[1, i], found[2, i], found[3, i], found[4, i] = bars
        return found

    return loop


def measure_njit_ensembles(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """Value and gradient of Van der Pol oscillators, by four parameters each."""
    n, steps = (1000, 10) if quick else (100_000, 100)
    rng = np.random.default_rng(0)
    items = [*rng.standard_normal((2, n)), *rng.uniform(size=(2, n))]
    axes = (*[0] * len(items), None)
    before = numba.get_num_threads()
    numba.set_num_threads(min(THREADS, before))
    in_order = tg.njit(van_der_pol, **NO_CHECKS)
    threads = tg.njit(van_der_pol, **NO_CHECKS, parallel=True)
    gradient = partial(tg.value_and_grad, argnums=PARAMETERS)
    ways = {
        "primal": tg.vmap(in_order, axes),
        "gradient, loop": one_by_one(gradient(in_order)),
        "gradient, vmap": tg.vmap(gradient(in_order), axes),
        "gradient, vmap on threads": tg.vmap(gradient(threads), axes),
    }
    calls = [partial(way, *items, steps) for way in ways.values()]
    for call in calls:
        call()
    found = dict(zip(ways, medians_in_turn(calls, repetitions), strict=True))
    numba.set_num_threads(before)
    loop = found["gradient, loop"]
    rows = [(name, duration(s), ratio(loop, s)) for name, s in found.items()]
    show_table("Ensembles", ("", "time", "faster than the loop"), rows)
    return {f"van_der_pol n={n} s={steps}": found}
