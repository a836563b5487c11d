"""The engine: backward inside backward, long chains, errors on the way."""

import os
import threading

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg
from tapegrad.autograd import backward, grad

SECOND_TIME = "Trying to backward through the graph a second time"


class TestReentrant:
    """A backward may run inside a hook or a Function of another, in any graph, to any depth."""

    def test_in_a_hook(self):
        x, w = leaf(2.0), leaf(3.0)

        def hook(g):
            assert not tg.is_grad_enabled()
            with tg.enable_grad():
                (w * w).backward()

        y = x * x
        y.register_hook(hook)
        (y * 5).backward()
        assert x.grad.item() == 20.0
        assert w.grad.item() == 6.0

    def test_into_a_leaf_of_the_outer_one(self):
        x = leaf(2.0)

        def hook(g):
            with tg.enable_grad():
                (x * 7).backward()

        y = x * x
        y.register_hook(hook)
        (y * 5).backward()
        assert x.grad.item() == 27.0

    def test_in_a_leaf_hook_and_after_accumulation(self):
        x, w = leaf(2.0), leaf(3.0)
        again = []

        def inner(_):
            if len(again) < 3:
                again.append(1)
                with tg.enable_grad():
                    (w * 10).backward()

        x.register_hook(inner)
        x.register_post_accumulate_grad_hook(inner)
        (x * 5).backward()
        assert x.grad.item() == 5.0
        assert w.grad.item() == 20.0

    def test_to_any_depth(self):
        """Far deeper than the limit of recursion, with switches and errors as in one thread."""
        left = [1500]
        seen = []

        class Nested(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.x = x.detach()
                return x * 1.0

            @staticmethod
            def backward(ctx, g):
                seen.append(tg.is_grad_enabled())
                if not left[0]:
                    return g
                left[0] -= 1
                inner = ctx.x.clone().requires_grad_()
                with tg.enable_grad():
                    Nested.apply(inner).backward()
                return g + inner.grad

        x = leaf(1.0)
        Nested.apply(x).backward()
        assert x.grad.item() == 1501.0
        assert seen == [False] * 1501
        assert tg.is_grad_enabled()
        left[0] = 100

        class Failing(Nested):
            @staticmethod
            def backward(ctx, g):
                if not left[0]:
                    raise ValueError("at the bottom")
                left[0] -= 1
                with tg.enable_grad():
                    Failing.apply(leaf(1.0)).backward()

        threads = threading.active_count()
        with pytest.raises(ValueError, match="at the bottom"):
            Failing.apply(x).backward()
        assert threading.active_count() == threads
        assert tg.is_grad_enabled()

    def test_the_same_graph(self):
        x = leaf(2.0)
        y = x * x
        z = y * y
        depth = []

        def hook(g):
            if len(depth) < 3:
                depth.append(1)
                z.backward(retain_graph=True)

        y.register_hook(hook)
        z.backward(retain_graph=True)
        assert x.grad.item() == 4 * 32.0

    def test_the_inner_one_frees_what_the_outer_one_needs(self):
        x = leaf(0.5)
        y = x.exp()
        z = y.exp()
        once = []

        def hook(g):
            if not once:
                once.append(1)
                z.backward()

        z.register_hook(hook)
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            z.backward()
        x.grad = None
        (x * 3).backward()
        assert x.grad.item() == 3.0

    def test_grad_in_a_hook(self):
        x, w = leaf(2.0), leaf(3.0)
        inner = w**3

        y = x * 2
        y.register_hook(lambda g: g * grad(inner, w, retain_graph=True)[0])
        y.backward()
        assert x.grad.item() == 2 * 27.0

    @pytest.mark.parametrize("depth", [1, 5, 20])
    def test_in_functions_several_levels_deep(self, depth):
        class Square(tg.Function):
            @staticmethod
            def forward(ctx, x, depth):
                ctx.save_for_backward(x)
                ctx.depth = depth
                return x * x

            @staticmethod
            def backward(ctx, g):
                x = ctx.saved_tensors[0].detach().requires_grad_()
                with tg.enable_grad():
                    y = Square.apply(x, ctx.depth - 1) if ctx.depth else x * x
                    y.backward(g)
                return x.grad, None

        x = leaf([2.0, 3.0])
        Square.apply(x, depth).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [4.0, 6.0])

    def test_while_the_outer_one_has_much_left_to_do(self):
        xs = [leaf(np.full(3, float(k))) for k in range(5)]

        def hook(g):
            with tg.enable_grad():
                for x in xs:
                    (x * x).sum().backward()

        parts = [x * (k + 1.0) for k, x in enumerate(xs)]
        middle = parts[2]
        middle.register_hook(hook)
        total = parts[0]
        for part in parts[1:]:
            total = total * 1.0 + part
        total.sum().backward()
        for k, x in enumerate(xs):
            np.testing.assert_array_equal(values(x.grad), np.full(3, 2.0 * k + k + 1.0))

    def test_with_create_graph(self):
        x, w = leaf(2.0), leaf(3.0)
        seen = []

        def hook(g):
            (inner,) = grad(w**2, w, create_graph=True)
            seen.append(inner.item())
            return g * inner

        y = x**2
        y.register_hook(hook)
        (g,) = grad(y, x, create_graph=True)
        assert g.item() == 4.0 * 6.0
        assert seen == [6.0]
        assert grad(g, w)[0].item() == 4.0 * 2.0

    def test_the_mode_is_restored(self):
        x = leaf(2.0)
        y = x * x
        y.register_hook(lambda g: grad(x.detach().requires_grad_() * 1, [], allow_unused=True))
        with pytest.raises(RuntimeError):
            y.backward()
        assert tg.is_grad_enabled()
        assert (x * 2).requires_grad


class TestChains:
    """Chains of any length are recorded, swept and freed without recursion."""

    @pytest.mark.parametrize(
        "step",
        [
            lambda y: y + 1.0,
            lambda y: y * 1.00001,
            lambda y: y[::-1] * 1.0,
            lambda y: y.sin(),
            lambda y: tg.concatenate([y[1:], y[:1]]),
        ],
        ids=["add", "multiply", "view", "sin", "concatenate"],
    )
    def test_of_50_000_ops(self, step):
        x = y = leaf([1.0, 2.0])
        for _ in range(50_000):
            y = step(y)
        (g,) = grad(y.sum(), x)
        assert g.shape == (2,)
        assert np.isfinite(values(g)).all()
        del y

    def test_of_views_of_views(self):
        x = y = leaf([1.0, 2.0])
        for _ in range(10_000):
            y = y[::-1]
        (y * np.array([1.0, 10.0])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 10.0])
        assert y._base is x

    @pytest.mark.parametrize(
        "step, value", [(lambda y: y + 1.0, 50_001.0), (lambda y: y * 1.0, 1.0)]
    )
    def test_exact_value(self, step, value):
        x = y = leaf(1.0)
        for _ in range(50_000):
            y = step(y)
        y.backward()
        assert y.item() == value
        assert x.grad.item() == 1.0

    def test_freed_without_a_backward(self):
        y = leaf(1.0)
        for _ in range(50_000):
            y = y * 1.0
        del y
        assert leaf(1.0).item() == 1.0

    def test_of_in_place_ops(self):
        x = leaf([1.0, 2.0])
        y = x * 1.0
        for _ in range(20_000):
            y += 1.0
            y[:1] *= 1.0
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 1.0])

    def test_of_functions(self):
        class Same(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * 1.0

            @staticmethod
            def backward(ctx, g):
                _ = ctx.saved_tensors
                return g

        x = y = leaf([1.0, 2.0])
        for _ in range(10_000):
            y = Same.apply(y)
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 1.0])
        del y

    def test_recorded_backward(self):
        x = y = leaf(1.0)
        for _ in range(5_000):
            y = y * 1.0001
        (g,) = grad(y * y, x, create_graph=True)
        (h,) = grad(g, x)
        assert h.item() == pytest.approx(2 * 1.0001**10_000)

    @pytest.mark.skipif(
        os.environ.get("TAPEGRAD_LONG_TESTS") != "1",
        reason="takes ten seconds and more than 1 GB: set TAPEGRAD_LONG_TESTS=1",
    )
    def test_of_5_million_ops(self):
        x = y = leaf(1.0)
        for _ in range(5_000_000):
            y = y + 1.0
        y.backward()
        assert y.item() == 5_000_001.0
        assert x.grad.item() == 1.0
        del y
        assert (x * 2).item() == 2.0


class MineError(Exception):
    """An error of the user."""


class TestErrors:
    """An error in a hook or Function comes through, and the engine goes on as before."""

    def raising(self, *args):
        raise MineError("mine")

    def test_in_a_tensor_hook(self):
        x = leaf(2.0)
        y = x * x
        handle = y.register_hook(self.raising)
        with pytest.raises(MineError, match="mine"):
            (y * 3).backward()
        assert x.grad is None
        handle.remove()
        assert tg.is_grad_enabled()
        (x * 7).backward()
        assert x.grad.item() == 7.0

    def test_in_a_leaf_hook(self):
        x = leaf(2.0)
        handle = x.register_hook(self.raising)
        with pytest.raises(MineError):
            (x * 3).backward()
        assert x.grad is None
        handle.remove()
        (x * 3).backward()
        assert x.grad.item() == 3.0

    @pytest.mark.parametrize("where", ["forward", "backward"])
    def test_in_a_function(self, where):
        class F(tg.Function):
            @staticmethod
            def forward(ctx, x):
                if where == "forward":
                    raise MineError("mine")
                return x * 2

            @staticmethod
            def backward(ctx, g):
                raise MineError("mine")

        x = leaf(2.0)
        with pytest.raises(MineError, match="mine"):
            F.apply(x).backward()
        assert tg.is_grad_enabled()
        (x * x).backward()
        assert x.grad.item() == 4.0

    def test_a_retained_graph_can_be_swept_again(self):
        x = leaf(2.0)
        y = x.exp()
        z = y * y
        handle = y.register_hook(self.raising)
        for _ in range(3):
            with pytest.raises(MineError):
                z.backward(retain_graph=True)
        handle.remove()
        z.backward()
        assert x.grad.item() == pytest.approx(2 * np.exp(4.0))

    def test_in_the_inner_of_two(self):
        x, w = leaf(2.0), leaf(3.0)
        inner = w * w
        inner.register_hook(self.raising)
        y = x * x
        y.register_hook(lambda g: inner.backward())
        with pytest.raises(MineError):
            y.backward()
        assert x.grad is None
        assert w.grad is None
        (x * w).backward()
        assert (x.grad.item(), w.grad.item()) == (3.0, 2.0)

    def test_caught_inside_a_hook(self):
        x, w = leaf(2.0), leaf(3.0)
        inner = w * w
        inner.register_hook(self.raising)

        def hook(g):
            with pytest.raises(MineError):
                inner.backward()

        y = x * x
        y.register_hook(hook)
        y.backward()
        assert x.grad.item() == 4.0

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StopIteration])
    def test_of_other_kinds(self, error):
        x = leaf(2.0)

        def hook(g):
            raise error

        y = x * x
        y.register_hook(hook)
        with pytest.raises(error):
            y.backward()
        (x * 3).backward()
        assert x.grad.item() == 3.0

    def test_under_create_graph(self):
        x = leaf(2.0)
        y = x * x
        y.register_hook(self.raising)
        with pytest.raises(MineError):
            grad(y * 3, x, create_graph=True)
        assert tg.is_grad_enabled()

    def test_a_hook_that_overwrites_a_saved_value(self):
        x = leaf([1.0, 2.0])
        y = x.exp()

        def hook(g):
            y.detach().zero_()

        y.register_hook(hook)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


class TestRoots:
    """Roots may depend on each other, share everything or nothing."""

    def test_of_disjoint_graphs(self):
        x, w = leaf(2.0), leaf(3.0)
        backward([x**2, w**3])
        assert (x.grad.item(), w.grad.item()) == (4.0, 27.0)

    def test_of_one_chain(self):
        x = leaf(2.0)
        chain = [x]
        for _ in range(4):
            chain.append(chain[-1] * 2)
        backward(chain)
        assert x.grad.item() == 1 + 2 + 4 + 8 + 16

    def test_in_any_order(self):
        x = leaf(2.0)
        a = x * x
        b = a * a
        for roots in ([a, b], [b, a]):
            assert grad(roots, x, retain_graph=True)[0].item() == 36.0

    def test_hooks_see_the_sum(self):
        x = leaf(2.0)
        y = x * 3
        seen = []
        y.register_hook(lambda g: seen.append(g.item()))
        backward([y, y * 10, y])
        assert seen == [12.0]
        assert x.grad.item() == 36.0
