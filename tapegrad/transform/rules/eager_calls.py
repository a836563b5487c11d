"""Calls that run in Python, with their derivatives (see `tapegrad.transform.eager_calls`)."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any

from tapegrad.transform.ir import Let, leaf_names, name
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import call_of
from tapegrad.transform.rules.base import Rule, real_names
from tapegrad.transform.rules.generators import ForwardCode, Generator, Lowerer, ReverseCode


class EagerCall(Rule):
    """A call that runs in Python, with its derivatives."""

    cheap = False

    def __init__(self, lowering: Lowerer, expr: ast.Call, kind: Any) -> None:
        assert isinstance(expr.args[0], ast.Constant)
        self.path = ast.literal_eval(str(expr.args[0].value))
        self.operands = expr.args[1:]
        self.types = lowering.types
        self.fresh = is_array(kind)
        self._inputs = list(dict.fromkeys(real_names(self.operands, lowering)))

    def vanishing(self, let: Let) -> Sequence[str]:
        return self.inputs()

    def contents(self, let: Let) -> list[str]:
        return [*(n for operand in self.operands for n in leaf_names(operand)), let.target]

    def derivative(self, mode: str, number: int, result: ast.expr, by: ast.expr) -> ast.expr:
        """Return the call of the vjp or jvp of one operand."""
        path = ast.Constant(repr((*self.path, (mode, number))))
        values = [self.read(operand) for operand in self.operands]
        function = name("ops.call_eager")
        return ast.Call(function, [path, *values, self.read(result), by], [])

    def active(self, gen: Generator) -> list[tuple[int, str]]:
        """Return the operands that carry derivatives, with their positions."""
        return [
            (number, operand.id)
            for number, operand in enumerate(self.operands)
            if self.is_input(operand) and self.is_active(gen, operand)
        ]

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        g = gen.shadow(let.target) if self.fresh else name(gen.bar(let.target))
        for number, operand in self.active(gen):
            found = self.derivative("vjp", number, name(let.target), g)
            if is_array(self.types[operand]):
                gen.add_array(operand, found, self.types[operand].ndim)
                if gen.is_marked(operand):
                    given = call_of("arrays.is_used", g) if self.fresh else g
                    gen.builder.do(call_of("arrays.mark_zeros", gen.shadow(operand), given))
            else:
                gen.read(found)
                gen.add(operand, found, ast.Constant(1.0), found)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        terms = [
            self.derivative("jvp", number, name(let.target), name(gen.dot(operand)))
            for number, operand in self.active(gen)
        ]
        found = functools.reduce(lambda a, b: ast.BinOp(a, ast.Add(), b), terms)
        gen.set_dot(let, found)
