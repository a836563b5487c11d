"""Arrays of cotangents: what makes them, and how they follow the arrays that they belong to.

The shadow of an array is an array of the same shape. It is made where the array is made, in the
forward code, and goes everywhere the array goes: a view of the array has the same view of the
shadow, a branch or a loop that chooses among arrays chooses among their shadows as well, and a
function that is called takes shadows with arrays and returns those of its results. So names for the
same elements have the same cotangents, whatever way they took.

An array that has names in one block only needs less: its shadow is made in the reverse code.
"""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.codegen.analysis import Scope
from tapegrad.transform.codegen.keeping import Keeping
from tapegrad.transform.ir import If, Let, Loop, defined, name, names_in, replace_names, walk
from tapegrad.transform.kinds import is_array
from tapegrad.transform.printer import Writer, show
from tapegrad.transform.rules import base as rules


class Shadows(Keeping):
    """The part of the reverse mode that gives every active array its cotangents."""

    def begin(self, given: list[str], returned: list[str]) -> None:
        """Enter the shadows of all active arrays.

        Parameters
        ----------
        given
            Arrays whose shadows are arguments.
        returned
            Arrays whose shadows the forward code returns.
        """
        top = self.scopes.blocks[id(self.function.body)]
        for array, kind in list(self.types.items()):
            if not is_array(kind) or not self.is_active(array):
                continue
            own_scope = self.scopes.scope_of.get(array)
            if own_scope is None and array not in self.function.statics:
                continue
            bar = array + self.suffix
            self.types[bar] = types.Array(kind.dtype, kind.ndim, kind.layout)
            self.arrays_of[bar] = array
            self.scopes.scope_of[bar] = own_scope or top
            maker = self.scopes.makers.get(array)
            outside = not isinstance(maker, (Let, If, Loop)) or isinstance(
                getattr(maker, "rule", None), rules.Part
            )
            if not outside:
                assert own_scope is not None
                self.scopes.makers[bar] = maker
                own_scope.own.add(bar)
            elif array not in given:
                self.inner.append(array)
                top.own.add(bar)
        self._find_local(given, returned)

    def _find_local(self, given: list[str], returned: list[str]) -> None:
        """Find the arrays whose shadows are made in the reverse code."""
        passed = {self.arrays.of(array) for array in (*given, *returned, *self.inner)}
        for statement in walk(self.function.body):
            if isinstance(statement, Let) and hasattr(statement.rule, "passed"):
                passed.update(map(self.arrays.of, statement.rule.passed(self, statement)))
        blocks: dict[str, set[int]] = {}
        for bar, array in self.arrays_of.items():
            first = self.arrays.of(array)
            blocks.setdefault(first, set()).add(id(self.scopes.scope_of[bar].block))
            if not isinstance(self.scopes.makers.get(bar), Let):
                passed.add(first)
        self.local_classes = {c for c, found in blocks.items() if len(found) == 1} - passed

    def shadow(self, identifier: str) -> str:
        """Return the array of cotangents of an array, for reverse code; zeros if it has none."""
        if not self.is_active(identifier):
            self.read(name(identifier))
            return f"np.zeros_like({identifier})"
        bar = identifier + self.suffix
        if self.arrays.of(identifier) in self.local_classes:
            self.shadows[identifier] = None
        else:
            self.needs[bar] = None
        return bar

    # -- shadows made in the reverse code -----------------------------------------------------

    def set_up_shadows(
        self, scope: Scope, needs: dict[str, None]
    ) -> tuple[Writer, dict[str, None]]:
        """Write what makes the shadows of arrays that have names in one block only."""
        lines: list[str] = []
        for statement in reversed(scope.block):
            if not isinstance(statement, Let):
                continue
            for target in defined(statement):
                if target not in self.shadows:
                    continue
                if statement.rule.base is not None:
                    self.shadows[statement.rule.base] = None
                expr = self.shadow_of(statement, target)
                lines.append(f"{target}{self.suffix} = {show(expr)}")
                for identifier in names_in(expr):
                    if identifier in self.scopes.scope_of and identifier not in self.arrays_of:
                        needs[identifier] = None
        result = Writer()
        result.lines = lines[::-1]
        return result, {n: None for n in self.shadows if n not in scope.own}

    def shadow_of(self, let: Let, target: str) -> ast.expr:
        """Return the expression of the shadow of an array that an operation makes."""
        rule = let.rule
        if rule.base is not None:
            return replace_names(let.expr, {rule.base: rule.base + self.suffix})
        if let.leaves is None and not rule.calls:
            return rule.zeros(let)
        return ast.Call(name("np.zeros_like"), [name(target)], [])

    # -- shadows made in the forward code -----------------------------------------------------

    def want(self, bar: str) -> None:
        """Have the forward code make a shadow, and those that it is made of."""
        if bar in self.wanted or bar not in self.arrays_of:
            return
        self.wanted.add(bar)
        array, maker = self.arrays_of[bar], self.scopes.makers.get(bar)
        sources: list[Any] = []
        if isinstance(maker, Let):
            if hasattr(maker.rule, "passed"):
                sources = maker.rule.passed(self, maker)
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
                self.want(identifier + self.suffix)

    def is_wanted(self, array: str) -> bool:
        """Whether the forward code makes the shadow of an array."""
        return array + self.suffix in self.wanted

    def write_inner(self, writer: Writer, texts: dict[str, str]) -> None:
        """Write the shadows of arrays from outside by which nothing is differentiated.

        They are written in the function, and read again. Those of arguments have `texts`.
        """
        for array in self.inner:
            if self.is_wanted(array):
                writer(f"{array}{self.suffix} = np.zeros_like({texts.get(array, array)})")

    def write_shadows(self, writer: Writer, statement: Any) -> None:
        """Write the shadows of what an operation makes."""
        for target in defined(statement):
            if self.is_wanted(target) and not isinstance(statement.rule, rules.Part):
                writer(f"{target}{self.suffix} = {show(self.shadow_of(statement, target))}")

    def shadow_pairs(self, pairs: list[tuple[str, Any]]) -> list[tuple[str, str]]:
        """Return what is assigned to shadows where names are assigned to arrays."""
        return [
            (target + self.suffix, value.id + self.suffix)
            for target, value in pairs
            if self.is_wanted(target) and isinstance(value, ast.Name)
        ]
