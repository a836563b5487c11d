"""`autograd.backward` and `Tensor.backward`: accumulation, roots, cotangents, inputs, texts."""

import warnings

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg

SECOND_TIME = "Trying to backward through the graph a second time"


class TestAccumulation:
    """`backward` adds to the `.grad` of the leaves, and to the object that is there."""

    def test_gradient_lands_in_leaf(self):
        x = leaf([1.0, 2.0, 3.0])
        assert x.grad is None
        (x * x).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [2.0, 4.0, 6.0])
        assert not x.grad.requires_grad
        assert x.grad.is_leaf

    def test_backward_returns_none(self):
        x = leaf(1.0)
        assert (x * 2).backward() is None
        assert tg.autograd.backward(x * 2) is None

    def test_accumulates_into_the_same_object(self):
        x = leaf([1.0, 2.0])
        (x * 3).sum().backward()
        first = x.grad
        (x * 4).sum().backward()
        assert x.grad is first
        np.testing.assert_array_equal(values(first), [7.0, 7.0])

    def test_accumulation_is_seen_through_the_array(self):
        x = leaf([1.0, 2.0])
        (x * 3).sum().backward()
        array = x.grad.numpy()
        (x * 4).sum().backward()
        np.testing.assert_array_equal(array, [7.0, 7.0])

    def test_setting_grad_to_none_starts_anew(self):
        x = leaf([1.0])
        (x * 3).sum().backward()
        first = x.grad
        x.grad = None
        (x * 5).sum().backward()
        assert x.grad is not first
        assert x.grad.item() == 5.0
        assert first.item() == 3.0

    def test_grad_is_not_shared_with_the_cotangent(self):
        x = leaf([1.0, 2.0])
        seed = np.array([1.0, 1.0])
        (x + 0.0).backward(seed)
        x.grad.zero_()
        np.testing.assert_array_equal(seed, [1.0, 1.0])

    def test_grads_of_two_leaves_do_not_share_memory(self):
        x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        (x + y).sum().backward()
        x.grad.zero_()
        np.testing.assert_array_equal(values(y.grad), [1.0, 1.0])

    def test_seed_of_a_leaf_root_is_copied(self):
        x = leaf([1.0, 2.0])
        seed = tg.tensor([5.0, 6.0])
        x.backward(seed)
        x.grad.zero_()
        np.testing.assert_array_equal(values(seed), [5.0, 6.0])

    def test_grad_set_by_the_user_is_added_to(self):
        x = leaf([1.0, 2.0])
        mine = tg.tensor([10.0, 20.0])
        x.grad = mine
        (x * 2).sum().backward()
        assert x.grad is mine
        np.testing.assert_array_equal(values(mine), [12.0, 22.0])

    def test_leaf_as_its_own_root(self):
        x = leaf(3.0)
        x.backward()
        assert x.grad.item() == 1.0
        x.backward()
        assert x.grad.item() == 2.0

    def test_requires_grad_switched_off_and_on(self):
        x = leaf([1.0])
        y = (x * 2).sum()
        x.requires_grad_(False)
        z = (x * 3).sum()
        assert not z.requires_grad
        x.requires_grad_()
        (x * 5).sum().backward()
        assert x.grad.item() == 5.0
        assert y.requires_grad

    def test_it_is_a_write_to_grad(self):
        x = leaf([1.0, 2.0])
        (x * 3).sum().backward()
        assert x.grad._version == 0
        (x * 3).sum().backward()
        assert x.grad._version == 1

    def test_a_grad_with_history_is_replaced(self):
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        x.grad = w * 2
        before = x.grad
        (x * 2).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [8.0, 10.0])
        np.testing.assert_array_equal(values(w), [3.0, 4.0])
        assert before is not None

    def test_a_grad_that_is_a_view(self):
        store = tg.zeros(4)
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        x.grad, w.grad = store[:2], store[2:]
        (x * w).sum().backward()
        np.testing.assert_array_equal(store.numpy(), [3.0, 4.0, 1.0, 2.0])


class TestCreateGraph:
    """With `create_graph` gradients are new tensors that can be differentiated."""

    def test_backward_with_create_graph_makes_a_differentiable_grad(self):
        x = leaf([2.0, 3.0])
        with warnings.catch_warnings(action="ignore"):
            (x**3).sum().backward(create_graph=True)
        assert x.grad.requires_grad
        (second,) = tg.autograd.grad(x.grad.sum(), x)
        np.testing.assert_allclose(values(second), [12.0, 18.0])

    def test_backward_with_create_graph_warns(self):
        x = leaf(2.0)
        with pytest.warns(UserWarning, match=r"create_graph=True will create a reference cycle"):
            (x * x).backward(create_graph=True)

    def test_create_graph_accumulates_out_of_place(self):
        x = leaf([2.0])
        (x * 3).sum().backward()
        first = x.grad
        with warnings.catch_warnings(action="ignore"):
            (x**2).sum().backward(create_graph=True)
        assert x.grad is not first
        assert first.item() == 3.0
        assert x.grad.item() == 7.0

    def test_the_warning_says_what_to_do(self):
        with pytest.warns(UserWarning, match="between the parameter and its gradient") as caught:
            (leaf(2.0) ** 2).backward(create_graph=True)
        assert len(caught) == 1
        assert "autograd.grad when creating the graph" in str(caught[0].message)

    def test_a_grad_of_the_user_is_left_alone(self):
        x = leaf([1.0, 2.0])
        mine = x.grad = tg.ones(2)
        with warnings.catch_warnings(action="ignore"):
            (x * x).sum().backward(create_graph=True)
        assert mine.tolist() == [1.0, 1.0]
        np.testing.assert_array_equal(values(x.grad), [3.0, 5.0])


class TestGraphs:
    """Each path from a root to a leaf counts once, whatever the shape of the graph."""

    def test_diamond(self):
        x = leaf(2.0)
        a = x * 3
        b = a * a
        c = a + 1
        (b * c).backward()
        # d/dx (9x²(3x+1)) = 81x² + 18x
        assert x.grad.item() == pytest.approx(81 * 4 + 36)

    def test_repeated_diamonds(self):
        x = leaf(1.5)
        y = x
        for _ in range(12):
            y = y * 0.5 + y * 0.6
        y.backward()
        assert x.grad.item() == pytest.approx(1.1**12)

    def test_same_tensor_as_both_operands(self):
        x = leaf([3.0, 4.0])
        (x + x).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [2.0, 2.0])
        x.grad = None
        (x - x).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [0.0, 0.0])
        x.grad = None
        (x / x).sum().backward()
        np.testing.assert_allclose(values(x.grad), [0.0, 0.0], atol=1e-15)

    def test_wide_graph(self):
        x = leaf(np.arange(5.0))
        parts = [x * float(k) for k in range(500)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        total.sum().backward()
        np.testing.assert_allclose(values(x.grad), np.full(5, sum(range(500))))

    def test_wide_concatenation(self):
        leaves = [leaf([float(k), 1.0]) for k in range(200)]
        joined = tg.concatenate(leaves)
        (joined * np.arange(400.0)).sum().backward()
        for k, x in enumerate(leaves):
            np.testing.assert_array_equal(values(x.grad), [2.0 * k, 2.0 * k + 1])

    def test_unused_branch_gets_nothing(self):
        x, y = leaf(1.0), leaf(2.0)
        z = x * 2
        w = y * 3
        z.backward()
        assert x.grad.item() == 2.0
        assert y.grad is None
        assert w.requires_grad

    def test_tensor_used_in_two_graphs(self):
        x = leaf([1.0, 2.0])
        shared = x.exp()
        first, second = (shared * 2).sum(), (shared + 3).sum()
        first.backward(retain_graph=True)
        second.backward()
        np.testing.assert_allclose(values(x.grad), 3 * np.exp([1.0, 2.0]))


def _assigned(x, index):
    y = x * 1.0
    y[index] = x[:2]
    return y


class TestSecondTime:
    """A second backward raises if a value it needs was freed, and only then."""

    @pytest.mark.parametrize(
        "build",
        [
            lambda x: (x * x).sum(),
            lambda x: x.exp().sum(),
            lambda x: (x**3).sum(),
            lambda x: x @ x,
            lambda x: tg.max(x),
            lambda x: tg.logsumexp(x),
            lambda x: tg.linalg.norm(x),
            lambda x: tg.prod(x),
            lambda x: x[np.array([0, 0, 2])].sum(),
            lambda x: _assigned(x, np.array([0, 2])).sum(),
        ],
    )
    @pytest.mark.parametrize("through", ["backward", "grad"])
    def test_second_time_raises_if_something_was_saved(self, build, through):
        x = leaf([1.0, 2.0, 3.0])
        y = build(x)
        run = y.backward if through == "backward" else lambda: tg.autograd.grad(y, x)
        run()
        with pytest.raises(RuntimeError, match=SECOND_TIME) as caught:
            run()
        assert "Specify retain_graph=True" in str(caught.value)

    @pytest.mark.parametrize(
        "build",
        [
            lambda x: (x + 1).sum(),
            lambda x: (-x).sum(),
            lambda x: x.reshape(1, 3).sum(),
            lambda x: x[1:].sum(),
            lambda x: (x - np.ones(3)).sum(),
            lambda x: tg.concatenate([x, x]).sum(),
            lambda x: tg.cumsum(x).sum(),
            lambda x: x.mean(),
        ],
    )
    def test_second_time_is_fine_if_nothing_was_saved(self, build):
        x = leaf([1.0, 2.0, 3.0])
        y = build(x)
        y.backward()
        once = values(x.grad).copy()
        y.backward()
        np.testing.assert_array_equal(values(x.grad), 2 * once)

    @pytest.mark.parametrize("times", [2, 4])
    def test_retain_graph_allows_repeats(self, times):
        x = leaf([1.0, 2.0])
        y = (x.exp() * x).sum()
        for _ in range(times):
            y.backward(retain_graph=True)
        y.backward()
        expected = (times + 1) * np.exp([1.0, 2.0]) * (1 + np.array([1.0, 2.0]))
        np.testing.assert_allclose(values(x.grad), expected)
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            y.backward()

    def test_second_graph_finds_shared_part_freed(self):
        x = leaf([1.0, 2.0])
        shared = x.exp()
        first, second = (shared * 2).sum(), (shared + 3).sum()
        first.backward()
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            second.backward()

    def test_a_failed_backward_does_not_touch_grads_of_other_graphs(self):
        x = leaf([1.0, 2.0])
        y = (x * x).sum()
        y.backward()
        before = values(x.grad).copy()
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            y.backward()
        np.testing.assert_array_equal(values(x.grad), before)
        (x * 2).sum().backward()
        np.testing.assert_array_equal(values(x.grad), before + 2)

    def test_text(self):
        y = (leaf([1.0]) ** 2).sum()
        y.backward()
        with pytest.raises(RuntimeError) as caught:
            y.backward()
        assert str(caught.value) == (
            "Trying to backward through the graph a second time (or directly access saved tensors "
            "after they have already been freed). Saved intermediate values of the graph are freed "
            "when you call .backward() or autograd.grad(). Specify retain_graph=True if you need "
            "to backward through the graph a second time or if you need to access saved tensors "
            "after calling backward."
        )

    def test_parts_that_were_not_swept_are_not_freed(self):
        x, w = leaf(2.0), leaf(3.0)
        a, b = x * x, w * w
        a.backward()
        b.backward()
        assert w.grad.item() == 6.0


class TestRetainGraph:
    """`retain_graph` is `create_graph` unless it is given."""

    def test_create_graph_retains(self):
        x = leaf(2.0)
        y = x**3
        tg.autograd.grad(y, x, create_graph=True)
        (again,) = tg.autograd.grad(y, x)
        assert again.item() == pytest.approx(12.0)

    def test_create_graph_with_retain_graph_false_frees(self):
        x = leaf(2.0)
        y = (x * x) * x
        tg.autograd.grad(y, x, create_graph=True, retain_graph=False)
        with pytest.raises(RuntimeError, match=SECOND_TIME):
            tg.autograd.grad(y, x)
