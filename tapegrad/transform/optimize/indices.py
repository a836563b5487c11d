"""Indices in terms of the variable of a loop."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from numba.core import types

from tapegrad.transform.frontend.liveness import assigned, times_assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.independence.plan import Plan, known_offsets, moved, offset_of
from tapegrad.transform.independence.sums import assignments
from tapegrad.transform.ir import name
from tapegrad.transform.nodes import binary
from tapegrad.transform.syntax import name_of


def assigned_again(body: list[ast.stmt]) -> set[str]:
    """Return the names that statements assign in several places."""
    return {name for name, count in times_assigned(body).items() if count > 1}


@dataclass(frozen=True)
class Position:
    """An index that is the loop variable plus a number from outside plus a constant.

    Attributes
    ----------
    distance
        The constant.
    number
        The name of the number from outside, "" for none.
    is_added
        Whether it is added, or subtracted.
    """

    distance: int
    number: str = ""
    is_added: bool = True

    @property
    def base(self) -> str:
        """What is added to the loop variable besides the constant: equal for equal numbers."""
        return f"{'+' if self.is_added else '-'}{self.number}" if self.number else ""

    def start(self, variable: ast.expr | str) -> ast.expr:
        """Return the index without the constant, for a value of the loop variable."""
        found = name(variable) if isinstance(variable, str) else variable
        return binary(found, self.base[0], name(self.number)) if self.number else found

    def at(self, variable: ast.expr | str) -> ast.expr:
        """Return the index for a value of the loop variable."""
        return moved(self.start(variable), self.distance)


class Indices:
    """What is known of the indices in a loop.

    Attributes
    ----------
    made
        The names that the loop assigns, its variable included.
    changing
        Those that are assigned in several places.
    assumed
        The names that have to be 1.
    """

    def __init__(self, plan: Plan, facts: Facts) -> None:
        self.target = plan.target
        self.facts = facts
        body = plan.loop.body
        self.made = {*assigned(body), plan.target}
        self.changing = assigned_again(body)
        self.assumed: set[str] = set()
        self._is_known = plan.target != "turn"
        self._offsets = known_offsets(plan.loop)
        self._positions: dict[str, Position] = {}
        self._steps: dict[str, str] = {}  # names that are the loop variable times a step
        for assigned_name, value in assignments(body):
            if assigned_name in self.changing:
                continue
            position = self._sum(value)
            if position is not None and position.number:
                self._positions[assigned_name] = position
                continue
            match value:
                case ast.BinOp(ast.Name(id=index), ast.Mult(), ast.Name(id=step)):
                    if index == self.target and step not in self.made:
                        self._steps[assigned_name] = step

    def uses_made(self, *parts: ast.expr) -> bool:
        """Whether indices depend on the iteration."""
        return any(used(part) & self.made for part in parts)

    def position(self, node: ast.expr) -> Position | None:
        """Return what an index is, None for another one.

        Steps of arrays that may be broadcast are 1 or 0: 1 is assumed.
        """
        if not self._is_known:
            return None
        if (step := name_of(node)) in self._steps:
            self.assumed.add(self._steps[step])
            return Position(0)
        return self._sum(node)

    def _sum(self, node: ast.expr) -> Position | None:
        """Return what a sum of the loop variable and of others is."""
        offset = offset_of(node, self._offsets)
        if offset is not None:
            return Position(offset)
        match node:
            case ast.Name(id=variable):
                return self._positions.get(variable)
            case ast.BinOp(left, (ast.Add() | ast.Sub()) as op, right):
                is_sum = isinstance(op, ast.Add)
            case _:
                return None
        if is_sum and not self.uses_made(left):
            left, right = right, left
        found = self._sum(left)
        if found is None or self.uses_made(right):
            return None
        match right:
            case ast.Constant(value) if type(value) is int:
                return replace(found, distance=found.distance + (value if is_sum else -value))
            case ast.Name(id=number) if not found.number:
                if isinstance(self.facts.kind_of(right), types.Integer):
                    return Position(found.distance, number, is_sum)
        return None
