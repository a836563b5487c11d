"""Tensor hooks."""

import functools
import gc
import warnings

import numpy as np
import pytest
from functions import Nothing
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import grad


def kept_grad(t):
    """`.grad` of a tensor that may be no leaf (reading it may warn)."""
    with warnings.catch_warnings(action="ignore"):
        return t.grad


KINDS = {
    "leaf": lambda x: x,
    "saved": lambda x: x * x,
    "unsaved": lambda x: x + 1,
    "view": lambda x: (x * 1)[0:2],
    "view of a leaf": lambda x: x[0:2],
    "reshaped": lambda x: x.reshape(2, 1).reshape(2),
    "cumulative": lambda x: tg.cumsum(x, 0),
    "cast": lambda x: x.astype(np.float32).astype(np.float64),
    "reduction": lambda x: tg.sum(x.reshape(2, 1), axis=1),
    "written": lambda x: (x * 1).mul_(2),
}


def make(kind):
    """A leaf, a tensor of the kind, and a scalar computed from it, with d scalar / d tensor = 3."""
    x = leaf_of(1.0, 2.0)
    t = KINDS[kind](x)
    return x, t, (t * 3).sum()


@pytest.mark.parametrize("kind", KINDS)
class TestAnyTensor:
    """A hook sees the gradient of its tensor, whatever made the tensor, and may replace it."""

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_it_sees_the_gradient(self, kind, create_graph):
        x, t, y = make(kind)
        seen = []
        t.register_hook(lambda g: seen.append(g.tolist()))
        grad(y, x, create_graph=create_graph)
        assert seen == [[3.0, 3.0]]

    @pytest.mark.parametrize("through", ["backward", "grad", "create_graph", "inputs"])
    def test_it_replaces_the_gradient(self, kind, through):
        x, t, y = make(kind)
        before = grad(y, x, retain_graph=True)[0].tolist()
        t.register_hook(lambda g: g * 10)
        if through in ("backward", "inputs"):
            y.backward(inputs=[x] if through == "inputs" else None)
            found = x.grad
        else:
            (found,) = grad(y, x, create_graph=through == "create_graph")
        assert found.tolist() == pytest.approx([10 * v for v in before])

    def test_of_a_requested_input(self, kind):
        _, t, y = make(kind)
        t.register_hook(lambda g: g + 100)
        (found,) = grad(y, t)
        assert found.tolist() == [103.0, 103.0]

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_of_an_input_of_backward(self, kind, create_graph):
        _, t, y = make(kind)
        seen = []
        t.register_hook(lambda g: seen.append(1) or g + 100)
        with warnings.catch_warnings(action="ignore"):
            y.backward(inputs=[t], create_graph=create_graph)
        assert seen == [1]
        assert kept_grad(t).tolist() == [103.0, 103.0]

    def test_in_order_each_on_the_result_of_the_last(self, kind):
        _, t, y = make(kind)
        seen = []
        t.register_hook(lambda g: seen.append(("a", g[0].item())) or g + 1)
        t.register_hook(lambda g: seen.append(("b", g[0].item())))
        t.register_hook(lambda g: seen.append(("c", g[0].item())) or g * 2)
        y.backward()
        assert seen == [("a", 3.0), ("b", 4.0), ("c", 4.0)]

    def test_removed(self, kind):
        _, t, y = make(kind)
        seen = []
        first = t.register_hook(lambda g: seen.append("first"))
        t.register_hook(lambda g: seen.append("second"))
        first.remove()
        first.remove()
        y.backward()
        assert seen == ["second"]

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_another_shape(self, kind, create_graph):
        def shrink(g):
            return g[:1]

        x, t, y = make(kind)
        t.register_hook(shrink)
        with pytest.raises(RuntimeError, match="hook 'shrink' has changed the size of value"):
            grad(y, x, create_graph=create_graph)

    def test_an_error_comes_through(self, kind):
        def fail(g):
            raise KeyError("mine")

        x, t, y = make(kind)
        handle = t.register_hook(fail)
        with pytest.raises(KeyError, match="mine"):
            grad(y, x, retain_graph=True)
        handle.remove()
        assert tg.is_grad_enabled()
        assert grad(y, t)[0].tolist() == [3.0, 3.0]


class TestWhenTheyRun:
    """A hook runs once a backward, on the whole gradient, if its tensor is on the way."""

    def test_once_on_the_sum_of_all_uses(self):
        y = leaf_of(1.0) * 2
        z = y * 3 + y * 4 + y * y
        seen = []
        y.register_hook(lambda g: seen.append(g.item()))
        z.backward()
        assert seen == [11.0]

    def test_of_a_leaf_once_a_backward(self):
        x = leaf_of(1.0)
        seen = []
        x.register_hook(lambda g: seen.append(g.item()))
        (x * 2 + x * 3).backward()
        (x * 7).backward()
        assert seen == [5.0, 7.0]
        assert x.grad.item() == 12.0

    def test_at_every_backward(self):
        y = leaf_of(1.0) * 2
        seen = []
        y.register_hook(lambda g: seen.append(1))
        z = y * y
        z.backward(retain_graph=True)
        z.backward()
        assert seen == [1, 1]

    def test_on_the_root(self):
        x = leaf_of(1.0, 2.0)
        y = x * x
        y.register_hook(lambda g: g * 2)
        y.backward(tg.tensor([1.0, 10.0]))
        assert x.grad.tolist() == [4.0, 80.0]

    def test_on_a_root_given_twice(self):
        x = leaf_of(2.0)
        y = x * x
        seen = []
        y.register_hook(lambda g: seen.append(g.item()))
        tg.autograd.backward([y, y])
        assert seen == [2.0]
        assert x.grad.item() == 8.0

    def test_from_the_root_downwards(self):
        x = leaf_of(1.0)
        a = x * 2
        b = a * 3
        c = b * 4
        order = []
        for name, t in [("a", a), ("x", x), ("c", c), ("b", b)]:
            t.register_hook(lambda g, name=name: order.append(name))
        c.backward()
        assert order == ["c", "b", "a", "x"]

    def test_not_if_the_tensor_is_not_on_the_way(self):
        x, y = leaf_of(1.0), leaf_of(2.0)
        a, b = x * 2, y * 3
        seen = []
        b.register_hook(lambda g: seen.append(1))
        assert grad(a + b, x)[0].item() == 2.0
        assert seen == []

    def test_registered_after_the_use(self):
        x = leaf_of(1.0)
        y = x * 2
        z = y * 3
        y.register_hook(lambda g: g * 5)
        z.backward()
        assert x.grad.item() == 30.0

    def test_although_handle_and_tensor_have_gone(self):
        y = leaf_of(1.0) * 2
        seen = []
        y.register_hook(lambda g: seen.append(g.item()))
        z = y * 3
        del y
        gc.collect()
        z.backward()
        assert seen == [3.0]

    def test_on_one_of_two_views(self):
        x = leaf_of(1.0, 2.0, 3.0)
        y = x * 1
        head, tail = y[:1], y[1:]
        tail.register_hook(lambda g: g * 10)
        (head.sum() + tail.sum()).backward()
        assert x.grad.tolist() == [1.0, 10.0, 10.0]

    def test_others_get_their_own_gradient(self):
        x = leaf_of(1.0, 2.0)
        a, b = x * 1, x * 1
        a.register_hook(lambda g: g * 100)
        (a + b).sum().backward()
        assert x.grad.tolist() == [101.0, 101.0]

    def test_an_undefined_gradient_arrives_as_none(self):
        x = leaf_of(1.0)
        y = x * 1
        seen = []
        y.register_hook(lambda g: seen.append(("y", g)))
        x.register_hook(lambda g: seen.append(("x", g)))
        Nothing.apply(y).backward()
        assert seen == [("y", None), ("x", None)]
        assert x.grad is None

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_grad_mode_inside(self, create_graph):
        x = leaf_of(2.0)
        y = x * x
        modes = []
        y.register_hook(lambda g: modes.append((tg.is_grad_enabled(), g.requires_grad)))
        x.register_hook(lambda g: modes.append((tg.is_grad_enabled(), g.requires_grad)))
        grad(y, x, create_graph=create_graph)
        assert modes == [(create_graph, False), (create_graph, create_graph)]
        assert tg.is_grad_enabled()

    def test_after_an_error_nothing_was_accumulated(self):
        def fail(g):
            raise KeyError("mine")

        x = leaf_of(1.0, 2.0)
        y = (x * x).sum()
        handle = x.register_hook(fail)
        with pytest.raises(KeyError, match="mine"):
            y.backward(retain_graph=True)
        assert x.grad is None
        handle.remove()
        y.backward()
        assert x.grad.tolist() == [2.0, 4.0]


class TestChangesDuringBackward:
    """Hooks may be removed and added while backward runs."""

    def test_a_hook_that_removes_itself(self):
        x = leaf_of(1.0)
        seen = []

        def once(g):
            seen.append("once")
            handle.remove()

        handle = x.register_hook(once)
        x.register_hook(lambda g: seen.append("always"))
        (x * 2).backward()
        (x * 2).backward()
        assert seen == ["once", "always", "always"]

    def test_a_later_hook_of_the_same_tensor_still_runs_this_time(self):
        x = leaf_of(1.0)
        seen = []
        x.register_hook(lambda g: seen.append("a") or handle.remove())
        handle = x.register_hook(lambda g: seen.append("b"))
        (x * 2).backward()
        (x * 2).backward()
        assert seen == ["a", "b", "a"]

    def test_a_hook_of_a_tensor_still_to_come(self):
        x = leaf_of(1.0)
        y = x * 2
        seen = []
        handle = x.register_hook(lambda g: seen.append("x"))
        y.register_hook(lambda g: handle.remove())
        y.backward()
        assert seen == []

    def test_a_hook_added_to_a_tensor_still_to_come(self):
        x = leaf_of(1.0)
        y = x * 2
        seen = []

        def add(g):
            x.register_hook(lambda g: seen.append("x"))

        y.register_hook(add)
        y.backward()
        assert seen == ["x"]

    def test_a_hook_added_to_the_same_tensor_runs_next_time(self):
        x = leaf_of(1.0)
        seen = []

        def first(g):
            seen.append("first")
            if len(seen) == 1:
                x.register_hook(lambda g: seen.append("second"))

        x.register_hook(first)
        (x * 2).backward()
        (x * 2).backward()
        assert seen[-2:] == ["first", "second"]
        assert seen.count("first") == 2


class TestHandles:
    """What registering returns removes the hook, also as a context, also when all has gone."""

    def test_as_a_context(self):
        x = leaf_of(1.0)
        seen = []
        with x.register_hook(lambda g: seen.append(1)):
            (x * 2).backward()
        (x * 2).backward()
        assert seen == [1]

    def test_after_the_tensor_has_gone(self):
        y = leaf_of(1.0) * 2
        handle = y.register_hook(lambda g: None)
        del y
        gc.collect()
        assert handle.remove() is None

    def test_each_hook_has_its_own(self):
        x = leaf_of(1.0)
        seen = []
        handles = [x.register_hook(lambda g, k=k: seen.append(k)) for k in range(3)]
        handles[0].remove()
        x.register_hook(lambda g: seen.append(3))
        (x * 2).backward()
        assert seen == [1, 2, 3]


class TestCreateGraph:
    """What a hook computes under create_graph is differentiated."""

    def test_a_hook_of_its_tensor(self):
        x = leaf_of(2.0)
        y = x * x
        y.register_hook(lambda g: g * y)
        (first,) = grad(y, x, create_graph=True)  # y · 2x
        assert first.item() == 16.0
        (second,) = grad(first, x)  # 2y, and 2x · y (the hook again) · 2x
        assert second.item() == pytest.approx(8.0 + 64.0)

    @pytest.mark.parametrize("on", ["leaf", "result"])
    def test_a_factor_of_its_own(self, on):
        x, factor = leaf_of(1.0, 2.0), tg.tensor(5.0, requires_grad=True)
        y = x * x
        (x if on == "leaf" else y).register_hook(lambda g: g * factor)
        (g,) = grad(y.sum(), x, create_graph=True)
        assert g.tolist() == [10.0, 20.0]
        assert grad(g.sum(), factor)[0].item() == 6.0


class TestArguments:
    """Any callable is a hook; only tensors that require grad take one; errors name the hook."""

    def test_bound_methods_and_callable_objects(self):
        class Doubler:
            def double(self, g):
                return g * 2

            def __call__(self, g):
                return g * 3

        x = leaf_of(1.0)
        x.register_hook(Doubler().double)
        x.register_hook(Doubler())
        (x * 1).backward()
        assert x.grad.item() == 6.0

    def test_on_a_passive_tensor(self):
        text = "cannot register a hook on a tensor that doesn't require gradient"
        for t in (tg.tensor([1.0]), leaf_of(1.0).detach()):
            with pytest.raises(RuntimeError, match=text):
                t.register_hook(lambda g: None)

    @pytest.mark.parametrize("wrong", [1.0, "x", [1.0, 2.0]])
    @pytest.mark.parametrize("kind", ["leaf", "saved", "view"])
    def test_no_tensor(self, kind, wrong):
        x, t, y = make(kind)
        t.register_hook(lambda g: wrong)
        text = f"expected Variable, but hook returned '{type(wrong).__name__}'"
        with pytest.raises(TypeError, match=text):
            grad(y, x)

    def test_a_shape_that_would_broadcast(self):
        x = leaf_of(1.0, 2.0)
        x.register_hook(lambda g: tg.ones((1, 2)))
        with pytest.raises(RuntimeError, match="has changed the size of value"):
            (x * 2).sum().backward()

    def test_a_hook_without_a_name(self):
        def shrink(g):
            return g[:1]

        x = leaf_of(1.0, 2.0)
        x.register_hook(functools.partial(shrink))
        with pytest.raises(RuntimeError, match="has changed the size of value"):
            (x * 2).sum().backward()

    def test_a_gradient_in_place_of_none(self):
        x = leaf_of(1.0)
        x.register_hook(lambda g: tg.ones(1))
        text = "can't replace a None gradient with a non-None value"
        with pytest.raises(RuntimeError, match=text):
            Nothing.apply(x).backward()
