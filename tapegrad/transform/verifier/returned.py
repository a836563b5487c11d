"""Arrays that one call returns have separate cotangents or tangents only if they do not alias.

What a caller writes to an array is read from all its aliases. If a function returns aliases, their
cotangents have to alias as well, so the function has to make them.
"""

from __future__ import annotations

import ast

from tapegrad.transform.verifier.code import ZEROS, Code, called, module_call, names_of
from tapegrad.transform.verifier.memory import differ
from tapegrad.transform.verifier.summary import Summary


def check_returned(codes: list[Code], summaries: dict[str, Summary], fresh: set[str]) -> None:
    """Refuse new cotangents or tangents for several arrays that one call returns.

    Parameters
    ----------
    codes
        All functions of a module.
    summaries
        Their summaries.
    fresh
        Functions whose results are new arrays.

    Raises
    ------
    InternalError
        With the function and the line.
    """
    for code in codes:
        made = _made(code)
        for statement in code.statements:
            if not isinstance(statement, ast.Assign):
                continue
            function = called(statement.value)
            names = names_of(statement.targets[0])
            places = [place for place, name in enumerate(names) if name in made]
            if not function or function in fresh or len(places) < 2:
                continue
            if not differ(function, len(names), places, summaries):
                found = " and ".join(names[place] for place in places)
                raise code.wrong(f"{found} may show the same elements", statement)


def _made(code: Code) -> set[str]:
    """Return the names whose cotangents or tangents are new arrays of zeros."""
    return {
        code.purpose.names[name].of
        for name, value in code.pairs
        if module_call(value) in ZEROS
        if name in code.purpose.names
    }
