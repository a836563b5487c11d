"""Checkpointing: the derivatives of the plain call, or an error."""

import functools
import gc
import threading
import tracemalloc
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad, grad
from tapegrad.utils.checkpoint import (
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)

X = np.array([0.3, 0.7, 1.1])
DIFFERENT = "different than during the forward pass"


def f(x):
    return tg.sin(tg.exp(x * x) * x) + x


def saving(x, **options):
    return checkpoint(f, x, use_reentrant=False, **options)


def agree(found, expected, rtol=1e-12):
    np.testing.assert_allclose(found, expected, rtol=rtol)


def leaf(data=X):
    return tg.tensor(data, requires_grad=True)


def gradient(function, x=X):
    x = leaf(x)
    function(x).sum().backward()
    return x.grad.numpy()


class TestDerivatives:
    @pytest.mark.parametrize(
        "transform",
        [
            lambda f: tg.grad(lambda x: f(x).sum())(X),
            lambda f: tg.value_and_grad(lambda x: f(x).sum())(X),
            lambda f: tg.vjp(f, X)[1](np.ones(3)),
            lambda f: tg.jvp(f)(X, np.array([1.0, 2.0, 0.0])),
            lambda f: tg.jacobian(f)(X),
            lambda f: tg.jacfwd(f)(X),
            lambda f: tg.hessian(lambda x: f(x).sum())(X),
            lambda f: tg.hvp(lambda x: f(x).sum())(X, np.ones(3)),
            lambda f: tg.linearize(f, X)[1](np.ones(3)),
            lambda f: tg.grad(lambda x: tg.grad(lambda x: f(x).sum())(x).sum())(X),
            lambda f: tg.vmap(f)(np.stack([X, 2 * X])),
            lambda f: tg.vmap(tg.grad(lambda x: f(x).sum()))(np.stack([X, 2 * X])),
            lambda f: tg.grad(lambda x: tg.vmap(f)(x).sum())(np.stack([X, 2 * X])),
            lambda f: tg.autograd.functional.hessian(lambda x: f(x).sum(), leaf()).numpy(),
        ],
    )
    def test_transforms(self, transform):
        found, expected = transform(saving), transform(f)
        if not isinstance(found, tuple):
            found, expected = (found,), (expected,)
        for one, other in zip(found, expected, strict=True):
            agree(one, other)

    def test_a_pullback_may_be_called_again(self):
        _, pullback = tg.vjp(saving, X)
        first, again = pullback(np.ones(3)), pullback(np.ones(3))
        agree(first[0], again[0])

    def test_a_pushforward_may_be_called_again(self):
        _, pushforward = tg.linearize(saving, X)
        agree(pushforward(np.ones(3)), pushforward(np.ones(3)))

    def test_many_cotangents(self):
        x = leaf()
        (rows,) = grad(saving(x), x, np.eye(3), is_grads_batched=True)
        agree(rows.numpy(), np.diag(gradient(f)))

    def test_gradients_of_gradients_of_gradients(self):
        def third(f):
            x = leaf()
            (a,) = grad(f(x).sum(), x, create_graph=True)
            (b,) = grad(a.sum(), x, create_graph=True)
            return grad(b.sum(), x)[0].numpy()

        agree(third(saving), third(f))

    def test_gradcheck(self):
        assert tg.autograd.gradcheck(saving, leaf(), check_forward_ad=True)
        assert tg.autograd.gradgradcheck(saving, leaf())

    def test_deep_nesting(self):
        depth = []

        def nested(x, level=6):
            depth.append(level)
            if not level:
                return f(x)
            return checkpoint(nested, tg.sin(x), level - 1, use_reentrant=False) * x

        def plain(x, level=6):
            return plain(tg.sin(x), level - 1) * x if level else f(x)

        agree(gradient(nested), gradient(plain))

    def test_under_anomaly_mode(self):
        with pytest.warns(UserWarning, match="Anomaly Detection"), tg.autograd.detect_anomaly():
            agree(gradient(saving), gradient(f))

    def test_complex_numbers(self):
        def power(x):
            z = tg.exp(1j * x) * x
            return tg.absolute(z * z + z)

        found = gradient(lambda x: checkpoint(power, x, use_reentrant=False))
        agree(found, gradient(power))

    def test_float32(self):
        x = X.astype("f4")
        agree(gradient(saving, x), gradient(f, x), rtol=1e-5)

    def test_an_empty_array(self):
        assert gradient(saving, np.zeros((0, 3))).shape == (0, 3)

    @pytest.mark.parametrize("size", [1, 5000, 40_000])
    def test_arrays_in_any_layout(self, size):
        x = np.random.default_rng(0).normal(size=(size, 2))

        def plain(x):
            y = tg.exp(x.T) * x.T[::-1]
            return tg.cumsum(y[:, ::-1], 1) * y

        found = gradient(lambda x: checkpoint(plain, x, use_reentrant=False), x)
        agree(found, gradient(plain, x))


class TestFunctionsInside:
    def test_a_function_that_reads_its_tensors_twice(self):
        class Cube(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                ctx.known = 3
                return x**3

            @staticmethod
            def backward(ctx, g):
                return g * ctx.known * ctx.saved_tensors[0] * ctx.saved_tensors[0]

        def plain(x):
            return Cube.apply(tg.exp(x))

        found = gradient(lambda x: checkpoint(plain, x, use_reentrant=False))
        agree(found, gradient(plain))

    @pytest.mark.compiled
    def test_a_compiled_function(self):
        @tg.njit
        def norm(x):
            total = 0.0
            for k in range(x.size):
                total += x[k] * x[k]
            return np.sqrt(total)

        @tg.njit
        def scaled(x, a):
            return np.sin(x) * a

        def plain(x):
            return scaled(tg.exp(x), 2.0) * norm(x)

        found = gradient(lambda x: checkpoint(plain, x, use_reentrant=False))
        np.testing.assert_allclose(found, gradient(plain), rtol=1e-14)

    def test_a_gradient_inside(self):
        def inner(x):
            (g,) = grad(tg.exp(x * x).sum(), x, create_graph=True)
            return g * tg.grad(lambda y: tg.sin(y * x).sum())(x)

        found = gradient(lambda x: checkpoint(inner, x, use_reentrant=False))
        agree(found, gradient(inner))

    def test_a_gradient_inside_without_early_stop(self):
        def inner(x):
            (g,) = grad(tg.exp(x * x).sum(), x, create_graph=True)
            return g * x

        found = gradient(lambda x: checkpoint(inner, x, use_reentrant=False, early_stop=False))
        agree(found, gradient(inner))

    def test_handlers_of_exceptions_do_not_see_the_early_stop(self):
        seen = []

        def catching(x):
            try:
                return tg.exp(x).sin()
            except Exception as error:
                seen.append(error)
                raise

        gradient(lambda x: checkpoint(catching, x, use_reentrant=False))
        assert seen == []

    def test_an_error_inside(self):
        calls = []

        def failing(x):
            calls.append(x)
            if len(calls) == 2:
                raise KeyError("second")
            return f(x)

        x = leaf()
        y = checkpoint(failing, x, use_reentrant=False).sum()
        with pytest.raises(KeyError):
            y.backward()
        assert tg.is_grad_enabled()
        agree(gradient(f), gradient(saving))


@dataclass
class Layer:
    weight: object
    name: str


class TestArguments:
    def test_a_dataclass(self):
        w = leaf()
        layer = Layer(w, "first")
        y = checkpoint(
            lambda x, layer: tg.exp(x * layer.weight), leaf(), layer, use_reentrant=False
        )
        y.sum().backward()
        agree(w.grad.numpy(), gradient(lambda w: tg.exp(tg.tensor(X) * w)))

    def test_a_list_that_the_function_changes(self):
        def function(tensors):
            tensors.append(tensors[0] * tensors[0])
            return tg.exp(tensors[-1])

        x = leaf()
        checkpoint(function, [x], use_reentrant=False).sum().backward()
        agree(x.grad.numpy(), gradient(lambda x: tg.exp(x * x)))

    def test_inference_tensors(self):
        with tg.inference_mode():
            w = tg.tensor(X)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            checkpoint(lambda x, w: x * w, leaf(), w, use_reentrant=False)

    def test_sequences_are_cut_into_segments(self):
        for segments in (0, -1, 4, 2.5):
            with pytest.raises(ValueError, match="expected an integer from 1 to"):
                checkpoint_sequential([tg.sin] * 3, segments, leaf(), use_reentrant=False)


class TestWhatChanged:
    """Nothing that the function reads may change unnoticed."""

    def test_a_tensor_that_is_closed_over(self):
        w = leaf()
        y = checkpoint(lambda x: tg.exp(x * w), leaf(), use_reentrant=False)
        with tg.no_grad():
            w *= 2
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()

    def test_a_tensor_that_no_op_saves(self):
        w = tg.tensor(X)
        y = checkpoint(lambda x: tg.exp(x + w), leaf(), use_reentrant=False)
        w += 1e-12
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()

    def test_an_array(self):
        w = X.copy()
        y = checkpoint(lambda x, w: tg.exp(x) * w, leaf(), w, use_reentrant=False)
        w[0] = 5.0
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()

    def test_one_element_of_a_large_array(self):
        w = np.ones(100_000)
        y = checkpoint(lambda x: tg.exp(x) * w, leaf(w), use_reentrant=False)
        w[77_777] += 2e-16
        assert w[77_777] != 1.0
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()

    def test_the_order_of_rows(self):
        w = np.random.default_rng(0).normal(size=(500, 256))
        y = checkpoint(lambda x: tg.exp(x) * w, leaf(w), use_reentrant=False)
        w[:] = w[::-1].copy()
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()

    def test_a_generator(self):
        rng = np.random.default_rng(0)
        y = checkpoint(lambda x: x * rng.normal(size=3), leaf(), use_reentrant=False)
        with pytest.raises(CheckpointError, match="random generator whose state is not preserved"):
            y.sum().backward()

    def test_a_write_inside_to_something_outside(self):
        count = tg.tensor(X)

        def function(x):
            count.add_(1)
            return tg.exp(x * count)

        y = checkpoint(function, leaf(), use_reentrant=False)
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()

    def test_a_write_during_the_backward_pass(self):
        w = leaf()

        def update(w):
            with tg.no_grad():
                w -= w.grad

        w.register_post_accumulate_grad_hook(update)
        y = checkpoint(lambda x: tg.exp(tg.sin(x * w) * w.detach()), leaf(), use_reentrant=False)
        x = leaf()
        z = checkpoint(lambda x: tg.sin(x * w.detach()) * w, x, use_reentrant=False)
        y.sum().backward()
        assert not np.array_equal(w.detach().numpy(), X)
        with pytest.raises(RuntimeError, match=DIFFERENT):
            z.sum().backward()

    def test_recomputed_values_are_protected_from_writes(self):
        w = tg.tensor(X)

        def write(g):
            w.add_(1)

        def function(x):
            y = x * w
            y.register_hook(write)
            return tg.exp(y)

        x = leaf()
        y = checkpoint(function, x, use_reentrant=False)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    def test_without_the_check(self):
        w = tg.tensor(X)
        y = checkpoint(
            lambda x: tg.exp(x + w), leaf(), use_reentrant=False, determinism_check="none"
        )
        w += 1
        y.sum().backward()

    def test_a_result_that_is_written_to(self):
        """The records need the values that were computed, and these are recomputed."""
        x = leaf()
        y = checkpoint(tg.exp, x, use_reentrant=False)
        y.add_(1)
        y.sum().backward()
        agree(x.grad.numpy(), np.exp(X))

    def test_after_an_error_the_graph_can_be_used(self):
        w = tg.tensor(X)
        x = leaf()
        y = checkpoint(lambda x: tg.exp(x + w), x, use_reentrant=False).sum()
        w += 1
        with pytest.raises(CheckpointError):
            y.backward()
        w.copy_(X)
        y.backward()
        agree(x.grad.numpy(), np.exp(X + X))

    def test_debugging(self):
        calls = []

        def function(x):
            calls.append(x)
            return tg.exp(x @ x) if len(calls) == 1 else tg.sum(x)

        with set_checkpoint_debug_enabled(True):
            y = checkpoint(function, leaf(), use_reentrant=False)
        with pytest.raises(CheckpointError) as caught:
            y.backward()
        assert "matmul(float64[3], float64[3]) -> float64[]" in str(caught.value)
        assert "recomputation:\n\n  sum(float64[3], axis=None" in str(caught.value)
        assert "A different number of tensors" in str(caught.value.__cause__)


class TestRandomDraws:
    def test_the_global_generator(self):
        np.random.seed(3)  # noqa: NPY002
        x = leaf()
        y = checkpoint(lambda x: x * np.random.rand(3), x, use_reentrant=False)  # noqa: NPY002
        drawn = y.detach().numpy() / X
        following = np.random.get_state()[1].copy(), np.random.get_state()[2]  # noqa: NPY002
        y.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), drawn, rtol=1e-15)
        assert np.array_equal(np.random.get_state()[1], following[0])  # noqa: NPY002
        assert np.random.get_state()[2] == following[1]  # noqa: NPY002

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_not_preserved(self, use_reentrant):
        y = checkpoint(
            lambda x: x * np.random.rand(3),  # noqa: NPY002
            leaf(),
            use_reentrant=use_reentrant,
            preserve_rng_state=False,
        )
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()


class TestMemory:
    """Values are dropped, and everything goes by reference counting."""

    @pytest.fixture(autouse=True)
    def _without_the_garbage_collector(self):
        gc.collect()
        gc.disable()
        yield
        gc.enable()

    def test_values_are_dropped(self):
        seen = []

        def function(x):
            y = tg.exp(x)
            seen.append(weakref.ref(y.detach().numpy()))
            return tg.sin(y)

        x = leaf()
        y = checkpoint(function, x, use_reentrant=False).sum()
        assert seen[0]() is None
        y.backward()
        assert len(seen) == 2
        assert seen[1]() is None

    @pytest.mark.parametrize("ends", ["backward", "retained", "second", "dropped", "error", "jvp"])
    def test_nothing_is_left(self, ends):
        class Thing:
            calls = 0

            def __call__(self, x):
                self.calls += 1
                if ends == "error" and self.calls == 2:
                    return x
                return checkpoint(f, tg.sin(x), use_reentrant=False)

        thing, x = Thing(), leaf()
        held = weakref.ref(thing)
        y = checkpoint(thing, x, use_reentrant=False).sum()
        if ends == "backward":
            y.backward()
        elif ends == "retained":
            y.backward(retain_graph=True)
        elif ends == "second":
            (g,) = grad(y, x, create_graph=True)
            grad(g.sum(), x)
            del g
        elif ends == "jvp":
            tg.jvp(functools.partial(checkpoint, thing, use_reentrant=False))(X, X)
        elif ends == "error":
            with pytest.raises(CheckpointError) as caught:
                y.backward()
            del caught
        del thing, y
        assert held() is None

    def test_recomputed_values_are_dropped_after_a_retained_pass(self):
        seen = []

        def function(x):
            y = tg.exp(x)
            seen.append(weakref.ref(y.detach().numpy()))
            return tg.sin(y)

        x = leaf()
        y = checkpoint(function, x, use_reentrant=False).sum()
        y.backward(retain_graph=True)
        assert seen[1]() is None
        y.backward()
        assert len(seen) == 3

    def test_the_peak(self):
        """Of a chain of 200 ops: 100 values, and with checkpoints 10 states and 10 values."""
        x = leaf(np.full(100_000, 0.1))

        def chain(x, count=10):
            for _ in range(count):
                x = tg.exp(-x)
            return x

        def peak(run):
            tracemalloc.start()
            run().sum().backward()
            found = tracemalloc.get_traced_memory()[1] / x.nbytes
            tracemalloc.stop()
            return found

        def checkpointed():
            y = x
            for _ in range(10):
                y = checkpoint(chain, y, use_reentrant=False)
            return y

        checkpointed().sum().backward()  # compiles
        assert peak(lambda: chain(x, 100)) > 95
        assert peak(checkpointed) < 30


class TestThreads:
    def test_a_graph_is_swept_in_another_thread(self):
        x = leaf()
        y = saving(x).sum()
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
        agree(x.grad.numpy(), gradient(f))

    def test_two_threads_sweep_one_graph(self):
        x = leaf(np.full(1000, 0.5))
        y = saving(x).sum()
        found, barrier = [], threading.Barrier(4)

        def sweep():
            barrier.wait()
            found.extend(grad(y, x, retain_graph=True)[0].numpy() for _ in range(20))

        threads = [threading.Thread(target=sweep) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 80
        assert all(np.array_equal(g, found[0]) for g in found)


class TestReentrant:
    def test_no_second_derivatives(self):
        x = leaf()
        y = checkpoint(lambda x: tg.exp(x), x, use_reentrant=True).sum()
        with pytest.warns(UserWarning, match="create_graph=True"):
            y.backward(create_graph=True)
        with pytest.raises(RuntimeError, match="@once_differentiable"):
            grad(x.grad.sum(), x)

    def test_containers_of_results(self):
        with pytest.raises(TypeError, match="returned a dict of tensors"):
            checkpoint(lambda x: {"y": x * x}, leaf(), use_reentrant=True)

    def test_a_container_of_arguments(self):
        with pytest.warns() as caught:
            checkpoint(lambda xs: xs[0] * xs[0], [leaf()], use_reentrant=True)
        texts = " ".join(str(w.message) for w in caught)
        assert "None of the inputs have requires_grad=True" in texts
        assert "argument 2 is a list with a tensor that requires grad" in texts

    def test_something_that_changed(self):
        w = tg.tensor(X)
        y = checkpoint(lambda x: x * w, leaf(), use_reentrant=True)
        w += 1
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()

    def test_a_write_that_changes_derivatives_alone(self):
        w = tg.tensor(X)
        y = checkpoint(lambda x: x * w, leaf(0 * X), use_reentrant=True)
        w += 1
        with pytest.raises(CheckpointError, match=DIFFERENT):
            y.sum().backward()

    def test_writing_inside(self):
        def function(x):
            y = x * 1
            y *= x
            return tg.exp(y)

        found = gradient(lambda x: checkpoint(function, x, use_reentrant=True))
        agree(found, gradient(function))

    def test_in_a_batch_it_is_called(self):
        x = np.stack([X, 2 * X])
        found = tg.vmap(tg.grad(lambda x: checkpoint(f, x, use_reentrant=True).sum()))(x)
        agree(found, tg.vmap(tg.grad(lambda x: f(x).sum()))(x))

    def test_transforms_are_refused(self):
        with pytest.raises(RuntimeError, match=r"incompatible with \.grad\(\)"):
            tg.grad(lambda x: checkpoint(f, x, use_reentrant=True).sum())(X)


def test_settings_are_restored():
    with (
        set_checkpoint_early_stop(False),
        pytest.raises(ValueError, match="wrong"),
        set_checkpoint_early_stop(True),
        set_checkpoint_debug_enabled(True),
    ):
        raise ValueError("wrong")
    calls = []

    def function(x):
        y = tg.exp(x)
        calls.append(y)
        return y * 1

    with set_checkpoint_debug_enabled(None):
        gradient(lambda x: checkpoint(function, x, use_reentrant=False))
    assert len(calls) == 1


def test_saved_attributes_are_recomputed():
    y = checkpoint(tg.exp, leaf(), use_reentrant=False)
    for _ in range(2):
        agree(y.grad_fn._saved_result.detach().numpy(), np.exp(X))


class TestDualTensors:
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_calls_in_a_level(self, reentrant):
        x, v = leaf(), tg.tensor([1.0, -0.5, 2.0])
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, v)
            y = checkpoint(f, dual, use_reentrant=reentrant)
            t = forward_ad.unpack_dual(y).tangent
            agree(t.detach().numpy(), tg.jvp(f)(X, v.numpy())[1])
            (g,) = grad(y.sum(), x)
            found = forward_ad.unpack_dual(g).tangent
        agree(found.numpy(), tg.hvp(lambda x: f(x).sum())(X, v.numpy()))

    def test_cotangents_with_tangents(self):
        x, v = leaf(), tg.tensor([1.0, -0.5, 2.0])
        y = saving(x)
        with forward_ad.dual_level():
            (g,) = grad(y, x, forward_ad.make_dual(tg.ones(3), v))
            found = forward_ad.unpack_dual(g).tangent
        agree(found.numpy(), gradient(f) * v.numpy())


def test_draws_of_the_default_generator():
    def noisy(x):
        return tg.sin(x * tg.random.normal(size=3))

    tg.random.seed(5)
    expected = gradient(noisy)
    following = tg.random.random().item()
    tg.random.seed(5)
    agree(gradient(lambda x: checkpoint(noisy, x, use_reentrant=False)), expected)
    assert tg.random.random().item() == following
