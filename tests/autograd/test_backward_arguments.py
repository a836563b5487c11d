"""`autograd.backward`: roots and cotangents, `inputs=`, deprecated names, dtypes."""

import warnings

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg


class TestRoots:
    """Several roots are swept together; the same one twice counts twice."""

    def test_several_roots(self):
        x, y = leaf([1.0, 2.0]), leaf(3.0)
        tg.autograd.backward([(x * 2).sum(), y * y, (x * y).sum()])
        np.testing.assert_array_equal(values(x.grad), [5.0, 5.0])
        assert y.grad.item() == 6.0 + 3.0

    def test_several_roots_with_cotangents(self):
        x = leaf([1.0, 2.0])
        a, b = x * 2, (x * x).sum()
        tg.autograd.backward([a, b], [tg.tensor([1.0, 10.0]), None])
        np.testing.assert_array_equal(values(x.grad), [2 + 2.0, 20 + 4.0])

    def test_tuple_of_roots(self):
        x = leaf(1.0)
        tg.autograd.backward((x * 2, x * 3), (tg.tensor(1.0), tg.tensor(10.0)))
        assert x.grad.item() == 32.0

    def test_same_root_twice_counts_twice(self):
        x = leaf([1.0, 2.0])
        y = (x * x).sum()
        tg.autograd.backward([y, y])
        np.testing.assert_array_equal(values(x.grad), [4.0, 8.0])

    def test_root_that_another_root_was_made_from(self):
        x = leaf(2.0)
        y = x * x
        z = y * 3
        tg.autograd.backward([y, z])
        assert x.grad.item() == 4.0 + 12.0

    def test_leaf_among_the_roots(self):
        x = leaf(2.0)
        tg.autograd.backward([x, x * x])
        assert x.grad.item() == 5.0

    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_root_without_graph(self, position):
        x = leaf(1.0)
        roots = [x * 2, x * 3, x * 4]
        roots[position] = tg.tensor(1.0)
        text = f"element {position} of tensors does not require grad and does not have a grad_fn"
        with pytest.raises(RuntimeError, match=text):
            tg.autograd.backward(roots)
        assert x.grad is None

    @pytest.mark.parametrize("bad", [None, 1.0, "x", [None], [1.0]])
    def test_roots_of_a_wrong_type(self, bad):
        with pytest.raises(TypeError):
            tg.autograd.backward(bad)


class TestCotangents:
    """What is no single number needs a cotangent, of its own shape."""

    @pytest.mark.parametrize(
        "cotangent",
        [
            tg.tensor([1.0, 2.0]),
            np.array([1.0, 2.0]),
            np.array([1, 2]),
            np.array([1.0, 2.0], np.float32),
        ],
        ids=["tensor", "array", "integers", "float32"],
    )
    def test_cotangents_of_all_kinds(self, cotangent):
        x = leaf([3.0, 4.0])
        (x * x).backward(cotangent)
        np.testing.assert_array_equal(values(x.grad), [6.0, 16.0])
        assert x.grad.dtype == np.float64

    def test_strided_cotangent(self):
        x = leaf(np.arange(6.0).reshape(2, 3))
        seed = np.arange(12.0).reshape(3, 4)[:, ::2].T
        (x * 1.0).backward(seed)
        np.testing.assert_array_equal(values(x.grad), seed)

    def test_cotangent_by_keyword(self):
        x = leaf([3.0, 4.0])
        (x * 2).backward(gradient=tg.tensor([1.0, 0.5]))
        np.testing.assert_array_equal(values(x.grad), [2.0, 1.0])
        tg.autograd.backward(tensors=x * 2, grad_tensors=tg.tensor([1.0, 1.0]))
        np.testing.assert_array_equal(values(x.grad), [4.0, 3.0])

    def test_cotangent_of_a_scalar(self):
        x = leaf(3.0)
        (x * x).backward(tg.tensor(10.0))
        assert x.grad.item() == 60.0

    def test_one_element_of_any_rank_needs_no_cotangent(self):
        x = leaf([[3.0]])
        (x * x).backward()
        np.testing.assert_array_equal(values(x.grad), [[6.0]])

    def test_zero_cotangent(self):
        x = leaf([1.0, 2.0])
        (x * x).backward(tg.tensor([0.0, 0.0]))
        np.testing.assert_array_equal(values(x.grad), [0.0, 0.0])

    def test_empty_tensor(self):
        x = leaf(np.zeros((0, 3)))
        x.sum().backward()
        assert x.grad.shape == (0, 3)

    def test_cotangent_that_requires_grad_is_used_as_a_value(self):
        x = leaf([1.0, 2.0])
        g = leaf([3.0, 4.0])
        (x * x).backward(g)
        np.testing.assert_array_equal(values(x.grad), [6.0, 16.0])
        assert g.grad is None
        assert not x.grad.requires_grad

    @pytest.mark.parametrize("y", [leaf([1.0, 2.0]) * 2, leaf([1.0, 2.0])], ids=["result", "leaf"])
    def test_gradient_of_nonscalar_without_cotangent(self, y):
        with pytest.raises(
            RuntimeError, match="grad can be implicitly created only for scalar outputs"
        ):
            y.backward()

    @pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 2), ()])
    def test_cotangent_of_wrong_shape(self, shape):
        y = leaf([1.0, 2.0]) * 2
        with pytest.raises(
            RuntimeError, match=r"Mismatch in shape: grad_output\[0\] has a shape of"
        ):
            y.backward(tg.zeros(shape))

    def test_shape_mismatch_names_the_place(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(
            RuntimeError, match=r"grad_output\[1\].* and output\[1\] has a shape of"
        ):
            tg.autograd.backward([x * 2, x * 3], [tg.zeros(2), tg.zeros(3)])

    def test_wrong_number_of_cotangents(self):
        x = leaf(1.0)
        with pytest.raises(RuntimeError, match="got 2 tensors and 1 gradients"):
            tg.autograd.backward([x * 2, x * 3], [tg.tensor(1.0)])

    @pytest.mark.parametrize("bad", ["one", object(), {"a": 1}])
    def test_cotangent_of_a_wrong_type(self, bad):
        x = leaf([1.0, 2.0])
        with pytest.raises(TypeError, match="gradients can be either"):
            tg.autograd.backward([x * 2], [bad])

    def test_text_of_the_mismatch(self):
        y = leaf([1.0, 2.0]) * 2
        with pytest.raises(RuntimeError) as caught:
            y.backward(tg.zeros(3))
        text = (
            "Mismatch in shape: grad_output[0] has a shape of {} and output[0] has a shape of {}."
        )
        shapes = str(caught.value)
        assert shapes in (text.format("[3]", "[2]"), text.format("(3,)", "(2,)"))

    def test_none_for_what_is_no_scalar(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError, match="implicitly created only for scalar outputs"):
            tg.autograd.backward([x * 2, x * x], [None, tg.zeros(2)])


class TestInputs:
    """`inputs=` restricts accumulation to these tensors, leaves or not."""

    def test_inputs_restrict_accumulation(self):
        x, y = leaf(2.0), leaf(3.0)
        z = x * y
        z.backward(inputs=[x])
        assert x.grad.item() == 3.0
        assert y.grad is None

    def test_inputs_may_be_one_tensor(self):
        x, y = leaf(2.0), leaf(3.0)
        tg.autograd.backward(x * y, inputs=y)
        assert x.grad is None
        assert y.grad.item() == 2.0

    def test_inputs_may_be_intermediate(self):
        x = leaf(2.0)
        y = x * x
        (y * 5).backward(inputs=[y])
        with warnings.catch_warnings(action="ignore"):
            assert y.grad.item() == 5.0
        assert x.grad is None

    def test_inputs_empty(self):
        x = leaf(2.0)
        with pytest.raises(
            RuntimeError, match=r"`inputs` argument to `backward\(\)` cannot be empty\."
        ):
            (x * x).backward(inputs=[])

    def test_inputs_that_need_no_grad(self):
        x, y = leaf(2.0), tg.tensor(1.0)
        with pytest.raises(RuntimeError, match=r"does not require grad|requires_grad=False"):
            (x * y).backward(inputs=[y])

    def test_inputs_not_reached_get_nothing(self):
        x, y = leaf(2.0), leaf(3.0)
        (x * 2).backward(inputs=[x, y])
        assert x.grad.item() == 2.0
        assert y.grad is None

    def test_inputs_accumulate(self):
        x = leaf(2.0)
        for _ in range(3):
            (x * 2).backward(inputs=[x])
        assert x.grad.item() == 6.0

    def test_same_input_twice_accumulates_once(self):
        x = leaf(2.0)
        (x * x).backward(inputs=[x, x])
        assert x.grad.item() == 4.0

    def test_leaf_and_intermediate_together(self):
        x = leaf(2.0)
        y = x * x
        y.retain_grad()
        (y * 5).backward(inputs=[x, y])
        assert x.grad.item() == 20.0
        assert y.grad.item() == 5.0

    def test_an_intermediate_one_after_its_hooks(self):
        y = leaf(2.0) * 2
        y.register_hook(lambda g: g * 10)
        y.retain_grad()
        (y * 5).backward(inputs=[y])
        assert y.grad.item() == 50.0

    def test_an_edge_of_a_leaf(self):
        x, w = leaf(2.0), leaf(3.0)
        edge = tg.autograd.graph.get_gradient_edge(x)
        (x * w).backward(inputs=[edge])
        assert x.grad.item() == 3.0
        assert w.grad is None

    def test_an_edge_of_a_tensor_that_retains_its_gradient(self):
        x = leaf(2.0)
        y = x * x
        y.retain_grad()
        (y * 3).backward(inputs=tg.autograd.graph.get_gradient_edge(y))
        assert y.grad.item() == 3.0
        assert x.grad is None


class TestDeprecated:
    """`grad_variables` still works and warns; both names at once raise."""

    def test_grad_variables_is_deprecated(self):
        x = leaf([1.0, 2.0])
        with pytest.warns(FutureWarning, match="grad_variables"):
            tg.autograd.backward(x * 2, grad_variables=tg.tensor([1.0, 2.0]))
        np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])

    def test_grad_variables_beside_grad_tensors(self):
        x = leaf(1.0)
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(RuntimeError, match="both passed to"),
        ):
            tg.autograd.backward(x * 2, tg.tensor(1.0), grad_variables=tg.tensor(1.0))

    def test_texts(self):
        x = leaf(1.0)
        with pytest.warns(FutureWarning) as caught:
            tg.autograd.backward(x * 2, grad_variables=tg.tensor(1.0))
        text = "`grad_variables` is deprecated. Use `grad_tensors` instead."
        assert [str(w.message) for w in caught] == [text]
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(RuntimeError) as error,
        ):
            tg.autograd.backward(x * 2, tg.tensor(1.0), grad_variables=tg.tensor(1.0))
        assert str(error.value) == (
            "`grad_tensors` and `grad_variables` (deprecated) arguments both passed to "
            "`backward()`. Please only use `grad_tensors`."
        )


class TestDtypes:
    """A gradient has the dtype and the shape of its leaf."""

    def test_gradient_has_the_dtype_of_its_leaf(self):
        x = leaf([1.0, 2.0], np.float32)
        y = leaf([3.0, 4.0], np.float64)
        z = (x * y).sum()
        assert z.dtype == np.float64
        z.backward()
        assert x.grad.dtype == np.float32
        assert y.grad.dtype == np.float64
        np.testing.assert_array_equal(values(x.grad), [3.0, 4.0])
        np.testing.assert_array_equal(values(y.grad), [1.0, 2.0])

    def test_mixed_dtypes_through_a_chain(self):
        x = leaf([0.5, 0.25], np.float32)
        y = x.exp().astype(np.float64)
        z = (y * leaf([2.0, 2.0])).astype(np.float32)
        w = (z * x).sum()
        w.backward()
        assert x.grad.dtype == np.float32
        exact = 2 * np.exp([0.5, 0.25]) * (1 + np.array([0.5, 0.25]))
        np.testing.assert_allclose(values(x.grad), exact, rtol=1e-6)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("number", [2, 2.0, np.float64(2.0), np.int64(2), True])
    def test_numbers_keep_the_dtype(self, dtype, number):
        x = leaf([1.0, 3.0], dtype)
        y = x * number
        y.sum().backward()
        assert x.grad.dtype == dtype
        np.testing.assert_array_equal(values(x.grad), float(number))

    @pytest.mark.parametrize("other", [np.array([1, 2]), np.array([True, False]), np.int32(3)])
    def test_integers_and_bools_take_part(self, other):
        x = leaf([1.5, 2.5])
        (x * other).sum().backward()
        np.testing.assert_array_equal(values(x.grad), np.broadcast_to(other, 2).astype(float))
        t = tg.tensor(other)
        x.grad = None
        (t * x).sum().backward()
        np.testing.assert_array_equal(values(x.grad), np.broadcast_to(other, 2).astype(float))
        assert not t.requires_grad

    def test_integer_intermediate_cuts_the_graph(self):
        x = leaf([1.5, 2.5])
        y = x.astype(np.int64)
        assert not y.requires_grad
        (y * x).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 2.0])

    def test_comparison_results_take_part_as_values(self):
        x = leaf([1.0, -2.0, 3.0])
        ((x > 0) * x).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 0.0, 1.0])

    def test_broadcast_operands(self):
        x = leaf(np.ones((2, 1)))
        y = leaf(np.arange(3.0))
        s = leaf(2.0)
        (x * y * s).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[6.0], [6.0]])
        np.testing.assert_array_equal(values(y.grad), [4.0, 4.0, 4.0])
        assert s.grad.item() == 6.0
        assert s.grad.shape == ()
