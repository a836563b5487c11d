"""Recorded functions that add up at indices, count, and look values up in sorted arrays."""

import numpy as np
import pytest
from interpreted import assert_equal, interpret, interpret_derivatives, is_compiled

import tapegrad as tg

rng = np.random.default_rng(0)
I = rng.integers(0, 7, 20)  # noqa: E741
J = rng.integers(-3, 3, 20)
W = rng.normal(size=20)
POINTS = np.array([-1.0, -0.4, 0.0, 0.3, 1.1])
HEIGHTS = np.array([2.0, -1.0, 0.5, 3.0, 1.0])
SEARCHED = np.array([-2.0, -1.0, -0.5, 0.0, 0.1, 0.3, 1.0, 1.1, 4.0])


def added(weights, index):
    z = tg.zeros(8)
    np.add.at(z, index, weights)
    np.add.at(z, (index + 1,), 2.0)
    return z


def added_to_a_copy(weights, index):
    z = tg.as_tensor(np.ones((8, 3))).copy()
    np.add.at(z, (index, [0, 2] * 10), weights * weights)
    return z * weights[0]


def added_to_rows(weights, index):
    z = tg.zeros((8, 2))
    np.add.at(z, index, weights[:, None])
    z[0] = 3.0
    np.add.at(z[1:], 2, weights[:2])
    return z


def added_at_known_places(weights, index):
    z = tg.zeros(6)
    np.add.at(z, J, weights)
    np.add.at(z, slice(1, 3), weights[3])
    return z * index[0]


def added_in_a_loop(weights, index):
    def step(state, _):
        z = tg.zeros(7)
        np.add.at(z, index, weights * state[I])
        return 0.1 + 0.5 * z, None

    return tg.scan(step, tg.ones(7), None, length=3)[0]


def added_complex(weights, index):
    z = tg.zeros(8, dtype=np.complex128)
    np.add.at(z, index, np.exp(1j * weights))
    return np.abs(z[:7])


def added_to_a_single(weights, index):
    z = tg.zeros(7, dtype=np.float32)
    np.add.at(z, index, weights)
    return z


def grouped(weights, index):
    count = np.bincount(index, minlength=9)
    mean = np.bincount(index, weights, minlength=9) / (count + 1e-3)
    return np.bincount(index, weights=(weights - mean[index]) ** 2, minlength=9)


def counted(weights, index):
    return np.bincount(I, weights, 7) + weights[0] * np.bincount(index + 2)[:7]


def counted_singles(weights, index):
    return np.bincount(index, weights.astype(np.float32)) * weights[0]


PROGRAMS = (
    *(added, added_to_a_copy, added_to_rows, added_at_known_places, added_in_a_loop),
    *(added_complex, added_to_a_single, grouped, counted, counted_singles),
)


def interpolated(x, points, heights):
    return np.interp(x, points, heights) * x


def interpolated_with_ends(x, points, heights):
    return np.interp(x, points, heights, left=x[0], right=7.0)


def interpolated_in_a_table(x, points, heights):
    return np.interp(x[4], points, heights) + tg.interp(x[5:7], points, heights)


def searched(x, points, heights):
    return heights[np.searchsorted(points[:-1], x)] * x


def searched_on_the_right(x, points, heights):
    return heights[np.searchsorted(points[1:], x, side="right")] * x


SEARCHES = (
    *(interpolated, interpolated_with_ends, interpolated_in_a_table),
    *(searched, searched_on_the_right),
)


def weighted(f):
    def total(*args):
        found = f(*args)
        return tg.sum(found * np.cos(np.arange(found.size)).reshape(found.shape))

    return total


def check(f, args, argnums, tolerance=1e-12):
    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(*args)), jitted.inspect(*args)
    assert_equal(jitted(*args), f(*map(tg.tensor, args)), tolerance)
    expected = tg.grad(weighted(f), argnums)(*args)
    assert_equal(tg.grad(tg.jit(weighted(f)), argnums)(*args), expected, tolerance)


@pytest.mark.parametrize("f", PROGRAMS)
def test_scatter(f, monkeypatch):
    interpret_derivatives(monkeypatch)
    is_single = "single" in f.__name__
    check(f, (W, I), 0, 1e-5 if is_single else 1e-12)


@pytest.mark.parametrize("f", SEARCHES)
def test_searches(f, monkeypatch):
    interpret_derivatives(monkeypatch)
    check(f, (SEARCHED, POINTS, HEIGHTS), (0, 1, 2))


@pytest.mark.compiled
@pytest.mark.parametrize("f", [added, added_in_a_loop, grouped, interpolated])
def test_machine_code(f):
    if f in SEARCHES:
        check(f, (SEARCHED, POINTS, HEIGHTS), (0, 1, 2))
    else:
        check(f, (W, I), 0)


def test_against_numpy(monkeypatch):
    interpret(monkeypatch)
    expected = np.zeros(8)
    np.add.at(expected, I, W)
    np.add.at(expected, I + 1, 2.0)
    assert_equal(tg.jit(added)(W, I), expected)
    found = tg.jit(np.interp)(SEARCHED, POINTS, HEIGHTS)
    assert_equal(found, np.interp(SEARCHED, POINTS, HEIGHTS))
    assert_equal(tg.jit(lambda i, w: np.bincount(i, w, 9))(I, W), np.bincount(I, W, 9))
    found = tg.jit(lambda i: np.bincount(i))(I)
    assert found.dtype == np.int64
    assert_equal(found, np.bincount(I))


@pytest.mark.parametrize("least", [0, 12])
def test_other_numbers_of_bins(least, monkeypatch):
    interpret(monkeypatch)
    jitted = tg.jit(lambda i, w: np.bincount(i, w, least))
    for index in (I, I + 1, np.zeros_like(I), I + 20, I):
        assert_equal(jitted(index, W), np.bincount(index, W, least))


@pytest.mark.parametrize("call", ["first", "later"])
def test_negative_numbers_are_not_counted(call, monkeypatch):
    interpret(monkeypatch)
    jitted = tg.jit(lambda i, w: np.bincount(i, w, 12))
    if call == "later":
        jitted(I, W)
    with pytest.raises(ValueError, match="negative"):
        jitted(I - 1, W)


def test_places_are_checked(monkeypatch):
    interpret(monkeypatch)
    jitted = tg.jit(added)
    jitted(W, I)
    with pytest.raises(IndexError, match="out of bounds"):
        jitted(W, I + 8)


def test_a_copy_of_an_array_from_outside_is_the_functions_own(monkeypatch):
    interpret(monkeypatch)
    given = tg.as_tensor(np.ones(3))

    def f(x):
        z, y = given.clone(), np.copy(given)
        z[1] = x
        y[0] += x
        return z + y

    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(2.0))
    for x in (2.0, 3.0):
        assert_equal(jitted(x), np.array([2.0 + x, 1.0 + x, 2.0]))
    assert_equal(given, np.ones(3))


@pytest.mark.compiled
def test_what_is_copied_may_require_grad_later():
    given = tg.tensor([1.0, 2.0])
    jitted = tg.jit(lambda x: tg.sum(given.clone() * x))
    x = tg.tensor([3.0, 4.0])
    jitted(x)
    given.requires_grad_()
    jitted(x).backward()
    assert_equal(given.grad, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [3, 9])
def test_tables_that_are_known(count, dtype, monkeypatch):
    interpret(monkeypatch)
    x = SEARCHED[:count].astype(dtype)

    def f(x):
        return np.interp(x, POINTS, HEIGHTS)

    jitted = tg.jit(f)
    assert is_compiled(jitted.inspect(x))
    assert_equal(jitted(x), f(x))
    assert_equal(tg.vmap(f)(x), f(x))


def test_edges_of_another_precision(monkeypatch):
    interpret(monkeypatch)
    jitted = tg.jit(lambda x: x * np.digitize(x, POINTS))
    x = SEARCHED.astype(np.float32)
    assert is_compiled(jitted.inspect(x))
    assert_equal(jitted(x), x * np.digitize(x, POINTS))
