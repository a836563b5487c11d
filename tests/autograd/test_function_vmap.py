"""Functions of the user's inside of vmap: generated rules, rules of their own, and refusals."""

from typing import ClassVar

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.eager.batched import BatchError

X = np.array([[0.3, -0.4, 1.2], [0.7, 0.1, -0.9]])
K = np.array([2.0, -1.5])


class Product(tg.Function):
    """x k, whose argument k is a number that items may share."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, k):
        return x * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        ctx.ndim = inputs[0].ndim

    @staticmethod
    def backward(ctx, g):
        x, k = ctx.saved_tensors
        assert x.ndim == g.ndim == ctx.ndim == 1
        return (g * k if ctx.needs_input_grad[0] else None), (g * x).sum()

    @staticmethod
    def jvp(ctx, x_dot, k_dot):
        x, k = ctx.saved_tensors
        return x_dot * k + x * k_dot


class WithContext(tg.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x, power):
        ctx.power = power
        y, z = x**power, tg.sign(x)
        ctx.mark_non_differentiable(z)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, None, y)
        return y, z

    @staticmethod
    def backward(ctx, g, of_sign):
        assert of_sign is None
        x, nothing, y = ctx.saved_tensors
        assert nothing is None
        return g * ctx.power * y / x, None


class Own(Product):
    """The product, with a rule of its own for batches."""

    generate_vmap_rule = False
    calls: ClassVar[list] = []

    @staticmethod
    def vmap(info, in_dims, x, k):
        Own.calls.append((info.batch_size, in_dims, x.shape, k.shape))
        x = x if in_dims[0] == 0 else tg.broadcast_to(x, (info.batch_size, *x.shape))
        k = tg.expand_dims(k, -1) if in_dims[1] == 0 else k
        return (x * k).T, 1


def plain(x, k):
    return x * k


def loss(f):
    return lambda x, k: (tg.sin(f(x, k)) * np.arange(1.0, 4.0)).sum()


@pytest.mark.parametrize("f", [Product.apply, Own.apply], ids=["generated", "own"])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)], ids=str)
class TestValuesAndDerivatives:
    def arguments(self, axes):
        x, k = X if axes[0] == 0 else X[0], K if axes[1] == 0 else K[0]
        return tg.tensor(x), tg.tensor(k)

    def test_values(self, f, axes):
        args = self.arguments(axes)
        np.testing.assert_allclose(tg.vmap(f, axes)(*args), tg.vmap(plain, axes)(*args))

    def test_gradients_inside(self, f, axes):
        args = self.arguments(axes)
        found = tg.vmap(tg.grad(loss(f), (0, 1)), axes)(*args)
        for one, two in zip(found, tg.vmap(tg.grad(loss(plain), (0, 1)), axes)(*args)):
            np.testing.assert_allclose(one, two)

    def test_gradients_outside(self, f, axes):
        args = self.arguments(axes)
        found = [
            tg.grad(lambda x, k: tg.vmap(loss(g), axes)(x, k).sum(), (0, 1))(*args)
            for g in (f, plain)
        ]
        for one, two in zip(*found):
            np.testing.assert_allclose(one, two)

    def test_second_order(self, f, axes):
        args = self.arguments(axes)
        found = [tg.vmap(tg.hessian(loss(g)), axes)(*args) for g in (f, plain)]
        np.testing.assert_allclose(*found)
        outside = [
            tg.hessian(lambda x: tg.vmap(loss(g), axes)(x, args[1]).sum())(args[0])
            for g in (f, plain)
        ]
        np.testing.assert_allclose(*outside)

    def test_tangents(self, f, axes):
        args = self.arguments(axes)
        found = [
            tg.jvp(lambda x, k: tg.vmap(g, axes)(x, k), (0, 1))(*args, *map(tg.cos, args))[1]
            for g in (f, plain)
        ]
        np.testing.assert_allclose(*found)
        inside = [
            tg.vmap(tg.jvp(g, (0, 1)), (*axes, *axes))(*args, *map(tg.cos, args))[1]
            for g in (f, plain)
        ]
        np.testing.assert_allclose(*inside)

    def test_two_levels(self, f, axes):
        args = self.arguments(axes)
        found = [
            tg.vmap(lambda s: tg.vmap(tg.grad(loss(g), (0, 1)), axes)(args[0] * s, args[1]))(K)
            for g in (f, plain)
        ]
        for one, two in zip(*found):
            np.testing.assert_allclose(one, two)


def test_contexts_of_forward():
    y, sign = tg.vmap(lambda x: WithContext.apply(x, 3))(X)
    np.testing.assert_allclose(y, X**3)
    np.testing.assert_array_equal(sign, np.sign(X))
    found = tg.vmap(tg.grad(lambda x: WithContext.apply(x, 3)[0].sum()))(X)
    np.testing.assert_allclose(found, 3.0 * X**2)
    x = tg.tensor(X, requires_grad=True)
    y, sign = tg.vmap(lambda x: WithContext.apply(x, 3))(x)
    assert y.requires_grad
    assert not sign.requires_grad
    assert type(y.grad_fn).__name__  # a node of the graph
    y.sum().backward()
    np.testing.assert_allclose(x.grad, 3.0 * X**2)


def test_what_a_rule_is_told():
    Own.calls.clear()
    tg.vmap(Own.apply, (0, None))(X, tg.tensor(K[0]))
    assert Own.calls == [(2, (0, None), (2, 3), ())]


def test_output_that_items_share():
    class Shared(tg.Function):
        @staticmethod
        def forward(x):
            return x * 1.0

        @staticmethod
        def vmap(info, in_dims, x):
            return (x * 2.0, tg.tensor([1.0, 2.0])), (0, None)

    double, shared = tg.vmap(Shared.apply)(X)
    np.testing.assert_array_equal(double, 2.0 * X)
    np.testing.assert_array_equal(shared, [[1.0, 2.0], [1.0, 2.0]])


def test_gradients_that_broadcasting_enlarged():
    class Sum(tg.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return g, g

    def loss(y, x):
        return tg.sum(Sum.apply(x, y) * np.arange(3.0))

    for count in (3, 4):
        y, x = np.arange(float(count)), np.ones((count, 3))
        found = tg.vmap(tg.grad(loss, (0, 1)))(y, x)
        expected = [tg.grad(loss, (0, 1))(*pair) for pair in zip(y, x)]
        for k in range(2):
            np.testing.assert_allclose(found[k], np.stack([pair[k] for pair in expected]))


@pytest.mark.parametrize("generated", [True, False])
def test_arguments_that_are_no_tensors(generated):
    class Reshape(tg.Function):
        generate_vmap_rule = generated

        @staticmethod
        def forward(ctx, x, shape, name=None):
            ctx.shape = x.shape
            assert shape == (3, 1)
            return x.reshape(shape)

        @staticmethod
        def backward(ctx, g):
            return g.reshape(ctx.shape), None, None

    if not generated:

        def rule(info, in_dims, x, shape):
            assert in_dims == (0, None)
            return x.reshape(info.batch_size, *shape), 0

        Reshape.vmap = staticmethod(rule)
    found = tg.vmap(lambda x: Reshape.apply(x, (3, 1)))(X)
    np.testing.assert_array_equal(found, X[..., None])
    if generated:
        gradients = tg.vmap(tg.grad(lambda x: (Reshape.apply(x, (3, 1)) ** 2).sum()))(X)
        np.testing.assert_array_equal(gradients, 2.0 * X)
        with pytest.raises(BatchError, match="argument 1 is a tuple with a batched tensor"):
            tg.vmap(lambda x: Reshape.apply(x, (x, 1)))(X)


class TestRefused:
    def refuse(self, error, text, **methods):
        body = {name: staticmethod(m) if callable(m) else m for name, m in methods.items()}
        forward = {"forward": staticmethod(lambda x: x * 2.0)}
        setup = {"setup_context": staticmethod(lambda ctx, inputs, output: None)}
        function = type("F", (tg.Function,), {**forward, **setup, **body})
        with pytest.raises(error, match=text):
            tg.vmap(function.apply)(X)

    def test_no_rule(self):
        self.refuse(RuntimeError, "You tried to vmap over F, but it does not have vmap support")

    def test_both(self):
        self.refuse(
            RuntimeError,
            "it has both generate_vmap_rule=True and an overridden vmap staticmethod",
            generate_vmap_rule=True,
            vmap=lambda info, in_dims, x: (x, 0),
        )

    def test_one_return(self):
        self.refuse(
            RuntimeError,
            "Expected the vmap staticmethod to have two returns",
            vmap=lambda info, in_dims, x: x,
        )

    @pytest.mark.parametrize("found", [lambda x: (x, (0, 0)), lambda x: ((x, x), (0,))])
    def test_axes_that_do_not_match(self, found):
        self.refuse(
            RuntimeError,
            r"returned an incompatible \(output, out_dims\) tuple",
            vmap=lambda info, in_dims, x: found(x),
        )

    def test_dirty(self):
        self.refuse(
            RuntimeError,
            "generate_vmap_rule=True does not support ctx.mark_dirty",
            generate_vmap_rule=True,
            setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[0]),
        )

    def test_outputs_that_are_no_tensors(self):
        self.refuse(
            TypeError,
            "F: with generate_vmap_rule=True all outputs are tensors, got int",
            generate_vmap_rule=True,
            forward=lambda x: 3,
        )

    def test_number_of_gradients(self):
        class F(tg.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(ctx, x, y):
                return x * y

            @staticmethod
            def backward(ctx, g):
                return g

        with pytest.raises(
            RuntimeError, match=r"incorrect number of gradients \(expected 2, got 1\)"
        ):
            tg.vmap(tg.grad(lambda x: F.apply(x, x).sum()))(X)

    def test_tensor_kept_as_an_attribute(self):
        class F(tg.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(ctx, x):
                ctx.x = x
                return x * x

            @staticmethod
            def backward(ctx, g):
                return 2.0 * g * ctx.x

        with pytest.raises(BatchError, match="is used after the function has returned"):
            tg.vmap(tg.grad(lambda x: F.apply(x).sum()))(X)
