"""What tests of Functions share: leaves, values, and Functions made of plain functions."""

import numpy as np

import tapegrad as tg


def leaf(data, dtype=np.float64):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def values(t):
    """The values as an array of their own."""
    return np.array(t.detach().numpy())


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


class CubeSetup(tg.Function):
    """With a forward that takes no ctx."""

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class CubeVjp(tg.Function):
    """With `vjp` instead of `backward`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class CubeSetupVjp(tg.Function):
    """With both newer forms."""

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


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


class AddOne(tg.Function):
    """Works in place; its derivative is five."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1.0)

    @staticmethod
    def backward(ctx, g):
        return g * 5
