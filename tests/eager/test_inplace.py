"""In-place operators, underscore methods and `out=`: the same memory, the right gradient."""

import numpy as np
import pytest
from leaves import leaf, values
from mutation_oracle import LEAF, MODIFIED, matrix, numeric_grad

import tapegrad as tg
from tapegrad.autograd import grad

OPERATORS = {
    "+=": lambda t, v: t.__iadd__(v),
    "-=": lambda t, v: t.__isub__(v),
    "*=": lambda t, v: t.__imul__(v),
    "/=": lambda t, v: t.__itruediv__(v),
    "**=": lambda t, v: t.__ipow__(v),
    "//=": lambda t, v: t.__ifloordiv__(v),
    "%=": lambda t, v: t.__imod__(v),
}


class TestOperators:
    """`t += v` writes the memory of `t`, and gradients follow."""

    @pytest.mark.parametrize("name", OPERATORS)
    @pytest.mark.parametrize("other", ["number", "array", "row", "tensor"])
    def test_operator_on_a_nonleaf(self, name, other):
        right = {
            "number": 2.5,
            "array": np.full((2, 3), 2.5),
            "row": np.array([1.5, 2.5, 3.5]),
            "tensor": tg.tensor(np.full((2, 3), 1.5)),
        }[other]
        apply = OPERATORS[name]

        def plain(a):
            b = a * 1.3
            b = apply(b, np.asarray(right))
            return (b * np.arange(6.0).reshape(2, 3)).sum()

        x = matrix()
        y = x * 1.3
        array = values(y)
        before = y
        y = apply(y, right)
        assert y is before
        assert np.shares_memory(values(y), array)
        total = (y * np.arange(6.0).reshape(2, 3)).sum()
        assert total.item() == pytest.approx(plain(values(x).copy()))
        total.backward()
        np.testing.assert_allclose(
            values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6, atol=1e-6
        )

    @pytest.mark.parametrize("name", ["+=", "*=", "/=", "**=", "-="])
    def test_operator_with_a_differentiable_right_side(self, name):
        apply = OPERATORS[name]

        def plain(a):
            b = a[0] * 1.3
            return apply(b, np.tanh(a[1])).sum()

        x = matrix()
        y = x[0] * 1.3
        y = apply(y, tg.tanh(x[1]))
        y.sum().backward()
        np.testing.assert_allclose(
            values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-6, atol=1e-8
        )

    @pytest.mark.parametrize("name", ["+=", "*=", "/=", "**=", "-=", "part *="])
    def test_operator_on_a_passive_tensor(self, name):
        """The gradient of the other side may need the value that is overwritten."""
        apply = OPERATORS[name.removeprefix("part ")]

        def plain(a):
            b = np.array([[1.5, 0.5, 2.5], [0.7, 1.1, 0.3]])
            part = b[1:] if name.startswith("part") else b
            part[...] = apply(part.copy(), np.tanh(a[1]) + 2)
            return (b * b).sum()

        x = matrix()
        t = tg.tensor([[1.5, 0.5, 2.5], [0.7, 1.1, 0.3]])
        if name.startswith("part"):
            t[1:] *= tg.tanh(x[1]) + 2
        else:
            apply(t, tg.tanh(x[1]) + 2)
        (t * t).sum().backward()
        np.testing.assert_allclose(
            values(x.grad), numeric_grad(plain, values(x).copy()), rtol=1e-5, atol=1e-6
        )

    def test_matmul_operator_on_a_passive_tensor(self):
        x = leaf([[1.0, 2.0], [3.0, 4.0]])
        t = tg.tensor([[1.0, 5.0], [2.0, 3.0]])
        t @= x
        t.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[3.0, 3.0], [8.0, 8.0]])

    def test_matmul_operator_in_place(self):
        x = leaf(np.eye(2) * 2)
        y = x * 1
        array = values(y)
        y @= np.array([[1.0, 2.0], [3.0, 4.0]])
        assert np.shares_memory(values(y), array)
        np.testing.assert_array_equal(values(y), [[2.0, 4.0], [6.0, 8.0]])
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[3.0, 7.0], [3.0, 7.0]])

    def test_passive_tensor_becomes_differentiable(self):
        x = leaf([1.0, 2.0])
        t = tg.tensor([10.0, 20.0])
        t += x
        assert t.requires_grad
        assert not t.is_leaf
        (t * t).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [22.0, 44.0])

    def test_passive_stays_passive(self):
        t = tg.tensor([1.0, 2.0])
        t *= 3
        assert not t.requires_grad
        np.testing.assert_array_equal(values(t), [3.0, 6.0])

    def test_integers_in_place(self):
        t = tg.tensor([1, 2])
        t += 3
        t[0] = 7
        assert t.dtype == np.int64
        assert t.tolist() == [7, 5]

    def test_own_value_on_the_right(self):
        x = leaf([1.0, 2.0])
        y = x * 1
        y += y
        y *= y.clone()
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), 8 * np.array([1.0, 2.0]))

    @pytest.mark.parametrize("name", ["*=", "/="])
    @pytest.mark.parametrize("show", [lambda t: t, lambda t: t.T, lambda t: t[0]])
    def test_own_value_on_the_right_of_an_op_that_saves_it(self, name, show):
        x = leaf([[1.0, 2.0], [3.0, 4.0]])
        y = x * 1
        y = OPERATORS[name](y, show(y))
        expected = values(x).copy()
        OPERATORS[name](expected, show(expected))
        np.testing.assert_array_equal(values(y), expected)

        def plain(a):
            b = a.copy()
            OPERATORS[name](b, show(b))
            return b.sum()

        try:
            y.sum().backward()
        except RuntimeError as error:
            assert MODIFIED in str(error)  # noqa: PT017
        else:
            exact = numeric_grad(plain, values(x).copy())
            np.testing.assert_allclose(values(x.grad), exact, rtol=1e-6, atol=1e-8)

    def test_own_transpose_on_the_right(self):
        x = leaf([[1.0, 2.0], [3.0, 4.0]])
        y = x * 1
        y -= 2 * y.T
        np.testing.assert_array_equal(values(y), [[-1.0, -4.0], [-1.0, -4.0]])
        (y * np.array([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [[-1.0, -4.0], [-1.0, -4.0]])

    def test_second_derivative(self):
        x = leaf([0.5, 1.5])
        y = x * x
        y *= x
        y[0] += x[1] ** 2
        (g,) = grad(y.sum(), x, create_graph=True)
        np.testing.assert_allclose(values(g), [3 * 0.25, 3 * 2.25 + 2 * 1.5])
        (h,) = grad(g.sum(), x)
        np.testing.assert_allclose(values(h), [6 * 0.5, 6 * 1.5 + 2])

    def test_overlapping_memory_on_the_right(self):
        x = leaf([1.0, 2.0, 3.0])
        y = x * 1
        y[1:] += y[:-1]
        np.testing.assert_array_equal(values(y), [1.0, 3.0, 5.0])
        (y * np.array([1.0, 10.0, 100.0])).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [11.0, 110.0, 100.0])


class TestLeaves:
    """A leaf that requires grad can be written to inside `no_grad` only."""

    @pytest.mark.parametrize("name", OPERATORS)
    def test_operator_on_a_leaf_is_refused(self, name):
        x = matrix()
        before = values(x).copy()
        with pytest.raises(RuntimeError, match=LEAF):
            OPERATORS[name](x, 2.0)
        np.testing.assert_array_equal(values(x), before)
        assert x._version == 0

    @pytest.mark.parametrize("name", OPERATORS)
    def test_operator_on_a_leaf_under_no_grad(self, name):
        x = matrix()
        expected = OPERATORS[name](values(x).copy(), 2.0)
        with tg.no_grad():
            y = OPERATORS[name](x, 2.0)
        assert y is x
        assert x.is_leaf
        assert x.requires_grad
        np.testing.assert_array_equal(values(x), expected)
        (x * 2).sum().backward()
        np.testing.assert_array_equal(values(x.grad), np.full((2, 3), 2.0))

    def test_text(self):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError) as caught:
            x += 1.0
        text = "a leaf Variable that requires grad is being used in an in-place operation."
        assert text in str(caught.value)

    @pytest.mark.parametrize(
        "write", [lambda t: t.zero_(), lambda t: t.fill_(2), lambda t: t.copy_(t)]
    )
    def test_writes_that_read_nothing_are_refused_too(self, write):
        x = leaf([1.0, 2.0])
        with pytest.raises(RuntimeError, match=LEAF):
            write(x)
        assert x._version == 0
        assert x.tolist() == [1.0, 2.0]

    def test_no_history_is_made_under_no_grad(self):
        x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
        with tg.no_grad():
            x *= w
        assert x.is_leaf
        assert x.grad_fn is None
        (x * 2).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [2.0, 2.0])
        assert w.grad is None

    def test_gradient_descent_step(self):
        x = leaf([1.0, 2.0])
        for _ in range(100):
            x.grad = None
            ((x - np.array([3.0, -1.0])) ** 2).sum().backward()
            with tg.no_grad():
                x -= 0.1 * x.grad
        np.testing.assert_allclose(values(x), [3.0, -1.0], atol=1e-6)


UNDERSCORE = {
    "add_": (lambda t: t.add_(1.5), lambda a: a + 1.5),
    "sub_": (lambda t: t.sub_(1.5), lambda a: a - 1.5),
    "mul_": (lambda t: t.mul_(1.5), lambda a: a * 1.5),
    "div_": (lambda t: t.div_(1.5), lambda a: a / 1.5),
    "pow_": (lambda t: t.pow_(3), lambda a: a**3),
    "neg_": (lambda t: t.neg_(), lambda a: -a),
    "abs_": (lambda t: t.abs_(), np.abs),
    "exp_": (lambda t: t.exp_(), np.exp),
    "log_": (lambda t: t.log_(), np.log),
    "sin_": (lambda t: t.sin_(), np.sin),
    "cos_": (lambda t: t.cos_(), np.cos),
    "tanh_": (lambda t: t.tanh_(), np.tanh),
    "sqrt_": (lambda t: t.sqrt_(), np.sqrt),
    "square_": (lambda t: t.square_(), np.square),
    "reciprocal_": (lambda t: t.reciprocal_(), np.reciprocal),
    "sigmoid_": (lambda t: t.sigmoid_(), lambda a: 1 / (1 + np.exp(-a))),
    "floor_": (lambda t: t.floor_(), np.floor),
    "multiply_": (lambda t: t.multiply_(t.clone()), lambda a: a * a),
    "maximum_": (lambda t: t.maximum_(2.7), lambda a: np.maximum(a, 2.7)),
    "clip_": (lambda t: t.clip_(2.0, 4.0), lambda a: np.clip(a, 2.0, 4.0)),
    "zero_": (lambda t: t.zero_(), np.zeros_like),
    "fill_": (lambda t: t.fill_(3.0), lambda a: np.full_like(a, 3.0)),
    "copy_": (lambda t: t.copy_(np.arange(3.0)), lambda a: np.broadcast_to(np.arange(3.0), (2, 3))),
}


class TestUnderscoreMethods:
    """Every op of one result has a method that writes it into its first operand."""

    @pytest.mark.parametrize("name", UNDERSCORE)
    def test_underscore_method(self, name):
        apply, plain = UNDERSCORE[name]
        x = matrix()
        y = x * 0.9
        array = values(y)
        returned = apply(y)
        assert returned is y
        assert np.shares_memory(values(y), array)
        np.testing.assert_allclose(values(y), plain(values(x) * 0.9), rtol=1e-14)
        if y.requires_grad:
            (found,) = grad((y * np.arange(6.0).reshape(2, 3)).sum(), x, allow_unused=True)
            found = np.zeros((2, 3)) if found is None else values(found)
        else:
            found = np.zeros((2, 3))
        expected = numeric_grad(
            lambda a: (plain(a * 0.9) * np.arange(6.0).reshape(2, 3)).sum(), values(x).copy()
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("name", UNDERSCORE)
    def test_underscore_method_on_a_leaf_is_refused(self, name):
        x = matrix()
        with pytest.raises(RuntimeError, match=LEAF):
            UNDERSCORE[name][0](x)

    @pytest.mark.parametrize("name", UNDERSCORE)
    def test_underscore_method_in_float32(self, name):
        apply, plain = UNDERSCORE[name]
        x = leaf(np.arange(1.0, 7.0).reshape(2, 3), np.float32)
        y = x * np.float32(0.9)
        apply(y)
        assert y.dtype == np.float32
        np.testing.assert_allclose(values(y), plain(values(x) * np.float32(0.9)), rtol=1e-5)

    def test_underscore_methods_chain(self):
        x = leaf([0.5, 1.5])
        y = (x * 1).sin_().mul_(2).add_(x)
        y.sum().backward()
        np.testing.assert_allclose(values(x.grad), 2 * np.cos([0.5, 1.5]) + 1)

    def test_copy_from_a_differentiable_source(self):
        x, y = leaf([1.0, 2.0, 3.0]), matrix()
        t = y * 2
        t.copy_(x)
        (t * np.arange(6.0).reshape(2, 3)).sum().backward()
        np.testing.assert_array_equal(values(x.grad), [3.0, 5.0, 7.0])
        assert y.grad is None or not values(y.grad).any()

    def test_copy_converts_dtypes(self):
        x = leaf([1.0, 2.0], np.float32)
        t = tg.zeros(2)
        t.copy_(x)
        assert t.dtype == np.float64
        (t * np.array([1.0, 10.0])).sum().backward()
        assert x.grad.dtype == np.float32
        np.testing.assert_array_equal(values(x.grad), [1.0, 10.0])

    def test_fill_with_a_differentiable_number(self):
        s = leaf(2.0)
        t = tg.zeros((2, 3))
        t.fill_(s)
        (t * np.arange(6.0).reshape(2, 3)).sum().backward()
        assert s.grad.item() == 15.0

    def test_zero_cuts_the_history(self):
        x = leaf([1.0, 2.0])
        y = x * 3
        y.zero_()
        assert y.requires_grad
        assert grad(y.sum() + 0 * x.sum(), x)[0].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("value", [np.array([5, 6]), [5.0, 6.0], 5, tg.tensor([5.0, 6.0])])
    def test_copied_constants_cut_the_history(self, value):
        x = leaf([1.0, 2.0])
        y = (x * 3).copy_(value)
        np.testing.assert_array_equal(values(y), np.broadcast_to(np.asarray(value), 2))
        assert grad(y.sum() + 0 * x.sum(), x)[0].tolist() == [0.0, 0.0]

    def test_copy_of_itself(self):
        x = leaf([1.0, 2.0])
        y = x * 3
        y.copy_(y)
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [3.0, 3.0])

    def test_every_one_does_what_its_function_does(self):
        x = np.full((2, 3), 0.3)
        names = [n[:-1] for n in dir(tg.Tensor) if n.endswith("_") and not n.startswith("_")]
        done = set()
        for name in names:
            for others in ((), (tg.tensor(x * 2),)):
                t = tg.tensor(x)
                try:
                    with np.errstate(invalid="ignore"):
                        expected = getattr(tg, name)(tg.tensor(x), *others)
                        returned = getattr(t, f"{name}_")(*others)
                except (AttributeError, TypeError, ValueError, RuntimeError):
                    continue  # of another number of operands, or of another dtype
                assert returned is t, name
                np.testing.assert_array_equal(t.numpy(), expected.numpy(), err_msg=name)
                assert t._version == 1, name
                done.add(name)
        assert len(done) > 40


class TestRefusals:
    """What does not fit in shape or type is refused, and nothing is written."""

    @pytest.mark.parametrize(
        ("target", "other"),
        [
            (tg.tensor([1, 2]), 1.5),
            (tg.tensor([1, 2]), np.array([1.5, 2.5])),
            (tg.tensor([1.0, 2.0]), 1j),
            (tg.tensor([1, 2]), tg.tensor([1.0, 2.0])),
        ],
    )
    def test_casts_that_lose_are_refused(self, target, other):
        before = target.tolist()
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            target += other
        assert target.tolist() == before

    def test_integer_division_in_place_is_refused(self):
        t = tg.tensor([1, 2])
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            t /= 2

    def test_float64_into_float32_keeps_float32(self):
        x = leaf([1.0, 2.0], np.float32)
        y = x * 2
        y += np.array([0.5, 0.5], np.float64)
        assert y.dtype == np.float32
        y.sum().backward()
        np.testing.assert_array_equal(values(x.grad), [2.0, 2.0])

    @pytest.mark.parametrize("other", [np.ones((3, 2)), np.ones((1, 2)), np.ones(3)])
    def test_results_that_do_not_fit_are_refused(self, other):
        y = leaf([1.0, 2.0]) * 1
        before = values(y).copy()
        with pytest.raises((RuntimeError, ValueError), match=r"shape|broadcast"):
            y += other
        np.testing.assert_array_equal(values(y), before)

    def test_shape_that_would_grow_names_both_shapes(self):
        y = leaf([1.0, 2.0]) * 1
        with pytest.raises(
            RuntimeError,
            match=r"output with shape \[2\] doesn't match the broadcast shape \[3, 2\]",
        ):
            y += np.ones((3, 2))

    def test_differentiable_value_into_integers_is_refused(self):
        t = tg.tensor([1, 2])
        with pytest.raises(RuntimeError):
            t[0] = leaf(1.0)
        with pytest.raises(RuntimeError):
            t += leaf(1.0)
        assert t.tolist() == [1, 2]

    @pytest.mark.parametrize("bad", ["x", None, object()])
    def test_other_things_on_the_right(self, bad):
        y = leaf([1.0, 2.0]) * 1
        with pytest.raises(TypeError):
            y += bad


class TestCopies:
    """A tensor that takes over a value has a place of its own in the graph."""

    @pytest.mark.parametrize(
        "copy", [lambda b, x: b.copy_(x), lambda b, x: np.copyto(b, x)], ids=["copy_", "copyto"]
    )
    @pytest.mark.parametrize("factor", [None, 2.0])
    def test_hooks_and_gradients(self, copy, factor):
        x = leaf([1.0, 2.0])
        source = x if factor is None else x * factor
        b = tg.zeros(2)
        copy(b, source)
        assert not b.is_leaf
        b.register_hook(lambda g: g * 10)
        (source * 3 + b).sum().backward(retain_graph=True)
        scale = 1.0 if factor is None else factor
        np.testing.assert_array_equal(values(x.grad), np.full(2, 13.0 * scale))
        assert grad((source * 3).sum(), b, allow_unused=True) == (None,)
        b.mul_(2.0)

    def test_fill(self):
        x = leaf(2.0)
        b = tg.zeros(())
        b.fill_(x)
        assert not b.is_leaf
        (b * 3).backward()
        assert x.grad.item() == 3.0


def test_out_that_has_more_elements():
    """NumPy's functions of elements broadcast to `out`, others do not."""

    def f(x):
        out = tg.zeros((2, 3))
        np.multiply(x, x, out=out)
        np.add(x[0], x[1], out=out[1, :1])
        return tg.sum(out * np.arange(6.0).reshape(2, 3))

    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(tg.grad(f)(x), [3.0, 23.0, 42.0])
    np.testing.assert_allclose(tg.grad(tg.jit(f))(x), [3.0, 23.0, 42.0])
    np.testing.assert_allclose(tg.jvp(f)(x, np.ones(3)), (f(x), 68.0))
    t = tg.tensor(x, requires_grad=True)
    for out in (tg.zeros((3, 1)), tg.zeros(()), tg.zeros((2, 1, 2))):
        with pytest.raises(ValueError, match=r"multiply: `out` has shape .*, the result \[3\]"):
            np.multiply(t, t, out=out)
    with pytest.raises(ValueError, match="matmul: `out` has shape"):
        np.matmul(np.ones((2, 3)), t, out=tg.zeros((3, 2)))
