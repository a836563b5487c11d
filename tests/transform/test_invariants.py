"""Indices that do not change in a loop are computed before it: inner loops are vectorized then."""

import copy
import re

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.testing import check_grads

pytestmark = pytest.mark.texts


@tg.njit
def stencil(x, w):
    total = 0.0
    for i in range(x.shape[0] - 2):
        for j in range(x.shape[1] - 2):
            s = 0.0
            for k in range(3):
                s += w[k, 0] * x[i + k, j] + w[k, 1] * x[i + k, j + 1] + w[k, 2] * x[i + k, j + 2]
            total += np.tanh(s)
    return total


@tg.njit
def diagonals(x):
    total = 0.0
    for i in range(x.shape[0] - 2):
        for j in range(x.shape[1] - 2):
            up, down = i + 1, i + 2
            total += np.tanh(x[i, j] + 2.0 * x[up, j + 1] * x[down, j + 2] + x[down, j])
    return total


@tg.njit
def last_index(x):
    n = x.shape[0] - 3
    k = 2
    total = 0.0
    for i in range(n):
        total += x[k, i]  # of the iteration before
        for j in range(n - 1):
            k = i + 1
            total += x[k, j] * x[k, j + 1] * k
    return total * x[k, 0]


@tg.njit
def in_a_branch(x):
    n = x.shape[0] - 3
    total = 0.0
    for i in range(n):
        for j in range(n):
            k = i + 1
            if x[i, j] > 0.0:
                k = i + 2
            total += np.sin(x[k, j] * x[i, j])
    return total


@pytest.mark.parametrize("columns", [3, 4, 12, 300])
def test_gradients(columns):
    x = np.random.default_rng(0).normal(size=(6, columns))
    w = np.random.default_rng(1).normal(size=(3, 3))
    check_grads(stencil, [x, w])
    check_grads(diagonals, [x])


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_names_that_keep_their_values(n):
    x = np.random.default_rng(2).normal(size=(n + 3, n + 3))
    check_grads(last_index, [x])
    check_grads(in_a_branch, [x])


def test_loops_over_rows_beside_each_other_are_vectorized():
    source = tg.grad(diagonals).source((numba.types.Array(numba.float64, 2, "C"),))
    faster = source.split("# versions that run faster")[1]
    assert "runtime.block" in faster
    assert "vector_math.tanh" in faster


@tg.njit
def gathered(x, rows, order):
    total = 0.0
    for i in range(rows.size):
        for j in range(x.shape[1]):
            k = rows[i]
            m = order[0, i]
            total += x[k, j] * np.sin(x[m, j])
    return total


@tg.njit
def rows_that_change(x, rows):
    total = 0.0
    for i in range(rows.size - 1):
        for j in range(x.shape[1]):
            k = rows[i]
            rows[i] = rows[i + 1]
            total += np.sin(x[k, j])
    return total


@tg.njit
def rows_under_another_name(x, rows):
    total = 0.0
    same = rows[1:]
    for i in range(1, rows.size):
        for j in range(x.shape[1]):
            k = rows[i]
            same[i - 1] = rows[0]
            total += np.sin(x[k, j])
    return total


@tg.njit
def rows_that_are_checked(x, rows, count):
    total = 0.0
    for i in range(count):
        for j in range(x.shape[1]):
            if i >= rows.size:
                break
            k = rows[i]
            total += np.sin(x[k, j])
    return total


@numba.njit
def moves(state, i):
    state[0][i] = (state[0][i] + 1) % 3


@tg.njit
def rows_that_a_helper_gets_in_a_tuple(x, rows):
    total = 0.0
    state = (rows, np.zeros(2))
    for i in range(rows.size):
        for j in range(x.shape[1]):
            k = rows[i]
            moves(state, i)
            total += np.sin(x[k, j])
    return total


ROWS = np.array([2, 0, -1, 1, 2])


@pytest.mark.compiled
def test_indices_that_are_read():
    x = np.cos(np.arange(12.0)).reshape(3, 4)
    for f, args in (
        (gathered, (ROWS, np.array([ROWS[::-1], ROWS]))),
        (rows_that_change, (ROWS,)),
        (rows_under_another_name, (ROWS,)),
        (rows_that_are_checked, (ROWS, 9)),
        (rows_that_a_helper_gets_in_a_tuple, (ROWS,)),
    ):
        expected = tg.grad(f.py_func)(x, *copy.deepcopy(args))
        found = tg.grad(f)(x, *copy.deepcopy(args))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    none = np.ones((3, 0))  # nothing is read where no loop runs
    assert tg.grad(gathered)(none, ROWS, np.zeros((1, 0), np.int64)).shape == (3, 0)


def test_what_is_read_before_loops():
    kinds = [numba.types.Array(numba.types.float64, 2, "C")]
    kinds += [numba.types.Array(numba.types.int64, ndim, "C") for ndim in (1, 2)]
    assert re.search(r"rows\[i\w*\] if 0 < ", tg.grad(gathered).source(tuple(kinds)))
    helped = rows_that_a_helper_gets_in_a_tuple
    for f in (rows_that_change, rows_under_another_name, helped):
        assert " if 0 < " not in tg.grad(f).source(tuple(kinds[:2]))
    count = (*kinds[:2], numba.types.int64)
    assert " if 0 < " not in tg.grad(rows_that_are_checked).source(count)
