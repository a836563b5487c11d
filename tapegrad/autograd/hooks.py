"""Tensor hooks and retained gradients."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.frames import FRAME, SelectFrame, node_name
from tapegrad.tape.layout import LEAF_CLOCK, OWN_SLOT
from tapegrad.tensor import Meta, Tensor, flag_python

_ids = itertools.count()


class RemovableHandle:
    """What registering a hook returns: `remove` takes the hook away again."""

    def __init__(self, hooks: dict[int, Any], holder: Any) -> None:
        self.id = next(_ids)
        self._hooks = weakref.ref(holder)
        self._table = hooks

    def remove(self) -> None:
        """Take the hook away (once or more often)."""
        if self._hooks() is not None:
            self._table.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call a function with this tensor's gradient whenever it is computed.

    Parameters
    ----------
    hook
        Gets the gradient; may return another one of the same shape to use in its place.

    Returns
    -------
    RemovableHandle
        Its `remove` ends it.

    Raises
    ------
    RuntimeError
        If the tensor does not require gradients.
    """
    if self._own is None:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    meta = _meta_on_record(self)
    if meta.hooks is None:
        meta.hooks = {}
    handle = RemovableHandle(meta.hooks, meta)
    meta.hooks[handle.id] = hook
    return handle


def _meta_on_record(tensor: Tensor) -> Meta:
    """Return the meta of a tensor, which its record holds and stops at."""
    own = tensor._own
    assert own is not None
    meta = tensor.ensure_meta()
    if own[OWN_SLOT] < LEAF_CLOCK:
        if type(own[-1]) is Meta:
            return own[-1]
        own.append(meta)
        flag_python(own)
    return meta


def retain_grad(self: Tensor) -> None:
    """Keep the gradient in `.grad` although this tensor is not a leaf.

    Raises
    ------
    RuntimeError
        If the tensor does not require gradients.
    """
    if self._own is None:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if not self.is_leaf:
        _meta_on_record(self).retains_grad = True


def retains_grad(self: Tensor) -> bool:
    """Return whether `.grad` will be kept although this tensor is not a leaf."""
    meta = self.meta()
    return meta is not None and meta.retains_grad


def register_post_accumulate_grad_hook(
    self: Tensor, hook: Callable[[Tensor], None]
) -> RemovableHandle:
    """Call a function with this leaf whenever its `.grad` was added to.

    Parameters
    ----------
    hook
        Gets the leaf; has to return None.

    Raises
    ------
    RuntimeError
        If the tensor does not require gradients or is not a leaf.
    """
    if self._own is None:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if not self.is_leaf:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    meta = self.ensure_meta()
    if meta.post_hooks is None:
        meta.post_hooks = {}
    handle = RemovableHandle(meta.post_hooks, meta)
    meta.post_hooks[handle.id] = (weakref.ref(self), hook)
    return handle


def detach_(self: Tensor) -> Tensor:
    """Take this tensor out of the graph, in place; return it.

    Raises
    ------
    RuntimeError
        If it is a view: its base would not know.
    """
    meta = self.meta()
    if meta is not None and meta.base is not None:
        raise RuntimeError(
            "Can't detach views in-place. Use detach() instead: the base would keep its history."
        )
    self._own = None
    return self


def output_nr(self: Tensor) -> int:
    """Return which output of its record a tensor is."""
    own = self._own
    frame = own[FRAME] if own is not None and len(own) > FRAME else None
    return frame.k if isinstance(frame, SelectFrame) else 0


class Node:
    """The record of an op, seen as a node of the graph."""

    def __init__(self, tensor: Tensor) -> None:
        own = tensor._own
        assert own is not None
        frame = own[FRAME] if len(own) > FRAME else None
        maker = frame.parents[0] if isinstance(frame, SelectFrame) else own
        assert maker is not None
        self._name = f"{node_name(maker)}Backward"
        self._own = own

    def name(self) -> str:
        """Return the op's name with "Backward"."""
        return self._name

    def __repr__(self) -> str:
        return f"<{self._name}>"


def grad_fn(self: Tensor) -> Node | None:
    """Return the node that recorded a tensor, None for a leaf."""
    return None if self.is_leaf else Node(self)


def set_data(self: Tensor, value: Tensor) -> None:
    """Put other memory under a tensor, of the same shape and dtype."""
    if not isinstance(value, Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
    if self._own is not None and (value.shape != self.shape or value.dtype != self.dtype):
        raise RuntimeError(
            f"data: a tensor of shape {list(self.shape)} and dtype {self.dtype} that requires grad "
            f"cannot take memory of shape {list(value.shape)} and dtype {value.dtype}"
        )
    self._a = np.asarray(value._a)
