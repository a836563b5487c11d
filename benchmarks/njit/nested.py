"""Programs for numba that call tapegrad's derivatives: inside their loops, or for higher orders."""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import tapegrad as tg
from benchmarks.cases import Case

from .options import NO_CHECKS
from .points import gravity
from .sums import black_scholes, rosenbrock

# --------------------------------------------------------------------------------------------------
# In a loop


@tg.njit
def energy(u, load):
    """Energy of a displacement under a load."""
    return math.exp(u) + 0.5 * u * u - load * u


slope = tg.grad(energy)
curvature = tg.grad(slope)


def equilibria(load, steps):
    """Squares of the points of least energy under each load, by Newton's method."""
    total = 0.0
    for i in range(load.size):
        u = 0.0
        for _ in range(steps):
            u -= slope(u, load[i]) / curvature(u, load[i])
        total += u * u
    return total


# --------------------------------------------------------------------------------------------------
# Short functions, of which a call is what costs


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


# --------------------------------------------------------------------------------------------------
# Second derivatives by the first argument, reverse over reverse: the gradient of a gradient of one
# number, and of the component of a gradient along v

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
