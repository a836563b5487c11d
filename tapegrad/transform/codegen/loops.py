"""The reverse of loops."""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform import printer
from tapegrad.transform.codegen.analysis import Scope
from tapegrad.transform.codegen.fusing import is_fusible
from tapegrad.transform.codegen.shadows import Shadows
from tapegrad.transform.ir import (
    Block,
    If,
    Let,
    Loop,
    Store,
    defined,
    name,
    reads,
    walk,
)
from tapegrad.transform.kinds import holds_complex, is_array, is_real
from tapegrad.transform.printer import Writer, show
from tapegrad.transform.rules import base as rules


class Loops(Shadows):
    """The part of reverse mode that reverses loops."""

    def fused(self, loop: Loop, tail: Block) -> Writer | None:
        """Return the code of a loop with its reverse in each iteration, None if it has to wait."""
        late = {n for statement in (loop, *tail) for n in defined(statement)}
        late |= {n + self.suffix for n in late}
        if any(n in late for n in (*self.needs, *self.shadows)) or self.keeps_inside(tail):
            return None
        branches = [statement for statement in walk(tail) if isinstance(statement, If)]
        if any(
            self.scopes.blocks[id(block)].is_read for s in branches for block in (s.then, s.orelse)
        ):
            return None
        if not is_fusible(loop, self.types, self.arrays, self.scopes, self.activity):
            return None
        scope = self.scopes.blocks[id(loop.body)]
        self.make_local(scope)
        starts, self.starts = self.starts, []
        outer, self.writer = self.writer, Writer()
        sums = [c for c in loop.carried if is_real(self.types[c.phi]) and self.is_active(c.phi)]
        live = [c for c in sums if c.out in self.has]
        self.frozen |= {c.phi for c in sums}

        def before() -> None:
            for c in live:
                assert isinstance(c.next, ast.Name)
                text = self.projected(c.next.id, self.bar(c.phi))
                self.writer(f"{self.bar(c.next.id)} = {text}")
                self.has.add(c.next.id)

        code, outward = self.combined(scope, before, lambda: None)
        printer.enter(self.writer, loop.carried)
        for c in live:
            self.writer(f"{self.bar(c.phi)} = {self.bar(c.out)}")
        self.prepare(outward)
        self.writer.open(printer.loop_head(loop))
        start = len(self.writer.lines)
        printer.write_test(self.writer, loop)
        self.writer.extend(code)
        printer.advance(self.writer, loop.carried)
        if loop.exit is not None:
            self.writer.open(f"if {show(loop.exit)}:")
            self.writer("break")
            self.writer.close()
        self.writer.close(start)
        printer.leave(self.writer, loop.carried)
        found, self.writer = self.writer, outer
        self.starts = starts
        # what the sums started from
        inner, self.writer = self.writer, found
        for c in live:
            if isinstance(c.init, ast.Name):
                self.add(c.init.id, self.bar(c.out), ast.Constant(1.0))
        self.writer = inner
        return found

    def make_local(self, scope: Scope) -> None:
        """Take the values of a block for local variables: its reverse follows at once."""
        scope.local = True
        for inner in self.scopes.blocks.values():
            if inner.parent is scope and inner.kind in ("then", "else"):
                self.make_local(inner)

    def loop(self, loop: Loop) -> None:
        scope = self.scopes.blocks[id(loop.body)]
        going = [
            c
            for c in loop.carried
            if is_real(self.types[c.phi])
            and not is_array(self.types[c.phi])
            and self.is_active(c.phi)
        ]

        def before() -> None:
            seeds = []
            for c in going:
                assert isinstance(c.next, (ast.Name, ast.Constant))
                if isinstance(c.next, ast.Constant):
                    continue
                if c.next.id == c.phi:
                    self.has.add(c.phi)
                    continue
                direct = (
                    c.next.id in scope.own
                    and c.next.id not in [d.phi for d in going]
                    and [d.next.id for d in going if isinstance(d.next, ast.Name)].count(c.next.id)
                    == 1
                )
                seed = self.bar(c.next.id) if direct else f"{c.phi}_next{self.suffix}"
                self.writer(f"{seed} = {self.projected(c.next.id, self.bar(c.phi))}")
                seeds.append((c.next.id, seed, direct))
            for target, seed, direct in seeds:
                if direct:
                    self.has.add(target)
                else:
                    self.add(target, seed, ast.Constant(1.0))

        def after() -> None:
            for c in going:
                if c.phi not in self.has:
                    self.writer(f"{self.bar(c.phi)} = {self.zero(c.phi)}")

        if self.is_recurrence(loop, going):
            code, outward = self.recurrence(scope, going[0])
        else:
            code, outward = self.region(scope, before, after)
        if not code.lines and not going:
            return
        for c in going:
            start = self.bar(c.out) if c.out in self.has else self.zero(c.out)
            self.writer(f"{self.bar(c.phi)} = {start}")
        self.prepare(dict.fromkeys(outward))
        if self.is_reserved(scope):
            count = len(scope.stored)
            self.writer(f"top -= {f'{count} * ' if count > 1 else ''}{loop.trips}")
        head = self.reverse_head(loop, scope, going)
        self.writer.open(head[0])
        for text in head[1:]:
            self.writer(text)
        self.include(code)
        self.writer.close()
        for c in going:
            if isinstance(c.init, ast.Name):
                self.add(c.init.id, self.bar(c.phi), ast.Constant(1.0))

    def is_independent(self, loop: Loop, scope: Scope) -> bool:
        """Whether the reverse of the iterations can be done in any order.

        So it is if nothing of an iteration goes to the next, what it keeps has a place of its own,
        and every array is either only read or only written, at an element for each iteration.
        """
        if not loop.counted or (scope.stored and not self.is_reserved(scope)):
            return False
        if self.keeps_inside(loop.body):
            return False
        added: set[str] = set()  # arrays whose cotangents are added to ...
        read: set[str] = set()  # ... only read ...
        stores: set[str] = set()  # ... and read and cleared
        for statement in loop.body:
            if isinstance(statement, Let):
                rule = statement.rule
                if not isinstance(
                    rule, (rules.Elementary, rules.Load, rules.Linear, rules.Passive)
                ) or is_array(self.types.get(statement.target)):
                    return False
                if isinstance(rule, rules.Load):
                    added.add(self.arrays.of(rule.array))
            elif isinstance(statement, Store):
                if not self.is_active(statement.array):
                    continue
                value = statement.value
                if isinstance(value, ast.Name) and is_array(self.types.get(value.id)):
                    added.add(self.arrays.of(value.id))
                if statement.op:
                    read.add(self.arrays.of(statement.array))
                    continue
                index = statement.index
                if not (isinstance(index, ast.Name) and index.id == loop.index):
                    return False
                if self.arrays.of(statement.array) in stores:
                    return False
                stores.add(self.arrays.of(statement.array))
            else:
                return False
        return not added & (read | stores) and not read & stores

    def is_recurrence(self, loop: Loop, going: list[Any]) -> bool:
        """Whether an iteration is a straight computation of one new value from the last."""
        if len(going) != 1 or not isinstance(going[0].next, ast.Name):
            return False
        made = {s.target: s for s in loop.body if isinstance(s, Let)}
        from_last = {going[0].phi}  # what is computed from it
        for target, let in made.items():
            if from_last.intersection(reads(let)) and not isinstance(let.rule, rules.Passive):
                from_last.add(target)
        plain = (rules.Elementary, rules.Load, rules.Linear, rules.Passive)
        return (
            going[0].next.id in from_last
            and len(made) == len(loop.body)
            and not any(is_array(self.types.get(target)) for target in made)
            and not any(holds_complex(self.types.get(target)) for target in made)
            and all(isinstance(let.rule, plain) for let in loop.body)
            and any(
                isinstance(let.rule, rules.Elementary)
                and let.rule.op.name in ("multiply", "divide")
                for let in loop.body
            )
        )

    def recurrence(self, scope: Scope, c: Any) -> tuple[Writer, dict[str, None]]:
        """Write the reverse of a recurrence: its slope first, then the product with the cotangent.

        The slope does not wait for the cotangent, so that the chain from one iteration to the next
        is a single product.
        """
        bar = self.bar(c.phi)
        slope = f"{c.phi}_slope"

        def before() -> None:
            self.writer(f"{self.bar(c.next.id)} = 1.0")
            self.has.add(c.next.id)
            self.renamed[c.phi] = slope
            self.scale = bar

        def after() -> None:
            self.writer(f"{bar} *= {slope}" if c.phi in self.has else f"{bar} = 0.0")
            self.scale = ""
            del self.renamed[c.phi]

        return self.region(scope, before, after)

    def reverse_head(self, loop: Loop, scope: Scope, going: list[Any]) -> list[str]:
        """Return the first lines of the loop over the iterations from the last to the first.

        Where their order does not matter it is the first to the last, which compilers like better.
        """
        if loop.bounds is None:
            self.needs[loop.trips] = None
            return [f"for _ in range({loop.trips}):"]
        low, high, step = loop.bounds
        self.read(low)
        self.read(step)
        index = loop.index
        if not going and self.is_independent(loop, scope):
            self.read(high)
            return [printer.loop_head(loop)]
        if loop.exit is not None:
            self.needs[loop.trips] = None
            last = f"range({loop.trips} - 1, -1, -1)"
            place = show(ast.BinOp(low, ast.Add(), ast.BinOp(name("turn"), ast.Mult(), step)))
            return [f"for turn in {last}:", f"{index} = {place}"]
        self.read(high)
        if isinstance(step, ast.Constant) and step.value == 1:
            first = show(ast.BinOp(high, ast.Sub(), ast.Constant(1)))
            last = show(ast.BinOp(low, ast.Sub(), ast.Constant(1)))
            if isinstance(low, ast.Constant):
                last = str(low.value - 1)
            return [f"for {index} in range({first}, {last}, -1):"]
        text = f"len(range({show(low)}, {show(high)}, {show(step)}))"
        place = show(ast.BinOp(low, ast.Add(), ast.BinOp(name("turn"), ast.Mult(), step)))
        return [f"for turn in range({text} - 1, -1, -1):", f"{index} = {place}"]
