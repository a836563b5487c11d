"""What backward may return, and `once_differentiable`."""

import numpy as np
import pytest
from functions import Cube, double, make
from leaves import leaf

import tapegrad as tg
from tapegrad.autograd import grad
from tapegrad.autograd.function import once_differentiable


def returning(gradients, arguments=1):
    """The sum of a Function whose backward returns these, and the leaves that it is of."""
    leaves = [leaf([1.0, 2.0]) for _ in range(arguments)]
    return make(lambda ctx, *xs: xs[0] * 2, lambda ctx, g: gradients).apply(*leaves).sum(), leaves


class TestReturned:
    """A backward returns one gradient, or None, for each argument."""

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_none_stays_none(self, create_graph):
        f = make(lambda ctx, x, y: x * y, lambda ctx, g: (None, g * 2))
        x, y = leaf(2.0), leaf(3.0)
        gx, gy = grad(f.apply(x, y), [x, y], create_graph=create_graph, allow_unused=True)
        assert gx is None
        assert gy.item() == 2.0

    def test_none_leaves_grad_none(self):
        f = make(double, lambda ctx, g: None)
        x = leaf(2.0)
        f.apply(x * 3).backward()
        assert x.grad is None

    def test_none_is_an_unused_input(self):
        y, leaves = returning(None)
        with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
            grad(y, leaves)

    def test_none_adds_nothing(self):
        f = make(double, lambda ctx, g: None)
        x = leaf(2.0)
        (f.apply(x) + x * 3).backward()
        assert x.grad.item() == 3.0

    @pytest.mark.parametrize("extra", [1, 2, 5])
    def test_extra_nones_are_accepted(self, extra):
        y, (x,) = returning((tg.ones(2), *[None] * extra))
        y.backward()
        assert x.grad.tolist() == [1.0, 1.0]

    def test_a_tuple_of_one(self):
        y, (x,) = returning((tg.ones(2),))
        y.backward()
        assert x.grad.tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize(("shape", "factor"), [((3, 2), 3.0), ((1, 2), 1.0), ((2, 3, 2), 6.0)])
    def test_a_larger_gradient_is_summed(self, shape, factor, create_graph):
        y, leaves = returning(tg.ones(shape))
        (g,) = grad(y, leaves, create_graph=create_graph)
        assert g.tolist() == [factor, factor]

    def test_summed_along_an_axis_of_length_one(self):
        x = leaf([[1.0], [2.0]])
        make(double, lambda ctx, g: tg.ones((2, 3))).apply(x).sum().backward()
        assert x.grad.tolist() == [[3.0], [3.0]]

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
    def test_another_dtype_is_converted(self, dtype, create_graph):
        y, leaves = returning(tg.ones(2, dtype=dtype))
        (g,) = grad(y, leaves, create_graph=create_graph)
        assert g.dtype == np.float64
        assert g.tolist() == [1.0, 1.0]

    def test_a_returned_cotangent_is_not_shared(self):
        f = make(lambda ctx, x, y: x + y, lambda ctx, g: (g, g))
        x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        f.apply(x, y).sum().backward()
        x.grad.mul_(10)
        assert y.grad.tolist() == [1.0, 1.0]

    def test_a_tensor_that_the_user_keeps_is_not_changed(self):
        constant = tg.tensor([1.0, 2.0])
        f = make(double, lambda ctx, g: constant)
        x = leaf([1.0, 2.0])
        (f.apply(x) + f.apply(x)).sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]
        assert constant.tolist() == [1.0, 2.0]
        f.apply(x).sum().backward()
        assert constant.tolist() == [1.0, 2.0]

    def test_the_cotangent_may_be_changed_by_backward(self):
        x = leaf([1.0, 2.0])
        y = make(double, lambda ctx, g: g.mul_(3.0)).apply(x)
        y.backward(tg.tensor([1.0, 1.0]))
        assert x.grad.tolist() == [3.0, 3.0]


class TestRefused:
    """Gradients of a wrong number, shape or type are refused with a text that names the node."""

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize("shape", [(5,), (1,), (), (2, 2, 3), (2, 1)])
    def test_wrong_shape(self, shape, create_graph):
        y, leaves = returning(tg.ones(shape))
        expected = (
            rf"Function FBackward returned an invalid gradient at index 0 - got "
            rf"\[{', '.join(map(str, shape))}\] but expected shape compatible with \[2\]"
        )
        with pytest.raises(RuntimeError, match=expected):
            grad(y, leaves, create_graph=create_graph)

    def test_wrong_shape_of_a_matrix(self):
        y = make(double, lambda ctx, g: tg.ones(10)).apply(leaf(np.ones((5, 5)))).sum()
        expected = r"at index 0 - got \[10\] but expected shape compatible with \[5, 5\]"
        with pytest.raises(RuntimeError, match=expected):
            y.backward()

    def test_wrong_shape_at_another_index(self):
        y, _ = returning((tg.ones(2), tg.ones(7)), 2)
        with pytest.raises(RuntimeError, match=r"invalid gradient at index 1 - got \[7\]"):
            y.backward()

    def test_the_shape_does_not_matter_where_no_gradient_is_needed(self):
        f = make(lambda ctx, x, y: x * y, lambda ctx, g: (tg.ones(9), g))
        x = leaf([1.0, 2.0])
        f.apply(tg.tensor([1.0, 2.0]), x).sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize(
        ("gradients", "arguments", "count"),
        [
            ((tg.ones(2), tg.ones(2)), 1, 2),
            ((tg.ones(2), None, tg.ones(2)), 1, 3),
            ((), 1, 0),
            (tg.ones(2), 2, 1),
            (None, 2, 1),
            ([tg.ones(2), tg.ones(2)], 2, 1),
        ],
    )
    def test_wrong_number(self, gradients, arguments, count, create_graph):
        y, leaves = returning(gradients, arguments)
        expected = (
            "function FBackward returned an incorrect number of gradients "
            rf"\(expected {arguments}, got {count}\)"
        )
        with pytest.raises(RuntimeError, match=expected):
            grad(y, leaves, create_graph=create_graph)

    @pytest.mark.parametrize("create_graph", [False, True])
    @pytest.mark.parametrize(
        ("bad", "name"),
        [
            (1.0, "float"),
            ("x", "str"),
            ([1], "list"),
            ({}, "dict"),
        ],
    )
    def test_no_tensor(self, bad, name, create_graph):
        y, leaves = returning(bad)
        with pytest.raises(RuntimeError, match=rf"expected Variable or None \(got {name}\)"):
            grad(y, leaves, create_graph=create_graph)

    @pytest.mark.parametrize("bad", [tg.tensor(1.0), 3.0])
    def test_for_an_argument_that_is_no_tensor(self, bad):
        f = make(lambda ctx, x, n: x * n, lambda ctx, g: (g, bad))
        expected = (
            "function FBackward returned a gradient different than None at position 2, but the "
            "corresponding forward input was not a Variable"
        )
        with pytest.raises(RuntimeError, match=expected):
            f.apply(leaf(1.0), 2.0).backward()

    def test_no_gradient_is_accumulated(self):
        y, (a, b) = returning((tg.ones(2), tg.ones(7)), 2)
        with pytest.raises(RuntimeError, match="invalid gradient"):
            y.backward()
        assert a.grad is None
        assert b.grad is None


class Square(tg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        """Say what it does."""
        (x,) = ctx.saved_tensors
        return g * 2 * x


TWICE = "trying to differentiate twice a function that was marked with @once_differentiable"


class TestOnceDifferentiable:
    """Such a backward runs without recording; a second differentiation raises, and only then."""

    def test_first_time(self):
        x = leaf([1.0, 2.0])
        Square.apply(x).sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]

    def test_first_time_with_create_graph(self):
        x = leaf([1.0, 2.0])
        (g,) = grad((Square.apply(x) ** 2).sum(), x, create_graph=True)
        assert g.tolist() == [4.0, 32.0]
        assert g.requires_grad

    def test_second_time(self):
        x = leaf([1.0, 2.0])
        (g,) = grad((Square.apply(x) ** 2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=TWICE):
            g.sum().backward()

    def test_a_second_gradient_is_refused_too(self):
        x = leaf([1.0, 2.0])
        (g,) = grad((Square.apply(x) ** 2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=TWICE):
            grad(g.sum(), x)

    @pytest.mark.parametrize("create_graph", [False, True])
    def test_runs_without_recording(self, create_graph):
        seen = []

        @once_differentiable
        def backward(ctx, g):
            seen.append(tg.is_grad_enabled())
            return g * 2

        x = leaf(1.0)
        (g,) = grad(make(double, backward).apply(x) ** 2, x, create_graph=create_graph)
        assert g.item() == 8.0
        assert seen == [False]
        assert tg.is_grad_enabled()

    def test_a_cotangent_without_history(self):
        # the gradient depends on the saved values all the same
        x = leaf([1.0, 2.0])
        (g,) = grad(Square.apply(x), x, tg.ones(2), create_graph=True)
        assert g.tolist() == [2.0, 4.0]
        with pytest.raises(RuntimeError, match=TWICE):
            grad(g.sum(), x)

    @pytest.mark.parametrize(
        "second",
        [
            lambda f, x: tg.hvp(f)(x, tg.ones(2)),
            lambda f, x: tg.hessian(f)(x),
            lambda f, x: tg.grad(lambda y: tg.grad(f)(y).sum())(x),
        ],
        ids=["hvp", "hessian", "grad of grad"],
    )
    def test_no_part_of_a_second_derivative_is_lost(self, second):
        def f(x):
            return Square.apply(x).sum() + (x * x).sum()

        with pytest.raises(RuntimeError, match=TWICE):
            second(f, tg.tensor([1.0, 2.0]))

    def test_an_array_as_gradient(self):
        f = make(lambda ctx, x: x * x, once_differentiable(lambda ctx, g: np.array([2.0, 4.0])))
        x = leaf([1.0, 2.0])
        (g,) = grad(f.apply(x).sum() + (x * x).sum(), x, create_graph=True)
        assert g.tolist() == [4.0, 8.0]
        with pytest.raises(RuntimeError, match=TWICE):
            grad(g.sum(), x)

    def test_none_stays_none(self):
        f = make(lambda ctx, x, y: x * y, once_differentiable(lambda ctx, g: (g * 2, None)))
        x, y = leaf([1.0]), leaf([2.0])
        z = (f.apply(x, y) ** 2).sum()
        gx, gy = grad(z, [x, y], create_graph=True, allow_unused=True)
        assert gx.tolist() == [8.0]
        assert gy is None

    def test_other_paths_may_be_differentiated_twice(self):
        x, w = leaf([1.0]), leaf([2.0])
        z = Square.apply(x).sum() + Cube.apply(w).sum()
        gx, gw = grad(z, [x, w], create_graph=True)
        (second,) = grad(gw.sum(), w)
        assert gx.tolist() == [2.0]
        assert second.tolist() == [12.0]

    def test_keeps_the_name(self):
        assert Square.backward.__name__ == "backward"
        assert Square.backward.__doc__ == "Say what it does."
