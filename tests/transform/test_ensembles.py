"""`vmap` of compiled functions and of their derivatives: a compiled loop over the items."""

import collections
import warnings

import numba
import numpy as np
import pytest
from check import module

import tapegrad as tg
from tapegrad.transform.ensembles import in_lanes
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


@numba.njit
def read(v):
    return v[0] * 2.0


@numba.njit
def write(v):
    v[0] = 5.0
    return v[1]


helper = read


@tg.njit
def through_a_helper(v, x):
    return helper(v) * x


def test_a_function_that_was_compiled_again_and_writes_now(monkeypatch):
    v = np.array([1.0, 2.0])
    np.testing.assert_array_equal(tg.vmap(through_a_helper, (None, 0))(v, X), 2.0 * X)
    t = tg.tensor(v, requires_grad=True)
    through_a_helper(t, 3.0).backward()
    np.testing.assert_array_equal(t.grad, [6.0, 0.0])
    monkeypatch.setitem(through_a_helper.py_func.__globals__, "helper", write)
    through_a_helper.recompile()
    with pytest.raises(TransformError, match="writes to argument 0, which all items"):
        tg.vmap(through_a_helper, (None, 0))(v, X)
    with pytest.raises(TransformError, match="writes into argument 0, which is a tensor"):
        through_a_helper(t, 3.0)
    np.testing.assert_array_equal(v, [1.0, 2.0])


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
    np.testing.assert_allclose(found, [f(item, 0.5) for item in x], rtol=1e-11)


@tg.njit(error_model="numpy")
def oscillator(x, y, mu, steps):
    for _ in range(steps):
        a = mu * (1.0 - x * x) * y - x
        x, y = x + 0.05 * y, y + 0.05 * a
    return x


# branches and counts that differ between the items, inside of a loop that does not
BRANCHES = """
def f(x, k, steps):
    count, total, scale = 0, 0.0, 0.5 * steps
    for i in range(steps):
        if x > 0.5:
            count += 1
            x = x * 0.9 - 0.1 * k
        elif x < 0.1:
            x = np.exp(x) * k
        else:
            x += 0.3
        if i % 2 == 0:
            total += x * i
        else:
            total -= np.sin(x) / scale
    return """
branches = tg.njit(module(BRANCHES + "total, count, x > k", np=np))
sum_of_branches = tg.njit(module(BRANCHES + "total * count", np=np))


@tg.njit
def with_a_shared_array(x, weights):
    total = 0.0
    for i in range(weights.size):
        total += weights[i] * x**i
    return total


@tg.njit
def with_a_work_array(x, n):
    """The elements that statements of lanes read change between them."""
    w = np.zeros(2)
    total = 0.0
    for i in range(n):
        total += w[0] * x
        w[0] = i + 1.0
        total += w[0] * x * x
    return total


def is_side_by_side(function, kinds, has_items):
    try:
        in_lanes.compiled(function, kinds, has_items, {})
    except in_lanes.NoLanesError:
        return False
    return True


FLOAT, INT = numba.float64, numba.int64
SIDE_BY_SIDE = {
    "work array": (with_a_work_array, (FLOAT, INT), (0, None), (4,)),
    "oscillator": (oscillator, (FLOAT, FLOAT, FLOAT, INT), (0, 0, 0, None), (9,)),
    "branches": (sum_of_branches, (FLOAT, FLOAT, INT), (0, 0, None), (7,)),
    "shared": (
        with_a_shared_array,
        (FLOAT, numba.float64[::1]),
        (0, None),
        (np.array([0.5, -1.0, 2.0]),),
    ),
}


class TestSideBySide:
    @pytest.mark.parametrize("size", [1, 255, 256, 700])
    @pytest.mark.parametrize("name", SIDE_BY_SIDE)
    def test_values_and_gradients(self, name, size):
        function, kinds, axes, shared = SIDE_BY_SIDE[name]
        has_items = [axis == 0 for axis in axes]
        count = sum(has_items)
        derivative = tg.value_and_grad(function, tuple(range(count)))
        assert is_side_by_side(function, kinds, has_items)
        assert is_side_by_side(derivative, kinds, has_items)
        items = np.random.default_rng(size).uniform(0.05, 1.2, size=(count, size))
        value, gradients = tg.vmap(derivative, axes)(*items, *shared)
        expected = [derivative(*column, *shared) for column in items.T]
        np.testing.assert_allclose(value, [part[0] for part in expected], rtol=1e-12)
        np.testing.assert_allclose(tg.vmap(function, axes)(*items, *shared), value, rtol=1e-12)
        for k in range(count):
            np.testing.assert_allclose(
                gradients[k], [part[1][k] for part in expected], rtol=1e-10, atol=1e-13
            )

    @pytest.mark.parametrize("name", SIDE_BY_SIDE)
    def test_products_with_hessians(self, name):
        function, kinds, axes, shared = SIDE_BY_SIDE[name]
        count = sum(axis == 0 for axis in axes)
        product = tg.hvp(function, count - 1)
        assert is_side_by_side(product, (*kinds, FLOAT), [*(axis == 0 for axis in axes), True])
        items = np.random.default_rng(3).uniform(0.05, 1.2, size=(count, 300))
        directions = np.cos(items[0])
        found = tg.vmap(product, (*axes, 0))(*items, *shared, directions)
        pairs = zip(items.T, directions, strict=True)
        expected = [product(*column, *shared, v) for column, v in pairs]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)
        found = tg.vmap(product, (*axes, None))(*items, *shared, 2.0)
        expected = [product(*column, *shared, 2.0) for column in items.T]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)

    @pytest.mark.parametrize("name", [n for n in SIDE_BY_SIDE if n != "branches"])
    def test_tangents(self, name):
        function, kinds, axes, shared = SIDE_BY_SIDE[name]
        count = sum(axis == 0 for axis in axes)
        pushforward = tg.jvp(function, tuple(range(count)))
        has_items = [*(axis == 0 for axis in axes), *[True] * count]
        assert is_side_by_side(pushforward, (*kinds, *[FLOAT] * count), has_items)
        items = np.random.default_rng(4).uniform(0.05, 1.2, size=(count, 300))
        directions = np.cos(3.0 * items)
        found = tg.vmap(pushforward, (*axes, *[0] * count))(*items, *shared, *directions)
        pairs = zip(items.T, directions.T, strict=True)
        expected = [pushforward(*column, *shared, *v) for column, v in pairs]
        for part, want in zip(found, zip(*expected, strict=True), strict=True):
            np.testing.assert_allclose(part, np.array(want).T, rtol=1e-11, atol=1e-13)

    def test_tangents_of_several_results(self):
        @tg.njit
        def turned(x, y, steps):
            for _ in range(steps):
                x, y = x + 0.1 * np.sin(y), y - 0.1 * x
            return x, y

        pushforward = tg.jvp(turned, (0, 1))
        found = tg.vmap(pushforward, (0, 0, None, 0, None))(X, Y, 9, Y, 0.5)
        expected = [pushforward(x, y, 9, y, 0.5) for x, y in zip(X, Y, strict=True)]
        for place in (0, 1):
            for k in (0, 1):
                want = [one[place][k] for one in expected]
                np.testing.assert_allclose(found[place][k], want, rtol=1e-12)

    def test_results_of_several_types(self):
        items = np.random.default_rng(0).uniform(0.05, 1.2, size=(2, 300))
        assert is_side_by_side(branches, (FLOAT, FLOAT, INT), (True, True, False))
        found = tg.vmap(branches, (0, 0, None))(*items, 7)
        expected = zip(*(branches(*column, 7) for column in items.T), strict=True)
        for part, values in zip(found, expected, strict=True):
            np.testing.assert_allclose(part, values, rtol=1e-12)
        assert [part.dtype for part in found] == [np.float64, np.int64, np.bool_]

    def test_the_gradient_by_what_the_items_share(self):
        """Each item has its own."""
        f = tg.grad(oscillator, (0, 2))
        by_x, by_mu = tg.vmap(f, (0, None, None, None))(X, 0.3, 0.7, 9)
        expected = [f(x, 0.3, 0.7, 9) for x in X]
        np.testing.assert_allclose(by_x, [part[0] for part in expected])
        np.testing.assert_allclose(by_mu, [part[1] for part in expected])

    def test_one_argument_that_is_no_tuple(self):
        found = tg.vmap(tg.grad(oscillator, 1), (0, 0, None, None))(X, Y, 0.7, 9)
        expected = [tg.grad(oscillator, 1)(x, y, 0.7, 9) for x, y in zip(X, Y, strict=True)]
        np.testing.assert_allclose(found, expected)

    def test_what_is_computed_one_by_one(self):
        @tg.njit
        def draws(x):
            return x * np.random.random()

        @tg.njit
        def work_array(x):
            w = np.zeros(3)
            w[1] = x
            return np.sum(w)

        @tg.njit
        def prints(x, n):
            for _ in range(n):
                print("a")
            return x

        assert not is_side_by_side(draws, (FLOAT,), (True,))
        assert not is_side_by_side(work_array, (FLOAT,), (True,))
        assert not is_side_by_side(prints, (FLOAT, INT), (True, False))
        assert not is_side_by_side(search, (FLOAT, FLOAT), (True, False))
        assert not is_side_by_side(tg.hessian(oscillator), (FLOAT,) * 3 + (INT,), (True,) * 3)
        assert len(set(tg.vmap(draws)(np.ones(50)))) == 50
        np.testing.assert_array_equal(tg.vmap(work_array)(X), X)

    def test_rules_of_the_user(self):
        @tg.njit
        def square(x):
            return x * x

        @square.defvjp
        def square_vjp(x, z, g):
            return (g * 100.0,)

        np.testing.assert_array_equal(tg.vmap(tg.grad(square))(X), np.full(5, 100.0))

    def test_errors(self):
        @tg.njit
        def inverse_of_sum(x, n):
            total = 0.0
            for i in range(n):
                total += x - i
            return 1.0 / total

        with pytest.raises(ZeroDivisionError):
            tg.vmap(tg.grad(inverse_of_sum), (0, None))(np.array([0.5, 1.0, 2.0]), 3)


class TestThreads:
    """numba drops errors that iterations of parallel loops raise."""

    def test_an_error_of_an_item(self):
        @tg.njit(parallel=True)
        def inverse(x):
            while x > 10.0:
                x *= 0.5
            return 1.0 / x

        self.check_error(inverse)

    def test_an_error_of_an_item_side_by_side(self):
        @tg.njit(parallel=True)
        def inverse(x):
            return 1.0 / (x * x)

        assert is_side_by_side(inverse, (FLOAT,), (True,))
        self.check_error(inverse)

    def check_error(self, inverse):
        items = np.ones(2000)
        items[[1500, 1900]] = 0.0
        for function in (inverse, tg.grad(inverse), tg.value_and_grad(inverse)):
            with pytest.raises(ZeroDivisionError):
                tg.vmap(function)(items)
            tg.vmap(function)(items[:1500])

    def test_another_shape(self):
        @tg.njit(parallel=True)
        def ones(n):
            return np.ones(n)

        counts = np.full(500, 3)
        counts[321] = 2
        with pytest.raises(ValueError, match=r"result of ones for item 321 has another shape"):
            tg.vmap(ones)(counts)

    def test_items_that_are_written(self):
        """They may share elements: each item here reads what the one before wrote."""

        @tg.njit(parallel=True)
        def last(pair):
            pair[1] = pair[0] + 1.0
            return pair[1]

        items = np.zeros(600)
        pairs = np.lib.stride_tricks.sliding_window_view(items, 2, writeable=True)
        with pytest.warns(tg.SerialLoopWarning, match="last writes to argument 0"):
            found = tg.vmap(last)(pairs)
        np.testing.assert_array_equal(found, np.arange(1.0, 600.0))


class TestChecks:
    def test_derivatives_that_check_themselves(self):
        @tg.njit(verify=True)
        def square(x):
            return x * x

        @square.defvjp
        def square_vjp(x, z, g):
            return (3.0 * g * x,)

        for _ in range(2):
            with pytest.raises(tg.VerificationError, match="gradient of square"):
                tg.vmap(tg.grad(square))(X)

    def test_values_that_have_changed_since_a_function_was_compiled(self, monkeypatch):
        """As in calls for one item: the values stay, a derivative is refused."""
        f = tg.njit(module("def f(x):\n    return FACTOR * x\n", FACTOR=2.0))
        f(0.5)
        monkeypatch.setitem(f.py_func.__globals__, "FACTOR", 3.0)
        np.testing.assert_array_equal(tg.vmap(f)(X), 2.0 * X)
        with pytest.raises(TransformError, match="FACTOR"):
            tg.vmap(tg.grad(f))(X)


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
