"""The operands of forward code through which derivatives propagate."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from tapegrad.ops.table.op import TABLE
from tapegrad.transform.verifier.code import called, module_call, name_of
from tapegrad.transform.verifier.memory import SHAPE

# functions without derivative, or whose derivative is zero
FLAT = frozenset(
    [
        *("floor", "ceil", "trunc", "fix", "rint", "round", "around", "sign"),
        *("argmin", "argmax", "nanargmin", "nanargmax", "argsort", "argpartition"),
        *("searchsorted", "digitize", "nonzero", "round_"),
        *("isnan", "isfinite", "isinf", "signbit", "zeros_like", "ones_like", "empty_like"),
        *("shape", "size", "ndim", "len", "count_nonzero", "any", "all", "argwhere"),
        *("zeros", "ones", "empty", "eye", "int64", "int32", "bool_", "stop_gradient"),
        *("allclose", "array_equal", "isclose", "floor_divide", "floordiv", "spacing", "isin"),
        *("logical_and", "logical_or", "logical_not", "greater", "less", "equal", "identity"),
    ]
)
_INFINITIES = frozenset([("np", "inf"), ("math", "inf")])
_REAL_TYPES = frozenset([("np", "float32"), ("np", "float64")])
_FLAT_NAMES = frozenset(["int", "bool", "len", "range", "round", "isinstance", "str"])
# the differentiable arguments of functions, if not all of them are
_SMOOTH = {
    "copysign": (0,),
    "ldexp": (0,),
    "where": (1, 2),
    "extract": (1,),
    "arange": (0, 2),
    "full": (1,),
    "full_like": (1,),
    "moved": (0,),
    "settled": (0,),
}
_OPERATIONS = {
    "add": ast.Add, "subtract": ast.Sub, "sub": ast.Sub, "multiply": ast.Mult, "mul": ast.Mult,
    "divide": ast.Div, "true_divide": ast.Div, "truediv": ast.Div,
}  # fmt: skip

SOME, UNKNOWN = -1, -2  # unknown counts: at least one, or possibly none

Found = tuple[str, int, int]  # a name, how often it is added to (see `Operand`), the sign


def operands(node: ast.expr) -> list[Found]:
    """Return the names that a value depends on smoothly.

    The count is the number of additions to the cotangent, `SOME` or `UNKNOWN`. Nothing is assumed
    about user functions.
    """
    match node:
        case ast.UnaryOp(ast.USub(), ast.Name(name)):
            return [(name, 1, -1)]
        case ast.UnaryOp(ast.UAdd(), ast.Name(name)):
            return [(name, 1, 1)]
        case ast.UnaryOp() | ast.Compare():
            return []
        case ast.BinOp():
            return _of_binary(node)
        case ast.Call():
            return _of_call(node)
    return [(name, SOME, 0) for name in _names([node])]


def _of_binary(node: ast.BinOp) -> list[Found]:
    kind = type(node.op)
    both = [(name_of(n), n) for n in (node.left, node.right)]
    names = [name for name, _ in both]
    if kind in (ast.Add, ast.Sub):
        sign = 1 if kind is ast.Add else -1
        if names[0] and names[0] == names[1]:
            return [(names[0], 2 if sign > 0 else 0, 1)]
        return [(n, 1, s) for n, s in zip(names, (1, sign), strict=True) if n]
    if kind in (ast.Mult, ast.Div, ast.MatMult):
        constants = [_constant(node) for _, node in both]
        divided = kind is ast.Div and constants[1] is not None and math.isinf(constants[1])
        if 0.0 in constants or divided:  # the result is zero, and -0.0 is
            return [(n, UNKNOWN, 0) for n in dict.fromkeys(names) if n]
        return [(n, names.count(n), 0) for n in dict.fromkeys(names) if n]
    if kind is ast.Pow:
        constant = _constant(both[1][1])
        if constant is not None:
            return [(names[0], 1, 0)] if names[0] and constant != 0 else []
        return [(n, names.count(n), 0) for n in dict.fromkeys(names) if n]
    if kind is not ast.Mod:
        return []
    return [(n, SOME, 0) for n in dict.fromkeys(names) if n]


def _constant(node: ast.expr) -> float | None:
    """Return the value of a real constant, None for other expressions."""
    match node:
        case ast.UnaryOp(ast.USub(), operand):
            value = _constant(operand)
            return None if value is None else -value
        case ast.Call(_, [given]) if module_call(node) in _REAL_TYPES:
            return _constant(given)
        case ast.Attribute(ast.Name(module), name) if (module, name) in _INFINITIES:
            return math.inf
        case ast.Constant(int(number) | float(number)) if not isinstance(number, bool):
            return float(number)
    return None


def _of_call(node: ast.Call) -> list[Found]:
    module = module_call(node)
    name = called(node)
    if not module[0] and not name:
        assert isinstance(node.func, ast.Attribute)
        if node.func.attr in FLAT:
            return []
        found = list(_names([node.func.value]))
        more = [
            n for n in _names([*node.args, *(k.value for k in node.keywords)]) if n not in found
        ]
        return [(n, SOME, 0) for n in [*found, *more]]
    given = node.args
    if module[0]:
        given = [a for k, a in enumerate(given) if _is_smooth(*module, k)]
    names = list(_names([*given, *(k.value for k in node.keywords)]))
    if name:
        if name in _FLAT_NAMES or name.endswith("stop_gradient"):
            return []
        count = SOME if name in ("abs", "float", "max", "min", "pow", "sum") else UNKNOWN
        return [(n, count, 0) for n in dict.fromkeys(names)]
    if module[1] in FLAT or "random" in module[0]:
        return []
    if module[1] == "angle":  # flat for real numbers only
        return [(n, UNKNOWN, 0) for n in dict.fromkeys(names)]
    if module[1] in _OPERATIONS and module[0] in ("np", "operator") and len(node.args) == 2:
        return _of_binary(ast.BinOp(node.args[0], _OPERATIONS[module[1]](), node.args[1]))
    return [(n, SOME, 0) for n in dict.fromkeys(names)]


def _is_smooth(module: str, name: str, position: int) -> bool:
    """Whether a function may have a derivative with respect to an argument."""
    if module in ("ops", "scalar_ops") and name in TABLE:
        op = TABLE[name]
        return position >= len(op.arguments) or op.arguments[position] in op.rules
    return name not in _SMOOTH or position in _SMOOTH[name]


def _names(nodes: list[ast.expr]) -> Iterator[str]:
    """Yield the names of values, not those in subscripts."""
    for node in nodes:
        match node:
            case ast.Name(name):
                yield name
            case ast.Tuple(items) | ast.List(items):
                yield from _names(items)
            case ast.Attribute(base, name) if name not in SHAPE:
                yield from _names([base])
            case ast.Subscript(base) | ast.UnaryOp(_, base):
                yield from _names([base])
            case ast.Call(_, arguments, named):
                yield from _names([*arguments, *(k.value for k in named)])
            case ast.IfExp(_, one, two) | ast.BinOp(one, _, two):
                yield from _names([one, two])
