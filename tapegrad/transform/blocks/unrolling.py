"""Short loops of constant length, written out."""

from __future__ import annotations

import ast
import copy

from tapegrad.transform.frontend.liveness import assigned

MOST_TRIPS = 4
MOST_STATEMENTS = 40


def unrolled(tree: ast.FunctionDef) -> ast.FunctionDef:
    """Return a function in which short loops are written out if they are all that loops contain."""
    made = copy.deepcopy(tree)
    for node in ast.walk(made):
        if isinstance(node, ast.For):
            inner = [part for part in ast.walk(node) if isinstance(part, (ast.For, ast.While))]
            if len(inner) > 1 and all(map(_is_short, inner[1:])):
                _unroll(node)
    return made


def _is_short(node: ast.stmt) -> bool:
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name):
        return False
    if any(isinstance(part, (ast.Break, ast.Continue)) for part in ast.walk(node)):
        return False
    trips = _trips(node)
    return trips is not None and len(trips) <= MOST_TRIPS and len(node.body) <= MOST_STATEMENTS


def _trips(node: ast.For) -> range | None:
    """Return the constant range of a loop, None if it has none."""
    call = node.iter
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "range":
        return None
    try:
        return range(*map(int, map(ast.unparse, call.args)))
    except ValueError:
        return None


def _unroll(node: ast.stmt) -> None:
    """Write out the loops that a statement contains."""
    for name in ("body", "orelse"):
        block = getattr(node, name, None)
        if not block:
            continue
        found: list[ast.stmt] = []
        for part in block:
            _unroll(part)
            if isinstance(part, ast.For):
                found += _written_out(part)
            else:
                found.append(part)
        setattr(node, name, found)


def _written_out(loop: ast.For) -> list[ast.stmt]:
    assert isinstance(loop.target, ast.Name)
    trips = _trips(loop)
    assert trips is not None
    if loop.target.id in assigned(loop.body):
        return [loop]
    found: list[ast.stmt] = []
    for number in trips:
        replaced = _Replaced(loop.target.id, number)
        found += [replaced.visit(copy.deepcopy(node)) for node in loop.body]
    return found or [ast.Pass()]


class _Replaced(ast.NodeTransformer):
    """Puts a number in the place of a name."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.number) if node.id == self.name else node
