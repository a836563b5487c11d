"""Array expressions with elements that integers or truths select, which become loops."""

import numpy as np
import pytest
from check import Cases

import tapegrad as tg
from tapegrad.transform.generation import FASTER

A = np.array([0.3, 0.7, -0.4, 0.9])
B = np.array([1.3, 0.5, 0.8, 2.1])
M = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
ONE = np.array([0.7])
EMPTY = np.zeros(0)
SOME = np.array([2, 0, -1, 2, 1, -3])  # repeated and negative ones
NONE = np.zeros(0, np.int64)
TABLE = np.array([0.2, -0.5, 1.5, 0.8])
ORDER = np.array([3, 1, 0, 2])
TRUE = np.array([True, False, False, True])
case = Cases()


# -- integers --------------------------------------------------------------------------------------


@case(A, SOME, hvp=True)
@case(A, NONE)
@case(EMPTY, NONE)
@case(A[::-2], np.array([1, -2, 0]))
@case(A, SOME[::2])
def taken(x, i):
    return np.sum(x[i] * x[i] * np.sin(x[i]))


@case(A, SOME, hvp=True)
def taken_at_computed_places(x, i):
    between = x[i - 1] * x[-i] + x[np.abs(i) % 3 + 1]
    return np.sum(between * between)


@case(A, np.array([1.0, 4.0, 9.0, 16.0]), np.array([2.0, 12.0, 4.5]), argnums=(0, 1, 2), hvp=True)
@case(A, np.array([1.0, 4.0, 9.0, 16.0]), ONE * 5.0, argnums=(0, 1, 2))
def interpolated(y, knots, x):
    i = np.maximum(np.searchsorted(knots[:-1], x), 1)
    weight = (x - knots[i - 1]) / (knots[i] - knots[i - 1])
    found = (1.0 - weight) * y[i - 1] + weight * y[i]
    return np.sum(found * found)


@case(A, B, np.array([2]), argnums=(0, 1))
@case(A, ONE, np.array([-1]), argnums=(0, 1))
def taken_once_and_broadcast(x, y, i):
    return np.sum(x[i] * y + y / x[i] * x)


@case(A, B, SOME, argnums=(0, 1))
def taken_from_what_is_computed(x, y, i):
    first = (x * y)[i] * np.sin(y - x)[i]
    return np.sum(first * (i * 2 - 1)[i % 3]) + np.sum(np.where(x > 0.4, x, y)[i - 1])


@case(A)
def with_arrays_from_outside(x):
    y = 2.0 * x
    y[TRUE] = x[1]
    return np.sum(TABLE[ORDER] * y[ORDER] * x) + np.sum(x[TRUE]) + np.sum(x[ORDER])


@case(A, np.array([0, 2, -1]))
def taken_from_parts(x, i):
    inner, back = x[1:], x[::-1]
    return np.sum(inner[i] * back[i]) + np.sum(x[:-1][i] * inner)


@case(A, np.array([1, 3, 0, 0]))
def taken_before_they_change(x, i):
    y = x.copy()
    one, two = y[i], y[i] * x
    y[1] = 5.0 * x[0]
    y[:] = y[i] * x
    y *= y[i]
    y[i[0]] += y[2]
    return np.sum(one * two * y)


@case(A, np.array([1, 3, 0, 0]), 3)
def taken_in_loops(x, i, steps):
    y = x * x
    for k in range(steps):
        y = y[i] * x + 0.5 * y
        i = (i + k) % 4
    return np.sum(y)


@case(A, ORDER)
def taken_from_what_was_taken(x, i):
    again = i[i]
    return np.sum(x[i[i]] * x[again + 0]) + np.sum(again * x)


@case(A, np.array([7, -2, 5, 3]))
def integers_that_are_computed(x, k):
    left = k * 2 - np.minimum(k, 4)
    left[0] = 9
    doubled = left + left
    return np.sum(x * doubled) + doubled[1] * x[0]


# -- truths ----------------------------------------------------------------------------------------


@case(A, B, argnums=(0, 1), hvp=True)
@case(EMPTY, EMPTY, argnums=(0, 1))
@case(A[::-1], ONE, argnums=(0, 1))
def chosen(x, y):
    z = np.where(x > 0.5, x * y, np.sin(x))
    return np.sum(z * z + np.where(z < x * y, 2.0, z))


@case(A, B, 0.4, argnums=(0, 1, 2))
def chosen_numbers(x, y, s):
    z = np.where(x >= s, s, x) * np.where(y > 0.6, y, 3)
    return np.sum(np.where((z > 0.1) & (x < 0.8) | (y >= 2.0), z * x, s * y))


@case(M, np.array([0.4, -0.2, 0.6]), argnums=(0, 1))
def chosen_in_matrices(m, v):
    return np.sum(np.where(m > v, m * v, m - v).sum(axis=1) * m[:, 0])


@case(A, B, argnums=(0, 1))
def chosen_by_truths_with_a_name(x, y):
    low = x < y
    both = low & (x > 0.0)
    z = np.where(low, x, y) * np.where(both, y, 1.0)
    return np.sum(z) + np.sum(both) * x[0]


@case(A, B, argnums=(0, 1), hvp=True)
@case(EMPTY, EMPTY, argnums=(0, 1))
def stored_where_true(x, y):
    z = x * y
    z[z > 0.5] = 0.5
    z[x < 0.0] = 2
    z[y < 0.6] = x[-1] if x.size else 0.0
    return np.sum(z * z * y)


@case(M, 0.35, argnums=(0, 1))
def stored_where_a_matrix_is(m, s):
    flat = m.ravel() * 2.0
    flat[flat > s] = s * s
    return np.sum(flat * m.ravel())


@case(A)
def stored_where_another_part_is_true(x):
    z = x * x
    tail = z[1:]
    tail[z[:-1] > 0.31] = 0.1
    tail[tail > 0.5] = x[0]
    back = z[::-1]
    z[back < 0.2] = x[1]
    return np.sum(z * x)


@case(A, np.array([1, 0, 3, 2]))
def stored_where_what_is_taken_is_true(x, i):
    z = x * x
    z[z[i] > 0.3] = x[2]
    z[x[i] > 0.8] *= 3.0
    return np.sum(z * x)


@case(A, 3)
def stored_in_loops(x, steps):
    z = x.copy()
    for k in range(steps):
        z = z * x + 0.3
        z[z > 0.5] = 0.5 - x[k]
        outside = (z < 0.0) | (z > 1.0)
        z[outside] = 0.25
    return np.sum(z)


@case(A, B, argnums=(0, 1))
def taken_where_true(x, y):
    low = x < y
    some = x[low] * y[low]
    z = x + y
    z[low] = some * some
    return np.sum(z) + np.sum(some)


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


def test_what_is_not_chosen_has_no_gradient():
    @tg.njit
    def f(x):
        return np.sum(np.where(x > 0.0, np.sqrt(x), 3.0 * x))

    np.testing.assert_array_equal(tg.grad(f)(np.array([0.0, 4.0, -1.0])), [3.0, 0.25, 3.0])


def test_no_array_is_made_for_what_is_taken_or_compared():
    @tg.njit
    def f(x, i):
        z = np.where(x[i - 1] > 0.2, x[i] * x[i - 1], 0.0)
        return np.sum(z)

    text = f.adjoint_source(A, ORDER).partition(FASTER)[0]
    assert "np.empty(" not in text and "arrays." not in text


def test_masks_of_another_length_are_numbas_business():
    @tg.njit
    def f(x, mask):
        z = x * 1.0
        z[mask] = 0.0
        return np.sum(z * z)

    gradient = tg.grad(f)(A, np.array([True, False]))
    np.testing.assert_array_equal(gradient, [0.0, *(2.0 * A[1:])])


def test_an_array_is_not_assumed_to_be_as_long_as_what_selects_from_it():
    @tg.njit
    def f(x, i, steps):
        y = np.zeros(i.size)
        for _ in range(steps):
            y = 0.5 * y + x[i]
        return np.sum(y)

    assert "x.shape[0] ==" not in f.adjoint_source(A, NONE, 2)
    np.testing.assert_allclose(tg.grad(f)(A, np.array([3, 0]), 2), [1.5, 0.0, 0.0, 1.5])
