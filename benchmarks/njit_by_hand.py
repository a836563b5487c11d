"""Hand-written values and gradients of the programs: the goal for generated adjoints."""

import math

import numba
import numpy as np

from .njit_loops import normal_cdf

compiled = numba.njit(error_model="numpy")


@compiled
def logistic(r, x, steps):
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


@compiled
def van_der_pol(x, y, mu, omega, steps):
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
    value = x
    gx, gy, g_mu, g_omega = 1.0, 0.0, 0.0, 0.0
    for i in range(steps - 1, -1, -1):
        x, y = states[i, 0], states[i, 1]
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
        g_mu += ga1 * w * y + ga2 * w2 * v2 + ga3 * w3 * v3 + ga4 * w4 * v4
        g_omega -= ga1 * x + ga2 * x2 + ga3 * x3 + ga4 * x4
        gx += gx4 + gx3 + gx2 - ga1 * (2.0 * mu * x * y + omega)
        gy += gv4 + gv3 + gv2 + gv1
    return value, (gx, gy, g_mu, g_omega)


@compiled
def rosenbrock(x):
    """Every term adds to the gradient by its own two variables."""
    gx = np.zeros_like(x)
    total = 0.0
    for i in range(x.size - 1):
        away, rest = x[i + 1] - x[i] ** 2, 1.0 - x[i]
        total += 100.0 * away**2 + rest**2
        gx[i] -= 400.0 * away * x[i] + 2.0 * rest
        gx[i + 1] += 200.0 * away
    return total, (gx,)


@compiled
def gravity(position, mass):
    """Every pair pulls at both of its masses."""
    gradient = np.zeros_like(position)
    energy = 0.0
    for i in range(mass.size):
        gx = gy = gz = 0.0
        for j in range(i):
            dx = position[i, 0] - position[j, 0]
            dy = position[i, 1] - position[j, 1]
            dz = position[i, 2] - position[j, 2]
            near = 1.0 / math.sqrt(dx * dx + dy * dy + dz * dz + 1e-3)
            term = mass[i] * mass[j] * near
            energy -= term
            pull = term * near * near
            gx += pull * dx
            gy += pull * dy
            gz += pull * dz
            gradient[j, 0] -= pull * dx
            gradient[j, 1] -= pull * dy
            gradient[j, 2] -= pull * dz
        gradient[i, 0] += gx
        gradient[i, 1] += gy
        gradient[i, 2] += gz
    return energy, (gradient,)


@compiled
def black_scholes(spot, volatility, rate, strike, maturity):
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


@compiled
def polynomial_fit(x, t):
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


@compiled
def cascade(x, start, steps):
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


@compiled
def clusters(centres, points):
    """Only the nearest centre is pulled."""
    pull = np.zeros_like(centres)
    total = 0.0
    for i in range(points.shape[0]):
        least, nearest = np.inf, 0
        for k in range(centres.shape[0]):
            distance = 0.0
            for d in range(points.shape[1]):
                distance += (points[i, d] - centres[k, d]) ** 2
            if distance < least:
                least, nearest = distance, k
        total += least
        for d in range(points.shape[1]):
            pull[nearest, d] -= 2.0 * (points[i, d] - centres[nearest, d])
    return total, (pull,)
