"""Second derivatives of programs for numba by their first arguments.

The gradient of a gradient is that of one number, or of the component of a gradient along v.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tapegrad as tg
from benchmarks.measure.timing import Program
from benchmarks.programs.cases import Case
from benchmarks.programs.peers import JaxJit, Numba, TapegradNjit

from .options import NO_CHECKS
from .points import gravity
from .sums import black_scholes, rosenbrock

SECOND = "hvp", "grad of grad"
"""How products with a second derivative are made: forward over reverse, reverse over reverse."""

rosenbrock_slope = tg.grad(tg.njit(rosenbrock))
gravity_slope = tg.grad(tg.njit(**NO_CHECKS)(gravity))
black_scholes_slope = tg.grad(tg.njit(**NO_CHECKS)(black_scholes))


@tg.njit
def rosenbrock_along(x, v):
    """Component of the gradient along v."""
    return np.sum(rosenbrock_slope(x) * v)


@tg.njit(**NO_CHECKS)
def gravity_along(position, mass, v):
    """Component of the gradient along v."""
    return np.sum(gravity_slope(position, mass) * v)


@tg.njit(**NO_CHECKS)
def black_scholes_along(spot, volatility, rate, strike, maturity, v):
    """Component of the gradient along v."""
    return np.sum(black_scholes_slope(spot, volatility, rate, strike, maturity) * v)


ALONG = {
    "rosenbrock": rosenbrock_along,
    "gravity": gravity_along,
    "black_scholes": black_scholes_along,
}


def second_derivatives(case: Case) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Products with v, which comes last, forward over reverse and reverse over reverse."""
    loops = case.workload.loops
    function = tg.njit(**loops.options)(loops.primal)
    hvp = tg.hvp(function)
    if case.workload.name in ALONG:
        return hvp, tg.grad(ALONG[case.workload.name])
    twice = tg.grad(tg.grad(function))

    def times_one(*arguments):
        return twice(*arguments[:-1])

    return hvp, times_one


def hessian(case: Case) -> Callable[..., Any]:
    """The matrix of second derivatives by the first argument."""
    loops = case.workload.loops
    return tg.hessian(tg.njit(**loops.options)(loops.primal))


def second_programs(case: Case) -> dict[str, Program]:
    """Primal, gradient and products with the second derivative, in all ways there are."""
    v = direction(case)
    programs = {"primal": Numba().prepare(case)}
    jax = JaxJit()
    if jax.available():
        programs["jax.jit hvp"] = jax.second(case, v)
    programs["gradient"] = Program(forward=TapegradNjit().prepare(case).total)
    for what, second in zip(SECOND, second_derivatives(case), strict=True):
        programs[what] = Program(forward=partial(second, *case.arguments, v))
    return programs


def direction(case: Case) -> Any:
    """What the second derivative by the first argument is multiplied with."""
    shape = case.inputs[0].shape
    return np.random.default_rng(1).standard_normal(shape) if shape else 1.0
