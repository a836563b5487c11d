"""Functions with a derivative written by the user, in PyTorch's way."""

from collections.abc import Callable
from typing import Any


def functions(module: Any) -> dict[str, Callable[..., Any]]:
    """Functions with a derivative written by the user, for a library that has PyTorch's names."""
    exp, sin, cos, function = module.exp, module.sin, module.cos, module.autograd.Function

    class Decay(function):
        @staticmethod
        def forward(ctx, x):
            z = exp(-x)
            ctx.save_for_backward(z)
            return z

        @staticmethod
        def backward(ctx, g):
            (z,) = ctx.saved_tensors
            return -g * z

    class DecayInContext(function):
        @staticmethod
        def forward(x):
            return exp(-x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, g):
            (z,) = ctx.saved_tensors
            return -g * z

    class Product(function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    class SineAndCosine(function):
        @staticmethod
        def forward(ctx, x):
            s, c = sin(x), cos(x)
            ctx.save_for_backward(s, c)
            return s, c

        @staticmethod
        def backward(ctx, gs, gc):
            s, c = ctx.saved_tensors
            return gs * c - gc * s

    return {
        "decay": Decay.apply,
        "decay_in_context": DecayInContext.apply,
        "product": Product.apply,
        "sine_and_cosine": SineAndCosine.apply,
    }
