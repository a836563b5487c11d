"""Which values the forward pass keeps on the tape, and the code that keeps and takes them."""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform import printer, runtime
from tapegrad.transform.codegen.analysis import Scope
from tapegrad.transform.codegen.cotangents import Cotangents
from tapegrad.transform.frontend.constants import member_like
from tapegrad.transform.ir import Block, If, Let, Loop, defined, name, names_in, reads, unused, walk
from tapegrad.transform.kinds import is_array
from tapegrad.transform.printer import Writer, show
from tapegrad.transform.rules import base as rules


class Keeping(Cotangents):
    """The part of the reverse mode that decides between keeping and computing again."""

    def plan(self, scope: Scope, needs: dict[str, None], writer: Writer) -> dict[str, None]:
        """Write what brings back the values of a block; return those needed from outside."""
        outer = {n: None for n in needs if n not in scope.own}
        own = [n for n in needs if n in scope.own]
        if scope.local:
            scope.is_read = bool(own)
            for identifier in own:
                self.want(identifier)
            return outer
        again: set[int] = set()
        views: set[str] = set()  # whose shadows are taken again
        stored: dict[str, None] = {}
        seen: set[str] = set()

        def visit(identifier: str) -> None:
            if identifier in seen or identifier not in self.types:
                return
            seen.add(identifier)
            if identifier not in scope.own:
                if identifier in self.scopes.scope_of:
                    outer[identifier] = None
                return
            maker = self.scopes.makers.get(identifier)
            if isinstance(maker, Loop) and maker.body is scope.block:
                if identifier != maker.index:
                    stored[identifier] = None
            elif identifier in self.arrays_of:
                if isinstance(maker, Let) and maker.rule.base is not None:
                    views.add(identifier)
                    for read in names_in(self.shadow_of(maker, self.arrays_of[identifier])):
                        visit(read)
                else:
                    stored[identifier] = None
            elif self.is_cheap(maker, identifier):
                again.add(id(maker))
                for read in self.reads_again(maker):
                    visit(read)
            else:
                stored[identifier] = None

        for identifier in own:
            visit(identifier)
        for identifier in stored:
            self.want(identifier)
        scope.stored = self.in_parts(scope, stored)
        self.write_pops(scope, writer)
        if self.is_reserved(scope):
            outer[scope.statement.trips] = None
        for statement in scope.block:
            if id(statement) in again:
                printer.write_block(writer, [statement])
            if isinstance(statement, Let) and statement.target + self.suffix in views:
                bar = statement.target + self.suffix
                writer(f"{bar} = {show(self.shadow_of(statement, statement.target))}")
        return outer

    def in_parts(self, scope: Scope, stored: dict[str, None]) -> list[str]:
        """Return what is kept, where complex numbers and tuples are kept as their parts."""
        found: list[str] = []
        waiting = list(reversed(stored))
        while waiting:
            identifier = waiting.pop()
            kinds = parts_of(self.types[identifier])
            if not kinds:
                found.append(identifier)
                continue
            parts = []
            for text, kind in kinds.items():
                parts.append(part := unused(f"{identifier}_{text}", self.types))
                self.types[part] = kind
            scope.parts[identifier] = tuple(parts)
            waiting += reversed(parts)
        return found

    def reads_again(self, maker: Any) -> list[str]:
        """Return what has to be there to compute a statement again."""
        inside = list(walk([maker]))
        made = {n for s in inside if s is not maker for n in defined(s)}
        return [n for s in inside for n in reads(s) if n not in made]

    def is_cheap(self, maker: Any, identifier: str) -> bool:
        """Whether a value is computed again rather than kept."""
        if isinstance(maker, Let):
            rule = maker.rule
            if not rule.cheap:
                return False
            if isinstance(rule, rules.View):
                return True
            if any(self.may_change(n) for n in defined(maker)):
                return False  # it was made with other elements than it has now
            if isinstance(rule, rules.Passive) and not self.reads_elements(maker.expr):
                return True
            root = self.scopes.roots[id(maker)]
            return all(self.is_same(n, root) for n in names_in(maker.expr))
        if isinstance(maker, If):
            return all(
                isinstance(inner, (Let, If)) and self.is_cheap(inner, "")
                for block in (maker.then, maker.orelse)
                for inner in block
            )
        return False

    def reads_elements(self, expr: ast.expr) -> bool:
        """Whether a passive expression may read elements of an array, or fields of a record."""
        if isinstance(expr, ast.Attribute):
            base = expr.value
            is_of_array = isinstance(base, ast.Name) and is_array(self.types.get(base.id))
            return not is_of_array or expr.attr not in _ELEMENT_FREE
        if isinstance(expr, ast.Call) and isinstance(expr.func, ast.Name):
            return expr.func.id not in ("len", "np.shape", "np.size")
        return True

    def may_change(self, identifier: str) -> bool:
        """Whether a name stands for an array that is written anywhere."""
        if not is_array(self.types.get(identifier)):
            return False
        first = self.arrays.of(identifier)
        return first in self.unstable or self.arrays.is_stored(first)

    def is_same(self, identifier: str, root: int) -> bool:
        """Whether what a name stands for stays what it is from a statement of the body on."""
        kind = self.types.get(identifier)
        if is_array(kind):
            return self.keeps(identifier, root)
        return kind is None or not _may_change(kind) or not self.arrays.stores

    def keeps(self, array: str, root: int) -> bool:
        return self.arrays.of(array) not in self.unstable and self.arrays.keeps(array, root)

    def places(self, scope: Scope, numbers: list[str]) -> list[str]:
        """Return where on the tape the numbers of a block are.

        A loop whose number of iterations is known before has a row of the tape for each of them.
        """
        if not self.is_reserved(scope):
            return [f"tape[top + {k}]" if k else "tape[top]" for k in range(len(numbers))]
        loop = scope.statement
        low, _, step = loop.bounds
        turn = loop.index if show(low) == "0" else f"({loop.index} - {show(low)})"
        if show(step) != "1":
            turn = f"{turn} // {show(step)}"
        rows = [
            "top",
            f"top + {loop.trips}",
            *(f"top + {k} * {loop.trips}" for k in range(2, len(numbers))),
        ]
        return [f"tape[{row} + {turn}]" for row in rows[: len(numbers)]]

    def is_reserved(self, scope: Scope) -> bool:
        """Whether a block is the body of a loop that has its part of the tape as a whole."""
        loop = scope.statement
        return (
            scope.kind == "loop"
            and loop.counted
            and bool(scope.stored)
            and not any(is_array(self.types[n]) for n in scope.stored)
            and not self.keeps_inside(loop.body)
        )

    def write_pops(self, scope: Scope, writer: Writer) -> None:
        """Write what takes values from the tape."""
        stored = scope.stored
        arrays = [n for n in stored if is_array(self.types[n])]
        numbers = [n for n in stored if n not in arrays]
        if stored:
            self.uses_tape = True
        places = self.places(scope, numbers)
        for identifier in reversed(arrays):
            writer(f"{identifier}, top = runtime.pop_array(tape, top, {self.kept_as(identifier)})")
        if numbers:
            if not self.is_reserved(scope):
                writer(f"top -= {len(numbers)}")
            for place, identifier in zip(places, numbers, strict=True):
                kind = self.types[identifier]
                if isinstance(kind, types.Float):
                    text = place if kind == types.float64 else f"np.{kind}({place})"
                elif isinstance(kind, types.Boolean):
                    text = f"runtime.from_bits({place}) != 0"
                elif isinstance(kind, types.Integer):
                    text = f"runtime.from_bits({place})"
                    text = text if kind == types.int64 else f"np.{kind}({text})"
                elif like := member_like(kind, self.function.statics):
                    text = f"runtime.member({like}, runtime.from_bits({place}))"
                else:
                    self.refuse_keeping(identifier, kind)
                writer(f"{identifier} = {text}")
        for identifier, parts in reversed(scope.parts.items()):
            # a complex number has the precision of the parts
            joined = "complex" if isinstance(self.types[identifier], types.Complex) else ""
            writer(f"{identifier} = {joined}({', '.join(parts)}{'' if joined else ','})")

    def kept_as(self, identifier: str) -> str:
        """Return the expression of the type that an array has on the tape."""
        kind = self.types[identifier]
        if not isinstance(kind.dtype, (types.Number, types.Boolean)):
            self.refuse_keeping(identifier, kind)
        return f"runtime.{runtime.kind_name(kind)}"

    def refuse_keeping(self, identifier: str, kind: Any) -> None:
        way_out = "use arrays of floats or integers"
        if isinstance(kind, types.BaseTuple):
            way_out = "use a variable for each of its parts"
        elif isinstance(kind, types.EnumMember):
            way_out = "use the value of the member"
        self.refuse(
            f"cannot keep {identifier}, of type {kind}, for the reverse pass; {way_out}",
            self.scopes.makers[identifier].line,
        )

    # -- forward code -------------------------------------------------------------------------

    def write_forward(self, writer: Writer, block: Block) -> None:
        """Write the forward code of a block, which keeps what its reverse needs."""
        self.write_statements(writer, block)
        self.write_pushes(writer, self.scopes.blocks[id(block)])

    def write_statements(self, writer: Writer, block: Block) -> None:
        """Write the forward code of statements."""
        for statement in block:
            if isinstance(statement, If):
                self.forward_if(writer, statement)
            elif isinstance(statement, Loop):
                self.forward_loop(writer, statement)
            else:
                before, after = self.copies.get(id(statement), ([], []))
                printer.write_block(writer, before)
                if isinstance(statement, Let) and hasattr(statement.rule, "write_forward"):
                    statement.rule.write_forward(self, writer, statement)
                else:
                    printer.write_block(writer, [statement])
                    self.write_shadows(writer, statement)
                printer.write_block(writer, after)

    def write_pushes(self, writer: Writer, scope: Scope) -> None:
        """Write what puts values onto the tape."""
        stored = scope.stored
        arrays = [n for n in stored if is_array(self.types[n])]
        numbers = [n for n in stored if n not in arrays]
        for identifier, parts in scope.parts.items():
            if isinstance(self.types[identifier], types.Complex):
                writer(f"{parts[0]} = {identifier}.real")
                writer(f"{parts[1]} = {identifier}.imag")
            else:
                writer(f"{', '.join(parts)}, = {identifier}")
        if numbers:
            reserved = self.is_reserved(scope)
            if not reserved:
                writer.open(f"if top + {len(numbers)} > tape.size:")
                writer(f"tape = runtime.grown(tape, top + {len(numbers)})")
                writer.close()
            for place, identifier in zip(self.places(scope, numbers), numbers, strict=True):
                kind = self.types[identifier]
                real = isinstance(kind, types.Float)
                writer(f"{place} = {identifier if real else f'runtime.to_bits({identifier})'}")
            if not reserved:
                writer(f"top += {len(numbers)}")
        for identifier in arrays:
            given = f"{identifier}, {self.kept_as(identifier)}"
            writer(f"tape, top = runtime.push_array(tape, top, {given})")

    def forward_if(self, writer: Writer, statement: If) -> None:
        for head, block, side in (
            (f"if {show(statement.cond)}:", statement.then, "then"),
            ("else:", statement.orelse, "orelse"),
        ):
            inner = Writer()
            self.write_forward(inner, block)
            chosen = statement.merged(side)
            for target, value in chosen:
                inner(f"{target} = {show(value)}")
            printer.assign(inner, self.shadow_pairs(chosen))
            if side == "orelse" and not inner.lines:
                continue
            writer.open(head)
            start = len(writer.lines)
            writer.extend(inner)
            writer.close(start)

    def forward_loop(self, writer: Writer, loop: Loop) -> None:
        scope = self.scopes.blocks[id(loop.body)]
        printer.enter(writer, loop.carried)
        printer.assign(writer, self.shadow_pairs([(c.phi, c.init) for c in loop.carried]))
        reserved = self.is_reserved(scope)
        if reserved:
            self.reserve(writer, loop, scope)
        counts = not loop.counted
        if counts:
            writer(f"{loop.trips} = 0")
        writer.open(printer.loop_head(loop))
        start = len(writer.lines)
        printer.write_test(writer, loop)
        if counts:
            writer(f"{loop.trips} += 1")
        self.write_forward(writer, loop.body)
        printer.advance(writer, loop.carried)
        printer.assign(writer, self.shadow_pairs([(c.phi, c.next) for c in loop.carried]))
        if loop.exit is not None:
            writer.open(f"if {show(loop.exit)}:")
            writer("break")
            writer.close()
        writer.close(start)
        if reserved:
            writer(f"top = needed_{loop.trips}")
        printer.leave(writer, loop.carried)
        left = [(c.out, name(c.phi)) for c in loop.carried]
        printer.assign(writer, self.shadow_pairs(left))

    def reserve(self, writer: Writer, loop: Loop, scope: Scope) -> None:
        """Write what makes the tape large enough for a whole loop."""
        needed = f"needed_{loop.trips}"
        writer(f"{loop.trips} = {trips_text(loop)}")
        count = len(scope.stored)
        writer(f"{needed} = top + {f'{count} * ' if count > 1 else ''}{loop.trips}")
        writer.open(f"if {needed} > tape.size:")
        writer(f"tape = runtime.grown(tape, {needed})")
        writer.close()

    def keeps_inside(self, block: Block) -> bool:
        """Whether inner blocks keep anything on the tape, or calls have to be made beforehand."""
        for statement in block:
            if isinstance(statement, If):
                inner = [statement.then, statement.orelse]
            elif isinstance(statement, Loop):
                inner = [statement.body]
            else:
                if isinstance(statement, Let) and hasattr(statement.rule, "has_forward"):
                    if statement.rule.has_forward(self, statement):
                        return True
                continue
            for part in inner:
                if self.scopes.blocks[id(part)].stored or self.keeps_inside(part):
                    return True
        return False


def trips_text(loop: Loop) -> str:
    """Return the text of the number of iterations of a loop over a range."""
    assert loop.bounds is not None
    low, high, step = (show(bound) for bound in loop.bounds)
    if step != "1":
        return f"len(range({low}, {high}, {step}))"
    return f"max({high} - {low}, 0)" if low != "0" else f"max({high}, 0)"


def parts_of(kind: Any) -> dict[str, Any]:
    """Return the types of the parts, by their names, as which a value is kept; none of others."""
    if isinstance(kind, types.Complex):
        return dict.fromkeys(("real", "imag"), kind.underlying_float)
    if isinstance(kind, (types.Tuple, types.UniTuple)):
        return {f"item_{k}": item for k, item in enumerate(kind)}
    return {}


_ELEMENT_FREE = ("shape", "size", "ndim", "itemsize", "nbytes", "strides", "T")


def _may_change(kind: Any) -> bool:
    """Whether what a value of a type holds may be changed by anyone."""
    if isinstance(kind, types.BaseTuple):
        return any(map(_may_change, kind))
    fixed = (
        types.Number,
        types.Boolean,
        types.NoneType,
        types.UnicodeType,
        types.RangeType,
        types.DType,
        types.Function,
        types.Dispatcher,
        types.Module,
        types.NumberClass,
        types.TypeRef,
    )
    return not isinstance(kind, fixed)
