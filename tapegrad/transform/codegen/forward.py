"""Forward mode: every value is computed together with its tangent.

The tangent of a number or array ``x`` is a number or array ``x_dot``; the tangent of a view is a
view of the tangent. The code is the primal code with one more line for each tangent.
"""

from __future__ import annotations

import ast
import functools

from tapegrad.transform import builder as build
from tapegrad.transform.builder import add_block, add_let, add_store, value_or_none
from tapegrad.transform.codegen.analysis import Arrays, unused_suffix
from tapegrad.transform.codegen.loop_shapes import polynomial_chain
from tapegrad.transform.codegen.mode import Mode
from tapegrad.transform.ir import (
    Block,
    Carried,
    FunctionIR,
    If,
    Let,
    Loop,
    Role,
    Statement,
    Store,
    leaves_of,
    name,
    names_in,
    reads,
    walk,
)
from tapegrad.transform.kinds import is_array, is_real, zero_of
from tapegrad.transform.nodes import binary, call_of, copy_of
from tapegrad.transform.protocols import Program
from tapegrad.transform.rules import base as rules

DOT, SLOPE, REST = "_dot", "_slope", "_rest"
_ORIGINS = 4  # of a number that are told from each other


class Forward(Mode):
    """Writes the code of one function that computes tangents as well.

    Parameters
    ----------
    program, function, arrays, inputs, outputs
        As for `Mode`.
    given
        The names whose tangents are arguments.
    """

    def __init__(
        self,
        program: Program,
        function: FunctionIR,
        arrays: Arrays,
        given: list[str],
        inputs: list[str],
        outputs: list[str],
    ) -> None:
        super().__init__(program, function, arrays, inputs, outputs, DOT, Role.TANGENT)
        self.given = given
        self.slope = unused_suffix(SLOPE, self.types)
        self.rest = unused_suffix(REST, self.types)
        self.parts: dict[str, str] | None = None  # parts of tangents, while they are written

    # -- what rules call ----------------------------------------------------------------------

    def dot(self, identifier: str) -> str:
        """Return the tangent of a name."""
        return self.derivative(identifier) if self.parts is None else self.parts[identifier]

    def is_active(self, identifier: str) -> bool:
        if self.parts is not None:
            return identifier in self.parts
        return super().is_active(identifier)

    def set_dot(self, let: Let, expr: ast.expr | None, broadcast: bool = False) -> None:
        """Write the tangent of a new value; with `broadcast`, broadcast it to the value's shape."""
        target = let.target
        whole = is_array(self.types[target])
        dot = name(self.dot(target))
        if expr is None:
            expr = self.zero(target)
        elif whole and (broadcast or self._is_number(target, expr)):
            self.builder.assign(dot, self.zero(target))
            self.builder.update(dot, "+", expr)
            return
        elif whole and isinstance(expr, ast.Name) and let.rule.fresh:
            # copy: two values must not share a tangent
            expr = copy_of(expr)
        self.builder.assign(dot, expr)

    def _is_number(self, target: str, expr: ast.expr) -> bool:
        """Whether numba computes a number where the tangent is an array without axes."""
        is_operation = isinstance(expr, (ast.BinOp, ast.UnaryOp, ast.Call))
        return is_operation and not self.types[target].ndim

    def set_handle(self, target: str, expr: ast.expr) -> None:
        """Write the tangent of a new array."""
        self.builder.assign(name(self.derivative(target)), expr)

    def zero(self, identifier: str) -> ast.expr:
        kind = self.types[identifier]
        return call_of("np.zeros_like", name(identifier)) if is_array(kind) else zero_of(kind)

    def tangent(self, atom: ast.expr | None) -> ast.expr:
        """Return the tangent of an atom, zero if it has none."""
        if isinstance(atom, ast.Name):
            return name(self.dot(atom.id)) if self.is_active(atom.id) else self.zero(atom.id)
        return ast.Constant(0.0)

    def origins(self, identifier: str) -> list[str]:
        """Return the numbers that a number follows from.

        A tangent of 0 says nothing about these where changes cancel or are multiplied by 0. A
        choice, whose tangent is that of one operand, is not looked into.
        """
        if self.parts is not None:
            return []
        found: list[str] = []
        todo = [identifier]
        while todo:
            one = todo.pop()
            let = self._makers.get(one)
            if let is None or len(found) + len(todo) > _ORIGINS:
                found.append(one)
                continue
            known = {*found, *todo}
            todo += [n for n in dict.fromkeys(let.rule.inputs()) if n not in known]
        return [n for n in found if n != identifier and self.is_active(n)]

    def is_summed(self, let: Let) -> bool:
        """Whether an operation adds to the sum of a loop, where a partial of it may be infinite."""
        return let.target in self._sums

    @functools.cached_property
    def _sums(self) -> set[str]:
        """What loops add up, as numbers, for nothing but functions with infinite partials.

        Others would show the mark.
        """
        read: dict[str, list[Statement]] = {}
        for statement in walk(self.function.body):
            for n in reads(statement):
                read.setdefault(n, []).append(statement)
        shown = {n for leaf in leaves_of(self.function.result) for n in names_in(leaf)}
        found = set()
        for loop in walk(self.function.body):
            for c in loop.carried if isinstance(loop, Loop) else ():
                maker = self._makers.get(c.next.id) if isinstance(c.next, ast.Name) else None
                if (
                    maker is not None
                    and c.phi in maker.rule.inputs()
                    and c.out not in shown
                    and all(s is maker for s in read.get(c.phi, ()))
                    and all(s is loop for s in read[maker.target])
                    and all(self._is_singular(s, c.out) for s in read.get(c.out, ()))
                ):
                    found.add(maker.target)
        return found

    def _is_singular(self, statement: Statement, operand: str) -> bool:
        """Whether a statement is a function whose partials by an operand may be infinite."""
        rule = statement.rule if isinstance(statement, Let) else None
        return isinstance(rule, rules.Elementary) and rule.may_be_singular(operand)

    @functools.cached_property
    def _makers(self) -> dict[str, Let]:
        """The operations on numbers, by their results."""
        return {
            statement.target: statement
            for statement in walk(self.function.body)
            if isinstance(statement, Let)
            and isinstance(statement.rule, rules.Elementary)
            and not (statement.rule.op.chooses or statement.rule.whole or statement.rule.is_complex)
        }

    # -- code ---------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Write the code of a block."""
        for statement in block:
            if isinstance(statement, Let):
                self.let(statement)
            elif isinstance(statement, Store):
                self.store(statement)
            elif isinstance(statement, If):
                self.branch(statement)
            elif isinstance(statement, Loop):
                self.loop(statement)
            else:
                add_block(self.builder, [statement])

    def let(self, let: Let) -> None:
        rule: rules.Rule = let.rule
        if rule.calls:
            rule.write_jvp(self, let)
            return
        add_let(self.builder, let)
        if not self.is_active(let.target) or let.target in self.given:
            return
        if isinstance(rule, (rules.Part, rules.Passive, rules.Unknown)) or self.is_constant(let):
            self.set_dot(let, None)  # it has no tangent, but may get one when it is written to
        else:
            rule.write_jvp(self, let)

    def is_constant(self, let: Let) -> bool:
        """Whether the tangent of a new array is zero until something is written to the array."""
        inputs = let.rule.inputs()
        is_new = let.leaves is None and let.rule.base is None and bool(inputs)
        return is_new and not any(map(self.is_active, inputs))

    def store(self, store: Store) -> None:
        add_store(self.builder, store)
        if not self.is_active(store.array):
            return
        value = store.value
        source = value.id if isinstance(value, ast.Name) and self.is_active(value.id) else ""
        if not source and store.op:
            return
        dot = name(self.dot(source)) if source else ast.Constant(0.0)
        ndim = store.ndim if source else 0
        target = self.dot(store.array)
        add_store(self.builder, Store(target, store.index, dot, store.op, ndim=ndim))

    def branch(self, statement: If) -> None:
        node = self.builder.branch(statement.cond)
        for block, body, merged in build.sides(statement, node):
            if body is node.orelse and not block and not statement.phis:
                continue
            with self.builder.within(body):
                self.block(block)
                for target, value in merged:
                    self.builder.assign(name(target), value_or_none(value))
                    if self.is_active(target) and is_real(self.types[target]):
                        self.set_handle(target, self.tangent(value))

    def loop(self, loop: Loop) -> None:
        active = {
            c.phi for c in loop.carried if is_real(self.types[c.phi]) and self.is_active(c.phi)
        }
        for c in loop.carried:
            self.builder.assign(name(c.phi), value_or_none(c.init))
            if c.phi in active:
                self.set_handle(c.phi, self.tangent(c.init))
        single = [c for c in loop.carried if c.phi in active]
        chain = polynomial_chain(loop, single[0], self.types) if len(single) == 1 else {}
        with build.iteration(self.builder, loop):
            if chain:
                self.recurrence(loop, single[0], chain)
            else:
                self.block(loop.body)
            pairs = []
            for c in loop.carried:
                pairs.append((name(c.phi), value_or_none(c.next)))
                if c.phi in active:
                    pairs.append((name(self.derivative(c.phi)), self.tangent(c.next)))
            self.builder.assign_all(pairs)
        for c in loop.carried:
            self.builder.assign(name(c.out), name(c.phi))
            if c.phi in active:
                self.set_handle(c.out, name(self.derivative(c.phi)))

    def recurrence(self, loop: Loop, c: Carried, chain: dict[str, Let]) -> None:
        """Write an iteration of a recurrence: the slope first, then its product with the tangent.

        The tangent of what is computed from the carried value x is ``slope * x_dot + rest``. Slope
        and rest do not depend on x_dot, so the dependency chain from one iteration to the next is
        one product and one sum.
        """
        slopes = {c.phi: self.note(c.phi + self.slope, Role.SLOPE, c.phi)}
        rests: dict[str, str] = {}
        self.builder.assign(name(slopes[c.phi]), ast.Constant(1.0))
        for statement in loop.body:
            if not isinstance(statement, Let) or statement.target not in chain:
                self.block([statement])
                continue
            target = statement.target
            add_let(self.builder, statement)
            slopes[target] = self.note(target + self.slope, Role.SLOPE, target)
            self.part(statement, slopes)
            others = [n for n in statement.rule.inputs() if n not in slopes and self.is_active(n)]
            known = {n: self.derivative(n) for n in others} | rests
            if any(n in known for n in statement.rule.inputs()):
                rests[target] = self.note(target + self.rest, Role.REST, target)
                self.part(statement, known | rests)
        assert isinstance(c.next, ast.Name)
        found = binary(name(slopes[c.next.id]), "*", name(self.derivative(c.phi)))
        if c.next.id in rests:
            found = binary(found, "+", name(rests[c.next.id]))
        self.set_handle(c.next.id, found)

    def part(self, let: Let, parts: dict[str, str]) -> None:
        """Write the part of a tangent that comes from these parts of the tangents of operands."""
        self.parts = parts
        let.rule.write_jvp(self, let)
        self.parts = None
