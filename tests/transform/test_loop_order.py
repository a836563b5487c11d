"""Loops whose iterations are independent, and elements of arrays that are read repeatedly."""

import numba
import numpy as np
import pytest
from check import Cases

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9])
M = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9]])
case = Cases()


# -- every iteration has its own elements ----------------------------------------------------------


@case(A, A[::-1].copy(), 5, argnums=(0, 1), hvp=True)
def states_beside_each_other(x, y, steps):
    x, y = x.copy(), y.copy()
    for _ in range(steps):
        for i in range(x.size):
            slope = x[i] - y[i] * y[i]
            x[i] += 0.1 * np.sin(y[i])
            y[i] = y[i] + 0.1 * slope * x[i]
    return np.sum(x * y)


@case(A)
def one_element_several_times(x):
    y = np.ones(x.size)
    for i in range(x.size):
        y[i] *= x[i]
        y[i] = y[i] * y[i] + x[i]
        y[i] -= np.exp(y[i])
    return np.sum(y)


@case(M, 3)
def rows_beside_each_other(m, steps):
    z = m.copy()
    for _ in range(steps):
        for i in range(z.shape[0]):
            z[i, 0] = z[i, 1] * z[i, 2]
            z[i, 2] = np.cos(z[i, 0]) + m[0, 1]
    return np.sum(z)


@case(M, 3)
def columns_beside_each_other(m, steps):
    z = m.copy()
    for _ in range(steps):
        for j in range(z.shape[1]):
            z[0, j] = z[1, j] * z[0, j]
            z[1, j] = np.cos(z[0, j])
    return np.sum(z)


@case(A, M)
def rows_that_are_overwritten(x, m):
    z = np.zeros((2, 4))
    for i in range(2):
        z[i] = x
        z[i, 1] = z[i, 1] * m[i, 0]
    return np.sum(z * z)


@case(A)
def an_element_of_another_iteration(x):
    y = x.copy()
    for i in range(1, x.size):
        y[i] = y[i] * y[i - 1] + x[i]
    return np.sum(y * y)


@case(M)
def the_index_on_two_axes(m):
    z = m.copy()
    for i in range(2):
        z[i, 0] = z[0, i] * z[1, i] + m[i, 2]
    return np.sum(z * z)


@case(A)
def two_names_of_an_array(x):
    y = x.copy()
    z = y[::-1]
    for i in range(4):
        y[i] = z[i] * x[i]
    return np.sum(y * y)


@case(np.concatenate([A, A + 0.5]), 4)
def negative_indices_reach_the_same_elements(x, n):
    y = np.zeros(n)
    for i in range(-n, n):
        y[i] = 2.0 * x[i + n] ** 2
    return np.sum(y * A)


@case(np.concatenate([A, A + 0.5]), 4, -4)
def an_unknown_start(x, n, low):
    y = np.zeros(n)
    for i in range(low, n):
        y[i] = 2.0 * x[i + n] ** 2
    return np.sum(y * A)


@case(A, 3, -1, -1)
@case(A, 0, 4, 2)
@case(A, 1, 4, 1)
def any_range(x, low, high, step):
    y = x.copy()
    for _ in range(3):
        for i in range(low, high, step):
            y[i] = np.sin(y[i]) * x[i]
    return np.sum(y)


@case(A)
def every_second_element(x):
    y = x.copy()
    for _ in range(3):
        for i in range(1, x.size, 2):
            y[i] = np.exp(y[i]) * y[i] * x[i - 1]
    return np.sum(y)


@case(A, hvp=True)
def a_negative_start(x):
    y = 1.0
    for i in range(-2, 4):
        y = y * x[i] + x[0]
    return y


@case(A, 3, hvp=True)
def terms_of_sums(x, k):
    total, product = x[0], 0.0
    for j in range(k):
        inner = 0.5 * j
        for i in range(x.size):
            inner += x[i] * x[(i + j) % 4]
            inner -= np.sin(x[i])
        product = product * inner + inner
    return total * product


# -- loops whose results may be unused -------------------------------------------------------------


@case(M, np.array([0.2, 0.5, 0.1]), argnums=(0, 1), hvp=True)
def least_distance(points, place):
    best = np.inf
    for i in range(points.shape[0]):
        distance = 0.0
        for j in range(points.shape[1]):
            distance += (points[i, j] - place[j]) ** 2
        best = min(best, distance)
    return best


@case(M, 1.5, argnums=(0, 1))
def greatest_product(points, scale):
    best = 0.0
    for i in range(points.shape[0]):
        product, power = 1.0, scale
        for j in range(points.shape[1]):
            product = product * points[i, j] + power
            power *= scale
        if product + power > best:
            best = product + power
    return best


@case(M, 0.4, argnums=(0, 1))
def chosen_among_loops(points, limit):
    total = 0.0
    for i in range(points.shape[0]):
        one, two = 0.0, 1.0
        for j in range(points.shape[1]):
            if points[i, j] > limit:
                one += np.exp(points[i, j] * limit)
            two *= points[i, j] + limit
        total += max(one, two) * (one if i == 0 else limit)
    return total


# -- elements that are read repeatedly -------------------------------------------------------------


@case(A)
def written_in_between(x):
    y = x.copy()
    before = y[1] * y[1]
    y[1] = 3.0 * y[1]
    return before * y[1] + y[1] ** 2


@case(A)
def written_through_a_view(x):
    y = x.copy()
    z = y[1:]
    before = y[2] * y[2]
    z[1] = y[0] * before
    return before * y[2]


@case(A)
def written_in_place(x):
    y = x.copy()
    before = y[2]
    y *= x
    between = y[2]
    y += x
    return before * between * y[2]


@case(A)
def filled(x):
    y = x.copy()
    before = y[2]
    y.fill(x[0])
    between = y[2]
    y[:] = x[1]
    return before * between * y[2]


@numba.njit
def doubled(x):
    x[2] *= 2.0


@case(A)
def written_by_a_helper(x):
    y = x.copy()
    before = y[2]
    doubled(y)
    return before * before * y[2]


@case(A)
def written_by_functions_that_return_it(x):
    w = np.zeros((2, 2))
    before = w[0, 0]
    np.dot(np.ones((2, 2)), np.ones((2, 2)), w)
    v = np.array([np.nan, 1.0])
    is_nan = np.isnan(v[0])
    np.nan_to_num(v, False)
    return (w[0, 0] + before + v[0]) * x[0] + is_nan * x[1]


@case(A, 1)
@case(A, 3)
def written_on_one_path(x, k):
    y = x.copy()
    before = y[2]
    if k > 2:
        y[k - 1] = x[0]
    return before * y[2]


@case(A)
def written_in_the_last_iteration(x):
    y = x.copy()
    total = y[2]
    for i in range(3):
        total += y[2] * x[i]
        y[2] = np.sin(y[2])
    return total * y[2]


@case(A)
def written_after_the_loop_began(x):
    y = x.copy()
    total = y[0]
    k = 0
    while y[0] < 5.0 and k < 4:
        total *= y[0]
        y[0] = y[0] + x[k]
        k += 1
    return total


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


@tg.njit
def oscillators(x, y, steps):
    for _ in range(steps):
        for i in range(x.size):
            x[i] += 0.1 * y[i]
            y[i] -= 0.1 * x[i] * x[i]
    return x[0]


def test_reverse_loops_ascend_where_iterations_are_independent():
    text = oscillators.adjoint_source(A, A.copy(), 3)
    assert text.count("for i_1 in range(t_1):") == 2
    assert text.count("= x[i_1]") == 1, "the element is read again after it is written"


def test_elements_are_read_once():
    @tg.njit
    def f(x, steps):
        for _ in range(steps):
            for i in range(x.size):
                x[i] = x[i] * (x[i] - 2.0 * x[i] * x[i])
        return np.sum(x)

    assert "runtime.row(tape, top + trips" not in f.adjoint_source(A, 3)


@tg.njit
def least_logarithm(x):
    best = np.inf
    for i in range(x.shape[0]):
        term = 0.0
        for j in range(x.shape[1]):
            term += np.log(x[i, j]) ** 2
        best = min(best, term)
    return best


def test_infinite_derivatives_of_results_that_are_not_used():
    found = tg.grad(least_logarithm)(np.array([[0.0, 2.0], [0.5, 2.0]]))
    np.testing.assert_allclose(found, [[0.0, 0.0], [4.0 * np.log(0.5), np.log(2.0)]])
    text = least_logarithm.adjoint_source(np.ones((2, 2)))
    assert "if runtime.matters(term" in text


@tg.njit
def weighted(points, weight):
    least = 1e300
    for i in range(points.shape[0]):
        distance = 0.0
        for j in range(points.shape[1]):
            distance += points[i, j] ** 2
        least = min(least, distance)
    return weight * least


@tg.njit
def weighted_by_a_branch(points, weight):
    least = 1e300
    for i in range(points.shape[0]):
        distance = 0.0
        for j in range(points.shape[1]):
            distance += points[i, j] ** 2
        if distance < least:
            least = distance
    return weight * least


def test_the_same_minimum_by_a_branch():
    for weight in (0.0, 0.7):
        for derivative in (tg.grad, tg.hessian):
            found, expected = (derivative(f)(M, weight) for f in (weighted_by_a_branch, weighted))
            np.testing.assert_allclose(found, expected)


def test_cotangents_that_are_not_a_number_are_passed_on():
    assert np.isnan(tg.grad(weighted)(M, np.nan)[0]).all()


def test_a_weight_of_zero_has_a_derivative():
    """The cotangents of the running minimum are 0 then, but not their tangents."""
    found = tg.jvp(tg.grad(weighted), argnums=1)(M, 0.0, 1.0)[1]
    nearest = np.argmin(np.sum(M**2, axis=1))
    expected = np.zeros_like(M)
    expected[nearest] = 2.0 * M[nearest]
    np.testing.assert_array_equal(found, expected)
    for function in (weighted, weighted_by_a_branch):
        text = function.adjoint_source(M, 0.0)
        assert "if runtime.matters(least" in text, "rows before the nearest are not reversed"


# -- recurrences ----------------------------------------------------------------------------------


@case(0.3, 3.1, 6, hvp=True, argnums=(0, 1))
def logistic(x, r, n):
    for _ in range(n):
        x = r * x * (1.0 - x)
    return x


@case(0.3, A, hvp=True, argnums=(0, 1))
def horner(x, a):
    y = 0.0
    for i in range(a.size):
        y = y * x + a[i]
    return y


@case(0.3, A, hvp=True, argnums=(0, 1))
def a_step_that_is_kept(x, a):
    y = np.zeros(a.size)
    for i in range(a.size):
        step = x * x * a[i]
        y[i] = step
        x = x - step / 4.0
    return np.sum(y) * x


@case(0.3, A, hvp=True, argnums=(0, 1))
def a_step_that_a_branch_reads(x, a):
    s = 0.0
    for i in range(a.size):
        step = x * (a[i] - x)
        if step > 0.1:
            s = s + step
        x = x + step * 0.5
    return x * s


@case(0.3, A, hvp=True, argnums=(0, 1))
def a_factor_that_another_statement_makes_of_the_state(x, a):
    for i in range(a.size):
        w = np.sin(x) if x > 0.2 else x * 2.0
        x = x * a[i] * w - x**2 + 1.0
    return x


@case(0.3, 4, hvp=True)
def the_exit_reads_the_state(x, n):
    k = 0
    while x * x < 3.0 and k < n:
        x = x * x + x
        k += 1
    return x


@case(0.25, A, hvp=True, argnums=(0, 1))
def numbers_named_like_slopes(x_slope, x_rest):
    for i in range(x_rest.size):
        x_slope_dot = x_slope * x_rest[i]
        x_slope = x_slope_dot * (1.0 - x_slope)
    return x_slope


def test_the_slope_of_a_recurrence_comes_first():
    cases = [(logistic, (0.3, 3.1, 6)), (horner, (0.3, A)), (the_exit_reads_the_state, (0.3, 4))]
    for function, args in cases:
        assert "_slope * " in function.tangent_source(*args)
    for function in (a_step_that_is_kept, a_step_that_a_branch_reads):
        assert "_slope" not in function.tangent_source(0.3, A), "its tangent is read elsewhere"


@tg.njit
def rooted(x, r, n):
    for _ in range(n):
        x = np.sqrt(r * x)
    return x


def test_a_tangent_of_zero_stays_zero_in_a_recurrence():
    assert tg.jvp(rooted)(0.0, 2.0, 3, 0.0) == (0.0, 0.0)


def test_recurrences_of_single_precision_stay_so():
    x, r, one = np.float32(0.3), np.float32(3.1), np.float32(1.0)
    value, slope = tg.jvp(logistic)(x, r, 6, one)
    exact = tg.jvp(logistic)(float(x), float(r), 6, 1.0)
    np.testing.assert_allclose((value, slope), exact, rtol=1e-4)


@tg.njit
def residuals(a, x, d):
    y = np.empty(a.shape[0])
    for i in range(a.shape[0]):
        s = 0.0
        for j in range(a.shape[1]):
            s += a[i, j] * x[j]
        y[i] = s
    total = 0.0
    for i in range(a.shape[0]):
        total += (y[i] - d[i]) ** 2
    return total


def test_cotangents_of_zero_have_tangents():
    """At the solution of a least squares problem all cotangents are 0, but not the Hessian."""
    x = np.array([0.5, 0.25, 2.0])
    expected = 2.0 * M.T @ M
    given = M, x, M @ x
    assert "runtime.matters" in residuals.adjoint_source(*given, argnums=1)
    np.testing.assert_array_equal(tg.grad(residuals, 1)(*given), np.zeros(3))
    np.testing.assert_allclose(tg.hessian(residuals, 1)(*given), expected)
    np.testing.assert_allclose(tg.hvp(residuals, 1)(*given, np.ones(3)), expected.sum(axis=1))

    gradient = tg.grad(residuals, 1)

    @tg.njit
    def slope(a, x, d):
        return np.sum(gradient(a, x, d) * np.arange(3.0))

    np.testing.assert_allclose(tg.grad(slope, 1)(*given), expected @ np.arange(3.0))
