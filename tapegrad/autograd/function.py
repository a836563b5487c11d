"""Public names of ops whose forward and backward are Python functions of the user."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tapegrad.autograd.engine.context import BackwardCFunction, FunctionCtx
from tapegrad.autograd.engine.custom import Function, FunctionMeta
from tapegrad.autograd.engine.nested_function import NestedIOFunction
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor, wrap

__all__ = [
    "BackwardCFunction",
    "Function",
    "FunctionCtx",
    "FunctionMeta",
    "InplaceFunction",
    "NestedIOFunction",
    "once_differentiable",
]


class _TwiceError(Function):
    """The identity, which refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, *values: Any) -> Any:
        return tuple(wrap(value._a) if isinstance(value, Tensor) else value for value in values)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a backward that cannot itself be differentiated.

    The backward is not recorded; differentiating its result raises.

    Parameters
    ----------
    fn
        The static method ``backward(ctx, *grads)``.
    """

    @functools.wraps(fn)
    def wrapper(ctx: Any, *args: Any) -> Any:
        before = MODE.thread.recording
        outputs = MODE.with_recording(False, fn, ctx, *args)
        if not before or not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            return outputs
        several = isinstance(outputs, tuple)
        # new leaves, so that differentiating the result raises
        fresh = [
            wrap(value._a).requires_grad_() if isinstance(value, Tensor) else value
            for value in (outputs if several else (outputs,))
        ]
        refused = _TwiceError.apply(*fresh)
        return refused if several else refused[0]

    return wrapper


class InplaceFunction(Function):
    """A Function that may work in place (for legacy code).

    Parameters
    ----------
    inplace
        Kept as an attribute.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace
