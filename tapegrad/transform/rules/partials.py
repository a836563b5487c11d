"""Partial derivatives of the op table as expressions of generated code.

A rule such as ``def _(x): return cos(x)`` is read as source: its arguments are replaced by the
atoms of the operation and its ops by functions that numba knows, and constants are folded, so that
the partial of ``x ** 2`` is ``2.0 * x``.
"""

from __future__ import annotations

import ast
import cmath
import functools
import inspect
import math
import operator
import textwrap
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tapegrad.eager.numeric import PUBLIC
from tapegrad.ops import elementwise, piecewise, special  # noqa: F401 (declare the ops)
from tapegrad.ops.elementwise import cos, cosh, log, sin, sinh
from tapegrad.ops.piecewise import where
from tapegrad.ops.table.composite import COMPOSITES
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE, Rule
from tapegrad.transform import runtime
from tapegrad.transform.functions import known_to_numba
from tapegrad.transform.rules.scalars import SCALARS, Scalar
from tapegrad.transform.syntax import copied

# names in Python's math module that differ from those of the ops
_MATH_NAMES = {
    "fabs": "absolute",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "pow": "power",
    "lgamma": "gammaln",
}

_CMATH = (
    "exp", "log", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh",
)  # fmt: skip

BINARY = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.Mod: "mod",
    ast.FloorDiv: "floor_divide",
}
UNARY = {ast.USub: "negative", ast.UAdd: "positive"}

_CONSTANT_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}
_EXACT: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


# -- partials that differ for complex numbers ------------------------------------------------------


def _tanh(z: Any) -> Any:
    return 1.0 - z * z


def _arctan(x: Any) -> Any:
    return 1.0 / (1.0 + x * x)


def _arctanh(x: Any) -> Any:
    return 1.0 / ((1.0 - x) * (1.0 + x))


def _arcsin(z: Any) -> Any:
    return 1.0 / cos(z)


def _arccos(z: Any) -> Any:
    return -1.0 / sin(z)


def _arcsinh(z: Any) -> Any:
    return 1.0 / cosh(z)


def _arccosh(z: Any) -> Any:
    return 1.0 / sinh(z)


def _power_by_exponent(z: Any, x: Any) -> Any:
    return where(x == 0.0, 0.0, z * log(x + 0j))


# those of inverse functions, in terms of the result, which determines the branch
COMPLEX: dict[tuple[str, str], Rule] = {
    ("tanh", "x"): _tanh,
    ("arctan", "x"): _arctan,
    ("arctanh", "x"): _arctanh,
    ("arcsin", "x"): _arcsin,
    ("arccos", "x"): _arccos,
    ("arcsinh", "x"): _arcsinh,
    ("arccosh", "x"): _arccosh,
    ("power", "y"): _power_by_exponent,
}


@functools.cache
def elementary() -> dict[Any, Elementwise | Scalar]:
    """Return the elementwise ops, keyed by the functions that numba code may call for them."""
    found: dict[Any, Elementwise | Scalar] = {}
    for op in TABLE.values():
        if isinstance(op, Elementwise):
            module = getattr(op.function, "__module__", None) or ""
            numpys = isinstance(op.function, np.ufunc) or module.startswith("numpy")
            if numpys and op.name not in ("at_least", "at_most"):
                found[op.function] = op
            found[op.public] = found[PUBLIC.get(op.name, op.public)] = op
    for identifier in dir(math):
        op_name = _MATH_NAMES.get(identifier, identifier)
        same = TABLE.get(op_name)
        if isinstance(same, Elementwise):
            found[getattr(math, identifier)] = same
    for identifier in _CMATH:
        found[getattr(cmath, identifier)] = _op(_MATH_NAMES.get(identifier, identifier))
    others = {
        abs: "absolute",
        pow: "power",
        operator.add: "add",
        operator.sub: "subtract",
        operator.mul: "multiply",
        operator.truediv: "divide",
        operator.pow: "power",
        operator.mod: "mod",
        operator.floordiv: "floor_divide",
        operator.neg: "negative",
        operator.pos: "positive",
        operator.abs: "absolute",
        np.fabs: "absolute",
        np.float_power: "power",
        np.where: "where",
    }
    for function, op_name in others.items():
        found[function] = _op(op_name)
    found[runtime.inverse] = _op("reciprocal")
    for composite, op_name in (("expit", "sigmoid"),):
        found[COMPOSITES[composite]] = _op(op_name)
    return found | SCALARS


def _op(name: str) -> Elementwise:
    op = TABLE[name]
    assert isinstance(op, Elementwise)
    return op


def op_of_function(callee: Any) -> Elementwise | Scalar | None:
    """Return the elementwise op that a function is, None for other functions."""
    op = getattr(callee, "tapegrad_op", None)
    if op is None:
        try:
            op = elementary().get(callee)
        except TypeError:  # not hashable
            return None
    return op


def op_of(callee: Any, call: ast.Call) -> Elementwise | Scalar | None:
    """Return the elementwise op that a call applies to its arguments, None for other calls."""
    op = op_of_function(callee)
    return None if op is None or call.keywords or len(call.args) != len(op.arguments) else op


def partial(
    op: Elementwise | Scalar,
    argument: str,
    atoms: dict[str, ast.expr],
    whole: bool,
    is_complex: Callable[[ast.expr], bool] | None = None,
) -> ast.expr:
    """Return a partial derivative as an expression.

    Parameters
    ----------
    op
        The op.
    argument
        The argument to differentiate with respect to.
    atoms
        The atoms for the op's arguments and its output ``z``.
    whole
        Whether the operands are arrays: selections are then ``np.where``.
    is_complex
        If an operand or the result is complex, a function that says which expressions are.
    """
    rule = op.rules[argument]
    if is_complex is not None:
        rule = COMPLEX.get((op.name, argument), rule)
    body = copied(_body(rule))
    return _Fold(rule.__globals__, atoms, whole, is_complex).visit(body)


@functools.cache
def _body(rule: Rule) -> ast.expr:
    """Return the expression of a rule; assignments before its return are inlined."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    local: dict[str, ast.expr] = {}

    class Inline(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return copied(local.get(node.id, node))

    for statement in tree.body:
        match statement:
            case ast.Assign([ast.Name(id=target)], value):
                local[target] = Inline().visit(value)
            case ast.Return(ast.expr() as value):
                return Inline().visit(value)
    raise TypeError(f"the rule {rule} has no return")


def called(op: Elementwise | Scalar, whole: bool) -> str:
    """Return the name by which generated code calls an op, on arrays or on numbers."""
    if isinstance(op, Scalar):
        return op.texts[whole]
    if known_to_numba(op):
        return f"np.{op.name}"
    return f"ops.{op.name}" if whole else f"scalar_ops.{op.name}"


def _is_exact(kind: type[ast.operator], left: Any, right: Any, found: Any) -> bool:
    """Whether a result of constants is not rounded: LLVM computes the others, with the same result.

    So code says of which numbers a rounded one was made, for those who compute without rounding.
    """
    values = (left, right, found)
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        return True
    one, other, result = map(Fraction, values)
    return bool(_EXACT[kind](one, other) == result)


class _Fold(ast.NodeTransformer):
    """Replaces names, folds constants, and writes ops as functions that numba knows."""

    def __init__(
        self,
        scope: dict[str, Any],
        atoms: dict[str, ast.expr],
        whole: bool,
        is_complex: Callable[[ast.expr], bool] | None,
    ) -> None:
        self.scope = scope
        self.atoms = atoms
        self.whole = whole
        self.is_complex = is_complex

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.atoms:
            return self.atoms[node.id]
        value = self.scope.get(node.id)
        return ast.Constant(value) if isinstance(value, (int, float)) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(operand, ast.Constant) and isinstance(node.op, ast.USub):
            value: Any = operand.value
            return ast.Constant(-value)
        return ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.comparators[0])
        function = _CONSTANT_OPERATORS.get(type(node.ops[0]))
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant) and function:
            return ast.Constant(function(left.value, right.value))
        return ast.Compare(left, node.ops, [right])

    def inverse(self, node: ast.expr) -> ast.expr:
        """Return the reciprocal of an expression, which raises no error for zero."""
        if self.whole:
            return ast.BinOp(ast.Constant(1.0), ast.Div(), node)
        real = self.is_complex is None or not self.is_complex(node)
        text = "runtime.inverse" if real else "arrays.complex_inverse"
        return ast.Call(ast.Name(text, ast.Load()), [node], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        kind = type(node.op)
        ends = (left, right)
        match ends:
            case ast.Constant(one), ast.Constant(two) if kind in _CONSTANT_OPERATORS:
                found = _CONSTANT_OPERATORS[kind](one, two)
                if kind is ast.Sub or _is_exact(kind, one, two, found):
                    return ast.Constant(found)
        match left, node.op, right:
            case ast.Constant(one), ast.Div(), ast.Constant(two) if two:
                found = operator.truediv(one, two)
                if _is_exact(ast.Div, one, two, found):
                    return ast.Constant(found)
            case _, ast.Div(), ast.Constant(two) if two:
                pass
            # quotients with the same denominator share its reciprocal
            case ast.Constant(1.0), ast.Div(), _:
                return self.inverse(right)
            case _, ast.Div(), _:
                return ast.BinOp(left, ast.Mult(), self.inverse(right))
        for end, other in (ends, ends[::-1]):
            if not isinstance(end, ast.Constant):
                continue
            if kind is ast.Mult and end.value in (0.0, 1.0):
                return other if end.value else ast.Constant(0.0)
            if kind in (ast.BitAnd, ast.BitOr):  # of conditions
                return other if end.value == (kind is ast.BitAnd) else end
        return ast.BinOp(left, node.op, right)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        op = self.scope.get(node.func.id)
        arguments = [self.visit(argument) for argument in node.args]
        if isinstance(op, types.FunctionType):
            raise TypeError(f"a rule calls {node.func.id}, which is not an op")
        assert isinstance(op, (Elementwise, Scalar))
        if op.name == "where":
            match arguments:
                case [ast.Constant(holds), first, second]:
                    return first if holds else second
                case [_, ast.Constant(one) as first, ast.Constant(two)] if one == two:
                    return first
            if not self.whole:
                return ast.IfExp(*arguments)
            return ast.Call(ast.Name("np.where", ast.Load()), arguments, [])
        exponent = getattr(arguments[-1], "value", None)
        if op.name == "power" and isinstance(exponent, (int, float)):
            if exponent == 1:
                return arguments[0]
            if exponent == 0:
                return ast.Constant(1.0)
            if not float(exponent).is_integer():
                return ast.BinOp(arguments[0], ast.Pow(), ast.Constant(exponent))
            positive = ast.BinOp(arguments[0], ast.Pow(), ast.Constant(abs(int(exponent))))
            if exponent > 0:
                return positive
            if self.whole:  # numba raises an error for 0 ** -2, not for 0 ** -2.0
                return ast.BinOp(arguments[0], ast.Pow(), ast.Constant(float(exponent)))
            return self.inverse(arguments[0] if exponent == -1 else positive)
        if op.name == "power":
            return ast.BinOp(arguments[0], ast.Pow(), arguments[1])
        if op.name == "absolute":
            text = "np.abs" if self.whole else "abs"
            return ast.Call(ast.Name(text, ast.Load()), arguments, [])
        return ast.Call(ast.Name(called(op, self.whole), ast.Load()), arguments, [])
