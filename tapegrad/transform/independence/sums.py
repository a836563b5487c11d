"""What a loop of generated code passes from one iteration to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.syntax import blocks_of, name_of, nodes_in, paired


def carried(loop: ast.For) -> set[str]:
    """Return the names that an iteration reads from the one before."""
    return needed(loop.body) & set(assigned(loop.body))


def needed(body: list[ast.stmt]) -> set[str]:
    """Return the names that a block may read before it assigns them.

    Forward and reverse code of one iteration often have the same branch twice: what the first one
    assigns, the second one reads.
    """
    found: set[str] = set()
    _note_needed(body, set(), {}, found)
    return found


Sides = dict[tuple[str, bool], set[str]]  # names that are assigned on a side of a condition


def _note_needed(body: list[ast.stmt], given: set[str], sides: Sides, found: set[str]) -> set[str]:
    """Enter the names that a block reads and are not `given`; return what is assigned after it."""
    given, sides = set(given), dict(sides)
    for node in body:
        made = set(assigned([node]))
        match node:
            case ast.If(test, then, orelse):
                found |= used(test) - given
                key, is_positive = _tested(test)
                after = []
                for block, side in ((then, is_positive), (orelse, not is_positive)):
                    before = given | sides.get((key, side), set())
                    after.append(_note_needed(block, before, sides, found))
                    if key:
                        sides[key, side] = after[-1]
                given = after[0] & after[1]
            case ast.For(target, over, inner):
                found |= used(over) - given
                before = given | set(assigned([target]))
                _note_needed(inner, before, _without(sides, made), found)
            case ast.While(test, inner):
                found |= used(test) - given
                _note_needed(inner, given, _without(sides, made), found)
            case ast.AugAssign():
                found |= (used(node) | made) - given
                given |= made
            case _:
                found |= used(node) - given
                given |= made
        sides = _without(sides, made)
    return given


def _without(sides: Sides, names: set[str]) -> Sides:
    """Return the sides of conditions that do not depend on some names."""
    return {place: made for place, made in sides.items() if place[0] not in names}


def _tested(test: ast.expr) -> tuple[str, bool]:
    """Return the name that a condition depends on, "" for none, and whether it is not negated."""
    match test:
        case ast.UnaryOp(ast.Not(), ast.Name(id=name)):
            return name, False
        case ast.Name(id=name):
            return name, True
    return "", True


def is_sum(body: list[ast.stmt], name: str, others: set[str]) -> bool:
    """Whether an iteration only adds to a name that it reads from the one before.

    Each partial sum is then the value at the start plus something that does not depend on it. The
    `others` that are carried must not be among the partial sums.
    """
    sums = {name}
    while True:
        found = {t for t, value in assignments(body) if _extended(value, sums)}
        if found <= sums:
            break
        sums |= found
    return not sums & others and _only_adds(body, sums)


def assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that are assigned one value each, with the values."""
    for node in body:
        for part in nodes_in(node, ast.Assign):
            yield from pairs(part)


def pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement assigns one value each, with the values."""
    for target, value in paired(node.targets[0], node.value):
        if isinstance(target, ast.Name):
            yield target.id, value


def _extended(value: ast.expr, sums: set[str]) -> bool:
    """Whether a value is a partial sum, possibly plus or minus something else."""
    match value:
        case ast.Name(id=name):
            return name in sums
        case ast.BinOp(ast.Name(id=name), ast.Add() | ast.Sub(), other) if name in sums:
            return not used(other) & sums
        case ast.BinOp(other, ast.Add(), ast.Name(id=name)) if name in sums:
            return not used(other) & sums
    return False


def _only_adds(body: list[ast.stmt], sums: set[str]) -> bool:
    """Whether all uses of partial sums yield partial sums, and nothing else is assigned to them."""
    return all(
        _keeps(node, sums) and all(_only_adds(block, sums) for block in blocks_of(node))
        for node in body
    )


def _keeps(node: ast.stmt, sums: set[str]) -> bool:
    """Whether a statement, apart from its blocks, leaves partial sums what they are."""
    match node:
        case ast.Assign([target, *_], value):
            return all(_assigns_sum(*pair, sums) for pair in paired(target, value))
        case ast.AugAssign(ast.Name(id=name), op, value) if name in sums:
            return isinstance(op, (ast.Add, ast.Sub)) and not used(value) & sums
        case ast.If(test) | ast.While(test):
            touched = used(test)
        case ast.For(target, over):
            touched = used(over) | set(assigned([target]))
        case _:
            touched = used(node)
    return not touched & sums


def _assigns_sum(target: ast.expr, value: ast.expr, sums: set[str]) -> bool:
    """Whether an assignment has a partial sum on both sides, or on neither."""
    if name_of(target) in sums:
        return _extended(value, sums)
    return not {*used(target), *used(value), *assigned([target, value])} & sums
