"""The function that the user calls passes tangents on and returns those of the result.

A function of forward mode has a parameter for the tangent of each part of the arguments and returns
a flat tuple of the tangents of the real parts of its result. Its wrapper takes and returns tangents
in the structure of the arguments and of the result.
"""

from __future__ import annotations

import ast

from tapegrad.transform.syntax import text_of
from tapegrad.transform.verifier.code import Code, call_in, called, results_of
from tapegrad.transform.verifier.cotangents import DOT
from tapegrad.transform.verifier.forward_names import TangentCode

_COPIES = (".copy()", ".T.copy().T", ".copy()[..., ::1]")  # for each layout


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
    if [text_of(a) for a in own] != params or len(given) != len(other.given):
        raise code.wrong("it does not pass its arguments on", statement)
    written = other.summaries[other.code.name].writes
    dots = {}
    for dot in code.parameters[count:]:
        found = DOT.search(dot)
        dots[dot[: found.start()] if found else ""] = dot
    for path, argument in zip(other.given, given, strict=True):
        text = text_of(argument)
        place = "".join(f"[{k}]" for k in path[1:])
        wanted = f"{dots.get(params[path[0]], '')}{place}"
        is_kept = path[0] in written and not place  # the caller's must not change
        copies = [f"{wanted}{ending}" for ending in _COPIES]
        if text not in copies and (text != wanted or is_kept):
            raise code.wrong(f"{text} is not what it has to pass on", statement)


def _check_results(
    code: Code, statement: ast.stmt, rest: list[ast.stmt], other: TangentCode
) -> None:
    match statement, rest:
        case ast.Assign([ast.Tuple(targets), *_]), [ast.Return(ast.Tuple([returned, tangents]))]:
            value, row = map(text_of, targets)
        case _:
            raise code.wrong("it does not return the value with its tangent", statement)
    result, dots = other.results()
    parts, found = results_of(result), results_of(tangents)
    if text_of(returned) != value or len(parts) != len(found):
        raise code.wrong("it does not return the value with its tangent", rest[0])
    stems = [text_of(dot).removesuffix(other.suffix) for dot in dots]
    for part, tangent in zip(map(text_of, parts), found, strict=True):
        if isinstance(tangent, ast.Constant):
            is_right = part not in stems
        else:
            places = [f"{row}[{k}]" for k in range(len(dots))]
            text = text_of(tangent)
            stem = stems[places.index(text)] if text in places else ""
            is_right = stem == part or stem.endswith(("0.0", "0j", f"({part})"))
        if not is_right:
            raise code.wrong(f"the tangent of {part} is not what it returns for it", rest[0])
