"""Saved values that were overwritten: found when they are needed, with a text that says which."""

import re

import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import MODIFIED

import tapegrad as tg
from tapegrad.autograd import grad

SAVING = {
    "exp": lambda t: t.exp(),
    "multiply": lambda t: t * t,
    "sin": lambda t: t.sin(),
    "power": lambda t: t**3,
    "divide": lambda t: 1.0 / t,
    "matmul": lambda t: t @ t,
    "max": lambda t: tg.max(t),
    "logsumexp": lambda t: tg.logsumexp(t),
    "norm": lambda t: tg.linalg.norm(t),
    "outer": lambda t: tg.outer(t, t),
    "einsum": lambda t: tg.einsum("i,i->i", t, t),
}
NOT_SAVING = {
    "add": lambda t: t + 1.0,
    "negative": lambda t: -t,
    "sum": lambda t: t.sum(),
    "scale": lambda t: t * 2.0,
    "shift": lambda t: t - np.ones(3),
    "view": lambda t: t[1:],
    "gather": lambda t: t[np.array([0, 0])],
    "concatenate": lambda t: tg.concatenate([t, t]),
    "cumsum": lambda t: tg.cumsum(t),
    "where": lambda t: tg.where(np.array([True, False, True]), t, 0.0),
    "clone": lambda t: t.clone(),
    "mean": lambda t: t.mean(),
}
WRITES = {
    "add_": lambda t: t.add_(1.0),
    "item": lambda t: t.__setitem__(1, 7.0),
    "view": lambda t: t[:2].mul_(2.0),
    "detached": lambda t: t.detach().zero_(),
    "out": lambda t: np.negative(t, out=t),
}

MASK = np.array([True, False, True])
ROWS = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
# NumPy's functions that write to a tensor without a history
NUMPY_WRITES = {
    "add.at": lambda t: np.add.at(t, [0], 5.0),
    "multiply.at": lambda t: np.multiply.at(t, [0], 5.0),
    "negative.at": lambda t: np.negative.at(t, [0, 2]),
    "casting": lambda t: np.add(t, 1.0, out=t, casting="same_kind"),
    "unknown ufunc": lambda t: np.spacing(ROWS[0], out=t),
    "comparison": lambda t: np.isnan(ROWS[0], out=t),
    "fabs": lambda t: np.fabs(-ROWS[1], out=t),
    "two results": lambda t: np.modf(ROWS[0] * 1.3, out=(t, None)),
    "reduce": lambda t: np.add.reduce(ROWS, out=t),
    "accumulate": lambda t: np.add.accumulate(ROWS[0] + 1.0, out=t),
    "reduceat": lambda t: np.add.reduceat(ROWS[1], [0, 1, 2], out=t),
    "outer": lambda t: np.multiply.outer(ROWS[1], 1.0, out=t),
    "where": lambda t: np.nextafter(ROWS[1], 0.0, out=t, where=MASK),
    "copyto": lambda t: np.copyto(t, ROWS[1]),
    "put": lambda t: np.put(t, [0, -1], 9.0),
    "place": lambda t: np.place(t, MASK, [9.0, 8.0]),
    "putmask": lambda t: np.putmask(t, MASK, ROWS[1]),
    "put_along_axis": lambda t: np.put_along_axis(t, np.array([0]), 7.0, 0),
    "fill_diagonal": lambda t: np.fill_diagonal(t.reshape(1, 3), 9.0),
    "isposinf": lambda t: np.isposinf(ROWS[0], out=t),
    "cumsum": lambda t: np.cumsum(ROWS[1], out=t),
    "nanmedian": lambda t: np.nanmedian(ROWS, axis=0, out=t),
}


@pytest.mark.parametrize("of_view", [False, True])
@pytest.mark.parametrize("write", NUMPY_WRITES)
def test_numpy_functions_that_write(write, of_view):
    """The value is NumPy's, and a gradient that needs the old one is not computed with the new."""
    expected = np.array([2.0, 3.0, 4.0])
    NUMPY_WRITES[write](expected)
    base = tg.tensor([2.0, 3.0, 4.0])
    x = leaf([3.0, 1.0, 2.0])
    y = (x * base).sum()
    NUMPY_WRITES[write](base[:] if of_view else base)
    np.testing.assert_array_equal(base.numpy(), expected)
    with pytest.raises(RuntimeError, match=MODIFIED):
        y.backward()
    with tg.autograd.graph.allow_mutation_on_saved_tensors():
        base = tg.tensor([2.0, 3.0, 4.0])
        y = (x * base).sum()
        NUMPY_WRITES[write](base)
        y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 3.0, 4.0])


def test_other_functions_do_not_write_to_tensors():
    t = tg.tensor([2.0, 3.0, 4.0])
    with pytest.raises(TypeError, match=r"isneginf writes to a tensor.*t\.detach\(\)\.numpy\(\)"):
        np.isneginf(ROWS[0], t)  # not by the name of the argument
    array = t.detach().numpy().copy()  # the way out
    np.isneginf(ROWS[0], array)
    t[...] = array
    np.testing.assert_array_equal(values(t), np.zeros(3))


def test_history_of_what_is_written():
    x = leaf([1.0, 2.0, 3.0])
    w = leaf([5.0, 7.0])
    y = x * 2.0
    np.put(y, [2, 0], w)
    (y * y).sum().backward()
    np.testing.assert_array_equal(values(x.grad), [0.0, 16.0, 0.0])
    np.testing.assert_array_equal(values(w.grad), [10.0, 14.0])
    y = x * 2.0
    np.isnan(ROWS[0], out=y)
    assert not y.requires_grad
    y = x * 2.0
    with pytest.raises(TypeError, match=r"`out` and `where` of a tensor that requires grad"):
        np.isnan(ROWS[0], out=y, where=MASK)
    with pytest.raises(TypeError, match=r"numpy.place of a tensor that requires grad"):
        np.place(y, MASK, [1.0])
    with pytest.raises(TypeError, match=r"numpy.put to an array"):
        np.put(np.ones(3), [0], w)


class TestDetection:
    """A backward that needs an overwritten value raises; one that does not is right."""

    @pytest.mark.parametrize("op", SAVING)
    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("through", ["backward", "grad", "create_graph"])
    def test_modified_input_is_detected_at_backward(self, op, write, through):
        x = leaf([1.0, 2.0, 3.0])
        y = x * 1.0
        z = SAVING[op](y)
        if op == "exp":  # it saves its output
            y = z
        total = z.sum()
        WRITES[write](y)
        with pytest.raises(RuntimeError, match=MODIFIED):  # noqa: PT012
            if through == "backward":
                total.backward()
            else:
                grad(total, x, create_graph=through == "create_graph")

    @pytest.mark.parametrize("op", NOT_SAVING)
    @pytest.mark.parametrize("write", WRITES)
    def test_modified_input_that_was_not_saved_is_fine(self, op, write):
        x = leaf([1.0, 2.0, 3.0])
        y = x * 1.0
        total = NOT_SAVING[op](y).sum()
        (expected,) = grad(total, x, retain_graph=True)
        WRITES[write](y)
        total.backward()
        np.testing.assert_array_equal(values(x.grad), values(expected))

    def test_output_saved_and_input_modified_is_fine(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        z = y.exp()
        y.zero_()
        z.sum().backward()
        np.testing.assert_allclose(values(x.grad), np.exp([1.0, 2.0]))

    def test_saved_for_the_other_operand_only(self):
        x, w = leaf([1.0, 2.0]), tg.tensor([3.0, 4.0])
        y = x * 1
        z = (y * w).sum()
        y += 1.0  # only w was saved, as w needs no gradient
        z.backward()
        np.testing.assert_array_equal(values(x.grad), [3.0, 4.0])

    def test_passive_operand_modified(self):
        x, w = leaf([1.0, 2.0]), tg.tensor([3.0, 4.0])
        z = (x * w).sum()
        w += 1.0
        with pytest.raises(RuntimeError, match=MODIFIED):
            z.backward()

    def test_leaf_modified_without_recording_is_detected(self):
        x = leaf([1.0, 2.0])
        z = (x * x).sum()
        with tg.no_grad():
            x += 1.0
        with pytest.raises(RuntimeError, match=MODIFIED):
            z.backward()

    def test_modification_before_saving_is_fine(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        y += 1.0
        (y * y).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [4.0, 6.0])

    def test_modification_off_the_way_is_not_looked_at(self):
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        a, b = x.exp(), w.exp()
        total = a.sum() + b.sum()
        b.zero_()
        (g,) = grad(total, x)
        np.testing.assert_allclose(values(g), np.exp([1.0, 2.0]))

    def test_modification_through_detach_is_detected(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        z = y.sum()
        y.detach().zero_()
        with pytest.raises(RuntimeError, match=MODIFIED):
            z.backward()

    def test_it_is_the_backward_that_raises_and_not_the_write(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        z = y.sum()
        y.zero_()
        z = z + y.sum()
        assert z.item() == pytest.approx(np.exp([1.0, 2.0]).sum())
        with pytest.raises(RuntimeError, match=MODIFIED):
            z.backward()

    def test_restored_values_are_refused_too(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        z = y.sum()
        kept = y.detach().clone()
        with tg.no_grad():
            y.zero_()
            y.copy_(kept)
        with pytest.raises(RuntimeError, match=MODIFIED):
            z.backward()

    def test_grads_of_other_graphs_stay_after_the_error(self):
        x = leaf([1.0, 2.0])
        (x * 3).sum().backward()
        y = x.exp()
        z = y.sum()
        y.zero_()
        with pytest.raises(RuntimeError, match=MODIFIED):
            z.backward()
        np.testing.assert_array_equal(values(x.grad), [3.0, 3.0])
        (x * 2).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [5.0, 5.0])

    def test_a_gradient_that_was_used_and_then_added_to(self):
        x, w = leaf([2.0, 3.0]), leaf([1.0, 1.0])
        (x * x).sum().backward()
        used = (w * x.grad).sum()
        (x * x).sum().backward()
        with pytest.raises(RuntimeError, match=MODIFIED):
            used.backward()


class TestText:
    """The text says whose output it is, its dtype and shape, both versions, and what to do."""

    def text(self, total):
        with pytest.raises(RuntimeError) as caught:
            total.backward()
        return str(caught.value)

    def test_all_of_it(self):
        y = leaf([1.0, 2.0, 3.0]).exp()
        total = y.sum()
        y += 1.0
        text = self.text(total).replace("ExpBackward", "Exp")
        assert text.startswith(
            "one of the variables needed for gradient computation has been modified by an inplace "
            "operation: [float64 [3]], which is output 0 of Exp, is at version 1; expected version "
            "0 instead. Hint: enable anomaly detection to find the operation that failed to "
            "compute its gradient, with tapegrad.autograd.set_detect_anomaly(True"
        )

    def test_words_of_the_contract(self):
        y = leaf([1.0, 2.0]).exp()
        total = y.sum()
        y += 1.0
        text = self.text(total)
        assert MODIFIED in text
        assert "which is output 0 of Exp" in text
        assert "is at version 1; expected version 0 instead. Hint: " in text

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
    def test_dtype_and_shape(self, dtype, shape):
        y = leaf(np.ones(shape), dtype).exp()
        total = y.sum()
        y.zero_()
        assert f"[{np.dtype(dtype)} {list(shape)}]" in self.text(total)

    def test_versions_count_all_writes(self):
        y = leaf([1.0, 2.0]) * 1
        y += 1.0
        total = y.sin().sum()
        y += 1.0
        y[0] = 3.0
        assert "is at version 3; expected version 1 instead" in self.text(total)

    def test_a_leaf_is_no_ops_output(self):
        x = leaf([1.0, 2.0])
        total = (x * x).sum()
        with tg.no_grad():
            x += 1.0
        text = self.text(total)
        assert "[float64 [2]] is at version 1; expected version 0 instead" in text
        assert "which is output" not in text

    def test_a_passive_tensor_is_no_ops_output(self):
        x, w = leaf([1.0, 2.0]), tg.tensor([3.0, 4.0])
        total = (x * w).sum()
        w += 1.0
        text = self.text(total)
        assert "[float64 [2]] is at version 1; expected version 0 instead" in text

    def test_the_number_of_the_output(self):
        x = leaf(np.diag([1.0, 2.0]) + 0.1)
        w, v = tg.linalg.eigh(x)
        total = v[0, 0] + w.sum()
        v.detach().zero_()
        text = self.text(total)
        assert re.search(r"which is output 1 of \w*Eigh\w*, is at version 1", text, re.IGNORECASE)

    def test_a_functions_saved_output(self):
        class Exp(tg.Function):
            @staticmethod
            def forward(ctx, x):
                y = x.exp()
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0]

        y = Exp.apply(leaf([1.0, 2.0]) * 1)
        total = y.sum()
        y += 1.0
        text = self.text(total).replace("ExpBackward", "Exp")
        assert "which is output 0 of Exp, is at version 1; expected" in text

    def test_under_create_graph_it_is_the_same(self):
        x = leaf([1.0, 2.0])
        y = x.exp()
        total = y.sum()
        y += 1.0
        texts = []
        for create_graph in (True, False):
            with pytest.raises(RuntimeError) as caught:
                grad(total, x, create_graph=create_graph)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
