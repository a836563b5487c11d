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


def live(
    nodes: list[ast.stmt],
    after: set[str],
    left: set[str] | None = None,
    at: dict[int, set[str]] | None = None,
) -> set[str]:
    """Return the names live at the start of a block, given those live after it.

    Parameters
    ----------
    nodes
        The block.
    after
        The names that are live after it.
    left
        Those that are live after the loop around it, which a ``break`` leaves.
    at
        If given, the names live after each statement are entered here, by the statement's id.
    """
    for node in reversed(nodes):
        if at is not None:
            at[id(node)] = at.get(id(node), set()) | after
        if isinstance(node, ast.If):
            sides = [live(block, after, left, at) for block in (node.body, node.orelse)]
            after = used(node.test).union(*sides)
        elif isinstance(node, ast.For):
            exits = {part.id for part in getattr(node, "exit", ())}
            targets = set(assigned([ast.Assign([node.target], node.iter)]))
            once = live(node.body, after | exits, after, at) - targets
            once = live(node.body, after | exits | once, after, at) - targets
            after = after | once | used(node.iter) | used(node.target)
        elif isinstance(node, ast.While):
            exits = {part.id for part in getattr(node, "exit", ())}
            around = after | exits | used(node.test)
            once = live(node.body, around, after, at)
            after = after | used(node.test) | live(node.body, around | once, after, at)
        elif isinstance(node, ast.Break) and left is not None:
            after = left
        else:
            killed = set()
            if isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value):
                killed = set(assigned([node]))
            read = used(node)
            if isinstance(node, ast.AugAssign):
                read |= set(assigned([node]))
            after = (after - killed) | read
    return after


def live_after(nodes: list[ast.stmt], target: ast.stmt) -> set[str]:
    """Return the names that are live after a statement of the body of a function."""
    after: dict[int, set[str]] = {}
    live(nodes, set(), None, after)
    return after.get(id(target), set())
