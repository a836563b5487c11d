"""`autograd.grad`: outputs and inputs, unused inputs, batches of cotangents, arguments, texts."""

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg
from tapegrad.autograd import grad
from tapegrad.autograd.graph import get_gradient_edge

UNUSED = "appears to not have been used in the graph. Set allow_unused=True"


class TestResult:
    """`grad` returns one gradient for each input and touches no `.grad`."""

    def test_returns_a_tuple_and_touches_no_grad(self):
        x = leaf([1.0, 2.0])
        found = grad((x * x).sum(), x)
        assert type(found) is tuple
        assert len(found) == 1
        np.testing.assert_array_equal(values(found[0]), [2.0, 4.0])
        assert x.grad is None

    def test_leaves_an_existing_grad_alone(self):
        x = leaf([1.0, 2.0])
        (x * 3).sum().backward()
        kept = x.grad
        grad((x * x).sum(), x)
        assert x.grad is kept
        np.testing.assert_array_equal(values(kept), [3.0, 3.0])

    @pytest.mark.parametrize("container", [list, tuple])
    def test_several_inputs_in_order(self, container):
        x, y = leaf(2.0), leaf(3.0)
        found = grad(x * x * y, container([y, x]))
        assert [g.item() for g in found] == [4.0, 12.0]

    def test_same_input_twice(self):
        x = leaf(2.0)
        a, b = grad(x * x, [x, x])
        assert a.item() == b.item() == 4.0

    def test_intermediate_input(self):
        x = leaf(2.0)
        y = x * x
        z = y * y
        (g,) = grad(z, y)
        assert g.item() == 8.0

    def test_intermediate_and_leaf_together(self):
        x = leaf(2.0)
        y = x * x
        z = y * y + x
        gy, gx = grad(z, [y, x])
        assert gy.item() == 8.0
        assert gx.item() == 33.0

    def test_input_below_another_input(self):
        x = leaf(2.0)
        a = x * 3
        b = a * a
        ga, gb = grad(b * 5, [a, b])
        assert ga.item() == 60.0
        assert gb.item() == 5.0

    def test_output_as_input(self):
        x = leaf(2.0)
        y = x * x
        (g,) = grad(y, y)
        assert g.item() == 1.0
        (g,) = grad(x, x)
        assert g.item() == 1.0

    def test_output_as_input_with_cotangent(self):
        x = leaf([2.0, 3.0])
        y = x * x
        (g,) = grad(y, y, tg.tensor([5.0, 6.0]))
        np.testing.assert_array_equal(values(g), [5.0, 6.0])

    def test_output_twice(self):
        x = leaf([1.0, 2.0])
        y = (x * x).sum()
        (g,) = grad([y, y], x)
        np.testing.assert_array_equal(values(g), [4.0, 8.0])

    def test_several_outputs_sum_up(self):
        x = leaf([1.0, 2.0])
        (g,) = grad([(x * 2).sum(), (x * x).sum()], [x])
        np.testing.assert_array_equal(values(g), [4.0, 6.0])

    def test_without_create_graph_the_result_is_passive(self):
        x = leaf(2.0)
        (g,) = grad(x**3, x)
        assert not g.requires_grad
        assert g.is_leaf

    def test_results_share_no_memory(self):
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        a, b, c = grad((x + w).sum(), [x, w, x])
        a.zero_()
        np.testing.assert_array_equal(values(b), [1.0, 1.0])
        d, e = grad(x + w, [x, w], tg.ones(2))
        d.zero_()
        np.testing.assert_array_equal(values(e), [1.0, 1.0])
        assert c.shape == (2,)


class TestOnlyWhatIsNeeded:
    """Only the way to the inputs is computed, and only that is freed."""

    def test_only_what_inputs_need_is_computed(self):
        calls = []

        class Watched(tg.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, g):
                calls.append(1)
                return g

        x, y = leaf(2.0), leaf(3.0)
        z = Watched.apply(x) * y
        (g,) = grad(z, y, retain_graph=True)
        assert g.item() == 2.0
        assert calls == []
        grad(z, x)
        assert calls == [1]

    def test_parts_not_on_the_way_are_not_freed(self):
        x, y = leaf(2.0), leaf(3.0)
        a, b = x * x, y * y
        z = a + b
        grad(z, x)
        (g,) = grad(b, y)
        assert g.item() == 6.0

    def test_leaves_not_asked_for_get_nothing(self):
        x, w = leaf(2.0), leaf(3.0)
        seen = []
        w.register_hook(lambda g: seen.append(g.item()))
        w.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
        grad(x * w, x)
        assert w.grad is None
        assert seen == []


class TestUnused:
    """An unused input raises; it gives None if allowed, zeros if asked for."""

    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_unused_input_raises(self, position):
        inputs = [leaf(1.0), leaf(2.0), leaf(3.0)]
        inputs[position] = leaf(9.0)
        used = [x for k, x in enumerate(inputs) if k != position]
        y = used[0] * used[1]
        with pytest.raises(RuntimeError, match=f"Tensor at index {position} {UNUSED}"):
            grad(y, inputs)

    def test_allow_unused_gives_none(self):
        x, y = leaf(2.0), leaf(3.0)
        assert [g and g.item() for g in grad(x * 2, [x, y], allow_unused=True)] == [2.0, None]

    def test_materialize_grads_gives_zeros(self):
        x, y = leaf([2.0], np.float32), leaf([[3.0, 4.0]], np.float32)
        _, g = grad((x * 2).sum(), [x, y], materialize_grads=True)
        assert g.shape == (1, 2)
        assert g.dtype == np.float32
        np.testing.assert_array_equal(values(g), [[0.0, 0.0]])
        assert not g.requires_grad

    def test_materialized_zeros_are_part_of_a_graph(self):
        x, y = leaf(2.0), leaf(3.0)
        _, g = grad(x * x, [x, y], materialize_grads=True, create_graph=True)
        assert g.requires_grad
        assert g.is_leaf

    def test_materialize_grads_with_an_edge(self):
        x, y = leaf(2.0), leaf(3.0)
        edges = [get_gradient_edge(x), get_gradient_edge(y)]
        assert grad(x * x, edges[:1], materialize_grads=True)[0].item() == 4.0
        with pytest.raises(RuntimeError, match="cannot be used when the given input is a Gradient"):
            grad(x * x, edges, materialize_grads=True)

    def test_materialize_grads_with_allow_unused_false(self):
        x = leaf(2.0)
        with pytest.raises(ValueError, match="Expected allow_unused to be True or not passed"):
            grad(x * 2, x, materialize_grads=True, allow_unused=False)

    def test_materialize_grads_with_allow_unused_true(self):
        x, y = leaf(2.0), leaf(3.0)
        found = grad(x * 2, [x, y], materialize_grads=True, allow_unused=True)
        assert [g.item() for g in found] == [2.0, 0.0]

    def test_intermediate_not_on_the_way_is_unused(self):
        x = leaf(2.0)
        y = x * 2
        z = x * 3
        with pytest.raises(RuntimeError, match=UNUSED):
            grad(z, y)

    def test_input_newer_than_the_output_is_unused(self):
        x = leaf(2.0)
        y = x * 2
        z = y * 3
        assert grad(y, z, allow_unused=True) == (None,)

    def test_cut_graph_is_unused(self):
        x = leaf(2.0)
        with pytest.raises(RuntimeError, match=UNUSED):
            grad(x.detach() * leaf(1.0), x)

    def test_texts(self):
        x, w = leaf(2.0), leaf(3.0)
        with pytest.raises(RuntimeError) as caught:
            grad(x * 2, [x, w])
        assert str(caught.value) == (
            "The differentiated Tensor at index 1 appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
        with pytest.raises(ValueError) as error:
            grad(x * 2, x, materialize_grads=True, allow_unused=False)
        assert str(error.value) == (
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
            "allow_unused=False."
        )

    def test_an_unused_edge(self):
        x, w = leaf(2.0), leaf(3.0)
        edge = tg.autograd.graph.get_gradient_edge(w * 1)
        assert grad(x * 2, [x, edge], allow_unused=True)[1] is None
        with pytest.raises(RuntimeError, match=f"index 1 {UNUSED}"):
            grad(x * 2, [x, edge])


class TestArguments:
    """Arguments are checked before anything is computed; old ones warn."""

    def test_input_that_needs_no_grad(self):
        x, y = leaf(2.0), tg.tensor(3.0)
        for output, inputs in ((x * y, [x, y]), (x * 2, y)):
            with pytest.raises(
                RuntimeError, match="One of the differentiated Tensors does not require grad"
            ):
                grad(output, inputs)

    def test_output_without_graph(self):
        x = leaf(2.0)
        text = "element 0 of tensors does not require grad and does not have a grad_fn"
        with pytest.raises(RuntimeError, match=text):
            grad(tg.tensor(1.0), x)

    def test_empty_inputs(self):
        with pytest.raises(RuntimeError, match=r"`inputs` argument to `grad\(\)` cannot be empty"):
            grad(leaf(2.0) * 2, [])

    def test_nonscalar_without_cotangent(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(
            RuntimeError, match="grad can be implicitly created only for scalar outputs"
        ):
            grad(x * 2, x)

    def test_cotangent_of_wrong_shape(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError, match=r"Mismatch in shape: grad_output\[0\]"):
            grad(x * 2, x, tg.zeros(3))

    def test_wrong_number_of_cotangents(self):
        x = leaf(1.0)
        with pytest.raises(RuntimeError, match="got 1 tensors and 2 gradients"):
            grad(x * 2, x, [tg.tensor(1.0), tg.tensor(1.0)])

    @pytest.mark.parametrize("bad", [1.0, "x", np.ones(2), object()])
    def test_inputs_of_a_wrong_type(self, bad):
        x = leaf(1.0)
        with pytest.raises((TypeError, RuntimeError), match=type(bad).__name__):
            grad(x * 2, [bad])

    def test_only_inputs_is_deprecated(self):
        x = leaf(2.0)
        with pytest.warns(FutureWarning, match="only_inputs argument is deprecated"):
            (g,) = grad(x * x, x, only_inputs=False)
        assert g.item() == 4.0
        assert x.grad is None

    def test_all_arguments_by_keyword(self):
        x = leaf([1.0, 2.0])
        (g,) = grad(
            outputs=x * x,
            inputs=x,
            grad_outputs=tg.tensor([1.0, 10.0]),
            retain_graph=True,
            create_graph=False,
            only_inputs=True,
            allow_unused=False,
            is_grads_batched=False,
            materialize_grads=False,
        )
        np.testing.assert_array_equal(values(g), [2.0, 40.0])

    def test_only_inputs_true_does_not_warn(self):
        x = leaf(2.0)
        assert grad(x * x, x, only_inputs=True)[0].item() == 4.0


class TestBatches:
    """`is_grads_batched` sweeps once for each row of the cotangents."""

    def test_batched_cotangents_give_the_jacobian(self):
        x = leaf([1.0, 2.0, 3.0])
        y = x * x
        (jacobian,) = grad(y, x, tg.eye(3), True, is_grads_batched=True)
        np.testing.assert_array_equal(values(jacobian), np.diag([2.0, 4.0, 6.0]))
        (of_array,) = grad(y, x, np.eye(3), is_grads_batched=True)
        np.testing.assert_array_equal(of_array, jacobian)

    def test_batched_with_several_outputs_and_inputs(self):
        x, w = leaf([1.0, 2.0]), leaf(3.0)
        y, z = x * w, (x * x).sum()
        seeds = [np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), np.array([0.0, 0.0, 1.0])]
        gx, gw = grad([y, z], [x, w], [tg.tensor(s) for s in seeds], is_grads_batched=True)
        np.testing.assert_array_equal(values(gx), [[3.0, 0.0], [0.0, 3.0], [2.0, 4.0]])
        np.testing.assert_array_equal(values(gw), [1.0, 2.0, 0.0])

    def test_batched_shapes(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(
            RuntimeError, match=r"interpret the first dimension .* shape of \[3, 3\]"
        ):
            grad(x * x, x, tg.ones((3, 3)), is_grads_batched=True)
        with pytest.raises(
            ValueError, match=r"same size in the batch dimension, got sizes \[3, 4\]"
        ):
            grad([x * 2, x * 3], x, [tg.ones((3, 2)), tg.ones((4, 2))], is_grads_batched=True)
        with pytest.raises(RuntimeError, match="created only for scalar outputs"):
            grad(x * x, x, is_grads_batched=True)

    def test_batched_unused(self):
        x, w = leaf([1.0, 2.0]), leaf(3.0)
        seeds = tg.eye(2)
        gx, gw = grad(x * 2, [x, w], seeds, allow_unused=True, is_grads_batched=True)
        np.testing.assert_array_equal(values(gx), 2 * np.eye(2))
        assert gw is None

    def test_batched_materialized(self):
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0, 5.0])
        _, gw = grad(x * 2, [x, w], tg.eye(2), is_grads_batched=True, materialize_grads=True)
        np.testing.assert_array_equal(values(gw), np.zeros((2, 3)))

    def test_batched_and_differentiable(self):
        x = leaf([1.0, 2.0])
        (rows,) = grad(x**3, x, tg.eye(2), is_grads_batched=True, create_graph=True)
        (second,) = grad(rows.sum(), x)
        np.testing.assert_allclose(values(second), [6.0, 12.0])

    def test_batched_frees_at_the_end(self):
        x = leaf([1.0, 2.0])
        y = x**3
        grad(y, x, tg.eye(2), is_grads_batched=True)
        with pytest.raises(RuntimeError, match="second time"):
            grad(y, x, tg.ones(2))

    def test_batched_cotangent_of_wrong_shape(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError, match="grad_output"):
            grad(x * 2, x, tg.eye(3), is_grads_batched=True)

    def test_of_a_scalar(self):
        x = leaf(2.0)
        (rows,) = grad(x * x, x, tg.tensor([1.0, 2.0, 3.0]), is_grads_batched=True)
        np.testing.assert_array_equal(values(rows), [4.0, 8.0, 12.0])

    def test_each_row_is_what_it_is_alone(self):
        rng = np.random.default_rng(3)
        x = leaf(rng.standard_normal((2, 3)))
        y = tg.tanh(x @ rng.standard_normal((3, 4)))
        seeds = rng.standard_normal((5, 2, 4))
        (rows,) = grad(y, x, tg.tensor(seeds), is_grads_batched=True, retain_graph=True)
        assert rows.shape == (5, 2, 3)
        for row, seed in zip(values(rows), seeds, strict=True):
            (alone,) = grad(y, x, tg.tensor(seed), retain_graph=True)
            np.testing.assert_allclose(row, values(alone), rtol=1e-12)

    def test_without_cotangents(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError):
            grad(x * x, x, is_grads_batched=True)

    def test_batches_of_different_lengths(self):
        x = leaf(2.0)
        with pytest.raises((RuntimeError, ValueError), match=r"size|length"):
            grad([x * x, x * 3], x, [tg.ones(3), tg.ones(2)], is_grads_batched=True)


class TestMemory:
    """A gradient may be written to: it shares memory with nothing else."""

    def check(self, function, x, others):
        y = function(x)
        (g,) = grad(y, x, tg.ones_like(y), retain_graph=True)
        assert not any(np.shares_memory(g.detach().numpy(), other) for other in others)
        before = [np.copy(other) for other in others]
        g.detach().numpy()[...] = 17.0
        for other, copy in zip(others, before, strict=True):
            np.testing.assert_array_equal(other, copy)
        (again,) = grad(y, x, tg.ones_like(y))
        assert not np.any(again.detach().numpy() == 17.0)

    def test_of_a_product(self):
        w = np.arange(12.0).reshape(3, 4)
        self.check(lambda x: x @ w, leaf(np.ones((2, 3))), [w])
        self.check(lambda x: tg.reshape(x @ w, (8,)), leaf(np.ones((2, 3))), [w])

    def test_of_functions_that_keep_what_they_return(self):
        kept = tg.tensor([1.0, 2.0])

        class Constant(tg.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * 1.0

            @staticmethod
            def backward(ctx, g):
                return kept

        class Saved(Constant):
            @staticmethod
            def backward(ctx, g):
                return ctx.saved_tensors[0]

        class Attribute(Constant):
            @staticmethod
            def backward(ctx, g):
                if not hasattr(ctx, "made"):
                    ctx.made = g * 3.0
                return ctx.made

        x = leaf([0.5, 1.5])
        for function in (Constant, Saved, Attribute):
            self.check(function.apply, x, [kept.numpy(), x.detach().numpy()])

    def test_of_hooks_that_keep_gradients(self):
        seen = []
        x = leaf(np.ones((2, 3)))
        y = x * 1.0
        y.register_hook(lambda g: seen.append(g))
        x.register_hook(lambda g: seen.append(g))
        z = y @ np.ones((3, 4))
        for target in (x, y):
            seen.clear()
            (g,) = grad(z, target, tg.ones((2, 4)), retain_graph=True)
            g.detach().numpy()[...] = 17.0
            assert not any(np.any(s.numpy() == 17.0) for s in seen if s is not g)
