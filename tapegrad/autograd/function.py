"""Public names of ops whose forward and backward are Python functions of the user."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tapegrad.autograd.engine.batched_function  # noqa: F401 (Functions inside of vmap)
from tapegrad.autograd.engine.context import BackwardCFunction, FunctionCtx
from tapegrad.autograd.engine.custom import Function, FunctionMeta
from tapegrad.autograd.engine.nested_function import NestedIOFunction
from tapegrad.cuda.array import as_array
from tapegrad.eager.dispatch import owner_of, unwrap
from tapegrad.eager.frames import FRAMED, RefusedFrame, append_record
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import wrap
from tapegrad.tape.avals import AVALS, DIFFERENTIABLE
from tapegrad.tape.owner import Owner

__all__ = [
    "BackwardCFunction", "Function", "FunctionCtx", "FunctionMeta", "InplaceFunction",
    "NestedIOFunction", "once_differentiable",
]  # fmt: skip


_TWICE = "trying to differentiate twice a function that was marked with @once_differentiable"


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
        if not before:
            return outputs
        inputs = ctx._parents() if isinstance(ctx, FunctionCtx) else []
        parents = [own for own in (*inputs, *map(owner_of, args)) if own is not None]
        if isinstance(outputs, tuple):
            return tuple(_refusing(value, parents) for value in outputs)
        return _refusing(outputs, parents)

    return wrapper


def _refusing(gradient: Any, parents: list[Owner]) -> Any:
    """Return a gradient that depends on some records and refuses to be differentiated."""
    array = as_array(unwrap(gradient))
    if array.dtype not in DIFFERENTIABLE or not parents:
        return gradient
    own = append_record(FRAMED, AVALS.of(array), parents, RefusedFrame(_TWICE), False)
    return wrap(array, own)


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
