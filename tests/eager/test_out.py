"""NumPy's `out=` and `where=`: a result written into a tensor that exists, with its gradient."""

import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import LEAF, VIEW_OF_LEAF

import tapegrad as tg
from tapegrad.autograd import grad


class TestOut:
    """`out=` writes into a tensor, which gets the history of the result."""

    @pytest.mark.parametrize("call", [tg.multiply, np.multiply], ids=["tapegrad", "numpy"])
    def test_out(self, call):
        x = leaf([1.0, 2.0])
        out = tg.zeros(2)
        array = out.numpy()
        returned = call(x, x, out=out)
        assert returned is out
        assert np.shares_memory(values(out), array)
        assert out.requires_grad
        out.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])

    @pytest.mark.parametrize("call", [tg.exp, np.exp], ids=["tapegrad", "numpy"])
    def test_out_and_where(self, call):
        x, start = leaf([1.0, 2.0, 3.0]), leaf([10.0, 20.0, 30.0])
        out = start * 1
        call(x, out=out, where=np.array([True, False, True]))
        np.testing.assert_allclose(values(out), [np.exp(1), 20.0, np.exp(3)])
        (out * np.array([1.0, 10.0, 100.0])).sum().backward()
        np.testing.assert_allclose(values(x.grad), [np.exp(1), 0.0, 100 * np.exp(3)])
        np.testing.assert_array_equal(values(start.grad), [0.0, 10.0, 0.0])

    @pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
    def test_out_is_an_operand(self, call):
        x = leaf([1.0, 2.0])
        y = x * 3
        call(y, y, out=y)
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [6.0, 6.0])

    @pytest.mark.parametrize("call", [tg.exp, np.exp], ids=["tapegrad", "numpy"])
    def test_out_is_the_operand_of_an_op_that_saves(self, call):
        x = leaf([1.0, 2.0])
        y = x * 0.5
        call(y, out=y)
        tg.sin(y, out=y)
        y.sum().backward()
        e = np.exp([0.5, 1.0])
        np.testing.assert_allclose(values(x.grad), np.cos(e) * e * 0.5)

    @pytest.mark.parametrize("call", [tg.multiply, np.multiply], ids=["tapegrad", "numpy"])
    def test_out_is_a_passive_operand(self, call):
        x, t = leaf([1.0, 2.0]), tg.tensor([3.0, 4.0])
        call(t, x, out=t)
        t.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [3.0, 4.0])

    @pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
    def test_out_is_a_view(self, call):
        x = leaf([1.0, 2.0])
        base = tg.zeros((2, 2))
        call(x, 5.0, out=base[0])
        np.testing.assert_array_equal(values(base), [[6.0, 7.0], [0.0, 0.0]])
        (base * np.array([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [1.0, 2.0])

    def test_passive_inputs_into_a_tracked_out(self):
        x = leaf([1.0, 2.0])
        y = x * 3
        np.add(np.array([1.0, 1.0]), 2.0, out=y)
        np.testing.assert_array_equal(values(y), [3.0, 3.0])
        assert grad(y.sum() + 0 * x.sum(), x)[0].tolist() == [0.0, 0.0]

    def test_out_without_recording(self):
        x = leaf([1.0, 2.0])
        out = tg.zeros(2)
        with tg.no_grad():
            np.multiply(x, 2.0, out=out)
        assert not out.requires_grad
        np.testing.assert_array_equal(values(out), [2.0, 4.0])

    def test_out_in_a_tuple(self):
        x, out = leaf([1.0, 2.0]), tg.zeros(2)
        assert np.multiply(x, 3.0, out=(out,)) is out
        out.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [3.0, 3.0])

    def test_a_saved_value_written_by_out_is_noticed(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        z = y.sin().sum()
        np.add(y, 1.0, out=y)
        assert y._version == 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


class TestRefusedOut:
    """An `out` that cannot hold the result or its gradient is refused unwritten."""

    @pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
    def test_out_a_leaf_is_refused(self, call):
        x, out = leaf([1.0, 2.0]), leaf([0.0, 0.0])
        with pytest.raises(RuntimeError, match=LEAF):
            call(x, x, out=out)
        np.testing.assert_array_equal(values(out), [0.0, 0.0])

    @pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
    def test_out_an_array(self, call):
        out = np.zeros(2)
        with pytest.raises(TypeError, match="out"):
            call(leaf([1.0, 2.0]), 1.0, out=out)
        np.testing.assert_array_equal(out, [0.0, 0.0])
        call(tg.tensor([1.0, 2.0]), 1.0, out=out)
        np.testing.assert_array_equal(out, [2.0, 3.0])

    @pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
    @pytest.mark.parametrize("tracked", [True, False])
    def test_out_of_a_wrong_shape(self, call, tracked):
        x = tg.tensor([1.0, 2.0], requires_grad=tracked)
        with pytest.raises((ValueError, RuntimeError)):
            call(x, x, out=tg.zeros(3))

    @pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
    @pytest.mark.parametrize("tracked", [True, False])
    def test_out_of_a_wrong_dtype(self, call, tracked):
        x = tg.tensor([1.5, 2.5], requires_grad=tracked)
        with pytest.raises((TypeError, RuntimeError)):
            call(x, x, out=tg.zeros(2, dtype=np.int64))

    @pytest.mark.parametrize("call", [tg.add, np.add], ids=["tapegrad", "numpy"])
    def test_out_a_view_of_a_leaf(self, call):
        out = leaf([0.0, 0.0, 0.0])
        with pytest.raises(RuntimeError, match=VIEW_OF_LEAF):
            call(tg.tensor([1.0, 2.0]), 1.0, out=out[1:])
        np.testing.assert_array_equal(values(out), [0.0, 0.0, 0.0])

    def test_array_in_place_operator_with_a_tensor(self):
        a = np.array([1.0, 2.0])
        a += tg.tensor([1.0, 1.0])
        np.testing.assert_array_equal(np.asarray(a), [2.0, 3.0])
        with pytest.raises(TypeError):
            np.add(a, leaf([1.0, 1.0]), out=np.zeros(2))
