"""Variables that hold ranges are replaced by numbers, which branches and loops can carry.

``r = range(a, b)`` becomes ``first, end = a, b``, and uses of ``r`` become ``range(first, end)``.
The number of arguments does not change, since it determines the type of the range.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeGuard

from tapegrad.transform.frontend.inner_functions import Inlined
from tapegrad.transform.syntax import has_starred, subtree


def replace_ranges(
    body: list[ast.stmt],
    params: set[str],
    value: Callable[[ast.expr], Any],
    fresh: Callable[[str], str],
) -> list[ast.stmt]:
    """Return the statements of a function without variables that hold ranges.

    Parameters
    ----------
    body
        The statements, which are changed.
    params
        The parameters of the function.
    value
        Returns the value of an expression without local variables.
    fresh
        Returns a new name.
    """
    nodes = [node for statement in body for node in subtree(statement)]
    stores = Counter(n.id for n in nodes if isinstance(n, ast.Name) and _is_stored(n))
    inner = {n.id for i in nodes if isinstance(i, Inlined) for n in i.captured}
    made: dict[str, list[ast.Call]] = {}
    for node in nodes:
        for target, made_of in _pairs(node):
            if isinstance(target, ast.Name) and _is_range(made_of, value):
                made.setdefault(target.id, []).append(made_of)
    ranges = {}
    bounds_of = {}  # of calls, by id
    for identifier, calls in made.items():
        if len(calls) == stores[identifier] and identifier not in params | inner:
            count = max(len(call.args) for call in calls)
            parts = ("end",) if count == 1 else ("first", "end", "step")[:count]
            bounds = [fresh(f"{identifier}_{part}") for part in parts]
            ranges[identifier] = calls[0].func, bounds
            bounds_of.update({id(call): _bounds(call.args, count) for call in calls})
    if not ranges:
        return body
    rewriter = _Rewriter(ranges, bounds_of)
    return [rewriter.visit(statement) for statement in body]


def _pairs(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment, each with its value."""
    match node:
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            if not has_starred((*targets, *values)):
                return list(zip(targets, values, strict=False))
        case ast.Assign([target], value):
            return [(target, value)]
    return []


def _is_stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_range(node: ast.expr, value: Callable[[ast.expr], Any]) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and value(node.func) is range
        and not node.keywords
        and not has_starred(node.args)
    )


def _bounds(given: list[ast.expr], count: int) -> list[ast.expr]:
    """Return the end of a range, its start and end, or its start, end and step."""
    first: list[ast.expr] = [ast.Constant(0)] if len(given) < min(count, 2) else []
    step: list[ast.expr] = [ast.Constant(1)] if len(given) < 3 == count else []
    return [*first, *given, *step]


class _Rewriter(ast.NodeTransformer):
    """Replaces assigned ranges by their bounds, and reads by ranges of these bounds."""

    def __init__(
        self,
        ranges: dict[str, tuple[ast.expr, list[str]]],
        bounds_of: dict[int, list[ast.expr]],
    ) -> None:
        self.ranges = ranges
        self.bounds_of = bounds_of

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.ranges:
            return node
        function, bounds = self.ranges[node.id]
        names: list[ast.expr] = [ast.Name(n, node.ctx) for n in bounds]
        stored = isinstance(node.ctx, ast.Store)
        made = ast.Tuple(names, node.ctx) if stored else ast.Call(function, names, [])
        return ast.fix_missing_locations(ast.copy_location(made, node))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        bounds = self.bounds_of.get(id(node))
        if bounds is None:
            return self.generic_visit(node)
        return ast.copy_location(ast.Tuple([self.visit(b) for b in bounds], ast.Load()), node)
