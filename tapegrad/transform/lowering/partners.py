"""Sines and cosines whose derivatives are computed beside them.

Both functions of one number take little longer than one of them. In a loop whose numbers follow
from those of the iteration before, something is kept for each iteration anyway. There a sine is
followed by the cosine, and a cosine by the sine, so that the forward pass keeps it, and reverse
code reads it (`computed_calls`) instead of computing it from other numbers that were kept.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Hashable, Set
from typing import Any

from tapegrad.ops.table.op import TABLE
from tapegrad.transform.ir import (
    Block,
    FunctionIR,
    If,
    Let,
    Loop,
    Store,
    defined,
    name,
    names_in,
    walk,
)
from tapegrad.transform.kinds import is_complex
from tapegrad.transform.lowering.computed_calls import calls_in
from tapegrad.transform.rules import base as rules
from tapegrad.transform.rules.partials import called
from tapegrad.transform.syntax import key_of

_PARTNERS = {"sin": "cos", "cos": "sin"}


def add_partners(lowering: Any, block: Block) -> None:
    """Add the partners of sines and cosines to a block with rules.

    Parameters
    ----------
    lowering
        The lowering of the function, which has the types of its names.
    block
        The block, which is changed.
    """
    _Partners(lowering).visit(block, None, frozenset(), frozenset())


def without_partners(function: FunctionIR) -> FunctionIR:
    """Return a function without what is computed for reverse code alone."""

    def kept(block: Block) -> Block:
        found: Block = []
        for statement in block:
            if isinstance(statement, If):
                then, orelse = kept(statement.then), kept(statement.orelse)
                statement = dataclasses.replace(statement, then=then, orelse=orelse)
            elif isinstance(statement, Loop):
                statement = dataclasses.replace(statement, body=kept(statement.body))
            elif isinstance(statement, Let) and isinstance(statement.rule, _Partner):
                continue
            found.append(statement)
        return found

    has_some = any(isinstance(getattr(s, "rule", None), _Partner) for s in walk(function.body))
    return dataclasses.replace(function, body=kept(function.body)) if has_some else function


class _Partner(rules.Elementary):
    """The rule of a call that was added."""


class _Partners:
    def __init__(self, lowering: Any) -> None:
        self.lowering = lowering
        self.known: list[Set[Hashable]] = []  # calls in the blocks around a statement

    def visit(
        self, block: Block, varying: set[str] | None, states: Set[str], of_inner: Set[str]
    ) -> None:
        """Add partners to a block.

        Parameters
        ----------
        block
            The block.
        varying
            In a loop, the names whose values follow from those of the iteration before; they are
            added to.
        states
            Arrays that the iterations of outer loops overwrite.
        of_inner
            Those for the loops in the block.
        """
        found: Block = []
        self.known.append(calls_in(block).keys())
        for statement in block:
            found.append(statement)
            if isinstance(statement, If):
                for side in (statement.then, statement.orelse):
                    self.visit(side, varying, states, of_inner)
                if varying is not None:
                    varying |= {
                        phi.target
                        for phi in statement.phis
                        if varying.intersection([*names_in(phi.then), *names_in(phi.orelse)])
                    }
            elif isinstance(statement, Loop):
                self._visit_loop(statement, varying, of_inner)
            elif isinstance(statement, Let) and varying is not None:
                if varying.intersection(names_in(statement.expr)) or _reads(statement, states):
                    varying.update(defined(statement))
                    found += self._partner(statement)
        self.known.pop()
        block[:] = found

    def _visit_loop(self, loop: Loop, varying: set[str] | None, states: Set[str]) -> None:
        inside = {carried.phi for carried in loop.carried} | (varying or set())
        stored = {s.array for s in walk(loop.body) if isinstance(s, Store)}
        made = {n for s in walk(loop.body) for n in defined(s)}
        self.visit(loop.body, inside, states, states | (stored - made))

    def _partner(self, let: Let) -> Block:
        """Return the statement that computes the partner of a call, if it has one."""
        rule = let.rule
        if not isinstance(rule, rules.Elementary) or rule.whole or rule.op.name not in _PARTNERS:
            return []
        types, kind = self.lowering.types, self.lowering.types.get(let.target)
        if is_complex(kind):
            return []
        op: Any = TABLE[_PARTNERS[rule.op.name]]
        call = ast.Call(name(called(op, False)), rule.operands, [])
        if any(key_of(call) in known for known in self.known):
            return []
        target = self.lowering.fresh(f"{let.target}_{op.name}")
        types[target] = kind
        return [Let(target, call, let.line, _Partner(op, rule.operands, False, self.lowering))]


def _reads(let: Let, states: Set[str]) -> bool:
    return isinstance(let.rule, rules.Load) and let.rule.array in states
