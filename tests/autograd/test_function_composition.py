"""Functions among ops, hooks and other Functions; errors inside them."""

import numpy as np
import pytest
from functions import CUBES, DIFFERENTIABLE_CUBES, Cube, Exp, double, make, same, values
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import grad


class TestDoubleBackward:
    """A backward that consists of ops can be differentiated again."""

    @pytest.mark.parametrize("cube", DIFFERENTIABLE_CUBES)
    def test_three_times(self, cube):
        x = leaf([1.0, 2.0])
        (first,) = grad(cube.apply(x).sum(), x, create_graph=True)
        assert first.tolist() == [3.0, 12.0]
        (second,) = grad(first.sum(), x, create_graph=True)
        assert second.tolist() == [6.0, 12.0]
        (third,) = grad(second.sum(), x)
        assert third.tolist() == [6.0, 6.0]

    def test_through_a_saved_output(self):
        x = leaf([0.0, 1.0])
        y = Exp.apply(x)
        for _ in range(4):
            (y,) = grad(y.sum(), x, create_graph=True)
            np.testing.assert_allclose(values(y), np.exp([0.0, 1.0]), rtol=1e-12)

    def test_through_one_saved_output_of_two(self):
        class Both(tg.Function):
            @staticmethod
            def forward(ctx, x):
                s, c = tg.sin(x), tg.cos(x)
                ctx.save_for_backward(s, c)
                return s, c

            @staticmethod
            def backward(ctx, gs, gc):
                s, c = ctx.saved_tensors
                return gs * c - gc * s

        x = leaf(0.3)
        s, c = Both.apply(x)
        (first,) = grad(s * c, x, create_graph=True)
        assert first.item() == pytest.approx(np.cos(0.6))
        (second,) = grad(first, x, create_graph=True)
        assert second.item() == pytest.approx(-2 * np.sin(0.6))
        (third,) = grad(second, x)
        assert third.item() == pytest.approx(-4 * np.cos(0.6))

    def test_in_the_cotangent(self):
        x = leaf([1.0, 2.0])
        seed = leaf([3.0, 5.0])
        (first,) = grad(Cube.apply(x), x, seed, create_graph=True)
        (by_seed,) = grad(first.sum(), seed)
        assert by_seed.tolist() == [3.0, 12.0]

    def test_several_inputs_and_outputs(self):
        class ProductAndSum(tg.Function):
            @staticmethod
            def forward(ctx, x, y):
                ctx.save_for_backward(x, y)
                return x * y, x + y

            @staticmethod
            def backward(ctx, g, h):
                x, y = ctx.saved_tensors
                return g * y + h, g * x + h

        x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        a, b = ProductAndSum.apply(x, y)
        first = grad((a * b).sum(), [x, y], create_graph=True)
        assert [g.tolist() for g in first] == [[15.0, 32.0], [7.0, 20.0]]
        second = grad((first[0] * first[1]).sum(), [x, y])
        assert [g.tolist() for g in second] == [[162.0, 544.0], [86.0, 368.0]]

    @pytest.mark.parametrize("cube", DIFFERENTIABLE_CUBES)
    def test_gradgradcheck(self, cube):
        assert tg.autograd.gradcheck(cube.apply, leaf([0.5, 1.5]))
        assert tg.autograd.gradgradcheck(cube.apply, leaf([0.5, 1.5]))


class TestComposition:
    """Functions combine with one another, with views and with hooks."""

    def test_a_function_in_the_forward_of_another(self):
        class Outer(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return Cube.apply(x) * 2

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                with tg.enable_grad():
                    inner = x.detach().requires_grad_()
                    y = Cube.apply(inner) * 2
                return g * grad(y, inner, tg.ones(y.shape))[0]

        x = leaf([1.0, 2.0])
        Outer.apply(x).sum().backward()
        assert x.grad.tolist() == [6.0, 24.0]

    def test_a_function_in_the_backward_of_another(self):
        class Sine(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return tg.as_tensor(np.sin(values(x)))

            @staticmethod
            def backward(ctx, g):
                return g * Cosine.apply(*ctx.saved_tensors)

        class Cosine(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return tg.as_tensor(np.cos(values(x)))

            @staticmethod
            def backward(ctx, g):
                return -g * Sine.apply(*ctx.saved_tensors)

        x = leaf([0.3, 1.2])
        y = Sine.apply(x)
        for expected in (np.cos, lambda v: -np.sin(v), lambda v: -np.cos(v), np.sin):
            (y,) = grad(y.sum(), x, create_graph=True)
            np.testing.assert_allclose(values(y), expected(np.array([0.3, 1.2])), rtol=1e-12)

    def test_a_backward_pass_inside_backward(self):
        w = leaf(3.0)

        def backward(ctx, g):
            with tg.enable_grad():
                (w * w).backward()
            return g * 2

        x = leaf(1.0)
        make(double, backward).apply(x).backward()
        assert x.grad.item() == 2.0
        assert w.grad.item() == 6.0

    def test_a_chain(self):
        x = leaf(1.0)
        y = x
        f = make(double, lambda ctx, g: g * 2)
        for _ in range(100):
            y = f.apply(y)
        y.backward()
        assert x.grad.item() == 2.0**100

    def test_hooks_on_outputs(self):
        f = make(lambda ctx, x: (x * 2, x * 3), lambda ctx, a, b: a * 2 + b * 3)
        x = leaf([1.0, 2.0])
        a, b = f.apply(x)
        a.register_hook(lambda g: g * 10)
        b.retain_grad()
        (a + b).sum().backward()
        assert x.grad.tolist() == [23.0, 23.0]
        assert b.grad.tolist() == [1.0, 1.0]

    def test_views_as_inputs(self):
        x = leaf(np.arange(6.0).reshape(2, 3))
        Cube.apply(x.T[1:]).sum().backward()
        expected = 3 * np.arange(6.0).reshape(2, 3) ** 2
        expected[:, 0] = 0
        np.testing.assert_array_equal(values(x.grad), expected)

    def test_strided_gradients(self):
        f = make(lambda ctx, x: x.T * 2, lambda ctx, g: g.T * 2)
        x = leaf(np.arange(6.0).reshape(2, 3))
        weights = np.arange(6.0).reshape(3, 2)
        (f.apply(x) * weights).sum().backward()
        np.testing.assert_array_equal(values(x.grad), 2 * weights.T)

    @pytest.mark.parametrize("cube", CUBES)
    def test_forward_runs_once_for_each_apply(self, cube, monkeypatch):
        calls = []
        forward = cube.forward
        counted = staticmethod(lambda *args: calls.append(1) or forward(*args))
        if cube.setup_context is not tg.Function.setup_context:
            counted = staticmethod(lambda x: calls.append(1) or forward(x))
        monkeypatch.setattr(cube, "forward", counted)
        x = leaf(2.0)
        cube.apply(x).backward()
        assert calls == [1]

    def test_backward_is_looked_up_when_it_runs(self):
        f = make(double, same)
        x = leaf(1.0)
        y = f.apply(x)
        f.backward = staticmethod(lambda ctx, g: g * 9)
        y.backward()
        assert x.grad.item() == 9.0


class TestSavingForForwardMode:
    """`save_for_forward` keeps tensors for `jvp`, apart from those of backward."""

    @pytest.mark.parametrize(("bad", "name"), [(1, "int"), ([], "list")])
    def test_save_for_forward_takes_tensors(self, bad, name):
        def forward(ctx, x):
            ctx.save_for_forward(bad)
            return x * 2

        with pytest.raises(
            (AssertionError, TypeError),
            match="save_for_forward expects all arguments to be tensors",
        ):
            make(forward, same).apply(leaf(1.0))

    def test_backward_does_not_see_what_was_saved_for_forward(self):
        seen = []

        def forward(ctx, x):
            ctx.save_for_forward(x, None)
            return x * 2

        def backward(ctx, g):
            seen.append(ctx.saved_tensors)
            return g

        make(forward, backward).apply(leaf(1.0)).backward()
        assert seen == [()]


class TestErrorsInside:
    """An error of the user's code comes through and leaves everything as it was."""

    @pytest.mark.parametrize("where", ["forward", "setup"])
    def test_in_forward(self, where):
        def fail(*args):
            raise KeyError("mine")

        def plain(x):
            return x * 2

        f = make(fail, same) if where == "forward" else make(plain, same, fail)
        x = leaf(1.0)
        with pytest.raises(KeyError, match="mine"):
            f.apply(x)
        assert tg.is_grad_enabled()
        (g,) = grad(Cube.apply(x), x)
        assert g.item() == 3.0

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_in_backward(self, create_graph):
        def fail(ctx, g):
            raise KeyError("mine")

        x = leaf(1.0)
        with pytest.raises(KeyError, match="mine"):
            grad(make(double, fail).apply(x), x, create_graph=create_graph)
        assert tg.is_grad_enabled()
        assert x.grad is None
        (g,) = grad(x * 3, x)
        assert g.item() == 3.0

    def test_in_backward_under_no_grad(self):
        def fail(ctx, g):
            raise KeyError("mine")

        y = make(double, fail).apply(leaf(1.0))
        with tg.no_grad():
            with pytest.raises(KeyError, match="mine"):
                y.backward()
            assert not tg.is_grad_enabled()

    def test_in_the_middle_of_a_graph(self):
        def fail(ctx, g):
            raise KeyError("mine")

        x, w = leaf(1.0), leaf(2.0)
        y = make(double, fail).apply(x * 3) * w
        with pytest.raises(KeyError, match="mine"):
            y.backward(retain_graph=True)
        assert x.grad is None
        (g,) = grad(y, w)
        assert g.item() == 6.0

    def test_what_forward_did_in_place_stays(self):
        def fail(ctx, x):
            x.add_(1.0)
            raise KeyError("mine")

        x = leaf(1.0) * 1
        with pytest.raises(KeyError, match="mine"):
            make(fail, same).apply(x)
        assert x.item() == 2.0
        assert x._version == 1
        assert x.requires_grad

    def test_a_mode_that_forward_changes_is_restored(self):
        def forward(ctx, x):
            tg.set_grad_enabled(True)
            return x * 2

        with tg.no_grad():
            make(forward, same).apply(leaf(1.0))
            assert not tg.is_grad_enabled()
        assert tg.is_grad_enabled()

    @pytest.mark.parametrize("stop", [KeyboardInterrupt, GeneratorExit])
    def test_interrupts(self, stop):
        def fail(ctx, x):
            raise stop

        with pytest.raises(stop):
            make(fail, same).apply(leaf(1.0))
        assert tg.is_grad_enabled()
