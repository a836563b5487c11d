"""Methods of tensors that concern the graph: node, hooks, retained gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from tapegrad.autograd.engine.node import Node, RemovableHandle, check_hook, edge_of
from tapegrad.eager.frames import SelectFrame, maker_of
from tapegrad.eager.histories import InvalidViewFrame
from tapegrad.eager.tensor import Tensor
from tapegrad.tape.avals import AVALS, DIFFERENTIABLE
from tapegrad.tape.owner import ensure_notes, notes_of, take_notes
from tapegrad.tape.tape import TAPE


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Register a function that is called with this tensor's gradient when it is computed.

    Parameters
    ----------
    hook
        Called with the gradient; may return a replacement of the same shape and dtype.

    Returns
    -------
    RemovableHandle
        Its `remove` removes the hook.

    Raises
    ------
    RuntimeError
        If the tensor does not require gradients.
    """
    if self._own is None:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    check_hook(hook, "register_hook")
    notes = ensure_notes(self._own, stop=True)
    maker, k = maker_of(self._own)
    if maker is not None and maker is not self._own:
        ensure_notes(maker, stop=True).outputs[k] = notes
    return RemovableHandle(notes.hooks, hook)


def retain_grad(self: Tensor) -> None:
    """Keep the gradient of this non-leaf tensor in `.grad`.

    Raises
    ------
    RuntimeError
        If the tensor does not require gradients.
    """
    if self._own is None:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if not self.is_leaf:
        self.ensure_meta().retains_grad = True
        ensure_notes(self._own, stop=True).retains = weakref.ref(self)


def retains_grad(self: Tensor) -> bool:
    """Return whether this is a non-leaf tensor whose `.grad` is kept."""
    meta = self.meta()
    return meta is not None and meta.retains_grad


def register_post_accumulate_grad_hook(
    self: Tensor, hook: Callable[[Tensor], None]
) -> RemovableHandle:
    """Register a function that is called with this leaf after its `.grad` was accumulated.

    Parameters
    ----------
    hook
        Called with the leaf; must return None.

    Raises
    ------
    RuntimeError
        If the tensor does not require gradients or is not a leaf.
    """
    if self._own is None:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if not self.is_leaf:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    check_hook(hook, "register_post_accumulate_grad_hook")
    return RemovableHandle(ensure_notes(self._own).accumulated, hook)


def detach_(self: Tensor) -> Tensor:
    """Detach this tensor from the graph in place; return it.

    Raises
    ------
    RuntimeError
        If it is a view, since its base would keep its history.
    """
    meta = self.meta()
    if meta is not None and meta.base is not None:
        raise RuntimeError(
            "Can't detach views in-place. Use detach() instead: the base would keep its history."
        )
    self._own = None
    if meta is not None and meta.tangent is not None:
        meta.tangent = None
    return self


def output_nr(self: Tensor) -> int:
    """Return the number of this tensor among the outputs of its record."""
    own, meta = self._own, self.meta()
    if own is not None and isinstance(own[-1], SelectFrame):
        return own[-1].k
    return meta.one_of_several[1] if meta is not None and meta.one_of_several else 0


def grad_fn(self: Tensor) -> Node | None:
    """Return the node of the op that computed a tensor, None for a leaf."""
    if self.is_leaf:
        return None
    assert self._own is not None
    if isinstance(self._own[-1], InvalidViewFrame):
        self._own[-1].refuse()
    return edge_of(self)[0]


def set_data(self: Tensor, value: Tensor) -> None:
    """Replace a tensor's memory; only a leaf may change its shape or dtype."""
    if not isinstance(value, Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
    own, meta = self._own, self.meta()
    if own is not None and value.dtype not in DIFFERENTIABLE:
        raise RuntimeError(
            "data set to a tensor that requires gradients must be floating point or complex dtype"
        )
    kinds = [(t.shape, t.dtype, t.device) for t in (self, value)]
    if own is not None and kinds[0] != kinds[1]:
        if not self.is_leaf:
            raise RuntimeError(
                f"data: the result of an op, of shape {list(self.shape)} and dtype {self.dtype} on "
                f"{self.device}, cannot take memory of shape {list(value.shape)} and dtype "
                f"{value.dtype} on {value.device}"
            )
        notes, own = notes_of(own), TAPE.new_leaf(AVALS.of(value._a), meta)
        if notes is not None:
            take_notes(own, notes)
    writes = TAPE.version(self._a) - TAPE.version(value._a)
    if writes or meta is not None:
        meta = self.ensure_meta()
        meta.writes_before += writes  # earlier writes still count
    before = self._own, self._a
    try:
        self._own, self._a = own, value._a
        if meta is not None and meta.array is not None:
            meta.array = value._a
    except BaseException:  # interrupted: memory and record keep one shape
        self._own, self._a = before
        raise
