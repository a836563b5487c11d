"""Calls in generated code for which the runtime has faster functions.

Large arrays take their memory from a pool (`tape_memory.large_arrays`). Products are added to
cotangents by BLAS, without arrays in between (`blas`). The largest and smallest elements are found
by several chains of comparisons (`extremes`). For the larger of two integers numba would compile a
function.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import types

from tapegrad.transform.generated import Facts
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import is_plain_array
from tapegrad.transform.syntax import subtree, text_of

# derivatives of products, by their arguments
_PRODUCTS: dict[str, Callable[..., str]] = {
    "dot_22_vjp_x": lambda x_bar, y, g: f"runtime.add_product_nt({x_bar}, {g}, {y})",
    "dot_22_vjp_y": lambda x, y_bar, g: f"runtime.add_product_tn({y_bar}, {x}, {g})",
    "dot_12_vjp_x": lambda x_bar, y, g: f"runtime.add_product({x_bar}, {y}, {g})",
    "dot_21_vjp_y": lambda x, y_bar, g: f"runtime.add_product_tn({y_bar}, {x}, {g})",
    "stacked_product_vjp_x": lambda x_bar, y, g: f"runtime.add_product_nt({x_bar}, {g}, {y})",
    "stacked_product_vjp_y": lambda x, y_bar, g: f"runtime.add_product_tn({y_bar}, {x}, {g})",
    "stacked_product_t_vjp_x": lambda x_bar, y, g: f"runtime.add_product({x_bar}, {g}, {y})",
    "stacked_product_t_vjp_y": lambda x, y_bar, g: f"runtime.add_product_tn({y_bar}, {g}, {x})",
}
_OF_INTEGERS = {"max": "runtime.larger", "min": "runtime.smaller"}
_OF_SHAPES = {"np.empty": "runtime.empty", "np.zeros": "runtime.zeros"}
_OF_ARRAYS: dict[str, Callable[[str], str]] = {
    "np.empty_like": "runtime.empty({}.shape)".format,
    "np.zeros_like": "runtime.zeros({}.shape)".format,
    "np.max": "runtime.maximum({})".format,
    "np.min": "runtime.minimum({})".format,
}


def make_faster(function: Function) -> bool:
    """Replace calls; return whether the function adds products of floats to cotangents."""
    tree, facts = function.tree, function.facts
    calls = (node for node in subtree(tree) if isinstance(node, ast.Call))
    has_products = any(_of_products(node, facts) for node in calls)
    for node, text in [*_replacements(tree, facts)]:
        made = ast.parse(text, mode="eval").body
        assert isinstance(made, ast.Call)
        node.func, node.args = made.func, made.args
    return has_products


def _replacements(tree: ast.FunctionDef, facts: Facts) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that are replaced, with what takes their places."""
    for node in subtree(tree):
        if isinstance(node, ast.Call) and not node.keywords:
            text = _of_products(node, facts) or _of_numpy(node, facts)
            if text:
                yield node, text


def _of_products(node: ast.Call, facts: Facts) -> str:
    """Return the text of a call that adds a product, "" for none."""
    module, _, name = text_of(node.func).rpartition(".")
    if module != "arrays" or name not in _PRODUCTS:
        return ""
    kinds = [_kind(arg, facts) for arg in node.args]
    if not all(isinstance(k, types.Array) and k.dtype == types.float64 for k in kinds):
        return ""
    return _PRODUCTS[name](*map(text_of, node.args))


def _of_numpy(node: ast.Call, facts: Facts) -> str:
    """Return the text of a call in place of one of NumPy or Python, "" for none."""
    name, args = text_of(node.func), [*map(text_of, node.args)]
    kinds = [_kind(arg, facts) for arg in node.args]
    if name in _OF_INTEGERS and len(args) == 2:
        if all(_is_integer(arg, facts) for arg in node.args):
            return f"{_OF_INTEGERS[name]}({', '.join(args)})"
    elif name in _OF_SHAPES and len(args) == 1:
        if isinstance(node.args[0], ast.Tuple) or _is_shape(kinds[0]):
            return f"{_OF_SHAPES[name]}({args[0]})"
    elif name == "np.full" and len(args) == 2:
        if isinstance(node.args[0], ast.Tuple) or _is_shape(kinds[0]):
            if _is_float(node.args[1], facts):
                return f"runtime.full({', '.join(args)})"
    elif name in _OF_ARRAYS and len(args) == 1 and is_plain_array(kinds[0]):
        return _OF_ARRAYS[name](args[0])
    elif name == "np.dot" and len(args) == 2:
        if all(_is_factor(kind) for kind in kinds) and (kinds[0].ndim, kinds[1].ndim) != (1, 1):
            return f"runtime.dot_{kinds[0].ndim}{kinds[1].ndim}({', '.join(args)})"
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "copy" and not args:
        if is_plain_array(_kind(node.func.value, facts)):
            return f"runtime.duplicate({text_of(node.func.value)})"
    return ""


def _kind(node: ast.expr, facts: Facts) -> Any:
    return facts.kind(node.id) if isinstance(node, ast.Name) else None


def _is_integer(node: ast.expr, facts: Facts) -> bool:
    """Whether an expression is an integer of 64 bits."""
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return _is_integer(node.left, facts) and _is_integer(node.right, facts)
    elif isinstance(node, ast.Constant):
        return type(node.value) is int
    return types.unliteral(_kind(node, facts)) == types.int64


def _is_float(node: ast.expr, facts: Facts) -> bool:
    """Whether an expression is a float of 64 bits."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_float(node.operand, facts)
    if isinstance(node, ast.Constant):
        return type(node.value) is float
    return text_of(node) in ("np.inf", "np.nan") or _kind(node, facts) == types.float64


def _is_shape(kind: Any) -> bool:
    return isinstance(kind, types.UniTuple) and isinstance(kind.dtype, types.Integer)


def _is_factor(kind: Any) -> bool:
    is_array = isinstance(kind, types.Array) and kind.dtype == types.float64
    return is_array and kind.ndim in (1, 2) and kind.layout in "CF"
