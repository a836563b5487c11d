"""Names that Python statements assign and read, and names that are live at their start."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from tapegrad.transform.syntax import subtree


def assigned(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the names that statements assign, in order."""
    return list(dict.fromkeys(_names(nodes, ast.Store)))


def times_assigned(nodes: Iterable[ast.AST]) -> Counter[str]:
    """Return in how many places statements assign each name."""
    return Counter(_names(nodes, ast.Store))


def used(node: ast.AST) -> set[str]:
    """Return the names that a node reads."""
    return set(_names([node], ast.Load))


def _names(nodes: Iterable[ast.AST], context: type[ast.expr_context]) -> Iterator[str]:
    """Yield the names that nodes use in a way, with repetitions."""
    for node in nodes:
        for part in subtree(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, context):
                yield part.id


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
    return _Liveness(at).before(nodes, after, left)


class _Liveness:
    """One analysis: bodies of loops are gone through several times, their nodes are read once."""

    def __init__(self, at: dict[int, set[str]] | None) -> None:
        self.at = at
        self._used: dict[int, set[str]] = {}
        self._assigned: dict[int, set[str]] = {}

    def used(self, node: ast.AST) -> set[str]:
        found = self._used.get(id(node))
        if found is None:
            found = self._used[id(node)] = used(node)
        return found

    def assigned(self, node: ast.AST) -> set[str]:
        found = self._assigned.get(id(node))
        if found is None:
            found = self._assigned[id(node)] = set(assigned([node]))
        return found

    def before(self, nodes: list[ast.stmt], after: set[str], left: set[str] | None) -> set[str]:
        at = self.at
        for node in reversed(nodes):
            if at is not None:
                at[id(node)] = at.get(id(node), set()) | after
            match node:
                case ast.If(test, body, orelse):
                    sides = [self.before(block, after, left) for block in (body, orelse)]
                    after = self.used(test).union(*sides)
                case ast.For(target, over, body):
                    exits = {part.id for part in getattr(node, "exit", ())}
                    targets = self.assigned(target)
                    once = self.before(body, after | exits, after) - targets
                    once = self.before(body, after | exits | once, after) - targets
                    after = after | once | self.used(over) | self.used(target)
                case ast.While(test, body):
                    exits = {part.id for part in getattr(node, "exit", ())}
                    around = after | exits | self.used(test)
                    once = self.before(body, around, after)
                    twice = self.before(body, around | once, after)
                    after = after | self.used(test) | twice
                case ast.Break() if left is not None:
                    after = left
                case ast.AugAssign():
                    after = after | self.used(node) | self.assigned(node)
                case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                    after = (after - self.assigned(node)) | self.used(node)
                case _:
                    after = after | self.used(node)
        return after


def live_after(body: list[ast.stmt]) -> dict[int, set[str]]:
    """Return the names that are read after each statement of a function, by its id."""
    after: dict[int, set[str]] = {}
    live(body, set(), None, after)
    return after
