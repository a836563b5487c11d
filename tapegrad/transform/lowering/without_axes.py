"""Arrays without axes, which numba takes for numbers in most places."""

from __future__ import annotations

import ast

import numpy as np

from tapegrad.transform.ir import Atom, Let, name
from tapegrad.transform.kinds import is_array, is_complex
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

    Other expressions are returned as they are.
    """
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
