"""Values and gradients of programs of arrays, written by hand for numba: what there is to reach.

They use the vector math of the package, memory that is allocated once, and whatever is known of the
program: blocks of elements pass through all steps while they stay in the cache, forward and
reverse; what is cheaper to compute again is not kept.
"""

import functools
import math

import numba
import numpy as np

from tapegrad.transform import vector_math

floor = functools.partial(numba.njit, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
BLOCK = 64
POINTS = 200  # of a block of a mixture


@floor()
def chain_block(x, y, x_bar, y_bar, before, slopes, z, g):
    """Value of a chain of some elements; the gradient is written.

    `before` and `slopes` have a row of elements for each step.
    """
    size = x.size
    for k in range(size):
        z[k] = x[k]
    for step in range(before.shape[0]):
        kept, slope = before[step], slopes[step]
        for k in range(size):
            kept[k] = z[k]
            angle = z[k] * y[k]
            slope[k] = vector_math.cos(angle)
            z[k] = vector_math.sin(angle)
    total = 0.0
    for k in range(size):
        total += z[k]
        g[k] = 1.0
        y_bar[k] = 0.0
    for step in range(before.shape[0] - 1, -1, -1):
        kept, slope = before[step], slopes[step]
        for k in range(size):
            h = g[k] * slope[k]
            y_bar[k] += h * kept[k]
            g[k] = h * y[k]
    for k in range(size):
        x_bar[k] = g[k]
    return total


@floor()
def chain(x, y, steps):
    """Blocks of elements, each through all steps."""
    x_bar, y_bar = np.empty_like(x), np.empty_like(y)
    width = min(BLOCK, x.size)
    before, slopes = np.empty((steps, width)), np.empty((steps, width))
    z, g = np.empty(width), np.empty(width)
    total = 0.0
    for first in range(0, x.size, width):
        last = min(first + width, x.size)
        total += chain_block(
            x[first:last], y[first:last], x_bar[first:last], y_bar[first:last], before, slopes, z, g
        )
    return total, (x_bar, y_bar)


@floor()
def small(x):
    """Fifty steps of sines."""
    z, g = x.copy(), np.ones_like(x)
    slopes = np.empty((50, x.size))
    for step in range(50):
        for k in range(x.size):
            slopes[step, k] = 1.01 * vector_math.cos(z[k]) + 1.0
            z[k] = vector_math.sin(z[k]) * 1.01 + z[k]
    total = 0.0
    for k in range(x.size):
        total += z[k]
    for step in range(49, -1, -1):
        for k in range(x.size):
            g[k] *= slopes[step, k]
    return total, (g,)


@floor()
def lse(x):
    """The exponentials are kept where the gradient will be."""
    top = -math.inf
    for k in range(x.size):
        top = max(top, x[k])
    gradient = np.empty_like(x)
    total = 0.0
    for k in range(x.size):
        gradient[k] = vector_math.exp(x[k] - top)
        total += gradient[k]
    scale = 1.0 / total
    for k in range(x.size):
        gradient[k] *= scale
    return math.log(total) + top, (gradient,)


@floor()
def llsq(x, t, exponents):
    """Powers of all points at once, computed again for the gradient: nothing is kept."""
    count = t.size
    powers, residual = np.ones(count), np.empty(count)
    for i in range(count):
        residual[i] = np.sign(t[i])
    for j in range(x.size):
        for i in range(count):
            residual[i] -= powers[i] * x[j]
            powers[i] *= t[i]
    total = 0.0
    for i in range(count):
        total += residual[i] * residual[i]
        powers[i] = 1.0
    gradient = np.empty_like(x)
    for j in range(x.size):
        found = 0.0
        for i in range(count):
            found += residual[i] * powers[i]
            powers[i] *= t[i]
        gradient[j] = -found
    return 0.5 * total, (gradient,)


@floor()
def slope(x, z, k):
    """The slope of the system."""
    k[0] = x[0]
    for i in range(1, x.size):
        k[i] = x[i] * z[i - 1]


@floor()
def slope_vjp(x, z, k_bar, x_bar, z_bar):
    """Add to the cotangent of the coefficients, and set that of the state."""
    last = x.size - 1
    x_bar[0] += k_bar[0]
    for i in range(last):
        x_bar[i + 1] += k_bar[i + 1] * z[i]
        z_bar[i] = k_bar[i + 1] * x[i + 1]
    z_bar[last] = 0.0


@floor()
def ode(x, start, steps):
    """Every step keeps the states of its four slopes."""
    n, h = x.size, 2.0 / steps
    u, k1, k2, k3, k4 = (np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty(n))
    states = np.empty((steps, 4, n))
    u[:] = start
    for step in range(steps):
        s1, s2, s3, s4 = states[step, 0], states[step, 1], states[step, 2], states[step, 3]
        for i in range(n):
            s1[i] = u[i]
        slope(x, s1, k1)
        for i in range(n):
            s2[i] = u[i] + 0.5 * h * k1[i]
        slope(x, s2, k2)
        for i in range(n):
            s3[i] = u[i] + 0.5 * h * k2[i]
        slope(x, s3, k3)
        for i in range(n):
            s4[i] = u[i] + h * k3[i]
        slope(x, s4, k4)
        for i in range(n):
            u[i] += h / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i])
    x_bar, u_bar = np.zeros(n), np.zeros(n)
    k_bar, b1, b2, b3, b4 = k1, k2, k3, k4, np.empty(n)
    u_bar[n - 1] = 1.0
    for step in range(steps - 1, -1, -1):
        for i in range(n):
            k_bar[i] = h / 6.0 * u_bar[i]
        slope_vjp(x, states[step, 3], k_bar, x_bar, b4)
        for i in range(n):
            k_bar[i] = h / 3.0 * u_bar[i] + h * b4[i]
        slope_vjp(x, states[step, 2], k_bar, x_bar, b3)
        for i in range(n):
            k_bar[i] = h / 3.0 * u_bar[i] + 0.5 * h * b3[i]
        slope_vjp(x, states[step, 1], k_bar, x_bar, b2)
        for i in range(n):
            k_bar[i] = h / 6.0 * u_bar[i] + 0.5 * h * b2[i]
        slope_vjp(x, states[step, 0], k_bar, x_bar, b1)
        for i in range(n):
            u_bar[i] += b1[i] + b2[i] + b3[i] + b4[i]
    return u[n - 1], (x_bar,)


@floor()
def whiten(scale, lower, mean, points, centred, white):
    """Multiply centred points by the triangle of a component; a column of each array is a point."""
    d, count = points.shape
    place = 0
    for i in range(d):
        m, s = mean[i], scale[i]
        own, row = centred[i], white[i]
        for p in range(count):
            own[p] = points[i, p] - m
            row[p] = s * own[p]
        for j in range(i):
            factor, other = lower[place + j], centred[j]
            for p in range(count):
                row[p] += factor * other[p]
        place += i


@floor()
def whiten_vjp(scale, lower, centred, white_bar, own_bars, centred_bar):
    """Add to the cotangents of a component: of its scale, lower triangle and mean."""
    scale_bar, lower_bar, mean_bar = own_bars
    d, count = centred.shape
    for i in range(d):
        for p in range(count):
            centred_bar[i, p] = scale[i] * white_bar[i, p]
    place = 0
    for i in range(d):
        g = white_bar[i]
        total = 0.0
        for p in range(count):
            total += g[p] * centred[i, p]
        scale_bar[i] += total
        for j in range(i):
            factor, own, other = lower[place + j], centred[j], centred_bar[j]
            total = 0.0
            for p in range(count):
                total += g[p] * own[p]
                other[p] += factor * g[p]
            lower_bar[place + j] += total
        place += i
    for i in range(d):
        total = 0.0
        for p in range(count):
            total += centred_bar[i, p]
        mean_bar[i] -= total


@floor()
def mixture(alphas, means, q, lower, x, gamma, m, constant):
    """Blocks of points, for which the whitened points of all components are kept."""
    n, d = x.shape
    components = alphas.size
    alphas_bar, means_bar = np.zeros_like(alphas), np.zeros_like(means)
    q_bar, lower_bar, scale_bar = np.zeros_like(q), np.zeros_like(lower), np.zeros_like(q)
    scale, base = np.empty_like(q), np.empty_like(alphas)
    frobenius = total_q = 0.0
    for k in range(components):
        log_det = 0.0
        for i in range(d):
            scale[k, i] = math.exp(q[k, i])
            frobenius += scale[k, i] ** 2
            log_det += q[k, i]
        for i in range(lower.shape[1]):
            frobenius += lower[k, i] ** 2
        base[k] = alphas[k] + log_det
        total_q += log_det
    width = min(POINTS, n)
    centred, white = np.empty((components, d, width)), np.empty((components, d, width))
    points, centred_bar = np.empty((d, width)), np.empty((d, width))
    inner, top, total = np.empty((components, width)), np.empty(width), np.empty(width)
    value = 0.0
    for first in range(0, n, width):
        count = min(width, n - first)
        for i in range(d):
            for p in range(count):
                points[i, p] = x[first + p, i]
        top[:], total[:] = -math.inf, 0.0
        for k in range(components):
            own, row = white[k, :, :count], inner[k]
            whiten(scale[k], lower[k], means[k], points[:, :count], centred[k, :, :count], own)
            row[:count] = base[k]
            for i in range(d):
                for p in range(count):
                    row[p] -= 0.5 * own[i, p] ** 2
            for p in range(count):
                top[p] = max(top[p], row[p])
        for k in range(components):
            for p in range(count):
                inner[k, p] = vector_math.exp(inner[k, p] - top[p])
                total[p] += inner[k, p]
        for p in range(count):
            value += math.log(total[p]) + top[p]
            total[p] = 1.0 / total[p]
        for k in range(components):
            own, row = white[k, :, :count], inner[k]
            weight = 0.0
            for p in range(count):
                row[p] *= total[p]
                weight += row[p]
            alphas_bar[k] += weight
            for i in range(d):
                q_bar[k, i] += weight
                for p in range(count):
                    own[i, p] *= -row[p]
            part, part_bar = centred[k, :, :count], centred_bar[:, :count]
            own_bars = scale_bar[k], lower_bar[k], means_bar[k]
            whiten_vjp(scale[k], lower[k], part, own, own_bars, part_bar)
    largest = np.max(alphas)
    shifted = np.exp(alphas - largest)
    weights = np.sum(shifted)
    value -= n * (math.log(weights) + largest)
    value += 0.5 * gamma**2 * frobenius - m * total_q + constant
    for k in range(components):
        alphas_bar[k] -= n * shifted[k] / weights
        for i in range(d):
            q_bar[k, i] += (scale_bar[k, i] + gamma**2 * scale[k, i]) * scale[k, i] - m
        for i in range(lower.shape[1]):
            lower_bar[k, i] += gamma**2 * lower[k, i]
    return value, (alphas_bar, means_bar, q_bar, lower_bar)
