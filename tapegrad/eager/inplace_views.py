"""In-place changes of a tensor's shape and strides: `transpose_`, `squeeze_` and others.

Memory and saved values do not change. Tensors that have views are refused, and so are tensors that
require grad while recording is off, since gradients would not match them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tapegrad.eager.duals import any_dual, carry_tangent
from tapegrad.eager.histories import give_history
from tapegrad.eager.inplace import check_writable
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor, wrap


def show_as(target: Tensor, what: str, view: Callable[[Tensor], Tensor]) -> Tensor:
    """Turn a tensor into a view of itself, in place; return it.

    Parameters
    ----------
    target
        The tensor.
    what
        The name of the method, for error messages.
    view
        Function that returns the view.
    """
    check_writable(target, what)
    meta = target.meta()
    if target._own is not None and not MODE.recording:
        raise RuntimeError(
            f"{what}: a tensor that requires grad changes its shape in place only where operations "
            "are recorded; its gradients would have another shape. Use a view"
        )
    if meta is not None and any(shown() is not None for shown in meta.views or ()):
        raise RuntimeError(
            f"{what}: other tensors are views of this one, and show it as it was; use a view"
        )
    has_tangent = any_dual((target,))
    if meta is not None and meta.base is not None:
        base = meta.base.meta()
        if base is not None and meta.tangent is base.tangent:
            meta.tangent, meta.tangent_steps = None, ()  # it is found by the base
    if has_tangent and meta is not None and meta.tangent_steps:
        raise RuntimeError(
            f"{what}: a view of a tensor that has a tangent cannot change its shape in place; use "
            "the function that returns a view"
        )
    before = carry_tangent(target, wrap(target._a, target._own))
    if meta is not None and meta.base is not None:
        before._meta = meta
    result = view(before)
    known, changed = result.meta(), target.ensure_meta()
    old = target._a, target._own, changed.steps, changed.tangent, changed.tangent_steps
    try:
        target._a = result._a
        if changed.base is not None and known is not None and known.base is not None:
            changed.steps = known.steps
            changed.base.ensure_meta().add_view(target)
        if has_tangent and (changed.base is None or changed.tangent is not None):
            carry_tangent(result, target)
        give_history(target, result._own)
    except BaseException:  # interrupted: memory and record keep one shape
        target._a, target._own, changed.steps, changed.tangent, changed.tangent_steps = old
        raise
    changed.writes_before += 1  # saved values did not change
    return target


def swap_(self: Tensor, axis1: int, axis2: int) -> Tensor:
    """Swap two axes in place; return the tensor.

    Parameters
    ----------
    axis1, axis2
        The axes. (This is PyTorch's `transpose_`; `transpose` takes all axes, as in NumPy.)
    """
    return show_as(self, "transpose_", lambda t: FUNCTIONS["swapaxes"](t, axis1, axis2))


def t_(self: Tensor) -> Tensor:
    """Transpose a tensor of at most two axes in place; return it."""
    if self.ndim > 2:
        raise RuntimeError(f"t_ expects a tensor with <= 2 dimensions, but self is {self.ndim}D")
    return show_as(self, "t_", FUNCTIONS["transpose"])


def squeeze_(self: Tensor, axis: Any = None) -> Tensor:
    """Remove axes of length 1 in place; return the tensor.

    Parameters
    ----------
    axis
        The axes to remove; all of length 1 by default.
    """
    return show_as(self, "squeeze_", lambda t: FUNCTIONS["squeeze"](t, axis))


def expand_dims_(self: Tensor, axis: Any) -> Tensor:
    """Insert axes of length 1 in place; return the tensor.

    Parameters
    ----------
    axis
        Positions of the new axes.
    """
    return show_as(self, "unsqueeze_", lambda t: FUNCTIONS["expand_dims"](t, axis))


def as_strided(self: Tensor, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise: views of any strides have no derivative."""
    raise RuntimeError(
        "as_strided: a view of any strides has no derivative; use reshape, transpose, slices, or "
        "an index array: x.ravel()[places]"
    )


def resize_(self: Tensor, *sizes: Any) -> NoReturn:
    """Raise: memory cannot be resized in place."""
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    raise RuntimeError("resize_: a tensor keeps its memory; make a new one, such as with reshape()")
