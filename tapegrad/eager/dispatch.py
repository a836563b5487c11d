"""Calling ops on tensors: unwrap, compute, record.

`apply_op` handles any op with any arguments. `tapegrad.eager.fast_path` handles the most common
calls faster and leaves exactly the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.array import HOST, NAME, Array, DeviceArray, as_array, kind_of
from tapegrad.eager import batched_calls, traced_calls
from tapegrad.eager.batched import Batched, holds_batched
from tapegrad.eager.duals import add_tangent, any_dual
from tapegrad.eager.frames import (
    TUPLE_AVAL,
    Active,
    OpFrame,
    needs_frame,
    note_origin,
    select,
    title,
)
from tapegrad.eager.modes import MODE
from tapegrad.eager.saved_values import check_savable
from tapegrad.eager.shared_memory import unshared
from tapegrad.eager.tensor import Meta, Tensor, meta_of_result, note_shared, wrap
from tapegrad.eager.traced import Traced, is_recording
from tapegrad.eager.values import as_array_without_axes, is_number
from tapegrad.kernels.pool import pooled_if_large
from tapegrad.kernels.structs import address_of
from tapegrad.ops.devices import moved
from tapegrad.ops.elementwise import positive
from tapegrad.ops.shape import astype, stack
from tapegrad.ops.table.array_kinds import ArrayOp
from tapegrad.ops.table.kinds import Elementwise, Reduction, SweptOp, View
from tapegrad.ops.table.op import Op, normalize_axes, refuse_iterator, refuse_masked
from tapegrad.tape.avals import AVALS, DIFFERENTIABLE, PARTS, check_differentiable
from tapegrad.tape.layout import KIND_CAST, KIND_VIEW, NUMBERS, OWN_AVAL, OWN_SLOT
from tapegrad.tape.owner import Owner
from tapegrad.tape.tape import TAPE

_BOOL = np.dtype(bool)
NUMBER_TYPES = frozenset([bool, int, float])


def unwrap(value: Any) -> Any:
    """Return the array of a tensor (or of tensors in a list), and anything else unchanged."""
    if isinstance(value, Tensor):
        return value._read() if type(value) is Tensor else value._a
    if type(value) in (list, tuple):
        return type(value)(unwrap(item) for item in value)
    refuse_masked(value)
    return value


def operand(value: Any) -> Any:
    """Return a value as an op takes it; nested lists with tracked tensors become one tensor.

    Masked arrays are refused.
    """
    kind = type(value)
    if kind is Tensor or kind is np.ndarray or kind is DeviceArray:
        return value
    if kind in (list, tuple) and holds_tracked(value):
        items = map(operand, value)
        return stack([item if isinstance(item, Tensor) else np.asarray(item) for item in items])
    refuse_masked(value)
    return value


def holds_tracked(value: Any) -> bool:
    """Whether a value is a tensor that derivatives pass through, or a list that contains one.

    Masked arrays are refused.
    """
    if type(value) in (list, tuple):
        return any(map(holds_tracked, value))
    refuse_masked(value)
    kind = type(value)
    return isinstance(value, Tensor) and (value._is_tracked or kind is Batched or kind is Traced)


def as_operand(value: Any) -> Any:
    """Return an operand of an op of arrays: lists and tuples become arrays."""
    found = operand(value)
    return np.asarray(found) if type(found) in (list, tuple) else found


def owner_of(value: Any) -> Owner | None:
    """Return the owner of a tensor's record, None for anything else."""
    return value._own if isinstance(value, Tensor) else None


def same_device(*values: Any) -> None:
    """Raise if tensors of the host are combined with tensors on a device; single numbers may be.

    Arrays of NumPy are constants, which are copied to the device.
    """
    for value in values:
        if type(value) in (list, tuple):
            same_device(*value)
        elif type(value) is Tensor and type(value._a) is np.ndarray and value._a.ndim:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{NAME} and {HOST}! Move a tensor with to('cuda') or cpu()"
            )


def passive(z: Array, *operands: Any) -> Tensor:
    """Return an unrecorded result, marked as an inference tensor in inference mode.

    It is made of the operands; without these, it is what the user has made.
    """
    result = wrap(z)
    if operands:
        result._meta = meta_of_result(*operands)
    if MODE.special and MODE.thread.inference:
        result.ensure_meta().inference = True
    return result


def _of_inference(values: Iterable[Any]) -> bool:
    """Whether some operands are inference tensors only: what is made of them is not recorded."""
    return all(isinstance(value, Tensor) and value.is_inference() for value in values)


def apply_op(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an op on tensors, arrays and numbers, and record it if an input requires grad."""
    bound = op.bind(args, kwargs)
    if isinstance(op, ArrayOp):
        return apply_opaque(op, bound)
    if isinstance(op, View):
        return apply_view(op, bound["x"], {name: bound[name] for name in op.parameters})
    values = [operand(bound[name]) for name in op.arguments]
    if MODE.special:
        if holds_batched(values):
            named = dict(zip(op.arguments, values, strict=True))
            return batched_calls.apply(op, {**bound, **named})
        if is_recording((*bound.values(), values)):
            return traced_calls.apply(op, {**bound, **dict(zip(op.arguments, values, strict=True))})
    parameters = {name: bound[name] for name in op.parameters}
    assert isinstance(op, SweptOp)
    arrays = [*map(unwrap, values)]
    z = as_array(_compute(op, op.forward, arrays, parameters))
    if type(z) is DeviceArray:
        same_device(*values)
    bound.update(zip(op.arguments, values, strict=True))
    is_recorded = any(map(owner_of, values)) and z.dtype.kind not in "biu" and MODE.recording
    if not is_recorded or (MODE.special and op is not positive and _of_inference(values)):
        result = passive(z, *values)
    else:
        check_differentiable(op.name, z.dtype)
        if needs_frame(op, z, values) or (op.saved and any_dual(values)):
            return _record_framed(Active(op, bound), bound, z)
        result = wrap(z, _record_swept(op, z, [_as_dtype(v, z.dtype) for v in values], parameters))
    if MODE.special and MODE.thread.dual is not None:
        add_tangent(op, bound, result)
    return result


def _compute(
    op: Op, function: Callable[..., Any], arrays: Sequence[Any], parameters: dict[str, Any]
) -> Any:
    """Call the function of an op; memory for its results comes from the pool if they are large."""
    if MODE.special and MODE.thread.observer is not None:
        return MODE.thread.observer(op, function, arrays, parameters)
    if AVALS.large:
        return pooled_if_large(function, *arrays, **parameters)
    return function(*arrays, **parameters)


def _record_framed(active: Active, bound: dict[str, Any], z: np.ndarray) -> Tensor:
    """Record an op with its Python rules, and return its result."""
    frame = OpFrame(active, bound, z)
    result = wrap(z, frame.append(AVALS.of(z)))
    if MODE.special and MODE.thread.dual is not None:
        add_tangent(active.op, bound, result)
        frame.keep_tangents((result,))
    return result


def apply_view(op: View, x: Any, parameters: dict[str, Any]) -> Tensor:
    """Return a view of a tensor (or array), recorded if the tensor requires gradients.

    A number, of which NumPy has no views, is copied.
    """
    if type(x) is not Tensor:
        x = operand(x)
    is_copied = isinstance(x, Tensor) and not x.shape and is_number(x)
    if is_copied and op.sweep_kind != KIND_CAST:  # a cast copies in any case
        x = x.clone()
    if type(x) is Batched:
        found = batched_calls.apply(op, {"x": x, **parameters})
        return found if is_copied else as_array_without_axes(found)
    if type(x) is Traced:
        return traced_calls.apply(op, {"x": x, **parameters})
    if MODE.special and is_recording((x, *parameters.values())):
        return traced_calls.apply(op, {"x": x, **parameters})
    if not isinstance(x, Tensor):
        return note_shared(passive(as_array(op.function(x, **parameters)), x))
    z = as_array(op.function(x._a, **parameters))
    result = Tensor()
    result._a = z
    result._meta = None
    parent = x._own
    if parent is None or (MODE.special and (x.is_inference() or not MODE.recording)):
        result._own = None
    elif op.sweep_kind == KIND_CAST and z.dtype not in DIFFERENTIABLE:
        if z.dtype.kind not in "biu":
            check_differentiable(op.name, z.dtype)
        result._own = None
    else:
        tail: tuple[Any, ...] = (parent, parameters)
        if op.sweep_kind == KIND_VIEW:
            tail = (parent, parameters, _layout(op, parent[OWN_AVAL], parameters))
        result._own = own = TAPE.append(op.code, AVALS.of(z), parent[OWN_SLOT], 0, tail)
        if MODE.special:
            note_origin(own)
    _note_view(result, x, op, parameters)
    if MODE.special and MODE.thread.dual is not None:
        if result._meta is None or result._meta.base is None:  # else it is the view of a tangent
            add_tangent(op, {"x": x, **parameters}, result)
    return result


def _append(op: Op, aval: int, x: int, y: int, tail: list[Any], flags: int) -> Owner:
    owner = TAPE.append(op.code | flags << 32, aval, x, y, tail)
    if MODE.special:
        note_origin(owner)
    return owner


# -- ops known to the sweep -----------------------------------------------------------------------


def _as_dtype(value: Any, dtype: np.dtype) -> Any:
    """Convert a recorded operand to the dtype of the result by a recorded cast."""
    if isinstance(value, Tensor) and value._own is not None and value._a.dtype != dtype:
        return apply_op(astype, (value, dtype), {})
    return value


def _record_swept(
    op: SweptOp, z: np.ndarray, values: list[Any], parameters: dict[str, Any]
) -> Owner:
    """Record an elementwise op or a reduction, with the saved values of the needed partials."""
    named = dict(zip(op.arguments, values, strict=True))
    owners = [owner_of(named[name]) for name in op.differentiable]
    needed = {
        name
        for argument, owner in zip(op.differentiable, owners, strict=True)
        if owner is not None
        for name in op.reads(argument)
    }
    saved: list[np.ndarray | None] = []
    kept = needed & {*op.saved}
    numbers = {name for name, value in named.items() if type(value) in NUMBER_TYPES}
    flags = NUMBERS if kept and kept <= numbers else 0
    for name in op.saved:
        if name not in needed:
            saved.append(None)
        elif name == "z":
            saved.append(z)
        elif name in op.extras:
            saved.append(op.extras[name](unwrap(values[0]), z, parameters["axis"]))
        else:
            if isinstance(named[name], Tensor):
                check_savable(named[name])
            given = array = as_array(unwrap(named[name]))
            if isinstance(op, Elementwise) and name in op.truths and array.dtype != np.bool_:
                array = array != 0
            if array.dtype == np.bool_ and array.ndim > 0:
                # compiled code identifies the dtype object, which unpickling does not preserve
                array = array if array.dtype is _BOOL else array.astype(_BOOL)
            elif array.dtype != z.dtype:
                array = array.astype(z.dtype)
            is_own = array is not given or owner_of(named[name]) is not None
            saved.append(array if is_own else unshared(named[name], array))
    slots = [0 if owner is None else owner[OWN_SLOT] for owner in owners]
    if isinstance(op, Reduction):
        slots.append(axes_mask(parameters["axis"], unwrap(values[0]).ndim))
    return _append(op, AVALS.of(z), slots[0], [*slots, 0][1], [*owners, *saved], flags)


def axes_mask(axis: Any, ndim: int) -> int:
    """Return the axes of a reduction as a bit mask."""
    return sum(1 << a for a in normalize_axes(axis, ndim))


# -- views ---------------------------------------------------------------------------------------


_layouts: dict[Any, np.ndarray] = {}
_LAYOUTS_KEPT = 4096


def _hashable(value: Any) -> Any:
    """Return a hashable key for the parameter of a view."""
    kind = type(value)
    if kind is slice:
        return (slice, value.start, value.stop, value.step)
    if kind is tuple or kind is list:
        return tuple(map(_hashable, value))
    return tuple(value.tolist()) if kind is np.ndarray else value


def _layout(op: View, aval: int, parameters: dict[str, Any]) -> np.ndarray:
    """Return the offset and strides, in elements, of a view of a contiguous array with an aval."""
    key = (op.code, aval, *map(_hashable, parameters.values()))
    found = _layouts.get(key)
    if found is None:
        shape, dtype = AVALS.shapes[aval], AVALS.dtypes[aval]
        part = PARTS.get(dtype, dtype)
        strides = [dtype.itemsize] * len(shape)
        for k in range(len(shape) - 2, -1, -1):
            strides[k] = strides[k + 1] * max(shape[k + 1], 1)
        stand_in = np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, strides)
        shown = op.function(stand_in, **parameters)
        offset = address_of(shown) - address_of(stand_in)
        inner = (part.itemsize,) if shown.dtype.kind == "c" else ()  # axis of the two parts
        found = np.array([offset, *shown.strides, *inner], np.int64) // part.itemsize
        if len(_layouts) >= _LAYOUTS_KEPT:
            _layouts.clear()
        _layouts[key] = found
    return found


def _note_view(result: Tensor, source: Tensor, op: View, parameters: dict[str, Any]) -> None:
    """Note that a tensor is a view of another one if they share memory."""
    shown, base_array = result._a.base, source._a
    if shown is None or (shown is not base_array and shown is not base_array.base):
        if result._own is None and source._meta is not None:
            result._meta = meta_of_result(source)
        if MODE.special and MODE.thread.inference:
            result.ensure_meta().inference = True
        return
    known = source._meta
    if known is None or known.base is None:
        base, steps = source, ((op, parameters),)
    else:
        base, steps = known.base, (*known.steps, (op, parameters))
    meta = result._meta = Meta()
    meta.base = base
    meta.steps = steps
    if MODE.special and not MODE.recording:
        meta.unrecorded_view = "inference" if MODE.thread.inference else "no_grad"
    if known is not None:  # a view of a view inherits its restrictions
        meta.inference = known.inference
        if known.tangent is not None:
            meta.tangent = known.tangent
            meta.tangent_steps = (*known.tangent_steps, (op, parameters))
        if known.one_of_several:
            meta.one_of_several = title(op.name), 0
        if known.unrecorded_view and not meta.unrecorded_view:
            meta.unrecorded_view, meta.unrecorded_source = known.unrecorded_view, title(op.name)
        meta.function_view = known.function_view and title(op.name)
    base.ensure_meta().add_view(result)


# -- ops with Python rules ------------------------------------------------------------------------


def apply_opaque(op: ArrayOp, bound: dict[str, Any]) -> Any:
    """Compute an op that has Python rules, given all its arguments by name, and record it."""
    if op.of_list and isinstance(bound[op.arguments[0]], (Tensor, np.ndarray)):
        bound[op.arguments[0]] = [*bound[op.arguments[0]]]  # its rows
    for name in op.arguments:
        value = bound[name]
        if type(value) is not Tensor:
            several = op.of_list and type(value) in (list, tuple)
            if op.of_list and not several:
                refuse_iterator(value, op.name)
            bound[name] = [*map(as_operand, value)] if several else as_operand(value)
    if MODE.special and MODE.thread.levels and holds_batched(bound.values()):
        return batched_calls.apply(op, bound)
    if MODE.special and is_recording(bound.values()):
        return traced_calls.apply(op, bound)
    active = Active(op, bound)
    parameters = {name: bound[name] for name in op.parameters} if op.parameters else {}
    out = _compute(op, op.function, active.arrays, parameters)
    record = bool(active.mask) and (
        not MODE.special
        or (MODE.recording and not _of_inference(bound[name] for name in op.arguments))
    )
    if isinstance(out, tuple):
        return _apply_several(active, bound, out, record)
    z = as_array(out)
    if type(z) is DeviceArray and op is not moved:
        same_device(*(bound[name] for name in op.arguments))
    if z.base is not None:  # possibly a view, which would not be tracked
        z = z.copy("K")
    if not record or z.dtype.kind in "biu":
        result = passive(z, *bound.values())
        if MODE.special and MODE.thread.dual is not None:
            add_tangent(op, bound, result)
        return result
    check_differentiable(op.name, z.dtype)
    return _record_framed(active, bound, z)


def _apply_several(
    active: Active, bound: dict[str, Any], out: tuple[Any, ...], record: bool
) -> Any:
    """Record an op with several outputs, and each output as a selection from it."""
    results = tuple(as_array(z) for z in out)
    made = getattr(out, "_make", tuple)  # keeps named tuples
    is_dual = bool(MODE.special) and MODE.thread.dual is not None
    if not record:
        tensors = tuple(passive(z, *bound.values()) for z in results)
        if is_dual:
            add_tangent(active.op, bound, tensors)
        return made(tensors)
    for z in results:
        check_differentiable(active.op.name, z.dtype)
    frame = OpFrame(active, bound, results)
    frame.outputs = [*map(kind_of, results)]
    maker = frame.append(TUPLE_AVAL)
    tensors = tuple(wrap(z, select(maker, k)) for k, z in enumerate(results))
    if is_dual:
        add_tangent(active.op, bound, tensors)
        frame.keep_tangents(tensors)
    return made(tensors)
