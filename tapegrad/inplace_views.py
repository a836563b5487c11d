"""Changing which elements a tensor shows, in place: `transpose_`, `squeeze_` and the like.

The memory stays as it is, and so do values that were saved. A tensor whose memory other tensors
show cannot be their base any more: its place is taken by one that stands for what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tapegrad.inplace import check_writable, give_history
from tapegrad.modes import MODE
from tapegrad.numeric import FUNCTIONS
from tapegrad.tensor import Tensor, put_array, wrap


def show_as(target: Tensor, what: str, view: Callable[[Tensor], Tensor]) -> Tensor:
    """Let a tensor show its elements as a view of it does; return it.

    Parameters
    ----------
    target
        The tensor.
    what
        The name of the method, for errors.
    view
        Returns the view.
    """
    check_writable(target, what)
    meta = target.meta()
    before = wrap(target._a, target._own)
    if meta is not None and meta.base is not None:
        before._meta = meta
    elif meta is not None:
        before_meta = before.ensure_meta()
        before_meta.inference = meta.inference
        before_meta.views, meta.views = meta.views, None
        for reference in before_meta.views or ():
            shown = reference()
            if shown is not None:
                shown.ensure_meta().base = before
    if target._own is not None and target.is_leaf:  # nothing is recorded
        before._own = None
        result = view(before)
        put_array(target, result._a)
    else:
        result = MODE.with_recording(True, view, before)  # or it would have another shape
        target._a = result._a
        give_history(target, result._own)
    target.ensure_meta().writes_before += 1  # nothing that was saved has changed
    if meta is not None and (meta.base is not None or before.ensure_meta().views):
        known = result.meta()
        assert known is not None
        base = before if known.base is None else known.base
        meta.base, meta.steps = base, known.steps
        base.ensure_meta().add_view(target)
    return target


def swap_(self: Tensor, axis1: int, axis2: int) -> Tensor:
    """Swap two axes, in place; return the tensor.

    Parameters
    ----------
    axis1, axis2
        The axes. (`transpose` takes all axes, as NumPy does; this is PyTorch's `transpose_`.)
    """
    return show_as(self, "transpose_", lambda t: FUNCTIONS["swapaxes"](t, axis1, axis2))


def t_(self: Tensor) -> Tensor:
    """Transpose a tensor of at most two axes, in place; return it."""
    if self.ndim > 2:
        raise RuntimeError(f"t_ expects a tensor with <= 2 dimensions, but self is {self.ndim}D")
    return show_as(self, "t_", FUNCTIONS["transpose"])


def squeeze_(self: Tensor, axis: Any = None) -> Tensor:
    """Leave out axes of length 1, in place; return the tensor.

    Parameters
    ----------
    axis
        Which of them; all by default.
    """
    return show_as(self, "squeeze_", lambda t: FUNCTIONS["squeeze"](t, axis))


def expand_dims_(self: Tensor, axis: Any) -> Tensor:
    """Insert axes of length 1, in place; return the tensor.

    Parameters
    ----------
    axis
        Where they will be.
    """
    return show_as(self, "unsqueeze_", lambda t: FUNCTIONS["expand_dims"](t, axis))


def resize_(self: Tensor, *sizes: Any) -> NoReturn:
    """Refuse: memory is not made longer or shorter in place."""
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    raise RuntimeError("resize_: a tensor keeps its memory; make a new one, such as with reshape()")
