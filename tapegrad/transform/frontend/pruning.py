"""Removes branches that numba considers dead before type inference.

numba decides conditions on constants that have a form it recognizes. In the normal form it would
decide other conditions, and variables that branches assign would have other types. So numba's own
passes are run on the function as the user wrote it, and the dead branches are removed from the
syntax tree.
"""

from __future__ import annotations

import ast
from typing import Any

from numba.core.errors import NumbaError, UnsupportedBytecodeError

from tapegrad.transform.frontend.branch_decisions import FIRST_LINE, jumps_of, numbered
from tapegrad.transform.frontend.conditions import (
    UNDECIDED,
    Condition,
    Conditions,
    Jump,
    after,
    constant_truth,
    has_calls,
)
from tapegrad.transform.frontend.jumps import always_jumps
from tapegrad.transform.frontend.source import Source
from tapegrad.transform.frontend.undecided import all_undecided


def prune(source: Source, kinds: tuple[Any, ...]) -> None:
    """Remove branches that numba considers dead from the tree of a function.

    Parameters
    ----------
    source
        The function.
    kinds
        numba types of its arguments.
    """
    conditions = Conditions()
    for statement in source.tree.body:
        conditions.visit(statement)
    if not conditions.found:
        return
    if all_undecided(source, conditions.found, kinds):
        for condition in conditions.found:
            condition.decide([Jump(False, {UNDECIDED}) for _ in condition.operands])
    elif not _decide(source, conditions.found, kinds):
        return
    pruner = _Pruner({id(condition.node): condition for condition in conditions.found})
    source.tree.body = pruner.block(source.tree.body)


def _decide(source: Source, conditions: list[Condition], kinds: tuple[Any, ...]) -> bool:
    """Find numba's decisions on the conditions; return whether it supports the function."""
    try:
        twin, owners = numbered(source, conditions)
        jumps = jumps_of(twin, kinds)
    except (NumbaError, UnsupportedBytecodeError, NotImplementedError):
        return False  # unsupported code is refused later, with its line
    for number, condition in enumerate(conditions):
        lines = [FIRST_LINE + k for k, owner in enumerate(owners) if owner == number]
        condition.decide([jumps.get(line, Jump(False)) for line in lines])
    return True


class _Pruner(ast.NodeTransformer):
    """Removes dead branches."""

    def __init__(self, conditions: dict[int, Condition]) -> None:
        self.conditions = conditions

    def block(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that remain."""
        found: list[ast.stmt] = []
        for node in nodes:
            left = self.visit(node)
            found += left if isinstance(left, list) else [left]
            if always_jumps(found):
                break
        return found or [ast.copy_location(ast.Pass(), nodes[0])]

    def body(self, node: Any, names: tuple[str, ...]) -> Any:
        for part in names:
            if nodes := getattr(node, part):
                setattr(node, part, self.block(nodes))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.body(node, ("body",))

    def visit_For(self, node: ast.For) -> ast.AST:
        node.iter = self.visit(node.iter)
        return self.body(node, ("body", "orelse"))

    def visit_If(self, node: ast.If | ast.While) -> Any:
        condition = self.conditions[id(node)]
        test = condition.left(node.test, self.visit)
        if test is True and isinstance(node, ast.While):
            test = ast.copy_location(ast.Constant(True), node.test)  # its body runs many times
        if not isinstance(test, bool):
            node.test = condition.marked(test)
            return self.body(node, ("body", "orelse"))
        left = node.body if test else node.orelse
        asked = self.effects(node.test, node)
        return asked + (self.block(left) if left else [])

    visit_While = visit_If  # noqa: N815

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        condition = self.conditions.get(id(node))
        if condition is None:
            return self.generic_visit(node)
        test = condition.left(node.test, self.visit)
        if not isinstance(test, bool):
            node.test = condition.marked(test)
            node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
            return node
        return after(node.test, self.visit(node.body if test else node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        condition = self.conditions.get(id(node))
        if condition is None:
            return self.generic_visit(node)
        either = isinstance(node.op, ast.Or)
        values = []
        for value in node.values[:-1]:
            decision = condition.on(value)
            if (known := constant_truth(value)) is not None:
                decision = known
            if decision is (not either) and not has_calls(value):
                continue
            values.append(self.visit(value))
            if decision is either:
                break
        else:
            values.append(self.visit(node.values[-1]))
        node.values = values
        return condition.marked(node) if len(values) > 1 else values[0]

    def effects(self, test: ast.expr, node: ast.stmt) -> list[ast.stmt]:
        """Return statements that evaluate a condition for its side effects, if it may have any."""
        if not has_calls(test):
            return []
        return [ast.copy_location(ast.Expr(test), node)]
