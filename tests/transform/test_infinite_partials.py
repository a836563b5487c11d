"""A cotangent of 0 meets an infinite derivative: nan where the value is used, 0 where it is not."""

import numpy as np
import pytest
from check import check

import tapegrad as tg

# -- values that are used, with partials of 0 between them and the result ------------------------


def cosine_of_root(x):
    return np.cos(np.sqrt(x[0])) + x[1]


def hyperbolic_cosine_of_root(x):
    return np.cosh(np.sqrt(x[0])) + x[1]


def chebyshev(x):
    return np.cos(3.0 * np.arccos(1.0 - x[0])) + x[1]


def logarithm_of_square(x):
    return np.log1p(np.tanh(np.sqrt(x[0])) ** 2) + x[1]


def arc_tangent_of_inverse(x):
    return np.arctan(1.0 / x)[0] + x[1]


def exponential_of_logarithm(x):
    return np.exp(np.log(x[0])) + x[1]


def gaussian_of_norm(x):
    r = np.sqrt(x[0] ** 2 + x[0] ** 4)
    return np.exp(-(r**2)) + x[1]


def gaussian_of_sum(x):
    return np.exp(-(np.sqrt(np.sum(x[:1] * x[:1])) ** 2)) + x[1]


def cube_root_of_cube(x):
    return np.cbrt(x[0] ** 3) + x[1]


def deviation_of_one(x):
    return np.sqrt(x[0] * x[0] - x[0] * x[0]) + x[1]


def elements(x):
    return np.sum(np.cos(np.sqrt(x)))


def selected(x):
    return np.sum(np.where(x >= 0.0, np.cos(np.sqrt(x)), x))


def stored(x):
    y = np.empty(x.size)
    for i in range(x.size):
        y[i] = np.sqrt(x[i])
    s = 0.0
    for i in range(x.size):
        s += np.cos(y[i])
    return s


def product_of_stored(x):
    y = np.empty(x.size)
    for i in range(x.size):
        y[i] = np.sqrt(x[i])
    return np.dot(y, y)


def in_a_branch(x):
    y = np.sqrt(x[0])
    s = x[1]
    if s > 0.0:
        s += np.cos(y)
    return s


def in_a_loop(x):
    k = np.sqrt(x[0])
    s = x[1]
    for i in range(3):
        s += np.cos(k * i)
    return s


@tg.njit
def root_of_element(x, n):
    t = np.sqrt(x[n])
    for _ in range(3):
        t = t * 1.1
    return t


@tg.njit
def sum_of_cosines(y, n):
    s = 0.0
    for i in range(n):
        s += np.cos(y[i])
    return s


def from_a_callee(x):
    return np.cos(root_of_element(x, 0)) + x[1]


def through_a_callee(x):
    y = np.empty(x.size)
    for i in range(x.size):
        y[i] = np.sqrt(x[i])
    return sum_of_cosines(y, x.size)


USED = [
    cosine_of_root, hyperbolic_cosine_of_root, chebyshev, logarithm_of_square,
    arc_tangent_of_inverse, exponential_of_logarithm, gaussian_of_norm, gaussian_of_sum,
    cube_root_of_cube, deviation_of_one, elements, selected, stored, product_of_stored, in_a_branch,
    in_a_loop, from_a_callee, through_a_callee,
]  # fmt: skip
RECORDED = [f for f in USED[:12] if f is not selected]  # without loops, branches and callees
AT = np.array([0.0, 1.0])


def tangents(f):
    return np.array([tg.jvp(f)(AT, direction)[1] for direction in np.eye(2)])


@pytest.mark.parametrize("f", USED, ids=lambda f: f.__name__)
def test_the_derivative_by_a_value_that_is_used_is_nan(f):
    compiled = tg.njit(f)
    gradient = tg.grad(compiled)(AT)
    assert np.isnan(gradient[0])
    assert np.isfinite(gradient[1])
    np.testing.assert_allclose(tangents(compiled), gradient)


def stored_like(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = np.sqrt(x[i])
    return sum_of_cosines(y, x.size)


def stored_by_a_callee(x):
    y = np.empty_like(x)
    roots_of_elements(x, y)
    return np.sum(np.cos(y))


@tg.njit
def roots_of_elements(x, y):
    for i in range(x.size):
        y[i] = np.sqrt(x[i])


def selected_of_cosines(x):
    return np.sum(np.where(x >= 0.0, np.cos(np.sqrt(x)), np.zeros_like(x)))


@pytest.mark.parametrize(
    "f", [*USED, stored_like, stored_by_a_callee, selected_of_cosines], ids=lambda f: f.__name__
)
def test_marks_are_not_lost_in_float32(f):
    gradient = tg.grad(tg.njit(f))(AT.astype(np.float32))
    assert np.isnan(gradient[0])
    assert np.isfinite(gradient[1])


@pytest.mark.parametrize("f", RECORDED, ids=lambda f: f.__name__)
def test_recorded_functions_have_the_same_derivatives(f):
    with np.errstate(divide="ignore", invalid="ignore"):
        gradient = tg.grad(tg.jit(f))(AT)
        np.testing.assert_allclose(gradient, tg.grad(f)(AT))
    np.testing.assert_allclose(gradient, tg.grad(tg.njit(f))(AT))
    assert np.isnan(tg.jvp(tg.jit(f))(AT, np.array([1.0, 0.0]))[1])


@pytest.mark.parametrize("f", [cosine_of_root, gaussian_of_sum, stored], ids=lambda f: f.__name__)
def test_the_second_derivative_is_nan(f):
    hessian = tg.hessian(tg.njit(f))(AT)
    assert np.isnan(hessian[0, 0])


# -- values that are not used ----------------------------------------------------------------------


def not_selected(x):
    return np.sum(np.where(x > 0.0, np.cos(np.sqrt(x)) * np.sqrt(x), 2.0 * x))


def branch_not_taken(x):
    y = np.sqrt(x[0])
    s = x[1]
    if s < 0.0:
        s += (y - 1.0) ** 2
    return s


def diagonal_not_read(x):
    d = np.empty((2, 2))
    for i in range(2):
        for j in range(2):
            d[i, j] = np.sqrt((x[i] - x[j]) ** 2)
    s = 0.0
    for i in range(2):
        for j in range(2):
            if i != j:
                s += (d[i, j] - 1.0) ** 2  # 0
    return s


def times_zero(x):
    y = np.empty(2)
    for i in range(2):
        y[i] = np.sqrt(x[i])
    return np.dot(y, np.array([0.0, 1.0]))


def early_return(x):
    y = root_of_element(x, 0)
    if x[0] == 0.0:
        return x[1]
    return np.cos(y) + x[1]


def callee_does_not_read(x):
    y = np.empty(2)
    for i in range(2):
        y[1 - i] = np.sqrt(x[i])
    return sum_of_cosines(y, 1)


UNUSED = {
    not_selected: [2.0, 0.5 * (np.cos(1.0) - np.sin(1.0))],
    branch_not_taken: [0.0, 1.0],
    diagonal_not_read: [0.0, 0.0],
    times_zero: [0.0, 0.5],
    early_return: [0.0, 1.0],
    callee_does_not_read: [0.0, -0.5 * np.sin(1.0)],
}


def numbers_of_arrays(x):
    r = np.sqrt(x)
    m = np.array([[r[0], x[1]], [x[1], x[0] * x[1] + 2.0]])
    s = np.sort(m[1])[0] * r[1] + np.sort(r[::-1])[0] * r[0] + np.sort(m[:, 0])[1] * r[1]
    return s + np.percentile(r, 70) + np.linalg.eigvalsh(m)[1]


def numbers_of_functions_that_run_in_python(x):
    m = np.array([[np.sqrt(x[0]), x[1]], [x[1], x[0] * x[1] + 2.0]])
    return tg.logsumexp(m[0]) * tg.linalg.det(m)


@pytest.mark.parametrize("f", [numbers_of_arrays, numbers_of_functions_that_run_in_python])
def test_code_that_marks_elements_is_differentiated(f):
    check(tg.njit(f), np.array([0.4, 0.7]), hvp=True)


@pytest.mark.parametrize("f", UNUSED, ids=lambda f: f.__name__)
def test_a_value_that_is_not_used_passes_nothing_on(f):
    np.testing.assert_allclose(tg.grad(tg.njit(f))(AT), UNUSED[f], atol=1e-290)


def not_selected_of_roots(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = np.sqrt(x[i])
    return np.sum(np.where(x > 0.0, y, 2.0 * x))


@pytest.mark.parametrize("f", [branch_not_taken, times_zero, early_return, callee_does_not_read])
def test_a_value_of_float32_that_is_not_used_passes_nothing_on(f):
    gradient = tg.grad(tg.njit(f))(AT.astype(np.float32))
    np.testing.assert_allclose(gradient, UNUSED[f], 1e-6)
    gradient = tg.grad(tg.njit(not_selected_of_roots))(AT.astype(np.float32))
    np.testing.assert_allclose(gradient, [2.0, 0.5])


def test_a_tangent_of_zero_that_does_not_depend_on_the_direction_stays_zero():
    @tg.njit
    def f(x):
        return np.sqrt(x[0] ** 2) + np.sqrt(x[1] - x[0]) * x[1]

    assert tg.jvp(f)(AT, np.array([0.0, 1.0]))[1] == 1.5
    assert np.isnan(tg.jvp(f)(AT, np.array([1.0, 0.0]))[1])
    assert tg.jvp(f)(AT + 1.0, np.zeros(2))[1] == 0.0
    assert np.isnan(tg.jvp(f)(np.ones(2), np.ones(2))[1])  # as the gradient, inf - inf


def test_the_tangent_of_a_sum_that_has_other_uses_shows_no_mark():
    @tg.njit
    def f(x):
        s = 0.0
        for i in range(x.size):
            s += x[i] * x[i]
        return s + np.log(1.0 + s)

    assert tg.jvp(f)(np.zeros(2), np.ones(2)) == (0.0, 0.0)


def test_what_a_minimum_does_not_choose_does_not_move_it():
    @tg.njit
    def f(x):
        return np.sqrt(min(x[0], x[1])) + x[1]

    np.testing.assert_array_equal(tg.grad(f)(AT), [np.inf, 1.0])
    np.testing.assert_array_equal(tangents(f), [np.inf, 1.0])


@pytest.mark.parametrize("mode", [tg.grad, lambda f: lambda x: tg.jvp(f)(x, np.ones(2))[1]])
def test_modes_that_differ_in_what_is_finite_are_reported(mode, monkeypatch):
    """A rule of the user's that takes the limit, of a function whose other mode does not."""

    @tg.njit(verify=True)
    def f(x):
        return np.cos(np.sqrt(x[0])) + x[1]

    @f.defvjp
    def f_vjp(x, z, g):
        return (g * np.array([-0.5, 1.0]),)

    @f.defjvp
    def f_jvp(x, x_dot):
        return -np.sin(np.sqrt(x[0])) * (0.5 / np.sqrt(x))[0] * x_dot[0] + x_dot[1]

    with pytest.raises(tg.VerificationError, match="nan"):
        mode(f)(AT)
