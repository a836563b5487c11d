"""Programs as loops over numbers: plain functions, written as for numba.

Nothing here uses derivatives or needs tapegrad, so that a process can measure the cost of numba
alone. Each takes the arrays of its workload, then the constants (``njit_workloads.py``).
"""

import math

import numba
import numpy as np


def logistic(r, x, steps):
    """The logistic map, so many times."""
    for _ in range(steps):
        x = r * x * (1.0 - x)
    return x


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


def rosenbrock(x):
    """The banana function of many variables."""
    total = 0.0
    for i in range(x.size - 1):
        total += 100.0 * (x[i + 1] - x[i] ** 2) ** 2 + (1.0 - x[i]) ** 2
    return total


def gravity(position, mass):
    """Potential energy of point masses, softened at short distance."""
    energy = 0.0
    for i in range(mass.size):
        for j in range(i):
            dx = position[i, 0] - position[j, 0]
            dy = position[i, 1] - position[j, 1]
            dz = position[i, 2] - position[j, 2]
            energy -= mass[i] * mass[j] / math.sqrt(dx * dx + dy * dy + dz * dz + 1e-3)
    return energy


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


@numba.njit
def slope(x, z, dz):
    """Right-hand side of z_0' = x_0, z_i' = x_i z_(i-1)."""
    dz[0] = x[0]
    for i in range(1, x.size):
        dz[i] = x[i] * z[i - 1]


def cascade(x, start, steps):
    """Runge-Kutta steps up to t = 2 through the equations above; the last component."""
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


@numba.njit(error_model="numpy")
def minor(a, order, rows, columns):
    """Determinant of what is left of a matrix, expanded along its first row.

    Rows and columns that are left are linked lists, whose head is the element behind the last: an
    element is taken out for the call and put back after it.
    """
    head = a.shape[0]
    i = rows[head]
    if order == 1:
        return a[i, columns[head]]
    rows[head] = rows[i]
    total = 0.0
    sign = 1.0
    before = head
    for _ in range(order):
        j = columns[before]
        columns[before] = columns[j]
        total += sign * a[i, j] * minor(a, order - 1, rows, columns)
        columns[before] = j
        before = j
        sign = -sign
    rows[head] = i
    return total


def determinant(a):
    """Determinant by recursive expansion into minors."""
    n = a.shape[0]
    following = np.empty(n + 1, np.int64)
    for i in range(n):
        following[i] = i + 1
    following[n] = 0
    return minor(a, n, following, following.copy())


def clusters(centres, points):
    """Sum of the squared distances of points to the nearest of the centres."""
    total = 0.0
    distance = np.empty(centres.shape[0])
    for i in range(points.shape[0]):
        for k in range(centres.shape[0]):
            distance[k] = 0.0
            for d in range(points.shape[1]):
                distance[k] += (points[i, d] - centres[k, d]) ** 2
        total += distance[np.argmin(distance)]
    return total


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
