"""Loops with few stored states: the derivatives of the loop, or an error."""

import builtins
import gc
import sys
import tracemalloc
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad, grad
from tapegrad.utils.checkpoint import CheckpointError, checkpoint
from tapegrad.utils.revolve import recomputed_steps
from tapegrad.utils.snapshots import Spilled, Store, loaded

X = np.array([0.5, 0.7, -0.2])
OTHER = "computes other values in the backward pass"


def step(i, x, rate):
    return x + rate * tg.sin(x) / (1 + i)


def loop(x, rate, n=23):
    for i in range(n):
        x = step(i, x, rate)
    return x


def scan(x, rate, n=23, memory=4, **options):
    return tg.checkpoint_scan(step, x, n, rate, memory=memory, **options)


def leaf(data=X):
    return tg.tensor(data, requires_grad=True)


def agree(found, expected):
    if not isinstance(found, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


class TestDerivatives:
    @pytest.mark.parametrize("memory", [1, 2, 5, 23, 50])
    def test_gradients(self, memory):
        found = tg.grad(lambda x, r: scan(x, r, memory=memory).sum(), (0, 1))(X, 0.1)
        agree(found, tg.grad(lambda x, r: loop(x, r).sum(), (0, 1))(X, 0.1))

    @pytest.mark.parametrize("n", [0, 1, 2, 3])
    def test_short_loops(self, n):
        found = tg.grad(lambda x, r: (scan(x, r, n) * r).sum(), (0, 1))(X, 0.1)
        agree(found, tg.grad(lambda x, r: (loop(x, r, n) * r).sum(), (0, 1))(X, 0.1))

    @pytest.mark.parametrize(
        "transform",
        [
            lambda f: tg.value_and_grad(lambda x: f(x, 0.1).sum())(X),
            lambda f: tg.vjp(f, X, 0.1)[1](np.ones(3)),
            lambda f: tg.jvp(f, (0, 1))(X, 0.1, np.array([1.0, 2.0, 0.0]), 3.0),
            lambda f: tg.jvp(f, 1)(X, 0.1, 1.0),
            lambda f: tg.jacobian(f)(X, 0.1),
            lambda f: tg.jacfwd(f)(X, 0.1),
            lambda f: tg.hessian(lambda x: f(x, 0.1).sum())(X),
            lambda f: tg.hessian(lambda r: f(X, r).sum())(0.1),
            lambda f: tg.hvp(lambda x: f(x, 0.1).sum())(X, np.ones(3)),
            lambda f: tg.linearize(f, X, 0.1)[1](np.ones(3), 1.0),
            lambda f: tg.grad(lambda x: tg.jvp(f)(x, 0.1, tg.tensor(X))[1].sum())(X),
            lambda f: tg.grad(lambda x: tg.grad(lambda y: f(y, 0.1).sum())(x).sum())(X),
        ],
    )
    def test_transforms(self, transform):
        agree(transform(scan), transform(loop))

    def test_second_derivatives_where_one_argument_depends_on_another(self):
        def second(f):
            x = leaf()
            y = f(x, (x * x).sum()).sum()
            (g,) = grad(y, x, create_graph=True)
            return g.detach().numpy(), grad((g * g).sum(), x)[0].numpy()

        agree(second(scan), second(loop))

    def test_gradcheck(self):
        assert tg.autograd.gradcheck(scan, (leaf(), leaf(0.1)), check_forward_ad=True)
        assert tg.autograd.gradgradcheck(scan, (leaf(), leaf(0.1)))

    def test_two_backward_passes(self):
        x = leaf()
        y = scan(x, 0.1).sum()
        y.backward(retain_graph=True)
        first = x.grad.numpy().copy()
        y.backward()
        agree(x.grad.numpy(), 2 * first)
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second"):
            y.backward()

    def test_only_what_is_needed(self):
        x, r = leaf(), leaf(0.1)
        agree(grad(scan(x, r).sum(), r)[0].numpy(), grad(loop(x, r).sum(), r)[0].numpy())

    def test_complex_states(self):
        z = X * (1 + 0.3j)
        agree(
            tg.grad(lambda z: tg.absolute(scan(z, 0.1)).sum())(z),
            tg.grad(lambda z: tg.absolute(loop(z, 0.1)).sum())(z),
        )

    def test_inside_of_a_checkpoint(self):
        x = leaf()
        checkpoint(lambda x: scan(tg.sin(x), 0.1) * x, x, use_reentrant=False).sum().backward()
        agree(x.grad.numpy(), tg.grad(lambda x: (loop(tg.sin(x), 0.1) * x).sum())(X))

    def test_checkpoints_inside(self):
        def checkpointed(i, x, rate):
            return checkpoint(step, i, x, rate, use_reentrant=False)

        def run(x, rate):
            return tg.checkpoint_scan(checkpointed, x, 23, rate, memory=3)

        agree(
            tg.grad(lambda x, r: run(x, r).sum(), (0, 1))(X, 0.1),
            tg.grad(lambda x, r: loop(x, r).sum(), (0, 1))(X, 0.1),
        )


@dataclass
class Body:
    position: object
    velocity: object
    name: str = "body"


class TestStates:
    def test_pytrees(self):
        def move(i, s, params):
            x, v = s["x"], s["v"]
            return {"x": x + params["dt"] * v, "v": v - params["dt"] * params["k"] * tg.sin(x)}

        def end(s, params, run):
            return (run(move, s, 30, params)["x"] ** 2).sum()

        def plain(step, s, n, params):
            for i in range(n):
                s = step(i, s, params)
            return s

        def few(*args):
            return tg.checkpoint_scan(*args, memory=3)

        s, params = {"x": X, "v": 0 * X}, {"dt": 0.1, "k": 2.0}
        found, expected = (
            tg.grad(lambda s, p: end(s, p, run), (0, 1))(s, params) for run in (few, plain)
        )
        for one, other in zip(found, expected):
            agree(tuple(one.values()), tuple(other.values()))

    def test_a_dataclass(self):
        def move(i, b):
            return Body(b.position + b.velocity, b.velocity * 0.9, b.name)

        found = tg.checkpoint_scan(move, Body(X, X), 10, memory=3)
        assert isinstance(found.position, np.ndarray)
        assert found.name == "body"

    def test_parts_that_are_not_differentiable(self):
        def count(i, s):
            return {"n": s["n"] + 1, "x": s["x"] * s["n"]}

        def end(x):
            found = tg.checkpoint_scan(count, {"n": np.array(1), "x": x}, 5, memory=2)
            return found["x"].sum()

        agree(tg.grad(end)(X), np.full(3, 120.0))

    @pytest.mark.parametrize(
        ("new", "text"),
        [
            (lambda x: x[:1], r"returned a state of shapes and dtypes float64\[1\]"),
            (lambda x: x.astype("f4"), r"returned a state of shapes and dtypes float32\[3\]"),
            (lambda x: (x, x), "returned a pair, as a step of tg.scan; here it returns the state"),
            (lambda x: (x, None), "returned a pair, as a step of tg.scan"),
            (lambda x: (x, x, x), "returned a state of another structure"),
            (lambda x: "x", "the result of step contains a str"),
        ],
    )
    def test_states_are_alike(self, new, text):
        with pytest.raises((ValueError, TypeError), match=text):
            tg.checkpoint_scan(lambda i, x: new(x), leaf(), 3)

    def test_results_have_their_own_memory(self):
        x = leaf()
        for same in (lambda i, x: x, lambda i, x: x[::-1]):
            y = tg.checkpoint_scan(same, x, 4, memory=2)
            with tg.no_grad():
                y *= 3
            assert np.array_equal(x.detach().numpy(), X)

    def test_arrays_stay_arrays(self):
        assert type(scan(X, 0.1)) is np.ndarray
        assert type(scan(0.5, 0.1)) is np.float64
        assert type(scan(tg.tensor(X), 0.1)) is tg.Tensor
        with tg.no_grad():
            assert not scan(leaf(), 0.1).requires_grad
        with tg.inference_mode():
            assert scan(leaf(), 0.1).is_inference()

    @pytest.mark.compiled
    def test_compiled_steps(self):
        @tg.njit
        def compiled(i, x, rate):
            return x + rate * np.sin(x) / (1 + i)

        def run(x, rate):
            return tg.checkpoint_scan(compiled, x, 23, rate, memory=3)

        agree(run(X, 0.1), scan(X, 0.1))
        agree(
            tg.grad(lambda x, r: run(x, r).sum(), (0, 1))(X, 0.1),
            tg.grad(lambda x, r: loop(x, r).sum(), (0, 1))(X, 0.1),
        )
        agree(tg.jvp(run)(X, 0.1, np.ones(3)), tg.jvp(loop)(X, 0.1, np.ones(3)))
        with pytest.raises(TypeError, match="the state of a compiled step is one array or number"):
            tg.checkpoint_scan(compiled, (X, X), 3, 0.1)

    def test_a_compiled_step_that_writes(self):
        @tg.njit
        def writing(i, x):
            x[0] = 2 * x[0]
            return x

        with pytest.raises(tg.TransformError, match="writes into argument 1, which is a tensor"):
            tg.checkpoint_scan(writing, leaf(), 3)


class TestClosures:
    """Tensors that the step closes over get their gradients, or an error says what to do."""

    def test_leaves(self):
        w, b, x = leaf(0.1), leaf(X), leaf()
        y = tg.checkpoint_scan(lambda i, x: step(i, x, w) + b * i, x, 23, memory=3).sum()
        y.backward()
        found = [t.grad.numpy() for t in (w, b, x)]
        z = x
        for i in range(23):
            z = step(i, z, w) + b * i
        for one, other in zip(found, grad(z.sum(), (w, b, x))):
            agree(one, other.numpy())

    def test_a_computed_tensor(self):
        w = leaf(0.2)
        rate = w * w
        tg.checkpoint_scan(lambda i, x: step(i, x, rate), X, 23, memory=3).sum().backward()
        agree(w.grad.numpy(), tg.grad(lambda w: loop(X, w * w).sum())(0.2))

    def test_other_tensors_in_other_steps(self):
        ws = [leaf(0.1 * k) for k in range(5)]
        tg.checkpoint_scan(lambda i, x: x * ws[i] + x, X, 5, memory=2).sum().backward()
        z = tg.tensor(X)
        for w in ws:
            z = z * w + z
        for w, g in zip(ws, grad(z.sum(), ws)):
            agree(w.grad.numpy(), g.numpy())

    def test_tangents(self):
        def end(w):
            return tg.checkpoint_scan(lambda i, x: step(i, x, w), X, 23, memory=3)

        agree(tg.jvp(end)(0.1, 1.0), tg.jvp(lambda w: loop(X, w))(0.1, 1.0))

    def test_one_that_is_computed_from_another(self):
        w = leaf(0.1)
        rate = tg.exp(w)
        with pytest.raises(RuntimeError, match="another one that is computed from it; pass both"):
            tg.checkpoint_scan(lambda i, x: x * w + rate, leaf(), 3)

    def test_hooks(self):
        w = leaf(0.1)
        w.register_hook(lambda g: 2 * g)
        with pytest.raises(RuntimeError, match="has hooks or retains its gradient"):
            tg.checkpoint_scan(lambda i, x: x * w, leaf(), 3)
        y = tg.checkpoint_scan(lambda i, x, w: x * w, leaf(), 3, w).sum()
        y.backward()
        agree(w.grad.numpy(), 2 * 3 * X.sum() * 0.1**2)

    def test_second_derivatives(self):
        w, x = leaf(0.1), leaf()
        y = tg.checkpoint_scan(lambda i, x: step(i, x, w), x, 3).sum()
        with pytest.raises(RuntimeError, match="no second derivatives where step closes over"):
            grad(y, x, create_graph=True)

    def test_a_tensor_of_an_earlier_step(self):
        kept = []

        def remembering(i, x):
            kept.append(x * 2)
            return x + kept[max(i - 2, 0)]

        with pytest.raises(RuntimeError, match="step 1 reads a tensor of an earlier step"):
            tg.checkpoint_scan(remembering, leaf(), 3)

    def test_a_batch(self):
        with pytest.raises(tg.BatchError, match="called inside of vmap"):
            tg.vmap(lambda x: scan(x, 0.1))(np.ones((2, 3)))


class TestWhatChanges:
    def test_random_draws(self):
        rng = np.random.default_rng(0)
        y = tg.checkpoint_scan(lambda i, x: x * rng.normal(), leaf(), 9, memory=3)
        with pytest.raises(CheckpointError, match=OTHER):
            y.sum().backward()

    def test_random_draws_that_can_be_repeated(self):
        def noisy(i, x):
            return x * np.random.default_rng((7, i)).normal()

        x = leaf()
        tg.checkpoint_scan(noisy, x, 9, memory=3).sum().backward()
        factor = np.prod([np.random.default_rng((7, i)).normal() for i in range(9)])
        agree(x.grad.numpy(), np.full(3, factor))

    def test_writing_to_the_state(self):
        def writing(i, x):
            x += 1
            return x

        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used"):
            tg.checkpoint_scan(writing, leaf(), 3)

    def test_writing_to_the_memory_of_the_state(self):
        def writing(i, x):
            y = x * 1.5
            x.detach().numpy()[0] += 1
            return y

        y = tg.checkpoint_scan(writing, leaf(), 9, memory=3)
        with pytest.raises(CheckpointError, match=OTHER):
            y.sum().backward()

    @pytest.mark.parametrize("which", ["state", "argument"])
    def test_writing_to_arguments_afterwards(self, which):
        x, rate = leaf() * 1, leaf(0.1) * 1
        y = scan(x, rate).sum()
        (x if which == "state" else rate).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()

    @pytest.mark.parametrize("kind", ["tensor", "array"])
    def test_writing_to_what_is_closed_over(self, kind):
        w = tg.tensor(X) if kind == "tensor" else X.copy()
        y = tg.checkpoint_scan(lambda i, x: x * w, leaf(), 9, memory=3).sum()
        w[0] = 3.0
        with pytest.raises(CheckpointError, match=OTHER):
            y.backward()

    @pytest.mark.parametrize("kind", ["tensor", "array"])
    def test_a_write_that_changes_derivatives_alone(self, kind):
        w = tg.tensor(X) if kind == "tensor" else X.copy()
        y = tg.checkpoint_scan(lambda i, x: x * (w + 1), leaf(0 * X), 9, memory=3).sum()
        w[0] = 3.0
        with pytest.raises(CheckpointError, match=OTHER):
            y.backward()

    def test_forward_mode_and_second_derivatives_check_too(self):
        calls = []

        def changing(i, x):
            calls.append(i)
            return x * len(calls)

        with pytest.raises(CheckpointError, match=OTHER):
            tg.jvp(lambda x: tg.checkpoint_scan(changing, x, 4))(X, X)
        with pytest.raises(CheckpointError, match=OTHER):
            tg.hessian(lambda x: tg.checkpoint_scan(changing, x, 4).sum())(X)


class TestMemory:
    @pytest.mark.parametrize(("n", "memory"), [(1, 1), (10, 3), (57, 4), (200, 7), (40, 40)])
    def test_the_number_of_computed_steps(self, n, memory):
        calls = []

        def counted(i, x):
            calls.append(i)
            return x * 1.01

        y = tg.checkpoint_scan(counted, leaf(), n, memory=memory).sum()
        assert calls == list(range(n))
        y.backward()
        # n steps forward, of which the schedule counts n - 1, and n that are reversed
        assert len(calls) - n - 1 == recomputed_steps(n, memory)

    def test_the_peak(self):
        """In units of one state: the loop would keep all 100."""
        x = leaf(np.full(50_000, 0.5))

        def peak(memory, n):
            tracemalloc.start()
            y = tg.checkpoint_scan(lambda i, x: tg.sin(x), x, n, memory=memory).sum()
            forward = tracemalloc.get_traced_memory()[0]
            y.backward()
            found = forward, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            x.grad = None
            return [size / x.nbytes for size in found]

        peak(3, 5)  # compiles
        forward, whole = peak(10, 100)
        assert forward < 12
        assert whole < 18

    @pytest.mark.parametrize("memory_bytes", [0, 100, 10_000])
    def test_states_on_disk(self, memory_bytes):
        def end(x, rate):
            return scan(x, rate, memory=6, memory_bytes=memory_bytes).sum()

        agree(tg.grad(end, (0, 1))(X, 0.1), tg.grad(lambda x, r: loop(x, r).sum(), (0, 1))(X, 0.1))

    def test_the_store(self):
        store = Store(40)
        first = store.put([X])
        assert first[0] is X
        second = store.put([X, np.zeros((0, 2)), np.array(3)])
        assert isinstance(second, Spilled)
        assert [a.tolist() for a in loaded(second)] == [X.tolist(), [], 3]
        store.drop(second)
        assert store.used == 24
        store.drop(first)
        assert not isinstance(store.put([X]), Spilled)

    def test_files_take_no_memory(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        x = leaf(np.full(50_000, 0.5))
        tracemalloc.start()
        y = tg.checkpoint_scan(lambda i, x: tg.sin(x), x, 50, memory=20, memory_bytes=0).sum()
        held = tracemalloc.get_traced_memory()[0] / x.nbytes
        tracemalloc.stop()
        assert held < 3
        y.backward()
        del y
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("ends", ["dropped", "backward", "error"])
    def test_everything_goes_by_reference_counting(self, ends):
        class Step:
            calls = 0

            def __call__(self, i, x):
                self.calls += 1
                return x * (self.calls if ends == "error" else 2)

        gc.collect()
        gc.disable()
        try:
            made, x = Step(), leaf()
            held = weakref.ref(made)
            y = tg.checkpoint_scan(made, x, 9, memory=3).sum()
            if ends == "backward":
                y.backward()
            elif ends == "error":
                with pytest.raises(CheckpointError) as caught:
                    y.backward()
                del caught
            del made, y
            assert held() is None
        finally:
            gc.enable()


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"n": -1}, "n is -1; expected at least 0"),
            ({"n": 3, "memory": 0}, "memory is 0; expected 1 or more"),
        ],
    )
    def test_refused(self, options, text):
        with pytest.raises(ValueError, match=text):
            tg.checkpoint_scan(lambda i, x: x, leaf(), **options)
        with pytest.raises(TypeError):
            tg.checkpoint_scan(lambda i, x: x, leaf(), 2.5)
        with pytest.raises(TypeError, match="the state contains a str"):
            tg.checkpoint_scan(lambda i, x: x, "state", 2)

    @pytest.mark.parametrize("n", [None, X, 3.0])
    def test_the_order_of_scan(self, n):
        text = r"n is the number of steps, got .*tg\.scan\(step, state, xs, memory=7\)"
        with pytest.raises(TypeError, match=text):
            tg.checkpoint_scan(lambda u, _: (u * 2, None), X, n, 50, memory=7)
        found, _ = tg.scan(lambda u, _: (u * 2, None), X, None, 5, memory=2)
        np.testing.assert_array_equal(found, 32 * X)

    def test_progress(self, capsys):
        pytest.importorskip("rich")
        x = leaf()
        scan(x, 0.1, progress=True).sum().backward()
        shown = capsys.readouterr().out
        assert "checkpoint_scan: forward" in shown
        assert "checkpoint_scan: backward" in shown

    def test_progress_without_rich(self, monkeypatch):
        known = builtins.__import__

        def without(name, *args):
            if name.startswith("rich"):
                raise ImportError(name)
            return known(name, *args)

        for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ImportError, match=r"pip install 'tapegrad\[progress\]'"):
            scan(leaf(), 0.1, progress=True)


class TestDualTensors:
    def test_loops_in_a_level(self):
        x, v = leaf(), tg.tensor([1.0, -0.5, 2.0])
        expected = tg.jvp(lambda x: loop(x, 0.1))(X, v.numpy())[1]
        with forward_ad.dual_level():
            for mode in (tg.no_grad, tg.enable_grad):
                with mode():
                    y = scan(forward_ad.make_dual(x, v), 0.1)
                agree(forward_ad.unpack_dual(y).tangent.detach().numpy(), expected)
            (g,) = grad(y.sum(), x)
            found = forward_ad.unpack_dual(g).tangent.numpy()
        agree(found, tg.hvp(lambda x: loop(x, 0.1).sum())(X, v.numpy()))

    def test_cotangents_with_tangents(self):
        x, rate = leaf(), leaf(np.array(0.1))
        y = scan(x, rate)
        _, pull = tg.vjp(loop, X, np.array(0.1))
        v = np.array([1.0, -0.5, 2.0])
        with forward_ad.dual_level():
            found = grad(y, (x, rate), forward_ad.make_dual(tg.ones(3), v))
            tangents = tuple(forward_ad.unpack_dual(g).tangent.numpy() for g in found)
        agree(tangents, pull(v))


def test_second_derivatives_where_a_state_becomes_constant():
    def step(s, _):
        return {"q": tg.tanh(s["b"]), "b": tg.ones(2) * 0.5}, None

    def total(x, **options):
        s, _ = tg.scan(step, {"q": x, "b": 2.0 * x}, length=2, **options)
        return tg.sum(s["q"]) * tg.sum(x)

    x = np.ones(2)
    expected = tg.hvp(total)(x, x)
    for memory in (1, 2):
        found = tg.hvp(lambda x, memory=memory: total(x, memory=memory))(x, x)
        np.testing.assert_allclose(found, expected)
