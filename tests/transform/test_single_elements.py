"""Reverse loops that visit the elements that were read, in the versions of functions that run."""

import re

import numpy as np
import pytest
from check import module
from test_unselected_values import what_runs

import tapegrad as tg

pytestmark = pytest.mark.texts


TEXT = """\
import numpy as np
import tapegrad as tg


@tg.njit
def {name}(centres, points{labels}):
    {total}
    for i in range(points.shape[0]):
        {start}
        for k in range({rows}):
            {distance} = 0.0
            for d in range(points.shape[1]):
                {distance} += (points[i, d] - centres[k, d]) ** 2
            {each}
        {end}
    return total
"""
DEFAULTS = {"total": "total = 0.0", "labels": "", "start": "", "rows": "centres.shape[0]"}
DEFAULTS |= {"distance": "distance", "each": "", "end": "total += least"}
# a work array, of which single elements are read
WORK = {"total": "total, distance = 0.0, np.empty(centres.shape[0])", "distance": "distance[k]"}


def program(name, **parts):
    return module(TEXT.format(name=name, **DEFAULTS | parts), name)


nearest = program("nearest", **WORK, end="total += distance[np.argmin(distance)]")
# the index is negative
from_the_end = program(
    "from_the_end",
    **WORK,
    end="nearest = np.argmin(distance) - distance.size\n        total += distance[nearest]",
)
# two elements are read
nearest_two = program(
    "nearest_two",
    **WORK,
    end="order = np.argsort(distance)\n"
    "        total += distance[order[0]] - 0.25 * distance[order[1]]",
)
# the loop does not set all elements: one that was read may be of an iteration before
fewer_each_time = program(
    "fewer_each_time",
    **WORK | {"total": "total, distance = 0.0, np.ones(centres.shape[0])"},
    rows="centres.shape[0] - i",
    end="total += distance[np.argmin(distance)]",
)
# the index is an argument
labelled = program(
    "labelled",
    **WORK,
    labels=", labels",
    end="label = labels[i]\n        total += distance[label]",
)
greatest_of_work_array = program("greatest_of_work_array", **WORK, end="total += np.max(distance)")
running_minimum = program(
    "running_minimum", start="least = np.inf", each="least = min(least, distance)"
)
running_maximum_after_the_first = program(
    "running_maximum_after_the_first",
    start="greatest = 0.0\n        for d in range(points.shape[1]):\n"
    "            greatest += (points[i, d] - centres[0, d]) ** 2",
    rows="1, centres.shape[0]",
    each="greatest = max(distance, greatest)",
    end="total += greatest",
)
replaced_in_a_branch = program(
    "replaced_in_a_branch",
    start="least = np.inf",
    each="if distance < least:\n                least = distance",
)
# all values of the running minimum are used
sum_of_minima = program(
    "sum_of_minima",
    start="least = 10.0",
    each="least = min(least, distance)\n            total += 0.5 * least",
)


@tg.njit
def least_of_arrays(centres, points):
    """The minimum of an array, whose elements may be equal."""
    total = 0.0
    for i in range(points.shape[0]):
        total += np.min(np.sum((points[i] - centres) ** 2, axis=1))
    return total


def distances(centres, points):
    return np.sum((points[:, None] - centres) ** 2, axis=2)


def pulled(weights, centres, points):
    """The gradient with respect to the centres, given weights of points and centres."""
    return 2.0 * np.einsum("ik,ikd->kd", weights, centres - points[:, None])


def shares(chosen):
    return chosen / chosen.sum(axis=1, keepdims=True)


def of_places(places, count):
    return np.eye(count)[places]


def weights_of(name, squares):
    """How much each distance counts."""
    count = squares.shape[1]
    order = np.argsort(squares, axis=1, kind="stable")
    if name in ("nearest", "from_the_end", "replaced_in_a_branch"):
        return of_places(order[:, 0], count)
    if name == "nearest_two":
        return of_places(order[:, 0], count) - 0.25 * of_places(order[:, 1], count)
    if name == "least_of_arrays":
        return shares(squares == squares.min(axis=1, keepdims=True))
    if name == "greatest_of_work_array":
        return shares(squares == squares.max(axis=1, keepdims=True))
    return running(squares, name)


def running(squares, name):
    """Two equal values share equally, the running one and the new one."""
    weights = np.zeros_like(squares)
    is_least = name != "running_maximum_after_the_first"
    for row, values in zip(weights, squares, strict=True):
        best = 10.0 if name == "sum_of_minima" else np.inf
        start = 0
        if not is_least:
            best, start, row[0] = values[0], 1, 1.0
        share = row.copy()
        for k in range(start, len(values)):
            if values[k] == best:
                share *= 0.5
                share[k] += 0.5
            elif bool(values[k] < best) is is_least:
                best = values[k]
                share = np.eye(len(values))[k]
            if name == "sum_of_minima":
                row += 0.5 * share
        row[:] = row + share if name == "sum_of_minima" else share
    return weights


PROGRAMS = [
    nearest,
    from_the_end,
    nearest_two,
    least_of_arrays,
    greatest_of_work_array,
    running_minimum,
    running_maximum_after_the_first,
    replaced_in_a_branch,
    sum_of_minima,
]


def draw(seed, ties):
    rng = np.random.default_rng(seed)
    points, centres = rng.normal(size=(6, 2)), rng.normal(size=(rng.integers(1, 8), 2))
    if ties:
        points, centres = np.round(points), np.round(centres)
    return centres, points


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_gradients(function, ties, seed):
    centres, points = draw(seed, ties)
    name = function.__name__
    if name == "nearest_two" and len(centres) < 2:
        centres = np.vstack([centres, centres + 1.0])
    squares = distances(centres, points)
    if name == "nearest_two" and ties:
        pytest.skip("which of equal distances come first is not defined")
    found = tg.grad(function)(centres, points)
    expected = pulled(weights_of(name, squares), centres, points)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_products_with_hessians(function):
    """Where a cotangent is 0, its tangent need not be."""
    centres, points = draw(5, ties=False)
    direction = np.random.default_rng(1).normal(size=centres.shape)
    found = tg.hvp(function)(centres, points, direction)
    weights = weights_of(function.__name__, distances(centres, points))
    np.testing.assert_allclose(found, 2.0 * weights.sum(axis=0)[:, None] * direction, rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_labels(seed):
    centres, points = draw(seed, ties=False)
    labels = np.random.default_rng(seed).integers(-len(centres), len(centres), len(points))
    expected = pulled(of_places(labels, len(centres)), centres, points)
    np.testing.assert_allclose(tg.grad(labelled)(centres, points, labels), expected, rtol=1e-13)


@pytest.mark.parametrize("seed", range(6))
def test_loops_over_some_elements(seed):
    centres, points = draw(seed, ties=False)
    centres = np.vstack([centres, centres + 0.3])[:7]
    h, steps = 1e-6, np.eye(centres.size).reshape(-1, *centres.shape)
    expected = [
        (fewer_each_time(centres + h * s, points) - fewer_each_time(centres - h * s, points))
        / (2 * h)
        for s in steps
    ]
    found = tg.grad(fewer_each_time)(centres, points)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("function", [least_of_arrays, greatest_of_work_array])
def test_extremes_that_are_not_finite(function, bad):
    """nan is both extremes; the others receive nothing."""
    centres, points = draw(3, ties=False)
    centres[1, 0] = bad
    found = tg.grad(function)(centres, points)
    if function is least_of_arrays and bad == np.inf:
        assert not found[1].any()
        assert found.any()
    else:
        assert not np.isfinite(found[1, 0])
        assert not np.delete(found, 1, axis=0).any()


def test_what_runs():
    visits_few = re.compile(r"range\(end(_\d+)? - 1, first")
    centres, points = draw(0, ties=False)
    labels = (np.zeros(len(points), int),)
    for function in (nearest, labelled, least_of_arrays, greatest_of_work_array):
        given = labels if function is labelled else ()
        assert visits_few.search(what_runs(function, centres, points, *given))
    for function in (nearest_two, from_the_end, fewer_each_time):
        assert not visits_few.search(what_runs(function, centres, points))
    for function in (running_minimum, running_maximum_after_the_first, replaced_in_a_branch):
        assert "range(last_k" in what_runs(function, centres, points)
    assert "range(last_k" not in what_runs(sum_of_minima, centres, points)
