"""The forward code: the primal code, which also keeps what the reverse code needs."""

from __future__ import annotations

import ast

from tapegrad.transform import builder as build
from tapegrad.transform.builder import Builder, add_block, value_or_none
from tapegrad.transform.codegen.keeping import Keeping
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.codegen.shadows import Shadows
from tapegrad.transform.codegen.stores import Copies
from tapegrad.transform.ir import Block, If, Let, Loop, name


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

    def write(self, builder: Builder, block: Block) -> None:
        """Write the forward code of a block, with the pushes for its reverse."""
        self.write_statements(builder, block)
        self.keeping.write_pushes(builder, self.state.scopes.blocks[id(block)])

    def write_statements(self, builder: Builder, block: Block) -> None:
        """Write the forward code of statements."""
        for statement in self.shadows.sizes.statements(block):
            if isinstance(statement, If):
                self._write_if(builder, statement)
            elif isinstance(statement, Loop):
                self._write_loop(builder, statement)
            else:
                before, after = self.copies.around.get(id(statement), ([], []))
                add_block(builder, before)
                if isinstance(statement, Let) and hasattr(statement.rule, "write_forward"):
                    statement.rule.write_forward(self.state, builder, statement)
                else:
                    add_block(builder, [statement])
                    self.shadows.write(builder, statement)
                add_block(builder, after)

    def _write_if(self, builder: Builder, statement: If) -> None:
        node = builder.branch(statement.cond)
        for block, body, merged in build.sides(statement, node):
            inner = Builder()
            self.write(inner, block)
            for target, value in merged:
                inner.assign(name(target), value_or_none(value))
            inner.assign_all(self.shadows.pairs(merged))
            if inner.body or body is node.body:
                with builder.within(body):
                    builder.extend(inner)

    def _write_loop(self, builder: Builder, loop: Loop) -> None:
        scope = self.state.scopes.blocks[id(loop.body)]
        build.enter(builder, loop.carried)
        builder.assign_all(self.shadows.pairs([(c.phi, c.init) for c in loop.carried]))
        if scope.rows:
            self.keeping.reserve(builder, loop, scope)
        counts = not loop.counted
        if counts:
            builder.assign(name(loop.trips), ast.Constant(0))
        with build.iteration(builder, loop):
            if counts:
                builder.update(name(loop.trips), "+", ast.Constant(1))
            self.write(builder, loop.body)
            build.advance(builder, loop.carried)
            builder.assign_all(self.shadows.pairs([(c.phi, c.next) for c in loop.carried]))
        if scope.rows:
            builder.assign(name("top"), name(f"needed_{loop.trips}"))
        self.keeping.write_elements_pushes(builder, loop)
        build.leave(builder, loop.carried)
        left = [(c.out, name(c.phi)) for c in loop.carried]
        builder.assign_all(self.shadows.pairs(left))
