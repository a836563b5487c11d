"""Printing of generated code as Python text."""

from __future__ import annotations

import ast
from typing import TypeGuard

from tapegrad.transform.syntax import callee_of
from tapegrad.transform.trees import complete

UNDEFINED = "undefined"  # printed for a value that is undefined on some path
PARALLEL = "numba.prange"  # what parallel loops are over


def show(node: ast.expr | ast.stmt | None) -> str:
    """Return the text of an expression."""
    match node:
        case ast.Constant(float() as number):
            return show_number(number)
    return ast.unparse(complete(node)) if node is not None else "None"


def show_number(value: float) -> str:
    """Return a float as Python text."""
    text = repr(value)
    return {"inf": "np.inf", "-inf": "-np.inf", "nan": "np.nan"}.get(text, text)


def is_parallel(node: ast.AST) -> TypeGuard[ast.For]:
    """Whether a node of generated code is a parallel loop."""
    return isinstance(node, ast.For) and callee_of(node.iter) == PARALLEL
