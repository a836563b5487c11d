"""Short loops of constant length, written out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.independence.sums import needed
from tapegrad.transform.nodes import integer
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.syntax import arguments_of, copied, has, is_loop, nodes_in, subtree
from tapegrad.transform.trees import complete

MOST_TRIPS = 4
MOST_STATEMENTS = 40

Names = dict[int, set[str]]  # that are read after statements, by the ids of these


def unroll(function: Function) -> bool:
    """Write out short loops if they are all that loops contain; return whether there are any.

    Names that belong to one iteration have a name for each.
    """
    tree, facts, after = function.tree, function.facts, function.analyses.live_after
    renamed: dict[str, str] = {}  # the new names, with their origins
    found = False
    for node in nodes_in(tree, ast.For):
        inner = [*filter(is_loop, subtree(node))]
        if len(inner) > 1 and all(map(_is_short, inner[1:])):
            _unroll(node, after, function.fresh, renamed)
            found = True
    more = {name: facts.kind(origin) for name, origin in renamed.items()}
    function.facts = replace(facts, kinds={**facts.kinds, **more})
    return found


def _is_short(node: ast.stmt) -> bool:
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name):
        return False
    if has(node, ast.Break, ast.Continue):
        return False
    trips = _trips(node)
    if trips is None or len(trips) > MOST_TRIPS or len(node.body) > MOST_STATEMENTS:
        return False
    if node.target.id in assigned(node.body):
        return False
    for part in subtree(node):
        match part:  # numba has other types for powers, and for calls, of constants
            case ast.Call() | ast.BinOp(op=ast.Pow()) if part is not node.iter:
                if node.target.id in used(part):
                    return False
    return True


def _trips(node: ast.For) -> range | None:
    """Return the constant range of a loop, None if it has none."""
    given = arguments_of(node.iter, "range")
    bounds = [value for part in given or () if (value := integer(part)) is not None]
    return None if given is None or len(bounds) < len(given) else range(*bounds)


def _unroll(
    node: ast.stmt, after: Names, fresh: Callable[[str], str], renamed: dict[str, str]
) -> None:
    """Write out the loops that a statement contains."""
    for name in ("body", "orelse"):
        block = getattr(node, name, None)
        if not block:
            continue
        found: list[ast.stmt] = []
        for part in block:
            _unroll(part, after, fresh, renamed)
            if isinstance(part, ast.For):
                found += _written_out(part, after, fresh, renamed)
            else:
                found.append(part)
        setattr(node, name, found)


def _written_out(
    loop: ast.For, after: Names, fresh: Callable[[str], str], renamed: dict[str, str]
) -> list[ast.stmt]:
    assert isinstance(loop.target, ast.Name)
    trips = _trips(loop)
    assert trips is not None
    own = set(assigned(loop.body)) - needed(loop.body) - after[id(loop)]
    found: list[ast.stmt] = []
    for place, number in enumerate(trips):
        names = {}
        for name in sorted(own):
            names[name] = fresh(f"{name}_{place}")
            renamed[names[name]] = renamed.get(name, name)
        replaced = _Replaced(loop.target.id, number, names)
        found += [replaced.visit(copied(node)) for node in loop.body]
    return found or [ast.Pass()]


class _Replaced(ast.NodeTransformer):
    """Puts a number in the place of a name, and other names in the place of names."""

    def __init__(self, name: str, number: int, names: dict[str, str]) -> None:
        self.name = name
        self.number = complete(ast.Constant(number))
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self.name:
            return copied(self.number)
        node.id = self.names.get(node.id, node.id)
        return node
