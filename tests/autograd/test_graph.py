"""Gradient edges, `increment_version`, callbacks at the end of a backward."""

import gc

import pytest
from functions import numbers
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import Function, backward, grad
from tapegrad.autograd.graph import (
    GradientEdge,
    get_gradient_edge,
    increment_version,
)


class TestGradientEdge:
    """An edge is the place of a tensor's gradient: a node and the number of its output."""

    def test_of_a_leaf(self):
        x = leaf_of(1.0, 2.0)
        edge = get_gradient_edge(x)
        assert isinstance(edge, GradientEdge)
        assert edge.node.variable is x
        assert edge.output_nr == 0

    def test_of_an_intermediate_result(self):
        y = leaf_of(1.0, 2.0) * 3
        edge = get_gradient_edge(y)
        assert edge.node is y.grad_fn
        assert edge.output_nr == 0

    def test_of_one_of_several_outputs(self):
        _, r = tg.linalg.qr(tg.tensor([[2.0, 1.0], [0.0, 3.0]], requires_grad=True))
        edge = get_gradient_edge(r)
        assert edge.node is r.grad_fn
        assert edge.output_nr == 1

    def test_it_is_a_tuple(self):
        edge = get_gradient_edge(leaf_of(1.0))
        assert isinstance(edge, tuple)
        assert edge[:2] == (edge.node, edge.output_nr)

    def test_made_by_hand(self):
        x = leaf_of(1.0, 2.0)
        y = x * 3
        node, number = y.grad_fn.next_functions[0]
        assert grad(y.sum(), GradientEdge(node, number))[0].tolist() == [3.0, 3.0]

    def test_of_a_tensor_that_does_not_require_grad(self):
        text = (
            "It is not possible to get the gradient edge for a Tensor that does not require "
            "gradients"
        )
        with pytest.raises(RuntimeError, match=text):
            get_gradient_edge(tg.tensor([1.0]))


class TestEdgesAsInputs:
    """`grad` and `backward` take edges for inputs as they take tensors."""

    def test_grad(self):
        x = leaf_of(1.0, 2.0)
        y = x * 3
        found = grad(y.sum(), [get_gradient_edge(x), get_gradient_edge(y), x])
        assert numbers(found) == ([3.0, 3.0], [1.0, 1.0], [3.0, 3.0])

    def test_grad_with_one_edge(self):
        x = leaf_of(1.0, 2.0)
        found = grad((x * 3).sum(), get_gradient_edge(x))
        assert numbers(found) == ([3.0, 3.0],)

    def test_the_tensor_may_have_gone(self):
        x = leaf_of(1.0, 2.0)
        y = x * 3
        z = (y * y).sum()
        edges = [get_gradient_edge(x), get_gradient_edge(y)]
        del x, y
        gc.collect()
        assert numbers(grad(z, edges)) == ([18.0, 36.0], [6.0, 12.0])

    def test_one_of_several_outputs(self):
        a, b = Halves.apply(leaf_of(1.0, 2.0, 3.0, 4.0))
        z = (a * 2).sum() + (b * 3).sum()
        edge = get_gradient_edge(b)
        first = GradientEdge(a.grad_fn, 0)
        del b
        assert numbers(grad(z, [edge, first, a])) == ([3.0, 3.0], [2.0, 2.0], [2.0, 2.0])

    def test_backward(self):
        x, w = leaf_of(1.0, 2.0), leaf_of(3.0, 4.0)
        (x * w).sum().backward(inputs=[get_gradient_edge(x)])
        assert x.grad.tolist() == [3.0, 4.0]
        assert w.grad is None

    def test_backward_with_one_edge(self):
        x = leaf_of(1.0, 2.0)
        (x * 3).sum().backward(inputs=get_gradient_edge(x))
        assert x.grad.tolist() == [3.0, 3.0]

    def test_unused(self):
        x, w = leaf_of(1.0), leaf_of(2.0)
        edge = get_gradient_edge(w)
        assert grad((x * 2).sum(), edge, allow_unused=True) == (None,)
        with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
            grad((x * 2).sum(), edge)

    def test_unused_cannot_become_zeros(self):
        x, w = leaf_of(1.0), leaf_of(2.0)
        text = "materialize_grads cannot be used when the given input is a GradientEdge"
        with pytest.raises(RuntimeError, match=text):
            grad((x * 2).sum(), get_gradient_edge(w), materialize_grads=True)

    def test_tensor_hooks_apply(self):
        x = leaf_of(1.0, 2.0)
        y = x * x
        y.register_hook(lambda g: g * 10)
        assert grad((y * 3).sum(), get_gradient_edge(y))[0].tolist() == [30.0, 30.0]

    def test_create_graph(self):
        x = leaf_of(1.0, 2.0)
        (g,) = grad((x * x * x).sum(), get_gradient_edge(x), create_graph=True)
        assert grad(g.sum(), x)[0].tolist() == [6.0, 12.0]

    def test_an_edge_stays_where_it_was_when_the_tensor_is_written(self):
        y = leaf_of(1.0, 2.0) * 1
        edge = get_gradient_edge(y)
        y.mul_(3)
        assert numbers(grad(y.sum(), [edge, y])) == ([3.0, 3.0], [1.0, 1.0])


class TestEdgesAsOutputs:
    """`grad` and `backward` start from edges as they start from tensors."""

    def test_grad_although_the_tensor_has_gone(self):
        x = leaf_of(1.0, 2.0)
        y = x * 3
        edge = get_gradient_edge(y)
        del y
        gc.collect()
        assert grad(edge, x, tg.tensor([1.0, 10.0]))[0].tolist() == [3.0, 30.0]

    def test_backward(self):
        x = leaf_of(1.0, 2.0)
        backward(get_gradient_edge(x * 3), tg.tensor([1.0, 10.0]))
        assert x.grad.tolist() == [3.0, 30.0]

    def test_together_with_tensors(self):
        x = leaf_of(1.0, 2.0)
        y, z = x * 2, x * x
        backward([get_gradient_edge(y), z], [tg.ones(2), tg.ones(2)])
        assert x.grad.tolist() == [4.0, 6.0]

    def test_a_leaf(self):
        x = leaf_of(1.0, 2.0)
        backward(get_gradient_edge(x), tg.ones(2))
        assert x.grad.tolist() == [1.0, 1.0]

    def test_a_scalar_needs_no_cotangent(self):
        x = leaf_of(1.0, 2.0)
        assert grad(get_gradient_edge((x * 3).sum()), x)[0].tolist() == [3.0, 3.0]

    def test_others_do(self):
        x = leaf_of(1.0, 2.0)
        edge = get_gradient_edge(x * 3)
        with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
            grad(edge, x)
        with pytest.raises(RuntimeError, match=r"Mismatch in shape: grad_output\[0\] has a shape"):
            grad(edge, x, tg.ones(3))

    def test_one_of_several_outputs(self):
        x = leaf_of(1.0, 2.0, 3.0, 4.0)
        _, b = Halves.apply(x)
        edge = get_gradient_edge(b)
        del b
        assert grad(edge, x, tg.ones(2))[0].tolist() == [0.0, 0.0, 1.0, 1.0]


class Halves(Function):
    """The first and the last two of four numbers."""

    @staticmethod
    def forward(ctx, x):
        return x[:2] * 1, x[2:] * 1

    @staticmethod
    def backward(ctx, a, b):
        return tg.concatenate([a, b])


class TestIncrementVersion:
    """`increment_version` tells of a mutation that nothing else can see."""

    def test_one_tensor(self):
        x = tg.ones(2)
        assert increment_version(x) is None
        assert x._version == 1

    def test_the_counter_is_shared_by_views_and_detached_tensors(self):
        x = tg.ones(2)
        view, detached = x[:1], x.detach()
        increment_version(view)
        increment_version(detached)
        assert (x._version, view._version, detached._version) == (2, 2, 2)

    @pytest.mark.parametrize("kind", [list, tuple, iter])
    def test_several(self, kind):
        x, y = tg.ones(2), leaf_of(1.0)
        increment_version(kind([x, y, x]))
        assert (x._version, y._version) == (2, 1)

    def test_a_generator_and_nothing(self):
        x = tg.ones(2)
        increment_version(t for t in [x])
        increment_version([])
        assert x._version == 1

    def test_backward_finds_it(self):
        y = leaf_of(1.0, 2.0).exp()
        z = y.sum()
        increment_version(y)
        with pytest.raises(RuntimeError, match="is at version 1; expected version 0 instead"):
            z.backward()

    def test_writes_to_the_array_itself(self):
        y = leaf_of(1.0, 2.0) * 1
        z = y.sin().sum()
        y.detach().numpy()[:] = 0.0
        increment_version(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()

    @pytest.mark.parametrize("wrong", [3, [3], ["x"]])
    def test_only_tensors(self, wrong):
        with pytest.raises(RuntimeError, match="increment_version expect"):
            increment_version(wrong)


class TestQueueCallback:
    """A callback queued during a backward is called once, at its end."""

    engine = tg.autograd.Variable._execution_engine

    def queue(self, *actions):
        """A hook that queues."""

        def hook(g):
            for action in actions:
                self.engine.queue_callback(action)

        return hook

    def test_after_everything_else(self):
        x = leaf_of(1.0, 2.0)
        seen = []
        y = x * 2
        y.register_hook(self.queue(lambda: seen.append(("end", x.grad.tolist()))))
        x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
        y.sum().backward()
        assert seen == ["accumulated", ("end", [2.0, 2.0])]

    def test_once(self):
        x = leaf_of(1.0)
        seen = []
        handle = x.register_hook(self.queue(lambda: seen.append(1)))
        (x * 2).backward()
        handle.remove()
        (x * 2).backward()
        assert seen == [1]

    def test_in_order(self):
        x = leaf_of(1.0)
        seen = []
        y = x * 2
        x.register_hook(self.queue(lambda: seen.append(3)))
        y.register_hook(self.queue(lambda: seen.append(1), lambda: seen.append(2)))
        y.backward()
        assert seen == [1, 2, 3]

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_under_grad(self, create_graph):
        x = leaf_of(1.0)
        seen = []
        x.register_hook(self.queue(lambda: seen.append(tg.is_grad_enabled())))
        grad(x * x, x, create_graph=create_graph)
        assert seen == [create_graph]

    def test_from_a_callback(self):
        x = leaf_of(1.0)
        seen = []

        def outer():
            seen.append("outer")
            self.engine.queue_callback(lambda: seen.append("inner"))

        x.register_hook(self.queue(outer))
        (x * 2).backward()
        assert seen == ["outer", "inner"]

    def test_it_belongs_to_the_innermost_backward(self):
        seen = []

        class Inner(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                self.engine.queue_callback(lambda: seen.append("outer"))
                with tg.enable_grad():
                    u = leaf_of(1.0)
                    u.register_hook(self.queue(lambda: seen.append("inner")))
                    (u * 7).backward()
                seen.append("inner has returned")
                return g * 2

        Inner.apply(leaf_of(1.0)).backward()
        assert seen == ["inner", "inner has returned", "outer"]

    def test_backward_in_a_callback(self):
        x = leaf_of(1.0)
        z = x * 5
        handle = x.register_hook(self.queue(lambda: (handle.remove(), z.backward())))
        (x * 2).backward()
        assert x.grad.tolist() == [7.0]

    def test_outside(self):
        text = "Final callbacks can only be installed during backward pass."
        with pytest.raises(RuntimeError, match=text):
            self.engine.queue_callback(lambda: None)

    def test_an_error_in_it_comes_through(self):
        def fail():
            raise KeyError("mine")

        x = leaf_of(1.0)
        handle = x.register_hook(self.queue(fail))
        with pytest.raises(KeyError, match="mine"):
            (x * 2).backward()
        assert x.grad.tolist() == [2.0]
        handle.remove()
        (x * 2).backward()
        assert x.grad.tolist() == [4.0]

    def test_it_is_dropped_when_the_backward_fails(self):
        def fail(g):
            raise KeyError("mine")

        x = leaf_of(1.0)
        seen = []
        y = x * 2
        handles = [
            y.register_hook(self.queue(lambda: seen.append(1))),
            x.register_hook(fail),
        ]
        with pytest.raises(KeyError, match="mine"):
            y.backward(retain_graph=True)
        for handle in handles:
            handle.remove()
        y.backward()
        assert seen == []
