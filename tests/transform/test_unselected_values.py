"""Cotangents of values that a minimum did not select, in the versions of functions that run."""

import re

import numpy as np
import pytest
from test_loop_order import weighted

import tapegrad as tg
from tapegrad.transform.generation import FASTER

POINTS = np.array([[0.3, 0.5], [0.6, -0.4], [0.2, 0.1], [0.6, -0.4]])


@tg.njit
def bowl(x, a, b):
    t = x - a
    u = t * t
    v = u * t
    w = 0.5 * u + b * v / 6.0 + b * b * u * u / 24.0
    return np.sqrt(1.0 + w * w)


@tg.njit
def golden_section(a, b, start, end):
    """The place and the value of the minimum: of all values, one is returned."""
    r = 0.6180339887498949
    x, y = end - r * (end - start), start + r * (end - start)
    at_x, at_y = bowl(x, a, b), bowl(y, a, b)
    while end - start > 0.2:
        if at_x < at_y:
            end, y, at_y = y, x, at_x
            x = end - r * (end - start)
            at_x = bowl(x, a, b)
        else:
            start, x, at_x = x, y, at_y
            y = start + r * (end - start)
            at_y = bowl(y, a, b)
    return (x, at_x) if at_x < at_y else (y, at_y)


@tg.njit
def both(a, b, start, end):
    place, value = golden_section(a, b, start, end)
    return place * value + place


@tg.njit
def largest_of_many(x, scale):
    """Long computations, of which the last loop passes on one."""
    best, steps = -np.inf, 0
    while steps < x.size:
        t = x[steps] * scale
        u = np.sin(t) + t * t
        v = u * np.exp(-u) - t / (2.0 + u * u)
        w = np.sqrt(1.0 + v * v) * u
        best = max(best, w * v + t)
        steps += 1
    return best


def what_runs(function, *args):
    return function.adjoint_source(*args).partition(FASTER)[2]


@tg.njit
def farthest_of_two(x, y, weight):
    return weight * max(np.exp(x), np.exp(y))


def test_products_with_0_and_1_are_selections():
    text = what_runs(weighted, POINTS, 1.0)
    assert re.search(r"least_2_bar\w* if \(least_1\w* < distance_3\w*\)", text)
    assert "* (1.0 if" not in text


def test_a_loop_ends_once_its_cotangent_is_0():
    text = what_runs(weighted, POINTS, 1.0)
    start = text.index("if runtime.matters(least_1_bar):")
    assert text[start:].index("for ") < text[start:].index("if not runtime.matters(least_1_bar):")
    assert "break" in text


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 1, 3, 0], [3, 1, 0, 2]])
@pytest.mark.parametrize("weight", [0.0, 0.7, np.inf, np.nan])
def test_the_nearest_alone_has_a_gradient(order, weight):
    points = POINTS[order]
    expected = np.zeros_like(points)
    place = order.index(2)
    expected[place] = weight * 2.0 * points[place]
    np.testing.assert_allclose(tg.grad(weighted)(points, weight), expected)


@pytest.mark.parametrize("weight", [0.0, 0.7, np.nan])
def test_equal_values_share_the_cotangent(weight):
    points = POINTS[[1, 0, 3]] * [[0.5], [1.0], [0.5]]
    expected = np.zeros_like(points)
    expected[[0, 2]] = weight * points[[0, 2]]
    np.testing.assert_allclose(tg.grad(weighted)(points, weight), expected)


@pytest.mark.parametrize("weight", [0.7, np.inf, np.nan])
def test_what_is_not_selected_receives_nothing(weight):
    found = tg.grad(farthest_of_two, argnums=(0, 1))(0.3, 0.5, weight)
    np.testing.assert_allclose(found, (0.0, weight * np.exp(0.5)))


def test_the_derivative_of_the_gradient_does_not_end_early():
    """Where a cotangent is 0, its tangent need not be."""
    found = tg.jvp(tg.grad(weighted), argnums=1)(POINTS, 0.0, 1.0)[1]
    expected = np.zeros_like(POINTS)
    expected[2] = 2.0 * POINTS[2]
    np.testing.assert_array_equal(found, expected)


def test_values_of_a_search_that_were_not_selected_are_skipped():
    text = what_runs(both, 0.3, 0.7, -1.0, 2.0)
    assert text.count("if runtime.matters(at_") == 2
    arguments, h = np.array([0.3, 0.7, -1.0, 2.0]), 1e-6
    found = tg.grad(both, argnums=(0, 1, 2, 3))(*arguments)
    steps = h * np.eye(4)
    expected = [(both(*(arguments + s)) - both(*(arguments - s))) / (2 * h) for s in steps]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_of_many_values_one_is_reversed(seed):
    x, h = np.random.default_rng(seed).normal(size=7), 1e-6
    assert "if runtime.matters(t_" in what_runs(largest_of_many, x, 1.2)
    found, scale = tg.grad(largest_of_many, argnums=(0, 1))(x, 1.2)
    steps = h * np.eye(7)
    expected = [
        (largest_of_many(x + s, 1.2) - largest_of_many(x - s, 1.2)) / (2 * h) for s in steps
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)
    difference = largest_of_many(x, 1.2 + h) - largest_of_many(x, 1.2 - h)
    assert scale == pytest.approx(difference / (2 * h), rel=1e-5)


def of_numbers(choose):
    @tg.njit
    def f(x, y):
        return choose(x[0, 0], y[0, 0]) ** 2 + choose(x[0, 1], y[0, 1]) ** 2

    return f


def of_elements(choose):
    @tg.njit
    def f(x, y):
        s = 0.0
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                s += choose(x[i, j], y[i, j]) ** 2
        return s

    return f


def of_a_constant_number_of_elements(choose):
    @tg.njit
    def f(x, y):
        s = 0.0
        for i in range(x.shape[0]):
            for j in range(2):
                s += choose(x[i, j], y[i, j]) ** 2
        return s

    return f


def of_arrays(choose):
    @tg.njit
    def f(x, y):
        return np.sum(choose(x, y) ** 2)

    return f


@pytest.mark.compiled
@pytest.mark.parametrize("choose", [np.maximum, np.fmax, np.minimum, np.fmin])
@pytest.mark.parametrize(
    "program", [of_numbers, of_elements, of_a_constant_number_of_elements, of_arrays]
)
def test_infinite_cotangents_do_not_reach_them(program, choose):
    """The square of an infinite number has an infinite derivative, and 0 times that is nan."""
    sign = 1.0 if choose in (np.maximum, np.fmax) else -1.0
    x = sign * np.array([[np.inf, 1.0], [2.0, 3.0]])
    y = sign * np.array([[1.0, np.inf], [3.0, 2.0]])
    by_x, by_y = tg.grad(program(choose), argnums=(0, 1))(x, y)
    has_one_row = program is of_numbers
    last = [0.0, 0.0] if has_one_row else [0.0, 6.0]
    np.testing.assert_array_equal(sign * by_x, [[np.inf, 0.0], last])
    np.testing.assert_array_equal(sign * by_y, [[0.0, np.inf], last[::-1]])
