"""Arrays of cotangents: what makes them, and how they follow variables that change hands."""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform import rules
from tapegrad.transform.analysis import Scope
from tapegrad.transform.ir import (
    Block,
    If,
    Let,
    Loop,
    defined,
    name,
    names_in,
    reads,
    replace_names,
    walk,
)
from tapegrad.transform.keeping import Keeping
from tapegrad.transform.lower import is_array
from tapegrad.transform.printer import Writer, show


class Shadows(Keeping):
    """The part of the reverse mode that gives every active array its cotangents."""

    def set_up_shadows(
        self, scope: Scope, needs: dict[str, None]
    ) -> tuple[Writer, dict[str, None]]:
        """Write what makes the cotangents of arrays that a block defines."""
        outer = {n: None for n in self.shadows if n not in scope.own}
        lines: list[str] = []
        for identifier in self.turned_needs.get(id(scope), ()):
            self.note(needs, identifier)
        for statement in reversed(scope.block):
            if isinstance(statement, Let) and statement.leaves is None:
                target = statement.target
                if target not in self.shadows or target in self.set_up:
                    continue
                rule = statement.rule
                bar = self.handles.get(target, target + self.suffix)
                if isinstance(rule, rules.Part):
                    continue  # an argument's
                if rule.base is not None:
                    base = self.shadow(rule.base)
                    if rule.base not in scope.own:
                        outer[rule.base] = None
                    expr = replace_names(statement.expr, {rule.base: base})
                    lines.append(f"{bar} = {show(expr)}")
                    for identifier in names_in(statement.expr):
                        if identifier != rule.base:
                            self.note(needs, identifier)
                elif hasattr(rule, "pull_call"):
                    lines.append(f"{bar} = np.zeros_like({target})")
                    self.note(needs, target)
                else:
                    zeros = rule.zeros(statement)
                    lines.append(f"{bar} = {show(zeros)}")
                    for identifier in names_in(zeros):
                        self.note(needs, identifier)
            elif isinstance(statement, Let):
                assert statement.leaves is not None
                for leaf in statement.leaves:
                    if leaf in self.shadows and leaf not in self.set_up:
                        lines.append(f"{leaf}{self.suffix} = np.zeros_like({leaf})")
                        self.note(needs, leaf)
            elif isinstance(statement, If):
                for phi in statement.phis:
                    if phi.target in self.shadows and phi.target not in self.set_up:
                        lines += self.choose_shadow(statement, phi, scope, needs, outer)
            elif isinstance(statement, Loop):
                for c in statement.carried:
                    if c.out in self.shadows and c.out not in self.set_up:
                        lines.append(f"{c.out}{self.suffix} = np.zeros_like({c.out})")
                        self.note(needs, c.out)
        result = Writer()
        result.lines = self.turned_starts.get(id(scope), []) + lines[::-1]
        return result, outer

    def note(self, needs: dict[str, None], identifier: str) -> None:
        if identifier in self.types and identifier in self.scopes.homes:
            needs[identifier] = None

    def choose_shadow(
        self, statement: If, phi: Any, scope: Scope, needs: dict[str, None], outer: dict[str, None]
    ) -> list[str]:
        """Return the lines that set up the cotangents of an array that is one of two."""
        if not self.arrays.is_stored(phi.target):
            self.note(needs, phi.target)
            return [f"{phi.target}{self.suffix} = np.zeros_like({phi.target})"]
        texts = []
        for atom, block in ((phi.then, statement.then), (phi.orelse, statement.orelse)):
            if self.is_made_in(atom, block):
                texts.append(f"np.zeros_like({phi.target})")
                self.note(needs, phi.target)
                continue
            home = self.scopes.homes.get(atom.id) if isinstance(atom, ast.Name) else None
            if home is None or self.is_inside(home, scope):
                self.refuse(
                    "cannot differentiate a part of an array that is taken in one branch and "
                    "written after it; take it before the branch",
                    statement.line,
                )
            texts.append(self.shadow(atom.id))
            if atom.id not in scope.own:
                outer[atom.id] = None
        for identifier in names_in(statement.cond):
            self.note(needs, identifier)
        choice = f"{texts[0]} if {show(statement.cond)} else {texts[1]}"
        return [f"{phi.target}{self.suffix} = {choice}"]

    def is_made_in(self, atom: Any, block: Block) -> bool:
        """Whether a value is a new array made by a statement of a block."""
        maker = self.scopes.makers.get(atom.id) if isinstance(atom, ast.Name) else None
        return (
            isinstance(maker, Let)
            and maker.leaves is None
            and maker.rule.base is None
            and self.scopes.homes[atom.id].block is block
        )

    def pass_to(self, phi: Any, value: ast.Name, block: Block) -> None:
        """Let an array that a branch chose have the cotangents of the choice."""
        if self.is_made_in(value, block) and value.id not in self.handles:
            self.handles[value.id] = self.shadow(phi.target)
            self.set_up.add(value.id)
        elif not self.arrays.is_stored(phi.target):
            self.add_array(value.id, name(self.shadow(phi.target)))

    def is_inside(self, inner: Scope, outer: Scope) -> bool:
        scope: Scope | None = inner
        while scope is not None:
            if scope is outer:
                return inner is not outer
            scope = scope.parent
        return False

    def turned(self, c: Any) -> str:
        """Return the variable for the cotangents of what an array variable names next."""
        return f"{c.phi}_next{self.suffix}"

    def turn_shadows(self, loop: Loop, scope: Scope, turning: list[Any]) -> None:
        """Find the cotangents, in an iteration, of variables that name other arrays in each.

        At its end the iteration's arrays have the cotangents that the next one leaves. The arrays
        that it started with get new ones, unless they are passed on as well.
        """
        starts: list[str] = []
        passed: set[str] = set()
        phis = {c.phi for c in turning}
        for c in turning:
            self.check_owner(loop, c)
            following = c.next.id
            maker = self.scopes.makers.get(following)
            made = following in scope.own and following not in phis
            fresh = isinstance(maker, Let) and maker.leaves is None and maker.rule.base is None
            if following in passed or (made and not fresh):
                self.refuse(
                    "cannot differentiate array variables that name the same array, or a part of "
                    "another, in the next iteration; copy it",
                    loop.line,
                )
            if made or following in phis:
                passed.add(following)
                self.set_up.add(following)
                starts.append(f"{following}{self.suffix} = {self.turned(c)}")
            else:
                if self.arrays.is_stored(following):
                    self.refuse(
                        "cannot differentiate an array variable that comes to name an array from "
                        "outside of the loop, which is written to; copy it",
                        loop.line,
                    )
                self.shadows[following] = None
                starts.append(f"arrays.add_to({following}{self.suffix}, {self.turned(c)})")
        for c in turning:
            if c.phi not in passed:
                starts.append(f"{c.phi}{self.suffix} = np.zeros_like({c.phi})")
                self.turned_needs.setdefault(id(scope), []).append(c.phi)
        self.turned_starts[id(scope)] = starts

    def check_owner(self, loop: Loop, c: Any) -> None:
        """Refuse an array that is written under one name and read under another around a loop."""
        if not self.arrays.is_stored(c.phi):
            return
        first = self.arrays.of(c.phi)
        root = self.scopes.roots[id(loop)]
        before = set(self.function.params)
        for statement in walk(self.function.body[:root]):
            before.update(defined(statement))
        for statement in walk(self.function.body[root:]):
            names = reads(statement)
            if statement is loop:
                names = [
                    n
                    for n in names
                    if n not in [names_in(d.init)[0] for d in loop.carried if names_in(d.init)]
                ]
            for n in names:
                if n in before and is_array(self.types.get(n)) and self.arrays.of(n) == first:
                    self.refuse(
                        f"cannot differentiate {n}, an array that goes round a loop under another "
                        "name and is written there; use a copy",
                        loop.line,
                    )
