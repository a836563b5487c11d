"""Forward code, and code of forward mode, does what the function does.

The function that each derivative is made from is given in the same small language. The code has to
contain all its statements, in order, in the same branches and loops. The statements in between keep
values, or make and compute cotangents or tangents.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable

from tapegrad.transform.syntax import key_of, text_of
from tapegrad.transform.verifier.code import Code, called, is_in, pairs_in
from tapegrad.transform.verifier.purpose import Half


def check_primal(code: Code, function: Code) -> None:
    """Refuse code that lacks statements of the function that it is made from.

    Raises
    ------
    InternalError
        With the line of the function that has no match.
    """
    missing = _Match(code, function).missing(code.body, function.body)
    if missing is not None:
        text = text_of(missing).splitlines()[0]
        raise code.wrong(f"the forward code lacks, or has late: {text}", code.body[0])


class _Match:
    """Finds the statements of a function in code that is made from it."""

    def __init__(self, made: Code, function: Code) -> None:
        self.made, self.names = made, function.locals

    def missing(self, code: list[ast.stmt], function: list[ast.stmt]) -> ast.stmt | None:
        """Return the first statement of a block that has no match."""
        place = 0
        for wanted in function:
            if isinstance(wanted, (ast.Pass, ast.Return)):
                continue
            inner: ast.stmt | None = None
            while place < len(code):
                statement = code[place]
                place += 1
                matches, lacks = self.match(statement, wanted)
                if matches:
                    break
                inner = inner or lacks
            else:
                return inner or wanted
        return None

    def match(self, statement: ast.stmt, wanted: ast.stmt) -> tuple[bool, ast.stmt | None]:
        """Return whether a statement is the wanted one, and otherwise what it lacks."""
        match statement, wanted:
            case ast.Expr(given), ast.Assign(_, value):
                # an expression statement whose result is not read
                return key_of(given) == key_of(value), None
            case _ if type(statement) is not type(wanted):
                return False, None
            case (
                ast.If() | ast.For() | ast.While() as one,
                ast.If() | ast.For() | ast.While() as other,
            ):
                if _head(one) != _head(other):
                    return False, None
                lacks = self.missing(one.body, other.body)
                lacks = lacks or self.missing(one.orelse, other.orelse)
                return lacks is None, lacks
            case _ if key_of(statement) == key_of(wanted):
                return True, None
            case ast.Assign() as one, ast.Assign() as other:
                return self.is_call(one, other) or self.is_among(one, other), None
        return False, None

    def is_among(self, statement: ast.Assign, wanted: ast.Assign) -> bool:
        """Whether the names of the function in a tuple assignment get the wanted values."""
        given = pairs_in(statement)
        own = [(target, value) for target, value in given if is_in(target, self.names)]
        if len(given) < 2 or len(own) == len(given):
            return False
        return key_of(own) == key_of(pairs_in(wanted))

    def is_call(self, statement: ast.Assign, wanted: ast.Assign) -> bool:
        """Whether a statement calls the derivative code of the function that `wanted` calls.

        This is its forward half, or the function that also computes tangents. Methods take the
        instance as the first argument, and keyword arguments become positional.
        """
        target, call = statement.targets[0], statement.value
        if not isinstance(call, ast.Call):
            return False
        half = self.made.purpose_of(called(call)).half
        is_pair = isinstance(target, ast.Tuple) and len(target.elts) == 2
        if half is not Half.FORWARD and not (half is Half.TANGENT and is_pair):
            return False
        first = target.elts[0] if isinstance(target, ast.Tuple) else target
        if key_of(first) != key_of(wanted.targets[0]):
            return False
        given = list(map(key_of, call.args))
        match wanted.value:
            case ast.Attribute(instance):
                return given[:1] == [key_of(instance)]
            case ast.Call(func, arguments, keywords):
                if isinstance(func, ast.Attribute) and given[:1] == [key_of(func.value)]:
                    given = given[1:]
                expected = list(map(key_of, arguments))
                rest = given[len(expected) :]
                are_named = all(key_of(k.value) in rest for k in keywords)
                return given[: len(expected)] == expected and are_named
        return False


def _head(node: ast.If | ast.For | ast.While) -> Hashable:
    """Return what a loop is over, or the test of a branch or a loop."""
    if isinstance(node, ast.For):
        return key_of(node.target), key_of(node.iter)
    return key_of(node.test)
