"""Calls in generated code for which the runtime has faster functions.

Large arrays take their memory from a pool (`tape_memory.large_arrays`). Products are added to
cotangents by BLAS, without arrays in between (`blas`). The largest and smallest elements are found
by several chains of comparisons (`extremes`). For the larger of two integers numba would compile a
function.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from numba.core import types

from tapegrad.transform.generated import Facts
from tapegrad.transform.nodes import attribute
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import is_plain_array
from tapegrad.transform.syntax import nodes_in, text_of
from tapegrad.transform.trees import qualified_call

# derivatives of products: what computes them, and the order of the arguments there
_PRODUCTS = {
    "dot_22_vjp_x": ("runtime.add_product_nt", (0, 2, 1)),
    "dot_22_vjp_y": ("runtime.add_product_tn", (1, 0, 2)),
    "dot_12_vjp_x": ("runtime.add_product", (0, 1, 2)),
    "dot_21_vjp_y": ("runtime.add_product_tn", (1, 0, 2)),
    "stacked_product_vjp_x": ("runtime.add_product_nt", (0, 2, 1)),
    "stacked_product_vjp_y": ("runtime.add_product_tn", (1, 0, 2)),
    "stacked_product_t_vjp_x": ("runtime.add_product", (0, 2, 1)),
    "stacked_product_t_vjp_y": ("runtime.add_product_tn", (1, 2, 0)),
}
_OF_INTEGERS = {"max": "runtime.larger", "min": "runtime.smaller"}
_OF_SHAPES = {"np.empty": "runtime.empty", "np.zeros": "runtime.zeros"}
_OF_ARRAYS = {"np.max": "runtime.maximum", "np.min": "runtime.minimum"}
_LIKE_ARRAYS = {"np.empty_like": "runtime.empty", "np.zeros_like": "runtime.zeros"}


def add_products(function: Function) -> bool:
    """Add products of floats to cotangents without arrays in between; return whether any are."""
    return _replace(function, _of_products)


def call_runtime(function: Function) -> bool:
    """Call the runtime in place of NumPy and Python; return whether there is anything to call."""
    return _replace(function, _of_numpy)


def _replace(function: Function, made_of: Callable[[ast.Call, Facts], ast.Call | None]) -> bool:
    """Replace calls; return whether there are any."""
    found = False
    for node in nodes_in(function.tree, ast.Call):
        made = None if node.keywords else made_of(node, function.facts)
        if made is not None:
            node.func, node.args = made.func, made.args
            found = True
    return found


def _of_products(node: ast.Call, facts: Facts) -> ast.Call | None:
    """Return the call that adds a product in place of a call, None for none."""
    module, _, name = text_of(node.func).rpartition(".")
    if module != "arrays" or name not in _PRODUCTS:
        return None
    kinds = [facts.kind_of(arg) for arg in node.args]
    if not all(isinstance(k, types.Array) and k.dtype == types.float64 for k in kinds):
        return None
    function, order = _PRODUCTS[name]
    return qualified_call(function, *(node.args[k] for k in order))


def _of_numpy(node: ast.Call, facts: Facts) -> ast.Call | None:
    """Return the call in place of one of NumPy or Python, None for none."""
    name, args = text_of(node.func), node.args
    kinds = [facts.kind_of(arg) for arg in args]
    if name in _OF_INTEGERS and len(args) == 2:
        if kinds == [types.int64, types.int64]:
            return qualified_call(_OF_INTEGERS[name], *args)
    elif name in _OF_SHAPES and len(args) == 1:
        if isinstance(args[0], ast.Tuple) or _is_shape(kinds[0]):
            return qualified_call(_OF_SHAPES[name], *args)
    elif name == "np.full" and len(args) == 2:
        if isinstance(args[0], ast.Tuple) or _is_shape(kinds[0]):
            if kinds[1] == types.float64:
                return qualified_call("runtime.full", *args)
    elif name in _OF_ARRAYS and len(args) == 1 and is_plain_array(kinds[0]):
        return qualified_call(_OF_ARRAYS[name], *args)
    elif name in _LIKE_ARRAYS and len(args) == 1 and is_plain_array(kinds[0]):
        return qualified_call(_LIKE_ARRAYS[name], attribute(args[0], "shape"))
    elif name == "np.dot" and len(args) == 2:
        if all(_is_factor(kind) for kind in kinds) and (kinds[0].ndim, kinds[1].ndim) != (1, 1):
            return qualified_call(f"runtime.dot_{kinds[0].ndim}{kinds[1].ndim}", *args)
    match node:
        case ast.Call(ast.Attribute(array, "copy"), []) if is_plain_array(facts.kind_of(array)):
            return qualified_call("runtime.duplicate", array)
    return None


def _is_shape(kind: Any) -> bool:
    return isinstance(kind, types.UniTuple) and isinstance(kind.dtype, types.Integer)


def _is_factor(kind: Any) -> bool:
    is_array = isinstance(kind, types.Array) and kind.dtype == types.float64
    return is_array and kind.ndim in (1, 2) and kind.layout in "CF"
