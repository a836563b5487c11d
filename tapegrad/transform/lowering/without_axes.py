"""Arrays without axes, which numba takes for numbers in most places."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types

from tapegrad.transform.ir import Atom, Let, name
from tapegrad.transform.kinds import is_array, is_complex, is_real
from tapegrad.transform.rules.generators import Lowerer
from tapegrad.transform.rules.partials import op_of


def zeros_of(lowering: Lowerer, expr: ast.expr) -> ast.expr:
    """Return what makes the imaginary part of an array of real numbers; others unchanged."""
    of: ast.expr | None = None
    if isinstance(expr, ast.Attribute) and expr.attr == "imag":
        of = expr.value
    elif isinstance(expr, ast.Call) and isinstance(expr.func, ast.Name) and len(expr.args) == 1:
        of = expr.args[0] if lowering.statics.get(expr.func.id) is np.imag else None
    kind = None if of is None else lowering.type_of(of)
    if of is None or not is_array(kind) or is_complex(kind):
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
    if isinstance(expr, ast.BinOp):
        operands: list[ast.expr] = [expr.left, expr.right]
    elif isinstance(expr, ast.UnaryOp):
        operands = [expr.operand]
    elif isinstance(expr, ast.Compare):
        operands = [expr.left, *expr.comparators]
    elif isinstance(expr, ast.Call) and isinstance(expr.func, ast.Name):
        operands = expr.args if op_of(lowering.statics.get(expr.func.id), expr) else []
    else:
        operands = []
    arrays = {n.id: n for n in operands if has_none(lowering, n)}
    if not arrays:
        return expr
    atoms: dict[str, ast.expr] = {text: element(lowering, node) for text, node in arrays.items()}

    def of_number(operand: ast.expr) -> ast.expr:
        return atoms.get(operand.id, operand) if isinstance(operand, ast.Name) else operand

    numbers = [of_number(operand) for operand in operands]
    if kind in (types.float32, types.complex64):
        is_power = isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.Pow)
        kept = ast.Constant if is_power else ()
        numbers = [n if isinstance(n, kept) else _single(lowering, n) for n in numbers]
    if isinstance(expr, ast.BinOp):
        return ast.BinOp(numbers[0], expr.op, numbers[1])
    if isinstance(expr, ast.UnaryOp):
        return ast.UnaryOp(expr.op, numbers[0])
    if isinstance(expr, ast.Compare):
        return ast.Compare(numbers[0], expr.ops, numbers[1:])
    assert isinstance(expr, ast.Call)
    return ast.Call(expr.func, numbers, expr.keywords)


def _single(lowering: Lowerer, atom: ast.expr) -> ast.expr:
    """Return an integer as a number of single precision, others unchanged.

    An operation on an array without axes of single precision and an integer stays in single
    precision; one on two such numbers would be in double precision.
    """
    if not isinstance(lowering.type_of(atom), (types.Integer, types.Boolean)):
        return atom
    lowering.statics["np.float32"] = np.float32
    target = lowering.fresh("t")
    lowering.types[target] = types.float32
    lowering.let(Let(target, ast.Call(name("np.float32"), [atom], []), lowering.line))
    return lowering.value(name(target))


_REDUCTIONS = (
    *(np.sum, np.mean, np.prod, np.max, np.amax, np.min, np.amin, np.median),
    *(np.nansum, np.nanmean, np.nanprod, np.nanmax, np.nanmin, np.nanmedian),
)


def _reduced(lowering: Lowerer, expr: ast.expr) -> ast.expr | None:
    """Return the array without axes, or the number in its place, that is all that is reduced."""
    if not isinstance(expr, ast.Call) or expr.keywords:
        return None
    of = expr.args[0] if len(expr.args) == 1 else None
    if isinstance(expr.func, ast.Attribute):
        if expr.args or expr.func.attr not in ("sum", "mean", "prod", "max", "min"):
            return None
        of = expr.func.value
    elif not any(lowering.statics.get(expr.func.id) is f for f in _REDUCTIONS):
        return None
    if of is None or not (has_none(lowering, of) or is_chosen(lowering, of)):
        return None
    return of if is_real(lowering.type_of(of)) else None


def is_chosen(lowering: Lowerer, atom: ast.expr | None) -> bool:
    """Whether an atom is a number that np.where chose, of which numba makes an array."""
    return isinstance(atom, ast.Name) and atom.id in lowering.chosen_numbers


def has_none(lowering: Lowerer, atom: ast.expr) -> bool:
    """Whether an atom is an array without axes."""
    kind = lowering.types.get(atom.id) if isinstance(atom, ast.Name) else None
    return is_array(kind) and kind.ndim == 0


def element(lowering: Lowerer, array: ast.expr) -> Atom:
    """Append a read of the element of an array without axes; return its name."""
    target = lowering.fresh("t")
    lowering.types[target] = lowering.type_of(array).dtype
    lowering.let(
        Let(target, ast.Subscript(array, ast.Tuple([], ast.Load()), ast.Load()), lowering.line)
    )
    return lowering.value(name(target))
