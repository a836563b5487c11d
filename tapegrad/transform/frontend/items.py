"""Lists of floats as values, and how many items the statements of a loop append to them."""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform.frontend.atoms import Env, same
from tapegrad.transform.frontend.inner_functions import Inlined
from tapegrad.transform.ir import constant
from tapegrad.transform.syntax import subtree


class Items(ast.expr):
    """A list of floats as a value, identified by the number of the place that made it.

    Its array and its length are variables that change with the list.
    """

    _fields = ()
    site: int


def array_of(items: Items) -> str:
    """Return the variable that holds the array of a list."""
    return f"items {items.site}"


def length_of(items: Items) -> str:
    """Return the variable that holds the length of a list."""
    return f"length {items.site}"


def touched(nodes: list[ast.stmt]) -> list[str]:
    """Return the names of possible lists whose length statements may change."""
    found: dict[str, None] = {}
    todo: list[ast.AST] = list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "extend", "pop", "clear"):
                if isinstance(node.func.value, ast.Name):
                    found[node.func.value.id] = None
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = None
        elif isinstance(node, Inlined):
            todo += node.definition.body
            found.update({part.id: None for part in node.args if isinstance(part, ast.Name)})
        todo += ast.iter_child_nodes(node)
    return list(found)


class Appends:
    """How many items the iterations of a loop append to lists."""

    def __init__(self, lists: Any, loop: ast.For, env: Env) -> None:
        self.lists = lists
        self.env = env
        self.changing: set[str] = set()
        self.is_unclear = False
        for part in [node for s in (loop, *loop.body) for node in subtree(s)]:
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                self.changing.add(part.id)
            if isinstance(part, ast.Assign) and isinstance(part.value, ast.Name):
                self.is_unclear |= isinstance(env.get(part.value.id), Items)  # an alias

    def count(self, nodes: list[ast.stmt], identifier: str) -> ast.expr | None:
        """Return an upper bound on the items that statements append to a list, None if unclear."""
        if identifier in self.changing:
            return None
        total: ast.expr | None = None
        number = 0
        for node in nodes:
            parts: list[ast.expr | None] = []
            if _appends(node, identifier):
                number += 1
                continue
            if not _mentions(node, identifier):
                continue
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, Inlined) and identifier in call.definition.captured:
                if any(_mentions(part, identifier) for part in call.args):
                    return None
                before = self.changing
                self.changing = before | call.definition.bound
                parts = [self.count(call.definition.body, identifier)]
                self.changing = before
            elif isinstance(node, ast.If):
                if _grows(node.test, identifier):
                    return None
                parts = [self.count(block, identifier) for block in (node.body, node.orelse)]
            elif isinstance(node, ast.For):
                if _grows(node.iter, identifier):
                    return None
                inner = self.count(node.body, identifier)
                if inner is None:
                    return None
                if same(inner, constant(0)):
                    continue
                trips = self.trips(node.iter)
                parts = [None if trips is None else ast.BinOp(inner, ast.Mult(), trips)]
            elif _grows(node, identifier):
                return None
            for part in parts:
                if part is None:
                    return None
                if not same(part, constant(0)):
                    total = part if total is None else ast.BinOp(total, ast.Add(), part)
        if total is None:
            return ast.Constant(number)
        return ast.BinOp(total, ast.Add(), ast.Constant(number)) if number else total

    def trips(self, node: ast.expr) -> ast.expr | None:
        """Return the trip count of an inner loop, None if it may change."""
        if isinstance(node, ast.Call):
            function = self.lists.body.static_value(node.func)
            if function in (enumerate, zip, reversed) and node.args:
                return self.trips(node.args[0])
            if function is not range or node.keywords:
                return None
        elif not isinstance(node, ast.Name):
            return None
        if self.lists.body.has_effects(node):
            return None
        for part in subtree(node):
            if isinstance(part, ast.Name) and part.id in self.lists.body.local:
                if part.id in self.changing or part.id not in self.env:
                    return None
                if isinstance(self.env[part.id], Items):
                    return None
        length = ast.Name("len", ast.Load())
        return ast.Call(length, [node], []) if "len" not in self.lists.body.local else None


def _appends(node: ast.stmt, identifier: str) -> bool:
    """Whether a statement appends an item to a list and does not change it otherwise."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "append"
        and isinstance(node.value.func.value, ast.Name)
        and node.value.func.value.id == identifier
        and not any(_grows(part, identifier) for part in node.value.args)
    )


def _mentions(node: ast.AST, identifier: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == identifier for part in subtree(node))


def _grows(node: ast.AST, identifier: str) -> bool:
    """Whether a statement may make a list longer."""
    for part in subtree(node):
        if isinstance(part, Inlined) and _mentions(part, identifier):
            return True
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            if part.target.id == identifier:
                return True
        if isinstance(part, ast.Attribute) and part.attr in ("append", "extend"):
            if _mentions(part.value, identifier):
                return True
    return False
