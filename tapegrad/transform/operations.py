"""Which rule an operation has: expressions over atoms to rules (`tapegrad.transform.rules`)."""

from __future__ import annotations

import ast
import builtins
import math
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.ops.op import TABLE
from tapegrad.transform.ir import names_in
from tapegrad.transform.partials import BINARY, UNARY, elementary
from tapegrad.transform.rules import (
    Alloc,
    Atoms,
    Elementary,
    Gather,
    Linear,
    Literal,
    Load,
    Passive,
    Rearrangement,
    Rule,
    Step,
    Unknown,
    View,
    real_names,
)

_REARRANGING = {
    "append", "column_stack", "concatenate", "delete", "dstack", "flip", "fliplr", "flipud",
    "hstack", "repeat", "roll", "rot90", "stack", "tril", "triu", "vstack",
}  # fmt: skip
_VIEW_ATTRIBUTES = ("T",)
_SHAPE_ATTRIBUTES = ("shape", "size", "ndim", "itemsize", "nbytes", "strides", "dtype")
_VIEW_CALLS = ("transpose", "reshape", "expand_dims")
CONTAINED = "which lists, sets and dicts hold without derivative (arrays and tuples have one)"
_CONTAINERS = (types.List, types.ListType, types.Set, types.DictType)
_PURE = {
    len, type, range, int, float, bool, abs, min, max, round, pow, np.int64, np.int32, np.intp,
    np.uint64, np.float64, np.float32, np.bool_, np.shape, np.isnan, np.isinf, np.isfinite,
    math.isnan, math.isinf, math.isfinite, np.argmin, np.argmax, np.searchsorted, np.any, np.all,
    math.floor, math.ceil, math.trunc, np.logical_and, np.logical_or, np.logical_not, np.arange,
    np.size,
}  # fmt: skip
_ALLOC = ("empty", "zeros", "ones")
_ALLOC_LIKE = ("empty_like", "zeros_like", "ones_like")
_STEPS = (round, np.round, math.floor, math.ceil, math.trunc, int)
# methods that change an array in place in a way that is not understood
_CHANGING = ("sort", "partition", "fill", "resize", "put", "itemset", "byteswap")


def find(lowering: Any, expr: ast.expr, kind: Any) -> Rule:
    """Return the rule of an expression over atoms, whose value has the given type."""
    from tapegrad.transform.calls import Call

    found = _find(lowering, expr, kind)
    held = [n for n in names_in(expr) if isinstance(lowering.types.get(n), _CONTAINERS)]
    if held and isinstance(found, Call):
        return Unknown(found.inputs(), f"a call that is given {held[0]!r}, a list, set or dict")
    if held and isinstance(found, Passive):
        found = Passive(False)  # what it holds may have changed when the reverse pass comes
    if type(found) is Passive and not _is_plain(kind):
        # nothing is known of it, and it may hold what reals went into
        inputs = real_names([expr], lowering)
        if inputs:
            what = CONTAINED if isinstance(kind, _CONTAINERS) else f"of type {kind}"
            return Unknown(inputs, f"{ast.unparse(expr)}, {what}")
    return found


def _is_plain(kind: Any) -> bool:
    """Whether a value of a type holds nothing that depends on reals smoothly."""
    if isinstance(kind, types.BaseTuple):
        return all(map(_is_plain, kind))
    if isinstance(kind, types.Array):
        return isinstance(kind.dtype, types.Boolean)
    plain = (
        types.Integer,
        types.Boolean,
        types.NoneType,
        types.UnicodeType,
        types.RangeType,
        types.DType,
        types.NumberClass,
    )
    return kind is None or isinstance(kind, plain)


def _find(lowering: Any, expr: ast.expr, kind: Any) -> Rule:
    from tapegrad.transform.lower import holds_real, is_array, is_real

    real = kind is not None and is_real(kind)
    whole = is_array(kind)
    if isinstance(expr, ast.BinOp):
        return _binary(lowering, expr, real, whole)
    if isinstance(expr, ast.UnaryOp):
        op = UNARY.get(type(expr.op))
        if real and op:
            return Elementary(TABLE[op], [expr.operand], whole, lowering)
        return Passive(True)
    if isinstance(expr, ast.Compare):
        return Passive(True)
    if isinstance(expr, ast.Subscript):
        return _subscript(lowering, expr, kind)
    if isinstance(expr, ast.Attribute):
        base = expr.value
        base_kind = lowering.type_of(base)
        if is_array(base_kind):
            if expr.attr in _VIEW_ATTRIBUTES:
                return View(base.id) if is_real(base_kind) else Passive(True)
            if expr.attr in _SHAPE_ATTRIBUTES:
                return Passive(True)
            if expr.attr == "real" and is_real(base_kind):
                return View(base.id)
        inputs = real_names([base], lowering)
        return Unknown(inputs, f"the attribute {expr.attr!r}") if inputs else Passive(True)
    if isinstance(expr, ast.Name):
        return View(expr.id) if whole and real else Linear(expr, False, lowering)
    if isinstance(expr, ast.Call):
        return _call_rule(lowering, expr, kind)
    if isinstance(expr, ast.Tuple) and not (kind is not None and holds_real(kind)):
        return Passive(True)
    return Passive(True)


def _binary(lowering: Any, expr: ast.BinOp, real: bool, whole: bool) -> Rule:
    from tapegrad.transform import arrays

    if isinstance(expr.op, ast.MatMult):
        return arrays.product(lowering, expr.left, expr.right)
    op = BINARY.get(type(expr.op))
    if real and op:
        return Elementary(TABLE[op], [expr.left, expr.right], whole, lowering)
    return Passive(True)


def _subscript(lowering: Any, expr: ast.Subscript, kind: Any) -> Rule:
    from tapegrad.transform.lower import is_array, is_real

    base_kind = lowering.type_of(expr.value)
    if not is_array(base_kind) or not is_real(base_kind):
        return Passive(True)
    assert isinstance(expr.value, ast.Name)
    parts = expr.slice.elts if isinstance(expr.slice, ast.Tuple) else [expr.slice]
    if any(is_array(lowering.type_of(p)) for p in parts if isinstance(p, ast.Name)):
        return Gather(expr.value.id, expr.slice)
    if is_array(kind):
        return View(expr.value.id)
    return Load(expr.value.id, expr.slice)


def _call_rule(lowering: Any, expr: ast.Call, kind: Any) -> Rule:
    from tapegrad.transform import arrays, calls, runtime
    from tapegrad.transform.lower import is_array, is_real

    real = kind is not None and is_real(kind)
    whole = is_array(kind)
    if isinstance(expr.func, ast.Attribute):
        base = expr.func.value
        return _method(lowering, expr, base, expr.func.attr, kind)
    assert isinstance(expr.func, ast.Name)
    callee = lowering.statics.get(expr.func.id)
    if callee is None:
        callee = calls.function_of(lowering.type_of(expr.func))
    found = calls.find(lowering, callee, expr, kind)
    if found is not None:
        return found
    if callee in (runtime.to_bits, runtime.from_bits, runtime.give_tape, runtime.system_answer):
        return Passive(False)
    if callee is print:
        return Passive(False)
    if callee is runtime.take_tape:
        return Alloc([])
    arguments = expr.args
    inputs = real_names([*arguments, *(k.value for k in expr.keywords)], lowering)
    op = getattr(callee, "tapegrad_op", None) or _hashed(elementary(), callee)
    if callee in (builtins.min, builtins.max):
        op = TABLE["minimum" if callee is min else "maximum"]
        if len(arguments) == 1:
            op = None
    if op is not None and real and not expr.keywords and len(arguments) == len(op.arguments):
        return Elementary(op, list(arguments), whole, lowering)
    if _is_among(_STEPS, callee):
        return Step(whole) if real else Passive(True)
    if (
        isinstance(callee, type)
        and issubclass(callee, (float, np.floating))
        and len(arguments) == 1
    ):
        return Linear(arguments[0], whole, lowering)
    if isinstance(callee, types.Float) and real:
        return Linear(arguments[0], whole, lowering)
    if isinstance(lowering.type_of(expr.func), types.NumberClass) and real:
        return Linear(arguments[0], whole, lowering)
    if callee is type:
        return Passive(True)
    module = getattr(callee, "__module__", None) or ""
    text = getattr(callee, "__name__", "")
    if module.startswith("numpy"):
        return _numpy(lowering, expr, callee, text, kind, list(arguments))
    if not real and not whole and _is_among(_PURE, callee):
        return Passive(True)
    if inputs:
        found = arrays.find(lowering, text, list(arguments), expr.keywords, kind)
        if found is not None and module in ("", "builtins", "numpy"):
            return found
        return Unknown(inputs, f"the call of {expr.func.id}")
    return Passive(_is_among(_PURE, callee) or module == "math")


def _is_among(functions: Any, callee: Any) -> bool:
    """Whether a callee, which need not be hashable, is one of some functions."""
    return any(function is callee for function in functions)


def _hashed(table: dict[Any, Any], key: Any) -> Any:
    try:
        return table.get(key)
    except TypeError:
        return None


def _numpy(
    lowering: Any, expr: ast.Call, callee: Any, text: str, kind: Any, arguments: Atoms
) -> Rule:
    """Return the rule of a NumPy function."""
    from tapegrad.transform import arrays
    from tapegrad.transform.lower import is_array, is_real

    real = kind is not None and is_real(kind)
    keywords = {k.arg: k.value for k in expr.keywords}
    inputs = real_names([*arguments, *keywords.values()], lowering)
    if text in _ALLOC:
        shape = arguments or [keywords["shape"]]
        return Alloc(shape) if real else Passive(True)
    if text in _ALLOC_LIKE:
        like = arguments[0]
        if not real:
            return Passive(True)
        own_dtype = len(arguments) > 1 or keywords
        return Alloc([], None if own_dtype else like.id)
    literal = (ast.List, ast.Tuple)
    if text in ("array", "asarray") and real and arguments and isinstance(arguments[0], literal):
        return Literal(_items(arguments[0], ()), lowering)
    if text in ("copy", "array", "asarray", "ascontiguousarray") and real and is_array(kind):
        if isinstance(arguments[0], ast.Name) and is_array(lowering.type_of(arguments[0])):
            same = text == "asarray" or (
                text == "ascontiguousarray" and lowering.type_of(arguments[0]).layout == "C"
            )
            return View(arguments[0].id) if same else Linear(arguments[0], True, lowering)
    if text in _VIEW_CALLS and real and isinstance(arguments[0], ast.Name):
        if text == "transpose" or _keeps_view(lowering, arguments[0]):
            return View(arguments[0].id)
        lowering_error = f"np.{text} of an array that is not contiguous; make a copy first"
        raise lowering.refuse(f"cannot differentiate {lowering_error}")
    if not real:
        if not holds_reals(kind):
            pure = "random" not in (getattr(callee, "__module__", "") or "")
            return Passive(pure)
        return Unknown(inputs, f"np.{text}")
    if text in _REARRANGING and is_array(kind):
        return Rearrangement(expr, lowering)
    found = arrays.find(lowering, text, arguments, expr.keywords, kind)
    if found is not None:
        return found
    if not inputs:
        return Passive("random" not in (callee.__module__ or ""))
    return Unknown(inputs, f"np.{text}")


def holds_reals(kind: Any) -> bool:
    """Whether a type holds floats (None: it does not)."""
    from tapegrad.transform.lower import holds_real

    return kind is not None and holds_real(kind)


def _keeps_view(lowering: Any, atom: ast.Name) -> bool:
    return lowering.type_of(atom).layout == "C"


def _items(
    node: ast.List | ast.Tuple, position: tuple[int, ...]
) -> list[tuple[tuple[int, ...], ast.expr]]:
    found: list[tuple[tuple[int, ...], ast.expr]] = []
    for k, item in enumerate(node.elts):
        place = (*position, k)
        deeper = isinstance(item, (ast.List, ast.Tuple))
        found += _items(item, place) if deeper else [(place, item)]
    return found


def _method(lowering: Any, expr: ast.Call, base: ast.expr, text: str, kind: Any) -> Rule:
    """Return the rule of a method of an array (or number)."""
    from tapegrad.transform import arrays
    from tapegrad.transform.lower import is_array, is_real

    base_kind = lowering.type_of(base)
    real = kind is not None and is_real(kind)
    arguments = [base, *expr.args]
    inputs = real_names([*arguments, *(k.value for k in expr.keywords)], lowering)
    if isinstance(base_kind, types.DType) and text == "type" and real:
        return Linear(expr.args[0], False, lowering)
    if not is_array(base_kind):
        return Unknown(inputs, f"the method {text!r}") if inputs else Passive(False)
    if text in _CHANGING and is_real(base_kind):
        return Unknown(inputs, f"the method {text!r}, which changes the array")
    if not real:
        return Passive(text not in _CHANGING)
    assert isinstance(base, ast.Name)
    if text in ("copy", "flatten", "astype"):
        return _flattened(lowering, base, text)
    if text == "ravel":
        if _keeps_view(lowering, base):
            return View(base.id)
        return _flattened(lowering, base, "flatten")
    if text == "view":
        return Unknown(inputs, "a view of another dtype")
    if text in _VIEW_CALLS:
        if text == "transpose" or _keeps_view(lowering, base):
            return View(base.id)
        raise lowering.refuse(
            f"cannot differentiate .{text} of an array that is not contiguous; make a copy first"
        )
    if text == "item":
        return Load(base.id, ast.Constant(0))
    if text == "dot":
        return arrays.product(lowering, base, expr.args[0])
    found = arrays.find(lowering, text, arguments, expr.keywords, kind)
    return found if found is not None else Unknown(inputs, f"the method {text!r}")


def _flattened(lowering: Any, base: ast.Name, text: str) -> Rule:
    from tapegrad.transform import arrays

    if text == "flatten" and lowering.type_of(base).ndim > 1:
        return arrays.flatten(lowering, base)
    return Linear(base, True, lowering)
