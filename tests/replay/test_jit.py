"""`tapegrad.jit`: what is recorded, what is refused, and what runs op by op."""

import copy
import dataclasses
import functools
import gc
import json
import math
import os
import pickle
import random
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from interpreted import assert_equal, interpret

import tapegrad as tg
from tapegrad.replay import compiled
from tapegrad.transform.errors import TransformError

X = np.linspace(-1.0, 2.0, 12).reshape(4, 3)
V = np.array([0.3, -1.2, 0.7])


@pytest.fixture(autouse=True)
def _interpreted(request, monkeypatch):
    if request.node.get_closest_marker("compiled") is None:
        interpret(monkeypatch)


def loss(w, x):
    return tg.sum(tg.tanh(x @ w) ** 2)


def times(x, factor):
    return x * factor


def how(function, *args, **kwargs):
    return tg.jit(function).inspect(*args, **kwargs)


class TestCalls:
    def test_once_for_each_kind_of_arguments(self):
        calls = []

        @tg.jit
        def f(x):
            calls.append(x.shape)
            return 2.0 * x

        for _ in range(3):
            assert_equal(f(X), 2.0 * X)
        assert_equal(f(V), 2.0 * V)
        assert calls == [(4, 3), (3,)]
        assert f.cache_info() == (2, 2, 2, 0)
        f.clear_cache()
        assert f.cache_info() == (0, 0, 0, 0)
        f(X)
        assert len(calls) == 3

    def test_results_are_like_the_arguments(self):
        f = tg.jit(lambda x: (x + 1.0, tg.sum(x), {"ones": np.ones(2)}))
        array, number, constant = f(V)
        assert type(array) is np.ndarray
        assert type(number) is np.float64
        assert type(constant["ones"]) is np.ndarray
        assert all(type(t) is tg.Tensor for t in f(tg.tensor(V))[:2])

    def test_types_of_numbers(self):
        f = tg.jit(lambda k: (k * 2, k > 1))
        assert [type(part) for part in f(3)] == [np.int64, np.bool_]
        g = tg.jit(lambda k: k * 2)
        assert [type(g(np.arange(2))), type(g(3)), type(g(3))] == [np.ndarray, np.int64, np.int64]

    def test_constant_results_are_copies(self):
        ones, tensor = np.ones(2), tg.tensor(V)
        f = tg.jit(lambda x: (x, ones, tensor))
        f(V)[1][:] = 0.0
        f(V)[2][:] = 0.0
        assert_equal(f(V)[1:], (np.ones(2), V))

    def test_containers(self):
        f = tg.jit(lambda p, q: {"a": p["w"] @ q[0], "b": [p["v"], q[1] * p["v"]]})
        found = f({"w": X, "v": V}, (V, 2.0))
        assert_equal(found, {"a": X @ V, "b": [V, 2.0 * V]})
        assert f({"w": X, "v": V}, [V, 3.0])["b"][1] == pytest.approx(3.0 * V)

    def test_numbers_are_arguments(self):
        f = tg.jit(times)
        assert [f(2.0, k) for k in (1, 2, 3)] == [2.0, 4.0, 6.0]
        assert f.cache_info().misses == 1
        assert f(2, 3) == 6
        assert isinstance(f(np.float64(2.0), 1.5), np.float64)

    def test_arguments_by_name(self):
        f = tg.jit(times)
        assert f(2.0, factor=4.0) == 8.0
        assert f(factor=4.0, x=2.0) == 8.0

    def test_results_are_not_arguments(self):
        for f in (lambda x: x, lambda x: x[1:], lambda x: x.reshape(-1), lambda x: (x, x)):
            for found in np.atleast_1d(tg.jit(f)(X)), *[tg.jit(f)(X)]:
                parts = found if isinstance(found, tuple) else (found,)
                assert not any(np.may_share_memory(part, X) for part in parts)

    def test_arrays_that_are_not_contiguous(self):
        f = tg.jit(lambda x: x[1] * 2.0)
        assert_equal(f(X.T), X.T[1] * 2.0)
        assert_equal(f(X[::2, ::-1]), X[::2, ::-1][1] * 2.0)
        frozen = X.copy()
        frozen.flags.writeable = False
        assert_equal(f(frozen), X[1] * 2.0)

    @pytest.mark.parametrize(
        "function",
        [
            tg.sum,
            lambda x: tg.sum(x, axis=0),
            lambda x: tg.logsumexp(x, axis=0),
            lambda x: tg.einsum("ij,ij->j", x, x),
            lambda x: tg.concatenate([x, x + 1.0]),
            lambda x: x @ np.ones(2),
            lambda x: np.ones((3, 0)) @ x,
            lambda x: x.reshape(2, 0) * 2.0,
        ],
    )
    def test_empty_arrays(self, function):
        x = np.ones((0, 2))
        assert_equal(tg.jit(function)(x), function(tg.tensor(x)).numpy()[()])

    def test_methods(self):
        class Model:
            def __init__(self, scale):
                self.scale = scale

            @functools.partial(tg.jit, static_argnums=0)
            def double(self, x):
                return self.scale * x

        assert_equal(Model(2.0).double(V), 2.0 * V)
        assert_equal(Model(3.0).double(V), 3.0 * V)

    def test_functions_are_static(self):
        f = tg.jit(lambda g, x: g(x))
        assert_equal(f(tg.sin, V), np.sin(V))
        assert_equal(f(tg.cos, V), np.cos(V))

    def test_threads(self):
        f, found = tg.jit(loss), {}

        def run(k):
            found[k] = f(V * k, X)

        threads = [threading.Thread(target=run, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[k] for k in range(6)] == [f(V * k, X) for k in range(6)]
        expected = [loss(tg.tensor(V * k), X).item() for k in range(6)]  # products by BLAS
        np.testing.assert_allclose([found[k] for k in range(6)], expected, rtol=1e-14)

    def test_pickling(self):
        f = pickle.loads(pickle.dumps(tg.jit(loss)))
        assert f(V, X) == pytest.approx(loss(tg.tensor(V), X).item())

    def test_many_recordings_warn(self):
        f = tg.jit(lambda x: x + 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for n in range(1, 9):
                f(np.ones(n))
        with pytest.warns(UserWarning, match=r"9th time: the last time for an array of shape \(9,"):
            f(np.ones(9))

    def test_equal_results_have_memory_of_their_own(self):
        """They are computed once."""

        def f(x):
            y = x * 2.0
            return x + 1.0, x + 1.0, y, y.reshape(1, 3).reshape(3), x + 1.0

        for found in (tg.jit(f)(V), [t.numpy() for t in tg.jit(f)(tg.tensor(V))]):
            for value in found:
                value[:] = 0.0
                assert all(np.any(other) for other in found if other is not value)
                value[:] = 1.0

    def test_numbers_in_other_shapes(self):
        f = tg.jit(lambda x: tg.sum(x).reshape(()) * x[0].reshape(1, 1).reshape(()))
        assert_equal(f(V), np.sum(V) * V[0])


class TestStatic:
    def test_positions_and_names(self):
        def f(x, n, mode="a"):
            return sum(x * k for k in range(n)) if mode == "a" else x

        for jitted in (tg.jit(f, static_argnums=1), tg.jit(f, static_argnames="n")):
            assert_equal(jitted(V, 3), 3.0 * V)
            assert_equal(jitted(V, 4), 6.0 * V)
            assert_equal(jitted(V, n=3), 3.0 * V)
            assert_equal(jitted(V, 4, mode="b"), V)
            assert jitted.cache_info().currsize == 4
        assert_equal(tg.jit(f, static_argnums=-2)(V, 3), 3.0 * V)

    def test_equal_values_of_other_types(self):
        f = tg.jit(lambda x, k: x * 0.5 if type(k) is int else x, static_argnums=1)
        assert_equal(f(V, 1), 0.5 * V)
        assert_equal(f(V, 1.0), V)
        assert_equal(f(V, True), V)
        f = tg.jit(lambda x, k: x * 0.5 if type(k[0]) is int else x, static_argnums=1)
        assert_equal(f(V, (1,)), 0.5 * V)
        assert_equal(f(V, (True,)), V)
        f = tg.jit(lambda x, k: x + math.copysign(1.0, k), static_argnums=1)
        assert_equal(f(V, 0.0), V + 1.0)
        assert_equal(f(V, -0.0), V - 1.0)

    def test_settings_of_dataclasses(self):
        @dataclasses.dataclass
        class Model:
            w: np.ndarray
            power: int

        f = tg.jit(lambda model: model.w**model.power)
        assert_equal(f(Model(V, 2)), V**2)
        assert_equal(f(Model(V, 3)), V**3)
        f = tg.jit(lambda model: model.w[model.power])
        assert_equal(f(Model(V, np.array([0, 1]))), V[:2])
        assert_equal(f(Model(V, np.array([1, 2]))), V[1:])
        assert f.cache_info().misses == 2

    def test_generators_of_other_packages(self):
        for generator in (np.random.default_rng(0), np.random.RandomState(0), random.Random(0)):
            for f in (tg.jit(times), tg.jit(times, static_argnums=1)):
                with pytest.raises(TypeError, match="numbers would be those of the first call"):
                    f(V, generator)

    def test_slices(self):
        f = tg.jit(lambda x, part: x[part] * 2.0)
        for part in (slice(1), slice(1, 3), slice(1)):
            assert_equal(f(V, part), V[part] * 2.0)
        assert f.cache_info().misses == 2
        g = tg.jit(lambda x, index: x[index], static_argnums=1)
        assert_equal(g(V, (slice(1), None)), V[:1, None])

    def test_names_that_are_no_arguments(self):
        with pytest.raises(
            ValueError, match=r"static_argnames \['m'\] are no arguments .*'x', 'y'"
        ):
            tg.jit(lambda x, y: x, static_argnames="m")
        f = tg.jit(lambda x, **options: x * 2.0 if options["m"] else x, static_argnames="m")
        assert_equal(f(V, m=True), V * 2.0)

    def test_what_is_not_hashable(self):
        with pytest.raises(TypeError, match="argument 1 is static and must be hashable, got list"):
            tg.jit(times, static_argnums=1)(V, [1.0])
        with pytest.raises(TypeError, match="argument 0 has type set; expected arrays"):
            tg.jit(times)({1.0}, 2.0)
        with pytest.raises(TypeError, match="expected a function, got int"):
            tg.jit(3)


ASKS = {
    "if": lambda x: x if tg.sum(x) > 0 else -x,
    "while": lambda x: next(x for _ in range(3) if x[0, 0] < 1.0),
    "assert": lambda x: tg.all(tg.isfinite(x)) and x,
    "float": lambda x: x * float(x[0, 0]),
    "int": lambda x: x * int(x[0, 0]),
    "item": lambda x: x * x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "round": lambda x: f"{float(x[0, 0]):.3f}",
    "mean of a list": lambda x: np.mean([x[0, 0], x[1, 1]], axis=0),
    "median of a list": lambda x: np.median([x[0, 0], x[1, 1]]),
}


class TestRefused:
    @pytest.mark.parametrize("name", ASKS)
    def test_values_of_arguments(self, name):
        f = tg.jit(ASKS[name])
        place = f.function.__code__.co_firstlineno
        line = rf"jit: line {place} of test_jit\.py, `\"{name}\": .*`, (asks|chooses)"
        with pytest.raises(tg.RecordingError, match=rf"{line} .* tapegrad\.where"):
            f(X)
        assert f.cache_info().currsize == 0
        with pytest.raises(tg.RecordingError):
            f(X)

    def test_range(self):
        with pytest.raises(tg.RecordingError, match="static_argnums"):
            tg.jit(lambda x, n: sum(x for _ in range(n)))(V, 3)

    def test_a_tensor_that_escaped(self):
        kept = []
        tg.jit(lambda x: kept.append(x) or x * 2.0)(V)
        for use in (lambda t: t + 1.0, tg.sin, float, lambda t: t.numpy(), lambda t: t.grad):
            with pytest.raises(tg.RecordingError, match="after the function has returned"):
                use(kept[0])
        with pytest.raises(tg.RecordingError, match="after the function has returned"):
            tg.jit(lambda x: x + kept[0])(V)

    def test_errors_of_the_function(self):
        f = tg.jit(lambda x: x @ np.ones(5))
        for _ in range(2):
            with pytest.raises(ValueError, match="matmul"):
                f(X)
        assert_equal(tg.sin(V), np.sin(V))  # nothing is left recording

    def test_masked_arrays(self):
        with pytest.raises(TypeError, match="masked"):
            tg.jit(times)(np.ma.masked_array(V, V > 0), 2.0)


def write_to_argument(x):
    x[0] = 1.0
    return x * 2.0


class Doubled(tg.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * 2.0


OP_BY_OP = {
    "a write to an argument": (write_to_argument, "an argument is changed in place"),
    "several results": (lambda x: tg.linalg.eig(x[:3])[0].real, "several results"),
    "a mask of no axes": (lambda x: x[x[0, 0] > 0.5], "an index of dtype bool depends"),
    "function": (lambda x: Doubled.apply(x), "nothing but the Function Doubled is called"),
    "asks whether it is recorded": (lambda x: x * (1.0 + x.requires_grad), "graph of a tensor"),
    "complex": (lambda x: abs(x.astype(np.complex64)), "dtype complex64"),
}


class TestOpByOp:
    @pytest.mark.parametrize("name", OP_BY_OP)
    def test_equal(self, name):
        function, reason = OP_BY_OP[name]
        assert reason in how(function, X.copy())
        assert_equal(tg.jit(function)(X.copy()), function(tg.tensor(X)))
        if name not in ("a mask of no axes", "a write to an argument", "several results"):
            weights = np.cos(np.arange(function(tg.tensor(X)).size))
            found, expected = (
                tg.grad(lambda x, f=f: tg.sum(f(x).reshape(-1) * weights))(X)
                for f in (tg.jit(function), function)
            )
            assert_equal(found, expected)

    def test_single_precision(self):
        x = X.astype(np.float32)
        assert "np.float32(" in how(loss, V.astype(np.float32), x)
        assert not how(tg.cumsum, x).startswith("op by op")
        assert "dtype float16" in how(tg.sin, X.astype(np.float16))
        assert tg.jit(times)(x, 2.0).dtype == np.float32

    def test_a_backward_pass_that_cannot_be_compiled(self, monkeypatch):
        def refuse(function, args):
            raise TransformError("refused")

        monkeypatch.setattr(compiled, "check", refuse)
        f = tg.jit(lambda x: tg.sin(x) * 2.0)
        x = tg.tensor(V, requires_grad=True)
        tg.sum(f(x)).backward()
        assert_equal(x.grad, 2.0 * np.cos(V))
        assert "refused" in f.inspect(x)


class TestConstants:
    def test_arrays_are_copied(self):
        scale = V.copy()
        f = tg.jit(lambda x: x * scale)
        f(V)
        scale[:] = 0.0
        assert_equal(f(V), V * V)

    @pytest.mark.compiled
    def test_many_numbers_are_one_argument(self):
        weights = np.linspace(0.123, 4.567, 30)
        functions, order = (tg.sin, tg.cos, tg.tanh), np.random.default_rng(0).integers(0, 3, 30)

        def f(x, y):
            total = tg.sum(x * y)
            for weight, which in zip(weights, order, strict=True):  # which are no loop
                total = total + tg.sum(functions[which](x * float(weight)) * y)
            return total

        jitted = tg.jit(f)
        assert "def program(x0, x1, c):" in jitted.inspect(V, V)
        for g in (tg.value_and_grad, tg.hessian):
            found, expected = g(jitted)(V, V + 1.0), g(f)(V, V + 1.0)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12)

    def test_work_arrays(self):
        """What is written to an array between two uses is not lost."""

        def f(x):
            weights, places, buffer = np.zeros(3), np.array([0, 1]), tg.zeros(3)
            total = 0.0
            for k in range(3):
                weights[:] = k
                buffer[k] = 2.0
                total = total + tg.sum(x * weights) + tg.sum(x[places]) + tg.sum(x / (1.0 + buffer))
                places[:] = places[::-1] if k else [2, 2]
            return total

        assert_equal(tg.jit(f)(V), f(tg.tensor(V)).numpy()[()])

    def test_values_of_new_arrays(self):
        f = tg.jit(lambda x: tg.full_like(x, x[0]) + tg.full((3,), x[1]))
        assert not f.inspect(V).startswith("op by op")
        assert_equal(f(V), np.full(3, V[0] + V[1]))

    def test_tensors(self):
        scale = tg.tensor(V)
        assert_equal(tg.jit(lambda x: x * scale)(V), V * V)

    def test_large_and_small(self):
        table = np.arange(5000.0).reshape(1000, 5)
        assert_equal(tg.jit(lambda x: x @ table)(np.ones(1000)), np.ones(1000) @ table)
        for number in (np.float64(2.0), np.array(2.0), np.inf, -0.0, np.nan, -3, True):
            assert_equal(tg.jit(lambda x, n=number: x * n)(V), V * number)

    def test_equal_values_once(self):
        def f(x):
            return sum(tg.exp(x[0]) * tg.sin(x * 2.0) + tg.exp(x[0]) for _ in range(3))

        text = how(f, X)
        assert text.count("np.exp") == 1
        assert text.count("np.sin") == 1

    def test_dead_values_are_dropped(self):
        def f(x):
            tg.exp(x)
            return tg.sin(x)

        assert "exp" not in how(f, X)


class TestLoops:
    def test_one_loop(self):
        text = how(lambda x, y: tg.sum(tg.sin(x * y + 1.0) / (x * x + 2.0)), X, X + 1.0)
        assert "1 loop nests" in text
        assert "np.empty" not in text

    def test_two_for_a_normalised_result(self):
        text = how(lambda x: tg.exp(x - tg.max(x)) / tg.sum(tg.exp(x - tg.max(x))), V)
        assert text.count("np.exp") == 1
        assert text.count("for ") == 2

    def test_views_are_not_stored(self):
        text = how(lambda x: tg.sum(x[1:, ::-1].T * x[:-1].T), X)
        assert "np.empty" not in text

    def test_sizes_are_those_of_the_arguments(self):
        f = tg.jit(lambda x: tg.tanh(x) * 2.0)
        texts = {f.inspect(np.ones(n)) for n in (5, 7, 80)}
        assert len(texts) == 1  # compiled once


@pytest.mark.compiled
class TestDerivatives:
    def test_contractions_that_broadcast(self):
        f = tg.jit(lambda x, y: tg.einsum("ij,ij->j", x, y))
        assert "def program" in f.inspect(X[:, :1], X)
        assert_equal(f(X[:, :1], X), np.einsum("ij,ij->j", X[:, :1], X))
        assert_equal(f(X, X[:1]), np.einsum("ij,ij->j", X, X[:1]))

    @pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,ij->", "ii->i", "ij,k->kji", "ij->j"])
    def test_contractions(self, subscripts):
        arrays = [np.cos(np.arange(9.0)).reshape(3, 3), np.sin(np.arange(9.0)).reshape(3, 3)]
        arrays = [
            V if term == "k" else a for term, a in zip(subscripts.split("->")[0].split(","), arrays)
        ]

        def f(*arrays):
            return tg.sum(tg.einsum(subscripts, *arrays) ** 2)

        assert "tg." not in how(f, *arrays)
        numbers = tuple(range(len(arrays)))
        found, expected = (tg.value_and_grad(g, numbers)(*arrays) for g in (tg.jit(f), f))
        assert_equal(found, expected)

    @pytest.mark.parametrize("subscripts", ["ij,kj->ik", "ij,jk,ki->", "ij,ij->i", "aij,ajk->aik"])
    def test_large_contractions(self, subscripts):
        count = subscripts.count(",") + 1
        shape = (6, 40, 40) if "a" in subscripts else (500, 500) if count == 2 else (40, 40)
        arrays = list(np.random.default_rng(0).normal(size=(count, *shape)))

        def f(*arrays):
            return tg.sum(tg.sin(tg.einsum(subscripts, *arrays) / 100.0))

        text = how(f, *arrays)
        assert "tg." not in text
        assert ("np.dot" in text or "stacked_product" in text) == (subscripts != "ij,ij->i")
        numbers = tuple(range(count))
        found, expected = (tg.value_and_grad(g, numbers)(*arrays) for g in (tg.jit(f), f))
        assert_equal(found, expected)

    def test_gradients_of_arrays(self):
        f = tg.jit(loss)
        for argnums in (0, 1, (0, 1), (1, 0), -1, [0]):
            found = tg.value_and_grad(f, argnums)(V, X)
            assert_equal(found, tg.value_and_grad(loss, argnums)(V, X))
            assert_equal(tg.grad(f, argnums)(V, X), found[1])
        assert f.cache_info().misses == 1

    def test_structures(self):
        def f(p, x):
            return tg.sum((x @ p["w"] + p["b"]) ** 2)

        p = {"w": V, "b": 0.5}
        found, expected = tg.grad(tg.jit(f))(p, X), tg.grad(f)(p, X)
        assert found.keys() == expected.keys()
        assert_equal(found, expected)
        assert type(found["b"]) is type(expected["b"])

    def test_tensors(self):
        w, x = tg.tensor(V, requires_grad=True), tg.tensor(X)
        tg.jit(loss)(w, x).backward()
        assert_equal(w.grad, tg.grad(loss)(V, X))

    def test_numbers(self):
        f = tg.jit(lambda x, y: tg.sin(x) * y)
        assert_equal(tg.grad(f, (0, 1))(0.3, 2.0), (2.0 * np.cos(0.3), np.sin(0.3)))

    def test_errors_are_those_of_functions_of_tensors(self):
        with pytest.raises(ValueError, match=r"returned shape \[3\]; expected a scalar"):
            tg.grad(tg.jit(lambda x: x * 2.0))(V)
        with pytest.raises(ValueError, match="argnums 2 is out of range"):
            tg.grad(tg.jit(loss), 2)(V, X)
        with pytest.raises(TypeError, match="int64"):
            tg.grad(tg.jit(lambda x: tg.sum(x * 2.0)))(np.arange(3))

    def test_has_aux(self):
        f = tg.jit(lambda w: (tg.sum(w**2), w * 3.0))
        assert_equal(tg.value_and_grad(f, has_aux=True)(V), ((V @ V, 3.0 * V), 2.0 * V))

    def test_stopped(self):
        def without(x):
            with tg.no_grad():
                y = x * 2.0
            return tg.sum(x * y)

        for f in (without, lambda x: tg.sum(x * 2.0 * x.detach())):
            assert not how(f, V).startswith("op by op")
            assert_equal(tg.grad(tg.jit(f))(V), 2.0 * V)

    def test_recorded_without_recording(self):
        """What is recorded inside of no_grad() is not different."""
        f = tg.jit(loss)
        with tg.no_grad():
            f(V, X)
            assert not f(tg.tensor(V, requires_grad=True), X).requires_grad
        assert_equal(tg.grad(f)(V, X), tg.grad(loss)(V, X))
        w = tg.tensor(V, requires_grad=True)
        f(w, X).backward()
        assert_equal(w.grad, tg.grad(loss)(V, X))

    def test_other_transforms(self):
        f = tg.jit(loss)
        assert_equal(tg.jvp(f)(V, X, np.cos(V)), tg.jvp(loss)(V, X, np.cos(V)))
        assert_equal(tg.hvp(f)(V, X, np.cos(V)), tg.hvp(loss)(V, X, np.cos(V)))
        assert_equal(tg.hessian(f)(V, X), tg.hessian(loss)(V, X))
        assert_equal(tg.vmap(f, in_axes=(None, 0))(V, X), tg.vmap(loss, in_axes=(None, 0))(V, X))
        rows = tg.vmap(tg.grad(f), in_axes=(None, 0))
        assert_equal(rows(V, X), tg.vmap(tg.grad(loss), in_axes=(None, 0))(V, X))

    def test_jit_of_transforms(self):
        assert_equal(tg.jit(tg.grad(loss))(V, X), tg.grad(loss)(V, X))
        assert_equal(tg.jit(tg.value_and_grad(loss, 1))(V, X), tg.value_and_grad(loss, 1)(V, X))
        rows = tg.jit(tg.vmap(loss, in_axes=(None, 0)))
        assert "def program" in rows.inspect(V, X)
        assert_equal(rows(V, X), tg.vmap(loss, in_axes=(None, 0))(V, X))

    def test_jit_in_jit(self):
        inner = tg.jit(loss)
        f = tg.jit(lambda w: inner(w, X) + inner(2.0 * w, X))
        assert_equal(tg.grad(f)(V), tg.grad(lambda w: loss(w, X) + loss(2.0 * w, X))(V))
        assert inner.cache_info().misses == 0

    def test_in_a_function_of_tensors(self):
        f = tg.jit(loss)
        found, expected = (
            tg.grad(lambda w, g=g: sum(g(w * k, X) for k in range(3)))(V) for g in (f, loss)
        )
        assert_equal(found, expected)


def oscillator(x, v, steps):
    for _ in range(steps):
        v = v - 0.1 * tg.sin(x)
        x = x + 0.1 * v
    return tg.sum(x * v)


def fibonacci(x, y, steps):
    """Each value follows from the two before it."""
    for _ in range(steps):
        x, y = y, 0.6 * y + 0.3 * x
    return tg.sum(y * y)


def history(x, y, steps):
    """Every iteration's value is read in the end."""
    total = 0.0
    for _ in range(steps):
        x = tg.tanh(x * y)
        total = total + x
    return tg.sum(total * x)


def kept(x, y, steps):
    """Values in the middle are read afterwards."""
    found = [x]
    for _ in range(steps):
        found.append(tg.cos(found[-1]) + y)
    return tg.sum(found[-1] * found[steps // 2])


def growing(x, y, steps):
    """The factor differs between iterations."""
    for k in range(steps):
        x = x + (0.01 * k) * tg.sin(y * x)
    return tg.sum(x)


def nested(x, y, steps):
    for _ in range(steps):
        for _ in range(steps):
            x = tg.sin(x) + y
        y = y * 0.9
    return tg.sum(x)


def with_rows(x, y, steps):
    """Sums in each iteration."""
    for _ in range(steps):
        x = x / (1.0 + tg.sum(x * x)) + y
    return tg.sum(x)


def chain_of_equations(x, y, steps):
    """Steps of Runge and Kutta, with slopes that are put together of parts."""

    def slope(z):
        if not z.ndim:
            return -z
        return tg.concatenate([y[:1], y[1:] * z[:-1]])

    for _ in range(steps):
        k1 = slope(x)
        k2 = slope(x + 0.05 * k1)
        x = x + 0.1 * k2
    return tg.sum(x[-1]) if x.ndim else x


def power_method(x, y, steps):
    """Products with a matrix."""
    a = tg.outer(y, y) + np.eye(y.size)
    z = tg.reshape(x, (-1,))
    for _ in range(steps):
        z = a @ z
        z = z / tg.sqrt(tg.sum(z * z))
    return tg.sum(z * a[0])


LOOPS = [oscillator, fibonacci, history, kept, growing, nested, with_rows]
LOOPS += [chain_of_equations, power_method]


class TestRepeats:
    @pytest.mark.parametrize("function", LOOPS)
    @pytest.mark.parametrize("size", [(), (3,), (5, 4)])
    @pytest.mark.parametrize("steps", [1, 7, 60, 130])
    def test_values(self, function, size, steps):
        steps = min(steps, 12) if function is nested else steps
        x, y = np.random.default_rng(steps).normal(size=(2, *size))
        f = tg.jit(function, static_argnums=2)
        assert_equal(f(x, y, steps), function(tg.tensor(x), tg.tensor(y), steps).numpy()[()])

    @pytest.mark.parametrize(
        "function", [oscillator, history, with_rows, chain_of_equations, power_method]
    )
    @pytest.mark.parametrize("size", [(3,), (5, 4)])
    def test_loops_are_loops(self, function, size):
        f = tg.jit(function, static_argnums=2)
        texts = [f.inspect(*np.ones((2, *size)), steps) for steps in (100, 200)]
        assert len({text.count("\n") for text in texts}) == 1
        assert "in range(" in texts[0]

    @pytest.mark.compiled
    @pytest.mark.parametrize("function", LOOPS)
    @pytest.mark.parametrize("size", [(3,), (40,)])
    def test_gradients(self, function, size):
        x, y = np.random.default_rng(1).normal(size=(2, *size))
        f = tg.jit(function, static_argnums=2)
        steps = 10 if function is nested else 70
        found, expected = (tg.value_and_grad(g, (0, 1))(x, y, steps) for g in (f, function))
        assert_equal(found, expected, rtol=1e-10)


STORED = """
import numpy as np, tapegrad as tg

def f(x):
    return {}

x = np.array([0.5, 2.0])
print(tg.grad(tg.jit(f))(x).tolist())
"""


@pytest.mark.compiled
def test_programs_of_other_processes(tmp_path):
    """The first recordings of two processes have one name, and each its own derivative."""
    environment = {**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path)}
    found = []
    for body in ("tg.sum(x * x)", "tg.sum(x * x * x)", "tg.sum(x * x)"):
        done = subprocess.run(
            [sys.executable, "-c", STORED.replace("{}", body)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    assert found == [[1.0, 4.0], [0.75, 12.0], [1.0, 4.0]]


MATRICES = """
import sys
import numpy as np, tapegrad as tg
from numba.core import compiler

def refused(*args):
    raise RuntimeError("it is compiled again")

compiler.CompilerBase.compile_extra = {}
x = np.array([0.5, 2.0])
for f in (lambda x: tg.sum(tg.exp(x[1:] * x[:-1])), lambda x: tg.sum(x[:, None] * x, axis=0)):
    given = tg.jit(f)
    print(given(x), tg.jvp(given)(x, x))
    print(tg.jacobian(given)(x), tg.hvp(tg.jit(lambda x: tg.sum(f(x))))(x, x))
    print(tg.hessian(tg.jit(lambda x: tg.sum(f(x))))(x))
"""


@pytest.mark.compiled
def test_other_processes_compile_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_OPT", "3")  # without optimization numba caches no function that calls
    environment = {**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path)}
    found = [
        subprocess.run(
            [sys.executable, "-c", MATRICES.replace("{}", compiler)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for compiler in ("compiler.CompilerBase.compile_extra", "refused")
    ]
    assert found[0] == found[1]


@pytest.mark.compiled
def test_gradients_of_stacked_products():
    def f(x, y):
        return tg.sum(tg.tanh(x @ y) ** 2)

    x, y = np.sin(np.arange(24.0)).reshape(2, 3, 4), np.cos(np.arange(40.0)).reshape(2, 4, 5)
    jitted = tg.jit(f)
    assert_equal(tg.grad(jitted, (0, 1))(x, y), tg.grad(f, (0, 1))(x, y))
    assert not jitted.inspect(x, y).startswith("op by op")


WITHOUT_SCIPY = """
import sys

sys.modules["scipy"] = None
import numpy as np
import tapegrad as tg

rng = np.random.default_rng(0)
a, s, x = rng.normal(size=(20, 20)), rng.normal(size=(3, 20, 20)), rng.normal(size=20)
programs = [
    (lambda x: tg.sum(tg.sin(a @ x)), x),
    (lambda y: tg.sum(tg.sin(y @ a)), a),
    (lambda y: tg.sum(tg.sin(y @ s)), s),
]
for f, given in programs:
    np.testing.assert_allclose(tg.jit(f)(given), f(tg.tensor(given)).numpy(), rtol=1e-12)
    np.testing.assert_allclose(tg.grad(tg.jit(f))(given), tg.grad(f)(given), rtol=1e-12, atol=1e-12)
"""


@pytest.mark.compiled
def test_products_without_scipy(tmp_path):
    environment = {**os.environ, "TAPEGRAD_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", WITHOUT_SCIPY], env=environment, check=True)


@dataclasses.dataclass
class Counted:
    array: np.ndarray
    calls: int = 0


CHANGES = {
    "an item": (lambda p: p.update(w=p["w"] * 2.0), lambda: {"w": V * 1.0}),
    "a new key": (lambda p: p.update(v=p["w"]), lambda: {"w": V * 1.0}),
    "a list": (lambda p: p.append(p[0]), lambda: [V * 1.0]),
    "a shorter list": (lambda p: p.pop(), lambda: [V * 1.0, 2.0]),
    "a field": (lambda p: setattr(p, "array", p.array * 2.0), lambda: Counted(V * 1.0)),
    "a setting": (lambda p: setattr(p, "calls", 1), lambda: Counted(V * 1.0)),
    "a number": (lambda p: p.update(k=p["k"] + 1.0), lambda: {"k": 1.0, "w": V}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_containers_are_refused(name):
    change, make = CHANGES[name]

    def f(x, p):
        change(p)
        return x * 2.0

    for _ in range(2):
        with pytest.raises(tg.RecordingError, match=r"changes argument 1, a (dict|list|Counted)"):
            tg.jit(f)(V, make())
    with pytest.raises(tg.RecordingError, match="changes argument 'p'"):
        tg.jit(f)(V, p=make())
    assert_equal(tg.jit(lambda x, p: f(x, copy.copy(p)))(V, make()), V * 2.0)


def test_arrays_in_containers_are_changed():
    def f(p):
        p["w"] *= 2.0
        return p["w"].sum()

    p = {"w": V * 1.0}
    assert tg.jit(f)(p) == (2.0 * V).sum()
    assert_equal(p["w"], 2.0 * V)


def test_tensors_in_arrays_of_numpy():
    def f(x):
        out = np.zeros(3)
        out[0] = x[0] * 2.0
        return x * out

    with pytest.raises(
        tg.RecordingError, match=r"line \d+ .*out.*fill tapegrad.zeros\(n\) in place"
    ):
        tg.jit(f)(V)
    with pytest.raises(RuntimeError, match=r"lose its gradient; .* tg.zeros\(n\) instead of np"):
        tg.grad(lambda x: f(x).sum())(V)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_not_collected_while_recording(is_enabled):
    seen = []

    def function(x):
        seen.append(gc.isenabled())
        if x.shape == (3,):
            raise ValueError("three")
        return tg.sum(x * x)

    jitted = tg.jit(function)
    (gc.enable if is_enabled else gc.disable)()
    try:
        assert jitted(np.ones(2)) == 2.0
        assert gc.isenabled() == is_enabled
        with pytest.raises(ValueError, match="three"):
            jitted(np.ones(3))
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
    assert not any(seen)
