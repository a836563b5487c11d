"""Intermediate arrays of narrow integers, which numba does not materialize.

numba evaluates a nested array expression in one loop over the elements, as scalars: there the sum
of two ``int8`` is an ``int64``, but if the sum has a name it is an ``int8``, which may wrap. The
normal form names every intermediate result, so expressions that could wrap are refused.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba.core import types
from numba.np.ufunc.dufunc import DUFunc

from tapegrad.transform.ir import FunctionIR, Let, names_in, walk

# operations whose low bits do not depend on the width, and that do not overflow
_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor)
_OF_TRUTHS = (*_BITWISE, ast.Mult, ast.Invert)


def refuse_narrow(function: FunctionIR) -> None:
    """Refuse an unnamed part of an array expression that has narrow integers."""
    kinds = function.types
    arrays = {n for n, kind in kinds.items() if isinstance(kind, types.Array)}
    expressions = [
        s
        for s in walk(function.body)
        if isinstance(s, Let) and _is_elementwise(s.expr, function.statics, arrays)
    ]
    named = {n for values in function.named.values() for value in values for n in names_in(value)}
    parts = {
        s.target: s.line
        for s in expressions
        if s.target in arrays - named and _is_narrow(kinds[s.target].dtype, s.expr)
    }
    for statement in expressions:
        for part in names_in(statement.expr):
            if part in parts:
                raise function.source.refuse(
                    f"cannot differentiate an expression with a part that is {kinds[part]}: numba "
                    "computes it with 64 bits there; give the part a name (part = ...; whole = "
                    "part * x), or convert first: astype(np.int64)",
                    parts[part],
                )


def _is_elementwise(expr: Any, statics: dict[str, Any], arrays: set[str]) -> bool:
    """Whether numba would fuse an operation into an array expression."""
    if arrays.isdisjoint(names_in(expr)):
        return False
    match expr:
        case ast.Call(ast.Name(id=callee)):
            return isinstance(statics.get(callee), (np.ufunc, DUFunc))
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            return True
    return False


def _is_narrow(kind: Any, expr: Any) -> bool:
    """Whether an operation may differ between the type of the elements and 64 bits."""
    op = getattr(expr, "op", None)
    if isinstance(kind, types.Boolean):
        return isinstance(expr, (ast.BinOp, ast.UnaryOp)) and not isinstance(op, _OF_TRUTHS)
    narrow = isinstance(kind, types.Integer) and kind.bitwidth < 64
    return narrow and not isinstance(op, _BITWISE)
