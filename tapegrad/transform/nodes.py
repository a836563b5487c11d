"""Nodes of Python's syntax tree, made of their parts."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from tapegrad.transform.ir import name

OPERATORS: dict[str, type[ast.operator]] = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv,
}  # fmt: skip


def call_of(function: str, *arguments: ast.expr) -> ast.Call:
    """Return the call of a function by its name, which may have dots."""
    return ast.Call(name(function), list(arguments), [])


def binary(left: ast.expr, sign: str, right: ast.expr) -> ast.BinOp:
    """Return an operation by its sign."""
    return ast.BinOp(left, OPERATORS[sign](), right)


def compare(left: ast.expr, operator: type[ast.cmpop], right: ast.expr) -> ast.Compare:
    """Return a comparison."""
    return ast.Compare(left, [operator()], [right])


def negative(expr: ast.expr) -> ast.UnaryOp:
    """Return ``-expr``."""
    return ast.UnaryOp(ast.USub(), expr)


def opposite(test: ast.expr) -> ast.expr:
    """Return ``not test``."""
    return ast.UnaryOp(ast.Not(), test)


def any_of(tests: Sequence[ast.expr]) -> ast.expr:
    """Return the tests with ``or`` between them."""
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), list(tests))


def downward(over: str, count: ast.expr) -> ast.expr:
    """Return a range of as many numbers, down to 0."""
    return call_of(over, binary(count, "-", ast.Constant(1)), ast.Constant(-1), ast.Constant(-1))


def all_of(tests: Sequence[ast.expr]) -> ast.expr:
    """Return the tests with ``and`` between them."""
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), list(tests))


def item(expr: ast.expr, index: ast.expr | int) -> ast.Subscript:
    """Return ``expr[index]``."""
    return ast.Subscript(expr, ast.Constant(index) if isinstance(index, int) else index, ast.Load())


def element_of(array: ast.expr | str, index: Sequence[ast.expr]) -> ast.Subscript:
    """Return an element of an array, or a part of it, by the index of each axis."""
    base = name(array) if isinstance(array, str) else array
    return item(base, index[0] if len(index) == 1 else tuple_of(index))


def copy_of(expr: ast.expr) -> ast.Call:
    """Return ``expr.copy()``."""
    return ast.Call(attribute(expr, "copy"), [], [])


def attribute(expr: ast.expr, field: str) -> ast.Attribute:
    """Return ``expr.field``."""
    return ast.Attribute(expr, field, ast.Load())


def tuple_of(items: Iterable[ast.expr]) -> ast.Tuple:
    """Return a tuple."""
    return ast.Tuple(list(items), ast.Load())


def names(identifiers: Iterable[str]) -> list[ast.expr]:
    """Return names."""
    return [name(identifier) for identifier in identifiers]


def returned_of(identifiers: list[str]) -> ast.expr:
    """Return the expression for one, several or no results."""
    if len(identifiers) == 1:
        return name(identifiers[0])
    return tuple_of(names(identifiers)) if identifiers else ast.Constant(None)


def expression_of(text: str) -> ast.expr:
    """Return the expression of a text, which is a name most of the time."""
    return name(text) if text.isidentifier() else ast.parse(text, mode="eval").body


def counting(index: str, over: ast.expr) -> ast.For:
    """Return the head of a loop over a range."""
    return ast.For(name(index), over, [], [], lineno=0)


def integer(node: ast.AST) -> int | None:
    """Return the value of an integer constant, None for other expressions."""
    match node:
        case ast.UnaryOp(ast.USub(), operand):
            value = integer(operand)
            return None if value is None else -value
        case ast.Constant(int(number)) if type(number) is int:
            return number
    return None


def is_number(expr: ast.expr, value: int) -> bool:
    """Whether an expression is an integer."""
    return isinstance(expr, ast.Constant) and type(expr.value) is int and expr.value == value
