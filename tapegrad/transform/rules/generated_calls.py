"""Calls that occur only in generated code, for differentiating that code."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from numba.core import types

from tapegrad.transform.ir import Let, defined, name, replace_names
from tapegrad.transform.kinds import is_real
from tapegrad.transform.nodes import expression_of
from tapegrad.transform.printer import show
from tapegrad.transform.rules.base import Rule, real_names
from tapegrad.transform.rules.generators import ForwardCode, Lowerer, ReverseCode


class GeneratedCall(Rule):
    """A call in generated code that writes its first argument."""

    cheap = False
    calls = True
    call: ast.Call

    @property
    def written_array(self) -> str:
        """The argument that is written."""
        assert isinstance(self.call.args[0], ast.Name)
        return self.call.args[0].id

    def written(self) -> list[str]:
        """Return the argument that is written."""
        return [self.written_array]

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        """Refuse: gradients are differentiated in forward mode."""
        if gen.is_active(self.written_array):
            gen.refuse(
                "cannot differentiate this gradient once more in reverse mode; use forward mode: "
                "tg.jvp, tg.hvp or tg.hessian of the function",
                let.line,
            )


class Addition(GeneratedCall):
    """A call in generated code that adds an array to another or to selected elements of it."""

    def __init__(self, lowering: Lowerer, function: str, expr: ast.Call) -> None:
        # as in gradients, also where a derivative of this package calls it by its bare name, so
        # that the verifier knows which argument it writes
        expr.func = name(f"arrays.{function}")
        self.call = expr
        self._inputs = real_names([expr.args[-1]], lowering)

    def vanishing(self, let: Let) -> Sequence[str]:
        return self.inputs()

    def shared(self, let: Let) -> list[list[str]]:
        """Return no groups of names: elements are added, so no arrays share any afterwards."""
        return []

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the call, and the same call for the tangents."""
        gen.builder.do(self.call)
        if not gen.is_active(self.written_array):
            return
        tangents = {n: gen.dot(n) for n in [self.written_array, *self._inputs]}
        if self._inputs and not gen.is_active(self._inputs[0]):
            return
        gen.builder.do(replace_names(self.call, tangents))


_OF_TANGENTS = {
    "runtime.push_array": "runtime.push_tangent",
    "runtime.push_elements": "runtime.push_tangent_elements",
}


class Keep(GeneratedCall):
    """A call in generated code that pushes an array onto the tape, or pops it.

    The tangents of values on the tape are on a second tape, at the same positions.
    """

    def __init__(self, lowering: Lowerer, expr: ast.Call) -> None:
        self.call = expr
        self.types = lowering.types
        self._inputs = real_names(expr.args, lowering)

    def shared(self, let: Let) -> list[list[str]]:
        """Return the arrays that may share elements, through the tape."""
        return [[n for n in (*self._inputs, *defined(let)) if self._is_real_array(n)]]

    def _is_real_array(self, identifier: str) -> bool:
        kind = self.types.get(identifier)
        return isinstance(kind, types.Array) and is_real(kind)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the call, and the same call for the tape of tangents."""
        gen.builder.assign(expression_of(let.target), self.call)
        if not gen.is_active(self.written_array):
            return
        names = [n for n in (*self._inputs, *defined(let)) if self._is_real_array(n)]
        dots = {n: gen.dot(n) for n in names}
        call = replace_names(self.call, dots)
        assert isinstance(call, ast.Call)
        if of_tangents := _OF_TANGENTS.get(show(call.func)):
            call.func = name(of_tangents)
        gen.builder.assign(replace_names(expression_of(let.target), dots), call)
