"""`transpose_`, `squeeze_`, ...: a tensor that shows its elements otherwise, in place."""

import numpy as np
import pytest
from leaves import leaf, values

import tapegrad as tg

X = np.arange(6.0).reshape(2, 3)
VIEWS = {
    "transpose_": (lambda t: t.transpose_(0, 1), lambda t: tg.swapaxes(t, 0, 1)),
    "swapaxes_": (lambda t: t.swapaxes_(-1, 0), lambda t: tg.swapaxes(t, -1, 0)),
    "t_": (lambda t: t.t_(), lambda t: t.T),
    "unsqueeze_": (lambda t: t.unsqueeze_(1), lambda t: tg.expand_dims(t, 1)),
    "expand_dims_": (lambda t: t.expand_dims_((0, -1)), lambda t: tg.expand_dims(t, (0, -1))),
    "squeeze_": (lambda t: t.unsqueeze_(0).squeeze_(), lambda t: t),
    "squeeze_ an axis": (lambda t: t.unsqueeze_(0).squeeze_(0), lambda t: t),
    "squeeze_ nothing": (lambda t: t.squeeze_(), lambda t: t),
}


def weights(shape):
    return np.cos(np.arange(np.prod(shape)).reshape(shape))


class TestValues:
    @pytest.mark.parametrize("name", VIEWS)
    def test_value_and_gradient(self, name):
        """They are those of the function that returns a view."""
        inplace, view = VIEWS[name]
        found = []
        for change in (inplace, view):
            x = leaf(X)
            y = x * 1.5
            memory = values(y)
            shown = change(y)
            if change is inplace:
                assert shown is y
            assert np.shares_memory(values(shown), memory)
            total = (shown**2 * weights(shown.shape)).sum()
            total.backward()
            found.append((values(shown), values(x.grad)))
        for one, two in zip(*found, strict=True):
            assert one.shape == two.shape
            np.testing.assert_array_equal(one, two)

    def test_a_tensor_without_gradients(self):
        t = tg.tensor(X)
        assert t.t_() is t
        assert t.shape == (3, 2)
        assert not t.requires_grad
        assert t.is_leaf

    def test_what_was_saved_before_is_still_right(self):
        x = leaf(X)
        y = x * 2
        z = (y * y).sum()
        y.t_()
        z.backward()
        np.testing.assert_array_equal(values(x.grad), 8 * X)

    def test_second_derivatives(self):
        x = leaf(X)
        y = x * 1
        y.t_()
        (g,) = tg.autograd.grad((y**3).sum(), x, create_graph=True)
        (h,) = tg.autograd.grad(g.sum(), x)
        np.testing.assert_array_equal(values(h), 6 * X)

    def test_a_retained_gradient_has_the_new_shape(self):
        x = leaf(X)
        y = x * 1
        y.retain_grad()
        y.t_()
        (y * weights((3, 2))).sum().backward()
        np.testing.assert_array_equal(values(y.grad), weights((3, 2)))


class TestMemoryThatIsShared:
    def test_views_made_before(self):
        """They could not follow: what passes through the tensor would miss their part."""
        x = leaf(X)
        y = x * 1
        row = y[0]
        with pytest.raises(RuntimeError, match="other tensors are views of this one"):
            y.t_()
        assert y.shape == (2, 3)
        del row
        y.t_()
        (y * weights((3, 2))).sum().backward()
        np.testing.assert_allclose(values(x.grad), weights((3, 2)).T)

    def test_views_made_afterwards(self):
        x = leaf(X)
        y = x * 1
        y.t_()
        y[0][1] = 7.0
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])

    def test_a_view(self):
        x = leaf(X)
        y = x * 1
        v = y[:, 1:]
        v.transpose_(0, 1)
        v[0] = 0.0
        assert v._is_view()
        assert v._base is y
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])

    def test_a_view_of_a_view(self):
        x = leaf(X)
        y = x * 1
        v = y[:, 1:]
        w = v[0]
        v.t_()
        v[0] = 7.0
        np.testing.assert_array_equal(values(w), [7.0, 2.0])
        w.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])


class TestRefused:
    def test_a_leaf(self):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used"):
            leaf(X).t_()

    def test_a_view_of_a_leaf(self):
        x = leaf(X)
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            x[0].unsqueeze_(0)

    @pytest.mark.parametrize(
        "make", [lambda: leaf(X), lambda: leaf(X) * 2, lambda: (leaf(X) * 2)[:1]]
    )
    def test_without_recording(self, make):
        """Gradients of what was computed before would have another shape."""
        x = make()
        with (
            tg.no_grad(),
            pytest.raises(RuntimeError, match="changes its shape in place only where"),
        ):
            x.t_()
        assert x.requires_grad
        t = tg.tensor(X)
        with tg.no_grad():
            assert t.t_().shape == (3, 2)

    def test_inside_a_function(self):
        class Turned(tg.Function):
            @staticmethod
            def forward(ctx, a):
                a.t_()
                ctx.mark_dirty(a)
                return a

            @staticmethod
            def backward(ctx, g):
                return g.T

        with pytest.raises(RuntimeError, match="changes its shape in place only where"):
            Turned.apply(leaf(X) * 1)

    def test_a_piece_of_several(self):
        pieces = tg.unstack(leaf(X) * 1)
        with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
            pieces[0].unsqueeze_(0)

    def test_more_than_two_axes(self):
        with pytest.raises(RuntimeError, match=r"t_ expects a tensor with <= 2 dimensions"):
            tg.zeros((2, 2, 2)).t_()

    @pytest.mark.parametrize("name", ["as_strided", "as_strided_"])
    def test_any_strides(self, name):
        with pytest.raises(RuntimeError, match=r"as_strided: .* or an index array: x\.ravel\(\)"):
            getattr(leaf(X) * 1, name)((2,), (1,))

    def test_resize(self):
        with pytest.raises(RuntimeError, match="cannot resize variables that require grad"):
            (leaf(X) * 1).resize_(2, 2)
        with pytest.raises(RuntimeError, match=r"make a new one, such as with reshape\(\)"):
            tg.tensor(X).resize_(2, 2)
