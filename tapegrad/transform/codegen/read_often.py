"""Arrays that a loop reads many times, and does not write: their elements are kept once.

The loops ``for a in range(n): for b in range(a): s += w[b] * m[a, b]`` read each element of ``w``
many times. If ``w`` is overwritten later, its elements are copied to the tape after these loops,
instead of what every iteration has read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.ir import Block, Let, Loop, unused
from tapegrad.transform.kinds import copy_kind
from tapegrad.transform.lowering.extents import Key
from tapegrad.transform.nodes import integer
from tapegrad.transform.printer import show
from tapegrad.transform.rules import base as rules
from tapegrad.transform.tape_memory.elements import is_kept_by_elements


class ReadOften:
    """Finds the loops that keep elements of arrays.

    Parameters
    ----------
    state
        The state of reverse mode.
    """

    def __init__(self, state: ReverseState) -> None:
        self.state = state
        self.extents = state.extents
        self.kept: dict[int, dict[str, str]] = {}  # names on the tape, by loops and arrays
        self._pays: dict[tuple[int, str], bool] = {}

    def kept_by(self, loop: Loop) -> dict[str, str]:
        """Return the arrays whose elements a loop keeps, with their names on the tape."""
        return self.kept.get(id(loop), {})

    def loop_of(self, let: Let) -> Loop | None:
        """Return the outermost loop that may keep the elements of the array that is read."""
        rule = let.rule
        if not isinstance(rule, rules.Load) or not self._is_known(rule.array):
            return None
        found: Loop | None = None
        state, scope = self.state, self.state.scopes.scope_of[let.target]
        outside = state.scopes.scope_of[rule.array]
        while scope is not outside and scope.parent is not None and not scope.local:
            loop = scope.statement
            if isinstance(loop, Loop):
                is_test = scope.kind == "test"
                if is_test or state.writes.may_change(rule.array, [loop]):
                    break
                if self._reads_often(loop, rule.array):
                    found = loop
            scope = scope.parent
        return found

    def name_of(self, loop: Loop, array: str) -> str:
        """Return the name of the elements of an array that a loop keeps."""
        state, names = self.state, self.kept.setdefault(id(loop), {})
        if array not in names:
            names[array] = found = unused(f"{array}_kept", state.types)
            state.types[found] = copy_kind(state.types[array])
            state.kept_elements[found] = array
            state.uses_tape = True
        return names[array]

    def _is_known(self, array: str) -> bool:
        state = self.state
        return array in state.scopes.scope_of and is_kept_by_elements(state.types.get(array))

    def _reads_often(self, loop: Loop, array: str) -> bool:
        """Whether a loop reads elements of an array more often than the array has elements.

        That is: there are loops over the extents of all of its axes, and another one, or several
        elements are read in each iteration.
        """
        key = id(loop), array
        if key not in self._pays:
            ndim = self.state.types[array].ndim
            extents = [self.extents.of(array, axis) for axis in range(ndim)]
            found = list(_reads(loop, array))
            places = [list(map(id, loops)) for loops in found]
            self._pays[key] = any(
                (len(loops) > ndim or places.count(place) > 1)
                and _covers(self._trips(loops), extents)
                for loops, place in zip(found, places, strict=True)
            )
        return self._pays[key]

    def _trips(self, loops: list[Loop]) -> list[Key | None]:
        """Return the keys of the trip counts of loops, as far as they are known."""
        found: dict[str, Key | None] = {}
        for loop in loops:
            key = None
            if loop.bounds is not None:
                low, high, step = loop.bounds
                is_known = integer(low) is not None or show(low) in found
                key = self._bound(high, found) if is_known and integer(step) == 1 else None
            found[loop.index or f"loop {id(loop)}"] = key
        return list(found.values())

    def _bound(self, high: ast.expr, known: dict[str, Key | None]) -> Key | None:
        """Return the key of the extent that a bound is, up to a constant.

        The iterations of a loop up to the index of another one are a triangle.
        """
        if show(high) in known:
            return known[show(high)]
        match self.extents.made.get(show(high)):
            case Let(expr=ast.BinOp(start, ast.Add() | ast.Sub(), moved)):
                if integer(moved) is not None:
                    return self._bound(start, known)
        return self.extents.of_number(high)


def _covers(trips: list[Key | None], extents: list[Key]) -> bool:
    left = list(trips)
    for extent in extents:
        if extent not in left:
            return False
        left.remove(extent)
    return True


def _reads(loop: Loop, array: str) -> Iterator[list[Loop]]:
    """Yield the loops around each element of an array that every iteration of a loop reads."""

    def visit(block: Block, loops: list[Loop]) -> Iterator[list[Loop]]:
        for statement in block:
            if isinstance(statement, Loop):
                yield from visit(statement.body, [*loops, statement])
            elif isinstance(statement, Let) and isinstance(statement.rule, rules.Load):
                if statement.rule.array == array:
                    yield loops

    return visit(loop.body, [loop])
