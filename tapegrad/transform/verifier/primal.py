"""Forward code, and code of forward mode, does what the function does.

The function that each derivative is made from is given in the same small language. The code has to
contain all its statements, in order, in the same branches and loops. The statements in between keep
values, or make and compute cotangents or tangents.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable

from tapegrad.transform.syntax import key_of, paired, text_of
from tapegrad.transform.verifier.code import Code, called
from tapegrad.transform.verifier.cotangents import FORWARD, TANGENT


def check_primal(code: Code, function: Code) -> None:
    """Refuse code that lacks statements of the function that it is made from.

    Raises
    ------
    InternalError
        With the line of the function that has no match.
    """
    missing = _Match(function).missing(code.body, function.body)
    if missing is not None:
        text = text_of(missing).splitlines()[0]
        raise code.wrong(f"the forward code lacks, or has late: {text}", code.body[0])


class _Match:
    """Finds the statements of a function."""

    def __init__(self, function: Code) -> None:
        self.names = function.locals

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
        if isinstance(statement, ast.Expr) and isinstance(wanted, ast.Assign):
            # an expression statement whose result is not read
            return key_of(statement.value) == key_of(wanted.value), None
        if type(statement) is not type(wanted):
            return False, None
        if isinstance(wanted, (ast.If, ast.For, ast.While)):
            assert isinstance(statement, (ast.If, ast.For, ast.While))
            if _head(statement) != _head(wanted):
                return False, None
            lacks = self.missing(statement.body, wanted.body)
            lacks = lacks or self.missing(statement.orelse, wanted.orelse)
            return lacks is None, lacks
        if key_of(statement) == key_of(wanted):
            return True, None
        if not isinstance(statement, ast.Assign) or not isinstance(wanted, ast.Assign):
            return False, None
        return _is_call(statement, wanted) or self.is_among(statement, wanted), None

    def is_among(self, statement: ast.Assign, wanted: ast.Assign) -> bool:
        """Whether the names of the function in a tuple assignment get the wanted values."""
        given = paired(statement.targets[0], statement.value)
        own = [(t, v) for t, v in given if isinstance(t, ast.Name) and t.id in self.names]
        if len(given) < 2 or len(own) == len(given):
            return False
        return key_of(own) == key_of(paired(wanted.targets[0], wanted.value))


def _head(node: ast.stmt) -> Hashable:
    """Return what a loop is over, or the test of a branch or a loop."""
    if isinstance(node, ast.For):
        return key_of(node.target), key_of(node.iter)
    assert isinstance(node, (ast.If, ast.While))
    return key_of(node.test)


def _is_call(statement: ast.Assign, wanted: ast.Assign) -> bool:
    """Whether a statement calls the derivative code of the function that `wanted` calls.

    This is its forward half, or the function that also computes tangents. Methods take the instance
    as the first argument, and keyword arguments become positional.
    """
    one, two = statement.value, wanted.value
    target = statement.targets[0]
    if not isinstance(one, ast.Call) or not (FORWARD.search(called(one)) or is_pushed(target, one)):
        return False
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    if text_of(first) != text_of(wanted.targets[0]):
        return False
    given = list(map(text_of, one.args))
    if isinstance(two, ast.Attribute):
        return given[:1] == [text_of(two.value)]
    if not isinstance(two, ast.Call):
        return False
    if isinstance(two.func, ast.Attribute) and given[:1] == [text_of(two.func.value)]:
        given = given[1:]
    expected = list(map(text_of, two.args))
    named = [text_of(k.value) for k in two.keywords]
    rest = given[len(expected) :]
    return given[: len(expected)] == expected and all(text in rest for text in named)


def is_pushed(target: ast.expr, value: ast.expr) -> bool:
    """Whether an assignment calls a function that returns a value and its tangent."""
    name = called(value)
    if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return False
    return bool(TANGENT.search(name)) or name.startswith("jvp")
