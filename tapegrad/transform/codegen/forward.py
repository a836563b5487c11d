"""Forward mode: every value is computed together with its tangent.

The tangent of a number or array ``x`` is a number or array ``x_dot``; the tangent of a view is a
view of the tangent. The code is the primal code with one more line for each tangent.
"""

from __future__ import annotations

import ast
from typing import NoReturn

from tapegrad.transform import printer
from tapegrad.transform.codegen.analysis import Activity, Arrays, check_known, unused_suffix
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import Block, FunctionIR, If, Let, Loop, Store, name, replace_names
from tapegrad.transform.kinds import is_array, is_real, zero_text
from tapegrad.transform.printer import Writer, show
from tapegrad.transform.rules import base as rules
from tapegrad.transform.rules.generators import ProgramCode

DOT = "_dot"


class Forward:
    """Writes the code of one function that computes tangents as well.

    Parameters
    ----------
    program
        The module that the code is written for.
    function
        The function, lowered.
    arrays
        Its alias classes.
    given
        The names whose tangents are arguments.
    inputs, outputs
        The names to differentiate with respect to, and the names to differentiate.
    """

    def __init__(
        self,
        program: ProgramCode,
        function: FunctionIR,
        arrays: Arrays,
        given: list[str],
        inputs: list[str],
        outputs: list[str],
    ) -> None:
        self.program = program
        self.function = function
        self.types = function.types
        self.suffix = unused_suffix(DOT, self.types)
        self.arrays = arrays
        self.given = given
        self.activity = Activity(function, arrays, inputs, outputs)
        self.writer = Writer()
        check_known(function, self.activity)

    def refuse(self, what: str, line: int) -> NoReturn:
        """Raise an error that points to a line of the user's function."""
        raise TransformError(what, self.function.source, line)

    # -- what rules call ----------------------------------------------------------------------

    def is_active(self, identifier: str) -> bool:
        """Whether a name carries derivatives."""
        return identifier in self.activity

    def dot(self, identifier: str) -> str:
        """Return the tangent of a name."""
        return identifier + self.suffix

    def write(self, text: str) -> None:
        """Write a line."""
        self.writer(text)

    def replaced(self, expr: ast.expr, new: dict[str, str]) -> ast.expr:
        """Return an expression with names replaced."""
        return replace_names(expr, new)

    def set_dot(self, let: Let, expr: ast.expr | None, broadcast: bool = False) -> None:
        """Write the tangent of a new value; with `broadcast`, broadcast it to the value's shape."""
        target = let.target
        whole = is_array(self.types[target])
        if expr is None:
            self.writer(f"{target}{self.suffix} = {self.zero(target)}")
        elif whole and broadcast:
            self.writer(f"{target}{self.suffix} = np.zeros_like({target})")
            self.writer(f"{target}{self.suffix} += {show(expr)}")
        elif whole and isinstance(expr, ast.Name) and let.rule.fresh:
            # copy: two values must not share a tangent
            self.writer(f"{target}{self.suffix} = {expr.id}.copy()")
        else:
            self.writer(f"{target}{self.suffix} = {show(expr)}")

    def set_handle(self, target: str, expr: ast.expr) -> None:
        """Write the tangent of a new array."""
        self.writer(f"{target}{self.suffix} = {show(expr)}")

    def zero(self, identifier: str) -> str:
        kind = self.types[identifier]
        return f"np.zeros_like({identifier})" if is_array(kind) else zero_text(kind)

    def tangent(self, atom: ast.expr | None) -> str:
        """Return the tangent of an atom, zero if it has none."""
        if isinstance(atom, ast.Name):
            return self.dot(atom.id) if self.is_active(atom.id) else self.zero(atom.id)
        return "0.0"

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
                printer.write_block(self.writer, [statement])

    def let(self, let: Let) -> None:
        rule: rules.Rule = let.rule
        if rule.calls:
            rule.write_jvp(self, let)
            return
        printer.write_block(self.writer, [let])
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
        printer.write_store(self.writer, store)
        if not self.is_active(store.array):
            return
        value = store.value
        active = isinstance(value, ast.Name) and self.is_active(value.id)
        if not active and store.op:
            return
        text = self.dot(value.id) if active else "0.0"
        printer.write_store(
            self.writer,
            Store(
                self.dot(store.array),
                store.index,
                name(text),
                store.op,
                ndim=store.ndim if active else 0,
            ),
        )

    def branch(self, statement: If) -> None:
        for head, block, side in (
            (f"if {show(statement.cond)}:", statement.then, "then"),
            ("else:", statement.orelse, "orelse"),
        ):
            if side == "orelse" and not block and not statement.phis:
                continue
            self.writer.open(head)
            start = len(self.writer.lines)
            self.block(block)
            for target, value in statement.merged(side):
                self.writer(f"{target} = {show(value)}")
                if self.is_active(target) and is_real(self.types[target]):
                    self.writer(f"{target}{self.suffix} = {self.tangent(value)}")
            self.writer.close(start)

    def loop(self, loop: Loop) -> None:
        active = {
            c.phi for c in loop.carried if is_real(self.types[c.phi]) and self.is_active(c.phi)
        }
        for c in loop.carried:
            self.writer(f"{c.phi} = {show(c.init)}")
            if c.phi in active:
                self.writer(f"{c.phi}{self.suffix} = {self.tangent(c.init)}")
        self.writer.open(printer.loop_head(loop))
        start = len(self.writer.lines)
        printer.write_test(self.writer, loop)
        self.block(loop.body)
        pairs = []
        for c in loop.carried:
            pairs.append((c.phi, show(c.next)))
            if c.phi in active:
                pairs.append((c.phi + self.suffix, self.tangent(c.next)))
        printer.assign(self.writer, pairs)
        if loop.exit is not None:
            self.writer.open(f"if {show(loop.exit)}:")
            self.writer("break")
            self.writer.close()
        self.writer.close(start)
        for c in loop.carried:
            self.writer(f"{c.out} = {c.phi}")
            if c.phi in active:
                self.writer(f"{c.out}{self.suffix} = {c.phi}{self.suffix}")
