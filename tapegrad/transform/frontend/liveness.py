"""Names that Python statements assign and read, and names that are live at their start."""

from __future__ import annotations

import ast


def assigned(nodes: list[ast.stmt]) -> list[str]:
    """Return the names that statements assign, in order."""
    found: dict[str, None] = {}
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                found[part.id] = None
    return list(found)


def used(node: ast.AST) -> set[str]:
    """Return the names that a node reads."""
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }


def live(nodes: list[ast.stmt], after: set[str]) -> set[str]:
    """Return the names live at the start of a block, given those live after it."""
    for node in reversed(nodes):
        if isinstance(node, ast.If):
            after = used(node.test) | live(node.body, after) | live(node.orelse, after)
        elif isinstance(node, ast.For):
            exits = {part.id for part in getattr(node, "exit", ())}
            targets = set(assigned([ast.Assign([node.target], node.iter)]))
            once = live(node.body, after | exits) - targets
            once = live(node.body, after | exits | once) - targets
            after = after | once | used(node.iter) | used(node.target)
        elif isinstance(node, ast.While):
            exits = {part.id for part in getattr(node, "exit", ())}
            around = after | exits | used(node.test)
            once = live(node.body, around)
            after = after | used(node.test) | live(node.body, around | once)
        else:
            killed = set()
            if isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value):
                killed = set(assigned([node]))
            read = used(node)
            if isinstance(node, ast.AugAssign):
                read |= set(assigned([node]))
            after = (after - killed) | read
    return after
