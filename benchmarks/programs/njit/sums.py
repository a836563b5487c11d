"""Sums over elements, each of which is computed from a few numbers."""

import functools
import math

import numba
import numpy as np

from benchmarks.programs.cases import Loops, Size, Workload
from benchmarks.programs.losses import draw_llsq, draw_vector, llsq, llsq_size, vector_size

from .options import NO_CHECKS, compiled

# --------------------------------------------------------------------------------------------------
# The banana function


def rosenbrock(x):
    """The banana function of many variables."""
    total = 0.0
    for i in range(x.size - 1):
        total += 100.0 * (x[i + 1] - x[i] ** 2) ** 2 + (1.0 - x[i]) ** 2
    return total


@compiled
def rosenbrock_by_hand(x):
    """Every term adds to the gradient by its own two variables."""
    gx = np.zeros_like(x)
    total = 0.0
    for i in range(x.size - 1):
        away, rest = x[i + 1] - x[i] ** 2, 1.0 - x[i]
        total += 100.0 * away**2 + rest**2
        gx[i] -= 400.0 * away * x[i] + 2.0 * rest
        gx[i + 1] += 200.0 * away
    return total, (gx,)


def rosenbrock_loss(xp, x):
    """The banana function of many variables."""
    first, second = x[:-1], x[1:]
    return xp.sum(100.0 * (second - first**2) ** 2 + (1.0 - first) ** 2)


def draw_rosenbrock(rng, n):
    """A point around the minimum."""
    return (rng.uniform(-2.0, 2.0, n),)


# --------------------------------------------------------------------------------------------------
# Prices of options


@numba.njit(error_model="numpy")
def normal_cdf(x):
    """Cumulative distribution of a standard normal number."""
    return 0.5 + 0.5 * math.erf(x * math.sqrt(0.5))


def black_scholes(spot, volatility, rate, strike, maturity):
    """Sum of the prices of European calls under one rate."""
    total = 0.0
    for i in range(spot.size):
        deviation = volatility[i] * math.sqrt(maturity[i])
        drift = (rate + 0.5 * volatility[i] ** 2) * maturity[i]
        d1 = (math.log(spot[i] / strike[i]) + drift) / deviation
        d2 = d1 - deviation
        discounted = strike[i] * math.exp(-rate * maturity[i])
        total += spot[i] * normal_cdf(d1) - discounted * normal_cdf(d2)
    return total


@compiled
def black_scholes_by_hand(spot, volatility, rate, strike, maturity):
    """Delta, vega and rho of every option, without what cancels in them."""
    delta, vega, rho = np.empty_like(spot), np.empty_like(spot), 0.0
    total = 0.0
    for i in range(spot.size):
        root = math.sqrt(maturity[i])
        deviation = volatility[i] * root
        drift = (rate + 0.5 * volatility[i] ** 2) * maturity[i]
        d1 = (math.log(spot[i] / strike[i]) + drift) / deviation
        discounted = strike[i] * math.exp(-rate * maturity[i])
        inside, exercised = normal_cdf(d1), discounted * normal_cdf(d1 - deviation)
        total += spot[i] * inside - exercised
        delta[i] = inside
        vega[i] = spot[i] * root * math.exp(-0.5 * d1 * d1) / math.sqrt(2.0 * math.pi)
        rho += maturity[i] * exercised
    return total, (delta, vega, rho)


def black_scholes_loss(xp, spot, volatility, rate, strike, maturity):
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


# --------------------------------------------------------------------------------------------------
# The error function


@numba.njit
def fractional_erf(x):
    """The error function as a fraction of polynomials, by ranges of the argument."""
    a = abs(x)
    if a < 0.5:
        t = x * x
        top = 7.7105849500132e-5 * t - 1.33733772997339e-3
        top = ((top * t + 3.23076579225834e-2) * t + 4.79137145607681e-2) * t + 1.28379167095513e-1
        bottom = (3.01048631703895e-3 * t + 5.38971687740286e-2) * t + 3.75795757275549e-1
        bottom = bottom * t + 1.0
        return x * (top / bottom + 1.0)
    if a <= 4.0:
        top = (-1.36864857382717e-7 * a + 5.64195517478974e-1) * a + 7.21175825088309
        top = ((top * a + 4.31622272220567e1) * a + 1.5298928504694e2) * a + 3.39320816734344e2
        top = (top * a + 4.51918953711873e2) * a + 3.00459261020162e2
        bottom = (a + 1.27827273196294e1) * a + 7.70001529352295e1
        bottom = (bottom * a + 2.77585444743988e2) * a + 6.38980264465631e2
        bottom = (bottom * a + 9.3135409485061e2) * a + 7.90950925327898e2
        bottom = bottom * a + 3.00459260956983e2
        inside = 0.5 + (0.5 - math.exp(-x * x) * top / bottom)
        return inside if x > 0.0 else -inside
    return 1.0 if x > 0.0 else -1.0


def erf_sum(x):
    """Sum of the error function, from an approximation with branches."""
    total = 0.0
    for i in range(x.size):
        total += fractional_erf(x[i])
    return total


NEAR = (
    (
        *(7.7105849500132e-5, -1.33733772997339e-3, 3.23076579225834e-2, 4.79137145607681e-2),
        1.28379167095513e-1,
    ),
    (3.01048631703895e-3, 5.38971687740286e-2, 3.75795757275549e-1, 1.0),
)
FAR = (
    (
        *(-1.36864857382717e-7, 5.64195517478974e-1, 7.21175825088309, 4.31622272220567e1),
        *(1.5298928504694e2, 3.39320816734344e2, 4.51918953711873e2, 3.00459261020162e2),
    ),
    (
        *(1.0, 1.27827273196294e1, 7.70001529352295e1, 2.77585444743988e2),
        *(6.38980264465631e2, 9.3135409485061e2, 7.90950925327898e2, 3.00459260956983e2),
    ),
)
"""Coefficients of the polynomials above, the highest power first."""


def erf_sum_loss(xp, x):
    """The same: all ranges are computed for all elements."""

    def fraction(polynomials, t):
        top, bottom = (functools.reduce(lambda p, c: p * t + c, p) for p in polynomials)
        return top / bottom

    a = xp.abs(x)
    near = x * (fraction(NEAR, x * x) + 1.0)
    far = xp.sign(x) * (0.5 + (0.5 - xp.exp(-x * x) * fraction(FAR, a)))
    return xp.sum(xp.where(a < 0.5, near, xp.where(a <= 4.0, far, xp.sign(x))))


def draw_wide(rng, n):
    """Normal numbers in all ranges."""
    return (2.0 * rng.standard_normal(n),)


# --------------------------------------------------------------------------------------------------
# A fit


def polynomial_fit(x, t):
    """Squared error of a polynomial with coefficients x as a fit to the sign of t."""
    total = 0.0
    for i in range(t.size):
        fitted = 0.0
        power = 1.0
        for j in range(x.size):
            fitted += x[j] * power
            power *= t[i]
        residual = np.sign(t[i]) - fitted
        total += 0.5 * residual * residual
    return total


@compiled
def polynomial_fit_by_hand(x, t):
    """Powers are computed again for the gradient."""
    gx = np.zeros_like(x)
    total = 0.0
    for i in range(t.size):
        fitted, power = 0.0, 1.0
        for j in range(x.size):
            fitted += x[j] * power
            power *= t[i]
        residual = np.sign(t[i]) - fitted
        total += 0.5 * residual * residual
        power = 1.0
        for j in range(x.size):
            gx[j] -= residual * power
            power *= t[i]
    return total, (gx,)


def polynomial_fit_loss(xp, x, t):
    """Squared error of a polynomial with coefficients x as a fit to the sign of t."""
    return llsq(xp, x, t, xp.cumsum(xp.ones_like(x), 0) - 1.0)


def draw_polynomial_fit(rng, m, n):
    """Coefficients and points."""
    return draw_llsq(rng, m, n)[:2]


# --------------------------------------------------------------------------------------------------
# Windows


def z_normalise(x, m):
    """Sum of products of the ends of all windows of m, after each is normalised."""
    total = 0.0
    for i in range(x.size - m + 1):
        window = x[i : i + m]
        z = (window - np.mean(window)) / np.std(window)
        total += z[0] * z[m - 1]
    return total


def z_normalise_loss(xp, x, *, m):
    """All windows at once."""
    windows = x[np.arange(x.shape[0] - m + 1)[:, None] + np.arange(m)]
    centred = windows - xp.mean(windows, axis=1)[:, None]
    return xp.sum(centred[:, 0] * centred[:, -1] / xp.mean(centred**2, axis=1))


def windows_size(n: int, m: int) -> Size:
    """Windows of m in a series of n."""
    return Size(f"n={n} m={m}", {"n": n}, {"m": m})


# --------------------------------------------------------------------------------------------------
# Newton's method


def equilibria(load, steps):
    """Squares of the points of least energy under each load, by Newton's method.

    The first two derivatives of the energy, exp(u) + u^2 / 2 - load u, are written out.
    """
    total = 0.0
    for i in range(load.size):
        u = 0.0
        for _ in range(steps):
            u -= (math.exp(u) + u - load[i]) / (math.exp(u) + 1.0)
        total += u * u
    return total


def equilibria_loss(xp, load, *, steps):
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
    # to import it generates code, which a process that measures first calls must not have done
    from .nested import equilibria

    return equilibria


def draw_equilibria(rng, n):
    """Loads."""
    return (rng.uniform(1.0, 5.0, n),)


def equilibria_size(n: int, steps: int) -> Size:
    """So many loads, and steps for each."""
    return Size(f"n={n} ({steps} steps)", {"n": n}, {"steps": steps})


SUMS = (
    Workload(
        rosenbrock_loss,
        draw_rosenbrock,
        wrt=(0,),
        quick=vector_size(10),
        sizes=(vector_size(1_000_000),),
        group="njit",
        loops=Loops(rosenbrock, rosenbrock_by_hand),
    ),
    Workload(
        black_scholes_loss,
        draw_black_scholes,
        wrt=(0, 1, 2),
        quick=vector_size(10),
        sizes=(vector_size(100_000),),
        group="njit",
        needs=("erf",),
        loops=Loops(black_scholes, black_scholes_by_hand, NO_CHECKS),
    ),
    Workload(
        erf_sum_loss,
        draw_wide,
        wrt=(0,),
        quick=vector_size(20),
        sizes=(vector_size(10_000),),
        group="njit",
        loops=Loops(erf_sum),
    ),
    Workload(
        polynomial_fit_loss,
        draw_polynomial_fit,
        wrt=(0,),
        quick=llsq_size(16, m=8),
        sizes=(llsq_size(4096),),
        group="njit",
        loops=Loops(polynomial_fit, polynomial_fit_by_hand),
    ),
    Workload(
        z_normalise_loss,
        draw_vector,
        wrt=(0,),
        quick=windows_size(12, 4),
        sizes=(windows_size(2000, 32),),
        group="njit",
        loops=Loops(z_normalise),
    ),
    Workload(
        equilibria_loss,
        draw_equilibria,
        wrt=(0,),
        quick=equilibria_size(3, 4),
        sizes=(equilibria_size(1000, 10),),
        group="njit",
        needs=("derivative",),
        loops=Loops(equilibria, nested=differentiated_equilibria),
    ),
)
