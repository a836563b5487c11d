"""Threads: graphs recorded in one and swept in another, or in several at once."""

import sys
import threading
import warnings

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg
from tapegrad.autograd import forward_ad, grad
from tapegrad.utils.checkpoint import checkpoint

SECOND_TIME = "Trying to backward through the graph a second time"


def in_threads(*functions):
    """Run functions at once, each in a thread of its own; raise the first error of any."""
    errors = []
    barrier = threading.Barrier(len(functions))

    def guarded(function):
        try:
            barrier.wait()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


class TestThreads:
    """Graphs may be recorded in one thread and swept in others; nothing is lost."""

    def test_recorded_here_and_swept_there(self):
        x = leaf([1.0, 2.0])
        y = (x.exp() * x).sum()
        in_threads(y.backward)
        np.testing.assert_allclose(values(x.grad), np.exp([1.0, 2.0]) * [2.0, 3.0])

    def test_a_backward_inside_a_backward_there(self):
        x, w = leaf(2.0), leaf(3.0)
        inner = w * w
        y = x * x
        y.register_hook(lambda g: inner.backward())
        in_threads(y.backward)
        assert (x.grad.item(), w.grad.item()) == (4.0, 6.0)

    def test_recorded_there_and_swept_here(self):
        x = leaf([1.0, 2.0])
        made = []
        in_threads(lambda: made.append((x.exp() * x).sum()))
        made[0].backward()
        np.testing.assert_allclose(values(x.grad), np.exp([1.0, 2.0]) * [2.0, 3.0])

    def test_recorded_in_several_threads(self):
        x = leaf([1.0, 2.0])
        shared = x * x
        outs = {}

        def work(k):
            def run():
                y = shared
                for _ in range(100):
                    y = y * 1.01 + shared
                outs[k] = y.sum()

            return run

        in_threads(*(work(k) for k in range(4)))
        expected = grad(outs[0], x, retain_graph=True)[0]
        for k in range(1, 4):
            (found,) = grad(outs[k], x, retain_graph=True)
            np.testing.assert_array_equal(values(found), values(expected))
        (together,) = grad(outs[0] + outs[1] * outs[2], x)
        assert np.isfinite(values(together)).all()

    def test_disjoint_graphs_at_once(self):
        def chain(k):
            x = y = leaf(np.full(50, 0.01 * k))
            for _ in range(20):
                y = y.sin() * 1.1 + y * y
            y.sum().backward()
            return values(x.grad)

        results = {k: [] for k in range(4)}

        def work(k):
            return lambda: results[k].extend(chain(k) for _ in range(30))

        in_threads(*map(work, results))
        for k, found in results.items():
            assert len(found) == 30
            for each in found:
                np.testing.assert_array_equal(each, chain(k))

    def test_one_graph_swept_by_two_threads(self):
        x = leaf(np.linspace(0.1, 0.9, 20))
        y = x
        for _ in range(30):
            y = y.sin() * 1.2 + y * 0.1
        total = (y * y).sum()
        (expected,) = grad(total, x, retain_graph=True)
        found = []

        def run():
            found.extend(grad(total, x, retain_graph=True)[0] for _ in range(50))

        in_threads(run, run)
        assert len(found) == 100
        for each in found:
            np.testing.assert_array_equal(values(each), values(expected))

    def test_one_graph_accumulated_by_two_threads(self):
        x = leaf([1.0, 2.0])
        total = (x * x * x).sum()

        def run():
            for _ in range(300):
                total.backward(retain_graph=True)

        in_threads(run, run)
        np.testing.assert_array_equal(values(x.grad), 600 * 3 * np.array([1.0, 4.0]))

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_one_leaf_loses_nothing(self, create_graph):
        x = leaf(np.zeros(3))
        count = 50 if create_graph else 1000

        def run():
            for _ in range(count):
                (x * 2.0).sum().backward(create_graph=create_graph)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with warnings.catch_warnings(action="ignore"):
                in_threads(*[run] * 4)
        finally:
            sys.setswitchinterval(interval)
        np.testing.assert_array_equal(values(x.grad), 8.0 * count)

    def test_the_first_accumulation_loses_nothing_either(self):
        for _ in range(200):
            x = leaf(np.zeros(2))
            in_threads(*[(x * 2.0).sum().backward] * 3)
            np.testing.assert_array_equal(values(x.grad), 6.0)

    def test_one_graph_is_freed_once(self):
        """Of two sweeps that free one graph, both are right or the later one says so."""
        for _ in range(50):
            x = leaf([1.0, 2.0])
            total = (x.exp() * x).sum()
            done, refused = [], []

            def run(x=x, total=total, done=done, refused=refused):
                try:
                    done.append(grad(total, x)[0])
                except RuntimeError as error:
                    refused.append(str(error))

            in_threads(run, run)
            assert len(done) + len(refused) == 2
            for g in done:
                np.testing.assert_allclose(values(g), np.exp([1.0, 2.0]) * [2.0, 3.0])
            assert all(SECOND_TIME in text for text in refused)

    def test_modes_belong_to_their_thread(self):
        seen = []
        with tg.no_grad():
            in_threads(lambda: seen.append(tg.is_grad_enabled()))
            assert not tg.is_grad_enabled()
        assert seen == [True]

    def test_hooks_run_in_the_sweeping_thread(self):
        x = leaf(1.0)
        y = x * 2
        seen = []
        y.register_hook(lambda g: seen.append(threading.get_ident()))
        in_threads(y.backward)
        assert len(seen) == 1
        assert seen[0] != threading.get_ident()


def f(x):
    return (tg.sin(x) * tg.exp(x * 0.3)).sum() * x[0]


X = np.array([0.4, 0.9, 1.3])
DIRECTION = np.array([1.0, -2.0, 0.5])
GRADIENT = tg.grad(f)(X)
SECOND = tg.hvp(f)(X, DIRECTION)


def dual_tensors():
    x = leaf(X)
    with forward_ad.dual_level():
        y = f(forward_ad.make_dual(x, tg.tensor(DIRECTION)))
        assert forward_ad.unpack_dual(y).tangent.item() == pytest.approx(GRADIENT @ DIRECTION)
        (g,) = grad(y, x)
        np.testing.assert_allclose(values(forward_ad.unpack_dual(g).tangent), SECOND)
    assert forward_ad.unpack_dual(y).tangent is None


def batches():
    rows = np.stack([X, X * 0.5, X])
    found = tg.vmap(tg.grad(lambda row: tg.vmap(lambda a: f(row) * a)(row).sum()))(rows)
    np.testing.assert_allclose(found[0], tg.grad(lambda row: f(row) * row.sum())(X))
    np.testing.assert_allclose(found[2], found[0])


def backward_passes():
    x = leaf(X)
    for _ in range(3):
        f(x).backward()
    np.testing.assert_allclose(values(x.grad), 3.0 * GRADIENT)


def modes():
    x = leaf(X)
    with tg.no_grad():
        assert not f(x).requires_grad
        with tg.enable_grad():
            assert f(x).requires_grad
    with tg.inference_mode():
        assert f(x).is_inference()
    assert f(x).requires_grad


def checkpoints():
    x = leaf(X)
    checkpoint(f, x, use_reentrant=False).backward()
    np.testing.assert_allclose(values(x.grad), GRADIENT)


def walks():
    np.testing.assert_allclose(tg.jvp(f)(X, DIRECTION)[1], GRADIENT @ DIRECTION)
    np.testing.assert_allclose(tg.jacobian(tg.grad(f))(X) @ DIRECTION, SECOND)


def test_levels_batches_and_modes_belong_to_their_threads():
    kinds = [dual_tensors, batches, backward_passes, modes, checkpoints, walks]

    def worker(seed):
        order = np.random.default_rng(seed).integers(len(kinds), size=25)
        return lambda: [kinds[k]() for k in order]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(*map(worker, range(8)))
    finally:
        sys.setswitchinterval(interval)
