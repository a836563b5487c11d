"""Cotangents of values that were not selected: they are 0, and cost next to nothing.

The partial derivatives of a minimum are 1 and 0. A product with them becomes a selection, for which
the processor need not wait: ``x_bar = z_bar * (1.0 if x < y else 0.0)`` becomes::

    x_bar = z_bar if x < y else 0.0

So what was not selected receives nothing, not even nan. A loop in which everything depends on one
cotangent ends when that is 0.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from tapegrad.transform.frontend.source import MATTERS
from tapegrad.transform.independence.sums import blocks_of


def select_cotangents(tree: ast.FunctionDef, suffix: str) -> bool:
    """Write products of cotangents with constants as selections; return whether there are any.

    The names of cotangents end with the suffix.
    """
    selections = _Selections(suffix)
    selections.visit(tree)
    return selections.found


class _Selections(ast.NodeTransformer):
    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.found = False

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        left, right = node.left, node.right
        if not isinstance(node.op, ast.Mult) or not isinstance(right, ast.IfExp):
            return node
        if not isinstance(left, ast.Name) or not left.id.endswith(self.suffix):
            return node
        if not all(isinstance(part, ast.Constant) for part in _choices(right)):
            return node
        self.found = True
        return _selection(left, right)


def _choices(node: ast.expr) -> list[ast.expr]:
    """Return what a conditional expression may evaluate to."""
    if isinstance(node, ast.IfExp):
        return [*_choices(node.body), *_choices(node.orelse)]
    return [node]


def _selection(cotangent: ast.Name, factor: ast.expr) -> ast.expr:
    if isinstance(factor, ast.IfExp):
        sides = (_selection(cotangent, side) for side in (factor.body, factor.orelse))
        return ast.IfExp(factor.test, *sides)
    assert isinstance(factor, ast.Constant)
    if factor.value == 0.0:
        return ast.Constant(0.0)
    return cotangent if factor.value == 1.0 else ast.BinOp(cotangent, ast.Mult(), factor)


def end_early(body: list[ast.stmt], replaced: Collection[int]) -> bool:
    """Let loops of a block end when their cotangent is 0; return whether there are any.

    Those with ids in `replaced` stay as they are.
    """
    found = False
    for place, node in enumerate(body):
        for block in blocks_of(node):
            found |= end_early(block, replaced)
        if isinstance(node, ast.For) and id(node) not in replaced and _depends_on_one(node):
            (guard,) = node.body
            assert isinstance(guard, ast.If)
            leave = ast.If(ast.UnaryOp(ast.Not(), guard.test), [ast.Break()], [])
            node.body = [*guard.body, leave]
            body[place] = ast.If(guard.test, [node], [])
            found = True
    return found


def _depends_on_one(loop: ast.For) -> bool:
    """Whether every iteration does nothing if one cotangent is 0."""
    (guard,) = loop.body if len(loop.body) == 1 else (None,)
    return (
        isinstance(guard, ast.If)
        and not guard.orelse
        and isinstance(guard.test, ast.Call)
        and ast.unparse(guard.test.func) == MATTERS
    )
