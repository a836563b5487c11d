"""Arrays that loops and branches pass on, results of callees, and what is kept of them."""

import re

import numpy as np
import pytest
from check import Cases, called

import tapegrad as tg

A = np.array([0.3, 0.7, -0.4, 0.9])
M = np.array([[0.3, 0.5, 0.2], [0.6, -0.4, 0.9], [0.1, 0.8, -0.7]])
case = Cases()


# -- loops pass arrays on --------------------------------------------------------------------------


@tg.njit
def solved(x, steps):
    u = np.ones(x.size)
    for _ in range(steps):
        u = np.sin(u) * x + u
    return u


@called
def slope(u, a):
    return np.array([a * (u[1] - u[0]), u[0] * (1.0 - u[2]) - u[1], u[0] * u[1] - a * u[2]])


@case(A[:3], 0.7, 4, argnums=(0, 1), hvp=True)
def runge_kutta(u, a, steps):
    for _ in range(steps):
        k1 = slope(u, a)
        k2 = slope(u + 0.05 * k1, a)
        u = u + 0.1 * k2 + 0.01 * k1 * u
    return np.sum(u * u)


@case(A, 4, hvp=True)
def the_one_before(x, steps):
    before, now = x, 1.1 * x
    for _ in range(steps):
        before, now = now, 1.9 * now - before * before
    return np.sum(now) + np.sum(before * x)


@case(A, 5, hvp=True)
def three_go_round(x, steps):
    a, b, c = x * 1.0, x * 2.0, np.ones(x.size)
    for _ in range(steps):
        a, b, c = b, c, np.sin(a) + b * c
    return np.sum(a * b) + np.sum(c)


@case(A, 3, hvp=True)
def two_names_get_one_array(x, steps):
    a, b = x, x
    for _ in range(steps):
        c = a * b
        a, b = c, c
    return np.sum(a) + 2.0 * np.sum(b)


@case(A, 4, hvp=True)
def sizes_change(x, steps):
    u = x
    for _ in range(steps):
        u = np.concatenate((u[1:] * u[:-1], u))[: u.size + 1]
    return np.sum(u)


@case(A, 0)
@case(A, 1)
def few_iterations(x, steps):
    u = x
    for _ in range(steps):
        u = u * np.sin(u)
    return np.sum(u * x)


@case(A, 3, hvp=True)
def a_loop_in_a_loop(x, steps):
    u = x
    for _ in range(steps):
        v = u
        for k in range(3):
            v = v * 0.9 + u * (0.1 * k)
        u = v + x
    return np.sum(u * v)


@case(A, 3)
def filled_before_it_is_passed_on(x, steps):
    u = x
    for _ in range(steps):
        w = np.empty(u.size)
        for i in range(u.size):
            w[i] = u[i] * u[i - 1]
        w[1:] *= 2.0
        w += 1.5
        u = w
    return np.sum(u)


@case(A, 3)
def written_after_it_was_passed_on(x, steps):
    u = x * 1.0
    for k in range(steps):
        w = u * x
        u = w
        w[k] = u[k] * u[k]
        u[0] += w[k]
    return np.sum(u)


@case(A, 3)
def written_in_the_next_iteration(x, steps):
    u = x * 1.0
    for k in range(steps):
        u[k] *= x[k]
        w = np.sin(u)
        u = w
    return np.sum(u)


@case(A, 3)
def the_argument_is_written_after_no_iteration(x, steps):
    u = x
    for _ in range(steps - 3):
        u = u * 2.0
    u[0] = x[0] * x[1]
    return np.sum(u * x)


@case(A, 4)
def a_view_is_passed_on(x, steps):
    u = x * 1.0
    total = 0.0
    for _ in range(steps - 1):
        v = u * u
        u = v[1:]
        total += np.sum(u)
    return total


@case(A, 2, hvp=True)
def ever_smaller_views(x, steps):
    u = x
    for _ in range(steps):
        u = u[1:]
    return np.sum(u * u)


@case(M, 3, hvp=True)
def copies_of_transposes(m, steps):
    u = m
    for _ in range(steps):
        u = np.ascontiguousarray(u.T)
    return np.sum(u * u * m)


@case(M[::2, ::2], 2, hvp=True)
def a_view_of_an_argument(m, steps):
    u = m
    for _ in range(steps):
        u = u * 0.9
    return np.sum(u * u)


@case(M[:2], 2)
def matrices_that_grow(m, steps):
    u = m
    for _ in range(steps):
        v = u * u
        v[0, 0] = 0.0
        w = v * 2.0
        u = np.concatenate((w, w))
    return np.sum(np.abs(u) ** 2)


@case(M, 3, hvp=True)
def checkpointed(m, steps):
    u = m[0] * 1.0
    for _ in tg.checkpointed(range(steps)):
        u = solved(u, 2) * 0.5
    return np.sum(u)


@case(M, 3, hvp=True)
def matrices(m, steps):
    p = np.eye(3)
    for _ in range(steps):
        p = p @ m + 0.1 * m.T
    return np.sum(p * p)


@case(M.astype(np.float32), 3)
def single_precision(m, steps):
    p = m
    for _ in range(steps):
        p = p @ m
    return np.sum(p)


@case(A * (1.0 + 0.5j), 3)
def complex_numbers(z, steps):
    w = z
    for _ in range(steps):
        w = w * w + z
    return np.sum(np.abs(w) ** 2)


@case(np.asfortranarray(M), 3)
def columns_first(m, steps):
    p = m
    for _ in range(steps):
        p = np.sin(p) + m
    return np.sum(p * m)


@case(A, 0.2, argnums=(1,), hvp=True)
def the_start_is_no_input(x, a):
    u = x
    for _ in range(3):
        u = a * u * u
    return np.sum(u)


# -- branches pass arrays on -----------------------------------------------------------------------


@case(A, 6, hvp=True)
def accepted_or_not(x, steps):
    u, best, low = x, x, 1e9
    for k in range(steps):
        new = u + 0.3 * np.sin(u * (k + 1.0))
        if np.sum(new) < 3.0:
            u = new
        energy = np.sum(u * u)
        if energy < low:
            best, low = u, energy
    return np.sum(best * best * best) + np.sum(u)


@case(A, True, hvp=True)
@case(A, False, hvp=True)
def one_of_two(x, first):
    a, b = x * x, np.sin(x)
    c = a if first else b
    d = c * 2.0 if first else b
    return np.sum(c * d) + np.sum(a)


@case(A, True)
@case(A, False)
def the_chosen_one_is_written(x, first):
    a, b = x * x, np.sin(x)
    c = a if first else b
    c[0] = x[1]
    return np.sum(a * b) + np.sum(c)


@case(M, True, hvp=True)
@case(M, False, hvp=True)
def a_matrix_in_a_branch(m, is_squared):
    u = m
    if is_squared:
        u = m * m
    return np.sum(u * u)


@case(M, 9)
def rows_that_are_chosen(m, n):
    one, other = m[0], m[1] * 2.0
    total = 0.0
    for i in range(n):
        row = one if i % 2 == 0 else other
        total += row[i // 3] ** 2
    return total


@case(A, 5)
def left_early(x, steps):
    u = x
    for _ in range(steps):
        new = u * 1.3
        if np.sum(new) > 4.0:
            break
        u = new
    return np.sum(u * u)


@case(A)
def while_it_grows(x):
    u = x
    while np.sum(u) < 5.0:
        u = u * 1.2 + 0.1
    return np.sum(u * u)


# -- results of callees ----------------------------------------------------------------------------


@called
def halves(x):
    return x[:2] * 1.0, np.sin(x[2:])


@called
def shown_or_new(x, first):
    if first:
        return x
    return x * 2.0


@called
def twice(x):
    y = x * x
    return y, y


@called
def filled(x, n):
    y = np.zeros(n)
    for i in range(n):
        y[i] = x[i % x.size] * i
    return y


@called
def passed_on(x):
    return filled(x, 3)


@case(A, hvp=True)
def several_results(x):
    total = 0.0
    for _ in range(3):
        a, b = halves(x)
        total += np.sum(a * b)
        x = np.concatenate((a + b, b))
    return total


@case(A, True)
@case(A, False)
def results_that_may_be_arguments(x, first):
    y = x * 1.0
    z = shown_or_new(y, first)
    z[0] = x[1] * x[2]
    return np.sum(y * z)


@case(A)
def one_array_as_two_results(x):
    a, b = twice(x)
    a[0] = x[3]
    return np.sum(a * b * x)


@case(A, hvp=True)
def results_are_written(x):
    total = 0.0
    for k in range(3):
        y = filled(x, k + 3)
        y[1] *= y[2]
        y[0] = x[k]
        total += np.sum(y * y)
    return total


@case(A, hvp=True)
def results_of_loops(x):
    y = solved(x, 3)
    y[0] += 1.0
    return np.sum(solved(y, 2) * y)


@case(A, hvp=True)
def results_of_callees_of_callees(x):
    return np.sum(passed_on(x) ** 2) + np.sum(passed_on(np.sin(x)))


@case(A, hvp=True)
def results_are_not_used(x):
    total = 0.0
    for _ in range(2):
        y, _ = halves(x)
        total += y[0] * x[3]
    return total


@pytest.mark.parametrize("name", case)
def test_gradient(name):
    case.check(name)


# -- what is kept ----------------------------------------------------------------------------------


def kept(function, *args):
    """The names of the arrays that generated code keeps on the tape."""
    text = function.adjoint_source(*args).partition("# versions")[0]
    return re.findall(r"push_(?:array|elements)\(tape, top, (\w+),", text)


def test_cotangents_of_arrays_that_are_passed_on_are_not_kept():
    for function in (the_one_before, three_go_round, accepted_or_not, a_loop_in_a_loop):
        assert not [n for n in kept(function, A, 3) if n.endswith("_bar")]
    assert kept(runge_kutta, A[:3], 0.7, 3) == ["k"], "extents are kept as numbers"
    assert kept(written_in_the_next_iteration, A, 3) == ["w_1_bar", "u_2_bar"]


def test_a_choice_of_arrays_is_no_copy():
    """A copy for each element that is read would take the square of the time."""
    text = rows_that_are_chosen.adjoint_source(M, 9)
    assert "row_1_bar = other_1_bar" in text
    assert "arrays.add" not in text


def test_arrays_of_an_iteration_are_kept_as_they_are():
    @tg.njit
    def correlations(m, steps):
        total = 0.0
        for _ in range(steps):
            w = np.sin(m * total + m)
            total += np.linalg.det(w)
        return total

    assert kept(correlations, M, 3) == ["w_1"]
