"""What a loop of generated code passes from one iteration to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.syntax import paired, subtree


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
        if isinstance(node, ast.If):
            found |= used(node.test) - given
            test, is_positive = node.test, True
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                test, is_positive = test.operand, False
            key = test.id if isinstance(test, ast.Name) else ""
            after = []
            for block, side in ((node.body, is_positive), (node.orelse, not is_positive)):
                before = given | sides.get((key, side), set())
                after.append(_note_needed(block, before, sides, found))
                if key:
                    sides[key, side] = after[-1]
            given = after[0] & after[1]
            made = set(assigned([node]))
            sides = {place: names for place, names in sides.items() if place[0] not in made}
        elif isinstance(node, (ast.For, ast.While)):
            made = set(assigned([node]))
            sides = {place: names for place, names in sides.items() if place[0] not in made}
            inner = set(given)
            if isinstance(node, ast.For):
                found |= used(node.iter) - given
                inner |= set(assigned([ast.Assign([node.target], node.iter)]))
            else:
                found |= used(node.test) - given
            _note_needed(node.body, inner, sides, found)
        else:
            read = used(node)
            if isinstance(node, ast.AugAssign):
                read |= set(assigned([node]))
            found |= read - given
            made = set(assigned([node]))
            given |= made
            sides = {place: names for place, names in sides.items() if place[0] not in made}
    return given


def blocks_of(node: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a statement."""
    return [getattr(node, field) for field in ("body", "orelse") if getattr(node, field, None)]


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
        for part in subtree(node):
            if isinstance(part, ast.Assign):
                yield from pairs(part)


def pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement assigns one value each, with the values."""
    for target, value in paired(node.targets[0], node.value):
        if isinstance(target, ast.Name):
            yield target.id, value


def _extended(value: ast.expr, sums: set[str]) -> bool:
    """Whether a value is a partial sum, possibly plus or minus something else."""
    if isinstance(value, ast.Name):
        return value.id in sums
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, (ast.Add, ast.Sub)):
        return False
    left, right = value.left, value.right
    if isinstance(left, ast.Name) and left.id in sums:
        return not used(right) & sums
    is_sum_on_the_right = isinstance(right, ast.Name) and right.id in sums
    return isinstance(value.op, ast.Add) and is_sum_on_the_right and not used(left) & sums


def _only_adds(body: list[ast.stmt], sums: set[str]) -> bool:
    """Whether all uses of partial sums yield partial sums, and nothing else is assigned to them."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target, value in paired(node.targets[0], node.value):
                touched = used(target) | used(value) | set(assigned([ast.Assign([target], value)]))
                if isinstance(target, ast.Name) and target.id in sums:
                    if not _extended(value, sums):
                        return False
                elif touched & sums:
                    return False
        elif isinstance(node, ast.AugAssign):
            if used(node.value) & sums:
                return False
            if isinstance(node.target, ast.Name) and node.target.id in sums:
                if not isinstance(node.op, (ast.Add, ast.Sub)):
                    return False
            elif used(node.target) & sums:
                return False
        elif isinstance(node, (ast.If, ast.While)):
            if used(node.test) & sums:
                return False
        elif isinstance(node, ast.For):
            if (used(node.iter) | set(assigned([ast.Assign([node.target], node.iter)]))) & sums:
                return False
        elif used(node) & sums:
            return False
        if not all(_only_adds(block, sums) for block in blocks_of(node)):
            return False
    return True
