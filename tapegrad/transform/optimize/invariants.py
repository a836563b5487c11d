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

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.independence.sums import blocks_of
from tapegrad.transform.optimize.function import Function


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
    read = used(loop.iter)
    found: list[ast.stmt] = []
    for node in loop.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if (
            isinstance(node, ast.Assign)
            and isinstance(target, ast.Name)
            and _is_sum(node.value, facts)
            and not used(node.value) & changing
            and target.id not in needed | read
            and _times(loop.body, target.id) == 1
        ):
            found.append(node)
            changing.discard(target.id)
        else:
            read |= used(node)
    return found


def _times(body: list[ast.stmt], name: str) -> int:
    """Return in how many places a name is assigned."""
    return sum(
        isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Store)
        for node in body
        for part in ast.walk(node)
    )


def _is_sum(node: ast.expr, facts: Facts) -> bool:
    """Whether an expression adds integers, so that it cannot fail."""
    if isinstance(node, ast.BinOp):
        is_sum = isinstance(node.op, (ast.Add, ast.Sub))
        return is_sum and _is_sum(node.left, facts) and _is_sum(node.right, facts)
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, ast.Name) and types.unliteral(facts.kind(node.id)) == types.int64
