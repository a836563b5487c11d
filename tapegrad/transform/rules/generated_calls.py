"""Calls that stand in generated code only, for when that is differentiated itself."""

from __future__ import annotations

import ast

from numba.core import types

from tapegrad.transform.ir import Let, defined, name
from tapegrad.transform.kinds import is_real
from tapegrad.transform.printer import show
from tapegrad.transform.rules.base import Rule, real_names
from tapegrad.transform.rules.generators import ForwardCode, Lowerer, ReverseCode


class GeneratedCall(Rule):
    """A call that writes its first argument, in generated code."""

    cheap = False
    calls = True
    call: ast.Call
    _inputs: list[str]

    def inputs(self) -> list[str]:
        return self._inputs

    def written(self) -> list[str]:
        """Return the argument that is written."""
        return [self.call.args[0].id]

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        """Refuse: a gradient is differentiated in forward mode."""
        if gen.is_active(self.call.args[0].id):
            gen.refuse(
                "cannot differentiate this gradient once more in reverse mode; use forward mode: "
                "tg.jvp, tg.hvp or tg.hessian of the function",
                let.line,
            )


class Addition(GeneratedCall):
    """A call that adds an array to (chosen elements of) another, in generated code."""

    def __init__(self, lowering: Lowerer, expr: ast.Call) -> None:
        self.call = expr
        self._inputs = real_names([expr.args[-1]], lowering)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the call, and the same one of the tangents."""
        gen.write(show(self.call))
        if not gen.is_active(self.call.args[0].id):
            return
        tangents = {n: gen.dot(n) for n in [self.call.args[0].id, *self._inputs]}
        if self._inputs and not gen.is_active(self._inputs[0]):
            return
        gen.write(show(gen.replaced(self.call, tangents)))


class Keep(GeneratedCall):
    """What puts an array onto the tape by reference, or takes it from there, in generated code.

    The tangents of what is on the tape are on a tape of their own, at the same places.
    """

    def __init__(self, lowering: Lowerer, expr: ast.Call) -> None:
        self.call = expr
        self.types = lowering.types
        self._inputs = real_names(expr.args, lowering)

    def shared(self, let: Let) -> list[list[str]]:
        """Return what shares elements: what is on the tape may be taken from it."""
        return [[n for n in (*self._inputs, *defined(let)) if self._is_real_array(n)]]

    def _is_real_array(self, identifier: str) -> bool:
        kind = self.types.get(identifier)
        return isinstance(kind, types.Array) and is_real(kind)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the call, and the same one of the tape of tangents."""
        gen.write(f"{let.target} = {show(self.call)}")
        if not gen.is_active(self.call.args[0].id):
            return
        names = [n for n in (*self._inputs, *defined(let)) if self._is_real_array(n)]
        dots = {n: gen.dot(n) for n in names}
        pattern = gen.replaced(ast.parse(let.target, mode="eval").body, dots)
        call = gen.replaced(self.call, dots)
        if show(call.func) == "runtime.push_array":
            call.func = name("runtime.push_tangent")
        gen.write(f"{show(pattern)} = {show(call)}")
