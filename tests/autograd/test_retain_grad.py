"""`retain_grad`, and what hooks and retained gradients do when values are written."""

import gc
import warnings
import weakref

import pytest
from leaves import leaf_of

import tapegrad as tg
from tapegrad.autograd import backward, grad


class TestRetainGrad:
    """`retain_grad` keeps in `.grad` the gradient of a tensor that is no leaf."""

    @pytest.mark.parametrize(
        "op",
        [
            lambda x: x * x,
            lambda x: x + 1,
            lambda x: (x * 1)[0:2],
            lambda x: x[0:2],
            lambda x: x.reshape(2, 1).reshape(2),
            lambda x: tg.cumsum(x, 0),
            lambda x: (x * 1).mul_(2),
        ],
    )
    def test_it_keeps_the_gradient(self, op):
        y = op(leaf_of(1.0, 2.0))
        assert not y.retains_grad
        y.retain_grad()
        assert y.retains_grad
        (y * 3).sum().backward()
        assert y.grad.tolist() == [3.0, 3.0]

    def test_it_accumulates_into_a_new_tensor(self):
        y = leaf_of(1.0) * 2
        y.retain_grad()
        (y * 3).backward(retain_graph=True)
        first = y.grad
        (y * 4).backward()
        assert first.tolist() == [3.0]
        assert y.grad.tolist() == [7.0]

    def test_twice_counts_once(self):
        y = leaf_of(1.0) * 2
        y.retain_grad()
        y.retain_grad()
        (y * 3).backward()
        assert y.grad.item() == 3.0

    def test_of_a_leaf_it_changes_nothing(self):
        x = leaf_of(1.0)
        assert not x.retains_grad
        x.retain_grad()
        assert not x.retains_grad
        (x * 3).backward()
        assert x.grad.item() == 3.0

    @pytest.mark.parametrize("first", [True, False])
    def test_it_sees_the_gradient_after_all_tensor_hooks(self, first):
        y = leaf_of(1.0) * 2
        if first:
            y.retain_grad()
        y.register_hook(lambda g: g * 10)
        if not first:
            y.retain_grad()
        y.register_hook(lambda g: g * 2)
        (y * 3).backward()
        assert y.grad.item() == 60.0

    def test_it_shares_no_memory_with_other_gradients(self):
        x = leaf_of(1.0, 2.0)
        y = x + 0
        y.retain_grad()
        y.sum().backward()
        y.grad.zero_()
        assert x.grad.tolist() == [1.0, 1.0]

    def test_under_create_graph(self):
        x = leaf_of(2.0)
        y = x * x
        y.retain_grad()
        with warnings.catch_warnings(action="ignore"):
            (y * y).backward(create_graph=True)
        assert y.grad.requires_grad
        assert grad(y.grad, x)[0].item() == pytest.approx(8.0)

    def test_under_grad(self):
        x = leaf_of(1.0)
        y = x * 2
        y.retain_grad()
        grad(y * 3, x)
        assert y.grad.item() == 3.0

    def test_on_the_root(self):
        y = leaf_of(2.0) * 2
        y.retain_grad()
        y.backward()
        assert y.grad.item() == 1.0

    @pytest.mark.parametrize("op", [lambda x: x * x, lambda x: x + 1, lambda x: x[:1]])
    def test_an_input_of_backward_counts_once(self, op):
        y = op(leaf_of(1.0))
        y.retain_grad()
        (y * 3).backward(inputs=[y])
        assert y.grad.item() == 3.0

    def test_of_a_passive_tensor(self):
        text = "can't retain_grad on Tensor that has requires_grad=False"
        with pytest.raises(RuntimeError, match=text):
            tg.tensor(1.0).retain_grad()

    def test_reading_grad_without_it_warns(self):
        y = leaf_of(1.0) * 2
        text = r"\.grad attribute of a Tensor that is not a leaf Tensor is being accessed"
        with pytest.warns(UserWarning, match=text):
            assert y.grad is None
        (y * 3).backward()
        with pytest.warns(UserWarning, match=text):
            assert y.grad is None

    def test_reading_grad_with_it_does_not(self):
        y = leaf_of(1.0) * 2
        y.retain_grad()
        assert y.grad is None

    def test_it_makes_no_cycle(self):
        gc.disable()
        try:
            x = leaf_of(1.0)
            y = x * 2
            y.retain_grad()
            (y * 3).backward()
            gone = weakref.ref(y)
            del y
            assert gone() is None
        finally:
            gc.enable()

    def test_the_tensor_may_go_before_backward(self):
        x = leaf_of(1.0)
        y = x * 2
        y.retain_grad()
        z = y * 3
        del y
        gc.collect()
        z.backward()
        assert x.grad.item() == 6.0

    def test_a_view_of_a_leaf(self):
        x = leaf_of(1.0, 2.0, 3.0)
        view = x[:2]
        view.retain_grad()
        (view * 3).sum().backward()
        assert (view.retains_grad, x.retains_grad) == (True, False)
        assert view.grad.tolist() == [3.0, 3.0]
        assert x.grad.tolist() == [3.0, 3.0, 0.0]


class TestWrites:
    """Tensor hooks stay with the value they were registered for; retained gradients follow."""

    def test_an_assignment(self):
        x = leaf_of(1.0, 2.0)
        y = x * 1
        seen = []
        y.register_hook(lambda g: seen.append(("old", g.tolist())))
        y[0] = 5.0
        y.register_hook(lambda g: seen.append(("new", g.tolist())))
        y.sum().backward()
        assert seen == [("new", [1.0, 1.0]), ("old", [0.0, 1.0])]

    def test_a_passive_tensor_that_takes_part_from_now_on(self):
        y = tg.zeros(2)
        y.add_(leaf_of(1.0, 2.0))
        seen = []
        y.register_hook(lambda g: seen.append(g.tolist()))
        y.retain_grad()
        (y * 2).sum().backward()
        assert seen == [[2.0, 2.0]]
        assert y.grad.tolist() == [2.0, 2.0]

    def test_retain_grad_and_hooks_together(self):
        y = leaf_of(1.0, 2.0) * 2
        seen = []
        y.retain_grad()
        y.register_hook(lambda g: seen.append(("old", g.tolist())))
        y.mul_(3)
        y.register_hook(lambda g: (seen.append(("new", g.tolist())), g * 2)[1])
        y.sum().backward()
        assert seen == [("new", [1.0, 1.0]), ("old", [6.0, 6.0])]
        assert y.grad.tolist() == [2.0, 2.0]


class TestSeveralOutputs:
    """Each output of an op has its own hooks and its own retained gradient."""

    def test_only_one_is_used(self):
        a = tg.tensor([[2.0, 1.0], [0.0, 3.0]], requires_grad=True)
        q, r = tg.linalg.qr(a)
        seen = []
        r.register_hook(lambda g: seen.append(("r", g.tolist())))
        q.retain_grad()
        r.retain_grad()
        backward((r * 2).sum())
        assert seen == [("r", [[2.0, 2.0], [2.0, 2.0]])]
        assert q.grad is None
        assert r.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]
