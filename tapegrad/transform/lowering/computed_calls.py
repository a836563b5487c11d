"""Calls of functions of numbers whose results have names.

The derivative of a sine is a cosine, and a program that computes one often computes the other too.
Reverse code reads its name then, instead of computing it again. It may be that of a statement of
the same block, also of a later one, or of an earlier statement of a block around it.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable

from tapegrad.transform.ir import Block, If, Let, Loop
from tapegrad.transform.rules.base import Elementary
from tapegrad.transform.rules.partials import called
from tapegrad.transform.syntax import key_of


def note_computed(block: Block, around: dict[Hashable, str] | None = None) -> None:
    """Tell the rules of a block which calls have names.

    Parameters
    ----------
    block
        Statements with rules.
    around
        The names of earlier calls in blocks around it, by what they compute.
    """
    before = dict(around or {})
    known = {**before, **calls_in(block)}
    for statement in block:
        if isinstance(statement, If):
            note_computed(statement.then, before)
            note_computed(statement.orelse, before)
        elif isinstance(statement, Loop):
            note_computed(statement.test, before)
            note_computed(statement.body, before)
        elif isinstance(statement, Let):
            if isinstance(statement.rule, Elementary):
                statement.rule.computed = known
            if _is_costly(statement):
                before[_computed(statement)] = statement.target


def calls_in(block: Block) -> dict[Hashable, str]:
    """Return the names of the calls that are statements of a block, by what they compute."""
    return {_computed(s): s.target for s in block if isinstance(s, Let) and _is_costly(s)}


def _is_costly(let: Let) -> bool:
    """Whether a statement calls a function of numbers that is not computed again."""
    rule = let.rule
    return isinstance(rule, Elementary) and not rule.whole and not rule.cheap


def _computed(let: Let) -> Hashable:
    call = ast.Call(ast.Name(called(let.rule.op, False), ast.Load()), let.rule.operands, [])
    return key_of(call)
