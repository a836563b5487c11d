"""Programs for numba, the same programs for array namespaces, and their inputs.

Some array programs are better than the loops: all terms of a sum at once, or a factorization.
"""

import numpy as np

from . import njit_by_hand, njit_loops
from .cases import Loops, Size, Workload
from .programs import draw_llsq, draw_ode, llsq, llsq_size, ode, ode_size, vector_size

NO_CHECKS = {"error_model": "numpy"}
"""A division by zero is an infinity, as in NumPy, and not asked about."""


def logistic(xp, r, x, *, steps):
    """The logistic map, so many times."""
    return xp.iterate(lambda z: r * z * (1.0 - z), x, steps)


def draw_logistic(rng):
    """Growth and start, the same each time."""
    return np.float64(3.0), np.float64(0.3)


def van_der_pol(xp, x, y, mu, omega, *, steps):
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


def rosenbrock(xp, x):
    """The banana function of many variables."""
    first, second = x[:-1], x[1:]
    return xp.sum(100.0 * (second - first**2) ** 2 + (1.0 - first) ** 2)


def draw_rosenbrock(rng, n):
    """A point around the minimum."""
    return (rng.uniform(-2.0, 2.0, n),)


def gravity(xp, position, mass):
    """Potential energy of point masses, softened at short distance."""
    between = position[:, None, :] - position[None, :, :]
    distance = xp.sqrt(xp.sum(between**2, axis=2) + 1e-3)
    return -xp.sum(xp.tril(mass[:, None] * mass[None, :], -1) / distance)


def draw_gravity(rng, n):
    """Masses in a cube."""
    return rng.uniform(-1.0, 1.0, (n, 3)), rng.uniform(0.5, 1.5, n)


def black_scholes(xp, spot, volatility, rate, strike, maturity):
    """Sum of the prices of European calls under one rate."""

    def normal_cdf(x):
        return 0.5 + 0.5 * xp.erf(x * 0.5**0.5)

    deviation = volatility * xp.sqrt(maturity)
    drift = (rate + 0.5 * volatility**2) * maturity
    d1 = (xp.log(spot / strike) + drift) / deviation
    discounted = strike * xp.exp(-rate * maturity)
    return xp.sum(spot * normal_cdf(d1) - discounted * normal_cdf(d1 - deviation))


def draw_black_scholes(rng, n):
    """Spots and volatilities, the rate, strikes and maturities."""
    spot, volatility = rng.uniform(50.0, 150.0, n), rng.uniform(0.1, 0.5, n)
    return spot, volatility, np.float64(0.03), rng.uniform(50.0, 150.0, n), rng.uniform(0.2, 2.0, n)


def polynomial_fit(xp, x, t):
    """Squared error of a polynomial with coefficients x as a fit to the sign of t."""
    return llsq(xp, x, t, xp.cumsum(xp.ones_like(x), 0) - 1.0)


def draw_polynomial_fit(rng, m, n):
    """Coefficients and points."""
    return draw_llsq(rng, m, n)[:2]


def cascade(xp, x, start, *, steps):
    """Runge-Kutta steps through a chain of equations; the last component."""
    return ode(xp, x, start, steps=steps)


def determinant(xp, a):
    """Determinant, from a factorization."""
    return xp.linalg.det(a)


def draw_matrix(rng, n):
    """A square matrix."""
    return (rng.standard_normal((n, n)),)


def clusters(xp, centres, points):
    """Sum of the squared distances of points to the nearest of the centres."""
    between = points[:, None, :] - centres[None, :, :]
    return xp.sum(xp.amin(xp.sum(between**2, axis=2), 1))


def draw_clusters(rng, k, n, d):
    """Centres and points."""
    return rng.standard_normal((k, d)), rng.standard_normal((n, d))


def equilibria(xp, load, *, steps):
    """Squares of the points of least energy under each load, by Newton's method."""

    def energy(u):
        return xp.sum(xp.exp(u) + 0.5 * u * u - load * u)

    def slope(u):
        return xp.derivative(energy, u)[0]

    def step(u):
        return u - slope(u) / xp.derivative(lambda u: xp.sum(slope(u)), u)[0]

    return xp.sum(xp.iterate(step, 0.0 * load, steps) ** 2)


def differentiated_equilibria():
    """The same with derivatives of tapegrad's in the loop."""
    from .njit_nested import equilibria

    return equilibria


def draw_equilibria(rng, n):
    """Loads."""
    return (rng.uniform(1.0, 5.0, n),)


def steps_size(steps: int) -> Size:
    """So many steps from the same start."""
    return Size(f"{steps} steps", {}, {"steps": steps})


def clusters_size(n: int, k: int, d: int) -> Size:
    """So many points in d dimensions, around k centres."""
    return Size(f"n={n} k={k} d={d}", {"n": n, "k": k, "d": d})


def equilibria_size(n: int, steps: int) -> Size:
    """So many loads, and steps for each."""
    return Size(f"n={n} ({steps} steps)", {"n": n}, {"steps": steps})


NJIT_PROGRAMS = (
    Workload(
        logistic,
        draw_logistic,
        wrt=(0, 1),
        quick=steps_size(10),
        sizes=(steps_size(1000), steps_size(1_000_000)),
        group="njit",
        loops=Loops(njit_loops.logistic, njit_by_hand.logistic),
    ),
    Workload(
        van_der_pol,
        draw_van_der_pol,
        wrt=(0, 1, 2, 3),
        quick=steps_size(10),
        sizes=(steps_size(100), steps_size(100_000)),
        group="njit",
        loops=Loops(njit_loops.van_der_pol, njit_by_hand.van_der_pol),
    ),
    Workload(
        rosenbrock,
        draw_rosenbrock,
        wrt=(0,),
        quick=vector_size(10),
        sizes=(vector_size(1_000_000),),
        group="njit",
        loops=Loops(njit_loops.rosenbrock, njit_by_hand.rosenbrock),
    ),
    Workload(
        gravity,
        draw_gravity,
        wrt=(0,),
        quick=vector_size(5),
        sizes=(vector_size(300),),
        group="njit",
        loops=Loops(njit_loops.gravity, njit_by_hand.gravity, NO_CHECKS),
    ),
    Workload(
        black_scholes,
        draw_black_scholes,
        wrt=(0, 1, 2),
        quick=vector_size(10),
        sizes=(vector_size(100_000),),
        group="njit",
        needs=("erf",),
        loops=Loops(njit_loops.black_scholes, njit_by_hand.black_scholes, NO_CHECKS),
    ),
    Workload(
        polynomial_fit,
        draw_polynomial_fit,
        wrt=(0,),
        quick=llsq_size(16, m=8),
        sizes=(llsq_size(4096),),
        group="njit",
        loops=Loops(njit_loops.polynomial_fit, njit_by_hand.polynomial_fit),
    ),
    Workload(
        cascade,
        draw_ode,
        wrt=(0,),
        quick=ode_size(10, 2),
        sizes=(ode_size(10_000, 100),),
        group="njit",
        loops=Loops(njit_loops.cascade, njit_by_hand.cascade),
    ),
    Workload(
        determinant,
        draw_matrix,
        wrt=(0,),
        quick=vector_size(3),
        sizes=(vector_size(8),),
        group="njit",
        loops=Loops(
            njit_loops.determinant, alike=False
        ),  # by minors, the others by a factorization
    ),
    Workload(
        clusters,
        draw_clusters,
        wrt=(0,),
        quick=clusters_size(10, 3, 2),
        sizes=(clusters_size(1000, 10, 4),),
        group="njit",
        needs=("amin",),
        loops=Loops(njit_loops.clusters, njit_by_hand.clusters),
    ),
    Workload(
        equilibria,
        draw_equilibria,
        wrt=(0,),
        quick=equilibria_size(3, 4),
        sizes=(equilibria_size(1000, 10),),
        group="njit",
        needs=("derivative",),
        loops=Loops(njit_loops.equilibria, nested=differentiated_equilibria),
    ),
)
