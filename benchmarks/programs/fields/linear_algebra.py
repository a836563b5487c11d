"""Systems, factors, determinants and functions of matrices."""

import numpy as np

from .registry import program


def _draw_small(rng):
    return rng.standard_normal((500, 3, 3)) + 3 * np.eye(3), rng.standard_normal((500, 3))


@program(_draw_small)
def small_determinants(lib, matrices, x):
    """Densities of 500 normal distributions in space."""
    np = lib.np
    cov = matrices @ np.swapaxes(matrices, -1, -2) + 0.1 * np.eye(3)
    _, logdet = np.linalg.slogdet(cov)
    solved = np.linalg.solve(cov, x[..., None])[..., 0]
    return 0.5 * np.sum(logdet) + 0.5 * np.sum(x * solved)


def _draw_systems(rng):
    return rng.standard_normal((1000, 4, 4)) + 4 * np.eye(4), rng.standard_normal((1000, 4, 2))


@program(_draw_systems, argnums=(0, 1))
def small_systems(lib, a, b):
    """A thousand systems of four equations."""
    return lib.np.sum(lib.np.linalg.solve(a, b) ** 2)


def _draw_normal(rng):
    return 0.1 * rng.standard_normal((30, 30)), rng.standard_normal((200, 30))


@program(_draw_normal)
def normal_likelihood(lib, root, y):
    """Two hundred observations of a normal distribution in thirty dimensions."""
    np = lib.np
    cov = root @ root.T + np.eye(30)
    factor = np.linalg.cholesky(cov)
    z = lib.solve_triangular(factor, y.T, lower=True)
    return 0.5 * np.sum(z**2) + 200.0 * np.sum(np.log(np.diagonal(factor)))


def _draw_ridge(rng):
    x = rng.standard_normal((200, 10))
    y = x @ rng.standard_normal(10) + rng.standard_normal(200)
    return np.full(10, -1.0), x[:100], y[:100], x[100:], y[100:]


@program(_draw_ridge)
def ridge_validation(lib, log_ridge, x, y, x_test, y_test):
    """The error on other data of least squares with a penalty for each coefficient."""
    np = lib.np
    w = np.linalg.solve(x.T @ x + np.diag(np.exp(log_ridge)), x.T @ y)
    return np.mean((x_test @ w - y_test) ** 2)


def _draw_generator(rng):
    return rng.standard_normal((20, 20)) / 4, rng.standard_normal(20), rng.standard_normal(20)


@program(_draw_generator)
def matrix_exponential(lib, a, x, y):
    """By a series after scaling, and squarings."""
    np = lib.np
    scaled = a / 16.0
    term, total = np.eye(20), np.eye(20)
    for k in range(1, 13):
        term = term @ scaled / k
        total = total + term
    for _ in range(4):
        total = total @ total
    return y @ total @ x


def _draw_square(rng):
    return (rng.standard_normal((500, 500)),)


@program(_draw_square)
def trace_loop(lib, a):
    """The diagonal, element by element."""
    s = 0.0
    for i in range(500):
        s += lib.np.tanh(a[i, i])
    return s


def _draw_equilibrium(rng):
    return 0.5 * rng.standard_normal((50, 50)) / np.sqrt(50), rng.standard_normal(50)


@program(_draw_equilibrium, argnums=(0, 1))
def fixed_point(lib, w, b):
    """An equilibrium of a network by a hundred iterations."""
    np = lib.np
    x = lib.fori_loop(0, 100, lambda i, x: np.tanh(w @ x + b), np.zeros(50))
    return np.sum(x**2)
