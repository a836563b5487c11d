"""Statements that make arrays: the shape, and what sets the elements."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from typing import Any, TypeGuard

from numba.core import types

from tapegrad.transform.facts import SHAPE_ATTRIBUTES
from tapegrad.transform.generated import Facts
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import attribute, element_of, tuple_of
from tapegrad.transform.syntax import array_of, callee_of, nodes_in, subtree
from tapegrad.transform.trees import quoted, quoted_block

MAKERS = frozenset(
    ["np.array", "np.copy", "np.empty", "np.empty_like", "np.zeros", "np.zeros_like"]
)

Made = tuple[ast.expr, list[ast.stmt]]
"""The shape of a new array, and what sets its elements."""


def is_plain_array(kind: Any, layouts: str = "C") -> TypeGuard[types.Array]:
    """Whether a type is that of contiguous arrays of floats that have axes."""
    is_of_floats = is_array(kind) and kind.dtype == types.float64
    return is_of_floats and kind.layout in layouts and kind.ndim > 0


def made(array: str, value: ast.expr, ndim: int, facts: Facts) -> Made | None:
    """Return the shape of a new array, and what sets its elements; None for other values."""
    match value:
        case ast.BinOp(left, ast.MatMult(), right):
            return _product(array, left, right, facts)
        case ast.Call(ast.Attribute(copied, "copy"), [], keywords):
            maker, value = "np.copy", ast.Call(value.func, [copied], keywords)
        case ast.Call() if (maker := callee_of(value)) in MAKERS:
            pass
        case _:
            return None
    shape = _shape(value, maker, ndim, facts)
    return None if shape is None else (shape, _elements(array, value, maker))


def stored_by(node: ast.AST, facts: Facts) -> set[str]:
    """Return the arrays that assignments in a statement store elements in, by their names there."""
    found = set()
    for part in nodes_in(node, ast.Assign, ast.AugAssign):
        match part:
            case ast.AugAssign(ast.Name(id=name)) if not facts.is_number(name):
                found.add(name)
            case ast.Assign([target, *_]) | ast.AugAssign(target):
                found.update(map(array_of, subtree(target)))
    return found - {""}


def uses_of(node: ast.AST, names: Container[str]) -> int:
    """Return how often a node uses elements of arrays with some names, or may: not the shapes."""
    match node:
        case ast.Attribute(_, attribute) if attribute in SHAPE_ATTRIBUTES:
            return 0
        case ast.Name(id=name):
            return int(name in names)
    return sum(uses_of(child, names) for child in ast.iter_child_nodes(node))


def _product(array: str, left: ast.expr, right: ast.expr, facts: Facts) -> Made | None:
    """Return the shape of a product of matrices or vectors, and what computes it."""
    kinds = [facts.kind_of(left), facts.kind_of(right)]
    if not all(is_plain_array(kind, "CF") for kind in kinds):
        return None
    extents: list[ast.expr] = []
    if kinds[0].ndim > 1:
        extents.append(quoted("x.shape[0]", x=left))
    if kinds[1].ndim > 1:
        extents.append(quoted("x.shape[1]", x=right))
    if not extents:
        return None
    return tuple_of(extents), quoted_block("np.dot(x, y, z)", x=left, y=right, z=array)


def _elements(array: str, call: ast.Call, maker: str) -> list[ast.stmt]:
    """Return the statements that set the elements of a new array."""
    if maker == "np.array":
        found = []
        for place, item in _items(call.args[0]):
            target = element_of(array, [ast.Constant(k) for k in place])
            found += quoted_block("x = y", x=target, y=item)
        return found
    if maker == "np.copy":
        return quoted_block("runtime.assign(x, y)", x=array, y=call.args[0])
    is_zero = maker in ("np.zeros", "np.zeros_like")
    return quoted_block("runtime.clear(x)", x=array) if is_zero else []


def _items(node: ast.expr) -> Iterator[tuple[tuple[int, ...], ast.expr]]:
    """Yield the items of nested lists, with their positions."""
    if isinstance(node, ast.List):
        for k, part in enumerate(node.elts):
            yield from (((k, *place), item) for place, item in _items(part))
    else:
        yield (), node


def _shape(call: ast.Call, maker: str, ndim: int, facts: Facts) -> ast.expr | None:
    """Return the shape of the array that a call makes, None if it is no array of floats."""
    if len(call.args) != 1 or call.keywords:
        return None
    (given,) = call.args
    if maker == "np.array":
        items = list(_items(given))
        if not items or any(not isinstance(facts.kind_of(item), types.Number) for _, item in items):
            return None
        extents: list[ast.expr] = [ast.Constant(1 + k) for k in items[-1][0]]
        return ast.Tuple(extents, ast.Load())
    if maker.endswith("_like") or maker == "np.copy":
        return attribute(given, "shape") if is_plain_array(facts.kind_of(given)) else None
    if isinstance(given, ast.Tuple):
        return given if all(facts.kind_of(item) == types.int64 for item in given.elts) else None
    if isinstance(kind := facts.kind_of(given), types.UniTuple):
        return given if kind.dtype == types.int64 else None
    if ndim == 1 and facts.kind_of(given) == types.int64:
        return ast.Tuple([given], ast.Load())
    return None
