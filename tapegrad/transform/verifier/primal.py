"""The forward code does what the function does.

Beside each derivative stands the function that it is made from, in the same small language. Its
statements are found in the forward code: all of them, in their order, in the same branches and
loops. What stands between them keeps values, and makes and computes cotangents.
"""

from __future__ import annotations

import ast

from tapegrad.transform.verifier.code import Code, called
from tapegrad.transform.verifier.cotangents import FORWARD


def check_primal(code: Code, function: Code) -> None:
    """Refuse forward code without all statements of the function that it belongs to.

    Raises
    ------
    InternalError
        With the line of the function that has no match.
    """
    missing = _missing(code.body, function.body)
    if missing is not None:
        text = ast.unparse(missing).splitlines()[0]
        raise code.wrong(f"the forward code lacks, or has late: {text}", code.body[0])


def _missing(code: list[ast.stmt], function: list[ast.stmt]) -> ast.stmt | None:
    """Return the first statement of a block that has no match."""
    place = 0
    for wanted in function:
        if isinstance(wanted, (ast.Pass, ast.Return)):
            continue
        inner: ast.stmt | None = None
        while place < len(code):
            statement = code[place]
            place += 1
            matches, lacks = _match(statement, wanted)
            if matches:
                break
            inner = inner or lacks
        else:
            return inner or wanted
    return None


def _match(statement: ast.stmt, wanted: ast.stmt) -> tuple[bool, ast.stmt | None]:
    """Return whether a statement is the one that is wanted, else what it lacks."""
    if type(statement) is not type(wanted):
        return False, None
    if isinstance(wanted, (ast.If, ast.For, ast.While)):
        assert isinstance(statement, (ast.If, ast.For, ast.While))
        if _head(statement) != _head(wanted):
            return False, None
        lacks = _missing(statement.body, wanted.body)
        lacks = lacks or _missing(statement.orelse, wanted.orelse)
        return lacks is None, lacks
    if ast.unparse(statement) == ast.unparse(wanted):
        return True, None
    return _is_call(statement, wanted), None


def _head(node: ast.stmt) -> str:
    if isinstance(node, ast.For):
        return f"{ast.unparse(node.target)} in {ast.unparse(node.iter)}"
    assert isinstance(node, (ast.If, ast.While))
    return ast.unparse(node.test)


def _is_call(statement: ast.stmt, wanted: ast.stmt) -> bool:
    """Whether a statement calls the forward half of what another one calls.

    A method gets its instance as the first argument, and named arguments stand in their places.
    """
    if not isinstance(statement, ast.Assign) or not isinstance(wanted, ast.Assign):
        return False
    one, two = statement.value, wanted.value
    if not isinstance(one, ast.Call) or not FORWARD.search(called(one) or ""):
        return False
    target = statement.targets[0]
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    if ast.unparse(first) != ast.unparse(wanted.targets[0]):
        return False
    given = [ast.unparse(a) for a in one.args]
    if isinstance(two, ast.Attribute):
        return given[:1] == [ast.unparse(two.value)]
    if not isinstance(two, ast.Call):
        return False
    if isinstance(two.func, ast.Attribute) and given[:1] == [ast.unparse(two.func.value)]:
        given = given[1:]
    expected = [ast.unparse(a) for a in two.args]
    named = [ast.unparse(k.value) for k in two.keywords]
    rest = given[len(expected) :]
    return given[: len(expected)] == expected and all(text in rest for text in named)
