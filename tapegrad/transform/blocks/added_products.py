"""Products that derivatives add to cotangents: by BLAS, without arrays in between."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from numba.core import types

from tapegrad.transform.independence.uses import Facts

# what takes the place of the derivatives of products, by their arguments
_BY_BLAS: dict[str, Callable[[str, str, str], str]] = {
    "dot_22_vjp_x": lambda x_bar, y, g: f"runtime.add_product({x_bar}, {g}, {y}.T)",
    "dot_22_vjp_y": lambda x, y_bar, g: f"runtime.add_product({y_bar}, {x}.T, {g})",
    "dot_12_vjp_x": lambda x_bar, y, g: f"runtime.add_matrix_vector({x_bar}, {y}, {g})",
    "dot_21_vjp_y": lambda x, y_bar, g: f"runtime.add_matrix_vector({y_bar}, {x}.T, {g})",
    "stacked_product_vjp_x": lambda x_bar, y, g: f"runtime.add_products_nt({x_bar}, {g}, {y})",
    "stacked_product_vjp_y": lambda x, y_bar, g: f"runtime.add_products_tn({y_bar}, {x}, {g})",
}


def adds_products(tree: ast.FunctionDef, facts: Facts) -> bool:
    """Whether a function adds products of floats to cotangents."""
    return any(True for _ in _products(tree, facts))


def add_by_blas(tree: ast.FunctionDef, facts: Facts) -> None:
    """Let BLAS add products.

    Parameters
    ----------
    tree
        The function, which is changed.
    facts
        What is known of its names.
    """
    for node, text in [*_products(tree, facts)]:
        made = ast.parse(text, mode="eval").body
        assert isinstance(made, ast.Call)
        node.func, node.args = made.func, made.args


def _products(tree: ast.FunctionDef, facts: Facts) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that are replaced, with what takes their places."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        write = _BY_BLAS.get(node.func.attr)
        if write is None or ast.unparse(node.func.value) != "arrays":
            continue
        if all(isinstance(arg, ast.Name) and _is_of_floats(arg.id, facts) for arg in node.args):
            yield node, write(*map(ast.unparse, node.args))


def _is_of_floats(name: str, facts: Facts) -> bool:
    kind = facts.kind(name)
    return isinstance(kind, types.Array) and kind.dtype == types.float64
