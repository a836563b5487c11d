"""What tests of Functions share: values, and Functions made of plain functions."""

import numpy as np

import tapegrad as tg


def values(t):
    """The values as an array of their own."""
    return np.array(t.detach().numpy())


def numbers(grads):
    """A list or tuple of gradients, as lists and None."""
    return type(grads)(None if g is None else g.tolist() for g in grads)


def make(forward, backward=None, setup=None, name="F", base=None, **methods):
    """Make a Function from plain functions; numbers and the like become attributes."""
    body = {"forward": staticmethod(forward)}
    if backward is not None:
        body["backward"] = staticmethod(backward)
    if setup is not None:
        body["setup_context"] = staticmethod(setup)
    body |= {key: staticmethod(v) if callable(v) else v for key, v in methods.items()}
    return type(name, (base or tg.Function,), body)


def double(ctx, x):
    """A forward."""
    return x * 2


def same(ctx, g):
    """A backward that is wrong on purpose, so that it shows."""
    return g


class Cube(tg.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


# with a forward that takes no ctx, with `vjp` instead of `backward`, and with both newer forms
CubeSetup = make(
    lambda x: x * x * x,
    Cube.backward,
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    "CubeSetup",
)
CubeVjp = make(Cube.forward, name="CubeVjp", vjp=Cube.backward)
CubeSetupVjp = make(
    CubeSetup.forward, setup=CubeSetup.setup_context, name="CubeSetupVjp", vjp=Cube.backward
)


class CubeNumPy(tg.Function):
    """With plain arrays inside."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach().numpy()
        return tg.as_tensor(ctx.x**3)

    @staticmethod
    def backward(ctx, g):
        return tg.as_tensor(g.detach().numpy() * 3 * ctx.x**2)


DIFFERENTIABLE_CUBES = [Cube, CubeSetup, CubeVjp, CubeSetupVjp]
CUBES = [*DIFFERENTIABLE_CUBES, CubeNumPy]


class Exp(tg.Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = tg.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Nothing(tg.Function):
    """The identity without a gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return None


class AddOne(tg.Function):
    """Works in place; its derivative is five."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1.0)

    @staticmethod
    def backward(ctx, g):
        return g * 5


class ProductOfTwo(tg.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x
