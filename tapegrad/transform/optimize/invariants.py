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

from numba.core import types

from tapegrad.transform.frontend.liveness import assigned, times_assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.syntax import binding, blocks_of


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
            body[place:place] = found
            is_changed |= bool(found)
    return is_changed


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
