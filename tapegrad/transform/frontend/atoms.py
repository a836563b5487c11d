"""Atoms: names and constants, which variables stand for."""

from __future__ import annotations

import ast

# the value of every variable; names with a space are internal
Env = dict[str, ast.expr]


def same(one: ast.expr | None, two: ast.expr | None) -> bool:
    """Whether two atoms are the same."""
    if one is None or two is None or type(one) is not type(two):
        return one is two
    if hasattr(one, "site") and hasattr(two, "site"):
        return one.site == two.site
    match one, two:
        case ast.Name(id=first), ast.Name(id=second):
            return first == second
        case ast.Constant(first), ast.Constant(second):
            return type(first) is type(second) and repr(first) == repr(second)
    return False
