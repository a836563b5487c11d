"""Changing tensors in place, with the graph following.

Memory may be shown by several tensors. In-place work is done in three steps: compute what the
target's new value is a function of, write the memory and note the mutation on the tape's clock,
and give the target that history. If the target is a view, its base gets a history in which that
part was replaced, and all other views of the base are shown anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.dispatch import apply_op, apply_opaque, apply_view, owner_of, unwrap
from tapegrad.frames import OpaqueFrame, append_nary
from tapegrad.modes import MODE
from tapegrad.ops import indexing, piecewise
from tapegrad.ops.indexing import put_view, show
from tapegrad.ops.kinds import Opaque, SweptOp
from tapegrad.ops.op import Op
from tapegrad.ops.shape import astype, broadcast_to, getitem, reshape
from tapegrad.tape.aval import AVALS, DTYPE_CODES
from tapegrad.tape.tape import TAPE
from tapegrad.tensor import Owner, Tensor, wrap

# -- the steps ------------------------------------------------------------------------------------


def check_writable(target: Tensor, what: str) -> None:
    """Refuse in-place work that would lose a gradient."""
    if not isinstance(target, Tensor):
        raise TypeError(f"{what}: the target is a {type(target).__name__}, not a Tensor")
    if not MODE.recording:
        return
    meta = target.meta()
    base = None if meta is None else meta.base
    if meta is not None and meta.function_view and target._own is not None:
        raise RuntimeError(
            f"Output 0 of {what} is a view and is being modified inplace. This view was created "
            "inside a custom Function (or because an input was returned as-is) and the autograd "
            "logic to handle view+inplace would override the custom backward associated with the "
            "custom Function, leading to incorrect gradients. This behavior is forbidden. You can "
            "fix this by cloning the output of the custom Function."
        )
    if meta is not None and meta.one_of_several and base is not None and base._own is not None:
        raise RuntimeError(
            f"Output 0 of {meta.one_of_several} is a view and is being modified inplace. This view "
            "is the output of a function that returns multiple views. Such functions do not allow "
            "the output views to be modified inplace. You should replace the inplace operation by "
            "an out-of-place one."
        )
    if base is not None and base._own is not None:
        if base.is_leaf:
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                f"operation ({what}); work on a copy, or inside no_grad()"
            )
        if meta is not None and meta.no_grad_view:
            raise RuntimeError(
                "A view was created in no_grad mode and is being modified inplace with grad mode "
                "enabled. Given that this use case is ambiguous and error-prone, it is forbidden. "
                "You can clarify your code by moving both the view and the inplace either both "
                "inside the no_grad block (if you don't want the inplace to be tracked) or both "
                "outside (if you want the inplace to be tracked)."
            )
    elif target._own is not None and target.is_leaf:
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation "
            f"({what}); work on a copy, or inside no_grad()"
        )


def rebase(target: Tensor, own: Owner | None) -> None:
    """Give a target, whose memory was just written, the history of its new value."""
    if not MODE.recording:
        return
    meta = target.meta()
    if meta is None or meta.base is None:
        give_history(target, own)
        base = target
    else:
        base = meta.base
        if own is None and base._own is None:
            return
        bound = {
            "x": wrap(base._a, base._own),
            "value": wrap(target._a, own),
            "steps": meta.steps,
        }
        base._own = record_unrun(put_view, base._a, bound)
    refresh_views(base)


def refresh_views(base: Tensor) -> None:
    """Give every tensor that shows memory of a base the history that follows from the base's."""
    meta = base.meta()
    if meta is None or meta.views is None:
        return
    for reference in meta.views:
        shown = reference()
        if shown is not None:
            source = wrap(base._a, base._own)
            give_history(shown, show(source, shown._meta.steps)._own)


def give_history(target: Tensor, own: Owner | None) -> None:
    """Put a tensor at another place of the graph: its hooks stay, a retained gradient follows."""
    meta = target.meta()
    target._own = own
    if meta is not None and (meta.hooks or meta.retains_grad):
        retains, meta.retains_grad = meta.retains_grad, False
        target._meta = meta.renewed()
        if retains and own is not None:
            target.retain_grad()


def note_mutation(target: Tensor) -> None:
    """Note that the memory of a tensor is being written, unless it was split off by `data`."""
    meta = target.meta()
    base = meta.base if meta is not None and meta.base is not None else target
    known = base.meta()
    if known is None or not known.untracked:
        TAPE.note_mutation(target._a)


def record_unrun(op: Opaque, z: np.ndarray, bound: dict[str, Any]) -> Owner | None:
    """Record an opaque op whose result is in memory already and whose rules read no values."""
    frame = OpaqueFrame(op, bound, z)
    return append_nary(op.code, AVALS.of(z), frame) if frame.parents else None


# -- what users call ------------------------------------------------------------------------------


def apply_inplace(op: Op, target: Tensor, *others: Any) -> Tensor:
    """``target[...] = op(target, *others)``; return the target."""
    check_writable(target, op.name)
    source: Any = target
    if target._own is not None and isinstance(op, SweptOp) and op.saved:
        # the op may save what is about to be overwritten
        source = wrap(target._a.copy(), target._own)
    others = tuple(source if other is target else other for other in others)
    return write(target, apply_op(op, (source, *others), {}), op.name)


def write(target: Tensor, value: Any, what: str) -> Tensor:
    """``target[...] = value``, keeping the target's shape and dtype; return the target."""
    check_writable(target, what)
    array = np.asarray(unwrap(value))
    if np.broadcast_shapes(array.shape, target.shape) != target.shape:
        raise RuntimeError(
            f"{what}: output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(np.broadcast_shapes(array.shape, target.shape))}"
        )
    if not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise RuntimeError(
            f"{what}: result type {array.dtype} can't be cast to the desired output type "
            f"{target.dtype}"
        )
    own = owner_of(value)
    if own is not None and MODE.recording:
        if target.dtype not in DTYPE_CODES:
            raise RuntimeError(
                f"{what}: a tensor of dtype {target.dtype} cannot hold a value that requires grad"
            )
        if array.dtype != target.dtype:
            value = apply_op(astype, (value, target.dtype), {})
        if array.shape != target.shape:
            value = apply_op(broadcast_to, (value, target.shape), {})
        own = value._own
    np.copyto(target._a, array, casting="same_kind")
    note_mutation(target)
    rebase(target, own)
    return target


def assign_item(target: Tensor, index: Any, value: Any) -> None:
    """Do ``target[index] = value``."""
    check_writable(target, "item assignment")
    index = unwrap_index(index)
    array = np.asarray(unwrap(value))
    recorded = MODE.recording and (target._own is not None or owner_of(value) is not None)
    own = None
    if recorded:
        if target.dtype not in DTYPE_CODES:
            raise RuntimeError(
                f"item assignment: a tensor of dtype {target.dtype} cannot hold a value that "
                "requires grad"
            )
        shape = np.shape(target._a[index])
        if np.broadcast_shapes(array.shape, shape) != shape and array.size != 1:
            # NumPy also accepts leading axes of length 1
            array = array.reshape(array.shape[array.ndim - len(shape) :])
            if isinstance(value, Tensor):
                value = apply_op(reshape, (value, array.shape), {})
        old = wrap(target._a, target._own)
        bound = {"x": old, "value": value if isinstance(value, Tensor) else array, "index": index}
        own = record_unrun(indexing.put, target._a, bound)
    target._a[index] = array
    note_mutation(target)
    if recorded:
        rebase(target, own)


def unwrap_index(index: Any) -> Any:
    """Return an index with arrays in place of tensors."""
    if type(index) is tuple:
        return tuple(map(_own_index, index))
    return _own_index(index)


def _own_index(part: Any) -> Any:
    """Copy what could be changed before the backward pass reads it."""
    if isinstance(part, Tensor):
        return part._a.copy()
    return np.array(part) if isinstance(part, (list, np.ndarray)) else part


def read_item(source: Tensor, index: Any) -> Tensor:
    """Return ``source[index]``: a view for basic indices, a copy for arrays."""
    if not isinstance(index, (int, slice)):
        index = unwrap_index(index)
    if indexing.is_basic(index):
        return apply_view(getitem, source, {"index": index})
    result: Tensor = apply_opaque(indexing.gather, {"x": source, "index": index})
    return result


def apply_with_out(op: Op, args: tuple[Any, ...], out: Any, where: Any) -> Tensor:
    """Apply an op with NumPy's `out` and `where`."""
    if type(out) is tuple:
        (out,) = out
    if out is None:
        raise TypeError(
            f"{op.name}: `where` without `out` leaves elements undefined; give `out`, or use "
            "tapegrad.where"
        )
    if isinstance(out, Tensor) and out._own is not None and any(arg is out for arg in args):
        source = wrap(out._a.copy(), out._own)  # the op may save what is about to be overwritten
        args = tuple(source if arg is out else arg for arg in args)
    result = apply_op(op, args, {})
    if isinstance(out, np.ndarray):
        if result._own is not None:
            raise TypeError(
                f"{op.name}: `out` is a NumPy array and cannot hold a gradient; give a Tensor, or "
                "detach() the inputs"
            )
        np.copyto(out, result._a, where=unwrap(where), casting="same_kind")
        return wrap(out)
    if where is not True:
        result = apply_op(piecewise.where, (where, result, wrap(out._a.copy(), out._own)), {})
    if result.shape != out.shape:
        raise ValueError(
            f"{op.name}: `out` has shape {list(out.shape)}, the result {list(result.shape)}"
        )
    return write(out, result, op.name)
