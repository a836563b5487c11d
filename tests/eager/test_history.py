"""In-place work and what belongs to a tensor: hooks, retained gradients, leaves, Functions."""

import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import LEAF, MODIFIED, VIEW_OF_LEAF

import tapegrad as tg
from tapegrad.autograd import grad


class TestRetainedGradients:
    """A retained gradient follows the tensor: `.grad` is that of its last value."""

    @pytest.mark.parametrize("written_before", [False, True])
    def test_across_an_operator(self, written_before):
        x = leaf([1.0, 2.0])
        y = x * 2
        if written_before:
            y.mul_(5)
        y.retain_grad()
        y *= 3
        y += 1.0
        assert y.retains_grad
        (y * y).sum().backward()
        expected = [62.0, 122.0] if written_before else [14.0, 26.0]
        np.testing.assert_array_equal(values(y.grad), expected)

    def test_of_a_base_written_through_a_view(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        y.retain_grad()
        view = y[:1]
        view *= 3
        y.sum().backward()
        np.testing.assert_array_equal(values(y.grad), [1.0, 1.0])
        assert not view.retains_grad
        np.testing.assert_array_equal(values(x.grad), [6.0, 2.0])

    def test_of_a_base_with_another_view(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        y.retain_grad()
        view, sibling = y[:1], y[:]
        view *= 3
        (y + sibling).sum().backward()
        np.testing.assert_array_equal(values(y.grad), [2.0, 2.0])
        np.testing.assert_array_equal(values(x.grad), [6.0, 2.0])

    @pytest.mark.parametrize("both", [False, True])
    @pytest.mark.parametrize("write", [lambda y, v: y.mul_(3), lambda y, v: v.mul_(3)])
    def test_of_a_view(self, write, both):
        x = leaf([1.0, 2.0])
        y = x * 2
        view = y[:1]
        view.retain_grad()
        if both:
            y.retain_grad()
        write(y, view)
        (view * 5).sum().backward(retain_graph=True)
        np.testing.assert_array_equal(values(view.grad), [5.0])
        assert x.grad[0].item() == 30.0
        y.sum().backward()
        assert (view.retains_grad, y.retains_grad) == (True, both)
        np.testing.assert_array_equal(values(view.grad), [5.0])
        assert x.grad[0].item() == 36.0
        if both:
            np.testing.assert_array_equal(values(y.grad), [6.0, 1.0])


class TestHooks:
    """A hook stays with the value it was registered on, and not with the one that is written."""

    def test_old_and_new_version(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        seen = []
        y.register_hook(lambda g: seen.append(("old", g.tolist())))
        y *= 3
        y.register_hook(lambda g: seen.append(("new", g.tolist())))
        y.mul_(5)
        y.register_hook(lambda g: seen.append(("newest", g.tolist())))
        y.sum().backward()
        assert seen == [("newest", [1.0, 1.0]), ("new", [5.0, 5.0]), ("old", [15.0, 15.0])]
        np.testing.assert_array_equal(values(x.grad), [30.0, 30.0])

    def test_of_base_and_view(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        seen = []
        y.register_hook(lambda g: seen.append(("old base", g.tolist())))
        view = y[:1]
        view.register_hook(lambda g: seen.append(("old view", g.tolist())))
        view *= 3
        y.register_hook(lambda g: seen.append(("base", g.tolist())))
        view.register_hook(lambda g: seen.append(("view", g.tolist())))
        y.sum().backward(retain_graph=True)
        assert seen == [("base", [1.0, 1.0]), ("old base", [3.0, 1.0])]
        seen.clear()
        (y.sum() + 10 * view.sum()).backward()
        assert seen == [("view", [10.0]), ("base", [11.0, 1.0]), ("old base", [33.0, 1.0])]
        np.testing.assert_array_equal(values(x.grad), [72.0, 4.0])

    def test_a_hook_of_the_old_value_can_be_removed(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        handle = y.register_hook(lambda g: g * 10)
        y *= 3
        handle.remove()
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [6.0, 6.0])

    def test_a_hook_of_the_old_value_can_replace_its_gradient(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        y.register_hook(lambda g: g * 10)
        y *= 3
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [60.0, 60.0])

    def test_a_hook_of_a_view_is_passed_over_after_a_write_through_it(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        view = y[:1]
        view.register_hook(lambda g: g * 10)
        view *= 3
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [6.0, 2.0])

    def test_of_a_view_whose_base_is_written(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        view = y[:1]
        seen = []
        view.register_hook(lambda g: seen.append(("old", g.tolist())))
        y.mul_(10)
        assert view.grad_fn is not None
        (view * 7).sum().backward(retain_graph=True)
        assert seen == []
        view.register_hook(lambda g: seen.append(("new", g.tolist())))
        ((view * 7).sum() + y.sum()).backward()
        assert seen == [("new", [7.0])]
        np.testing.assert_array_equal(values(x.grad), [150.0, 10.0])

    def test_of_a_leaf_written_under_no_grad(self):
        x = leaf([1.0, 2.0])
        seen = []
        x.register_hook(lambda g: seen.append(g.tolist()))
        with tg.no_grad():
            x *= 2
        (x * 3).sum().backward()
        assert seen == [[3.0, 3.0]]


class TestDetachInPlace:
    """`detach_()` makes a leaf of the tensor itself; views refuse it."""

    def test_cuts(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        assert y.detach_() is y
        assert not y.requires_grad
        assert y.is_leaf
        assert y.grad_fn is None
        assert y._version == 0
        z = y.requires_grad_() * 3
        z.sum().backward()
        np.testing.assert_array_equal(values(y.grad), [3.0, 3.0])
        assert x.grad is None

    def test_what_was_computed_before_keeps_its_history(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        z = (y * 3).sum()
        y.detach_()
        z.backward()
        np.testing.assert_array_equal(values(x.grad), [6.0, 6.0])

    def test_a_leaf(self):
        x = leaf([1.0, 2.0])
        x.detach_()
        assert not x.requires_grad
        assert x.is_leaf

    @pytest.mark.parametrize(
        "make",
        [
            lambda: (leaf([1.0, 2.0]) * 1)[:1],
            lambda: tg.zeros(2)[:1],
            lambda: (leaf([[1.0, 2.0]]) * 1).T,
            lambda: tg.split(leaf([1.0, 2.0]) * 1, 2)[0],
        ],
    )
    def test_views_refuse_it(self, make):
        with pytest.raises(
            RuntimeError, match=r"Can't detach views in-place. Use detach\(\) instead"
        ):
            make().detach_()

    def test_views_of_it_keep_their_history(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        view = y[:1]
        y.detach_()
        assert view.requires_grad
        view.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [2.0, 0.0])


class TestRequiresGradInPlace:
    """`requires_grad_()` makes a leaf record; writes are refused from then on."""

    def test_then_writes_are_refused(self):
        t = tg.zeros(2)
        t += 1.0
        t.requires_grad_()
        with pytest.raises(RuntimeError, match=LEAF):
            t += 1.0
        t.requires_grad_(False)
        t += 1.0
        assert t.tolist() == [2.0, 2.0]

    def test_what_was_computed_before_stays_passive(self):
        t = tg.zeros(2)
        before = t * 2
        t.requires_grad_()
        assert not before.requires_grad
        assert (t * 2).requires_grad

    def test_a_detached_leaf(self):
        y = leaf([1.0, 2.0]) * 1
        d = y.detach().requires_grad_()
        with pytest.raises(RuntimeError, match=LEAF):
            d += 1.0
        with pytest.raises(RuntimeError, match=VIEW_OF_LEAF):
            d[:1].zero_()
        assert y._version == 0

    def test_a_write_with_history_into_a_detached_tensor(self):
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        y = x * 1
        before = y.grad_fn.name()
        d = y.detach()
        d += w
        assert d.requires_grad
        assert y.grad_fn.name() == before
        assert y.tolist() == [4.0, 6.0]
        gw, gx = grad(d.sum() + (10 * y).sum(), [w, x])
        np.testing.assert_array_equal(values(gw), [1.0, 1.0])
        np.testing.assert_array_equal(values(gx), [10.0, 10.0])


class TestFunctions:
    """Inside a Function in-place work is free; what it saved is watched all the same."""

    def test_work_on_its_own_tensors(self):
        class F(tg.Function):
            @staticmethod
            def forward(ctx, x):
                y = x * 2
                y += 1
                y[0] = 7.0
                y[1:].zero_()
                return y

            @staticmethod
            def backward(ctx, g):
                h = g.clone()
                h *= 2
                h[0] = 0.0
                return h

        x = leaf([1.0, 2.0])
        y = F.apply(x)
        assert y.tolist() == [7.0, 0.0]
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [0.0, 2.0])

    @pytest.mark.parametrize("saved", ["input", "output"])
    def test_what_it_saved_is_watched(self, saved):
        class F(tg.Function):
            @staticmethod
            def forward(ctx, x):
                y = x.exp()
                ctx.save_for_backward(x if saved == "input" else y)
                return y

            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0]

        y = leaf([1.0, 2.0]) * 1
        z = F.apply(y)
        total = z.sum()
        if saved == "input":
            y += 1.0
        else:
            z += 1.0
        with pytest.raises(RuntimeError, match=MODIFIED):
            total.backward()


class TestLeavesThatCease:
    """A leaf that requires no gradients any more gets none from graphs that it took part in."""

    @pytest.mark.parametrize("cease", [lambda x: x.detach_(), lambda x: x.requires_grad_(False)])
    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.filterwarnings("ignore:Using backward")
    def test_no_gradient(self, cease, create_graph):
        x, w = (tg.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        calls = []
        x.register_hook(calls.append)
        z = (x * x * w).sum()
        cease(x)
        z.backward(create_graph=create_graph)
        assert x.grad is None
        assert len(calls) == 1  # what a hook sees is a gradient of the graph
        assert w.grad.tolist() == [1.0, 4.0]
        w.grad = None

    def test_again(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        z = (x * x).sum()
        x.detach_()
        x.requires_grad_()
        z.backward()
        assert x.grad.tolist() == [2.0, 4.0]

    def test_what_was_saved_keeps_its_history(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        z = (y * y).sum()
        y.detach_()
        z.backward()
        assert x.grad.tolist() == [8.0, 16.0]

    def test_other_data(self):
        """What was computed decides, not what stands there since."""
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        z = (x * x).sum()
        x.data = x.data * 3
        z.backward()
        assert x.grad.tolist() == [2.0, 4.0]
