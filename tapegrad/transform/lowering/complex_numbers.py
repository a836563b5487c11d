"""Complex numbers: which operations on them have a derivative, and by which rule.

The convention is that of conjugate Wirtinger derivatives, as for tensors (`tapegrad.ops.complex`):
the cotangent of ``z = a + ib`` is ``dL/da + i dL/db`` for a real number L. So a holomorphic
function multiplies the cotangent by the conjugate of its derivative; a real operand receives the
real part of the product. Tangents are complex as well, and are multiplied by the derivative itself.
Operations from complex to real numbers have separate rules here.

Rules written for real numbers may be wrong for complex ones. Only those named here are used.
"""

from __future__ import annotations

import ast
import cmath
from typing import Any

import numpy as np

from tapegrad.ops.table.op import Fact
from tapegrad.transform.ir import Let, name, names_in
from tapegrad.transform.kinds import holds_complex, holds_real, is_array, is_complex
from tapegrad.transform.lowering.callees import Stopped
from tapegrad.transform.rules.base import (
    Alloc,
    Elementary,
    Gather,
    Linear,
    Load,
    Part,
    Passive,
    Rule,
    Unary,
    Unknown,
    View,
    conjugate,
    real_names,
)
from tapegrad.transform.rules.calls import Call
from tapegrad.transform.rules.eager_calls import EagerCall
from tapegrad.transform.rules.generated_calls import Addition, Keep
from tapegrad.transform.rules.generators import ForwardCode, Lowerer, ReverseCode
from tapegrad.transform.rules.numpy_functions.makers import Fixed, Found, Literal
from tapegrad.transform.rules.numpy_functions.views import Rearrangement
from tapegrad.transform.rules.whole import Whole
from tapegrad.transform.syntax import name_of, nodes_in, text_of

# -- rules -----------------------------------------------------------------------------------------


class Projection(Unary):
    """A real number or array computed from complex ones.

    Its derivative along ``dz`` is the real part of ``conj(direction) * dz``.
    """

    operand: ast.Name

    def __init__(
        self, operand: ast.Name, direction: ast.expr, whole: bool, lowering: Lowerer
    ) -> None:
        super().__init__(operand, whole, lowering)
        self.direction = direction

    def contents(self, let: Let) -> list[str]:
        return names_in(self.direction) if self.whole else []

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        if not gen.is_active(self.operand.id):
            return
        direction = self.read(self.direction)
        if self.whole:
            product = ast.BinOp(gen.shadow(let.target), ast.Mult(), direction)
            gen.add_array(self.operand.id, product, gen.types[let.target].ndim)
        else:
            gen.add(self.operand.id, name(gen.bar(let.target)), direction)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        if not gen.is_active(self.operand.id):
            gen.set_dot(let, None)
            return
        dot: ast.expr = name(gen.dot(self.operand.id))
        if isinstance(self.direction, ast.Constant):
            text = "real" if self.direction.value == 1.0 else "imag"
        else:
            text = "real"
            dot = ast.BinOp(conjugate(self.direction, self.whole), ast.Mult(), dot)
        gen.set_dot(let, ast.Attribute(dot, text, ast.Load()))


class Conjugate(Unary):
    """The complex conjugate."""

    operand: ast.Name

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        if not gen.is_active(self.operand.id):
            return
        if self.whole:
            g = conjugate(gen.shadow(let.target), True)
            gen.add_array(self.operand.id, g, gen.types[let.target].ndim)
        else:
            g = conjugate(name(gen.bar(let.target)), False)
            gen.add(self.operand.id, g, ast.Constant(1.0))

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        if not gen.is_active(self.operand.id):
            gen.set_dot(let, None)
            return
        gen.set_dot(let, conjugate(name(gen.dot(self.operand.id)), self.whole))


class FromParts(Rule):
    """A complex number made from a real and an imaginary part."""

    def __init__(self, parts: list[ast.expr], lowering: Lowerer) -> None:
        self.parts = parts
        self._inputs = real_names(parts, lowering)

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        g = name(gen.bar(let.target))
        for part, field in zip(self.parts, ("real", "imag"), strict=True):
            if gen.is_active(read := name_of(part)):
                gen.add(read, ast.Attribute(g, field, ast.Load()), ast.Constant(1.0))

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        dots: list[ast.expr] = [
            gen.tangent(part) if self.is_input(part) else ast.Constant(0.0) for part in self.parts
        ]
        gen.set_dot(let, ast.Call(name("complex"), dots, []))


_ALWAYS_RIGHT = (
    Addition, Alloc, Call, Conjugate, EagerCall, FromParts, Gather, Keep, Literal, Load, Part,
    Projection, Stopped,
)  # fmt: skip


# -- which operation has which rule ----------------------------------------------------------------


def is_involved(lowering: Lowerer, expr: ast.expr, kind: Any) -> bool:
    """Whether an operation has complex operands, or a complex result."""
    if holds_complex(kind):
        return True
    return any(holds_complex(lowering.types.get(n)) for n in names_in(expr)) or any(
        isinstance(node.value, complex) for node in nodes_in(expr, ast.Constant)
    )


def rule_of(lowering: Lowerer, expr: ast.expr, kind: Any) -> Rule | None:
    """Return the rule of an operation specific to complex numbers, None for any other."""
    text, operands = _named(lowering, expr)
    if text is None or not operands or kind is None:
        return None
    operand = operands[0]
    if text == "complex" and len(operands) == 2:
        if any(is_complex(lowering.type_of(part)) for part in operands):
            return Unknown(real_names(operands, lowering), "complex() of complex numbers")
        return FromParts(operands, lowering)
    if text == "complex" and len(operands) == 1:
        return Linear(operand, False, lowering)
    if len(operands) > 1 or not isinstance(operand, ast.Name):
        return None
    base = lowering.type_of(operand)
    if not is_complex(base):
        return None
    whole = is_array(base)
    if text in ("conj", "conjugate"):
        return Conjugate(operand, whole, lowering)
    if text in ("real", "imag"):
        if whole:
            return View(operand.id, part=True)
        return Projection(operand, ast.Constant(1.0 if text == "real" else 1j), False, lowering)
    functions = {"absolute": ("direction", "directions"), "angle": ("turn", "turns")}
    if text in functions and not is_complex(kind):
        call = ast.Call(name(f"arrays.{functions[text][whole]}"), [operand], [])
        return Projection(operand, call, whole, lowering)
    return None


def _named(lowering: Lowerer, expr: ast.expr) -> tuple[str | None, list[ast.expr]]:
    """Return the name of a function, method or attribute, and its operands."""
    match expr:
        case ast.Attribute(base, attribute):
            return attribute, [base]
        case ast.Call(ast.Attribute(base, method), arguments, []):
            return method, [base, *arguments]
        case ast.Call(ast.Name(id=identifier), arguments, []):
            callee = lowering.statics.get(identifier)
            for functions, text in _FUNCTIONS:
                if any(function is callee for function in functions):
                    return text, list(arguments)
    return None, []


_FUNCTIONS: tuple[tuple[tuple[Any, ...], str], ...] = (
    ((complex, np.complex128, np.complex64), "complex"),
    ((np.conj,), "conj"),
    ((np.real,), "real"),
    ((np.imag,), "imag"),
    ((abs, np.abs), "absolute"),
    ((np.angle, cmath.phase), "angle"),
)


def checked(lowering: Lowerer, expr: ast.expr, kind: Any, found: Rule) -> Rule:
    """Return the rule of an operation with complex numbers if it is valid for them.

    A rule not known to be valid is replaced by one that refuses to differentiate.
    """
    inputs = real_names([expr], lowering)
    if isinstance(found, Unknown) or _is_right(lowering, expr, kind, found, inputs):
        return found
    what = f"{text_of(expr)}, with complex numbers; write it with real and imaginary parts"
    return Unknown(inputs, what)


def _is_right(lowering: Lowerer, expr: ast.expr, kind: Any, found: Rule, inputs: list[str]) -> bool:
    """Whether the rule of an operation with complex numbers is valid."""
    if isinstance(found, _ALWAYS_RIGHT):
        return True
    if isinstance(found, (Passive, Fixed)):
        return not inputs or (type(found) in (Passive, Found) and not holds_real(kind))
    types_found = [lowering.types[n] for n in inputs]
    if isinstance(found, View):
        same = all(t.dtype == kind.dtype for t in types_found if is_array(t))
        return same or _named(lowering, expr)[0] in ("real", "imag")
    if isinstance(found, Linear):
        # conversions to complex numbers, not from complex to real ones
        return is_complex(kind) and "conj" not in _numpys(lowering, expr)
    if isinstance(found, Elementary):
        found.is_complex = True
        return Fact.HOLOMORPHIC in found.op.facts and is_complex(kind)
    if isinstance(found, (Whole, Rearrangement)):
        alike = {getattr(t, "dtype", t) for t in [*types_found, kind]}
        if len(alike) != 1:
            return False
        return isinstance(found, Rearrangement) or found.spec.holomorphic
    return False


def _numpys(lowering: Lowerer, expr: ast.expr) -> str:
    """Return the name of the NumPy function that is called."""
    match expr:
        case ast.Call(ast.Name(id=callee)):
            return getattr(lowering.statics.get(callee), "__name__", "")
    return ""
