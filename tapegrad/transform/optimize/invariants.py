"""Indices that all iterations of a loop share are computed, or read, before it.

So it is seen that iterations of the inner loop use neighbouring elements::

    for i in range(n):                  for i in range(n):
        for j in range(m):                  k = 1 + i
            k = 1 + i                       for j in range(m):
            l = 1 + j                           l = 1 + j
            total += x[k, l]                    total += x[k, l]

What is read from an array of integers is read only if there is an iteration::

    for i in range(n):                  for i in range(n):
        for j in range(m):                  k = rows[i] if 0 < m else 0
            k = rows[i]                     for j in range(m):
            total += x[k, j]                    total += x[k, j]
"""

from __future__ import annotations

import ast
from collections.abc import Hashable

from numba.core import types

from tapegrad.transform.frontend.liveness import assigned, times_assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.independence.plan import range_of
from tapegrad.transform.nodes import integer
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.sharing.flow import Flow
from tapegrad.transform.syntax import (
    arguments_of,
    array_of,
    binding,
    blocks_of,
    has,
    key_of,
    leaves,
    may_leave,
    nodes_in,
    subtree,
)
from tapegrad.transform.trees import quoted


def move_out_invariants(function: Function) -> bool:
    """Move assignments of integers before loops in which they do not change."""
    analyses = function.analyses
    return _move_out(function.tree.body, analyses.live_after, function.facts, analyses.flow)


def _move_out(
    body: list[ast.stmt], live_after: dict[int, set[str]], facts: Facts, flow: Flow
) -> bool:
    is_changed = False
    for node in [*body]:
        for block in blocks_of(node):
            is_changed |= _move_out(block, live_after, facts, flow)
        if isinstance(node, ast.For):
            found = _invariants(node, live_after[id(node)], facts, flow)
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


def _invariants(loop: ast.For, needed: set[str], facts: Facts, flow: Flow) -> list[ast.stmt]:
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
    runs, written = _runs(loop), _written(loop, facts)
    for node in loop.body:
        match binding(node):
            case (target, value) if (
                not used(value) & changing and target not in needed | read and times[target] == 1
            ):
                is_sum = _is_sum(value, facts)
                if is_sum or (runs is not None and _is_item(value, facts, flow, written)):
                    found.append(node if is_sum or runs is None else _assigned(node, runs))
                    changing.discard(target)
                    continue
        read |= used(node)
        if may_leave(node) or has(node, ast.Raise):  # what is read afterwards may not be there
            runs = None
    return found


def _runs(loop: ast.For) -> ast.expr | None:
    """Return whether there is an iteration, None if that is not known."""
    if arguments_of(loop.iter, "range") is None:
        return None
    start, stop, step = range_of(loop.iter)
    length = integer(step)
    if not length:
        return None
    first, last = integer(start), integer(stop)
    if first is not None and last is not None:
        return ast.Constant(len(range(first, last, length)) > 0)
    order = "start < stop" if length > 0 else "start > stop"
    return quoted(order, start=start, stop=stop)


def _assigned(node: ast.stmt, runs: ast.expr) -> ast.stmt:
    """Let a statement assign what it reads if a loop runs, and 0 otherwise."""
    assert isinstance(node, ast.Assign)
    if not isinstance(runs, ast.Constant):
        node.value = quoted("value if runs else 0", value=node.value, runs=runs)
    elif not runs.value:
        node.value = ast.Constant(0)
    return node


def _is_item(node: ast.expr, facts: Facts, flow: Flow, written: set[str] | None) -> bool:
    """Whether an expression reads an integer, by given indices, from an array not `written`."""
    array = array_of(node)
    kind = facts.kind(array) if array else None
    if not isinstance(kind, types.Array) or kind.dtype != types.int64 or written is None:
        return False
    assert isinstance(node, ast.Subscript)
    parts = leaves(node.slice)
    are_given = len(parts) == kind.ndim and all(_is_sum(part, facts) for part in parts)
    return are_given and not any(flow.may_share(array, other) for other in written)


def _written(loop: ast.For, facts: Facts) -> set[str] | None:
    """Return the names whose elements a loop may write, None if it may write to others.

    It stores to them, or calls get them: arrays, and all that may hold arrays.
    """
    found: set[str] = set()
    for node in subtree(loop):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in leaves(target)]
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
            if isinstance(node.target, ast.Name) and not _is_number(facts, node.target.id):
                found.add(node.target.id)
        for target in targets:
            if isinstance(target, ast.Name):
                continue
            if not array_of(target):
                return None
            found.add(array_of(target))
        for call in nodes_in(node, ast.Call):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            found |= {n for part in given for n in used(part) if not _is_number(facts, n)}
            if isinstance(call.func, ast.Attribute):  # a method, or a function of a module
                found |= {n for n in used(call.func.value) if n in facts.kinds}
    return found


def _is_number(facts: Facts, name: str) -> bool:
    return isinstance(facts.kind(name), (types.Number, types.Boolean))


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
