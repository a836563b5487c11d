"""In-place changes of tensors, with the corresponding changes of the graph.

Several tensors may share memory. An in-place op has three steps: compute the new value; make its
history and, if the target is a view, that of the base, in which this part is replaced, and those of
all other views of the base; note the mutation on the tape's clock, write to memory, and give the
tensors these histories (`tapegrad.eager.histories`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.cuda.array import Array, as_array, device_of, is_array
from tapegrad.eager import batched_indices, traced, traced_calls, traced_writes
from tapegrad.eager.batched import BatchError, holds_batched
from tapegrad.eager.detached import note_written
from tapegrad.eager.dispatch import (
    apply_op,
    apply_opaque,
    apply_view,
    operand,
    owner_of,
    passive,
    unwrap,
)
from tapegrad.eager.duals import any_dual, carry_tangent, is_dual, tangent_of, tangent_to_write
from tapegrad.eager.histories import FUNCTION_VIEW, clarified, histories_after, record_unrun, store
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import (
    ITEM,
    OF_NUMBERS,
    Meta,
    Tensor,
    has_values,
    is_shared,
    meta_of_result,
    origin_of,
    wrap,
)
from tapegrad.eager.values import as_array_without_axes, selects
from tapegrad.ops import indexing, piecewise
from tapegrad.ops.devices import on_device_of
from tapegrad.ops.indexing import show
from tapegrad.ops.shape import astype, broadcast_to, getitem, reshape
from tapegrad.ops.table.batching import place_of_batch, shifted_index
from tapegrad.ops.table.composite import Composite
from tapegrad.ops.table.kinds import Broadcasting, SweptOp
from tapegrad.ops.table.op import Op, refuse_masked
from tapegrad.probes import probe
from tapegrad.tape.avals import DIFFERENTIABLE
from tapegrad.tape.owner import Owner, notes_of

# -- the steps ------------------------------------------------------------------------------------


def check_writable(target: Tensor, what: str, *values: Any) -> None:
    """Raise if an in-place op on a target, with some operands, would lose a gradient."""
    if not isinstance(target, Tensor):
        raise TypeError(f"{what}: the target is a {type(target).__name__}, not a Tensor")
    meta = target.meta()
    if meta is ITEM:
        raise TypeError(
            f"{what}: an item of what is made of arrays is a number, as in NumPy, and has no "
            "memory to write to: assign to it, y[0] = value, or take a view, y[0, ...]"
        )
    if meta is not None and meta.inference and not MODE.thread.inference:
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make "
            "a clone to get a normal tensor before doing inplace update."
        )
    if meta is not None and is_shared(target):
        _check_shared(target if meta.base is None else meta.base, what, values)
    if not MODE.recording:
        return
    base = None if meta is None else meta.base
    if meta is not None and base is not None:
        if target._own is None and base._own is None and not any(map(owner_of, values)):
            return
        _check_view(meta)
        if base.is_leaf and base._own is not None:
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                f"operation. ({what}: work on a copy, or inside no_grad())"
            )
    if target._own is not None and target.is_leaf:
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation. "
            f"({what}: work on a copy, or inside no_grad())"
        )


def _check_shared(base: Tensor, what: str, values: tuple[Any, ...]) -> None:
    """Note that the memory of the user's array will hold values that have a history."""
    if base._is_tracked:  # noted before
        return
    for value in values:
        own = owner_of(value) if MODE.recording else None
        if own is not None or is_dual(value):
            note_written(own, what)
            return


def _check_view(meta: Meta) -> None:
    """Raise if the base of a view cannot get the history of a write to the view."""
    if meta.unrecorded_view:
        mode = meta.unrecorded_view
        now = "in normal mode" if mode == "inference" else "with grad mode enabled"
        what = "A view was created"
        if meta.unrecorded_source:
            what = f"Output 0 of {meta.unrecorded_source} is a view of a view which was created"
        raise RuntimeError(
            f"{what} in {mode} mode and is being modified inplace {now}. {clarified(mode)}"
        )
    if meta.one_of_several:
        name, k = meta.one_of_several
        raise RuntimeError(
            f"Output {k} of {name} is a view and is being modified inplace. This view is the "
            "output of a function that returns multiple views. Such functions do not allow the "
            "output views to be modified inplace. You should replace the inplace operation by an "
            "out-of-place one."
        )
    if meta.function_view:
        raise RuntimeError(
            f"Output 0 of {meta.function_view} is a view and is being modified inplace. This view "
            f"{FUNCTION_VIEW}"
        )


# -- public functions -----------------------------------------------------------------------------


@probe(lambda args: f"{args[0].name}_")
def apply_inplace(op: Op | Composite, target: Tensor, *others: Any, **named: Any) -> Tensor:
    """``target[...] = op(target, *others)``; return the target."""
    if MODE.special and holds_batched((target, *others)):
        held, level = batched_indices.target_of(target, [*others], op.name)
        old = target.clone() if _is_recorded(target, *others) else target
        call = op.function if isinstance(op, Composite) else op.public
        value = call(old, *[old if x is target else x for x in others], **named)
        write(held, batched_indices.value_for(target, value, level), op.name)
        return target
    if MODE.special and MODE.thread.trace is not None:
        call = op.function if isinstance(op, Composite) else op.public
        traced_writes.write(target, call(target, *others, **named))
        return target
    check_writable(target, op.name, *others)
    source: Any = target
    if not (isinstance(op, SweptOp) and op.saves_nothing) and _is_recorded(target, *others):
        # the op may save the values that are about to be overwritten
        source = carry_tangent(target, wrap(target._a.copy(), _old_history(target)))
    others = tuple(source if other is target else other for other in others)
    call = op.function if isinstance(op, Composite) else op.public
    return _overwrite(target, call(source, *others, **named), op.name, False)


def _is_recorded(*operands: Any) -> bool:
    """Whether an op on some operands is recorded."""
    return MODE.recording and any(owner_of(value) is not None for value in operands)


def _old_history(target: Tensor) -> Owner | None:
    """Return the history of a tensor's value before an in-place op.

    For a view with hooks, it is derived from the base again: the hooks belong to the view, through
    which the gradient no longer passes.
    """
    own, meta = target._own, target.meta()
    if own is None or meta is None or meta.base is None or notes_of(own) is None:
        return own
    return show(wrap(meta.base._a, meta.base._own), meta.steps)._own


@probe(lambda args: args[2])
def write(target: Tensor, value: Any, what: str, keep: bool = False) -> Tensor:
    """``target[...] = value``, keeping the target's shape and dtype; return the target.

    With `keep`, the write is recorded as an op of its own: the target's old history remains, with a
    zero gradient, and the target does not share the record of the value.
    """
    if MODE.special and holds_batched((target, value)):
        held, level = batched_indices.target_of(target, operand(value), what)
        write(held, batched_indices.value_for(target, operand(value), level), what, keep)
        return target
    if MODE.special and MODE.thread.trace is not None:
        traced_writes.write(target, value)
        return target
    check_writable(target, what, value)
    return _overwrite(target, value, what, keep)


def _beside(target: Tensor, value: Any) -> tuple[Any, Array]:
    """Return a value, moved to the device of a target if needed, and its array."""
    array = as_array(unwrap(value))
    if device_of(array) != target.device:
        value = on_device_of(value if type(value) is Tensor else array, target)
        array = as_array(unwrap(value))
    return value, array


def _check_fit(array: np.ndarray, target: np.ndarray, what: str) -> None:
    """Raise if an array cannot be written to a target array."""
    if array.shape != target.shape:
        shape = np.broadcast_shapes(array.shape, target.shape)
        if shape != target.shape:
            raise RuntimeError(
                f"{what}: output with shape {list(target.shape)} doesn't match the broadcast shape "
                f"{list(shape)}"
            )
    if array.dtype != target.dtype and not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise RuntimeError(
            f"{what}: result type {array.dtype} can't be cast to the desired output type "
            f"{target.dtype}"
        )


def _read_only(array: Array, what: str) -> str:
    """Return the text of the error for a write to an array that is read-only."""
    pairs = zip(array.strides, array.shape, strict=True)
    if any(step == 0 and size > 1 for step, size in pairs):
        why = "several of its elements are at one place in memory, as in a broadcast array"
    else:
        why = "the array that it was made of is"
    return f"{what}: assignment destination is read-only: {why}; write to a clone()"


def _overwrite(target: Tensor, value: Any, what: str, keep: bool) -> Tensor:
    """Do what `write` does, without `check_writable`."""
    value = operand(value)
    _adopt_origin(target, value)
    value, array = _beside(target, value)
    if array.shape != target._a.shape or array.dtype != target._a.dtype:
        _check_fit(array, target._a, what)
    if not target._a.flags.writeable:  # NumPy does not check it if source and target are the same
        raise ValueError(_read_only(target._a, what))
    has_tangent = any_dual((target, value))
    if has_tangent:
        _check_tangent(target, value, what)
    own = owner_of(value)
    if own is not None and MODE.recording:
        if target.dtype not in DIFFERENTIABLE:
            raise RuntimeError(
                f"{what}: a tensor of dtype {target.dtype} cannot hold a value that requires grad"
            )
        if array.dtype != target.dtype:
            value = apply_op(astype, (value, target.dtype), {})
        if array.shape != target.shape:
            value = apply_op(broadcast_to, (value, target.shape), {})
        own = value._own
    if keep and MODE.recording and (target._own is not None or own is not None):
        kept = array if own is None else wrap(unwrap(value), own)
        bound = {"x": wrap(target._a, target._own), "value": kept, "index": ...}
        own = record_unrun(indexing.put, target._a, bound)  # the old value gets a zero gradient
    changes = histories_after(target, own)
    if not has_tangent:
        store(target, ..., array, what, changes)
        return target
    given = tangent_to_write(target), _tangent_or_zero(value), what, True
    store(target, ..., array, what, changes, lambda: MODE.with_dual(None, write, *given))
    return target


def _adopt_origin(target: Tensor, value: Any) -> None:
    """Note that a tensor made of numbers, such as zeros, is made of what is written to it."""
    meta = target._meta
    if meta is None:
        return
    base = target if meta.base is None else meta.base
    known = base._meta
    if known is not None and known.origin == OF_NUMBERS:
        origin = origin_of(value)
        if origin != OF_NUMBERS:
            base.ensure_meta().origin = origin


def _tangent_or_zero(value: Any) -> Any:
    found = tangent_of(value)
    return 0.0 if found is None else found


def _check_tangent(target: Tensor, value: Any, what: str) -> None:
    """Raise if the tangent of a value cannot be written."""
    if target.dtype not in DIFFERENTIABLE and is_dual(value):
        raise RuntimeError(
            f"{what}: a tensor of dtype {target.dtype} cannot hold a value that has a tangent"
        )
    tangent_to_write(target)


@probe("setitem_")
def assign_item(target: Tensor, index: Any, value: Any) -> None:
    """Perform ``target[index] = value``."""
    if MODE.special and holds_batched((target, index, value)):
        _assign_batched(target, index, operand(value))
        return
    if MODE.special and MODE.thread.trace is not None:
        traced_writes.assign_item(target, index, operand(value))
        return
    check_writable(target, "item assignment", value)
    index = unwrap_index(index)
    value = operand(value)
    _adopt_origin(target, value)
    value, array = _beside(target, value)
    if np.ndim(array) and not indexing.is_basic(index) and np.may_share_memory(array, target._a):
        array = array.copy()  # NumPy does not if the index is a mask
    has_tangent = any_dual((target, value))
    if has_tangent:
        _check_tangent(target, value, "item assignment")
    recorded = MODE.recording and (target._own is not None or owner_of(value) is not None)
    own = None
    if recorded:
        if target.dtype not in DIFFERENTIABLE:
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
    if not target._a.flags.writeable:
        raise ValueError(_read_only(target._a, "item assignment"))
    changes = histories_after(target, own) if recorded else []
    if not has_tangent:
        store(target, index, array, "put", changes)
        return
    given = tangent_to_write(target), index, _tangent_or_zero(value)
    store(target, index, array, "put", changes, lambda: MODE.with_dual(None, assign_item, *given))


def _assign_batched(target: Tensor, index: Any, value: Any) -> None:
    """Perform ``target[index] = value`` for the items of a batch."""
    held, level = batched_indices.target_of(target, [index, value], "item assignment")
    mask = batched_indices.mask_of(index, target)
    if mask is not None:
        if np.prod(np.shape(value)) != 1:  # it has an element for each that is chosen
            raise BatchError(
                "vmap: the number of elements that a mask chooses may differ between items, so "
                "t[mask] = value takes one number; use tapegrad.where for others"
            )
        write(target, piecewise.where.public(mask, value, target.clone()), "item assignment")
        return
    places = batched_indices.place_of(index, level)
    if places is None:
        places = shifted_index(unwrap_index(index))
        if place_of_batch(unwrap_index(index)):
            raise BatchError(
                "vmap: item assignment with index arrays that are not adjacent is not supported; "
                "assign with one array, or write tapegrad.where"
            )
    assign_item(held, places, batched_indices.value_for(target[index], value, level))


def add_at(target: Tensor, index: Any, value: Any) -> None:
    """``numpy.add.at(target, index, value)``: repeated indices add up."""
    is_traced = MODE.special and MODE.thread.trace is not None
    if is_traced and not holds_batched((target, index, value)):
        traced_writes.add_at(target, index, operand(value))
    else:
        apply_inplace(indexing.add_at, target, value, unwrap_index(index))


def unwrap_index(index: Any) -> Any:
    """Return an index with arrays and integers in place of tensors and sequences."""
    if type(index) is tuple:
        return tuple(map(_unwrap_part, index))
    return _unwrap_part(index)


def _unwrap_part(part: Any) -> Any:
    if type(part) is int or type(part) is slice:
        return part
    if isinstance(part, Tensor):
        return part.item() if selects(part) else part._a
    refuse_masked(part)
    if isinstance(part, (list, tuple, range)):
        found = np.array(part)
        return found if found.size else found.astype(np.intp)
    return part


@probe("getitem")
def read_item(source: Tensor, index: Any) -> Tensor:
    """Return ``source[index]``: a view for basic indices, a copy for arrays."""
    if MODE.special and MODE.thread.trace is not None and traced_calls.is_unknown(index):
        return traced_calls.read_item(source, index)
    if not isinstance(index, (int, slice)):
        if MODE.special and holds_batched((index,)):
            return batched_indices.read_item(source, index)
        index = unwrap_index(index)
        if not has_values(source):
            index = _with_integers(index)
    if indexing.is_basic(index):
        found = apply_view(getitem, source, {"index": index})
        if found.shape or traced_calls.ends_in_array(index):
            return as_array_without_axes(found)
        return item_of(found)
    return apply_opaque(indexing.gather, {"x": source, "index": index})


def item_of(view: Tensor) -> Tensor:
    """Return what ``x[k]`` is: a view, or a value where items are values."""
    if not has_values(view):
        return view
    if type(view) is traced.Traced:
        return view._trace.tensor(view._node)
    item = _copy_of(view)
    if type(item) is Tensor and item._meta is None:
        is_view = view._meta is not None and view._meta.base is not None
        item._meta = ITEM if is_view else meta_of_result(view)
    return item


def _with_integers(index: Any) -> Any:
    """Return an index with integers for arrays without axes, as PyTorch takes them."""
    if type(index) is tuple:
        return tuple(map(_with_integers, index))
    is_integer = is_array(index) and not index.shape and index.dtype.kind in "iu"
    return index.item() if is_integer else index


def _copy_of(target: Tensor) -> Tensor:
    """Return a copy of the values of a tensor, with its history."""
    if type(target) is not Tensor:
        return target.clone()
    return carry_tangent(target, wrap(target._a.copy(), target._own))


def apply_with_out(op: Op, args: tuple[Any, ...], out: Any, where: Any) -> Tensor:
    """Apply an op with NumPy's `out` and `where` arguments."""
    if type(out) is tuple:
        (out,) = out
    if out is None:
        raise TypeError(
            f"{op.name}: `where` without `out` leaves elements undefined; give `out`, or use "
            "tapegrad.where"
        )
    if not (isinstance(out, Tensor) or is_array(out)):
        raise TypeError(f"{op.name}: `out` is an array or a tensor, got {type(out).__name__}")
    if isinstance(out, Tensor) and any(arg is out for arg in args) and _is_recorded(*args):
        source = _copy_of(out)  # the op may save the old values
        args = tuple(source if arg is out else arg for arg in args)
    result = apply_op(op, args, {})
    if isinstance(out, np.ndarray):
        if result._is_tracked:
            raise TypeError(
                f"{op.name}: `out` is a NumPy array and cannot hold a gradient; give a Tensor, or "
                "detach() the inputs"
            )
        np.copyto(out, result._a, where=unwrap(where), casting="same_kind")
        return passive(out, out)
    if where is not True:
        result = apply_op(piecewise.where, (where, result, _copy_of(out)), {})
    if result.shape != out.shape:
        if not (isinstance(op, Broadcasting) and _fits(result.shape, out.shape)):
            raise ValueError(
                f"{op.name}: `out` has shape {list(out.shape)}, the result {list(result.shape)}"
            )
        result = apply_op(broadcast_to, (result, out.shape), {})
    return write(out, result, op.name)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether arrays of a shape broadcast to another one."""
    try:
        return np.broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        return False
