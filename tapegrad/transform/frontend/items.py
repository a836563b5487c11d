"""Lists of floats as values, and how many items the statements of a loop append to them."""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform.frontend.atoms import Env, same
from tapegrad.transform.frontend.inner_functions import Inlined
from tapegrad.transform.ir import constant, names_in
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
        match node:
            case ast.Call(ast.Attribute(ast.Name(id=items), method)):
                if method in ("append", "extend", "pop", "clear"):
                    found[items] = None
            case ast.AugAssign(ast.Name(id=items)):
                found[items] = None
            case Inlined(definition=definition, args=args):
                todo += definition.body
                found.update({part.id: None for part in args if isinstance(part, ast.Name)})
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
            match part:
                case ast.Name(id=changed, ctx=ast.Store() | ast.Del()):
                    self.changing.add(changed)
                case ast.Assign(value=ast.Name(id=other)):
                    self.is_unclear |= isinstance(env.get(other), Items)  # an alias

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
            match node:
                case ast.Expr(Inlined(definition=called, args=args)) if (
                    identifier in called.captured
                ):
                    if any(_mentions(part, identifier) for part in args):
                        return None
                    before = self.changing
                    self.changing = before | called.bound
                    parts = [self.count(called.body, identifier)]
                    self.changing = before
                case ast.If(test, then, orelse):
                    if _grows(test, identifier):
                        return None
                    parts = [self.count(block, identifier) for block in (then, orelse)]
                case ast.For(_, over, body):
                    if _grows(over, identifier):
                        return None
                    inner = self.count(body, identifier)
                    if inner is None:
                        return None
                    if same(inner, constant(0)):
                        continue
                    trips = self.trips(over)
                    parts = [None if trips is None else ast.BinOp(inner, ast.Mult(), trips)]
                case _ if _grows(node, identifier):
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
        for read in names_in(node):
            if read in self.lists.body.local:
                if read in self.changing or isinstance(self.env.get(read), Items | None):
                    return None
        length = ast.Name("len", ast.Load())
        return ast.Call(length, [node], []) if "len" not in self.lists.body.local else None


def _appends(node: ast.stmt, identifier: str) -> bool:
    """Whether a statement appends an item to a list and does not change it otherwise."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(id=items), "append"), args)):
            return items == identifier and not any(_grows(part, identifier) for part in args)
    return False


def _mentions(node: ast.AST, identifier: str) -> bool:
    return identifier in names_in(node)


def _grows(node: ast.AST, identifier: str) -> bool:
    """Whether a statement may make a list longer."""
    for part in subtree(node):
        match part:
            case Inlined() if _mentions(part, identifier):
                return True
            case ast.AugAssign(ast.Name(id=items)) if items == identifier:
                return True
            case ast.Attribute(owner, "append" | "extend") if _mentions(owner, identifier):
                return True
    return False
