"""The autograd attributes of a Tensor: which can be set, and to what."""

import copy
import pickle

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg
from tapegrad.autograd import grad


class TestPlaceInTheGraph:
    """`is_leaf`, `grad_fn`, `output_nr` and `_version` tell, and cannot be set."""

    @pytest.mark.parametrize("name", ["is_leaf", "grad_fn", "output_nr", "_version", "_base"])
    def test_they_are_not_settable(self, name):
        with pytest.raises(AttributeError):
            setattr(leaf([1.0]), name, None)

    def test_output_nr(self):
        x = leaf([1.0, 2.0])
        assert x.output_nr == (x * 2).output_nr == 0
        pieces = tg.split(x, 2)
        assert [piece.output_nr for piece in pieces] == [0, 1]
        w, v = tg.linalg.eigh(leaf(np.eye(2)))
        assert (w.output_nr, v.output_nr) == (0, 1)

    def test_results(self):
        y = leaf([1.0]) * 2
        assert y.requires_grad is True
        assert y.is_leaf is False
        assert (tg.tensor([1.0]) * 2).is_leaf

    def test_grad_fn(self):
        x = leaf([1.0])
        assert x.grad_fn is None
        assert x.exp().grad_fn.name() == "ExpBackward"
        assert (x * 2).grad_fn.name() == "MultiplyBackward"
        assert x.detach().grad_fn is None
        with tg.no_grad():
            assert x.exp().grad_fn is None


class TestRequiresGrad:
    """Any leaf of a floating dtype may start and stop to require gradients."""

    @pytest.mark.parametrize("before", [True, False])
    @pytest.mark.parametrize("value", [True, False])
    def test_setting_it(self, value, before):
        t = tg.tensor([1.0], requires_grad=before)
        t.requires_grad = value
        assert t.requires_grad is value
        t = tg.tensor([1.0], requires_grad=before)
        assert t.requires_grad_(value) is t
        assert t.requires_grad is value
        assert t.requires_grad_() is t
        assert t.requires_grad is True

    def test_a_nonleaf_may_be_told_what_it_is(self):
        y = leaf([1.0]) * 2
        assert y.requires_grad_() is y
        assert not y.is_leaf
        text = "you can only change requires_grad flags of leaf variables"
        with pytest.raises(RuntimeError, match=text):
            y.requires_grad_(False)
        with pytest.raises(RuntimeError, match=text):
            y.requires_grad = False

    @pytest.mark.parametrize("dtype", [np.int64, np.int8, np.bool_, np.uint8])
    def test_other_dtypes(self, dtype):
        text = "nly Tensors of floating point and complex dtype can require gradients"
        with pytest.raises(RuntimeError, match=text):
            tg.tensor([1], dtype=dtype, requires_grad=True)
        t = tg.tensor([1], dtype=dtype)
        with pytest.raises(RuntimeError, match=text):
            t.requires_grad_()
        with pytest.raises(RuntimeError, match=text):
            t.requires_grad = True
        assert not t.requires_grad
        assert t.requires_grad_(False) is t

    def test_switched_off_the_gradient_stays(self):
        x = leaf([1.0])
        (x * 2).backward()
        x.requires_grad_(False)
        assert x.grad.item() == 2.0
        assert not (x * 2).requires_grad


class TestNoBool:
    """`requires_grad` is a bool, not something that counts as one."""

    @pytest.mark.parametrize("value", [None, 1, 0.0, "yes", [True]])
    def test_refused(self, value):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        with pytest.raises(RuntimeError, match="requires_grad must be a bool"):
            x.requires_grad = value
        with pytest.raises(TypeError, match=r"argument 'requires_grad' .* must be bool"):
            x.requires_grad_(value)
        with pytest.raises(RuntimeError, match="requires_grad must be a bool"):
            del x.requires_grad
        assert x.requires_grad

    def test_of_numpy(self):
        x = tg.tensor([1.0, 2.0])
        x.requires_grad = np.bool_(True)
        assert x.requires_grad is True


class TestGrad:
    """`.grad` takes a tensor of the same shape and dtype, on any tensor, or None."""

    @pytest.mark.parametrize("tracked", [True, False])
    def test_on_leaves(self, tracked):
        x = tg.tensor([1.0, 2.0], requires_grad=tracked)
        g = tg.ones(2)
        x.grad = g
        assert x.grad is g
        del x.grad
        assert x.grad is None

    def test_on_a_nonleaf(self):
        y = leaf([1.0, 2.0]) * 2
        y.grad = g = tg.ones(2)
        assert y.grad is g

    def test_with_a_history(self):
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        x.grad = w * 2
        assert grad(x.grad.sum(), w)[0].tolist() == [2.0, 2.0]


class TestData:
    """`.data` is the memory; assigning it gives the tensor other memory."""

    def test_of_another_shape(self):
        x = leaf([1.0, 2.0])
        x.data = tg.ones(3)
        assert x.shape == (3,)
        (x * 2).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [2.0, 2.0, 2.0])

    def test_of_a_dtype_without_gradients(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError, match="floating point or complex dtype"):
            x.data = tg.tensor([1, 2])

    def test_shares_what_was_assigned(self):
        x, other = leaf([1.0, 2.0]), tg.tensor([3.0, 4.0])
        x.data = other
        with tg.no_grad():
            x += 1.0
        assert other.tolist() == [4.0, 5.0]

    def test_it_records_nothing(self):
        x = leaf([1.0, 2.0])
        assert not (x.data * 2).requires_grad
        assert x.data.is_leaf
        assert x.data is not x.data


class TestTexts:
    """Errors say what PyTorch says."""

    def test_a_gradient_of_another_size(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError, match=r"of size '\[3\]' to a tensor of size '\[2"):
            x.grad = tg.ones(3)

    def test_deep_copy_of_a_result(self):
        y = leaf([1.0, 2.0]) * 2
        with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
            copy.deepcopy(y)
        with pytest.raises(RuntimeError, match=r"the graph stays behind\); detach\(\) first"):
            pickle.dumps(y)

    def test_deleted_data(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError, match="Deleting tensor data is not allowed"):
            del x.data
        assert x.tolist() == [1.0, 2.0]


class TestDetach:
    """`detach()` is a leaf on the same memory."""

    def test_attributes(self):
        x = leaf([1.0, 2.0])
        for t in (x, x * 2, (x * 2)[:1], tg.tensor([1.0])):
            d = t.detach()
            assert d is not t
            assert d.is_leaf
            assert not d.requires_grad
            assert d.grad is None
            assert not d._is_view()
            assert np.shares_memory(d.numpy(), values(t))
            d[0] = 9.0
            assert values(t)[0] == 9.0

    def test_it_cuts_the_gradient(self):
        x = leaf([1.0, 2.0])
        y = x * 2
        (y.detach() * x).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])


class TestBackwardMethod:
    """`t.backward()` is `autograd.backward(t)`, with its arguments by name or place."""

    def test_all_arguments(self):
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        y = x * w
        y.backward(tg.tensor([1.0, 10.0]), True, False, [x])
        np.testing.assert_array_equal(values(x.grad), [3.0, 40.0])
        assert w.grad is None
        y.backward(gradient=tg.ones(2), retain_graph=False, create_graph=False, inputs=w)
        np.testing.assert_array_equal(values(w.grad), [1.0, 2.0])
