"""Functions and hooks that return the same array of NumPy at every call.

The results of one call do not change when the function is called again.
"""

import numpy as np
import pytest

import tapegrad as tg

SHAPES = [(), (3,), (200, 200)]  # the last one has a large array
FORMS = {
    "array": lambda array: array,
    "view": lambda array: array[...],
    "tensor": tg.as_tensor,
}


def exponential(shape, forward, backward):
    """Return a Function that computes in work arrays, and returns them in some forms."""
    result, gradient, tangent = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    class Exponential(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            np.exp(x.numpy(), out=result)
            return forward(result)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            np.multiply(g.numpy(), np.exp(x.numpy()), out=gradient)
            return backward(gradient)

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            np.multiply(t.numpy(), np.exp(x.numpy()), out=tangent)
            return backward(tangent)

    return Exponential.apply


def expected(x):
    one, two = np.exp(x), np.exp(2 * x)
    return 2 * one**2 + 2 * two * (np.sin(two) + two * np.cos(two))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backward", FORMS)
@pytest.mark.parametrize("forward", FORMS)
def test_functions(forward, backward, shape):
    exp = exponential(shape, FORMS[forward], FORMS[backward])

    def f(x):
        return tg.sum(exp(x) * exp(x) + exp(2 * x) * tg.sin(exp(2 * x)))

    a = np.linspace(0.1, 1.0, int(np.prod(shape))).reshape(shape)
    x = tg.tensor(a, requires_grad=True)
    one, two = exp(x), exp(2 * x)
    (one * one + two * tg.sin(two)).sum().backward()
    np.testing.assert_allclose(x.grad, expected(a))
    np.testing.assert_allclose(tg.grad(f)(a), expected(a))
    np.testing.assert_allclose(tg.grad(tg.jit(f))(a), expected(a))
    np.testing.assert_allclose(tg.jvp(f)(a, np.ones_like(a))[1], expected(a).sum())


@pytest.mark.parametrize("kind", ["tensor", "pre", "post"])
def test_hooks(kind):
    work = np.zeros(2)

    def doubled(g):
        np.multiply(g.numpy(), 2.0, out=work)
        return tg.as_tensor(work)

    x = tg.tensor([1.0, 2.0], requires_grad=True)
    a, b = x * 1.0, x * 3.0
    for result in (a, b):
        if kind == "tensor":
            result.register_hook(doubled)
        elif kind == "pre":
            result.grad_fn.register_prehook(lambda outputs: (doubled(outputs[0]),))
        else:
            result.grad_fn.register_hook(lambda inputs, _: (doubled(inputs[0]), *inputs[1:]))
    (a + 2.0 * b).sum().backward()
    assert np.array_equal(x.grad, [14.0, 14.0])


def test_unpack_hooks():
    work = np.zeros(3)

    def unpacked(content):
        work[:] = content
        return tg.as_tensor(work)

    x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with tg.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), unpacked):
        y = tg.sum(x * tg.exp(x) * tg.sin(x))
    (g,) = tg.autograd.grad(y, x, create_graph=True)
    (h,) = tg.autograd.grad(g.sum(), x)
    a = x.detach().numpy()
    np.testing.assert_allclose(g.detach(), np.exp(a) * ((1 + a) * np.sin(a) + a * np.cos(a)))
    np.testing.assert_allclose(h, 2 * np.exp(a) * (np.sin(a) + (1 + a) * np.cos(a)))


@pytest.mark.parametrize("form", FORMS)
def test_rules_of_vmap(form):
    work = np.zeros((2, 3))

    class Sine(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return tg.sin(x)

        @staticmethod
        def vmap(info, in_dims, x):
            np.sin(x.numpy(), out=work)
            return FORMS[form](work), 0

    a = np.linspace(0.1, 0.6, 6).reshape(2, 3)
    found = tg.vmap(lambda x: Sine.apply(x) * Sine.apply(2.0 * x))(a)
    np.testing.assert_allclose(found, np.sin(a) * np.sin(2 * a))


def test_cotangents():
    given = np.ones(2)
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    x.clone().backward(given)
    (g,) = tg.autograd.grad(x.clone(), x, given)
    (of_vjp,) = tg.vjp(lambda x: x * 1.0, np.ones(2))[1](given)
    given[:] = 100.0
    for found in (x.grad, g, of_vjp):
        assert np.array_equal(found, [1.0, 1.0])


def test_results_that_are_views_of_arguments_stay_views():
    class Same(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[:1]

        @staticmethod
        def backward(ctx, g):
            return tg.concatenate([g, g * 0.0])

    data = np.ones(2)
    x = tg.as_tensor(data).requires_grad_()
    assert np.shares_memory(Same.apply(x).detach().numpy(), data)
