"""Programs with long loops of steps on small arrays, and one that trains a model."""

import numpy as np

from .cases import Size, Workload
from .losses import runge_kutta


def oscillator(xp, start, parameters, *, steps):
    """Runge-Kutta steps of 0.01 of x' = y, y' = mu (1 - x^2) y - omega x; the last x."""
    mu, omega = parameters

    def slope(u):
        x, y = u
        return xp.stack([y, mu * (1.0 - x * x) * y - omega * x])

    return xp.iterate(runge_kutta(slope, 0.01), start, steps)[0]


def draw_oscillator(rng):
    """A state near the limit cycle, and parameters."""
    return np.array([2.0, 0.0]) + 0.1 * rng.standard_normal(2), rng.uniform(0.5, 1.5, 2)


def recurrent(xp, weights, inner, bias, inputs):
    """A recurrent network over a sequence; the squares of its last state."""
    start = bias * 0.0
    last = xp.fold(lambda s, x: xp.tanh(weights @ s + inner @ x + bias), start, inputs)
    return xp.sum(last**2)


def draw_recurrent(rng, units, length):
    """Weights, and a sequence of vectors of 8."""
    return (
        rng.standard_normal((units, units)) / units**0.5,
        rng.standard_normal((units, 8)) / 3.0,
        rng.standard_normal(units),
        rng.standard_normal((length, 8)),
    )


def diffusion(xp, u, rate, *, steps):
    """Explicit steps of the heat equation with fixed ends; the squares of the last state."""

    def step(u):
        inner = u[1:-1] + rate * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        return xp.concatenate([u[:1], inner, u[-1:]])

    return xp.sum(xp.iterate(step, u, steps) ** 2)


def draw_diffusion(rng, n):
    """A rough state and a rate."""
    return rng.standard_normal(n), np.array([0.2])


def descent(xp, weights, points, target, *, steps):
    """Steps along the gradient of a squared error; the last error."""

    def error(w):
        return xp.mean((xp.tanh(points @ w) - target) ** 2)

    def step(w):
        (slope,) = xp.derivative(error, w)
        return w - 0.1 * slope

    return error(xp.iterate(step, weights, steps))


def draw_descent(rng, n, m):
    """Weights, points and their targets."""
    points = rng.standard_normal((m, n)) / n**0.5
    return rng.standard_normal(n), points, np.tanh(points @ rng.standard_normal(n))


LONG_LOOPS = (
    Workload(
        oscillator,
        draw_oscillator,
        wrt=(0, 1),
        quick=Size("20 steps", {}, {"steps": 20}),
        sizes=(Size("100000 steps", {}, {"steps": 100_000}),),
        group="loops",
    ),
    Workload(
        recurrent,
        draw_recurrent,
        wrt=(0, 1, 2),
        quick=Size("4 units, 5 steps", {"units": 4, "length": 5}),
        sizes=(Size("32 units, 1000 steps", {"units": 32, "length": 1000}),),
        group="loops",
    ),
    Workload(
        diffusion,
        draw_diffusion,
        wrt=(0, 1),
        quick=Size("n=10, 5 steps", {"n": 10}, {"steps": 5}),
        sizes=(Size("n=1000, 1000 steps", {"n": 1000}, {"steps": 1000}),),
        group="loops",
    ),
    Workload(
        descent,
        draw_descent,
        wrt=(0,),
        quick=Size("n=3, 4 steps", {"n": 3, "m": 5}, {"steps": 4}),
        sizes=(Size("n=20, 1000 steps", {"n": 20, "m": 200}, {"steps": 1000}),),
        group="loops",
        needs=("derivative",),
    ),
)
