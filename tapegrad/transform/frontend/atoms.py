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
    if isinstance(one, ast.Name) and isinstance(two, ast.Name):
        return one.id == two.id
    if isinstance(one, ast.Constant) and isinstance(two, ast.Constant):
        return type(one.value) is type(two.value) and repr(one.value) == repr(two.value)
    return False
