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

from tapegrad.transform import printer, rules
from tapegrad.transform.analysis import Activity, Arrays, Scope, Scopes, scopes, unused_suffix
from tapegrad.transform.errors import TransformError
from tapegrad.transform.fusing import is_fusible, last_loop
from tapegrad.transform.ir import (
    Block,
    Effect,
    Function,
    If,
    Let,
    Loop,
    Store,
    defined,
    name,
    names_in,
    reads,
    walk,
)
from tapegrad.transform.keeping import Keeping
from tapegrad.transform.lower import is_array, is_real
from tapegrad.transform.printer import Writer, show

BAR = "_bar"


class Reverse(Keeping):
    """Writes the forward and the reverse code of one function.

    Parameters
    ----------
    function
        The function, lowered.
    inputs, outputs
        Names of the numbers and arrays to differentiate by, and of what.
    split
        Forward and reverse code become two functions; else they are one.
    """

    def __init__(
        self,
        program: Any,
        function: Function,
        arrays: Arrays,
        inputs: list[str],
        outputs: list[str],
        split: bool,
    ) -> None:
        self.program = program
        self.function = function
        self.types = function.types
        self.suffix = unused_suffix(BAR, self.types)
        self.arrays = arrays
        self.activity = Activity(function, arrays, inputs, outputs)
        self.inputs = inputs
        self.split = split
        self.scopes: Scopes = scopes(function, split)
        self.unstable: set[str] = set()  # arrays that may change before the reverse code
        self.uses_tape = False
        self.count = 0
        self.writer = Writer()
        self.needs: dict[str, None] = {}
        self.has: set[str] = set()
        self.outward: dict[str, None] = {}
        self.shadows: dict[str, None] = {}
        self.set_up: set[str] = set()
        self.scope = self.scopes.blocks[id(function.body)]
        self.handles: dict[str, str] = {}  # shadows that have another name
        self.turned_starts: dict[int, list[str]] = {}
        self.turned_needs: dict[int, list[str]] = {}
        self.frozen: set[str] = set()  # sums whose cotangents stay as they are
        self.renamed: dict[str, str] = {}  # cotangents that have another name for a while
        self.scale = ""  # what contributions to the outside are multiplied by
        self.starts: list[str] = []  # what the reverse code of the function begins with
        self._check()

    def _check(self) -> None:
        """Refuse what carries derivatives and is not understood."""
        for statement in walk(self.function.body):
            if isinstance(statement, Let) and isinstance(statement.rule, rules.Unknown):
                if any(
                    self.activity.node(n) in self.activity.varied for n in statement.rule.inputs()
                ):
                    self.refuse(
                        f"cannot differentiate {statement.rule.what}; use what is understood "
                        "(docs/njit.md), give it a rule with tg.njit and defvjp, or pass it "
                        "through tg.stop_gradient",
                        statement.line,
                    )

    def refuse(self, what: str, line: int) -> None:
        """Raise the error for a line of the user's."""
        raise TransformError(what, self.function.source, line)

    # -- what rules call ----------------------------------------------------------------------

    def is_active(self, identifier: str) -> bool:
        """Whether a name carries derivatives."""
        return identifier in self.activity

    def number(self) -> int:
        """Return a number that was not returned before."""
        self.count += 1
        return self.count

    def bar(self, identifier: str) -> str:
        """Return the cotangent of a number."""
        return self.renamed.get(identifier, identifier + self.suffix)

    def shadow(self, identifier: str) -> str:
        """Return the array of cotangents of an array."""
        self.shadows[identifier] = None
        return self.handles.get(identifier, identifier + self.suffix)

    def read(self, node: Any) -> None:
        """Note the primal values that an expression reads."""
        for identifier in names_in(node):
            if identifier in self.types and identifier in self.scopes.homes:
                self.needs[identifier] = None

    def write(self, text: str) -> None:
        """Write a line of reverse code."""
        self.writer(text)

    def line(self, expr: ast.expr) -> None:
        """Write an expression for its effect."""
        self.read(expr)
        self.writer(show(expr))

    def add(self, target: str, g: str, factor: ast.expr, reads: ast.expr | None = None) -> None:
        """Add ``g * factor`` to the cotangent of a number."""
        if not self.is_active(target) or target in self.frozen:
            return
        self.read(factor)
        self.read(reads)
        sign = "+"
        if isinstance(factor, ast.Constant) and factor.value in (1, -1):
            text = g
            sign = "-" if factor.value == -1 else "+"
        elif isinstance(factor, ast.UnaryOp) and isinstance(factor.op, ast.USub):
            text = show(ast.BinOp(name(g), ast.Mult(), factor.operand))
            sign = "-"
        else:
            text = show(ast.BinOp(name(g), ast.Mult(), factor))
        bar = self.bar(target)
        if target in self.scope.own and target not in self.has:
            self.has.add(target)
            self.writer(f"{bar} = {text}" if sign == "+" else f"{bar} = -({text})")
            return
        if target not in self.scope.own and target not in self.has:
            self.outward[target] = None
            if self.scale:
                text = f"{self.scale} * ({text})"
        self.writer(f"{bar} {sign}= {text}")

    def add_array(self, target: str, g: ast.expr) -> None:
        """Add an array (or number) to the cotangent of an array that was broadcast."""
        self.read(g)
        self.writer(show(ast.Call(name("arrays.add_to"), [name(self.shadow(target)), g], [])))

    def add_element(self, array: str, index: ast.expr, g: str) -> None:
        """Add to an element of the cotangent of an array."""
        self.read(index)
        place = ast.Subscript(name(self.shadow(array)), index, ast.Load())
        if self.scale:
            g = f"{self.scale} * {g}"
        self.writer(f"{show(place)} += {g}")

    # -- reverse code -------------------------------------------------------------------------

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
        if fused is None:
            self.write_statements(result, block)
            result.lines += self.starts + setup.lines + first.lines + last.lines
        else:
            self.write_statements(result, block[:position])
            result.lines += self.starts + setup.lines + first.lines + fused.lines
            self.write_statements(result, block[position + 1 :])
            result.lines += last.lines
        outer_needs = {n: None for n in needs if n not in scope.own}
        self.writer, self.needs, self.has, self.outward, self.shadows, self.scope = saved
        self.needs.update(outer_needs)
        self.shadows.update(outer_shadows)
        return result, outward

    def fused(self, loop: Loop, tail: Block) -> Writer | None:
        """Return the code of a loop with its reverse in each iteration, None if it has to wait."""
        late = {n for statement in (loop, *tail) for n in defined(statement)}
        if any(n in late for n in (*self.needs, *self.shadows)):
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
                self.writer(f"{self.bar(c.next.id)} = {self.bar(c.phi)}")
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
                self.writer(f"{self.bar(target)} = 0.0")
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
        if hasattr(rule, "pull_call"):
            rule.pull_call(self, let)
            return
        if let.target not in self.types or not self.is_active(let.target):
            return
        if is_array(self.types[let.target]):
            if rule.base is None:
                rule.pull(self, let)
        elif let.target in self.has:
            rule.pull(self, let)

    def store(self, store: Store) -> None:
        if not self.is_active(store.array):
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

    def is_region(self, store: Store) -> bool:
        """Whether a store writes several elements."""
        kind = self.types[store.array]
        parts = store.index.elts if isinstance(store.index, ast.Tuple) else [store.index]
        numbers = 0
        for part in parts:
            if isinstance(part, ast.Slice):
                return True
            if isinstance(part, ast.Name):
                of = self.types.get(part.id)
                if is_array(of):
                    self.refuse(
                        "cannot differentiate a store to elements that an array chooses; write "
                        "a loop",
                        store.line,
                    )
                if isinstance(of, types.BaseTuple):
                    numbers += len(of)
                    continue
            numbers += 1
        return numbers < kind.ndim

    def branch(self, statement: If) -> None:
        sides = []
        outward: dict[str, None] = {}
        chosen = {phi.target for phi in statement.phis if phi.target in self.shadows}
        for block, side in ((statement.then, "then"), (statement.orelse, "orelse")):
            scope = self.scopes.blocks[id(block)]

            taken = {phi.target for phi in statement.phis if phi.target in self.has}

            def before(side: str = side, taken: set[str] = taken, block: Block = block) -> None:
                for phi in statement.phis:
                    value = getattr(phi, side)
                    if not isinstance(value, ast.Name):
                        continue
                    if phi.target in taken:
                        self.add(value.id, self.bar(phi.target), ast.Constant(1.0))
                    elif phi.target in chosen:
                        self.pass_to(phi, value, block)

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

    def loop(self, loop: Loop) -> None:
        scope = self.scopes.blocks[id(loop.body)]
        going = [
            c
            for c in loop.carried
            if is_real(self.types[c.phi])
            and not is_array(self.types[c.phi])
            and self.is_active(c.phi)
        ]
        turning = [c for c in loop.carried if is_array(self.types[c.phi]) and self.is_active(c.phi)]
        self.turn_shadows(loop, scope, turning)

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
                self.writer(f"{seed} = {self.bar(c.phi)}")
                seeds.append((c.next.id, seed, direct))
            for target, seed, direct in seeds:
                if direct:
                    self.has.add(target)
                else:
                    self.add(target, seed, ast.Constant(1.0))

        def after() -> None:
            for c in going:
                if c.phi not in self.has:
                    self.writer(f"{self.bar(c.phi)} = 0.0")

        if self.is_recurrence(loop, going):
            code, outward = self.recurrence(scope, going[0])
        else:
            code, outward = self.region(scope, before, after)
        if not code.lines and not going and not turning:
            return
        for c in turning:
            self.writer(f"{self.turned(c)} = {self.shadow(c.out)}")
        for c in going:
            start = self.bar(c.out) if c.out in self.has else "0.0"
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
        printer.assign(self.writer, [(self.turned(c), self.shadow(c.phi)) for c in turning])
        self.writer.close()
        for c in turning:
            self.shadows.pop(c.phi, None)
            if isinstance(c.init, ast.Name):
                self.add_array(c.init.id, name(self.turned(c)))
        for c in going:
            if isinstance(c.init, ast.Name):
                self.add(c.init.id, self.bar(c.phi), ast.Constant(1.0))

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

    def is_independent(self, loop: Loop, scope: Scope) -> bool:
        """Whether the reverse of the iterations can be done in any order.

        So it is if nothing of an iteration goes to the next, what it keeps has a place of its own,
        and every array is either only read or only written, at an element for each iteration.
        """
        if not loop.counted or (scope.stored and not self.is_reserved(scope)):
            return False
        if self.keeps_inside(loop.body):
            return False
        read: set[str] = set()
        stores: set[str] = set()
        for statement in loop.body:
            if isinstance(statement, Let):
                rule = statement.rule
                if not isinstance(
                    rule, (rules.Elementary, rules.Load, rules.Linear, rules.Passive)
                ) or is_array(self.types.get(statement.target)):
                    return False
                if isinstance(rule, rules.Load):
                    read.add(self.arrays.of(rule.array))
            elif isinstance(statement, Store):
                if not self.is_active(statement.array):
                    continue
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
        return not read & stores

    def is_recurrence(self, loop: Loop, going: list[Any]) -> bool:
        """Whether an iteration is a straight computation of one new value from the last."""
        if len(going) != 1 or not isinstance(going[0].next, ast.Name):
            return False
        made = {s.target: s for s in loop.body if isinstance(s, Let)}
        plain = (rules.Elementary, rules.Load, rules.Linear, rules.Passive)
        return (
            going[0].next.id in made
            and len(made) == len(loop.body)
            and not any(is_array(self.types.get(target)) for target in made)
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

    # -- arrays of cotangents -----------------------------------------------------------------

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
                    expr = _replace(statement.expr, {rule.base: base})
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


def _replace(expr: ast.expr, new: dict[str, str]) -> ast.expr:
    """Return an expression with names replaced."""
    import copy

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return name(new.get(node.id, node.id))

    return Replace().visit(copy.deepcopy(expr))
