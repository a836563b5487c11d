"""The forward code: the primal code, which also keeps what the reverse code needs."""

from __future__ import annotations

from tapegrad.transform import printer
from tapegrad.transform.codegen.keeping import Keeping
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.codegen.shadows import Shadows
from tapegrad.transform.codegen.stores import Copies
from tapegrad.transform.ir import Block, If, Let, Loop, name
from tapegrad.transform.printer import Writer, show


class ForwardHalf:
    """Writes the forward code of one function, once it is known what the reverse code needs.

    Parameters
    ----------
    state
        The state of reverse mode.
    shadows
        The arrays of cotangents.
    keeping
        Decides what is kept on the tape.
    copies
        Copies made before and after operations.
    """

    def __init__(
        self, state: ReverseState, shadows: Shadows, keeping: Keeping, copies: Copies
    ) -> None:
        self.state = state
        self.shadows = shadows
        self.keeping = keeping
        self.copies = copies

    def write(self, writer: Writer, block: Block) -> None:
        """Write the forward code of a block, with the pushes for its reverse."""
        self.write_statements(writer, block)
        self.keeping.write_pushes(writer, self.state.scopes.blocks[id(block)])

    def write_statements(self, writer: Writer, block: Block) -> None:
        """Write the forward code of statements."""
        for statement in self.shadows.sizes.statements(block):
            if isinstance(statement, If):
                self._write_if(writer, statement)
            elif isinstance(statement, Loop):
                self._write_loop(writer, statement)
            else:
                before, after = self.copies.around.get(id(statement), ([], []))
                printer.write_block(writer, before)
                if isinstance(statement, Let) and hasattr(statement.rule, "write_forward"):
                    statement.rule.write_forward(self.state, writer, statement)
                else:
                    printer.write_block(writer, [statement])
                    self.shadows.write(writer, statement)
                printer.write_block(writer, after)

    def _write_if(self, writer: Writer, statement: If) -> None:
        for head, block, merged in printer.sides(statement):
            inner = Writer()
            self.write(inner, block)
            for target, value in merged:
                inner(f"{target} = {show(value)}")
            printer.assign(inner, self.shadows.pairs(merged))
            if inner.lines or head != "else:":
                with writer.block(head):
                    writer.extend(inner)

    def _write_loop(self, writer: Writer, loop: Loop) -> None:
        scope = self.state.scopes.blocks[id(loop.body)]
        printer.enter(writer, loop.carried)
        printer.assign(writer, self.shadows.pairs([(c.phi, c.init) for c in loop.carried]))
        if scope.rows:
            self.keeping.reserve(writer, loop, scope)
        counts = not loop.counted
        if counts:
            writer(f"{loop.trips} = 0")
        with printer.iteration(writer, loop):
            if counts:
                writer(f"{loop.trips} += 1")
            self.write(writer, loop.body)
            printer.advance(writer, loop.carried)
            printer.assign(writer, self.shadows.pairs([(c.phi, c.next) for c in loop.carried]))
        if scope.rows:
            writer(f"top = needed_{loop.trips}")
        self.keeping.write_elements_pushes(writer, loop)
        printer.leave(writer, loop.carried)
        left = [(c.out, name(c.phi)) for c in loop.carried]
        printer.assign(writer, self.shadows.pairs(left))
