"""Points in space, and what depends on the distances between them."""

import math

import numpy as np

from benchmarks.programs.cases import Loops, Size, Workload
from benchmarks.programs.losses import mixture, vector_size

from .options import NO_CHECKS, compiled

# --------------------------------------------------------------------------------------------------
# Gravity


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


@compiled
def gravity_by_hand(position, mass):
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


def gravity_loss(xp, position, mass):
    """Potential energy of point masses, softened at short distance."""
    between = position[:, None, :] - position[None, :, :]
    distance = xp.sqrt(xp.sum(between**2, axis=2) + 1e-3)
    return -xp.sum(xp.tril(mass[:, None] * mass[None, :], -1) / distance)


def draw_gravity(rng, n):
    """Masses in a cube."""
    return rng.uniform(-1.0, 1.0, (n, 3)), rng.uniform(0.5, 1.5, n)


# --------------------------------------------------------------------------------------------------
# Molecules


def lennard_jones(position):
    """Energy of particles that attract each other from afar and repel each other nearby."""
    energy = 0.0
    for i in range(position.shape[0]):
        for j in range(i):
            square = 0.0
            for k in range(3):
                d = position[i, k] - position[j, k]
                square += d * d
            s = 1.0 / (square * square * square)
            energy += 4.0 * (s * s - s)
    return energy


def lennard_jones_loss(xp, position):
    """All pairs at once."""
    i, j = np.tril_indices(position.shape[0], -1)
    s = 1.0 / xp.sum((position[i] - position[j]) ** 2, axis=1) ** 3
    return xp.sum(4.0 * (s * s - s))


def draw_lennard_jones(rng, n):
    """Particles near the points of a lattice."""
    side = math.ceil(n ** (1.0 / 3.0))
    lattice = np.stack(np.unravel_index(np.arange(n), (side, side, side)), axis=1)
    return (1.2 * lattice + rng.uniform(-0.1, 0.1, (n, 3)),)


# --------------------------------------------------------------------------------------------------
# Clusters


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


def clusters_min(centres, points):
    """Sum of the squared distances of points to the nearest centre, by a running minimum."""
    total = 0.0
    for i in range(points.shape[0]):
        least = np.inf
        for k in range(centres.shape[0]):
            distance = 0.0
            for d in range(points.shape[1]):
                distance += (points[i, d] - centres[k, d]) ** 2
            least = min(least, distance)
        total += least
    return total


def clusters_arrays(centres, points):
    """Sum of the squared distances of points to the nearest centre, by small arrays."""
    total = 0.0
    for i in range(points.shape[0]):
        total += np.min(np.sum((points[i] - centres) ** 2, axis=1))
    return total


@compiled
def clusters_by_hand(centres, points):
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


def clusters_loss(xp, centres, points):
    """Sum of the squared distances of points to the nearest of the centres."""
    between = points[:, None, :] - centres[None, :, :]
    return xp.sum(xp.amin(xp.sum(between**2, axis=2), 1))


def draw_clusters(rng, k, n, d):
    """Centres and points."""
    return rng.standard_normal((k, d)), rng.standard_normal((n, d))


def clusters_size(n: int, k: int, d: int) -> Size:
    """So many points in d dimensions, around k centres."""
    return Size(f"n={n} k={k} d={d}", {"n": n, "k": k, "d": d})


# --------------------------------------------------------------------------------------------------
# Gaussian mixtures


def gmm_loops(alphas, means, q, lower, x):
    """Log-likelihood of a Gaussian mixture, whose inverse covariances are those of ``gmm``."""
    n, d = x.shape
    components = alphas.size
    total = 0.0
    terms, centred, log_det = np.empty(components), np.empty(d), np.zeros(components)
    for k in range(components):
        for j in range(d):
            log_det[k] += q[k, j]
    for i in range(n):
        for k in range(components):
            for j in range(d):
                centred[j] = x[i, j] - means[k, j]
            square = 0.0
            for a in range(d):
                y = np.exp(q[k, a]) * centred[a]
                for b in range(a):
                    y += lower[k, a * (a - 1) // 2 + b] * centred[b]
                square += y * y
            terms[k] = alphas[k] + log_det[k] - 0.5 * square
        top = terms[0]
        for k in range(1, components):
            if terms[k] > top:
                top = terms[k]
        s = 0.0
        for k in range(components):
            s += np.exp(terms[k] - top)
        total += top + np.log(s)
    top = alphas[0]
    for k in range(1, components):
        top = max(top, alphas[k])
    s = 0.0
    for k in range(components):
        s += np.exp(alphas[k] - top)
    return total - n * (top + np.log(s))


@compiled
def gmm_by_hand(alphas, means, q, lower, x):
    """A point adds to the gradient of each component by the weight that the component has there."""
    n, d = x.shape
    components = alphas.size
    g_alphas, g_means = np.zeros_like(alphas), np.zeros_like(means)
    g_q, g_lower = np.zeros_like(q), np.zeros_like(lower)
    scale, log_det = np.exp(q), np.sum(q, axis=1)
    weights, y, pull = np.empty(components), np.empty((components, d)), np.empty(d)
    total = 0.0
    for i in range(n):
        for k in range(components):
            square = 0.0
            for a in range(d):
                whitened = scale[k, a] * (x[i, a] - means[k, a])
                for b in range(a):
                    whitened += lower[k, a * (a - 1) // 2 + b] * (x[i, b] - means[k, b])
                y[k, a] = whitened
                square += whitened * whitened
            weights[k] = alphas[k] + log_det[k] - 0.5 * square
        total += normalised(weights)
        for k in range(components):
            w = weights[k]
            g_alphas[k] += w
            pull[:] = 0.0
            for a in range(d):
                gy = -w * y[k, a]
                g_q[k, a] += w + gy * scale[k, a] * (x[i, a] - means[k, a])
                pull[a] += gy * scale[k, a]
                for b in range(a):
                    g_lower[k, a * (a - 1) // 2 + b] += gy * (x[i, b] - means[k, b])
                    pull[b] += gy * lower[k, a * (a - 1) // 2 + b]
            for a in range(d):
                g_means[k, a] -= pull[a]
    prior = alphas.copy()
    total -= n * normalised(prior)
    for k in range(components):
        g_alphas[k] -= n * prior[k]
    return total, (g_alphas, g_means, g_q, g_lower)


@compiled
def normalised(terms):
    """The logarithm of the sum of exponentials, whose terms become shares of the sum."""
    top, s = np.max(terms), 0.0
    for k in range(terms.size):
        terms[k] = math.exp(terms[k] - top)
        s += terms[k]
    for k in range(terms.size):
        terms[k] /= s
    return top + math.log(s)


def draw_gmm_loops(rng, n, d, components):
    """Parameters and points."""
    return (
        rng.standard_normal(components),
        rng.standard_normal((components, d)),
        0.1 * rng.standard_normal((components, d)),
        0.1 * rng.standard_normal((components, d * (d - 1) // 2)),
        rng.standard_normal((n, d)),
    )


def gmm_loops_size(n: int, d: int, components: int) -> Size:
    """So many points in d dimensions."""
    return Size(f"n={n} d={d} K={components}", {"n": n, "d": d, "components": components})


POINTS = (
    Workload(
        gravity_loss,
        draw_gravity,
        wrt=(0,),
        quick=vector_size(5),
        sizes=(vector_size(300),),
        group="njit",
        loops=Loops(gravity, gravity_by_hand, NO_CHECKS),
    ),
    Workload(
        lennard_jones_loss,
        draw_lennard_jones,
        wrt=(0,),
        quick=vector_size(5),
        sizes=(vector_size(300),),
        group="njit",
        loops=Loops(lennard_jones),
    ),
    *(
        Workload(
            clusters_loss,
            draw_clusters,
            wrt=(0,),
            quick=clusters_size(10, 3, 2),
            sizes=(clusters_size(n, 10, 4),),
            group="njit",
            needs=("amin",),
            loops=Loops(program, clusters_by_hand),
        )
        for program, n in ((clusters, 1000), (clusters_min, 10_000), (clusters_arrays, 1000))
    ),
    Workload(
        mixture,
        draw_gmm_loops,
        wrt=(0, 1, 2, 3),
        quick=gmm_loops_size(6, 3, 2),
        sizes=(gmm_loops_size(300, 10, 25),),
        group="njit",
        loops=Loops(gmm_loops, gmm_by_hand),
    ),
)
