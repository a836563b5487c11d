"""Array programs of many kinds, recorded, beside JAX: ``python -m benchmarks.array_programs``.

They are what one writes in a few lines of NumPy: normalisations, stencils, distances, reductions,
networks, linear algebra. Times are of value and gradient, in one thread, medians of calls in turn.
Values and gradients are compared before.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import tapegrad as tg

from .report import duration, show_table
from .timing import elapsed, medians_in_turn

SIDE = 300  # of matrices; vectors have as many elements as they
REPETITIONS = 15
SAMPLE_SECONDS = 0.01

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


# -- measuring -------------------------------------------------------------------------------------


def compare(name: str, jax: Any) -> tuple[list[str], float]:
    """Return the row of a program, and the ratio of the times."""
    function, shapes = PROGRAMS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    given = [*map(jax.numpy.asarray, arrays)]
    numbers = tuple(range(len(arrays)))
    recorded = tg.value_and_grad(tg.jit(partial(function, tg)), numbers)
    own = partial(recorded, *arrays)
    jitted = jax.jit(jax.value_and_grad(partial(function, jax.numpy), numbers))
    other = lambda: jax.block_until_ready(jitted(*given))  # noqa: E731
    found: list[Any] = []
    firsts = [elapsed(lambda f=f: found.append(f())) for f in (own, other)]
    (value, gradients), (expected, slopes) = found
    np.testing.assert_allclose(value, expected, rtol=1e-8, atol=1e-8)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-7)
    own()
    count = max(1, round(SAMPLE_SECONDS / elapsed(own)))
    runs = [lambda f=f: [f() for _ in range(count)] for f in (own, other)]
    times = [seconds / count for seconds in medians_in_turn(runs, REPETITIONS)]
    ratio = times[0] / times[1]
    return [name, *map(duration, times), f"{ratio:.2f}", *map(duration, firsts)], ratio


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all programs, or those that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.array_programs", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="program", help="only these: part of a name")
    chosen = parser.parse_args(arguments).names or [""]
    import jax

    names = [name for name in PROGRAMS if any(part in name for part in chosen)]
    rows, ratios = [], []
    for name in names:
        print("...", name, file=sys.stderr, flush=True)
        row, ratio = compare(name, jax)
        rows.append(row)
        ratios.append(ratio)
    columns = ("program", "tg.jit", "JAX (jit)", "ratio", "first call", "that of JAX")
    show_table("Array programs: value and gradient", columns, rows)
    mean = statistics.geometric_mean(ratios)
    print(f"geometric mean {mean:.2f}; behind JAX in {sum(r > 1 for r in ratios)} of {len(rows)}")


if __name__ == "__main__":
    main()
