"""Arrays without axes, which numba takes for numbers in most places."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

from tapegrad.transform import facts
from tapegrad.transform.ir import Atom, Let, name
from tapegrad.transform.kinds import is_array, is_complex, is_real
from tapegrad.transform.lowering.lowerer import Lowerer
from tapegrad.transform.nodes import attribute
from tapegrad.transform.rules.partials import op_of
from tapegrad.transform.syntax import name_of, text_of


def zeros_of(lowering: Lowerer, expr: ast.expr) -> ast.expr:
    """Return what makes the imaginary part of an array of real numbers; others unchanged."""
    match expr:
        case ast.Attribute(of, "imag"):
            pass
        case ast.Call(ast.Name(id=callee), [of]) if lowering.statics.get(callee) is np.imag:
            pass
        case _:
            return expr
    kind = lowering.type_of(of)
    if not is_array(kind) or is_complex(kind):
        return expr
    lowering.statics["np.zeros_like"] = np.zeros_like
    return ast.Call(name("np.zeros_like"), [of], [])


def of_numbers(lowering: Lowerer, expr: ast.expr, kind: Any) -> ast.expr:
    """Return an elementwise operation on the elements of arrays without axes, as numba has it.

    The sum of one element, its mean and so on are the element. Other expressions are returned as
    they are. ``kind`` is the type that numba finds for the result.
    """
    if (array := _reduced(lowering, expr)) is not None:
        return element(lowering, array) if has_none(lowering, array) else array
    operands: list[ast.expr] = []
    match expr:
        case ast.BinOp(left, _, right):
            operands = [left, right]
        case ast.UnaryOp(_, operand):
            operands = [operand]
        case ast.Compare(left, _, others):
            operands = [left, *others]
        case ast.Call(ast.Name(id=callee), arguments):
            operands = arguments if op_of(lowering.statics.get(callee), expr) else []
    if not operands:
        return _of_other_functions(lowering, expr, kind)
    arrays = {text_of(n): n for n in operands if has_none(lowering, n)}
    is_made = isinstance(expr, ast.Call) and is_array(kind) and not kind.ndim
    if not arrays and not is_made:
        return expr
    atoms: dict[str, ast.expr] = {text: element(lowering, node) for text, node in arrays.items()}
    numbers = [atoms.get(text_of(operand), operand) for operand in operands]
    if kind in (types.float32, types.complex64):
        is_power = isinstance(getattr(expr, "op", None), ast.Pow)
        kept = ast.Constant if is_power else ()
        numbers = [n if isinstance(n, kept) else _single(lowering, n) for n in numbers]
    match expr:
        case ast.BinOp(_, op):
            return ast.BinOp(numbers[0], op, numbers[1])
        case ast.UnaryOp(sign):
            return ast.UnaryOp(sign, numbers[0])
        case ast.Compare(_, comparisons):
            return ast.Compare(numbers[0], comparisons, numbers[1:])
    assert isinstance(expr, ast.Call)
    call = ast.Call(expr.func, numbers, expr.keywords)
    if is_made and _result_of(lowering, call) == kind.dtype:  # of a number, numba makes a number
        return _array_of(lowering, _named(lowering, call, kind.dtype))
    return call


def _single(lowering: Lowerer, atom: ast.expr) -> ast.expr:
    """Return an integer as a number of single precision, others unchanged.

    An operation on an array without axes of single precision and an integer stays in single
    precision; one on two such numbers would be in double precision.
    """
    if not isinstance(lowering.type_of(atom), (types.Integer, types.Boolean)):
        return atom
    lowering.statics["np.float32"] = np.float32
    return _named(lowering, ast.Call(name("np.float32"), [atom], []), types.float32)


def _of_other_functions(lowering: Lowerer, expr: ast.expr, kind: Any) -> ast.expr:
    """Return an expression that is no operation on elements, with what it takes.

    A function of NumPy that takes a number as well is given one, and its result is made an array if
    it should be one. For others, a number that np.where chose becomes the array that it is to
    numba.
    """
    match expr:
        case ast.Attribute(base, text):
            if text not in facts.SHAPE_ATTRIBUTES:
                _refuse_view(lowering, base, text)
            return attribute(_array(lowering, base), text)
        case ast.Call(ast.Attribute(base, text), arguments, keywords):
            if text not in facts.NEW_METHODS:
                _refuse_view(lowering, base, text)
            args = [_array(lowering, a) for a in arguments]
            return ast.Call(attribute(_array(lowering, base), text), args, keywords)
    if not isinstance(expr, ast.Call):
        return expr
    places = [k for k, a in enumerate(expr.args) if has_none(lowering, a) or is_chosen(lowering, a)]
    callee: Any = lowering.statics.get(name_of(expr.func))
    if not places or not _is_of_numpy(callee) or callee is np.array:
        return expr
    if is_view := facts.shows(callee.__name__, len(expr.args) + len(expr.keywords)):
        _refuse_view(lowering, expr.args[0], callee.__name__)
    found: Any = None if is_view else _result_of(lowering, expr)
    is_made = is_array(kind) and not kind.ndim and kind.dtype == found
    if (is_array(found) and not found.ndim) or not (is_made or kind == found):
        return ast.Call(expr.func, [_array(lowering, a) for a in expr.args], expr.keywords)
    args = [element(lowering, a) if has_none(lowering, a) else a for a in expr.args]
    call = ast.Call(expr.func, args, expr.keywords)
    return _array_of(lowering, _named(lowering, call, found)) if is_made else call


def _is_of_numpy(callee: Any) -> bool:
    return (getattr(callee, "__module__", None) or "").startswith("numpy")


def _result_of(lowering: Lowerer, call: ast.Call) -> Any:
    """Return the type of the result of a call with numbers in place of arrays without axes.

    It is None if the function takes no such.
    """
    kinds = [lowering.type_of(a) for a in call.args]
    numbers = tuple(k.dtype if is_array(k) and not k.ndim else k for k in kinds)
    keywords = {str(k.arg): lowering.type_of(k.value) for k in call.keywords}
    context = cpu_target.typing_context
    try:
        function = context.resolve_value_type(lowering.statics.get(name_of(call.func)))
        return context.resolve_function_type(function, numbers, keywords).return_type
    except (NumbaError, AttributeError):
        return None


def _array(lowering: Lowerer, atom: ast.expr) -> ast.expr:
    """Return the array without axes of a number that np.where chose, other atoms unchanged."""
    if not is_chosen(lowering, atom):
        return atom
    kind = types.Array(lowering.type_of(atom), 0, "C")
    return _named(lowering, _array_of(lowering, atom), kind)


def _refuse_view(lowering: Lowerer, atom: ast.expr, text: str) -> None:
    """Refuse a view of a number that np.where chose, which is an array to numba: not to writes."""
    if is_chosen(lowering, atom) and text != "imag":
        raise lowering.refuse(
            f"cannot differentiate {text} of what np.where of numbers returns, an array without "
            "axes; use the number, or an array of one element, np.array([x])"
        )


def _array_of(lowering: Lowerer, number: ast.expr) -> ast.expr:
    """Return the expression that makes an array without axes of a number."""
    lowering.statics["np.array"] = np.array
    return ast.Call(name("np.array"), [number], [])


def _named(lowering: Lowerer, expr: ast.expr, kind: Any) -> Atom:
    """Append a value of a type; return its name."""
    target = lowering.fresh("t")
    lowering.types[target] = kind
    lowering.let(Let(target, expr, lowering.line))
    return lowering.value(name(target))


_REDUCTIONS = (
    *(np.sum, np.mean, np.prod, np.max, np.amax, np.min, np.amin, np.median),
    *(np.nansum, np.nanmean, np.nanprod, np.nanmax, np.nanmin, np.nanmedian),
)


def _reduced(lowering: Lowerer, expr: ast.expr) -> ast.expr | None:
    """Return the array without axes, or the number in its place, that is all that is reduced."""
    match expr:
        case ast.Call(ast.Attribute(of, "sum" | "mean" | "prod" | "max" | "min"), [], []):
            pass
        case ast.Call(ast.Name(id=callee), [of], []) if any(
            lowering.statics.get(callee) is f for f in _REDUCTIONS
        ):
            pass
        case _:
            return None
    if not (has_none(lowering, of) or is_chosen(lowering, of)):
        return None
    return of if is_real(lowering.type_of(of)) else None


def is_chosen(lowering: Lowerer, atom: ast.expr | None) -> bool:
    """Whether an atom is a number that np.where chose, of which numba makes an array."""
    return name_of(atom) in lowering.chosen_numbers


def has_none(lowering: Lowerer, atom: ast.expr) -> bool:
    """Whether an atom is an array without axes."""
    kind: Any = lowering.types.get(name_of(atom))
    return is_array(kind) and kind.ndim == 0


def element(lowering: Lowerer, array: ast.expr) -> Atom:
    """Append a read of the element of an array without axes; return its name."""
    part = ast.Subscript(array, ast.Tuple([], ast.Load()), ast.Load())
    return _named(lowering, part, lowering.type_of(array).dtype)
