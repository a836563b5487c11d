"""`Node`, what `Tensor.grad_fn` returns."""

import gc

import numpy as np
import pytest
from functions import numbers
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import Function, grad
from tapegrad.autograd.graph import Node


def accumulator(t):
    """The `AccumulateGrad` node of a leaf."""
    return (t * 2).grad_fn.next_functions[0][0]


class Pair(Function):
    """Two outputs, x * n and y * 1."""

    @staticmethod
    def forward(ctx, x, n, y):
        ctx.n = n
        return x * n, y * 1

    @staticmethod
    def backward(ctx, a, b):
        return a * ctx.n, None, b


class TestIdentity:
    """An op has one node, which is the same object whenever one asks for it."""

    def test_reading_it_twice(self):
        y = leaf_of(1.0, 2.0) * 2
        assert y.grad_fn is y.grad_fn

    def test_it_is_equal_to_itself_and_hashable(self):
        y = leaf_of(1.0, 2.0) * 2
        assert y.grad_fn == y.grad_fn
        assert len({y.grad_fn, y.grad_fn}) == 1

    def test_two_ops_have_two_nodes(self):
        x = leaf_of(1.0, 2.0)
        a, b = x * 2, x * 2
        assert a.grad_fn is not b.grad_fn
        assert a.grad_fn != b.grad_fn

    def test_found_from_the_next_op(self):
        y = leaf_of(1.0, 2.0) * 2
        assert y.sum().grad_fn.next_functions[0][0] is y.grad_fn

    def test_a_write_makes_another_node(self):
        y = leaf_of(1.0, 2.0) * 2
        before = y.grad_fn
        y.exp_()
        assert y.grad_fn is not before
        assert y.grad_fn.next_functions[0][0] is before

    def test_it_outlives_its_tensor(self):
        y = leaf_of(1.0, 2.0).exp()
        node = y.grad_fn
        del y
        gc.collect()
        assert node.name() == "ExpBackward"
        assert node.next_functions[0][0].variable.tolist() == [1.0, 2.0]

    def test_a_tensor_without_history_has_none(self):
        x = leaf_of(1.0, 2.0)
        with tg.no_grad():
            unrecorded = x * 2
        for t in (x, unrecorded, tg.tensor([1.0]), (x * 2).detach()):
            assert t.grad_fn is None

    def test_it_is_an_instance_of_node(self):
        x = leaf_of(1.0, 2.0)
        y = x * 2
        assert isinstance(y.grad_fn, Node)
        assert isinstance(accumulator(x), Node)
        assert isinstance(Pair.apply(x, 3, x)[0].grad_fn, Node)

    @pytest.mark.parametrize("other", [None, 3, "x"])
    def test_other_things_are_no_nodes(self, other):
        assert not isinstance(other, Node)

    def test_a_tensor_is_no_node(self):
        assert not isinstance(leaf_of(1.0), Node)

    def test_node_cannot_be_made_by_hand(self):
        with pytest.raises(TypeError):
            Node()


class TestName:
    """`name()` is the op's name, title-cased, with "Backward"."""

    @pytest.mark.parametrize(
        "op, name",
        [
            (lambda x: x * x, "MultiplyBackward"),
            (lambda x: x + x, "AddBackward"),
            (lambda x: x.exp(), "ExpBackward"),
            (lambda x: x.sin(), "SinBackward"),
            (lambda x: x.sum(), "SumBackward"),
            (lambda x: x @ x, "MatmulBackward"),
            (lambda x: tg.concatenate([x, x]), "ConcatenateBackward"),
        ],
    )
    def test_ops(self, op, name):
        node = op(leaf_of(1.0, 2.0)).grad_fn
        assert node.name() == name
        assert type(node).__name__ == name
        assert name in repr(node)

    def test_functions_have_the_name_of_their_class(self):
        x = leaf_of(1.0)
        assert Pair.apply(x, 2, x)[0].grad_fn.name() == "PairBackward"

    def test_leaves(self):
        assert accumulator(leaf_of(1.0)).name().endswith("AccumulateGrad")


class TestMetadata:
    """`metadata` is a dict that belongs to the node and lives as long as it."""

    def test_it_starts_empty(self):
        assert (leaf_of(1.0) * 2).grad_fn.metadata == {}

    def test_it_keeps_what_is_put_in(self):
        y = leaf_of(1.0) * 2
        y.grad_fn.metadata["key"] = 3
        assert y.grad_fn.metadata == {"key": 3}

    def test_it_is_there_although_tensor_and_node_were_let_go(self):
        y = leaf_of(1.0) * 2
        y.grad_fn.metadata["key"] = 3
        z = y.exp()
        del y
        gc.collect()
        assert z.grad_fn.next_functions[0][0].metadata == {"key": 3}

    def test_every_node_has_its_own(self):
        x = leaf_of(1.0)
        a, b = x * 2, x * 2
        a.grad_fn.metadata["key"] = 3
        assert b.grad_fn.metadata == {}

    def test_after_backward(self):
        y = leaf_of(1.0).exp()
        y.grad_fn.metadata["key"] = 3
        y.backward()
        assert y.grad_fn.metadata == {"key": 3}

    def test_accumulators_and_functions_have_one(self):
        x = leaf_of(1.0)
        y, _ = Pair.apply(x, 2, x)
        y.grad_fn.metadata["key"] = 1
        assert y.grad_fn.metadata == {"key": 1}
        y.grad_fn.next_functions[0][0].metadata["key"] = 2
        assert y.grad_fn.next_functions[0][0].metadata == {"key": 2}

    def test_it_cannot_be_assigned(self):
        y = leaf_of(1.0) * 2
        with pytest.raises(AttributeError):
            y.grad_fn.metadata = {}


class TestNextFunctions:
    """`next_functions` has a pair (node, number of its output) for each tensor argument."""

    def test_a_leaf(self):
        x = leaf_of(1.0, 2.0)
        ((node, number),) = x.exp().grad_fn.next_functions
        assert node.variable is x
        assert number == 0

    def test_an_intermediate_result(self):
        y = leaf_of(1.0, 2.0) * 2
        assert y.exp().grad_fn.next_functions == ((y.grad_fn, 0),)

    def test_both_arguments(self):
        x, w = leaf_of(1.0), leaf_of(2.0)
        (a, _), (b, _) = (x * w).grad_fn.next_functions
        assert a.variable is x
        assert b.variable is w

    def test_the_same_argument_twice(self):
        x = leaf_of(1.0)
        (a, _), (b, _) = (x * x).grad_fn.next_functions
        assert a is b

    def test_an_argument_without_grad(self):
        x, c = leaf_of(1.0), tg.tensor([2.0])
        assert (x * c).grad_fn.next_functions[1] == (None, 0)
        assert (c * x).grad_fn.next_functions[0] == (None, 0)
        assert len((x * c).grad_fn.next_functions) == 2

    def test_many_arguments(self):
        x, c = leaf_of(1.0), tg.tensor([2.0])
        found = tg.concatenate([x, c, x]).grad_fn.next_functions
        assert [node and node.variable is x for node, _ in found] == [True, None, True]

    def test_arguments_of_a_function_that_are_no_tensors_have_no_pair(self):
        x, c = leaf_of(1.0), tg.tensor([2.0])
        found = Pair.apply(x, 3, c)[0].grad_fn.next_functions
        assert len(found) == 2
        assert found[0][0].variable is x
        assert found[1] == (None, 0)

    def test_it_is_a_tuple_of_tuples(self):
        found = (leaf_of(1.0) * 2).grad_fn.next_functions
        assert type(found) is tuple
        assert type(found[0]) is tuple

    def test_a_write_into_a_passive_tensor(self):
        x = leaf_of(1.0, 2.0)
        y = tg.zeros(2)
        y.add_(x)
        assert y.grad_fn.next_functions[0] == (None, 0)
        assert y.grad_fn.next_functions[1][0].variable is x


class TestAccumulateGrad:
    """A leaf appears as an `AccumulateGrad` node that holds it as `.variable`."""

    def test_its_type(self):
        assert type(accumulator(leaf_of(1.0))).__name__ == "AccumulateGrad"

    def test_its_variable(self):
        x = leaf_of(1.0, 2.0)
        assert accumulator(x).variable is x

    def test_a_leaf_has_one(self):
        x = leaf_of(1.0, 2.0)
        a, b = x * 2, x.exp()
        assert a.grad_fn.next_functions[0][0] is b.grad_fn.next_functions[0][0]

    def test_nothing_comes_before_it(self):
        assert accumulator(leaf_of(1.0)).next_functions == ()

    def test_it_keeps_the_leaf(self):
        y = leaf_of(1.0, 2.0) * 2
        gc.collect()
        assert y.grad_fn.next_functions[0][0].variable.tolist() == [1.0, 2.0]

    def test_after_a_write_without_recording(self):
        x = leaf_of(1.0, 2.0)
        before = x * 2
        with tg.no_grad():
            x.mul_(3)
        assert before.grad_fn.next_functions[0][0].variable is x
        assert accumulator(x).variable is x


class TestSeveralOutputs:
    """Outputs of one op share its node and are told apart by `output_nr`."""

    def test_an_op(self):
        q, r = tg.linalg.qr(tg.tensor([[2.0, 1.0], [0.0, 3.0]], requires_grad=True))
        assert q.grad_fn is r.grad_fn
        assert (q.output_nr, r.output_nr) == (0, 1)
        assert r.exp().grad_fn.next_functions == ((r.grad_fn, 1),)

    def test_a_function(self):
        x = leaf_of(1.0)
        a, b = Pair.apply(x, 3, x)
        assert a.grad_fn is b.grad_fn
        assert (a.output_nr, b.output_nr) == (0, 1)
        assert (a * b).grad_fn.next_functions == ((a.grad_fn, 0), (a.grad_fn, 1))

    def test_the_only_output_and_a_leaf_have_number_0(self):
        x = leaf_of(1.0)
        assert x.output_nr == 0
        assert x.exp().output_nr == 0


class TestAfterBackward:
    """The nodes stay after a backward pass; only saved values are gone."""

    def walk(self, node):
        return [node.name(), [self.walk(n) for n, _ in node.next_functions if n is not None]]

    def test_the_whole_graph(self):
        y = (leaf_of(1.0, 2.0) ** 3).exp().sum()
        node = y.grad_fn
        before = self.walk(node)
        y.backward()
        assert y.grad_fn is node
        assert self.walk(node) == before

    def test_hooks_can_still_be_registered(self):
        x = leaf_of(1.0, 2.0)
        y = x + 1
        y.sum().backward()
        seen = []
        y.grad_fn.register_prehook(lambda g: seen.append(numbers(g)))
        y.sum().backward()
        assert seen == [([1.0, 1.0],)]


class TestChains:
    """A chain of any length can be walked from node to node and freed."""

    def test_a_long_chain(self):
        x = tg.tensor(1.0, requires_grad=True)
        y = x
        for _ in range(20_000):
            y = y * 1.0
        node, steps = y.grad_fn, 0
        while node.next_functions:
            node = node.next_functions[0][0]
            steps += 1
        assert steps == 20_000
        assert node.variable is x

    def test_nodes_of_a_long_chain_that_are_all_held(self):
        y = tg.tensor(1.0, requires_grad=True)
        for _ in range(20_000):
            y = y * 1.0
        nodes = [y.grad_fn]
        while nodes[-1].next_functions:
            nodes.append(nodes[-1].next_functions[0][0])
        assert len(set(nodes)) == 20_001
        del y, nodes

    def test_a_node_found_by_walking_can_be_asked_for_its_gradient(self):
        x = leaf_of(1.0, 2.0)
        y = x * 3
        z = (y * y).sum()
        node = z.grad_fn.next_functions[0][0].next_functions[0][0]
        assert node is y.grad_fn
        seen = []
        node.register_prehook(lambda g: seen.append(numbers(g)))
        assert grad(z, x)[0].tolist() == [18.0, 36.0]
        assert seen == [([6.0, 12.0],)]


class TestCalls:
    """A node can be called: its rule alone runs."""

    def test_gradients_of_the_inputs(self):
        x, y = tg.tensor([1.0, 2.0], requires_grad=True), tg.tensor([3.0, 4.0], requires_grad=True)
        g = tg.tensor([1.0, 10.0])
        one, two = (x * y).grad_fn(g)
        assert (one.tolist(), two.tolist()) == ([3.0, 40.0], [1.0, 20.0])
        one, two = (x * x).grad_fn(g)
        assert (one.tolist(), two.tolist()) == ([1.0, 20.0], [1.0, 20.0])
        one, nothing = (x * 2).grad_fn(g)
        assert one.tolist() == [2.0, 20.0]
        assert nothing is None
        assert x.sum().grad_fn(tg.tensor(3.0)).tolist() == [3.0, 3.0]
        assert x[np.array([1, 1])].grad_fn(g).tolist() == [0.0, 11.0]
        assert x.grad is None

    def test_it_can_be_differentiated(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        found = x.exp().grad_fn(tg.ones(2))
        found.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.exp([1.0, 2.0]))
        node = x.exp().grad_fn
        with tg.no_grad():
            assert not node(tg.ones(2)).requires_grad

    def test_several_outputs(self):
        m = tg.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
        node = tg.linalg.svd(m)[1].grad_fn
        found = node(None, tg.tensor([1.0, 5.0]), None)
        np.testing.assert_allclose(found.detach().numpy(), [[1.0, 0.0], [0.0, 5.0]])
        with pytest.raises(TypeError, match="expected 3 arguments, got 1 instead"):
            node(tg.ones(2))

    @pytest.mark.parametrize("count", [0, 2])
    def test_the_number_of_gradients(self, count):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        for node in ((x * 2).grad_fn, (x * 2).grad_fn.next_functions[0][0]):
            with pytest.raises(TypeError, match=f"^expected 1 arguments, got {count} instead"):
                node(*[tg.ones(2)] * count)

    def test_what_is_no_gradient(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        for node in ((x * 2).grad_fn, (x * 2).grad_fn.next_functions[0][0]):
            with pytest.raises(TypeError, match=r"^argument 0 is not a Variable"):
                node("a")
        assert (x * 2).grad_fn(np.ones(2))[0].tolist() == [2.0, 2.0]

    def test_a_leaf_accumulates(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        node = (x * 1).grad_fn.next_functions[0][0]
        assert node(tg.tensor([3.0, 4.0])) == ()
        node(tg.tensor([1.0, 1.0]))
        assert x.grad.tolist() == [4.0, 5.0]

    def test_no_hook_runs(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 1
        x.register_hook(lambda g: g * 100)
        y.grad_fn.next_functions[0][0](tg.ones(2))
        assert x.grad.tolist() == [1.0, 1.0]

    def test_after_a_write(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        e = x.exp()
        y = e * tg.tensor([1.0, 2.0], requires_grad=True)
        e.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.grad_fn(tg.ones(2))

    def test_a_function(self):
        class Twice(tg.Function):
            @staticmethod
            def forward(ctx, x, n):
                return x * n

            @staticmethod
            def backward(ctx, g):
                return g * 2, None

        x = tg.tensor([1.0, 2.0], requires_grad=True)
        assert Twice.apply(x, 2).grad_fn(tg.ones(2)).tolist() == [2.0, 2.0]

    def test_after_a_backward_pass(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        y.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.grad_fn(tg.ones(2))


class TestSaved:
    """`_saved_*`: what the record keeps for its rule."""

    def test_operands_and_results(self):
        x, y = tg.tensor([1.0, 2.0], requires_grad=True), tg.tensor([3.0, 4.0], requires_grad=True)
        node = (x * y).grad_fn
        assert node._saved_self is x
        assert node._saved_other is y
        assert (x**y).grad_fn._saved_exponent is y
        assert x.exp().grad_fn._saved_result.tolist() == np.exp([1.0, 2.0]).tolist()
        assert (x @ y).grad_fn._saved_self is x
        assert x.sum(axis=0).grad_fn._saved_dim == (0,)
        assert x[0].grad_fn._saved_index == 0
        assert x[np.array([0, 0])].grad_fn._saved_index.tolist() == [0, 0]

    def test_what_is_not_needed(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        assert (x * 2).grad_fn._saved_self is None

    def test_names(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        node = (x * x).grad_fn
        assert {"_saved_self", "_saved_other"} <= set(dir(node))
        assert "_saved_result" not in dir(node)
        with pytest.raises(AttributeError, match="'MultiplyBackward' object has no attribute"):
            node._saved_result  # noqa: B018

    def test_freed(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        for y in (x * x, x @ x, x[np.array([0])]):
            y.sum().backward()
            with pytest.raises(RuntimeError, match="directly access saved tensors after they have"):
                getattr(y.grad_fn, "_saved_index" if y.shape == (1,) else "_saved_self")

    def test_written(self):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        y = x * 1
        for z in (y * y, y @ y):
            y += 1
            with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
                z.grad_fn._saved_self  # noqa: B018
