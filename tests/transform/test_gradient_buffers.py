"""Gradients that are written to arrays of the caller."""

import pickle
from collections import namedtuple

import numba
import numpy as np
import pytest

import tapegrad as tg

RANDOM = np.random.default_rng(3)
X, Y = RANDOM.normal(size=(2, 7))
Pair = namedtuple("Pair", ["x", "n"])


@tg.njit
def weighted(x, y, k):
    s = 0.0
    for i in range(x.size - 1):
        s += k * (x[i + 1] - x[i] ** 2) ** 2 * y[i]
    return s


@tg.njit
def of_rows(p, w):
    return np.sum((p * p) @ w)


@tg.njit
def of_a_tuple(pair, scale):
    return np.sum(pair.x**2) * scale * pair.n


@tg.njit
def that_writes(x, y):
    for i in range(x.size):
        x[i] = x[i] * y[i]
    return np.sum(x * x)


def test_one_argument():
    expected = tg.grad(weighted)(X, Y, 2.0)
    buffer = np.full(7, np.nan)
    gradient = tg.grad(weighted, out=True)
    for found in (gradient(X, Y, 2.0, buffer), gradient(X, Y, 2.0, out=buffer)):
        assert np.array_equal(found, expected)
        assert np.shares_memory(found, buffer)
    assert np.array_equal(gradient(X, Y, 1.0, buffer), expected / 2.0)  # nothing is left of before
    value, found = tg.value_and_grad(weighted, out=True)(X, Y, 2.0, buffer)
    assert value == weighted(X, Y, 2.0)
    assert np.array_equal(found, expected)


def test_several_arguments():
    expected = tg.grad(weighted, argnums=(0, 2, 1))(X, Y, 2.0)
    one, two = np.full((2, 7), np.nan)
    found = tg.grad(weighted, argnums=(0, 2, 1), out=True)(X, Y, 2.0, (one, None, two))
    for some, other in zip(found, expected, strict=True):
        assert np.array_equal(some, other)
    assert np.array_equal(one, expected[0])
    assert np.array_equal(two, expected[2])


@tg.njit
def of_a_flat_view(x):
    return x.ravel()[1] ** 2 + np.sum(x.reshape(-1)[2:])


LAYOUTS = {"C": np.empty((3, 4)), "F": np.empty((4, 3)).T, "A": np.empty((6, 8))[::2, ::2]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    """The layout of a buffer is that of the gradient: C for arguments that are not contiguous."""
    p, w = LAYOUTS[layout], RANDOM.normal(size=4)
    p[...] = RANDOM.normal(size=(3, 4))
    gradient = tg.grad(of_rows, out=True)
    for other, buffer in (("C", np.empty((3, 4))), ("F", np.empty((4, 3)).T)):
        if (other == "F") == (layout == "F"):
            assert np.allclose(gradient(p, w, buffer), 2 * p * w)
        else:
            with pytest.raises(tg.TransformError, match="with the types of the gradient"):
                gradient(p, w, buffer)
    with pytest.raises(tg.TransformError, match="with the types of the gradient"):
        gradient(p, w, np.empty((6, 8))[::2, ::2])


def test_flat_views():
    x, buffer = np.ones((2, 3)), np.empty((2, 3))
    expected = tg.grad(of_a_flat_view)(x)
    assert np.array_equal(tg.grad(of_a_flat_view, out=True)(x, buffer), expected)
    with pytest.raises(tg.TransformError, match="with the types of the gradient"):
        tg.grad(of_a_flat_view, out=True)(x, np.empty((3, 2)).T)


def test_named_tuples():
    pair, buffer = Pair(X, 3), Pair(np.empty(7), 0)
    found = tg.grad(of_a_tuple, out=True)(pair, 2.0, buffer)
    assert np.allclose(found.x, 12.0 * X)
    assert np.allclose(buffer.x, 12.0 * X)


def test_functions_that_write():
    buffer = np.empty(7)
    tg.grad(that_writes, out=True)(X.copy(), Y, buffer)
    assert np.allclose(buffer, 2.0 * X * Y * Y)


def test_compiled_code():
    gradient = tg.grad(weighted, out=True)

    @numba.njit
    def descent(x, y, steps):
        buffer = np.empty(x.size)
        x = x.copy()
        for _ in range(steps):
            x -= 0.01 * gradient(x, y, 2.0, buffer)
        return x

    expected = X.copy()
    for _ in range(3):
        expected -= 0.01 * tg.grad(weighted)(expected, Y, 2.0)
    assert np.allclose(descent(X, Y, 3), expected, rtol=1e-13)


def test_pickling():
    gradient = pickle.loads(pickle.dumps(tg.grad(weighted, out=True)))
    assert np.array_equal(gradient(X, Y, 2.0, np.empty(7)), tg.grad(weighted)(X, Y, 2.0))


def test_checks(monkeypatch):
    monkeypatch.setenv("TAPEGRAD_VERIFY", "1")

    @tg.njit
    def cubes(x):
        return np.sum(x**3)

    buffer = np.empty(7)
    assert np.allclose(tg.grad(cubes, out=True)(X, buffer), 3.0 * X**2)


READONLY = np.empty(7)
READONLY.flags.writeable = False
ONE = np.empty(7)


@pytest.mark.parametrize(
    ("argnums", "buffer", "error", "message"),
    [
        (0, X, ValueError, "out shares elements with x; pass an array of its own"),
        (0, np.empty(6), ValueError, "out must have the shape of x"),
        (0, np.empty(7, int), TypeError, "out is of type array.int64.*the types of the gradient"),
        (0, np.empty(7, np.float32), TypeError, "out is of type array.float32"),
        (0, READONLY, TypeError, "an array that can be written to"),
        (0, (ONE,), TypeError, "out is of type UniTuple"),
        ((0, 1), ONE, TypeError, "it is a tuple with an array for each of the 2 arguments"),
        ((0, 1), (ONE,), TypeError, "it is a tuple with an array for each of the 2 arguments"),
        ((0, 1), (ONE, ONE), ValueError, r"out\[1\] shares elements with out\[0\]"),
        (2, None, TypeError, "with respect to numbers; call tg.grad without out"),
    ],
)
def test_bad_buffers(argnums, buffer, error, message):
    with pytest.raises(error, match=message):
        tg.grad(weighted, argnums=argnums, out=True)(X, Y, 2.0, buffer)


def test_derivatives_of_them_are_refused():
    gradient = tg.grad(weighted, out=True)
    with pytest.raises(tg.TransformError, match=r"differentiate tg\.grad without out"):
        tg.jacobian(gradient)(X, Y, 2.0, np.empty(7))

    @tg.njit
    def penalty(x, y):
        return np.sum(gradient(x, y, 2.0, np.empty(x.size)) ** 2)

    with pytest.raises(tg.TransformError, match=r"call tg\.grad without out"):
        tg.grad(penalty)(X, Y)
    with pytest.raises(TypeError, match=r"compiled with tg\.njit"):
        tg.value_and_grad(lambda x: tg.sum(x), out=True)


LARGE = RANDOM.normal(size=200_000)  # numba refers to it by its address


def test_arrays_that_are_not_arguments():
    @tg.njit
    def product(x):
        return np.sum(x * LARGE)

    x = np.ones(LARGE.size)
    assert np.array_equal(tg.grad(product, out=True)(x, np.empty_like(x)), LARGE)
    with pytest.raises(ValueError, match="out shares elements with LARGE"):
        tg.grad(product, out=True)(x, LARGE)

    @tg.njit
    def of_a_list(x, arrays):
        return np.sum(x * arrays[0])

    arrays = numba.typed.List([Y])
    with pytest.raises(tg.TransformError, match="cannot be compared with out"):
        tg.grad(of_a_list, out=True)(X, arrays, np.empty(7))


def test_parameters_named_out():
    @tg.njit
    def scaled(out, k=1.0):
        return np.sum(out * out) * k

    with pytest.raises(TypeError, match="has a parameter named out"):
        tg.grad(scaled, out=True)
