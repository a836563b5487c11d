"""Batches of recorded functions, recorded batches, and loops over items."""

import pickle

import numpy as np
import pytest
from interpreted import assert_equal, is_compiled

import tapegrad as tg

V = np.array([0.3, -0.2, 0.7])
A = np.sin(np.arange(12.0)).reshape(4, 3)
X = np.cos(np.arange(15.0)).reshape(5, 3)


def loss(w, x):
    return tg.sum(tg.tanh(A @ (w * x)) ** 2)


def parts(w, x):
    return {"z": tg.sin(x) * w, "s": (tg.sum(x), x[:2] * 2.0)}


def of_a_loop(w, x):
    return tg.while_loop(lambda s: tg.sum(s) < 9.0, lambda s: s * 1.5 + tg.abs(w * x), x * x)


IN_AXES = (None, 0)


@pytest.mark.compiled
class TestOfRecordedFunctions:
    """`vmap` of a jitted function runs compiled code for all items."""

    @pytest.mark.parametrize("function", [loss, parts])
    def test_values(self, function):
        f = tg.jit(function)
        assert_equal(tg.vmap(f, IN_AXES)(V, X), tg.vmap(function, IN_AXES)(V, X))
        assert_equal(tg.vmap(f, (1, 0))(X.T, X), tg.vmap(function, (1, 0))(X.T, X))

    def test_calls_the_function_once(self):
        calls = []

        def counted(w, x):
            calls.append(x)
            return loss(w, x)

        f = tg.vmap(tg.jit(counted), IN_AXES)
        for _ in range(3):
            f(V, X)
        assert len(calls) == 1

    def test_gradients_of_items(self):
        f = tg.vmap(tg.grad(tg.jit(loss)), IN_AXES)
        assert_equal(f(V, X), tg.vmap(tg.grad(loss), IN_AXES)(V, X))

    def test_gradients_of_batches(self):
        def total(f):
            return tg.grad(lambda w: tg.sum(tg.vmap(f, IN_AXES)(w, X) ** 2))(V)

        assert_equal(total(tg.jit(loss)), total(loss))

    def test_nested(self):
        items = np.stack([X, X * 2.0])
        f, g = (tg.vmap(tg.vmap(f, IN_AXES), IN_AXES) for f in (tg.jit(loss), loss))
        assert_equal(f(V, items), g(V, items))

    def test_inside_of_other_functions(self):
        f = tg.jit(loss)
        found = tg.vmap(lambda x: f(V, x * 2.0) + tg.sum(x) * f(V, V))(X)
        assert_equal(found, tg.vmap(lambda x: loss(V, x * 2.0) + tg.sum(x) * loss(V, V))(X))

    def test_that_read_a_batched_tensor_by_their_closure(self):
        def f(x):
            return tg.jit(lambda y: tg.sum(tg.sin(y) * x))(x * 2.0)

        assert_equal(tg.vmap(f)(X), np.stack([f(x) for x in X]))

    def test_results_that_the_items_share(self):
        f = tg.jit(lambda x: (tg.sum(x), tg.ones(2) * 3.0))
        found = tg.vmap(f, out_axes=(0, None))(X)
        assert_equal(found, (X.sum(axis=1), np.full(2, 3.0)))
        assert_equal(tg.vmap(f)(X), (X.sum(axis=1), np.full((5, 2), 3.0)))

    @pytest.mark.parametrize("randomness", ["same", "different"])
    def test_random_numbers(self, randomness):
        def noisy(x):
            return tg.sum(x * tg.random.normal(size=3))

        found = []
        for f in (tg.jit(noisy), noisy):
            tg.random.seed(2)
            batch = tg.vmap(f, randomness=randomness)
            found.append([batch(X), batch(X)])
        assert_equal(*found)

    @pytest.mark.parametrize("loop", [False, True])
    def test_random_numbers_that_are_an_error(self, loop):
        f = tg.jit(lambda x: tg.sum(x * tg.random.normal(size=3)))
        with pytest.raises(RuntimeError, match="randomness error mode"):
            tg.vmap(f, loop=loop)(X)


@pytest.mark.compiled
class TestRecordedBatches:
    def test_gradients_of_items(self):
        """Those are computed in a loop of the recorded program."""
        f = tg.jit(lambda w, x: tg.vmap(tg.grad(loss), IN_AXES)(w, x) * 2.0)
        assert is_compiled(f.inspect(V, X))
        assert_equal(f(V, X), 2.0 * tg.vmap(tg.grad(loss), IN_AXES)(V, X))

    def test_of_functions_without_a_form_for_batches(self):
        f = tg.jit(lambda w, x: tg.vmap(of_a_loop, IN_AXES, out_axes=1)(w, x))
        assert f.inspect(V, X).count("while True") == 1
        assert_equal(f(V, X), np.stack([of_a_loop(V, x) for x in X], axis=1))

    def test_derivatives(self):
        def total(w):
            return tg.sum(tg.vmap(tg.grad(loss), IN_AXES)(w, X) ** 2)

        assert_equal(tg.grad(tg.jit(total))(V), tg.grad(total)(V))


@pytest.mark.compiled
def test_derivatives_for_constant_items_that_read_what_is_recorded():
    """As in networks that are trained by their own derivatives at points."""

    def residuals(w):
        def u(x):
            return tg.sum(tg.tanh(w * x) * V)

        slopes = tg.vmap(tg.grad(u))(X)
        return tg.sum(slopes**2) + tg.sum(tg.vmap(lambda x: x * 2.0)(X)) * w[0]

    assert is_compiled(tg.jit(residuals).inspect(V))
    assert_equal(tg.jit(tg.value_and_grad(residuals))(V), tg.value_and_grad(residuals)(V))


@pytest.mark.compiled
class TestLoops:
    @pytest.mark.parametrize("function", [loss, parts])
    def test_values(self, function):
        f = tg.vmap(function, (None, 1), loop=True)
        assert_equal(f(V, X.T), tg.vmap(function, (None, 1))(V, X.T))

    def test_branches_and_loops_that_depend_on_the_item(self):
        f = tg.vmap(of_a_loop, IN_AXES, loop=True)
        assert_equal(f(V, X), np.stack([of_a_loop(V, x) for x in X]))

    def test_gradients(self):
        def total(w, loop):
            return tg.sum(tg.vmap(loss, IN_AXES, loop=loop)(w, X) ** 2)

        assert_equal(tg.grad(total)(V, True), tg.grad(total)(V, False))
        rows = tg.vmap(tg.grad(loss), IN_AXES, loop=True)
        assert_equal(rows(V, X), tg.vmap(tg.grad(loss), IN_AXES)(V, X))

    def test_recorded(self):
        f = tg.jit(lambda w, x: tg.sum(tg.vmap(loss, IN_AXES, loop=True)(w, x)))
        assert "for " in f.inspect(V, X)
        assert_equal(f(V, X), sum(loss(V, x) for x in X))

    def test_random_numbers_of_each_item(self):
        f = tg.vmap(lambda x: x * tg.random.normal(size=3), randomness="different", loop=True)
        tg.random.seed(4)
        found = f(X)
        tg.random.seed(4)
        assert_equal(found, np.stack([x * tg.random.normal(size=3).numpy() for x in X]))


def test_random_numbers_that_are_an_error_op_by_op():
    def f(x):
        return tg.sum(x[x > 0.0]) + tg.random.normal()

    with pytest.raises(RuntimeError, match="randomness error mode"):
        tg.vmap(f, loop=True)(X)
    assert tg.random.normal().shape == ()


def drawn(x):
    return x * tg.random.normal()


def test_copies_of_loops():
    """They keep their options."""
    f = tg.vmap(drawn, randomness="different", loop=True)
    assert "drawn" in repr(f)
    again = pickle.loads(pickle.dumps(f))
    tg.random.seed(3)
    found = f(X[:, 0])
    tg.random.seed(3)
    assert_equal(again(X[:, 0]), found)


def test_a_loop_over_no_items():
    assert tg.vmap(lambda x: x * 2.0, loop=True)(np.ones((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    "options", [{"target": "cuda"}, {"chunk_size": 2}, {"randomness": "same"}], ids=str
)
def test_options_that_do_not_go_with_loops(options):
    with pytest.raises(ValueError, match="loop=True goes with neither"):
        tg.vmap(loss, loop=True, **options)
