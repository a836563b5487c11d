"""A program for numba that calls tapegrad's derivatives inside its loops."""

import math

import tapegrad as tg


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
