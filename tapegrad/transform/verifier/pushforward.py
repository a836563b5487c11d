"""The function that the user calls passes tangents on and returns those of the result.

A function of forward mode has a parameter for the tangent of each part of the arguments and returns
a flat tuple of the tangents of the real parts of its result. Its wrapper takes and returns tangents
in the structure of the arguments and of the result.
"""

from __future__ import annotations

import ast

from tapegrad.transform.ir import Role, name
from tapegrad.transform.nodes import item
from tapegrad.transform.syntax import key_of, text_of
from tapegrad.transform.trees import is_code
from tapegrad.transform.verifier.code import (
    ZEROS,
    Code,
    call_in,
    called,
    is_in,
    module_call,
    name_of,
    results_of,
)
from tapegrad.transform.verifier.forward_names import TangentCode

_COPIES = ("x.copy()", "x.T.copy().T", "x.copy()[..., ::1]")  # for each layout


def check_pushforward(code: Code, others: dict[str, TangentCode]) -> None:
    """Refuse a function that mixes up tangents when it calls a function of forward mode.

    Raises
    ------
    InternalError
        With the line of the call or the return.
    """
    for place, statement in enumerate(code.body):
        call = call_in(statement)
        if call is not None and called(call) in others:
            other = others[called(call)]
            _check_arguments(code, statement, call, other)
            _check_results(code, statement, code.body[place + 1 :], other)


def _check_arguments(code: Code, statement: ast.stmt, call: ast.Call, other: TangentCode) -> None:
    count = len(other.own)
    own, given = call.args[:count], call.args[count:]
    params = code.parameters[:count]
    if list(map(name_of, own)) != params or len(given) != len(other.given):
        raise code.wrong("it does not pass its arguments on", statement)
    written = other.summaries[other.code.name].writes
    dots = {}
    for dot in code.parameters[count:]:
        if code.purpose.has_role(dot, Role.TANGENT):
            dots[code.purpose.names[dot].of] = dot
    for path, argument in zip(other.given, given, strict=True):
        wanted: ast.expr = name(dots.get(params[path[0]], ""))
        for k in path[1:]:
            wanted = item(wanted, k)
        is_kept = path[0] in written and not path[1:]  # the caller's must not change
        is_same = key_of(argument) == key_of(wanted) and not is_kept
        if not is_same and not any(is_code(argument, copied, x=wanted) for copied in _COPIES):
            raise code.wrong(f"{text_of(argument)} is not what it has to pass on", statement)


def _check_results(
    code: Code, statement: ast.stmt, rest: list[ast.stmt], other: TangentCode
) -> None:
    match statement, rest:
        case ast.Assign([ast.Tuple(targets), *_]), [ast.Return(ast.Tuple([returned, tangents]))]:
            value, row = targets
        case _:
            raise code.wrong("it does not return the value with its tangent", statement)
    result, dots = other.results()
    parts, found = results_of(result), results_of(tangents)
    if key_of(returned) != key_of(value) or len(parts) != len(found):
        raise code.wrong("it does not return the value with its tangent", rest[0])
    for part, tangent in zip(parts, found, strict=True):
        given = [dot for k, dot in enumerate(dots) if is_code(tangent, "row[k]", row=row, k=k)]
        if isinstance(tangent, ast.Constant):
            is_right = not any(_is_tangent(dot, part, other) for dot in dots)
        else:
            is_right = any(_is_tangent(dot, part, other) or _is_zero_of(dot, part) for dot in given)
        if not is_right:
            shown = text_of(part)
            raise code.wrong(f"the tangent of {shown} is not what it returns for it", rest[0])


def _is_tangent(dot: ast.expr, part: ast.expr, other: TangentCode) -> bool:
    return isinstance(part, ast.Name) and is_in(dot, [other.cotangents.of(part.id)])


def _is_zero_of(dot: ast.expr, part: ast.expr) -> bool:
    """Whether the tangent of a result that has none is 0, or an array of zeros like it."""
    match dot:
        case ast.Constant(float() | complex() as value):
            return value == 0
        case ast.Call(_, [like]) if module_call(dot) in ZEROS:
            return key_of(like) == key_of(part)
    return False
