"""Cotangents of values that a minimum did not select, in the versions of functions that run."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.transform.base import FASTER

POINTS = np.array([[0.3, 0.5], [0.6, -0.4], [0.2, 0.1], [0.6, -0.4]])


@tg.njit
def nearest(points, weight):
    least = np.inf
    for i in range(points.shape[0]):
        distance = 0.0
        for j in range(points.shape[1]):
            distance += points[i, j] ** 2
        least = min(least, distance)
    return weight * least


def what_runs(function, *args):
    return function.adjoint_source(*args).partition(FASTER)[2]


@tg.njit
def farthest_of_two(x, y, weight):
    return weight * max(np.exp(x), np.exp(y))


def test_products_with_0_and_1_are_selections():
    text = what_runs(nearest, POINTS, 1.0)
    assert "least_2_bar if (least_1 < distance_3)" in text
    assert "* (1.0 if" not in text


def test_a_loop_ends_once_its_cotangent_is_0():
    text = what_runs(nearest, POINTS, 1.0)
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
    np.testing.assert_allclose(tg.grad(nearest)(points, weight), expected)


@pytest.mark.parametrize("weight", [0.0, 0.7, np.nan])
def test_equal_values_share_the_cotangent(weight):
    points = POINTS[[1, 0, 3]] * [[0.5], [1.0], [0.5]]
    expected = np.zeros_like(points)
    expected[[0, 2]] = weight * points[[0, 2]]
    np.testing.assert_allclose(tg.grad(nearest)(points, weight), expected)


@pytest.mark.parametrize("weight", [0.7, np.inf, np.nan])
def test_what_is_not_selected_receives_nothing(weight):
    found = tg.grad(farthest_of_two, argnums=(0, 1))(0.3, 0.5, weight)
    np.testing.assert_allclose(found, (0.0, weight * np.exp(0.5)))


def test_the_derivative_of_the_gradient_does_not_end_early():
    """Where a cotangent is 0, its tangent need not be."""
    found = tg.jvp(tg.grad(nearest), argnums=1)(POINTS, 0.0, 1.0)[1]
    expected = np.zeros_like(POINTS)
    expected[2] = 2.0 * POINTS[2]
    np.testing.assert_array_equal(found, expected)
