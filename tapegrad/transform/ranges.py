"""Variables that are ranges: they become numbers, which branches and loops can hand on.

``r = range(a, b)`` is ``first, end, step = a, b, 1``; what reads ``r`` reads
``range(first, end, step)``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from typing import Any

from tapegrad.transform.inner_functions import Inlined


def replace_ranges(
    body: list[ast.stmt],
    params: set[str],
    value: Callable[[ast.expr], Any],
    fresh: Callable[[str], str],
) -> list[ast.stmt]:
    """Return the statements of a function without variables that are ranges.

    Parameters
    ----------
    body
        The statements, which are changed.
    params
        The parameters of the function.
    value
        Returns what an expression stands for that is known outside of the function.
    fresh
        Returns a new name.
    """
    nodes = [node for statement in body for node in ast.walk(statement)]
    stores = Counter(n.id for n in nodes if isinstance(n, ast.Name) and _is_stored(n))
    inner = {n.id for i in nodes if isinstance(i, Inlined) for n in i.captured}
    made: dict[str, list[ast.Assign]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_range(node.value, value):
            target = node.targets[0]
            if len(node.targets) == 1 and isinstance(target, ast.Name):
                made.setdefault(target.id, []).append(node)
    ranges = {}
    for identifier, assignments in made.items():
        if len(assignments) == stores[identifier] and identifier not in params | inner:
            bounds = [fresh(f"{identifier}_{part}") for part in ("first", "end", "step")]
            ranges[identifier] = assignments[0].value.func, bounds
            for node in assignments:
                names = ast.Tuple([ast.Name(n, ast.Store()) for n in bounds], ast.Store())
                node.targets = [ast.copy_location(names, node.targets[0])]
                node.value = ast.copy_location(_bounds(node.value.args), node.value)
                ast.fix_missing_locations(node)
    reader = _Reader(ranges)
    return [reader.visit(statement) for statement in body] if ranges else body


def _is_stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_range(node: ast.expr, value: Callable[[ast.expr], Any]) -> bool:
    return (
        isinstance(node, ast.Call)
        and value(node.func) is range
        and not node.keywords
        and not any(isinstance(argument, ast.Starred) for argument in node.args)
    )


def _bounds(given: list[ast.expr]) -> ast.Tuple:
    """Return the start, the end and the step of a range."""
    first = [ast.Constant(0)] if len(given) == 1 else []
    step = [] if len(given) == 3 else [ast.Constant(1)]
    return ast.Tuple([*first, *given, *step], ast.Load())


class _Reader(ast.NodeTransformer):
    """Makes ranges of their bounds where they are read."""

    def __init__(self, ranges: dict[str, tuple[ast.expr, list[str]]]) -> None:
        self.ranges = ranges

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.ranges:
            return node
        function, bounds = self.ranges[node.id]
        made = ast.Call(function, [ast.Name(n, ast.Load()) for n in bounds], [])
        return ast.fix_missing_locations(ast.copy_location(made, node))
