"""The rules of operations: from expressions over atoms to `tapegrad.transform.rules`."""

from __future__ import annotations

import ast
import builtins
import math
import random
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.ops.table.op import TABLE, Op
from tapegrad.transform import runtime
from tapegrad.transform.eager_calls import instead_of
from tapegrad.transform.facts import SHAPE_ATTRIBUTES
from tapegrad.transform.ir import names_in
from tapegrad.transform.kinds import holds_real, is_array, is_instance, is_real
from tapegrad.transform.lowering import callees, complex_numbers
from tapegrad.transform.lowering.lowerer import Lowerer
from tapegrad.transform.rules import arrays as arrays  # declares what calls mean
from tapegrad.transform.rules.array_specs import FUNCTIONS, Request
from tapegrad.transform.rules.base import (
    Alloc,
    Atoms,
    Elementary,
    Gather,
    Held,
    Linear,
    Load,
    Passive,
    Rule,
    Step,
    Unknown,
    View,
    Writing,
    real_names,
)
from tapegrad.transform.rules.calls import Call
from tapegrad.transform.rules.numpy_functions import linear_algebra
from tapegrad.transform.rules.numpy_functions.elementwise import to_decimals
from tapegrad.transform.rules.numpy_functions.makers import Fixed, Found
from tapegrad.transform.rules.numpy_functions.positions import PlacesType, places
from tapegrad.transform.rules.partials import BINARY, UNARY, op_of
from tapegrad.transform.rules.scalars import Scalar
from tapegrad.transform.syntax import PURE, items_of, text_of
from tapegrad.transform.tape_memory import buffer

_VIEW_ATTRIBUTES = ("T",)
CONTAINED = (
    "which lists, sets, dicts and records hold without derivative (arrays and tuples have one)"
)
_CONTAINERS = (types.List, types.ListType, types.Set, types.DictType)
_PURE = {
    *(getattr(builtins, text) for text in PURE), type, np.int64, np.int32, np.intp,
    np.uint64, np.float64, np.float32, np.bool_, np.shape, np.isnan, np.isinf, np.isfinite,
    math.isnan, math.isinf, math.isfinite, np.argmin, np.argmax, np.searchsorted, np.any, np.all,
    math.floor, math.ceil, math.trunc, np.logical_and, np.logical_or, np.logical_not, np.arange,
    np.size,
}  # fmt: skip
_STEPS = (round, np.round, math.floor, math.ceil, math.trunc, int)
# methods that change an array in place and have no rule
_CHANGING = ("sort", "partition", "fill", "resize", "put", "itemset", "byteswap", "setfield")


def find(lowering: Lowerer, expr: ast.expr, kind: Any) -> Rule:
    """Return the rule of an expression over atoms, whose value has the given type."""
    if complex_numbers.is_involved(lowering, expr, kind):
        found = complex_numbers.rule_of(lowering, expr, kind) or _find(lowering, expr, kind)
        found = complex_numbers.checked(lowering, expr, kind, found)
    else:
        found = _find(lowering, expr, kind)
    held = [n for n in names_in(expr) if isinstance(lowering.types.get(n), _CONTAINERS)]
    if held and isinstance(found, Call):
        what = f"a call that is given {held[0]!r}, a list, set or dict"
        return Unknown(found.inputs(), what, given=held)
    if held and isinstance(found, Passive):
        found = Passive(False)  # the container may have changed before the reverse pass
    if type(found) is Passive and isinstance(expr, ast.Call):
        if not found.cheap or isinstance(kind, types.NoneType):
            found.changed = [n for n in names_in(expr) if is_array(lowering.types.get(n))]
    if type(found) is Passive and not _is_plain(kind):
        # an unknown kind of value, which may hold something computed from reals
        inputs = real_names([expr], lowering)
        if inputs:
            what = f"what is put in here, {CONTAINED}"
            return Unknown(inputs, what if isinstance(kind, _CONTAINERS) else f"a {kind}")
    return found


def _is_plain(kind: Any) -> bool:
    """Whether values of a type cannot hold anything that depends smoothly on reals."""
    if isinstance(kind, types.BaseTuple):
        return all(map(_is_plain, kind))
    if isinstance(kind, types.Array):
        return isinstance(kind.dtype, (types.Boolean, types.Integer))
    plain = (
        types.Integer,
        types.Boolean,
        types.NoneType,
        types.UnicodeType,
        types.RangeType,
        types.DType,
        types.NumberClass,
        PlacesType,
    )
    return kind is None or isinstance(kind, plain)


def _find(lowering: Lowerer, expr: ast.expr, kind: Any) -> Rule:
    real = kind is not None and is_real(kind)
    whole = is_array(kind)
    match expr:
        case ast.BinOp():
            return _binary(lowering, expr, kind, real, whole)
        case ast.UnaryOp(sign, operand) if real and (op := UNARY.get(type(sign))):
            return Elementary(TABLE[op], [operand], whole, lowering)
        case ast.Subscript():
            return _subscript(lowering, expr, kind)
        case ast.Attribute(base, text):
            return _attribute(lowering, base, text, whole)
        case ast.Name(id=value):
            return View(value) if whole and real else Linear(expr, False, lowering)
        case ast.Call():
            return _call_rule(lowering, expr, kind)
    return Passive(True)


def _attribute(lowering: Lowerer, base: ast.expr, text: str, whole: bool) -> Rule:
    base_kind = lowering.type_of(base)
    if isinstance(base, ast.Name) and is_array(base_kind):
        if text in _VIEW_ATTRIBUTES:
            return View(base.id) if is_real(base_kind) else Passive(True)
        if text in SHAPE_ATTRIBUTES:
            return Passive(True)
        if text == "real" and is_real(base_kind):
            return View(base.id)
    elif isinstance(base_kind, types.Float) and text in ("real", "imag"):
        return Linear(base, False, lowering) if text == "real" else Step(False)
    if isinstance(base_kind, types.ClassInstanceType):
        found = callees.of_instance(lowering, base, text, False)
        if found is not None:
            return found
    if whole:
        return Held(True)
    inputs = real_names([base], lowering)
    what = f"the attribute {text!r}"
    if text == "flat":
        what += " of an array that is not in C order (read x.ravel())"
    return Unknown(inputs, what) if inputs else Passive(True)


def _binary(lowering: Lowerer, expr: ast.BinOp, kind: Any, real: bool, whole: bool) -> Rule:
    if is_instance(lowering.type_of(expr.left)) or is_instance(lowering.type_of(expr.right)):
        return Unknown(
            real_names([expr], lowering), "an operator of a class (a method that is called has one)"
        )
    if isinstance(expr.op, ast.MatMult):
        return linear_algebra.product(lowering, expr, kind) or Unknown(
            real_names([expr], lowering), "this product"
        )
    op = BINARY.get(type(expr.op))
    if real and op:
        return Elementary(TABLE[op], [expr.left, expr.right], whole, lowering)
    return Passive(True)


def _subscript(lowering: Lowerer, expr: ast.Subscript, kind: Any) -> Rule:
    base_kind = lowering.type_of(expr.value)
    if not is_array(base_kind) or not is_real(base_kind):
        return Passive(True)
    assert isinstance(expr.value, ast.Name)
    if any(is_array(lowering.type_of(part)) for part in items_of(expr.slice)):
        return Gather(expr.value.id, expr.slice)
    if is_array(kind):
        return View(expr.value.id, part=True)
    return Load(expr.value.id, expr.slice)


def _call_rule(lowering: Lowerer, expr: ast.Call, kind: Any) -> Rule:
    real = kind is not None and is_real(kind)
    whole = is_array(kind)
    match expr.func:
        case ast.Attribute(base, text):
            return _method(lowering, expr, base, text, kind)
    assert isinstance(expr.func, ast.Name)
    callee = lowering.statics.get(expr.func.id)
    if callee is None:
        callee = callees.function_of(lowering.type_of(expr.func))
    found = _asked(lowering, getattr(callee, "tapegrad_rule", ""), expr, expr.args, kind)
    found = found or callees.find(lowering, callee, expr, kind)
    if found is not None:
        return found
    if callees.writes_argument(callee, expr):
        return _writing(lowering, expr, callee)
    bits = runtime.to_bits, runtime.from_bits, runtime.member
    if callee in (*bits, runtime.give_tape, buffer.inherit):
        return Passive(False)
    if callee is places:
        return Passive(True)
    if callee is print:
        return Passive(False)
    if isinstance(kind, types.RangeType) and kind.dtype != types.int64:
        raise lowering.refuse(
            f"cannot differentiate a loop over several sequences, one of them a range of "
            f"{kind.dtype}; make it one of int64: range(np.int64(n))"
        )
    if callee is runtime.owned_row:
        assert isinstance(expr.args[0], ast.Name)
        return View(expr.args[0].id)
    if callee in (runtime.take_owned_tape, buffer.new_tape):
        return Alloc([])
    arguments = expr.args
    inputs = real_names([*arguments, *(k.value for k in expr.keywords)], lowering)
    op: Op | Scalar | None = op_of(callee, expr)
    if real and len(arguments) == 1 and is_array(lowering.type_of(arguments[0])):
        if _is_among((builtins.min, builtins.max, builtins.sum), callee):
            of_array: Rule = _asked(lowering, callee.__name__, expr, arguments, kind)
            return of_array
    if callee in (builtins.min, builtins.max) and len(arguments) == 2 and not expr.keywords:
        op = TABLE["fmin" if callee is min else "fmax"]  # the first, if the second is nan
    if op is not None and real:
        return Elementary(op, list(arguments), whole, lowering)
    if _is_among(_STEPS, callee):
        step = Fixed() if real and whole else Step(False) if real else Passive(True)
        return to_decimals(step, [*arguments, *(k.value for k in expr.keywords)])
    if (
        isinstance(callee, type)
        and issubclass(callee, (float, np.floating))
        and len(arguments) == 1
    ):
        return Linear(arguments[0], whole, lowering)
    if isinstance(callee, types.Float) and real:
        return Linear(arguments[0], whole, lowering)
    if isinstance(callee, (types.Integer, types.Boolean)):
        return Passive(True)
    if isinstance(lowering.type_of(expr.func), types.NumberClass) and real:
        return Linear(arguments[0], whole, lowering)
    if callee is type:
        return Passive(True)
    module = getattr(callee, "__module__", None) or ""
    text = getattr(callee, "__name__", "")
    if is_random(callee):
        return _draw(expr, kind, inputs, f"the call of {expr.func.id}")
    if module.startswith("numpy"):
        return _numpy(lowering, expr, callee, text, kind, list(arguments))
    if not real and not whole and (_is_among(_PURE, callee) or module in ("math", "_operator")):
        return Passive(True)
    if inputs:
        return Unknown(inputs, _what_is_called(lowering, expr.func, callee))
    return Passive(_is_among(_PURE, callee) or module == "math")


def _what_is_called(lowering: Lowerer, function: ast.Name, callee: Any) -> str:
    """Return the description of a call without a rule."""
    assert lowering.call is not None
    kind, shown = lowering.type_of(function), text_of(lowering.call.func)
    if callee is None and isinstance(kind, types.FunctionType):
        return (
            "the call of a function that is a value, chosen while the program runs (choose by if "
            "and elif among calls by name)"
        )
    if isinstance(kind, types.ExternalFunctionPointer):
        return (
            f"the call of {shown}, a pointer to compiled code (call it in a function of its "
            "own, which has a rule)"
        )
    if callee is sorted:
        return "the call of sorted (write np.sort(x))"
    if callee is builtins.sum:
        return "the call of sum with a start (write start + sum(x))"
    return f"the call of {shown}"


def _is_among(functions: Any, callee: Any) -> bool:
    """Whether a callee, which need not be hashable, is in `functions`."""
    return any(function is callee for function in functions)


def _numpy(
    lowering: Lowerer, expr: ast.Call, callee: Any, text: str, kind: Any, arguments: Atoms
) -> Rule:
    """Return the rule of a NumPy function."""
    inputs = real_names([*arguments, *(k.value for k in expr.keywords)], lowering)
    what = f"{_numpys_name(callee)}"
    if kind is None or isinstance(kind, types.NoneType):
        return Unknown(inputs, f"{what}, which changes its argument; write a loop")
    if not holds_real(kind):
        return _numbers(inputs, kind)
    found = _asked(lowering, text, expr, arguments, kind)
    if isinstance(found, Rule):
        return found
    if inputs:
        if text == "histogram":
            what += " (its counts are constant: write np.histogram(tg.stop_gradient(x), ...))"
        elif instead := instead_of(what):
            what += f" (write {instead}, which runs in Python)"
        return Unknown(inputs, found or what)
    return Fixed() if is_array(kind) else Passive(True)


def _writing(lowering: Lowerer, expr: ast.Call, callee: Any) -> Rule:
    """Return the rule of a NumPy function that writes to one of its arguments."""
    names = names_in(expr)
    inputs = real_names([*expr.args, *(k.value for k in expr.keywords)], lowering)
    if inputs:
        way_out = "write a loop" if callee is np.fill_diagonal else "assign the result instead"
        what = f"{_numpys_name(callee)} that writes to its argument; {way_out}"
        target = callees.written_argument(callee, expr)
        if target is not None:
            return Writing(inputs, what, names_in(target))
        return Unknown(inputs, what, shows=True)
    rule = Passive(False)
    rule.changed = [n for n in names if is_array(lowering.types.get(n))]
    return rule


def _numbers(inputs: list[str], kind: Any) -> Rule:
    """Return the rule of an operation whose result is of integers or booleans."""
    if inputs and is_array(kind):
        return Found(False)
    return Passive(True)  # may be a view of integers


def _asked(lowering: Lowerer, text: str, expr: ast.Call, arguments: Atoms, kind: Any) -> Any:
    """Return what `understands` declares for a call: a rule, a text, or None."""
    if text not in FUNCTIONS:
        return None
    request = Request(lowering, text, expr, kind)
    return FUNCTIONS[text](request) if request.bind(arguments, expr.keywords) else None


def _numpys_name(callee: Any) -> str:
    """Return the name of a NumPy function as users write it."""
    module = (getattr(callee, "__module__", None) or "numpy").replace("numpy", "np")
    return f"{module}.{getattr(callee, '__name__', '')}"


def is_random(callee: Any) -> bool:
    """Whether a function draws random numbers."""
    drawn = isinstance(getattr(callee, "__self__", None), (random.Random, np.random.RandomState))
    return drawn or "random" in (getattr(callee, "__module__", None) or "")


_DRAWN_ELEMENTS = ("permutation", "shuffle", "choice")


def _draw(expr: ast.Call, kind: Any, inputs: list[str], what: str) -> Rule:
    """Return the rule of a random draw, which is never repeated."""
    if inputs and what.endswith(_DRAWN_ELEMENTS):
        way_out = "draw positions: x[np.random.permutation(x.size)]"
        return Unknown(inputs, f"{what} with an array that is differentiated; {way_out}")
    if inputs:
        return Unknown(
            inputs,
            f"{what} with parameters that are differentiated; draw from the standard distribution "
            "and scale (mean + scale * np.random.standard_normal())",
        )
    return Fixed() if kind is not None and is_array(kind) and is_real(kind) else Passive(False)


def _method(lowering: Lowerer, expr: ast.Call, base: ast.expr, text: str, kind: Any) -> Rule:
    """Return the rule of a method of an array, number or class instance."""
    base_kind = lowering.type_of(base)
    real = kind is not None and is_real(kind)
    arguments = [base, *expr.args]
    inputs = real_names([*arguments, *(k.value for k in expr.keywords)], lowering)
    if isinstance(base_kind, types.DType) and text == "type" and real:
        return Linear(expr.args[0], False, lowering)
    if not is_array(base_kind):
        if isinstance(base_kind, types.ClassInstanceType):
            found = callees.of_instance(lowering, base, text, True)
            if found is not None:
                return found
        if isinstance(base_kind, types.NumPyRandomGeneratorType):
            return _draw(expr, kind, inputs, f"the method {text!r} of a random generator")
        if text == "conjugate" and real:
            return Linear(base, False, lowering)
        return Unknown(inputs, f"the method {text!r}") if inputs else Passive(False)
    if text in _CHANGING:
        if is_real(base_kind):
            instead = " (write y = np.sort(y))" if text == "sort" else ""
            return Unknown(inputs, f"the method {text!r}, which changes the array{instead}")
        return Passive(False)
    assert isinstance(base, ast.Name)
    if text == "view" and (real or inputs):
        same = base_kind.dtype == kind.dtype
        return View(base.id) if same else Unknown(inputs, "a view of another dtype", shows=True)
    if not real:
        return _numbers(inputs, kind)
    if text in ("copy", "astype"):
        return Linear(base, True, lowering) if inputs else Fixed()
    if text in ("reshape", "transpose") and len(arguments) > 2:
        arguments = [base, ast.Tuple(expr.args, ast.Load())]
    found = _asked(lowering, text, expr, arguments, kind)  # NumPy's function of the same name
    if isinstance(found, Rule):
        return found
    return Unknown(inputs, f"the method {text!r}") if inputs else Fixed()
