"""Loops whose iterations are differentiated one by one, forward and reverse in the same iteration.

The reverse of a sum needs no value of the sum. So where a loop only adds up terms, and what follows
it is linear in the sums, the cotangents of the sums are known before the loop starts: each
iteration can be followed by its own reverse at once, and nothing is kept or computed again. That
is how one would write such an adjoint by hand.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from tapegrad.transform.codegen.analysis import Arrays, Scopes, written
from tapegrad.transform.ir import Block, Carried, If, Let, Loop, defined, reads, walk
from tapegrad.transform.kinds import is_array, is_real
from tapegrad.transform.rules import base as rules


def last_loop(block: Block) -> int | None:
    """Return the position of the last loop of a block."""
    found = [k for k, statement in enumerate(block) if isinstance(statement, Loop)]
    return found[-1] if found else None


def is_fusible(
    loop: Loop, types: dict[str, Any], arrays: Arrays, scopes: Scopes, active: Any
) -> bool:
    """Whether the iterations of a loop can be differentiated one by one."""
    inside = set(_defined_inside(loop))
    for statement in walk(loop.body):
        for array in written(statement):
            if array not in active:
                continue
            if not any(n in inside for n in _names_of_class(array, arrays, scopes)):
                return False
            if any(n not in inside for n in _names_of_class(array, arrays, scopes)):
                return False
    for entry in loop.carried:
        if not is_real(types[entry.phi]) or entry.phi not in active:
            continue
        if is_array(types[entry.phi]) or not is_sum(loop, entry):
            return False
    return True


def _names_of_class(array: str, arrays: Arrays, scopes: Scopes) -> list[str]:
    first = arrays.of(array)
    return [n for n in scopes.scope_of if is_array(arrays.types.get(n)) and arrays.of(n) == first]


def _defined_inside(loop: Loop) -> Iterator[str]:
    for statement in walk([loop]):
        if statement is not loop:
            yield from defined(statement)
        if isinstance(statement, Loop) and statement is not loop:
            yield from (entry.phi for entry in statement.carried)


def is_sum(loop: Loop, entry: Carried) -> bool:
    """Whether what goes round a loop is only ever added to.

    A name is a partial sum if it is the carried value plus or minus something else; every use of
    a partial sum has to make another one.
    """
    sums = {entry.phi}
    if not _only_adds(loop.body, sums):
        return False
    if isinstance(loop.exit, ast.Name) and loop.exit.id in sums:
        return False
    others = [c for c in loop.carried if c is not entry]
    if any(isinstance(c.next, ast.Name) and c.next.id in sums for c in others):
        return False
    if any(n in sums for statement in walk(loop.test) for n in reads(statement)):
        return False
    return isinstance(entry.next, ast.Name) and entry.next.id in sums


def _only_adds(block: Block, sums: set[str]) -> bool:
    """Enter the sums that a block makes; whether it uses sums for nothing else."""
    for statement in block:
        if isinstance(statement, If):
            blocks = (statement.then, statement.orelse)
        elif isinstance(statement, Loop):
            if not _extends(statement, sums):  # what goes round it is known before its blocks
                return False
            blocks = (statement.test, statement.body)
        else:
            blocks = ()
        if not all(_only_adds(inner, sums) for inner in blocks) or not _extends(statement, sums):
            return False
    return True


def _extends(statement: Any, sums: set[str]) -> bool:
    """Enter the sums that a statement makes; whether it uses sums for nothing else."""
    used = [n for n in reads(statement) if n in sums]
    if not used:
        return True
    if isinstance(statement, Let):
        rule = statement.rule
        if len(used) != 1 or not isinstance(rule, rules.Elementary) or rule.whole:
            return False
        if rule.op.name not in ("add", "subtract"):
            return False
        first = rule.operands[0]
        left = isinstance(first, ast.Name) and first.id in sums
        if rule.op.name == "subtract" and not left:
            return False
        sums.add(statement.target)
        return True
    if isinstance(statement, If):
        if isinstance(statement.cond, ast.Name) and statement.cond.id in sums:
            return False
        for phi in statement.phis:
            sides = [isinstance(v, ast.Name) and v.id in sums for v in (phi.then, phi.orelse)]
            if any(sides):
                if not all(sides):
                    return False
                sums.add(phi.target)
        return True
    if isinstance(statement, Loop):
        for entry in statement.carried:
            if isinstance(entry.init, ast.Name) and entry.init.id in sums:
                if not is_sum(statement, entry):
                    return False
                sums.add(entry.phi)
                sums.add(entry.out)
        plain = {e.phi for e in statement.carried if e.phi in sums}
        plain |= {e.init.id for e in statement.carried if e.out in sums}
        plain |= {e.next.id for e in statement.carried if e.out in sums}
        return all(n in plain for n in used)
    return False
