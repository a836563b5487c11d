"""Indices that all iterations of a loop share are computed before it.

So it is seen that iterations of the inner loop use neighbouring elements::

    for i in range(n):                  for i in range(n):
        for j in range(m):                  k = 1 + i
            k = 1 + i                       for j in range(m):
            l = 1 + j                           l = 1 + j
            total += x[k, l]                    total += x[k, l]
"""

from __future__ import annotations

import ast
from collections.abc import Hashable

from numba.core import types

from tapegrad.transform.frontend.liveness import assigned, times_assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.syntax import binding, blocks_of, key_of, nodes_in


def move_out_invariants(function: Function) -> bool:
    """Move assignments of sums of integers before loops in which they do not change."""
    return _move_out(function.tree.body, function.analyses.live_after, function.facts)


def _move_out(body: list[ast.stmt], live_after: dict[int, set[str]], facts: Facts) -> bool:
    is_changed = False
    for node in [*body]:
        for block in blocks_of(node):
            is_changed |= _move_out(block, live_after, facts)
        if isinstance(node, ast.For):
            found = _invariants(node, live_after[id(node)], facts)
            node.body = [part for part in node.body if part not in found] or [ast.Pass()]
            place = body.index(node)
            body[place:place] = _once(found, node)
            is_changed |= bool(found)
    return is_changed


def _once(found: list[ast.stmt], loop: ast.For) -> list[ast.stmt]:
    """Return assignments before a loop without equal ones; the loop uses the names of the first.

    So two indices of the loop are seen to be equal.
    """
    names: dict[str, str] = {}
    kept: dict[Hashable, ast.stmt] = {}
    for node in found:
        bound = binding(node)
        assert bound is not None
        target, value = bound
        _rename(value, names)
        first = binding(kept.setdefault(key_of(value), node))
        assert first is not None
        if first[0] != target:
            names[target] = first[0]
    _rename(loop, names)
    return [*kept.values()]


def _rename(tree: ast.AST, names: dict[str, str]) -> None:
    for node in nodes_in(tree, ast.Name):
        node.id = names.get(node.id, node.id)


def _invariants(loop: ast.For, needed: set[str], facts: Facts) -> list[ast.stmt]:
    """Return the statements of a loop that can be before it.

    Parameters
    ----------
    needed
        The names whose values the loop leaves to what follows it.
    """
    changing = {*assigned([loop])}
    times = times_assigned(loop.body)
    read = used(loop.iter)
    found: list[ast.stmt] = []
    for node in loop.body:
        match binding(node):
            case (target, value) if (
                _is_sum(value, facts)
                and not used(value) & changing
                and target not in needed | read
                and times[target] == 1
            ):
                found.append(node)
                changing.discard(target)
            case _:
                read |= used(node)
    return found


def _is_sum(node: ast.expr, facts: Facts) -> bool:
    """Whether an expression adds integers, so that it cannot fail."""
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return _is_sum(left, facts) and _is_sum(right, facts)
        case ast.Constant(value):
            return type(value) is int
        case ast.Name(id=name):
            return bool(types.unliteral(facts.kind(name)) == types.int64)
    return False
