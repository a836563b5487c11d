"""Arrays that loops and branches pass on like numbers.

``u = step(u)`` in a loop makes a new array in each iteration, and nothing writes to it once it has
another name. Its cotangents need not follow it through the loop: they are carried backwards like
those of a number, in an array that the reverse code makes.

That takes time in proportion to the size of the array, wherever a loop or a branch gives it a new
name. So an array of that kind has to be made there as well: a choice between two arrays that are
there already, in a loop over their elements, is no copy, and neither is its reverse.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from tapegrad.transform.codegen.analysis import Scope
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.ir import Carried, If, Let, Loop, Statement, always_raises, walk
from tapegrad.transform.kinds import is_array, may_share
from tapegrad.transform.printer import show
from tapegrad.transform.rules import base as rules


class ArrayValues:
    """The arrays of a function whose names have separate cotangents.

    Parameters
    ----------
    state
        The state of reverse mode, in which the shadows of all active arrays are entered.
    results
        Arrays that the function returns to generated code, which may write to them.
    passed
        Arrays whose shadows are passed to forward functions of callees, or returned by them.
    receives
        Whether the reverse code is given the cotangents of the results. Otherwise the caller adds
        to shadows that the forward code returns.

    Attributes
    ----------
    classes
        The alias classes of these arrays.
    """

    def __init__(
        self, state: ReverseState, results: list[str], passed: set[str], receives: bool
    ) -> None:
        self.state = state
        self.receives = receives
        self.writes = state.writes
        self.flows: dict[str, list[Statement | None]] = {}  # where an array gets another name
        for statement in walk(state.function.body):
            if isinstance(statement, If):
                for phi in statement.phis:
                    self._flow(phi.then, statement, statement.then)
                    self._flow(phi.orelse, statement, statement.orelse)
            elif isinstance(statement, Loop):
                for c in statement.carried:
                    self._flow(c.init, statement, None)
                    self._flow(c.next, statement, statement.body)
        names: dict[str, list[str]] = {}
        for array, kind in state.function.types.items():
            if may_share(kind):
                names.setdefault(state.arrays.of(array), []).append(array)
        self.classes = {
            one
            for one, found in names.items()
            if any(isinstance(self.writes.maker(n), (Loop, If)) for n in found)
            and all(self._is_value(n, passed) for n in found)
            and self._may_return(found, results)
            and self._are_made_often(found)
        }

    def is_outside(self, array: str) -> bool:
        """Whether an array is an argument, a part of one, or not made by the function."""
        maker = self.writes.maker(array)
        return maker is None or (isinstance(maker, Let) and isinstance(maker.rule, rules.Part))

    def _scope(self, array: str) -> Scope | None:
        return self.state.scopes.scope_of.get(array)

    def _flow(self, value: Any, statement: Statement, end: Any) -> None:
        """Enter that a value gets another name at a statement, or at the end of its own block."""
        if not isinstance(value, ast.Name) or not is_array(self.state.types.get(value.id)):
            return
        root = self.writes.root(value.id)
        scope = self._scope(root)
        is_at_end = end is not None and scope is not None and scope.block is end
        self.flows.setdefault(root, []).append(None if is_at_end else statement)

    def _is_value(self, array: str, passed: set[str]) -> bool:
        """Whether the cotangents of a name of an array may be separate from those of others."""
        if not is_array(self.state.types[array]):
            return False
        root, maker = self.writes.root(array), self.writes.maker(array)
        is_written = array in self.writes.by_root
        if root == array and self.is_outside(array):
            return not is_written
        if array in passed:
            return False
        if root != array:
            return self.writes.is_inside(array)
        if isinstance(maker, Let):
            flows = [s for s in self.flows.get(array, ()) if s is not None]
            is_final = all(self.writes.precede(array, statement) for statement in flows)
            return self.writes.is_new(array) and is_final
        return not is_written and all(isinstance(s, ast.Name) for s in _sources(maker, array))

    def _may_return(self, names: Iterable[str], results: list[str]) -> bool:
        """Whether no alias of a returned array is in the hands of the caller."""
        found = [n for n in names if n in results]
        if not found:
            return True
        if not self.receives:
            return False
        has_outside = any(self.writes.root(n) == n and self.is_outside(n) for n in names)
        return len(found) == 1 and self.writes.root(found[0]) == found[0] and not has_outside

    def _are_made_often(self, names: list[str]) -> bool:
        """Whether an array is made wherever a name is given to one of several."""
        made: set[int] = set()  # ids of the blocks in which one is made, except in branches
        for array in names:
            if self._is_made(array):
                made.update(self._blocks_of_each_time(array))
        for array in names:
            maker, scope = self.writes.maker(array), self._scope(array)
            if isinstance(maker, Loop):
                scope = self.state.scopes.blocks[id(maker.body)]
            elif not isinstance(maker, If) or self._is_made(array):
                continue
            while scope is not None and scope.kind in ("then", "else"):
                scope = scope.parent
            if scope is None or id(scope.block) not in made:
                return False
        return True

    def _is_made(self, array: str) -> bool:
        """Whether an operation makes an array, or both sides of a branch do."""
        maker = self.writes.maker(array)
        if not isinstance(maker, If):
            return self.writes.is_new(array)
        sides = [s for s in (maker.then, maker.orelse) if not always_raises(s)]
        values = [v.id if isinstance(v, ast.Name) else "" for v in _sources(maker, array)]
        scopes = map(self._scope, values)
        return all(
            scope is not None and scope.block is side and self._is_made(value)
            for value, scope, side in zip(values, scopes, sides, strict=True)
        )

    def _blocks_of_each_time(self, array: str) -> Iterator[int]:
        """Yield the ids of the blocks that make an array each time, as far as is known."""
        scope = self._scope(array)
        while scope is not None and scope.kind in ("loop", "function"):
            yield id(scope.block)
            loop, scope = scope.statement, scope.parent
            if isinstance(loop, Loop) and not loop.counted:  # it may have no iteration
                while scope is not None and scope.kind != "function":
                    scope = scope.parent

    def has(self, array: str) -> bool:
        """Whether the reverse code makes a shadow for a name of an array."""
        is_value = self.state.arrays.of(array) in self.classes
        return is_value and not self.is_outside(self.writes.root(array))

    def carried(self, loop: Loop) -> list[Carried]:
        """Return the loop-carried arrays whose cotangents are carried backwards."""
        return [
            c
            for c in loop.carried
            if is_array(self.state.types.get(c.phi))
            and self.state.is_active(c.phi)
            and self.state.arrays.of(c.phi) in self.classes
        ]

    def moved(self, loop: Loop) -> dict[str, str]:
        """Return the arrays that only become loop-carried ones, by the names of these.

        The cotangents of the loop-carried array are then those of the other one as they are.
        """
        carried = self.carried(loop)
        nexts = [c.next.id for c in carried if isinstance(c.next, ast.Name)]
        phis = [c.phi for c in carried]
        body = self.state.scopes.blocks[id(loop.body)]
        return {
            c.phi: c.next.id
            for c in carried
            if isinstance(c.next, ast.Name)
            and nexts.count(c.next.id) == 1
            and c.next.id not in phis
            and self.state.types[c.next.id] == self.state.types[c.phi]
            and self.writes.root(c.next.id) == c.next.id
            and self._scope(c.next.id) is body
            and not self._may_be_view(c.next.id)
        }

    def _may_be_view(self, array: str) -> bool:
        """Whether an array is made by a function that returns its argument if it can."""
        maker = self.writes.maker(array)
        if not isinstance(maker, Let) or not isinstance(maker.rule, rules.Linear):
            return False
        expr = maker.expr
        return not isinstance(expr, ast.Call) or not show(expr.func).endswith("copy")


def _sources(maker: If | Loop, array: str) -> list[Any]:
    """Return the values that a branch or loop gives a name, None for one that is undefined."""
    if isinstance(maker, If):
        sides = [s for s in ("then", "orelse") if not always_raises(getattr(maker, s))]
        return [dict(maker.merged(side)).get(array) for side in sides]
    return [v for c in maker.carried if array in (c.phi, c.out) for v in (c.init, c.next)]
