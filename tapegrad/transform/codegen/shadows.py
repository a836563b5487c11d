"""Arrays of cotangents: how they are made, and how they follow the arrays that they belong to.

The shadow of an array is an array of the same shape. The forward code makes it together with the
array and carries it along: the shadow of a view is the same view of the shadow, a branch or loop
that selects among arrays selects among their shadows as well, and a callee takes shadows with
arrays and returns those of its results. So aliases share their cotangents on every path.

If all names of an array are in one block, the reverse code makes the shadow instead. If such an
array is a result of a callee, the caller makes it, and passes it to the reverse of the callee.
Arrays that are passed on like numbers have a shadow for each name (see `array_values`).
"""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.builder import Builder, Pair
from tapegrad.transform.codegen.array_values import ArrayValues
from tapegrad.transform.codegen.reverse_state import Region, ReverseState
from tapegrad.transform.codegen.sizes import Sizes
from tapegrad.transform.ir import (
    If,
    Let,
    Loop,
    Statement,
    defined,
    name,
    names_in,
    replace_names,
    walk,
)
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import call_of, expression_of
from tapegrad.transform.rules import base as rules


class Shadows:
    """The arrays of cotangents of one function.

    Parameters
    ----------
    state
        The state of reverse mode, in which the shadows of all active arrays are entered.
    given
        Arrays whose shadows are arguments.
    results
        Arrays that the function returns to generated code.
    receives
        Whether the reverse code may have shadows of results as arguments.
    """

    def __init__(
        self, state: ReverseState, given: list[str], results: list[str], receives: bool
    ) -> None:
        self.state = state
        self.sizes = Sizes(state)
        self.inner: list[str] = []  # active arrays from outside that are not inputs
        self.wanted: set[str] = set()  # shadows that the forward code makes
        self.received: list[str] = []  # results whose shadows are arguments of the reverse code
        self.moved: set[str] = set()  # shadows that were those of other arrays before
        self._enter(given)
        self._find_local(given, results, receives)

    def _enter(self, given: list[str]) -> None:
        """Enter the shadows of all active arrays."""
        state = self.state
        for array, kind in list(state.types.items()):
            if not is_array(kind) or not state.is_active(array):
                continue
            own_scope = state.scopes.scope_of.get(array)
            if own_scope is None and array not in state.function.statics:
                continue
            bar = state.derivative(array)
            state.types[bar] = types.Array(kind.dtype, kind.ndim, kind.layout)
            state.arrays_of[bar] = array
            state.scopes.scope_of[bar] = own_scope or state.top
            maker = state.scopes.makers.get(array)
            outside = not isinstance(maker, (Let, If, Loop)) or isinstance(
                getattr(maker, "rule", None), rules.Part
            )
            if not outside:
                assert own_scope is not None
                state.scopes.makers[bar] = maker
                own_scope.own.add(bar)
            elif array not in given:
                self.inner.append(array)
                state.top.own.add(bar)

    def _find_local(self, given: list[str], results: list[str], receives: bool) -> None:
        """Find the arrays whose shadows are made in the reverse code, or are arguments of it."""
        state = self.state
        passed: set[str] = set()
        for statement in walk(state.function.body):
            if isinstance(statement, Let) and hasattr(statement.rule, "passed"):
                passed.update(statement.rule.passed(state, statement))
        self.values = ArrayValues(state, results, passed, receives)
        kept = {state.arrays.of(array) for array in (*given, *passed, *self.inner)}
        blocks: dict[str, set[int]] = {}
        split: set[str] = set()  # classes with a name outside of the block of its array
        new: dict[str, list[str]] = {}  # arrays that share nothing with those before them
        for bar, array in state.arrays_of.items():
            first, maker = state.arrays.of(array), state.scopes.makers.get(bar)
            blocks.setdefault(first, set()).add(id(state.scopes.scope_of[bar].block))
            if not state.writes.is_inside(array):
                split.add(first)
            if state.writes.root(array) == array:
                new.setdefault(first, []).append(array)
            if not isinstance(maker, Let):
                kept.add(first)
        nested = {one for one, found in new.items() if len(found) == 1} - split
        local = {one for one, found in blocks.items() if len(found) == 1 or one in nested} - kept
        classes = [state.arrays.of(array) for array in results]
        for array, one in zip(results, classes, strict=True):
            is_only = new[one] == [array] and classes.count(one) == 1
            if receives and (one in self.values.classes or (one in local and is_only)):
                self.received.append(array)
            else:
                local.discard(one)
        state.local = {
            array
            for array in state.arrays_of.values()
            if state.arrays.of(array) in local or self.values.has(array)
        }
        for array in results:
            if array not in self.received:
                self.want(state.derivative(array))

    # -- shadows made in the reverse code -----------------------------------------------------

    def set_up(self, region: Region) -> tuple[Builder, dict[str, None]]:
        """Write the code that makes the shadows of arrays whose names are all in this block.

        Returns the code and the arrays from outside whose shadows are read.
        """
        state, scope = self.state, region.scope
        result = Builder()
        made = [(s, target) for s in scope.block for target in defined(s)]
        if scope.kind == "loop":
            made = [(scope.own_loop, c.phi) for c in scope.own_loop.carried] + made
        for statement, target in reversed(made):
            if target not in region.shadows or target in self.received or target in self.moved:
                continue
            if isinstance(statement, Let) and statement.rule.base is not None:
                region.shadows[statement.rule.base] = None
            expr = self._with_tuples(self.shadow_of(statement, target))
            result.assign(name(state.derivative(target)), expr)
            for identifier in names_in(expr):
                if identifier in state.scopes.scope_of and identifier not in state.arrays_of:
                    region.needs[identifier] = None
        result.body.reverse()
        return result, {n: None for n in region.shadows if n not in scope.own}

    def with_bases(self, region: Region) -> set[str]:
        """Return the arrays whose shadows are read so far, and those that they are views of."""
        found = set(region.shadows)
        for target in reversed([target for s in region.scope.block for target in defined(s)]):
            maker = self.state.scopes.makers.get(target)
            if target in found and isinstance(maker, Let) and maker.rule.base is not None:
                found.add(maker.rule.base)
        return found

    def _with_tuples(self, expr: ast.expr) -> ast.expr:
        """Return an expression with the items of tuples of extents rather than their names.

        A name that is assigned in one branch only could not be differentiated again.
        """
        made = {n: self.state.scopes.makers.get(n) for n in names_in(expr)}
        tuples = {
            n: let.expr
            for n, let in made.items()
            if isinstance(let, Let) and isinstance(let.expr, ast.Tuple)
        }
        return replace_names(expr, tuples)

    def move(self, loop: Loop) -> dict[str, str]:
        """Return the arrays of a loop whose shadows were those of loop-carried ones, by these."""
        found = self.values.moved(loop)
        self.moved.update(found.values())
        return found

    def shadow_of(self, statement: Any, target: str, *, in_forward: bool = False) -> ast.expr:
        """Return the expression of the shadow of an array that a statement makes.

        In reverse code, the array would be kept for its extents alone.
        """
        if isinstance(statement, Let):
            rule = statement.rule
            if rule.base is not None:
                return replace_names(statement.expr, {rule.base: self.state.derivative(rule.base)})
            if statement.leaves is None and not rule.calls:
                zeros = rule.zeros(statement)
                if target in names_in(zeros) and not in_forward:
                    zeros = self.sizes.zeros_outside(target) or zeros
                return zeros
        return self.sizes.zeros_like(target) if in_forward else self.sizes.zeros(target)

    # -- shadows made in the forward code -----------------------------------------------------

    def want(self, bar: str) -> None:
        """Have the forward code make a shadow and the shadows that it is made from."""
        state = self.state
        if bar in self.wanted or bar not in state.arrays_of:
            return
        self.wanted.add(bar)
        array, maker = state.arrays_of[bar], state.scopes.makers.get(bar)
        sources: list[Any] = []
        if isinstance(maker, Let):
            if hasattr(maker.rule, "passed"):
                sources = maker.rule.passed(state, maker)
            elif maker.rule.base is not None:
                sources = [maker.rule.base]
        elif isinstance(maker, If):
            sources = [a for p in maker.phis if p.target == array for a in (p.then, p.orelse)]
        elif isinstance(maker, Loop):
            for c in maker.carried:
                if c.phi == array:
                    sources = [c.init, c.next]
                elif c.out == array:
                    sources = [c.phi]
        for source in sources:
            identifier = source.id if isinstance(source, ast.Name) else source
            if isinstance(identifier, str):
                self.want(state.derivative(identifier))

    def is_wanted(self, array: str) -> bool:
        """Whether the forward code makes the shadow of an array."""
        return self.state.derivative(array) in self.wanted

    def write_inner(self, builder: Builder, texts: dict[str, str]) -> None:
        """Write the shadows of active arrays from outside that are not inputs.

        The function writes such arrays and reads them again. `texts` holds those of arguments.
        """
        for array in self.inner:
            if self.is_wanted(array):
                zeros = call_of("np.zeros_like", expression_of(texts.get(array, array)))
                builder.assign(name(self.state.derivative(array)), zeros)

    def write(self, builder: Builder, statement: Statement) -> None:
        """Write the shadows of what an operation makes."""
        if not isinstance(statement, Let) or isinstance(statement.rule, rules.Part):
            return
        for target in defined(statement):
            if self.is_wanted(target):
                expr = self.shadow_of(statement, target, in_forward=True)
                builder.assign(name(self.state.derivative(target)), expr)

    def pairs(self, pairs: list[tuple[str, Any]]) -> list[Pair]:
        """Return the assignments of shadows that go with assignments of arrays."""
        return [
            (name(self.state.derivative(target)), name(self.state.derivative(value.id)))
            for target, value in pairs
            if self.is_wanted(target) and isinstance(value, ast.Name)
        ]
