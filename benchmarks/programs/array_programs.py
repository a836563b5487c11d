"""Programs of arrays of many kinds, to be recorded.

They are what one writes in a few lines of NumPy: normalisations, stencils, distances, reductions,
networks, linear algebra.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

SIDE = 300  # of matrices; vectors have as many elements as they

Program = Callable[..., Any]
PROGRAMS: dict[str, tuple[Program, tuple[tuple[int, ...], ...]]] = {}
MATRIX, VECTOR = (SIDE, SIDE), (SIDE * SIDE,)


def program(*shapes: tuple[int, ...]) -> Callable[[Program], Program]:
    """Enter a function of a library and arrays of some shapes (a decorator)."""

    def enter(function: Program) -> Program:
        PROGRAMS[function.__name__.replace("_", " ")] = function, shapes
        return function

    return enter


# -- elements --------------------------------------------------------------------------------------


@program(MATRIX, MATRIX)
def sines_and_exponentials(xp, x, y):
    return xp.sum(xp.sin(x) * y + xp.exp(-x * x))


@program(MATRIX)
def powers(xp, x):
    return xp.sum(xp.abs(x) ** 2.5)


@program(VECTOR)
def polynomial(xp, x):
    total = 0.0
    for k in range(8):
        total = total * x + 1.0 / (k + 1)
    return xp.sum(total)


@program(VECTOR)
def huber_loss(xp, x):
    size = xp.abs(x)
    return xp.sum(xp.where(size < 1, 0.5 * size * size, size - 0.5))


@program(VECTOR)
def clipped_cubes(xp, x):
    return xp.sum(xp.clip(x, -0.5, 0.7) ** 3)


@program(VECTOR)
def hypotenuses_and_angles(xp, x):
    return xp.sum(xp.hypot(x, 1.5) + xp.arctan2(x, 2.0))


# -- normalisations and reductions -----------------------------------------------------------------


@program(MATRIX)
def softmax_of_rows(xp, x):
    e = xp.exp(x - xp.max(x, axis=1, keepdims=True))
    return xp.sum((e / xp.sum(e, axis=1, keepdims=True)) ** 2)


@program(MATRIX)
def softmax_of_columns(xp, x):
    e = xp.exp(x - xp.max(x, axis=0))
    return xp.sum((e / xp.sum(e, axis=0)) ** 2)


@program(MATRIX, (SIDE,), (SIDE,))
def layer_norm(xp, x, gain, bias):
    centred = x - xp.mean(x, axis=1, keepdims=True)
    variance = xp.mean(centred**2, axis=1, keepdims=True)
    return xp.sum(xp.tanh(centred / xp.sqrt(variance + 1e-5) * gain + bias))


@program(MATRIX)
def standard_deviations(xp, x):
    return xp.sum(xp.std(x, axis=0)) + xp.var(x)


@program(MATRIX)
def largest_of_rows_and_columns(xp, x):
    return xp.sum(xp.max(x, axis=1) * xp.min(x, axis=0))


@program(VECTOR)
def largest_element(xp, x):
    return xp.max(xp.abs(x))


@program(MATRIX)
def largest_of_windows(xp, x):
    half = SIDE // 2
    return xp.sum(xp.max(xp.reshape(x, (half, 2, half, 2)), axis=(1, 3)))


@program(VECTOR)
def cumulative_sum(xp, x):
    return xp.sum(xp.cumsum(x) ** 2)


@program(MATRIX)
def cumulative_sums_of_rows(xp, x):
    return xp.sum(xp.cumsum(x, axis=1) ** 2)


# -- neighbours and indices ------------------------------------------------------------------------


@program(MATRIX)
def total_variation(xp, x):
    here = x[:-1, :-1]
    return xp.sum(xp.sqrt((x[1:, :-1] - here) ** 2 + (x[:-1, 1:] - here) ** 2 + 1e-3))


@program(MATRIX)
def convolution(xp, x):
    total = 0.0
    for i in range(3):
        for j in range(3):
            total = total + (3 * i + j) / 9 * x[i : i + SIDE - 2, j : j + SIDE - 2]
    return xp.sum(xp.tanh(total))


@program(MATRIX)
def heat_equation(xp, u):
    for _ in range(10):
        sides = xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1)
        u = u + 0.1 * (sides - 4 * u)
    return xp.sum(u**2)


@program(VECTOR)
def second_differences(xp, x):
    return xp.sum(xp.diff(x, n=2) ** 2)


@program(MATRIX)
def a_matrix_and_its_transpose(xp, x):
    return xp.sum(xp.sin(x.T) * x)


@program(VECTOR)
def elements_at_indices(xp, x):
    places = np.random.default_rng(1).integers(0, x.shape[0], x.shape[0] // 2)
    return xp.sum(x[places] ** 2 * x[: places.size])


@program(VECTOR)
def sorted_elements(xp, x):
    return xp.sum(xp.sort(x) ** 2 * np.arange(x.shape[0]))


@program(VECTOR)
def interpolation(xp, x):
    grid = np.linspace(-3.0, 3.0, 20)
    return xp.sum(xp.interp(x, grid, np.sin(grid)))


@program((SIDE,))
def spectrum(xp, x):
    return xp.sum(xp.abs(xp.fft.rfft(x)) ** 2 * np.arange(SIDE // 2 + 1))


# -- products --------------------------------------------------------------------------------------


@program((SIDE, 3))
def inverse_distances(xp, x):
    apart = x[:, None, :] - x[None, :, :]
    return xp.sum(1 / xp.sqrt(xp.sum(apart**2, axis=-1) + 1e-2))


@program((SIDE,), (SIDE,))
def gaussian_kernel(xp, x, y):
    return xp.sum(xp.exp(-((x[:, None] - y[None, :]) ** 2)))


@program((SIDE, 8), (8,))
def logistic_regression(xp, x, w):
    return xp.mean(xp.log1p(xp.exp(-(x @ w))))


@program(MATRIX, MATRIX)
def product_of_matrices(xp, x, y):
    return xp.sum(xp.tanh(x @ y))


@program((64, 30, 30), (64, 30, 30))
def products_of_stacks(xp, x, y):
    return xp.sum(xp.tanh(x @ y))


@program(MATRIX)
def covariance(xp, x):
    centred = x - xp.mean(x, axis=0)
    return xp.sum((centred.T @ centred / SIDE) ** 2)


@program(MATRIX, MATRIX)
def sum_over_three_indices(xp, x, y):
    return xp.einsum("ij,jk,ik->", x, y, x)


@program((SIDE, 64), (64, 64), (64, 64), (64, 64))
def attention(xp, x, query, key, value):
    scores = 0.01 * (x @ query) @ (x @ key).T
    e = xp.exp(scores - xp.max(scores, axis=1, keepdims=True))
    return xp.sum((e / xp.sum(e, axis=1, keepdims=True) @ (x @ value)) ** 2)


# -- linear algebra --------------------------------------------------------------------------------


@program(MATRIX, (SIDE,))
def system_of_equations(xp, x, b):
    return xp.sum(xp.linalg.solve(x @ x.T / SIDE + np.eye(SIDE), b) ** 2)


@program(MATRIX, (SIDE,))
def conjugate_gradients(xp, x, b):
    a = x @ x.T / SIDE + np.eye(SIDE)
    z, r, direction = 0.0 * b, b, b
    for _ in range(5):
        image = a @ direction
        step = (r @ r) / (direction @ image)
        z, before, r = z + step * direction, r, r - step * image
        direction = r + (r @ r) / (before @ before) * direction
    return xp.sum(z**2)


@program(MATRIX)
def log_determinant(xp, x):
    return xp.linalg.slogdet(x @ x.T / SIDE + np.eye(SIDE))[1]


@program(MATRIX)
def cholesky_factor(xp, x):
    factor = xp.linalg.cholesky(x @ x.T + SIDE * np.eye(SIDE))
    return xp.sum(xp.log(xp.diag(factor)))


@program(MATRIX)
def eigenvalues(xp, x):
    return xp.sum(xp.linalg.eigvalsh(x + x.T) ** 2)


@program(MATRIX)
def singular_values(xp, x):
    return xp.sum(xp.linalg.svd(x, compute_uv=False))
