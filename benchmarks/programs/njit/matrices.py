"""Small matrices and vectors: a determinant, filters, and cameras."""

import numba
import numpy as np

from benchmarks.programs.cases import Loops, Size, Workload
from benchmarks.programs.losses import vector_size

# --------------------------------------------------------------------------------------------------
# A determinant


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
    """Determinant of a small matrix.

    By recursive expansion into minors.
    """
    n = a.shape[0]
    following = np.empty(n + 1, np.int64)
    for i in range(n):
        following[i] = i + 1
    following[n] = 0
    return minor(a, n, following, following.copy())


def determinant_loss(xp, a):
    """The same from a factorization."""
    return xp.linalg.det(a)


def draw_matrix(rng, n):
    """A square matrix."""
    return (rng.standard_normal((n, n)),)


# --------------------------------------------------------------------------------------------------
# Hidden Markov models


def hmm(transition, emission, start, symbols):
    """Logarithm of the probability of a sequence of symbols, by the forward algorithm."""
    alpha = start * emission[:, symbols[0]]
    scale = np.sum(alpha)
    alpha = alpha / scale
    total = np.log(scale)
    for t in range(1, symbols.size):
        alpha = (alpha @ transition) * emission[:, symbols[t]]
        scale = np.sum(alpha)
        alpha = alpha / scale
        total += np.log(scale)
    return total


def hmm_loops(transition, emission, start, symbols):
    """Logarithm of the probability of a sequence of symbols, in loops."""
    n = start.size
    alpha, following = np.empty(n), np.empty(n)
    scale = 0.0
    for i in range(n):
        alpha[i] = start[i] * emission[i, symbols[0]]
        scale += alpha[i]
    for i in range(n):
        alpha[i] /= scale
    total = np.log(scale)
    for t in range(1, symbols.size):
        scale = 0.0
        for j in range(n):
            s = 0.0
            for i in range(n):
                s += alpha[i] * transition[i, j]
            following[j] = s * emission[j, symbols[t]]
            scale += following[j]
        for j in range(n):
            alpha[j] = following[j] / scale
        total += np.log(scale)
    return total


def hmm_loss(xp, transition, emission, start, symbols):
    """The same."""

    def scaled(alpha, total):
        scale = xp.sum(alpha)
        return alpha / scale, total + xp.log(scale)

    def step(state, symbol):
        alpha, total = state
        return scaled((alpha @ transition) * emission[:, symbol], total)

    state = scaled(start * emission[:, symbols[0]], 0.0)
    return xp.fold(step, state, symbols[1:])[1]


def draw_hmm(rng, states, kinds, steps):
    """Probabilities of transitions and of symbols, first states, and the symbols."""
    transition, emission = rng.uniform(size=(states, states)), rng.uniform(size=(states, kinds))
    return (
        transition / np.sum(transition, axis=1, keepdims=True),
        emission / np.sum(emission, axis=1, keepdims=True),
        np.full(states, 1.0 / states),
        rng.integers(0, kinds, steps),
    )


def hmm_size(states: int, steps: int) -> Size:
    """So many states, and symbols of five kinds."""
    return Size(f"n={states} s={steps}", {"states": states, "kinds": 5, "steps": steps})


# --------------------------------------------------------------------------------------------------
# The Kalman filter


def kalman(dynamics, sensor, drift, noise, measured):
    """Logarithm of the likelihood of measurements, but for a constant, by the Kalman filter."""
    n = dynamics.shape[0]
    mean, covariance = np.zeros(n), np.eye(n)
    total = 0.0
    for t in range(measured.shape[0]):
        mean = dynamics @ mean
        covariance = dynamics @ covariance @ dynamics.T + drift
        surprise = measured[t] - sensor @ mean
        spread = sensor @ covariance @ sensor.T + noise
        inverse = np.linalg.inv(spread)
        gain = covariance @ sensor.T @ inverse
        mean = mean + gain @ surprise
        covariance = covariance - gain @ sensor @ covariance
        total -= 0.5 * (np.log(np.linalg.det(spread)) + surprise @ inverse @ surprise)
    return total


def kalman_loss(xp, dynamics, sensor, drift, noise, measured):
    """The same."""

    def step(state, now):
        mean, covariance, total = state
        mean = dynamics @ mean
        covariance = dynamics @ covariance @ dynamics.T + drift
        surprise = now - sensor @ mean
        spread = sensor @ covariance @ sensor.T + noise
        inverse = xp.linalg.inv(spread)
        gain = covariance @ sensor.T @ inverse
        mean = mean + gain @ surprise
        covariance = covariance - gain @ sensor @ covariance
        misfit = xp.log(xp.linalg.det(spread)) + surprise @ inverse @ surprise
        return mean, covariance, total - 0.5 * misfit

    zero = 0.0 * dynamics
    state = zero[0], xp.tril(zero + 1.0) - xp.tril(zero + 1.0, -1), 0.0 * zero[0, 0]
    return xp.fold(step, state, measured)[2]


def draw_kalman(rng, n, m, steps):
    """Dynamics, sensor, both covariances, and m measurements at each step."""
    return (
        np.eye(n) + 0.01 * rng.standard_normal((n, n)),
        rng.standard_normal((m, n)),
        0.1 * np.eye(n),
        0.5 * np.eye(m),
        rng.standard_normal((steps, m)),
    )


def kalman_size(n: int, m: int, steps: int) -> Size:
    """So many numbers of a state and of a measurement."""
    return Size(f"n={n} m={m} s={steps}", {"n": n, "m": m, "steps": steps})


# --------------------------------------------------------------------------------------------------
# Bundle adjustment


@numba.njit
def rotated(rotation, x):
    """A point turned about an axis by the angle that is the axis's length (Rodrigues)."""
    square = np.sum(rotation * rotation)
    if square > 1e-12:
        angle = np.sqrt(square)
        cosine, sine = np.cos(angle), np.sin(angle)
        axis = rotation / angle
        turned = np.cross(axis, x)
        return x * cosine + turned * sine + axis * (np.dot(axis, x) * (1.0 - cosine))
    return x + np.cross(rotation, x)


@numba.njit
def projected(camera, x):
    """Where a camera sees a point: rotation, place, focal length, centre, distortion."""
    p = rotated(camera[:3], x - camera[3:6])
    u = p[:2] / p[2]
    square = np.sum(u * u)
    distortion = 1.0 + camera[9] * square + camera[10] * square * square
    return camera[6] * distortion * u + camera[7:9]


def bundle(cameras, points, seen, by, what):
    """Squared errors of where cameras see points: bundle adjustment, with small arrays."""
    total = 0.0
    for i in range(by.size):
        error = projected(cameras[by[i]], points[what[i]]) - seen[i]
        total += np.sum(error * error)
    return total


def bundle_loss(xp, cameras, points, seen, by, what):
    """All observations at once; no rotation is close to zero."""
    camera = cameras[by]
    a, b, c = (camera[:, i] for i in range(3))
    x, y, z = (points[what][:, i] - camera[:, 3 + i] for i in range(3))
    angle = xp.sqrt(a * a + b * b + c * c)
    cosine, sine = xp.cos(angle), xp.sin(angle)
    a, b, c = a / angle, b / angle, c / angle
    along = (a * x + b * y + c * z) * (1.0 - cosine)
    depth = z * cosine + (a * y - b * x) * sine + c * along
    u = (x * cosine + (b * z - c * y) * sine + a * along) / depth
    v = (y * cosine + (c * x - a * z) * sine + b * along) / depth
    square = u * u + v * v
    scale = camera[:, 6] * (1.0 + camera[:, 9] * square + camera[:, 10] * square * square)
    right = scale * u + camera[:, 7] - seen[:, 0]
    up = scale * v + camera[:, 8] - seen[:, 1]
    return xp.sum(right * right + up * up)


def draw_bundle(rng, cameras, points, observations):
    """Cameras near the origin, points in front of them, and which is seen by which."""
    camera = 0.1 * rng.standard_normal((cameras, 11))
    camera[:, 6] += 1.0
    return (
        camera,
        rng.standard_normal((points, 3)) + np.array([0.0, 0.0, 6.0]),
        0.2 * rng.standard_normal((observations, 2)),
        rng.integers(0, cameras, observations),
        rng.integers(0, points, observations),
    )


def bundle_size(cameras: int, points: int, observations: int) -> Size:
    """So many observations."""
    draw = {"cameras": cameras, "points": points, "observations": observations}
    return Size(f"n={observations}", draw)


MATRICES = (
    Workload(
        determinant_loss,
        draw_matrix,
        wrt=(0,),
        quick=vector_size(3),
        sizes=(vector_size(8),),
        group="njit",
        # by minors, the others by a factorization
        loops=Loops(determinant, alike=False),
    ),
    *(
        Workload(
            hmm_loss,
            draw_hmm,
            wrt=(0, 1, 2),
            quick=hmm_size(3, 5),
            sizes=(hmm_size(8, 2000),),
            group="njit",
            loops=Loops(program),
        )
        for program in (hmm, hmm_loops)
    ),
    Workload(
        kalman_loss,
        draw_kalman,
        wrt=(0, 1, 2, 3),
        quick=kalman_size(3, 2, 4),
        sizes=(kalman_size(4, 2, 200),),
        group="njit",
        loops=Loops(kalman),
    ),
    Workload(
        bundle_loss,
        draw_bundle,
        wrt=(0, 1),
        quick=bundle_size(2, 5, 10),
        sizes=(bundle_size(10, 100, 500),),
        group="njit",
        loops=Loops(bundle),
    ),
)
