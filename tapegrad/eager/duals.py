"""Tangents that ride on tensors: forward mode while a dual level is open.

A tensor may have a *tangent*, a tensor of the same shape. Each op gives its result the tangent that
follows from those of its arguments by the op's own rule (`Op.tangent`). A write in place writes the
tangent as well.

A tangent is kept in a `Tangent`, to which the tensor's `Meta` refers. Views share memory, and so
do their tangents: only the base has a `Tangent`, and the tangent of a view is the view of it.
`make_dual` returns a view that does not share the tangent of its base; its own views do.

Tangents have no tangents: they are computed on arrays, or while the level is switched off.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from tapegrad.cuda.array import as_array, kind_of, zeros
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Meta, Tensor, wrap
from tapegrad.ops.indexing import show
from tapegrad.ops.table.kinds import COMPILED_FROM, Elementwise, SweptOp
from tapegrad.ops.table.op import TABLE, Op, Out, call_rule, shape_of
from tapegrad.probes import probe
from tapegrad.tape.avals import FLOAT32, FLOAT64, check_differentiable


class DualLevel:
    """An open level of forward mode."""

    __slots__ = ("is_open", "tangents")

    def __init__(self) -> None:
        self.is_open = True
        self.tangents: weakref.WeakSet[Tangent] = weakref.WeakSet()

    def close(self) -> None:
        """Drop all tangents; records that refer to those of their outputs are in cycles with them.

        A saved output has the tangent, and the record of the tangent has the output.
        """
        self.is_open = False
        for tangent in self.tangents:
            tangent.value = None


class Tangent:
    """The tangent of a tensor and of its views, at one level; `value` is None if it is zero.

    A write copies the value first unless its memory is this tangent's own.
    """

    __slots__ = ("__weakref__", "is_own", "level", "value")

    def __init__(self, level: DualLevel, value: Tensor | None, is_own: bool) -> None:
        self.level = level
        self.value = value
        self.is_own = is_own
        level.tangents.add(self)


class SpoiledTangent(Tangent):
    """A tangent after a write that was interrupted: it and the value may not belong together."""

    __slots__ = ()

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            "an in-place operation on a tensor that has a tangent was interrupted, so that value "
            "and tangent may not belong together: compute them again, or detach() the value"
        )

    value = property(_refuse, lambda self, value: None)


def is_dual(value: Any) -> bool:
    """Whether a value is a tensor with a tangent, or a list or tuple that contains one."""
    if isinstance(value, Tensor):
        return value._meta is not None and _found(value) is not None
    return type(value) in (list, tuple) and any(map(is_dual, value))


def any_dual(values: Iterable[Any]) -> bool:
    """Whether a level is open, and some values have tangents (lists and tuples are searched)."""
    return bool(MODE.special) and MODE.thread.dual is not None and any(map(is_dual, values))


def tangent_of(value: Any) -> Tensor | None:
    """Return the tangent of a tensor at the open level, None if it has none."""
    if not isinstance(value, Tensor) or value._meta is None:
        return None
    found = _found(value)
    return None if found is None else _shown(*found)


def share_tangents(values: Iterable[Any]) -> None:
    """Note that the memory of the tangents of some tensors is used by others, too."""
    for value in values:
        if isinstance(value, Tensor) and (found := _found(value)) is not None:
            found[0].is_own = False


def set_tangent(tensor: Tensor, value: Tensor | None) -> None:
    """Give a tensor a tangent that it does not share with its base."""
    meta = tensor.ensure_meta()
    meta.tangent = Tangent(MODE.thread.dual, value, False)
    meta.tangent_steps = ()


def carry_tangent(source: Tensor, target: Tensor) -> Tensor:
    """Give a target with the same value the tangent of a source; return the target."""
    if MODE.special and MODE.thread.dual is not None and (found := _found(source)) is not None:
        found[0].is_own = False
        set_tangent(target, _shown(*found))
    return target


def without_history(tensor: Tensor) -> Tensor:
    """Return a tensor detached from its history, with its tangent, detached as well."""
    found = tensor.detach()
    if MODE.special and (tangent := tangent_of(tensor)) is not None:
        share_tangents([tensor])
        set_tangent(found, tangent.detach())
    return found


def tangent_to_write(target: Tensor) -> Tensor:
    """Return the tangent of a tensor for a write in place, zeros if it had none."""
    root, tangent, steps = _tangent_for_writes(target)
    if tangent.value is None:
        if steps and root is target:  # its shape is not known here
            raise RuntimeError(
                "a tensor with a tangent is written to a view of the primal part of a dual "
                "tensor; write to a clone() of the primal part"
            )
        tangent.value, tangent.is_own = wrap(zeros(*kind_of(root._a))), True
    elif not tangent.is_own:
        tangent.value, tangent.is_own = MODE.with_dual(None, tangent.value.clone), True
    return _shown(tangent, steps)


def spoil_tangent(target: Tensor) -> None:
    """Refuse the tangent of a tensor after a write that was interrupted."""
    _, tangent, _ = _tangent_for_writes(target)
    tangent.__class__ = SpoiledTangent


def _tangent_for_writes(target: Tensor) -> tuple[Tensor, Tangent, tuple[Any, ...]]:
    """Return the tangent that writes to a tensor change, whose it is, and the steps from it."""
    level = MODE.thread.dual
    meta = target.ensure_meta()
    root, tangent, steps = target, meta.tangent, meta.tangent_steps
    if tangent is None or tangent.level is not level:
        if meta.base is not None:
            root, steps = meta.base, meta.steps
        tangent = root.ensure_meta().tangent
        if tangent is None or tangent.level is not level:
            set_tangent(root, None)
            tangent = root.ensure_meta().tangent
    return root, tangent, steps


def apply_to_duals(op: Elementwise, args: tuple[Any, ...]) -> Tensor | None:
    """Compute an elementwise op on tensors with tangents, none of which is recorded.

    This is the fast path of forward mode. Anything unusual is left to `add_tangent`: the result is
    None.
    """
    level = MODE.thread.dual
    arrays: list[Any] = []
    given: dict[str, np.ndarray] = {}
    cells: list[Tangent] = []
    for name, x in zip(op.arguments, args, strict=True):
        kind = type(x)
        if kind is Tensor:
            meta = x._meta
            if x._own is not None:
                return None
            if meta is not None:
                cell = meta.tangent
                if cell is None or cell.level is not level:
                    if meta.base is not None:  # which may have a tangent
                        return None
                elif cell.value is not None:
                    if meta.tangent_steps or cell.value._own is not None:
                        return None
                    if name not in op.rules:
                        return None
                    given[name] = cell.value._a
                    cells.append(cell)
            arrays.append(x._a)
        elif kind is float or kind is int or kind is np.ndarray:
            arrays.append(x)
        else:
            return None
    z = op.forward(*arrays)
    z = as_array(z)
    dtype = z.dtype
    result = wrap(z)
    if not given or (dtype is not FLOAT64 and dtype is not FLOAT32):
        return None if given else result
    values = dict(zip(op.arguments, arrays, strict=True))
    values["z"] = z
    with np.errstate(all="ignore"):  # as in the sweep
        found = None
        for name, t in given.items():
            if t.dtype is not dtype:
                return None
            if op.chooses or t.size >= COMPILED_FROM:
                term = op._term(name, t, values, (z.shape, dtype))
            else:
                partial = call_rule(op.rules[name], values)
                is_one = type(partial) is float and partial == 1.0
                term = t if is_one else np.multiply(t, partial)
            found = term if found is None else np.add(found, term)
    found = as_array(found)
    if found.dtype is not dtype or found.shape != z.shape:
        return None
    is_own = found.base is None and all(found is not t for t in given.values())
    if not is_own:
        for cell in cells:
            cell.is_own = False
    meta = result._meta = Meta()
    meta.tangent = Tangent(level, wrap(found), is_own)
    return result


@probe(lambda args: f"{args[0].name} (tangent)", "tangent")
def add_tangent(op: Op, bound: dict[str, Any], result: Any) -> None:
    """Give the result of an op the tangent that follows from those of its arguments.

    Parameters
    ----------
    op
        The op.
    bound
        Its arguments and parameters by name.
    result
        A tensor, or a tuple of tensors.
    """
    given: dict[str, Any] = {}  # tangents and steps from them, or lists of those
    mask = 0
    for bit, name in enumerate(op.arguments):
        if name in op.rules:
            found = _all_found(bound[name])
            if found is not None:
                given[name] = found
                mask |= 1 << bit
    several = type(result) is tuple
    results = result if several else (result,)
    if not given or results[0].dtype.kind in "biu":
        return
    check_differentiable(op.name, results[0].dtype)
    tangents: dict[str, Any] = {
        name: [f and _shown(*f) for f in found] if type(found) is list else _shown(*found)
        for name, found in given.items()
    }
    values = _values(op, bound, result, mask)
    out = (results[0].shape, results[0].dtype)
    if MODE.recording and _has_history([*tangents.values(), *values.values()]):
        made = MODE.with_dual(None, _tangent, op, tangents, values, out)
    else:
        arrays = {name: arrays_of(t) for name, t in tangents.items()}
        made = _tangent(op, arrays, {name: arrays_of(value) for name, value in values.items()}, out)
    sources = [f for item in given.values() for f in (item if type(item) is list else [item]) if f]
    for z, t in zip(results, made if several else (made,), strict=True):
        found = _fitted(t, z)
        # a rule may return a tangent that it was given, or a view of it
        is_own = found._a.base is None and all(found._a is not s.value._a for s, _ in sources)
        if not is_own:
            for source, _ in sources:
                source.is_own = False
        z.ensure_meta().tangent = Tangent(MODE.thread.dual, found, is_own)


def _tangent(op: Op, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
    with np.errstate(all="ignore"):  # as in the sweep
        return op.tangent(tangents, values, out)


def _values(op: Op, bound: dict[str, Any], result: Any, mask: int) -> dict[str, Any]:
    """Return the values that the tangent rules of some arguments read, by name."""
    names, shapes, _ = op.plan(mask)
    values: dict[str, Any] = {name: arrays_of(bound[name]) for name in op.parameters}
    for name in names:
        if name == "z":
            values[name] = result
        elif name in bound:
            values.setdefault(name, bound[name])
        else:
            assert isinstance(op, SweptOp)
            x = arrays_of(bound["x"])
            values[name] = op.extras[name](x, arrays_of(result), bound["axis"])
    for name in shapes:
        value = bound[name.removesuffix("_shape")]
        is_list = type(value) in (list, tuple)
        values[name] = [*map(shape_of, value)] if is_list else shape_of(value)
    return values


def _fitted(t: Any, z: Tensor) -> Tensor:
    """Return a tangent with the shape and dtype of its tensor."""
    if not isinstance(t, Tensor):
        t = wrap(as_array(t))
    if t.dtype.kind == "c" and z.dtype.kind != "c":
        t = TABLE["real"](t)
    if t.dtype != z.dtype:
        t = TABLE["astype"](t, z.dtype)
    if t.shape != z.shape:
        t = TABLE["broadcast_to"](t, z.shape)
    return t


def saved_tangent(value: Tensor) -> Tangent | None:
    """Return the tangent of a tensor that a record saves, with its present history."""
    if not MODE.special or (found := _found(value)) is None:
        return None
    shown = _shown(*found)
    return Tangent(found[0].level, wrap(shown._a, shown._own), False)


def saved_tangent_of_output(z: Tensor) -> Tangent | None:
    """Return the tangent of an output that its record saves."""
    return None if z._meta is None else z._meta.tangent


def with_saved_tangent(value: Tensor, tangent: Tangent | None) -> Tensor:
    """Give a restored tensor the tangent that it had when it was saved; return the tensor."""
    if tangent is not None:
        value.ensure_meta().tangent = tangent
    return value


def _found(value: Tensor) -> tuple[Tangent, tuple[Any, ...]] | None:
    """Return the tangent that a tensor or its base has at the open level, and the steps from it."""
    meta, level = value._meta, MODE.thread.dual
    if meta is None or level is None:
        return None
    tangent, steps = meta.tangent, meta.tangent_steps
    if tangent is None or tangent.level is not level:
        base = meta.base
        if base is None or base._meta is None:
            return None
        tangent, steps = base._meta.tangent, meta.steps
    if tangent is None or tangent.level is not level or tangent.value is None:
        return None
    return tangent, steps


def _all_found(value: Any) -> Any:
    """Return the tangent of a tensor with the steps from it, a list of those for a list."""
    if type(value) in (list, tuple):
        items = [_found(item) if isinstance(item, Tensor) else None for item in value]
        return items if any(items) else None
    return _found(value) if isinstance(value, Tensor) else None


def _shown(tangent: Tangent, steps: tuple[Any, ...]) -> Tensor:
    """Return the part of a tangent that belongs to a view."""
    assert tangent.value is not None
    if not steps:
        return tangent.value
    return MODE.with_dual(None, show, tangent.value, steps)


Tensor._is_dual = is_dual


def _has_history(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, Tensor):
            if value._own is not None:
                return True
        elif type(value) in (list, tuple) and _has_history(value):
            return True
    return False


def arrays_of(value: Any) -> Any:
    """Return the array of a tensor, also inside of lists, and anything else unchanged."""
    if isinstance(value, Tensor):
        return value._a
    return type(value)(map(arrays_of, value)) if type(value) in (list, tuple) else value
