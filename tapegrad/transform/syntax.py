"""The nodes of Python's syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_LEAVES = frozenset([ast.Name, ast.Constant])  # have no parts but a context


def subtree(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes inside, like `ast.walk`, which takes four times as long.

    The contexts of names (``ast.Load`` and others) are left out.

    Parameters
    ----------
    tree
        The node. Its parts may be changed after they were yielded.
    """
    found = [tree]
    push = found.append
    for node in found:
        if type(node) not in _LEAVES:
            parts = node.__dict__
            for field in node._fields:
                part = parts.get(field)
                if isinstance(part, ast.AST):
                    push(part)
                elif type(part) is list:
                    for item in part:
                        if isinstance(item, ast.AST):
                            push(item)
        yield node


def may_leave(node: ast.AST) -> bool:
    """Whether a statement may leave the block that it is in, before the end of the block."""
    return any(isinstance(n, (ast.Break, ast.Continue, ast.Return)) for n in subtree(node))
