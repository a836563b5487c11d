"""Lifetime: values go by reference count alone, when the last thing that needs them has gone."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import grad


@pytest.fixture(autouse=True)
def _without_the_garbage_collector():
    """Nothing here may wait for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Thing:
    """Something a weak reference can be made to."""


def memory(t):
    """A weak reference to the array of a tensor."""
    return weakref.ref(t.detach().numpy())


class TestIntermediates:
    """An intermediate value dies with its last user."""

    def test_what_nothing_saved(self):
        x = leaf(np.ones(10))
        y = x * 2
        held = memory(y)
        z = y + 1
        assert held() is not None
        del y
        assert held() is None
        z.sum().backward()
        assert x.grad.tolist() == [2.0] * 10

    def test_what_an_op_saved_dies_with_the_graph(self):
        x = leaf(np.ones(10))
        y = x * 2
        held = memory(y)
        z = y.sin()
        del y
        assert held() is not None
        del z
        assert held() is None

    def test_a_chain_dies_at_once(self):
        x = leaf(np.ones(10))
        held = []
        y = x
        for _ in range(100):
            y = y.sin()
            held.append(memory(y))
        assert all(ref() is not None for ref in held)
        del y
        assert all(ref() is None for ref in held)

    def test_a_branch_dies_alone(self):
        x = leaf(np.ones(10))
        shared = x.exp()
        a, b = shared.sin(), shared.cos()
        c, d = a.sin(), b.sin()
        one, two, both = memory(a), memory(b), memory(shared)
        del a, b, shared
        del c
        assert one() is None
        assert two() is not None
        assert both() is not None
        del d
        assert two() is None
        assert both() is None

    def test_a_leaf_may_go_before_its_graph(self):
        x, w = leaf([1.0, 2.0]), leaf([2.0, 2.0])
        y = (x * w).sum()
        gone = weakref.ref(x)
        del x
        y.backward()
        assert w.grad.tolist() == [1.0, 2.0]
        del y
        assert gone() is None

    def test_nothing_is_kept_where_nothing_is_recorded(self):
        x = leaf(np.ones(10))
        with tg.no_grad():
            y = x.exp()
            z = y.sin()
        held = memory(y)
        del y
        assert held() is None
        assert z.shape == (10,)

    def test_values_that_inputs_not_asked_for_need(self):
        x, w = leaf(np.ones(10)), tg.ones(10)
        y = w * 2
        held = memory(y)
        z = x + y
        del y
        assert held() is None
        assert z.requires_grad


class TestAfterBackward:
    """Backward frees what was saved, even while the root lives."""

    def test_saved_values(self):
        x = leaf(np.ones(10))
        y = x.exp()
        held = memory(y)
        z = (y * y).sum()
        del y
        assert held() is not None
        z.backward()
        assert held() is None
        assert z.requires_grad

    def test_of_grad(self):
        x = leaf(np.ones(10))
        y = x.exp()
        held = memory(y)
        z = (y * y).sum()
        del y
        grad(z, x)
        assert held() is None

    def test_retain_graph_keeps_them(self):
        x = leaf(np.ones(10))
        y = x.exp()
        held = memory(y)
        z = (y * y).sum()
        del y
        z.backward(retain_graph=True)
        assert held() is not None
        z.backward()
        assert held() is None

    def test_what_was_not_swept_is_kept(self):
        x, w = leaf(np.ones(10)), leaf(np.ones(10))
        a, b = x.exp(), w.exp()
        one, two = memory(a), memory(b)
        z = (a * a).sum() + (b * b).sum()
        del a, b
        grad(z, x, retain_graph=False)
        assert one() is None
        assert two() is not None

    def test_cotangents(self):
        x = leaf(np.ones(10))
        held = []
        y = x * 2
        y.register_hook(lambda g: held.append(memory(g)))
        (y * 3).sum().backward()
        y = None
        assert len(held) == 1
        assert held[0]() is None


class TestNoCycles:
    """The library makes no reference cycle of its own."""

    @pytest.mark.parametrize(
        "op",
        [
            tg.exp,
            tg.sqrt,
            tg.tanh,
            tg.sigmoid,
            lambda t: tg.linalg.inv(t),
            lambda t: tg.linalg.cholesky(t),
            lambda t: tg.max(t, axis=0),
            lambda t: tg.logsumexp(t, axis=0),
        ],
    )
    def test_a_saved_output(self, op):
        x = leaf(np.eye(3) + 0.1)
        y = op(x)
        held = memory(y)
        del y
        assert held() is None

    def test_a_saved_output_of_a_function(self):
        class Exp(tg.Function):
            @staticmethod
            def forward(ctx, x):
                y = x.exp()
                ctx.save_for_backward(y)
                ctx.thing = things[0]
                return y

            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0]

        things = [Thing()]
        gone = weakref.ref(things[0])
        y = Exp.apply(leaf([1.0, 2.0]))
        things.clear()
        held = memory(y)
        assert gone() is not None
        del y
        assert gone() is None
        assert held() is None

    def test_a_functions_attributes_live_as_long_as_its_graph(self):
        class F(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.thing = things.pop()
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * 2

        things = [Thing()]
        gone = weakref.ref(things[0])
        y = F.apply(leaf([1.0]))
        y.sum().backward()
        assert gone() is not None
        del y
        assert gone() is None

    @pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
    def test_hooks_of_a_leaf(self, register):
        thing = Thing()
        gone = weakref.ref(thing)
        x = leaf([1.0])
        getattr(x, register)(lambda _, thing=thing: None)
        (x * 2).sum().backward()
        del thing
        assert gone() is not None
        del x
        assert gone() is None

    def test_hooks_of_an_intermediate(self):
        thing = Thing()
        gone = weakref.ref(thing)
        y = leaf([1.0]) * 2
        y.register_hook(lambda g, thing=thing: None)
        y.retain_grad()
        y.sum().backward()
        del thing
        assert gone() is not None
        del y
        assert gone() is None

    def test_a_removed_hook(self):
        thing = Thing()
        gone = weakref.ref(thing)
        y = leaf([1.0]) * 2
        handle = y.register_hook(lambda g, thing=thing: None)
        del thing
        handle.remove()
        assert gone() is None
        assert y.requires_grad

    def test_views_and_bases(self):
        x = leaf(np.ones(10))
        y = x * 2
        base = memory(y)
        view = y[1:]
        view *= 3
        y[:2] *= 2
        del y
        assert base() is not None
        del view
        assert base() is None

    def test_a_node(self):
        y = leaf(np.ones(3)).exp()
        held = memory(y)
        node = y.grad_fn
        del y
        assert node.name() == "ExpBackward"
        del node
        assert held() is None

    def test_a_backward_inside_a_backward(self):
        x, w = leaf(np.ones(3)), leaf(np.ones(3))
        inner = w.exp()
        held = memory(inner)
        total = inner.sum()
        y = x * 2
        y.register_hook(lambda g, total=total: total.backward(retain_graph=True))
        y.sum().backward()
        assert held() is not None
        del inner, total, y
        assert held() is None

    def test_after_an_error(self):
        x = leaf(np.ones(3))
        y = x.exp()
        held = memory(y)
        z = y * y

        def hook(g):
            raise ValueError("mine")

        z.register_hook(hook)
        with pytest.raises(ValueError, match="mine"):
            z.sum().backward()
        del y, z
        assert held() is None

    def test_cotangents_are_dropped_when_they_were_swept(self):
        """Also those that Python rules give to records that compiled code sweeps."""
        x = leaf(np.ones(100_000))
        y = x
        for _ in range(30):
            y = tg.cumsum(-y)
        y = y.sum()
        tracemalloc.start()
        y.backward(retain_graph=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * x.nbytes

    def test_a_whole_training_step_leaves_no_garbage(self):
        def steps():
            w = leaf(np.ones((3, 3)))
            for _ in range(3):
                loss = tg.tanh(w @ w).sum() + (w[0] * w[:, 1]).sum()
                loss.backward()
                with tg.no_grad():
                    w -= 0.1 * w.grad
                w.grad = None

        steps()
        gc.collect()  # what is built once leaves some, as kernels and ctypes do
        steps()
        assert gc.collect() == 0
