"""Loops that have a better reverse than their iterations backwards.

- A loop that only adds up terms is reversed in the same iterations that compute it
  (`is_fusible`). The reverse of a sum does not read the sum. If the code after the loop is linear
  in the sums, their cotangents are known before the loop starts: each iteration is followed by its
  own reverse at once, and nothing is kept or recomputed. An adjoint written by hand does the same.
- A loop with independent iterations is reversed from the first iteration to the last, which
  compilers optimize better (`is_independent`).
- A loop whose results may be unused, such as a distance that is not the least, is not reversed
  where their cotangents are 0, nor are the iterations before the least distance was found
  (`may_add_nothing`).
- In a loop that computes a single new value from the previous one, the slope does not depend on
  the cotangent (`is_recurrence`). In forward mode, it does not depend on the tangent
  (`polynomial_chain`).
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from typing import Any

from numba.core import types

from tapegrad.transform.codegen.analysis import Arrays, Scopes, written
from tapegrad.transform.codegen.keeping import Keeping
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.ir import (
    Atom,
    Block,
    Carried,
    If,
    Let,
    Loop,
    Statement,
    Store,
    defined,
    names_in,
    reads,
    walk,
)
from tapegrad.transform.kinds import holds_complex, is_array, is_real
from tapegrad.transform.rules import base as rules
from tapegrad.transform.syntax import leaves, name_of


def last_loop(block: Block) -> int | None:
    """Return the position of the last loop of a block."""
    found = [k for k, statement in enumerate(block) if isinstance(statement, Loop)]
    return found[-1] if found else None


def is_fusible(
    loop: Loop, types: dict[str, Any], arrays: Arrays, scopes: Scopes, active: Any
) -> bool:
    """Whether each iteration of a loop can be followed by its reverse."""
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
    """Whether a loop-carried value is only ever added to.

    A name is a partial sum if it is the carried value plus or minus something else; every use of
    a partial sum has to yield another one.
    """
    sums = {entry.phi}
    if not _only_adds(loop.body, sums):
        return False
    others = [c.next for c in loop.carried if c is not entry]
    if any(_is_among(value, sums) for value in (loop.exit, *others)):
        return False
    if any(n in sums for statement in walk(loop.test) for n in reads(statement)):
        return False
    return _is_among(entry.next, sums)


def _is_among(atom: Atom | None, found: Container[str]) -> bool:
    """Whether an atom is one of some names."""
    return isinstance(atom, ast.Name) and atom.id in found


def _only_adds(block: Block, sums: set[str]) -> bool:
    """Enter the sums that a block makes; return whether it uses sums for nothing else."""
    for statement in block:
        blocks: tuple[Block, ...] = ()
        if isinstance(statement, If):
            blocks = (statement.then, statement.orelse)
        elif isinstance(statement, Loop):
            if not _extends(statement, sums):  # enters the carried values first
                return False
            blocks = (statement.test, statement.body)
        if not all(_only_adds(inner, sums) for inner in blocks) or not _extends(statement, sums):
            return False
    return True


def _extends(statement: Statement, sums: set[str]) -> bool:
    """Enter the sums that a statement makes; return whether it uses sums for nothing else."""
    used = [n for n in reads(statement) if n in sums]
    if not used:
        return True
    if isinstance(statement, Let):
        rule = statement.rule
        if len(used) != 1 or not isinstance(rule, rules.Elementary) or rule.whole:
            return False
        if rule.op.name not in ("add", "subtract"):
            return False
        if rule.op.name == "subtract" and not _is_among(rule.operands[0], sums):
            return False
        sums.add(statement.target)
        return True
    if isinstance(statement, If):
        if _is_among(statement.cond, sums):
            return False
        for phi in statement.phis:
            sides = [_is_among(value, sums) for value in (phi.then, phi.orelse)]
            if any(sides):
                if not all(sides):
                    return False
                sums.add(phi.target)
        return True
    if isinstance(statement, Loop):
        for entry in statement.carried:
            if _is_among(entry.init, sums):
                if not is_sum(statement, entry):
                    return False
                sums.add(entry.phi)
                sums.add(entry.out)
        plain = {e.phi for e in statement.carried if e.phi in sums}
        own = [e for e in statement.carried if e.out in sums]
        plain.update(n for e in own for value in (e.init, e.next) for n in names_in(value))
        return all(n in plain for n in used)
    return False


def is_independent(loop: Loop, state: ReverseState, keeping: Keeping) -> bool:
    """Whether the iterations can be reversed in any order.

    They can if no iteration passes anything on to the next, each keeps its values in its own place,
    and each array is either only read, or only added to, or every iteration has its own elements.
    """
    scope = state.scopes.blocks[id(loop.body)]
    if not loop.counted or (scope.stored and not scope.rows):
        return False
    if keeping.keeps_inside(loop.body):
        return False
    used: dict[str, list[tuple[str, ast.expr | None]]] = {}  # elements, by alias class
    read: set[str] = set()  # arrays that are read, and not only added to
    stores: set[str] = set()

    def use(array: str, index: ast.expr | None) -> str:
        of = state.arrays.of(array)
        used.setdefault(of, []).append((array, index))
        return of

    for statement in loop.body:
        if isinstance(statement, Let):
            rule = statement.rule
            if not isinstance(
                rule, (rules.Elementary, rules.Load, rules.Linear, rules.Passive)
            ) or is_array(state.types.get(statement.target)):
                return False
            if isinstance(rule, rules.Load):
                read.add(use(rule.array, rule.index))
        elif isinstance(statement, Store):
            if not state.is_active(statement.array):
                continue
            value = statement.value
            if isinstance(value, ast.Name) and is_array(state.types.get(value.id)):
                read.add(use(value.id, None))
            of = use(statement.array, statement.index)
            stores.add(of)
            if not statement.op:
                read.add(of)
        else:
            return False
    return all(_are_own(used[of], loop) for of in read & stores)


def _are_own(elements: list[tuple[str, ast.expr | None]], loop: Loop) -> bool:
    """Whether the elements of an array that an iteration uses are used by no other one.

    The index of the loop has to be the index of the same axis in all of them. Where it may be
    negative, two iterations may use one element.
    """
    assert loop.bounds is not None
    low, _, step = loop.bounds
    least: list[Any] = [n.value for n in (low, step) if isinstance(n, ast.Constant)]
    if len(least) < 2 or any(value < k for k, value in enumerate(least)):
        return False
    axes: set[int] | None = None
    for array, index in elements:
        if index is None or array != elements[0][0]:
            return False
        parts = leaves(index)
        if any(isinstance(part, ast.Constant) and part.value in (None, ...) for part in parts):
            return False
        own = {k for k, part in enumerate(parts) if name_of(part) == loop.index}
        axes = own if axes is None else axes & own
    return bool(axes)


def may_add_nothing(
    loop: Loop, going: list[Carried], state: ReverseState, keeping: Keeping
) -> bool:
    """Whether the reverse of a loop of numbers does nothing if the cotangents of its results are 0.

    These have to be all the cotangents that it reads. What it keeps has to be in rows, which need
    not be read.
    """
    scope = state.scopes.blocks[id(loop.body)]
    if not going:
        return False
    if (scope.stored and not scope.rows) or keeping.keeps_inside(loop.body):
        return False
    if any(state.types[c.phi] != types.float64 for c in going):
        return False
    plain = (rules.Elementary, rules.Load, rules.Linear, rules.Passive)
    return all(
        isinstance(s.rule, plain) and not is_array(state.types.get(s.target))
        if isinstance(s, Let)
        else isinstance(s, (If, Loop))
        for s in walk(loop.body)
    )


def is_selected(loop: Loop, entry: Carried) -> bool:
    """Whether the next value of a loop-carried name is selected from the present one and others."""
    following = entry.next.id if isinstance(entry.next, ast.Name) else ""
    for statement in loop.body:
        if isinstance(statement, Let) and statement.target == following:
            chooses = isinstance(statement.rule, rules.Elementary) and statement.rule.op.chooses
            return chooses and entry.phi in reads(statement)
        for phi in statement.phis if isinstance(statement, If) else ():
            if phi.target == following:
                return entry.phi in (*names_in(phi.then), *names_in(phi.orelse))
    return False


def is_recurrence(loop: Loop, going: list[Carried], kinds: dict[str, Any]) -> bool:
    """Whether an iteration computes one new value from the previous one in straight-line code."""
    if len(going) != 1:
        return False
    made = {s.target: s for s in loop.body if isinstance(s, Let)}
    plain = (rules.Elementary, rules.Load, rules.Linear, rules.Passive)
    return (
        _is_among(going[0].next, _chain(loop, going[0].phi))
        and len(made) == len(loop.body)
        and not any(is_array(kinds.get(target)) for target in made)
        and not any(holds_complex(kinds.get(target)) for target in made)
        and all(isinstance(let.rule, plain) for let in loop.body)
        and any(map(_scales, loop.body))
    )


def polynomial_chain(loop: Loop, entry: Carried, kinds: dict[str, Any]) -> dict[str, Let]:
    """Return what an iteration computes from a carried value, if polynomials make the next of it.

    Nothing else in the loop may read the tangents of these values, and the dependency chain has to
    be longer than one operation; else the result is empty. Polynomials have finite partials where
    they are finite, so a tangent of 0 stays 0.
    """
    chain = _chain(loop, entry.phi)
    others = [s for s in walk(loop.body) if not any(s is let for let in chain.values())]
    is_polynomial = (
        _is_among(entry.next, chain)
        and all(kinds.get(target) == types.float64 for target in (entry.phi, *chain))
        and all(map(_is_polynomial, chain.values()))
        and any(map(_scales, chain.values()))
        and any(n in chain for let in chain.values() for n in reads(let))
        and not any(n in chain for s in others if not _is_passive(s) for n in reads(s))
    )
    return chain if is_polynomial else {}


def _chain(loop: Loop, phi: str) -> dict[str, Let]:
    """Return what the straight-line code of an iteration computes from a carried value."""
    found: dict[str, Let] = {}
    for statement in loop.body:
        if isinstance(statement, Let) and not _is_passive(statement):
            if any(n == phi or n in found for n in reads(statement)):
                found[statement.target] = statement
    return found


def _is_passive(statement: Statement) -> bool:
    return isinstance(statement, Let) and isinstance(statement.rule, rules.Passive)


def _scales(statement: Statement) -> bool:
    """Whether a statement multiplies or divides."""
    rule = statement.rule if isinstance(statement, Let) else None
    return isinstance(rule, rules.Elementary) and rule.op.name in ("multiply", "divide", "power")


def _is_polynomial(let: Let) -> bool:
    rule = let.rule
    if isinstance(rule, rules.Elementary):
        return not rule.whole and rules.is_polynomial(rule.op, rule.operands)
    return isinstance(rule, rules.Linear)
