"""Arrays without axes, which numba takes for numbers in most places."""

from __future__ import annotations

import ast

import numpy as np

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


def of_numbers(lowering: Lowerer, expr: ast.expr) -> ast.expr:
    """Return an elementwise operation on the elements of arrays without axes, as numba has it.

    The sum of one element, its mean and so on are the element. Other expressions are returned as
    they are.
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
    arrays = {n.id for n in operands if has_none(lowering, n)}
    if not arrays:
        return expr
    elements = {array: element(lowering, name(array)) for array in arrays}

    class Replace(ast.NodeTransformer):
        def visit_Name(inner, node: ast.Name) -> ast.expr:  # noqa: N805
            return elements.get(node.id, node)

    return Replace().visit(expr)


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
