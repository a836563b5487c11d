"""Large arrays of generated code take their memory from a pool (`tape_memory.pool`)."""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.blocks.making import is_plain_array
from tapegrad.transform.independence.uses import Facts

_MAKERS = {"np.empty": "runtime.empty", "np.zeros": "runtime.zeros"}
_LIKE = {"np.empty_like": "runtime.empty", "np.zeros_like": "runtime.zeros"}


def take_from_pool(tree: ast.FunctionDef, facts: Facts) -> None:
    """Let a function take arrays of floats from the pool.

    Parameters
    ----------
    tree
        The function, which is changed.
    facts
        What is known of its names.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not node.keywords:
            text = _replacement(node, facts)
            if text:
                made = ast.parse(text, mode="eval").body
                assert isinstance(made, ast.Call)
                node.func, node.args = made.func, made.args


def _replacement(node: ast.Call, facts: Facts) -> str:
    """Return the text of a call that takes an array from the pool, "" for none."""
    name, args = ast.unparse(node.func), [*map(ast.unparse, node.args)]
    kinds = [_kind(arg, facts) for arg in node.args]
    if name in _MAKERS and len(args) == 1:
        if isinstance(node.args[0], ast.Tuple) or _is_shape(kinds[0]):
            return f"{_MAKERS[name]}({args[0]})"
    elif name in _LIKE and len(args) == 1 and _is_of_floats(kinds[0]):
        return f"{_LIKE[name]}({args[0]}.shape)"
    elif name == "np.dot" and len(args) == 2:
        if all(_is_matrix(kind) for kind in kinds):
            return f"runtime.dot({', '.join(args)})"
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "copy" and not args:
        if _is_of_floats(_kind(node.func.value, facts)):
            return f"runtime.duplicate({ast.unparse(node.func.value)})"
    return ""


def _kind(node: ast.expr, facts: Facts) -> Any:
    return facts.kind(node.id) if isinstance(node, ast.Name) else None


def _is_shape(kind: Any) -> bool:
    return isinstance(kind, types.UniTuple) and isinstance(kind.dtype, types.Integer)


def _is_of_floats(kind: Any) -> bool:
    return is_plain_array(kind) and kind.dtype == types.float64 and kind.ndim > 0


def _is_matrix(kind: Any) -> bool:
    is_array = isinstance(kind, types.Array) and kind.dtype == types.float64
    return is_array and kind.ndim == 2 and kind.layout in "CF"
