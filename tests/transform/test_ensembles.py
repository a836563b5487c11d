"""`vmap` of compiled functions and of their derivatives: a compiled loop over the items."""

import collections
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.transform.errors import TransformError

RNG = np.random.default_rng(0)
X, Y = RNG.uniform(0.2, 0.9, size=(2, 5))
M = RNG.uniform(0.2, 0.9, size=(5, 3))
Pair = collections.namedtuple("Pair", "value vector")


@tg.njit
def decay(x, k, steps):
    total = 0.0
    for _ in range(steps):
        x -= 0.1 * k * np.sin(x)
        total += x * x
    return total


@tg.njit
def search(x, limit):
    """A number of steps that differs between the items."""
    steps = 0
    while x < limit:
        x = x * 1.3 + 0.01
        steps += 1
    return x, steps, x > 2.0


@tg.njit
def scaled(row, w):
    return Pair(np.sum(row * w), row * row[0])


FACTOR = 2.0


@tg.njit
def times_factor(x):
    return FACTOR * x


def one_by_one(f, *items):
    """The results of calls for each item, as lists for each part of the result."""
    return [f(*item) for item in zip(*items, strict=True)]


class TestResults:
    def test_numbers(self):
        found = tg.vmap(decay, (0, 0, None))(X, Y, 7)
        np.testing.assert_array_equal(found, one_by_one(lambda x, k: decay(x, k, 7), X, Y))

    def test_types_of_numbers(self):
        found = tg.vmap(search, (0, None))(X, 1.5)
        expected = one_by_one(lambda x: search(x, 1.5), X)
        for part, values in zip(found, zip(*expected, strict=True), strict=True):
            np.testing.assert_array_equal(part, values)
        assert [part.dtype for part in found] == [np.float64, np.int64, np.bool_]

    def test_arrays_and_named_tuples(self):
        found = tg.vmap(scaled, (0, None))(M, np.array([1.0, -2.0, 0.5]))
        assert isinstance(found, Pair)
        expected = one_by_one(lambda row: scaled(row, np.array([1.0, -2.0, 0.5])), M)
        np.testing.assert_array_equal(found.value, [part.value for part in expected])
        np.testing.assert_array_equal(found.vector, [part.vector for part in expected])

    def test_axes_of_arguments_and_results(self):
        w = np.array([1.0, -2.0, 0.5])
        expected = tg.vmap(scaled, (0, None))(M, w)
        for m, axis in ((M.T, 1), (np.asfortranarray(M), 0), (M[::-1][::-1], -2)):
            found = tg.vmap(scaled, (axis, None), Pair(0, 1))(m, w)
            np.testing.assert_allclose(found.value, expected.value)
            np.testing.assert_array_equal(found.vector, expected.vector.T)

    def test_keywords_and_defaults(self):
        @tg.njit
        def powers(x, k=2.0, c=1.0):
            return c * x**k

        np.testing.assert_allclose(tg.vmap(powers)(X), X**2)
        np.testing.assert_allclose(tg.vmap(powers)(X, c=3.0), 3.0 * X**2)

    def test_one_item(self):
        np.testing.assert_array_equal(
            tg.vmap(decay, (0, None, None))(X[:1], 0.5, 3), [decay(X[0], 0.5, 3)]
        )

    def test_each_item_is_computed_once(self):
        @tg.njit
        def counted(x, counter):
            counter[0] += 1.0
            return x

        counters = np.zeros((5, 1))
        tg.vmap(counted)(X, counters)
        np.testing.assert_array_equal(counters, np.ones((5, 1)))

    def test_no_warning_of_a_loop(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tg.vmap(decay, (0, 0, None))(X, Y, 2)

    def test_a_function_that_was_compiled_again(self, monkeypatch):
        f = times_factor
        np.testing.assert_array_equal(tg.vmap(f)(X), 2.0 * X)
        np.testing.assert_array_equal(tg.vmap(tg.grad(f))(X), np.full(5, 2.0))
        monkeypatch.setitem(f.py_func.__globals__, "FACTOR", 3.0)
        f.recompile()
        np.testing.assert_array_equal(tg.vmap(f)(X), 3.0 * X)
        np.testing.assert_array_equal(tg.vmap(tg.grad(f))(X), np.full(5, 3.0))


class TestDerivatives:
    def test_gradients(self):
        value, gradients = tg.vmap(tg.value_and_grad(decay, (0, 1)), (0, 0, None))(X, Y, 7)
        one = tg.value_and_grad(decay, (0, 1))
        expected = one_by_one(lambda x, k: one(x, k, 7), X, Y)
        np.testing.assert_array_equal(value, [part[0] for part in expected])
        for k in range(2):
            np.testing.assert_array_equal(gradients[k], [part[1][k] for part in expected])

    def test_gradients_of_loops_of_different_lengths(self):
        @tg.njit
        def end(x, limit):
            return search(x, limit)[0]

        found = tg.vmap(tg.grad(end), (0, None))(X, 1.5)
        np.testing.assert_array_equal(found, one_by_one(lambda x: tg.grad(end)(x, 1.5), X))

    def test_products(self):
        @tg.njit
        def cubes(row):
            return np.sum(row**3)

        found = tg.vmap(tg.jvp(cubes))(M, M + 1.0)
        np.testing.assert_allclose(found[0], np.sum(M**3, axis=1))
        np.testing.assert_allclose(found[1], np.sum(3 * M**2 * (M + 1.0), axis=1))
        np.testing.assert_allclose(tg.vmap(tg.hvp(cubes))(M, M + 1.0), 6 * M * (M + 1.0))
        hessians = np.stack([np.diag(6 * row) for row in M])
        np.testing.assert_allclose(tg.vmap(tg.hessian(cubes))(M), hessians)

    def test_tensors_are_recorded(self):
        x = tg.tensor(X, requires_grad=True)
        with pytest.warns(UserWarning, match="vmap: decay has no batching rule"):
            tg.vmap(decay, (0, None, None))(x, 0.5, 3).sum().backward()
        expected = tg.vmap(tg.grad(decay), (0, None, None))(X, 0.5, 3)
        np.testing.assert_allclose(x.grad.numpy(), expected)


@pytest.mark.parametrize("derivative", [lambda f: f, tg.grad], ids=["value", "gradient"])
def test_on_all_threads(derivative):
    @tg.njit(parallel=True)
    def threads(x, k):
        total = 0.0
        for i in range(30):
            total += np.sin(x * i) * k
        return total

    x = np.linspace(0.1, 0.9, 500)
    f = derivative(threads)
    found = tg.vmap(f, (0, None))(x, 0.5)
    np.testing.assert_allclose(found, [f(item, 0.5) for item in x], rtol=1e-14)


class TestRefusals:
    def test_shapes_that_differ(self):
        @tg.njit
        def ones(n):
            return np.ones(n)

        with pytest.raises(ValueError, match=r"result of ones for item 2 has another shape"):
            tg.vmap(ones)(np.array([2, 2, 3]))

    def test_writing_to_what_items_share(self):
        @tg.njit
        def adding(x, total):
            total[0] += x
            return x

        with pytest.raises(TransformError, match="adding writes to argument 1, which all items"):
            tg.vmap(adding, (0, None))(X, np.zeros(1))

    def test_results_that_are_no_numbers(self):
        @tg.njit
        def text(x):
            return "a" if x > 0.5 else "b"

        with pytest.raises(TypeError, match="must only return numbers and arrays"):
            tg.vmap(text)(X)

    def test_sizes_and_axes(self):
        with pytest.raises(ValueError, match="same size in the mapped dimension"):
            tg.vmap(decay, (0, 0, None))(X, Y[1:], 2)
        with pytest.raises(ValueError, match="out_dims=None"):
            tg.vmap(decay, (0, 0, None), None)(X, Y, 2)

    def test_an_error_of_an_item(self):
        @tg.njit
        def inverse(x):
            return 1.0 / x

        with pytest.raises(ZeroDivisionError):
            tg.vmap(inverse)(np.array([1.0, 0.0]))
