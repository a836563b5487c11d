"""Arrays that one call returns have cotangents, or tangents, of their own only if they differ.

What a caller writes to an array is read in all others that show the same elements. If a function
returns such arrays, their cotangents have to be one array as well, which the function makes.
"""

from __future__ import annotations

import ast
import re

from tapegrad.transform.verifier.code import Code, called, leaves, module_call, paired
from tapegrad.transform.verifier.cotangents import FORWARD
from tapegrad.transform.verifier.summaries import Summary

_OWN = re.compile(r"_(bar|dot)\d*$")
_ZEROS = (("np", "zeros"), ("np", "zeros_like"))


def check_returned(codes: list[Code], summaries: dict[str, Summary], fresh: set[str]) -> None:
    """Refuse new cotangents or tangents for several arrays that one call returns.

    Parameters
    ----------
    codes
        All functions of a module.
    summaries
        Of each of them.
    fresh
        Functions whose results are arrays of their own.

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
            names = [n.id for n in leaves(statement.targets[0]) if isinstance(n, ast.Name)]
            places = [place for place, name in enumerate(names) if name in made]
            if function is None or function in fresh or len(places) < 2:
                continue
            known = _known(function, len(names), summaries)
            if not known or not all(_differ(summary, places) for summary in known):
                found = " and ".join(names[place] for place in places)
                raise code.wrong(f"{found} may show the same elements", statement)


def _made(code: Code) -> set[str]:
    """Return the names for which arrays of zeros are made."""
    return {
        _OWN.sub("", target.id)
        for statement in code.statements
        if isinstance(statement, ast.Assign)
        for target, value in paired(statement.targets[0], statement.value)
        if isinstance(target, ast.Name) and _OWN.search(target.id)
        if isinstance(value, ast.Call) and module_call(value) in _ZEROS
    }


def _known(function: str, count: int, summaries: dict[str, Summary]) -> list[Summary]:
    """Return what is known of a function with so many results, by its forward half.

    That may have another name: then it is one of those that nothing calls.
    """
    if function in summaries:
        return [summaries[function]]
    forward = {name: s for name, s in summaries.items() if FORWARD.search(name) and not s.is_called}
    named = [s for name, s in forward.items() if FORWARD.sub("", name) == function]
    return named or [s for s in forward.values() if s.results and len(s.results) == count]


def _differ(summary: Summary, places: list[int]) -> bool:
    """Whether some results are different arrays."""
    shared = [place for place in places if place not in summary.own]
    found = [summary.results[place] for place in shared] if summary.results else [None]
    return None not in found and len(set(found)) == len(shared)
