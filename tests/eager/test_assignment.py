"""Item assignment: all kinds of indices, of values, and what reads what it writes."""

import warnings

import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import LEAF, MODIFIED, matrix, numeric_grad

import tapegrad as tg
from tapegrad.autograd import grad

MASK = np.array([[True, False, True], [False, True, True]])
INDICES = {
    "row": 1,
    "negative": -1,
    "element": (1, 2),
    "slice": (slice(None), slice(1, None)),
    "steps": (slice(None), slice(None, None, 2)),
    "reversed": (slice(None, None, -1), slice(None, None, -1)),
    "ellipsis": Ellipsis,
    "newaxis": (None, 0),
    "all": slice(None),
    "empty": slice(0, 0),
    "integers": np.array([1, 0]),
    "list": [1],
    "pairs": (np.array([0, 1]), np.array([2, 0])),
    "mixed": (slice(None), np.array([2, 0])),
    "separated": (np.array([0, 1]), None, np.array([1, 1])),
    "boolean": MASK,
    "boolean row": np.array([False, True]),
    "boolean and slice": (np.array([True, False]), slice(1, 3)),
    "scalar boolean": True,
}


class TestIndices:
    """Every index NumPy takes can be assigned to, and gradients follow."""

    @pytest.mark.parametrize("name", INDICES)
    @pytest.mark.parametrize("kind", ["number", "array", "tensor"])
    def test_assignment(self, name, kind):
        index = INDICES[name]
        x, w = matrix(), leaf(0.7)
        y = x * 1.5
        shape = values(y)[index].shape
        content = np.linspace(0.5, 2.0, int(np.prod(shape))).reshape(shape)
        weights = np.arange(1.0, 7.0).reshape(2, 3)

        def plain(a, s):
            b = a * 1.5
            b[index] = {"number": 9.0, "array": content, "tensor": content * s}[kind]
            return b

        y[index] = {"number": 9.0, "array": content, "tensor": w * content}[kind]
        np.testing.assert_array_equal(values(y), plain(values(x), 0.7))
        gx, gw = grad((y * weights).sum(), [x, w], allow_unused=True, materialize_grads=True)
        np.testing.assert_allclose(
            values(gx),
            numeric_grad(lambda a: (plain(a, 0.7) * weights).sum(), values(x).copy()),
            atol=1e-8,
        )
        expected = numeric_grad(lambda s: (plain(values(x), s) * weights).sum(), np.array(0.7))
        np.testing.assert_allclose(values(gw), expected, atol=1e-8)

    @pytest.mark.parametrize("name", INDICES)
    def test_assignment_on_a_leaf(self, name):
        x = matrix()
        with pytest.raises(RuntimeError, match=LEAF):
            x[INDICES[name]] = 0.0
        with tg.no_grad():
            x[INDICES[name]] = 0.0
        assert x.is_leaf
        expected = np.arange(1.0, 7.0).reshape(2, 3)
        expected[INDICES[name]] = 0.0
        np.testing.assert_array_equal(values(x), expected)

    @pytest.mark.parametrize("name", [n for n in INDICES if n != "empty"])
    def test_augmented_assignment_of_items(self, name):
        index = INDICES[name]
        weights = np.arange(1.0, 7.0).reshape(2, 3)

        def plain(a):
            b = a * 1.5
            b[index] *= np.sin(2.0)
            b[index] += 3.0
            return (b * b * weights).sum()

        x = matrix()
        y = x * 1.5
        y[index] *= np.sin(2.0)
        y[index] += 3.0
        total = (y * y * weights).sum()
        assert total.item() == pytest.approx(plain(values(x)))
        total.backward()
        np.testing.assert_allclose(values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6)

    def test_index_tensors(self):
        x = matrix()
        y = x * 1
        y[tg.tensor([0, 1]), tg.tensor([0, 2])] = 0.0
        y[tg.tensor(MASK) & (y > 2.5)] = 1.0
        expected = values(x).copy()
        expected[[0, 1], [0, 2]] = 0
        expected[MASK & (expected > 2.5)] = 1
        np.testing.assert_array_equal(values(y), expected)
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[0, 1, 0], [1, 0, 0]])

    def test_assigning_with_a_repeated_index_keeps_the_last(self):
        x, v = leaf([1.0, 2.0, 3.0]), leaf([10.0, 20.0, 30.0, 40.0])
        y = x * 1
        y[np.array([0, 2, 0, 0])] = v
        np.testing.assert_array_equal(values(y), [40.0, 2.0, 20.0])
        (y * np.array([1.0, 10.0, 100.0])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [0.0, 10.0, 0.0])
        np.testing.assert_array_equal(values(v.grad), [0.0, 100.0, 0.0, 1.0])

    def test_index_out_of_range(self):
        y = matrix() * 1
        with pytest.raises(IndexError):
            y[5] = 1.0
        with pytest.raises(IndexError):
            y[np.array([0, 7])] = 1.0

    def test_the_index_may_change_afterwards(self):
        x, v = leaf([1.0, 2.0, 3.0]), leaf([5.0])
        index = np.array([0])
        y = x * 1
        y[index] = v
        index[:] = 2
        (y * np.array([1.0, 10.0, 100.0])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [0.0, 10.0, 100.0])
        np.testing.assert_array_equal(values(v.grad), [1.0])

    def test_an_index_tensor_may_change_afterwards(self):
        x = leaf([1.0, 2.0, 3.0])
        index = tg.tensor([0])
        y = x * 1
        y[index] = 5.0
        index[:] = 2
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [0.0, 1.0, 1.0])


class TestAssignedValues:
    """The assigned value is broadcast and converted, and gets its gradient."""

    @pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (2, 1), (1, 1, 3)])
    def test_assigned_value_is_broadcast(self, shape):
        v = leaf(np.arange(1.0, np.prod(shape) + 1).reshape(shape))
        y = matrix() * 1
        y[:, :] = v
        expected = np.empty((2, 3))
        expected[:, :] = values(v)
        np.testing.assert_array_equal(values(y), expected)
        weights = np.arange(6.0).reshape(2, 3)
        (y * weights).sum().backward()
        exact = numeric_grad(
            lambda a: (np.broadcast_to(a.reshape(a.shape[-2:]), (2, 3)) * weights).sum(),
            values(v).copy(),
        )
        np.testing.assert_allclose(values(v.grad), exact, atol=1e-8)

    def test_broadcast_value_at_an_advanced_index(self):
        v = leaf([10.0])
        y = tg.zeros(4)
        y[np.array([0, 2])] = v
        y[np.array([True, False, False, True])] = v * 2
        (y * np.arange(1.0, 5.0)).sum().backward()
        assert v.grad.item() == 3.0 + 2 * (1.0 + 4.0)

    def test_value_that_does_not_fit(self):
        y = matrix() * 1
        before = values(y).copy()
        with pytest.raises((ValueError, RuntimeError)):
            y[0] = np.ones(2)
        with pytest.raises((ValueError, RuntimeError)):
            y[0] = leaf(np.ones(2))
        np.testing.assert_array_equal(values(y), before)
        y.sum().backward()

    def test_value_of_another_float_type(self):
        x = leaf([1.0, 2.0], np.float32)
        y = tg.zeros(3)
        y[:2] = x
        (y * np.array([3.0, 4.0, 5.0])).sum().backward()
        assert x.grad.dtype == np.float32
        np.testing.assert_array_equal(values(x.grad), [3.0, 4.0])


class TestReadingWhatIsWritten:
    """A value read from the memory it is written to is that from before."""

    def test_value_from_the_same_tensor(self):
        x = leaf([1.0, 2.0, 3.0, 4.0])
        y = x * 1
        y[1:] = y[:-1]
        np.testing.assert_array_equal(values(y), [1.0, 1.0, 2.0, 3.0])
        (y * np.array([1.0, 10.0, 100.0, 1000.0])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [11.0, 100.0, 1000.0, 0.0])

    def test_reversing_in_place(self):
        x = leaf([1.0, 2.0, 3.0])
        y = x * 1
        y[...] = y[::-1]
        np.testing.assert_array_equal(values(y), [3.0, 2.0, 1.0])
        (y * np.array([1.0, 10.0, 100.0])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [100.0, 10.0, 1.0])

    def test_swapping_two_items(self):
        x = leaf([1.0, 2.0, 3.0])
        y = x * 1
        y[np.array([0, 2])] = y[np.array([2, 0])]
        (y * np.array([1.0, 10.0, 100.0])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [100.0, 10.0, 1.0])

    def test_recurrence_by_items(self):
        x = leaf(np.linspace(0.1, 0.6, 6))
        out = tg.zeros(6)
        out[0] = x[0]
        for k in range(1, 6):
            out[k] = tg.sin(out[k - 1].clone()) + x[k]
        out[5].backward()

        def plain(a):
            s = a[0]
            for k in range(1, 6):
                s = np.sin(s) + a[k]
            return s

        np.testing.assert_allclose(values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6)

    def test_recurrence_that_saves_what_it_writes_to(self):
        x = leaf([0.1, 0.2])
        out = tg.zeros(2)
        out[0] = x[0]
        out[1] = tg.sin(out[0])  # saved is a view of the memory that is written next
        with pytest.raises(RuntimeError, match=MODIFIED):
            out[1].backward()

    def test_one_item_from_another(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        y[0] = y[1]
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [0.0, 2.0])

    def test_no_warnings_from_in_place_work(self):
        with warnings.catch_warnings(action="error"):
            y = matrix() * 1
            y[0] = y[1]
            y.sum().backward()
