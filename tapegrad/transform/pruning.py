"""Branches that numba decides before it finds types: only what is left has any.

A condition of constants is decided if it stands in a form that numba recognizes. The normal form is
another text, in which other conditions would be decided, and variables that branches assign would
have other types.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from numba.core import compiler, ir
from numba.core.analysis import dead_branch_prune, rewrite_semantic_constants
from numba.core.errors import NumbaError, UnsupportedBytecodeError


def decided_lines(function: FunctionType, arguments: tuple[Any, ...]) -> dict[int, bool]:
    """Return the lines in which a function branches: whether numba decides the branches there.

    Lines with branches of both kinds are left out.

    Parameters
    ----------
    function
        The function, as the user wrote it.
    arguments
        numba types of its arguments.
    """
    try:
        form = compiler.run_frontend(function)
    except (NumbaError, UnsupportedBytecodeError, NotImplementedError):
        return {}  # what numba does not take is refused later, by its line
    branches = {
        label: block.body[-1].loc.line
        for label, block in form.blocks.items()
        if isinstance(block.body[-1], ir.Branch)
    }
    rewrite_semantic_constants(form, arguments)
    dead_branch_prune(form, arguments)
    found: dict[int, set[bool]] = {}
    for label, line in branches.items():
        block = form.blocks.get(label)
        if block is not None:
            found.setdefault(line, set()).add(not isinstance(block.body[-1], ir.Branch))
    return {line: kinds.pop() for line, kinds in found.items() if len(kinds) == 1}
