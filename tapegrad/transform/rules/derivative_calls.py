"""Calls of derivatives in functions that are differentiated themselves."""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform.ir import (
    Let,
    Structure,
    leaf_names,
    leaves_of,
    name,
)
from tapegrad.transform.kinds import is_array, result_kind
from tapegrad.transform.nodes import call_of, expression_of, tuple_of
from tapegrad.transform.rules.calls import AnyCall, dotted, expr_of, tangent_of
from tapegrad.transform.rules.generators import ForwardCode, Generator, ReverseCode


class TransformCall(AnyCall):
    """A call of a derivative that was made with `tapegrad.grad` and similar functions."""

    fresh = True

    def contents(self, let: Let) -> list[str]:
        return self.named()

    def written(self) -> list[str]:
        """Return the arrays that the callee writes."""
        changed = self.callee.changed_arguments(self.kinds)
        return [n for k in changed for n in leaf_names(self.values[k])]

    def cotangent(self, gen: ReverseCode, let: Let) -> ast.expr:
        """Return the cotangent of the result, in the structure of the result."""

        def one(node: ast.expr, kind: Any) -> ast.expr:
            if isinstance(node, ast.Tuple):
                items = zip(node.elts, kind, strict=True)
                return Structure(kind, [one(*item) for item in items]).build(lambda leaf: leaf)
            assert isinstance(node, ast.Name)
            if is_array(self.types[node.id]):
                return gen.shadow(node.id)
            return name(gen.bar(node.id)) if node.id in gen.has else ast.Constant(0.0)

        return one(expression_of(let.target), result_kind(self.callee, self.kinds))

    def active_positions(self, gen: Generator) -> tuple[int, ...]:
        """Return the positions of the arguments that carry derivatives."""
        return tuple(
            position
            for position, value in enumerate(self.values)
            if any(self.is_active(gen, leaf) for leaf in leaves_of(value))
        )

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the call of the jvp of the derivative."""
        positions = self.active_positions(gen)
        if not positions:
            self.write_passive(gen, let)
            return
        jvp = gen.program.derived(self.callee, "jvp", positions)
        arguments = [expr_of(value) for value in self.values]
        arguments += [tangent_of(self.values[position], gen) for position in positions]
        targets = tuple_of([expression_of(let.target), dotted(let, gen)])
        gen.builder.assign(targets, call_of(jvp, *arguments))

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        """Write the call that gives the cotangents: a Hessian is symmetric."""
        positions = self.active_positions(gen)
        live = [n for n in self.real_results(let) if gen.is_active(n)]
        if not positions or not live:
            return
        if not any(n in gen.has or is_array(self.types[n]) for n in live):
            return
        vjp = gen.program.derived(self.callee, "vjp", positions)
        arguments = [*self.read_arguments(gen), self.cotangent(gen, let)]
        found = name(gen.returned(let))
        gen.builder.assign(found, call_of(vjp, *arguments))
        self.add_cotangents(gen, found, positions)
