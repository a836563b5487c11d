"""Fields on a grid, which change by differences of neighbours."""

import numpy as np

from benchmarks.programs.cases import Loops, Workload
from benchmarks.programs.losses import ode_size

from .options import compiled

# --------------------------------------------------------------------------------------------------
# Waves


def wave(start, speed, steps):
    """Sum of squares of a string with fixed ends after steps of the wave equation."""
    n = start.size
    u, before, after = start.copy(), start.copy(), np.zeros(n)
    for _ in range(steps):
        for i in range(1, n - 1):
            after[i] = 2.0 * u[i] - before[i] + speed**2 * (u[i + 1] - 2.0 * u[i] + u[i - 1])
        for i in range(n):
            before[i] = u[i]
            u[i] = after[i]
    total = 0.0
    for i in range(n):
        total += u[i] * u[i]
    return total


@compiled
def wave_by_hand(start, speed, steps):
    """All states are kept, for the gradient by the speed; an element gathers what is owed to it.

    A state is copied to a fixed place before it is read: LLVM does not vectorize a loop over a row
    of an array that an outer loop visits backwards.
    """
    n, square = start.size, speed * speed
    states = np.zeros((steps + 2, n))
    states[0] = states[1] = start
    for s in range(2, steps + 2):
        before, u, after = states[s - 2], states[s - 1], states[s]
        for i in range(1, n - 1):
            after[i] = 2.0 * u[i] - before[i] + square * (u[i + 1] - 2.0 * u[i] + u[i - 1])
    total = 0.0
    for i in range(n):
        total += states[steps + 1, i] ** 2
    gu, later, g_square, u = 2.0 * states[steps + 1], np.zeros(n), np.zeros(n), np.empty(n)
    for s in range(steps, 0, -1):
        for i in range(n):
            u[i] = states[s, i]
        gu[0] = gu[n - 1] = 0.0  # the ends are zero from the first step on
        later[0] = square * gu[1] - later[0]
        for i in range(1, n - 1):
            later[i] = 2.0 * gu[i] - later[i] + square * (gu[i + 1] - 2.0 * gu[i] + gu[i - 1])
            g_square[i] += gu[i] * (u[i + 1] - 2.0 * u[i] + u[i - 1])
        later[n - 1] = square * gu[n - 2] - later[n - 1]
        gu, later = later, gu
    return total, (gu - later, 2.0 * speed * np.sum(g_square))


def wave_loss(xp, start, speed, *, steps):
    """The same."""
    end = 0.0 * start[:1]

    def step(state):
        u, before = state
        bent = u[2:] - 2.0 * u[1:-1] + u[:-2]
        inner = 2.0 * u[1:-1] - before[1:-1] + speed**2 * bent
        return xp.concatenate([end, inner, end]), u

    return xp.sum(xp.iterate(step, (start, start), steps)[0] ** 2)


def draw_wave(rng, n):
    """Positions, and a speed."""
    return rng.standard_normal(n), np.float64(0.4)


# --------------------------------------------------------------------------------------------------
# Heat


def heat(start, conductivity, steps):
    """Sum of squares of the temperatures of a rod after explicit steps of the heat equation."""
    n = start.size
    u, after = start.copy(), start.copy()
    for _ in range(steps):
        for i in range(1, n - 1):
            after[i] = u[i] + 0.2 * conductivity[i] * (u[i + 1] - 2.0 * u[i] + u[i - 1])
        for i in range(1, n - 1):
            u[i] = after[i]
    total = 0.0
    for i in range(n):
        total += u[i] * u[i]
    return total


@compiled
def heat_by_hand(start, conductivity, steps):
    """All states are kept, for the conductivities, and copied before they are read, as above."""
    n = start.size
    states = np.empty((steps + 1, n))
    states[0] = start
    for s in range(steps):
        u, after = states[s], states[s + 1]
        after[0], after[n - 1] = u[0], u[n - 1]
        for i in range(1, n - 1):
            after[i] = u[i] + 0.2 * conductivity[i] * (u[i + 1] - 2.0 * u[i] + u[i - 1])
    total = 0.0
    for i in range(n):
        total += states[steps, i] ** 2
    gu, flow, gk, u = 2.0 * states[steps], np.zeros(n), np.zeros(n), np.empty(n)
    for s in range(steps - 1, -1, -1):
        for i in range(n):
            u[i] = states[s, i]
        for i in range(1, n - 1):
            gk[i] += 0.2 * gu[i] * (u[i + 1] - 2.0 * u[i] + u[i - 1])
        for i in range(1, n - 1):
            flow[i] = 0.2 * conductivity[i] * gu[i]
        gu[0] += flow[1]
        for i in range(1, n - 1):
            gu[i] += flow[i + 1] - 2.0 * flow[i] + flow[i - 1]
        gu[n - 1] += flow[n - 2]
    return total, (gu, gk)


def heat_loss(xp, start, conductivity, *, steps):
    """The same."""

    def step(u):
        bent = u[2:] - 2.0 * u[1:-1] + u[:-2]
        return xp.concatenate([u[:1], u[1:-1] + 0.2 * conductivity[1:-1] * bent, u[-1:]])

    return xp.sum(xp.iterate(step, start, steps) ** 2)


def draw_heat(rng, n):
    """Temperatures and conductivities."""
    return rng.standard_normal(n), rng.uniform(size=n)


# --------------------------------------------------------------------------------------------------
# Two substances that react


def gray_scott(u, v, feed, kill, steps):
    """Sum of squares of a substance after steps of the Gray-Scott equations, with slices."""
    u, v = u.copy(), v.copy()
    for _ in range(steps):
        ui, vi = u[1:-1, 1:-1].copy(), v[1:-1, 1:-1].copy()
        lu = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4.0 * ui
        lv = v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:] - 4.0 * vi
        reaction = ui * vi * vi
        u[1:-1, 1:-1] = ui + 0.16 * lu - reaction + feed * (1.0 - ui)
        v[1:-1, 1:-1] = vi + 0.08 * lv + reaction - (feed + kill) * vi
    return np.sum(v * v)


def gray_scott_loops(u, v, feed, kill, steps):
    """Sum of squares of a substance after steps of the Gray-Scott equations, in loops.

    Arrays change places.
    """
    u, v = u.copy(), v.copy()
    new_u, new_v = u.copy(), v.copy()
    for _ in range(steps):
        for i in range(1, u.shape[0] - 1):
            for j in range(1, u.shape[1] - 1):
                lu = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4.0 * u[i, j]
                lv = v[i - 1, j] + v[i + 1, j] + v[i, j - 1] + v[i, j + 1] - 4.0 * v[i, j]
                reaction = u[i, j] * v[i, j] * v[i, j]
                new_u[i, j] = u[i, j] + 0.16 * lu - reaction + feed * (1.0 - u[i, j])
                new_v[i, j] = v[i, j] + 0.08 * lv + reaction - (feed + kill) * v[i, j]
        u, new_u = new_u, u
        v, new_v = new_v, v
    return np.sum(v * v)


def gray_scott_loss(xp, u, v, feed, kill, *, steps):
    """The same without writing."""

    def spread(u):
        return u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4.0 * u[1:-1, 1:-1]

    def with_rim(inner, u):
        rows = xp.concatenate([u[:1, 1:-1], inner, u[-1:, 1:-1]], 0)
        return xp.concatenate([u[:, :1], rows, u[:, -1:]], 1)

    def step(state):
        u, v = state
        ui, vi = u[1:-1, 1:-1], v[1:-1, 1:-1]
        reaction = ui * vi * vi
        new_u = ui + 0.16 * spread(u) - reaction + feed * (1.0 - ui)
        new_v = vi + 0.08 * spread(v) + reaction - (feed + kill) * vi
        return with_rim(new_u, u), with_rim(new_v, v)

    return xp.sum(xp.iterate(step, (u, v), steps)[1] ** 2)


def draw_gray_scott(rng, n):
    """Both substances, and the rates at which one is fed and the other removed."""
    return rng.uniform(size=(n, n)), rng.uniform(size=(n, n)), np.float64(0.04), np.float64(0.06)


FIELDS = (
    Workload(
        wave_loss,
        draw_wave,
        wrt=(0, 1),
        quick=ode_size(8, 4),
        sizes=(ode_size(1000, 200),),
        group="njit",
        loops=Loops(wave, wave_by_hand),
    ),
    Workload(
        heat_loss,
        draw_heat,
        wrt=(0, 1),
        quick=ode_size(8, 4),
        sizes=(ode_size(1000, 200),),
        group="njit",
        loops=Loops(heat, heat_by_hand),
    ),
    *(
        Workload(
            gray_scott_loss,
            draw_gray_scott,
            wrt=(0, 1, 2, 3),
            quick=ode_size(5, 3),
            sizes=(ode_size(64, 50),),
            group="njit",
            loops=Loops(program),
        )
        for program in (gray_scott, gray_scott_loops)
    ),
)
