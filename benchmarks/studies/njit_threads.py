"""Derivatives of functions with parallel loops, on two threads."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numba
import numpy as np

import tapegrad as tg
from benchmarks.measure.tables import duration, ratio, show_table
from benchmarks.measure.timing import medians_in_turn
from benchmarks.programs.njit.options import NO_CHECKS
from benchmarks.programs.njit.sums import normal_cdf
from benchmarks.programs.peers import Side

THREADS = 2


def attraction(position, mass):
    """Energy of masses that attract each other."""
    energy = 0.0
    for i in numba.prange(mass.size):
        for j in range(i):
            square = 1e-2
            for k in range(3):
                square += (position[i, k] - position[j, k]) ** 2
            energy -= mass[i] * mass[j] / np.sqrt(square)
    return energy


def prices(spot, volatility, rate, strike, maturity):
    """Sum of the prices of European calls under one rate."""
    total = 0.0
    for i in numba.prange(spot.size):
        deviation = volatility[i] * np.sqrt(maturity[i])
        drift = (rate + 0.5 * volatility[i] ** 2) * maturity[i]
        d1 = (np.log(spot[i] / strike[i]) + drift) / deviation
        discounted = strike[i] * np.exp(-rate * maturity[i])
        total += spot[i] * normal_cdf(d1) - discounted * normal_cdf(d1 - deviation)
    return total


def reaction(start, rate, steps):
    """Sum of squares after steps of a stencil with a costly reaction term."""
    u, after = start.copy(), start.copy()
    for _ in range(steps):
        for i in numba.prange(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
                after[i, j] = u[i, j] + 0.1 * (around - 4.0 * u[i, j]) + np.sin(rate * u[i, j])
        u, after = after, u
    return np.sum(u * u)


def pendulums(parameters, steps):
    """Sum of squares of the ends of independent pendulums."""
    ends = np.empty(parameters.shape[0])
    for i in numba.prange(ends.size):
        angle, speed = 1.0, 0.0
        for _ in range(steps):
            speed -= 0.01 * (parameters[i, 0] * np.sin(angle) + parameters[i, 1] * speed)
            angle += 0.01 * speed
        ends[i] = angle
    return np.sum(ends * ends)


def programs(quick: bool) -> dict[str, tuple[Callable[..., float], int, tuple[Any, ...]]]:
    """The functions, the number of arguments to differentiate with respect to, and arguments."""
    rng, n = np.random.default_rng(0), 100 if quick else 2000
    m, side = 50 * n, n // 10
    return {
        f"gravity n={n}": (attraction, 2, (rng.normal(size=(n, 3)), rng.uniform(0.5, 1.0, n))),
        f"black_scholes n={m}": (
            prices,
            3,
            (
                rng.uniform(50.0, 150.0, m),
                rng.uniform(0.1, 0.5, m),
                0.03,
                rng.uniform(50.0, 150.0, m),
                rng.uniform(0.2, 2.0, m),
            ),
        ),
        f"stencil n={side}x{side} s=20": (reaction, 2, (rng.normal(size=(side, side)), 0.3, 20)),
        f"pendulums n={n} s=100": (pendulums, 1, (rng.uniform(0.1, 0.2, (n, 2)), 100)),
    }


def measure_njit_threads(sides: Sequence[Side], repetitions: int, quick: bool) -> dict[str, Any]:
    """Value and gradient in order, and on two threads."""
    found = {}
    before = numba.get_num_threads()
    numba.set_num_threads(min(THREADS, before))
    for name, (function, count, args) in programs(quick).items():
        argnums = tuple(range(count))
        ways: dict[str, Callable[[], Any]] = {}
        for how, options in (("in order", {}), ("threads", {"parallel": True})):
            compiled = tg.njit(function, **NO_CHECKS, **options)
            ways[f"primal, {how}"] = partial(compiled, *args)
            gradient = tg.value_and_grad(compiled, argnums=argnums)
            ways[f"gradient, {how}"] = partial(gradient, *args)
        for way in ways.values():
            way()
        seconds = medians_in_turn(tuple(ways.values()), repetitions)
        found[name] = dict(zip(ways, seconds, strict=True))
    numba.set_num_threads(before)
    rows = []
    for name, times in found.items():
        cells = []
        for what in ("primal", "gradient"):
            whole = times[f"{what}, in order"]
            cells += [duration(whole), ratio(whole, times[f"{what}, threads"])]
        rows.append((name, *cells))
    columns = ("", "primal", "2 threads", "gradient", "2 threads")
    show_table("Parallel loops: seconds in order, and how many times as fast", columns, rows)
    return found
