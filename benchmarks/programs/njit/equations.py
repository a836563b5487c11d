"""Difference and differential equations: loops over time around a few numbers or arrays."""

import numba
import numpy as np

from benchmarks.programs.cases import Loops, Workload
from benchmarks.programs.losses import draw_ode, draw_vector, ode, ode_size, runge_kutta

from .options import compiled, steps_size

# --------------------------------------------------------------------------------------------------
# The logistic map


def logistic(r, x, steps):
    """The logistic map, so many times."""
    for _ in range(steps):
        x = r * x * (1.0 - x)
    return x


@compiled
def logistic_by_hand(r, x, steps):
    """All states but the last are kept."""
    states = np.empty(steps)
    for i in range(steps):
        states[i] = x
        x = r * x * (1.0 - x)
    gr, gx = 0.0, 1.0
    for i in range(steps - 1, -1, -1):
        z = states[i]
        gr += gx * z * (1.0 - z)
        gx *= r * (1.0 - 2.0 * z)
    return x, (gr, gx)


def logistic_loss(xp, r, x, *, steps):
    """The logistic map, so many times."""
    return xp.iterate(lambda z: r * z * (1.0 - z), x, steps)


def draw_logistic(rng):
    """Growth and start, the same each time."""
    return np.float64(3.0), np.float64(0.3)


# --------------------------------------------------------------------------------------------------
# Lorenz's equations


@numba.njit
def lorenz_slope(u, s, r, b):
    """Right-hand side of Lorenz's equations."""
    return np.array([s * (u[1] - u[0]), u[0] * (r - u[2]) - u[1], u[0] * u[1] - b * u[2]])


def lorenz(u, s, r, b, steps):
    """First coordinate after Runge-Kutta steps of five thousandths."""
    h = 0.005
    for _ in range(steps):
        k1 = lorenz_slope(u, s, r, b)
        k2 = lorenz_slope(u + 0.5 * h * k1, s, r, b)
        k3 = lorenz_slope(u + 0.5 * h * k2, s, r, b)
        k4 = lorenz_slope(u + h * k3, s, r, b)
        u = u + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    return u[0]


@numba.njit
def lorenz_rates(x, y, z, s, r, b):
    """Right-hand side of Lorenz's equations, as numbers."""
    return s * (y - x), x * (r - z) - y, x * y - b * z


def lorenz_loops(u, s, r, b, steps):
    """First coordinate after Runge-Kutta steps of five thousandths, in numbers."""
    h = 0.005
    x, y, z = u[0], u[1], u[2]
    for _ in range(steps):
        x1, y1, z1 = lorenz_rates(x, y, z, s, r, b)
        x2, y2, z2 = lorenz_rates(x + 0.5 * h * x1, y + 0.5 * h * y1, z + 0.5 * h * z1, s, r, b)
        x3, y3, z3 = lorenz_rates(x + 0.5 * h * x2, y + 0.5 * h * y2, z + 0.5 * h * z2, s, r, b)
        x4, y4, z4 = lorenz_rates(x + h * x3, y + h * y3, z + h * z3, s, r, b)
        x = x + h / 6.0 * (x1 + 2.0 * x2 + 2.0 * x3 + x4)
        y = y + h / 6.0 * (y1 + 2.0 * y2 + 2.0 * y3 + y4)
        z = z + h / 6.0 * (z1 + 2.0 * z2 + 2.0 * z3 + z4)
    return x


def lorenz_loss(xp, u, s, r, b, *, steps):
    """The same."""

    def slope(u):
        x, y, z = u[0], u[1], u[2]
        return xp.stack([s * (y - x), x * (r - z) - y, x * y - b * z])

    return xp.iterate(runge_kutta(slope, 0.005), u, steps)[0]


def draw_lorenz(rng):
    """Start and parameters, the same each time."""
    return np.ones(3), np.float64(10.0), np.float64(28.0), np.float64(8.0 / 3.0)


# --------------------------------------------------------------------------------------------------
# A chain of decays


def decays(y, steps):
    """Sum of squares after Runge-Kutta steps of y_0' = -y_0, y_i' = y_(i-1) - y_i, with slices."""
    h = 0.01
    y = y.copy()
    n = y.size
    for _ in range(steps):
        k1, k2, k3, k4 = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
        k1[0] = -y[0]
        k1[1:] = y[:-1] - y[1:]
        w = y + 0.5 * h * k1
        k2[0] = -w[0]
        k2[1:] = w[:-1] - w[1:]
        w = y + 0.5 * h * k2
        k3[0] = -w[0]
        k3[1:] = w[:-1] - w[1:]
        w = y + h * k3
        k4[0] = -w[0]
        k4[1:] = w[:-1] - w[1:]
        y = y + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    return np.sum(y * y)


@numba.njit
def decay_rates(y, rates):
    """Right-hand side of a chain of decays."""
    rates[0] = -y[0]
    for i in range(1, y.size):
        rates[i] = y[i - 1] - y[i]


def decays_loops(y, steps):
    """Sum of squares after Runge-Kutta steps of y_0' = -y_0, y_i' = y_(i-1) - y_i, in loops."""
    h = 0.01
    y = y.copy()
    n = y.size
    k1, k2, k3, k4, w = np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for _ in range(steps):
        decay_rates(y, k1)
        for i in range(n):
            w[i] = y[i] + 0.5 * h * k1[i]
        decay_rates(w, k2)
        for i in range(n):
            w[i] = y[i] + 0.5 * h * k2[i]
        decay_rates(w, k3)
        for i in range(n):
            w[i] = y[i] + h * k3[i]
        decay_rates(w, k4)
        for i in range(n):
            y[i] += h / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i])
    total = 0.0
    for i in range(n):
        total += y[i] * y[i]
    return total


def decays_loss(xp, y, *, steps):
    """The same."""

    def slope(y):
        return xp.concatenate([-y[:1], y[:-1] - y[1:]])

    return xp.sum(xp.iterate(runge_kutta(slope, 0.01), y, steps) ** 2)


# --------------------------------------------------------------------------------------------------
# A cascade


@numba.njit
def slope(x, z, dz):
    """Right-hand side of z_0' = x_0, z_i' = x_i z_(i-1)."""
    dz[0] = x[0]
    for i in range(1, x.size):
        dz[i] = x[i] * z[i - 1]


def cascade(x, start, steps):
    """Runge-Kutta steps up to t = 2 through a chain of equations; the last component."""
    n = x.size
    h = 2.0 / steps
    z, w = start.copy(), np.empty(n)
    k1, k2, k3, k4 = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for _ in range(steps):
        slope(x, z, k1)
        for i in range(n):
            w[i] = z[i] + 0.5 * h * k1[i]
        slope(x, w, k2)
        for i in range(n):
            w[i] = z[i] + 0.5 * h * k2[i]
        slope(x, w, k3)
        for i in range(n):
            w[i] = z[i] + h * k3[i]
        slope(x, w, k4)
        for i in range(n):
            z[i] += h / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i])
    return z[n - 1]


@compiled
def cascade_by_hand(x, start, steps):
    """The state before every step is kept; the slopes are computed again.

    An element gathers what the next one owes it, so that a loop writes to one array: LLVM would
    not vectorize loops that write to several among many, because they may be the same.
    """
    n = x.size
    h = 2.0 / steps
    states = np.empty((steps + 1, n))
    states[0] = start
    k1, k2, k3, k4 = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    k1[0] = k2[0] = k3[0] = k4[0] = x[0]
    for s in range(steps):
        z, after = states[s], states[s + 1]
        slopes(x, z, h, k1, k2, k3)
        for i in range(1, n):
            k4[i] = x[i] * (z[i - 1] + h * k3[i - 1])
        for i in range(n):
            after[i] = z[i] + h / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i])
    gx, gz = np.zeros(n), np.zeros(n)
    g1, g2, g3 = np.empty(n), np.empty(n), np.empty(n)
    gz[n - 1] = 1.0
    for s in range(steps - 1, -1, -1):
        z, last = states[s], gz[n - 1]
        slopes(x, z, h, k1, k2, k3)
        gx[0] += h * gz[0]
        for i in range(n - 1):
            g3[i] = h / 3.0 * gz[i] + h * h / 6.0 * gz[i + 1] * x[i + 1]
        g3[n - 1] = h / 3.0 * last
        for i in range(n - 1):
            g2[i] = h / 3.0 * gz[i] + 0.5 * h * g3[i + 1] * x[i + 1]
        g2[n - 1] = h / 3.0 * last
        for i in range(n - 1):
            g1[i] = h / 6.0 * gz[i] + 0.5 * h * g2[i + 1] * x[i + 1]
        g1[n - 1] = h / 6.0 * last
        for i in range(1, n):
            g4 = h / 6.0 * gz[i]
            inner = 0.5 * (g2[i] * k1[i - 1] + g3[i] * k2[i - 1]) + g4 * k3[i - 1]
            gx[i] += z[i - 1] * (g1[i] + g2[i] + g3[i] + g4) + h * inner
        for i in range(n - 1):
            gz[i] += x[i + 1] * (g1[i + 1] + g2[i + 1] + g3[i + 1] + h / 6.0 * gz[i + 1])
    return states[steps, n - 1], (gx,)


@compiled
def slopes(x, z, h, k1, k2, k3):
    """The slopes of a Runge-Kutta step but the last, and but their first elements."""
    for i in range(1, x.size):
        k1[i] = x[i] * z[i - 1]
    for i in range(1, x.size):
        k2[i] = x[i] * (z[i - 1] + 0.5 * h * k1[i - 1])
    for i in range(1, x.size):
        k3[i] = x[i] * (z[i - 1] + 0.5 * h * k2[i - 1])


EQUATIONS = (
    Workload(
        logistic_loss,
        draw_logistic,
        wrt=(0, 1),
        quick=steps_size(10),
        sizes=(steps_size(1000), steps_size(1_000_000)),
        group="njit",
        loops=Loops(logistic, logistic_by_hand),
    ),
    *(
        Workload(
            lorenz_loss,
            draw_lorenz,
            wrt=(0, 1, 2, 3),
            quick=steps_size(10),
            sizes=(steps_size(400),),
            group="njit",
            loops=Loops(program),
        )
        for program in (lorenz, lorenz_loops)
    ),
    *(
        Workload(
            decays_loss,
            draw_vector,
            wrt=(0,),
            quick=ode_size(4, 3),
            sizes=(ode_size(10, 500),),
            group="njit",
            loops=Loops(program),
        )
        for program in (decays, decays_loops)
    ),
    Workload(
        ode,
        draw_ode,
        wrt=(0,),
        quick=ode_size(10, 2),
        sizes=(ode_size(10_000, 100),),
        group="njit",
        loops=Loops(cascade, cascade_by_hand),
    ),
)
