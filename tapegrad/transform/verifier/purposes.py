"""What functions are said to be for is possible, and says of all that they give what it is.

All other passes ask what names stand for. Nothing would be checked of a function whose names are
said to stand for nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tapegrad.transform.ir import Role
from tapegrad.transform.verifier.code import Code, called, is_in, name_of, names_in, names_of
from tapegrad.transform.verifier.cotangents import TAPE, Cotangents
from tapegrad.transform.verifier.purpose import Half

_OF_TANGENTS = frozenset([Role.TANGENT, Role.RETURNED, Role.SLOPE, Role.REST])
_OF_COTANGENTS = frozenset([*Role]) - {Role.TANGENT, Role.REST}


def check_purposes(codes: list[Code], primals: Mapping[str, Code]) -> None:
    """Refuse functions whose purpose is not said, or cannot be what is said.

    Parameters
    ----------
    codes
        All functions of a module.
    primals
        The functions that those with code for derivatives are made from, by their names.

    Raises
    ------
    InternalError
        With the function.
    """
    by_name = {code.name: code for code in codes}
    for name, primal in primals.items():
        halves = _halves(by_name[name], by_name)
        for code in halves:
            _check(code, primal)
        handed = _handed(halves)
        kept = {n for n in halves[0].purpose.names if halves[0].purpose.has_role(n, Role.KEPT)}
        known = by_name[name].purpose.names.keys() - handed - kept
        for found in sorted(Cotangents(halves).names - known):
            what = f"nothing says what {found} is, which is computed from cotangents"
            raise by_name[name].wrong(what, by_name[name].body[0])


def _handed(halves: list[Code]) -> set[str]:
    """Return the names of numbers that other functions hand over; no others may be said to be."""
    names = halves[0].purpose.names
    found = {n for n in names if halves[0].purpose.has_role(n, Role.HANDED)}
    made = {
        target
        for code in halves
        for statement in code.statements
        if isinstance(statement, ast.Assign)
        if code.purpose_of(called(statement.value)).is_forward
        for target in names_of(statement.targets[0])
    }
    for code in halves:
        for name in sorted(found & code.locals - made):
            raise code.wrong(f"no call hands {name} over", code.body[0])
    return found


def _halves(code: Code, by_name: Mapping[str, Code]) -> list[Code]:
    purpose = code.purpose
    other = by_name.get(purpose.other)
    if purpose.half in (Half.FORWARD, Half.REVERSE):
        wanted = Half.REVERSE if purpose.half is Half.FORWARD else Half.FORWARD
        if other is None or other.purpose.half is not wanted or other.purpose.other != code.name:
            raise code.wrong("it is half of a function without the other half", code.body[0])
        if (other.purpose.of, other.purpose.names) != (purpose.of, purpose.names):
            raise code.wrong("it is said to be half of another function", code.body[0])
        return [code, other]
    return [code]


def _check(code: Code, primal: Code) -> None:
    purpose, start = code.purpose, code.body[0]
    is_of_tangents = purpose.half is Half.TANGENT
    roles = _OF_TANGENTS if is_of_tangents else _OF_COTANGENTS
    for name, value in purpose.names.items():
        if value.role not in roles:
            raise code.wrong(f"{name} cannot be {value.role.value} there", start)
    derivative = Role.TANGENT if is_of_tangents else Role.COTANGENT
    known = {n for n, value in purpose.names.items() if value.role is derivative}
    roles_of_primals = Role.HANDED, Role.KEPT
    handed = {n for n, value in purpose.names.items() if value.role in roles_of_primals}
    passed = [n for n in code.parameters if n in purpose.names.keys() - handed]
    for node in code.statements:
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        for read in names_in(node.value):
            if read.id in known:
                passed.append(read.id)
            elif read.id in code.locals - primal.locals - handed - {*TAPE}:
                raise code.wrong(f"nothing says what {read.id} is", node)
    given = _given(primal, code.arrays)
    for name in passed:
        if purpose.names[name].of not in given:
            raise code.wrong(f"{name} belongs to no argument and to no result", start)
    if is_of_tangents:
        for name in sorted(code.locals - primal.locals - purpose.names.keys() - {*TAPE}):
            raise code.wrong(f"nothing says what {name} is", start)
    if purpose.half is not None:
        for param in code.parameters:
            if param not in primal.locals and param not in purpose.names and param not in TAPE:
                raise code.wrong(f"nothing says what {param} is", start)


def _given(primal: Code, arrays: set[str]) -> set[str]:
    """Return the arguments of a function, their parts, what it uses from outside, and results."""

    def is_part(value: ast.expr) -> bool:
        match value:
            case ast.Attribute(base) | ast.Subscript(base, ast.Constant()):
                return is_part(base) and name_of(base) not in arrays
        return is_in(value, found)

    made: dict[str, list[ast.expr]] = {}
    for name, value in primal.pairs:
        made.setdefault(name, []).append(value)
    read = {n.id for s in primal.statements for n in names_in(s)}
    found = {*primal.parameters, *(read - primal.locals)}
    before = -1
    while before != len(found):
        before = len(found)
        found |= {name for name, values in made.items() if all(map(is_part, values))}
    results = {
        n.id
        for s in primal.statements
        if isinstance(s, ast.Return) and s.value is not None
        for n in names_in(s.value)
    }
    return found | results
