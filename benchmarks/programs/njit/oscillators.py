"""Oscillators: one over many steps, and many over fewer steps, in blocks that stay in the cache."""

import numba
import numpy as np

from benchmarks.programs.cases import Loops, Size, Workload

from .options import NO_CHECKS, compiled, steps_size

# --------------------------------------------------------------------------------------------------
# One


def van_der_pol(x, y, mu, omega, steps):
    """Position of a Van der Pol oscillator after Runge-Kutta steps of a hundredth."""
    h = 0.01
    for _ in range(steps):
        v1 = y
        a1 = mu * (1.0 - x * x) * y - omega * x
        x2, v2 = x + 0.5 * h * v1, y + 0.5 * h * a1
        a2 = mu * (1.0 - x2 * x2) * v2 - omega * x2
        x3, v3 = x + 0.5 * h * v2, y + 0.5 * h * a2
        a3 = mu * (1.0 - x3 * x3) * v3 - omega * x3
        x4, v4 = x + h * v3, y + h * a3
        a4 = mu * (1.0 - x4 * x4) * v4 - omega * x4
        x += h / 6.0 * (v1 + 2.0 * v2 + 2.0 * v3 + v4)
        y += h / 6.0 * (a1 + 2.0 * a2 + 2.0 * a3 + a4)
    return x


@compiled
def van_der_pol_by_hand(x, y, mu, omega, steps):
    """The state before every step is kept; what happens within a step is computed again."""
    h = 0.01
    states = np.empty((steps, 2))
    for i in range(steps):
        states[i, 0], states[i, 1] = x, y
        v1 = y
        a1 = mu * (1.0 - x * x) * y - omega * x
        x2, v2 = x + 0.5 * h * v1, y + 0.5 * h * a1
        a2 = mu * (1.0 - x2 * x2) * v2 - omega * x2
        x3, v3 = x + 0.5 * h * v2, y + 0.5 * h * a2
        a3 = mu * (1.0 - x3 * x3) * v3 - omega * x3
        x4, v4 = x + h * v3, y + h * a3
        a4 = mu * (1.0 - x4 * x4) * v4 - omega * x4
        x += h / 6.0 * (v1 + 2.0 * v2 + 2.0 * v3 + v4)
        y += h / 6.0 * (a1 + 2.0 * a2 + 2.0 * a3 + a4)
    gx, gy, g_mu, g_omega = 1.0, 0.0, 0.0, 0.0
    for i in range(steps - 1, -1, -1):
        gx, gy, by_mu, by_omega = step_back(states[i, 0], states[i, 1], mu, omega, h, gx, gy)
        g_mu += by_mu
        g_omega += by_omega
    return x, (gx, gy, g_mu, g_omega)


@numba.njit(inline="always", **NO_CHECKS)  # a loop over calls would not be vectorized
def step_back(x, y, mu, omega, h, gx, gy):
    """Gradients by the state before a step, from those by the state after it; and by the rest."""
    w = 1.0 - x * x
    a1 = mu * w * y - omega * x
    x2, v2 = x + 0.5 * h * y, y + 0.5 * h * a1
    w2 = 1.0 - x2 * x2
    a2 = mu * w2 * v2 - omega * x2
    x3, v3 = x + 0.5 * h * v2, y + 0.5 * h * a2
    w3 = 1.0 - x3 * x3
    a3 = mu * w3 * v3 - omega * x3
    x4, v4 = x + h * v3, y + h * a3
    w4 = 1.0 - x4 * x4
    dx, dy = h / 6.0 * gx, h / 6.0 * gy
    ga4 = dy
    gv4 = dx + ga4 * mu * w4
    gx4 = -ga4 * (2.0 * mu * x4 * v4 + omega)
    ga3 = 2.0 * dy + h * gv4
    gv3 = 2.0 * dx + h * gx4 + ga3 * mu * w3
    gx3 = -ga3 * (2.0 * mu * x3 * v3 + omega)
    ga2 = 2.0 * dy + 0.5 * h * gv3
    gv2 = 2.0 * dx + 0.5 * h * gx3 + ga2 * mu * w2
    gx2 = -ga2 * (2.0 * mu * x2 * v2 + omega)
    ga1 = dy + 0.5 * h * gv2
    gv1 = dx + 0.5 * h * gx2 + ga1 * mu * w
    gx += gx4 + gx3 + gx2 - ga1 * (2.0 * mu * x * y + omega)
    gy += gv4 + gv3 + gv2 + gv1
    by_mu = ga1 * w * y + ga2 * w2 * v2 + ga3 * w3 * v3 + ga4 * w4 * v4
    return gx, gy, by_mu, -(ga1 * x + ga2 * x2 + ga3 * x3 + ga4 * x4)


def van_der_pol_loss(xp, x, y, mu, omega, *, steps):
    """Position of a Van der Pol oscillator after Runge-Kutta steps of a hundredth."""

    def slope(x, v):
        return v, mu * (1.0 - x * x) * v - omega * x

    def step(state):
        x, y = state
        v1, a1 = slope(x, y)
        v2, a2 = slope(x + 0.5 * h * v1, y + 0.5 * h * a1)
        v3, a3 = slope(x + 0.5 * h * v2, y + 0.5 * h * a2)
        v4, a4 = slope(x + h * v3, y + h * a3)
        x = x + h / 6.0 * (v1 + 2.0 * v2 + 2.0 * v3 + v4)
        y = y + h / 6.0 * (a1 + 2.0 * a2 + 2.0 * a3 + a4)
        return x, y

    h = 0.01
    return xp.iterate(step, (x, y), steps)[0]


def draw_van_der_pol(rng):
    """Start, damping and stiffness, the same each time."""
    return np.float64(2.0), np.float64(0.0), np.float64(1.0), np.float64(1.0)


# --------------------------------------------------------------------------------------------------
# Many


@numba.njit
def advance(x, y, mu, omega, steps, h):
    """Runge-Kutta steps of Van der Pol oscillators, in place."""
    for _ in range(steps):
        for i in range(x.size):
            v1 = y[i]
            a1 = mu[i] * (1.0 - x[i] * x[i]) * y[i] - omega[i] * x[i]
            x2, v2 = x[i] + 0.5 * h * v1, y[i] + 0.5 * h * a1
            a2 = mu[i] * (1.0 - x2 * x2) * v2 - omega[i] * x2
            x3, v3 = x[i] + 0.5 * h * v2, y[i] + 0.5 * h * a2
            a3 = mu[i] * (1.0 - x3 * x3) * v3 - omega[i] * x3
            x4, v4 = x[i] + h * v3, y[i] + h * a3
            a4 = mu[i] * (1.0 - x4 * x4) * v4 - omega[i] * x4
            x[i] += h / 6.0 * (v1 + 2.0 * v2 + 2.0 * v3 + v4)
            y[i] += h / 6.0 * (a1 + 2.0 * a2 + 2.0 * a3 + a4)


def oscillators(x0, y0, mu, omega, steps):
    """Sum of the positions of Van der Pol oscillators after steps of a hundredth."""
    total = 0.0
    for start in range(0, x0.size, 256):
        block = slice(start, start + 256)
        x, y = x0[block].copy(), y0[block].copy()
        advance(x, y, mu[block], omega[block], steps, 0.01)
        total += np.sum(x)
    return total


@compiled
def oscillators_by_hand(x0, y0, mu, omega, steps):
    """The states of a block before every step are kept, in memory that all blocks share.

    They are copied to a fixed place before they are read: LLVM does not vectorize a loop over a
    row of an array that an outer loop visits backwards.
    """
    gradients = np.empty_like(x0), np.empty_like(y0), np.empty_like(mu), np.empty_like(omega)
    states, given = np.zeros((steps + 1, 2, 256)), np.zeros((2, 256))
    before, g = np.empty((2, 256)), np.empty((4, 256))
    total = 0.0
    for start in range(0, x0.size, 256):
        block = slice(start, start + 256)
        n = min(256, x0.size - start)
        states[0, 0, :n], states[0, 1, :n] = x0[block], y0[block]
        given[0, :n], given[1, :n] = mu[block], omega[block]
        for s in range(steps):
            states[s + 1] = states[s]
            advance(states[s + 1, 0], states[s + 1, 1], given[0], given[1], 1, 0.01)
        total += np.sum(states[steps, 0, :n])
        g[0], g[1:] = 1.0, 0.0
        for s in range(steps - 1, -1, -1):
            before[:] = states[s]
            for i in range(256):
                g[0, i], g[1, i], by_mu, by_omega = step_back(
                    before[0, i], before[1, i], given[0, i], given[1, i], 0.01, g[0, i], g[1, i]
                )
                g[2, i] += by_mu
                g[3, i] += by_omega
        for k in range(4):
            gradients[k][block] = g[k, :n]
    return total, gradients


def oscillators_loss(xp, x, y, mu, omega, *, steps):
    """All at once."""
    return xp.sum(van_der_pol_loss(xp, x, y, mu, omega, steps=steps))


def draw_oscillators(rng, n):
    """Starts, damping and stiffness."""
    return (
        rng.standard_normal(n),
        rng.standard_normal(n),
        rng.uniform(size=n),
        rng.uniform(size=n),
    )


def oscillators_size(n: int, steps: int) -> Size:
    """So many oscillators over so many steps."""
    return Size(f"n={n} s={steps}", {"n": n}, {"steps": steps})


OSCILLATORS = (
    Workload(
        van_der_pol_loss,
        draw_van_der_pol,
        wrt=(0, 1, 2, 3),
        quick=steps_size(10),
        sizes=(steps_size(100), steps_size(100_000)),
        group="njit",
        loops=Loops(van_der_pol, van_der_pol_by_hand),
    ),
    Workload(
        oscillators_loss,
        draw_oscillators,
        wrt=(0, 1, 2, 3),
        quick=oscillators_size(300, 4),
        sizes=(oscillators_size(100_000, 100),),
        group="njit",
        loops=Loops(oscillators, oscillators_by_hand),
    ),
)
