"""The proof that iterations of a loop are independent, and what parallel code for it needs.

Iterations run at the same time if

- what they pass on is a sum: each worker has its own, and they are added in a fixed order;
- each array that they write is either used by every iteration at its own index only, or only added
  to. In the latter case workers add to copies of their own, which are added up in a fixed order.
  If iterations add to their index and a few neighbours, no copies are needed: each second stretch
  of iterations runs first, then the others.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.independence.sums import assignments, carried, is_sum, needed
from tapegrad.transform.independence.uses import (
    ADD,
    READ,
    Access,
    Effects,
    UnprovedError,
    Uses,
)
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import integer
from tapegrad.transform.syntax import binding, callee_of, has, subtree, text_of

MOST_NEIGHBOURS = 8  # the largest distance of neighbours for which there are no copies


@dataclass
class Plan:
    """What parallel code for a loop needs.

    Attributes
    ----------
    loop, target
        The loop, and its variable.
    bounds
        The start, the end and the step of its range.
    given
        The names from outside that its iterations use.
    sums
        The names that they add to, with their types.
    private
        The arrays that they add to, and each worker has a copy of, with their numbers of axes.
    reach
        The distance of the neighbours that iterations add to, 0 if there are none.
    overlaps
        Pairs of arrays that must not share elements, else iterations run in order.
    lowest
        A constant: the index of an iteration plus this must not be negative, else iterations run in
        order. None if that is known.
    uses_tape
        Whether they use the tape.
    is_repeatable
        Whether they find the same if they run again.
    """

    loop: ast.For
    target: str
    bounds: tuple[ast.expr, ast.expr, ast.expr]
    given: list[str] = field(default_factory=list)
    sums: dict[str, Any] = field(default_factory=dict)
    private: dict[str, int] = field(default_factory=dict)
    reach: int = 0
    overlaps: list[tuple[str, str]] = field(default_factory=list)
    lowest: int | None = None
    uses_tape: bool = False
    is_repeatable: bool = True


class Surroundings:
    """What the plans of the loops of a function have to know of the function.

    Attributes
    ----------
    facts
        The types of its names.
    own
        Its parameters and the names that it assigns.
    rows
        The parts of the tape with places for all iterations of a loop.
    live_after
        The names that are read after each statement, by the statement's id.
    """

    def __init__(
        self, tree: ast.FunctionDef, facts: Facts, live_after: dict[int, set[str]]
    ) -> None:
        self.facts = facts
        self.live_after = live_after
        self.own = {p.arg for p in tree.args.args} | set(assigned(tree.body))
        self.rows = parts_of_tape(tree)


def plan_of(
    loop: ast.For, around: Surroundings, effects_of: Callable[[str], Effects | None]
) -> Plan:
    """Return the plan of a loop of a function; raise UnprovedError if there is none."""
    facts = around.facts
    plan = Plan(loop, text_of(loop.target), range_of(loop.iter))
    uses = Uses(facts, effects_of)
    uses.block(loop.body)
    plan.uses_tape = uses.uses_tape
    _plan_numbers(plan, around)
    arrays: dict[str, list[Access]] = {}
    for access in uses.accesses:
        if access.array in plan.given and access.array not in plan.sums:
            arrays.setdefault(access.array, []).append(access)
    _plan_arrays(plan, arrays, facts, around.rows)
    return plan


def range_of(over: ast.expr) -> tuple[ast.expr, ast.expr, ast.expr]:
    """Return the start, the end and the step of a range."""
    assert isinstance(over, ast.Call)
    start, stop, *step = over.args if len(over.args) > 1 else [ast.Constant(0), *over.args]
    return start, stop, step[0] if step else ast.Constant(1)


def _plan_numbers(plan: Plan, around: Surroundings) -> None:
    """Plan what is passed on: what comes from outside, and sums."""
    body = plan.loop.body
    passed_on = carried(plan.loop) - {"tape", "top"}
    for name in sorted(passed_on):
        kind = around.facts.sum_kind(name)
        if kind is None or not is_sum(body, name, passed_on - {name}):
            raise UnprovedError(f"each iteration needs `{_root(name)}` of the one before")
        plan.sums[name] = kind
    made = {*assigned(body), plan.target}
    last = sorted((made & around.live_after[id(plan.loop)]) - passed_on - {"tape", "top"})
    if last:
        raise UnprovedError(f"`{last[0]}` of the last iteration is used after the loop")
    read = needed(body) - {plan.target, "tape", "top"}
    plan.given = sorted(name for name in read if name in around.own and name not in plan.sums)


def _root(name: str) -> str:
    """Return the name that the user gave to a value."""
    stem, _, number = name.rpartition("_")
    return stem if number.isdigit() else name


def parts_of_tape(function: ast.FunctionDef) -> set[str]:
    """Return the names of parts of the tape, each with places for all iterations of a loop."""
    bindings = filter(None, map(binding, subtree(function)))
    return {name for name, value in bindings if callee_of(value) == "runtime.row"}


def _plan_arrays(plan: Plan, arrays: dict[str, list[Access]], facts: Facts, rows: set[str]) -> None:
    written = {n: found for n, found in arrays.items() if any(a.kind != READ for a in found)}
    offsets: set[int] = set()
    for name in arrays:
        kind = facts.kind(name)
        if not (is_array(kind) and kind.ndim) and name not in rows:
            if kind is None or written:
                raise UnprovedError(f"of `{_root(name)}`, which is not an array")
    raises = has(plan.loop, ast.Raise)
    plan.is_repeatable = not any(a.kind == READ for found in written.values() for a in found)
    for name, accesses in written.items():
        if raises and any(a.kind == READ for a in accesses):
            raise UnprovedError(
                f"an iteration may raise an error, which is found by another run, and changes "
                f"`{_root(name)}`, which it reads"
            )
        if name in rows and _has_place_for_each(plan, accesses):
            continue
        found = _own_offsets(plan, accesses)
        if found is not None and len(found) == 1:
            offsets |= found
        elif any(a.kind != ADD for a in accesses):
            raise UnprovedError(f"iterations may use the same elements of `{_root(name)}`")
        elif found is not None and _is_near(plan, found):
            plan.reach = max(plan.reach, max(found) - min(found))
            offsets |= found
        elif name in rows:
            raise UnprovedError("iterations may use the same places of the tape")
        else:
            plan.private[name] = facts.kind(name).ndim
    others = sorted(arrays)
    plan.overlaps = [
        (one, other)
        for one in sorted(written)
        for other in others
        if one != other
        and not (other in written and other < one)
        and not (one in plan.private and other in plan.private)
    ]
    if offsets and not are_not_negative(plan, min(offsets)):
        if plan.target == "turn":
            raise UnprovedError("indices may be negative")
        plan.lowest = min(offsets)


def _has_place_for_each(plan: Plan, accesses: list[Access]) -> bool:
    """Whether the loop uses a part of the tape by the number of the iteration."""
    texts = {tuple(map(text_of, access.index)) for access in accesses}
    named = {name for access in accesses for part in access.index for name in used(part)}
    made = {*assigned(plan.loop.body), plan.target} & named
    return len(texts) == 1 and made == {index_of(plan.loop)}


def index_of(loop: ast.For) -> str:
    """Return the name of the index of the user's loop."""
    target = text_of(loop.target)
    if target != "turn":
        return target
    first = binding(loop.body[0])  # of a loop backwards with another step than -1
    assert first is not None
    return first[0]


def _own_offsets(plan: Plan, accesses: list[Access]) -> set[int] | None:
    """Return the distances from the loop variable of an index that all accesses have.

    None if there is no such index.
    """
    common: dict[int, set[int]] | None = None
    known = known_offsets(plan.loop)
    for access in accesses:
        found = {axis: offset_of(part, known) for axis, part in enumerate(access.index)}
        axes = {axis: distance for axis, distance in found.items() if distance is not None}
        if common is None:
            common = {axis: {distance} for axis, distance in axes.items()}
        else:
            common = {axis: {*common[axis], axes[axis]} for axis in common.keys() & axes.keys()}
    return min(common.values(), key=len) if common else None


def known_offsets(loop: ast.For) -> dict[str, int]:
    """Return the names of an iteration that are its index plus a constant, with the constant."""
    found = {index_of(loop): 0}
    made: dict[str, list[ast.expr]] = {}
    for name, value in assignments(loop.body):
        made.setdefault(name, []).append(value)
    for name in carried(loop):  # it may have the value of the iteration before
        made.pop(name, None)
    for name, values in made.items():
        distances = {offset_of(value, found) for value in values}
        if len(distances) == 1 and None not in distances:
            found.setdefault(name, *[d for d in distances if d is not None])
    return found


def are_not_negative(plan: Plan, distance: int) -> bool:
    """Whether all indices plus a distance are known to be not negative."""
    start, stop, step = plan.bounds
    if plan.target == "turn":
        match plan.loop.body[0]:
            case ast.Assign(value=ast.BinOp(start, _, ast.BinOp(_, _, step))):
                pass
            case first:
                raise AssertionError(text_of(first))
    low, high, length = integer(start), integer(stop), integer(step)
    if length is None:
        return False
    lowest = low if length > 0 else high
    return lowest is not None and lowest + (length <= 0) + distance >= 0


def offset_of(node: ast.expr, known: dict[str, int]) -> int | None:
    """Return the constant of an index plus a constant."""
    match node:
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(ast.Name(id=name), ast.Add(), ast.Constant(int(distance))) if name in known:
            return known[name] + distance
        case ast.BinOp(ast.Constant(int(distance)), ast.Add(), ast.Name(id=name)) if name in known:
            return known[name] + distance
        case ast.BinOp(ast.Name(id=name), ast.Sub(), ast.Constant(int(distance))) if name in known:
            return known[name] - distance
    return None


def moved(index: ast.expr, offset: int) -> ast.expr:
    """Return an index plus a constant."""
    if not offset:
        return index
    return ast.BinOp(index, ast.Add() if offset > 0 else ast.Sub(), ast.Constant(abs(offset)))


def _is_near(plan: Plan, found: set[int]) -> bool:
    """Whether these distances are small, and the indices known to be not negative."""
    if max(found) - min(found) > MOST_NEIGHBOURS or integer(plan.bounds[2]) not in (1, -1):
        return False
    return are_not_negative(plan, min(found))
