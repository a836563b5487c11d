"""Subscripts that are names: tuples with arrays, slices, None; positions found by a condition."""

import numpy as np
import pytest
from check import Cases

import tapegrad as tg
from tapegrad.transform.errors import TransformError

A = np.array([0.3, 0.7, -0.4, 1.1])
B = np.array([0.5, -0.2, 0.9, 0.4])
K = np.array([2, 0, 3, 1])
M = np.linspace(0.1, 0.9, 12).reshape(3, 4)
case = Cases()


@tg.njit
def positive(y):
    return np.nonzero(y > 0)


@tg.njit
def all_but_the_first(k):
    return (k[1:],)


# -- reads ----------------------------------------------------------------------------------------


@case(A, K)
def array_in_a_tuple(x, k):
    p = (k,)
    z = x[p]
    return (z * z).sum()


@case(M, K)
def array_and_number(m, k):
    p = (k[1:3] % 3, 1)
    z = m[p]
    return (z * z).sum()


@case(A, B)
def truth_values(x, y):
    p = (y > 0,)
    z = x[p]
    return (z * z).sum()


@case(M, (np.array([0, 2]), 1))
def tuple_that_is_an_argument(m, p):
    z = m[p]
    return np.sum(z * z)


@case(A, B)
def tuple_that_a_helper_returns(x, y):
    z = x[positive(y)]
    return np.sum(z * z)


@case(A, K)
def tuple_of_a_part_that_a_helper_returns(x, k):
    z = x[all_but_the_first(k)]
    return np.sum(z * z)


@case(M)
def slices_and_new_axes(m):
    p = (slice(None), None, 1)
    z = m[p]
    return (z * z).sum() * m[0, 0]


@case(A, K)
def positions_that_are_written_afterwards(x, k):
    k = k.copy()
    p = (k,)
    z = x[p]
    k[0] = 1
    k[1] = 3
    return (z * z * np.arange(1.0, 5.0)).sum()


@case(M, K)
def positions_that_are_written_in_a_loop(m, k):
    s = 0.0
    q = k[:2].copy() % 3
    for i in range(2):
        p = (q, i)
        z = m[p]
        s += (z * z).sum() * (i + 1)
        q[0] = i
        q[1] = 1 - i
    return s


@case(A, B)
def positions_of_the_extremes(x, y):
    w = x * 1.0
    w[np.nanargmax(y)] *= x[1]
    w[np.nanargmin(y)] = x[2] * y[0]
    return (w * w).sum() + x[np.nanargmax(y)] * x[0]


# -- writes ---------------------------------------------------------------------------------------


@case(A, B)
def changed_where_a_condition_holds(x, y):
    w = x * 1.0
    w[np.where(y > 0)] *= 2.0
    return (w * w).sum()


@case(A, B)
def changed_where_a_helper_says(x, y):
    w = x * 1.0
    w[positive(y)] *= 2.0
    return (w * w).sum()


@case(A, K)
def changed_by_a_number(x, k):
    p = (k[:2],)
    w = x * 1.0
    w[p] *= x[0]
    return (w * w).sum()


@case(A, K)
def set_to_a_number(x, k):
    p = (k[:3],)
    w = x * 1.0
    w[p] = x[0] * x[1]
    return (w * w).sum()


@case(A)
def set_to_nothing(x):
    p = np.where(x > 0.5)
    x[p] = 0.0
    return np.sum(x * x)


@case(A, B, 1)
@case(A, B, 0)
def chosen_in_a_branch(x, y, n):
    w = x * y
    p = np.where(y > 0) if n > 0 else np.where(y < 0)
    w[p] *= 2.0
    w[p] = w[p] * x[p]
    return (w * w).sum()


@case(A, B)
def changed_in_a_loop(x, y):
    p = np.nonzero(y > 0)
    w = x * y
    for _ in range(3):
        w[p] = np.sin(w[p]) + x[p] * y[p]
    return (w * w).sum()


@case(A, B)
def both_forms(x, y):
    w = x * y
    w[np.where(y > 0)[0]] -= x[np.where(y > 0)]
    w[np.nonzero(y < 0)] = 0.0
    return (w * w).sum()


@case(A)
def slice_with_a_name(x):
    s = slice(1, 3)
    w = x * 1.0
    w[s] = x[0] * x[1]
    return (w * w).sum()


@case(M)
def slice_and_number(m):
    p = (slice(0, 2), 1)
    w = m * 1.0
    w[p] = m[0, 0] * m[1, 1]
    w[p] *= m[0, 0]
    w[p] += m[2, :2]
    return (w * w).sum()


@case(M)
def ellipsis_and_number(m):
    p = (..., 1)
    w = m * 1.0
    w[p] = m[0, 0]
    w[..., 2] = m[0, 1]
    return (w * w).sum()


# -- tuples of numbers, which are subscripted themselves ------------------------------------------


@case(M, 3)
def items_of_the_subscript(m, n):
    p = (n - 2, 0)
    return m[p] * m[p[1], p[0]]


@case(M)
def items_of_the_subscript_of_a_store(m):
    w = m.copy()
    p = (1, 2)
    i, j = p
    w[p] = m[p[0], 0] * m[i, j]
    return (w * w).sum()


@case(M, 3)
def made_of_items_in_a_branch(m, n):
    s = 0.0
    for i in range(n):
        p = (i, (i * 2) % 3)
        q = (p[1], p[0]) if m[p] > 0.3 else p
        s += m[q] * m[p]
    return s


@case(M, 2)
def made_of_its_own_items_in_a_loop(m, n):
    w = m * 1.0
    p = (0, 1)
    for k in range(n):
        w[p] = m[p] * w[0, 1]
        p = (k, p[0])
    return (w * w).sum()


@case(M)
def from_a_table(m):
    s = 0.0
    for p in ((0, 1), (1, 2), (2, 0)):
        s += m[p] ** 2 * m[p[1], p[0]]
    return s


@pytest.mark.parametrize("name", case)
def test_derivatives(name):
    case.check(name)


@tg.njit
def resampled(x, k):
    np.random.seed(3)
    s = 0.0
    for _ in range(3):
        z = x[np.random.choice(k, 3)] * x[np.random.permutation(k)][:3]
        s += z.mean() ** 2
    return s


def test_positions_that_are_drawn():
    """The same positions in every call: the difference is of the compiled function itself."""
    k, h = np.arange(4), 1e-5
    expected = [(resampled(A + h * e, k) - resampled(A - h * e, k)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(tg.grad(resampled)(A, k), expected, rtol=1e-8, atol=1e-10)
    value, slope = tg.jvp(resampled)(A, k, B)
    np.testing.assert_allclose(slope, np.dot(expected, B), rtol=1e-8)
    assert value == resampled(A, k)


@tg.njit
def permuted(x):
    return np.random.permutation(x)[0]


def test_elements_that_are_drawn_are_refused():
    with pytest.raises(TransformError, match=r"permutation.*x\[np.random.permutation\(x.size\)\]"):
        tg.grad(permuted)(A)
