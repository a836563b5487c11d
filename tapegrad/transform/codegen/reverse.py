"""Reverse mode: the forward code that keeps values, and the reverse code that uses them.

The reverse of a block is written first, statement by statement from the last to the first; what it
reads of the primal is noted. Then it is decided for every such value whether it is still there,
computed again, or kept on the tape: what goes round a loop is kept, what follows from it by cheap
operations is computed again. Only then is the forward code written, which keeps exactly that.

The cotangent of a number ``x`` is a variable ``x_bar``. That of an array is an array ``x_bar`` of
its own, and views of the array have views of it.
"""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.codegen.analysis import Scope
from tapegrad.transform.codegen.fusing import last_loop
from tapegrad.transform.codegen.loops import Loops
from tapegrad.transform.ir import (
    Effect,
    If,
    Let,
    Loop,
    Store,
    defined,
    name,
    names_in,
    replace_names,
)
from tapegrad.transform.kinds import is_array
from tapegrad.transform.printer import Writer, show
from tapegrad.transform.rules import base as rules


class Reverse(Loops):
    """Writes the forward and the reverse code of one function."""

    def region(self, scope: Scope, before: Any, after: Any) -> tuple[Writer, dict[str, None]]:
        """Write the reverse of a block.

        `before` writes what its cotangents start from, `after` what is done with them. Returns the
        code and the names from outside whose cotangents it adds to.
        """
        saved = (self.writer, self.needs, self.has, self.outward, self.shadows, self.scope)
        self.writer, self.needs, self.has, self.outward = Writer(), {}, set(), {}
        self.shadows, self.scope = {}, scope
        before()
        for statement in reversed(scope.block):
            self.statement(statement)
        after()
        code, needs, outward = self.writer, self.needs, self.outward
        setup, outer_shadows = self.set_up_shadows(scope, needs)
        result = Writer()
        outer_needs = self.plan(scope, needs, result)
        result.lines += setup.lines + code.lines
        self.writer, self.needs, self.has, self.outward, self.shadows, self.scope = saved
        self.needs.update(outer_needs)
        self.shadows.update(outer_shadows)
        return result, outward

    def combined(self, scope: Scope, before: Any, after: Any) -> tuple[Writer, dict[str, None]]:
        """Write a block and its reverse, one after the other or, for its last loop, in one.

        The values of the block are local variables. Returns the code and the names from outside
        whose cotangents it adds to.
        """
        saved = (self.writer, self.needs, self.has, self.outward, self.shadows, self.scope)
        self.writer, self.needs, self.has, self.outward = Writer(), {}, set(), {}
        self.shadows, self.scope = {}, scope
        block = scope.block
        position = last_loop(block)
        fused: Writer | None = None
        before()
        if position is None:
            position = len(block)
        for statement in reversed(block[position + 1 :]):
            self.statement(statement)
        if position < len(block):
            fused = self.fused(block[position], block[position + 1 :])
        first, self.writer = self.writer, Writer()
        if fused is None and position < len(block):
            self.statement(block[position])
        for statement in reversed(block[:position]):
            self.statement(statement)
        after()
        last, needs, outward = self.writer, self.needs, self.outward
        setup, outer_shadows = self.set_up_shadows(scope, needs)
        result = Writer()
        outer_needs = self.plan(scope, needs, result)
        if fused is None:
            self.write_statements(result, block)
            result.lines += self.starts + setup.lines + first.lines + last.lines
        else:
            self.write_statements(result, block[:position])
            result.lines += self.starts + setup.lines + first.lines + fused.lines
            self.write_statements(result, block[position + 1 :])
            result.lines += last.lines
        self.writer, self.needs, self.has, self.outward, self.shadows, self.scope = saved
        self.needs.update(outer_needs)
        self.shadows.update(outer_shadows)
        return result, outward

    def include(self, code: Writer) -> None:
        """Write the code of an inner block, indented."""
        start = len(self.writer.lines)
        self.writer.extend(code)
        if len(self.writer.lines) == start:
            self.writer("pass")

    def prepare(self, outward: dict[str, None]) -> None:
        """Make sure that cotangents to which inner code adds have a value."""
        for target in outward:
            if target in self.has:
                continue
            if target in self.scope.own:
                self.writer(f"{self.bar(target)} = {self.zero(target)}")
                self.has.add(target)
            else:
                self.outward[target] = None

    def statement(self, statement: Any) -> None:
        """Write the reverse of a statement."""
        if isinstance(statement, Let):
            self.let(statement)
        elif isinstance(statement, Store):
            self.store(statement)
        elif isinstance(statement, If):
            self.branch(statement)
        elif isinstance(statement, Loop):
            self.loop(statement)
        else:
            assert isinstance(statement, Effect)

    def let(self, let: Let) -> None:
        rule = let.rule
        if isinstance(rule, (rules.Passive, rules.Part, rules.Unknown)):
            return
        if rule.calls:
            self.write_vjp(let)
            return
        if let.target not in self.types or not self.is_active(let.target):
            return
        if is_array(self.types[let.target]):
            if rule.base is None:
                self.write_vjp(let)
        elif let.target in self.has:
            self.write_vjp(let)

    def write_vjp(self, let: Let) -> None:
        """Write the reverse of an operation, which reads elements as they were at that time."""
        rule: rules.Rule = let.rule
        kept = self.make_copies(let, rule.contents(let))
        (rule.reading(kept) if kept else rule).write_vjp(self, let)
        self.keep_copies(let, kept)

    def make_copies(self, statement: Any, names: list[str]) -> dict[str, str]:
        """Return copies, with names of their own, of those arrays that are written later."""
        root = self.scopes.roots[id(statement)]
        changing = [
            n
            for n in dict.fromkeys(names)
            if is_array(self.types.get(n)) and not self.keeps(n, root)
        ]
        return {n: self.make_copy(n, statement) for n in changing}

    def keep_copies(self, statement: Any, kept: dict[str, str]) -> None:
        """Have the forward code make those copies that the reverse code reads."""
        made = {n: self.scopes.makers[c] for n, c in kept.items() if c in self.needs}
        results = defined(statement)
        self.copies[id(statement)] = (
            [copied for n, copied in made.items() if n not in results],
            [copied for n, copied in made.items() if n in results],
        )

    def make_copy(self, array: str, statement: Any) -> str:
        """Return the name of a copy of an array, which is known from now on."""
        number, target = 0, f"{array}_kept"
        while target in self.types:
            number += 1
            target = f"{array}_kept_{number}"
        kind = self.types[array]
        call = ast.Call(name("np.copy"), [name(array)], [])
        made = Let(target, call, statement.line, rules.Passive(False))
        self.types[target] = types.Array(kind.dtype, kind.ndim, "C")
        self.scope.own.add(target)
        self.scopes.scope_of[target] = self.scope
        self.scopes.makers[target] = made
        self.scopes.roots[id(made)] = self.scopes.roots[id(statement)]
        return target

    def store(self, store: Store) -> None:
        if not self.is_active(store.array):
            return
        if self.is_fancy(store):
            self.fancy_store(store)
            return
        self.read(store.index)
        shadow = self.shadow(store.array)
        place = show(ast.Subscript(name(shadow), store.index, ast.Load()))
        value = store.value
        active = isinstance(value, ast.Name) and self.is_active(value.id)
        single = isinstance(value, ast.Constant) or not is_array(self.types.get(value.id))
        region = self.is_region(store)
        if active and single:
            g = f"np.sum({place})" if region else place
            factor = ast.Constant(-1.0 if store.op == "-" else 1.0)
            self.add(value.id, g, factor)
        elif active:
            g = f"-{place}" if store.op == "-" else place
            self.add_array(value.id, name(f"{g}" if store.op else f"{place}.copy()"))
        if store.op:
            return
        if active and not single and self.arrays.of(value.id) == self.arrays.of(store.array):
            # what is written comes from the same array: clear first, then add
            self.writer.lines.pop()
            held = f"held{self.suffix}"
            self.writer(f"{held} = {place}.copy()")
            self.writer(f"{place} = 0.0")
            self.add_array(value.id, name(held))
            return
        self.writer(f"{place} = 0.0")

    def fancy_store(self, store: Store) -> None:
        """Write the reverse of a store to elements that an array chooses.

        Where a position is chosen twice, the last value is stored.
        """
        kept = self.make_copies(store, names_in(store.index))
        index = replace_names(store.index, kept)
        self.read(index)
        shadow = self.shadow(store.array)
        places = ast.Call(name("arrays.places"), [name(shadow)], [])
        chosen = show(ast.Subscript(places, index, ast.Load()))
        held = f"held{self.suffix}"
        self.writer(f"{held} = arrays.taken({shadow}, {chosen}, {not store.op})")
        self.keep_copies(store, kept)
        value = store.value
        if not isinstance(value, ast.Name) or not self.is_active(value.id):
            return
        if is_array(self.types[value.id]):
            self.add_array(value.id, name(f"-{held}" if store.op == "-" else held))
        else:
            factor = ast.Constant(-1.0 if store.op == "-" else 1.0)
            self.add(value.id, f"np.sum({held})", factor)

    def is_fancy(self, store: Store) -> bool:
        """Whether an array chooses the elements that a store writes."""
        parts = store.index.elts if isinstance(store.index, ast.Tuple) else [store.index]
        return any(isinstance(p, ast.Name) and is_array(self.types.get(p.id)) for p in parts)

    def is_region(self, store: Store) -> bool:
        """Whether a store writes several elements."""
        kind = self.types[store.array]
        parts = store.index.elts if isinstance(store.index, ast.Tuple) else [store.index]
        numbers = 0
        for part in parts:
            if isinstance(part, ast.Slice) or (
                isinstance(part, ast.Constant) and part.value is Ellipsis
            ):
                return True
            if isinstance(part, ast.Constant) and part.value is None:
                continue
            if isinstance(part, ast.Name):
                of = self.types.get(part.id)
                if isinstance(of, types.SliceType):
                    return True
                if isinstance(of, types.BaseTuple):
                    numbers += len(of)
                    continue
            numbers += 1
        return numbers < kind.ndim

    def branch(self, statement: If) -> None:
        sides = []
        outward: dict[str, None] = {}
        for block, side in ((statement.then, "then"), (statement.orelse, "orelse")):
            scope = self.scopes.blocks[id(block)]

            taken = {phi.target for phi in statement.phis if phi.target in self.has}

            def before(side: str = side, taken: set[str] = taken) -> None:
                for phi in statement.phis:
                    value = getattr(phi, side)
                    if isinstance(value, ast.Name) and phi.target in taken:
                        self.add(value.id, self.bar(phi.target), ast.Constant(1.0))

            code, out = self.region(scope, before, lambda: None)
            sides.append(code)
            outward.update(out)
        then, orelse = sides
        if not then.lines and not orelse.lines:
            return
        self.prepare(outward)
        self.read(statement.cond)
        cond = show(statement.cond)
        if then.lines:
            self.writer.open(f"if {cond}:")
            self.include(then)
            self.writer.close()
            if orelse.lines:
                self.writer.open("else:")
                self.include(orelse)
                self.writer.close()
        else:
            self.writer.open(f"if not {cond}:")
            self.include(orelse)
            self.writer.close()
