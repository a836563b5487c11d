"""Which names may refer to an array: whether a loop can work on copies of its arrays.

A checkpointed loop (`segments`) goes on with copies of the arrays that it takes from one iteration
to the next. That makes no difference if these arrays are not written, or not known by other names.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator
from typing import Any

from tapegrad.transform.codegen.analysis import written
from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import (
    Block,
    FunctionIR,
    If,
    Let,
    Loop,
    Statement,
    defined,
    leaves_of,
    named_by,
    names_in,
    reads,
    walk,
)
from tapegrad.transform.kinds import is_array, may_share


def check_copies(instance: Instance, loop: Loop, given: list[str]) -> None:
    """Refuse a loop whose arrays cannot be copied.

    Parameters
    ----------
    instance
        The function.
    loop
        Its checkpointed loop.
    given
        The names from outside that the loop reads.

    Raises
    ------
    TransformError
        With the line of the loop.
    """
    function, kinds = instance.function, instance.function.types

    def refuse(what: str, way_out: str) -> TransformError:
        text = f"cannot checkpoint a loop {what}; {way_out}, or loop over a plain range"
        return TransformError(text, function.source, loop.line)

    flows = Flows(function, loop)
    states = [c for c in loop.carried if may_share(kinds[c.phi])]
    for c in states:
        if not is_array(kinds[c.phi]):
            raise refuse("that goes on with another list or tuple of arrays", "use arrays")
    arrays = [n for n in given if is_array(kinds[n])]
    results = {n for leaf in leaves_of(function.result) for n in names_in(leaf)}
    outside = {*function.params, *function.statics}
    for c in states:
        if not flows.is_written(c.phi):
            continue
        first = names_in(c.init)
        for other in flows.holders(*first):
            if other in outside or flows.is_read_after(other):
                raise refuse(
                    f"that writes to the array {_shown(first)}, which is known by another name "
                    "outside of it",
                    f"copy it before the loop ({_shown(first)}.copy())",
                )
    for c in states:
        for array in arrays:
            if set(names_in(c.next)) & flows.from_(array):
                later = flows.from_(*names_in(c.next))
                if later & results or flows.is_written(*names_in(c.next)):
                    raise refuse(
                        f"that goes on with (a part of) the array {array}",
                        f"copy it ({array}.copy())",
                    )
    starts = [(c.phi, names_in(c.init)) for c in states] + [(n, [n]) for n in arrays]
    for k, (one, first) in enumerate(starts):
        for other, second in starts[k + 1 :]:
            if flows.sources(*first) & flows.sources(*second) and flows.is_written(one, other):
                raise refuse(
                    f"that writes to an array which it knows by two names, {_shown(first)} and "
                    f"{_shown(second)}",
                    "take parts of arrays inside of the loop",
                )
    for k, c in enumerate(states):
        for other in states[k + 1 :]:
            one, two = names_in(c.next), names_in(other.next)
            if flows.sources(*one) & flows.sources(*two) and flows.is_written(c.phi, other.phi):
                raise refuse(
                    "that writes to an array which two of its variables may refer to",
                    "let one of them be a copy",
                )


def _shown(names: list[str]) -> str:
    return " or ".join(names) or "array"


class Flows:
    """From which names to which others arrays, or parts of them, may flow in a function.

    Parameters
    ----------
    function
        The function.
    loop
        A loop of it.
    """

    def __init__(self, function: FunctionIR, loop: Loop) -> None:
        self.types = function.types
        self.stored = {n for s in walk(function.body) for n in written(s)}
        self.states = {c.phi for c in loop.carried}
        self._read_after = _read_after(function, loop)
        self.all = _Edges()
        self.now = _Edges()  # without those to the next iteration of this loop and those around it
        for statement in walk(function.body):
            is_around = isinstance(statement, Loop) and any(s is loop for s in walk([statement]))
            for source, target in self._edges(statement, is_around):
                self.all.add(source, target)
                self.now.add(source, target)
            if is_around:
                for c in statement.carried:
                    for source in self._arrays(c.next):
                        self.all.add(source, c.phi)

    def _edges(self, statement: Statement, is_around: bool) -> Iterator[tuple[str, str]]:
        """Yield the names that arrays flow from and to in a statement.

        If it is the loop or one around it, without those from one iteration to the next.
        """
        if isinstance(statement, If):
            for phi in statement.phis:
                for source in (*self._arrays(phi.then), *self._arrays(phi.orelse)):
                    yield source, phi.target
        elif isinstance(statement, Loop):
            for c in statement.carried:
                last = names_in(c.next) if is_around else [c.phi]  # of the last iteration
                yield from ((source, c.phi) for source in self._arrays(c.init))
                yield from ((source, c.out) for source in last)
                if not is_around:
                    yield from ((source, c.phi) for source in self._arrays(c.next))
        elif isinstance(statement, Let):
            rule, made = statement.rule, defined(statement)
            if rule.base is not None:
                yield rule.base, statement.target
                return
            groups: list[list[Any]] = []
            if hasattr(rule, "shared"):
                groups = rule.shared(statement)
            elif not rule.fresh and any(may_share(self.types.get(n)) for n in made):
                groups = [[*made, *names_in(statement.expr)]]
            for group in groups:
                names = [n.id if isinstance(n, ast.Name) else n for n in group]
                names = [n for n in names if may_share(self.types.get(n))]
                yield from ((one, two) for one in names for two in names if one != two)

    def _arrays(self, value: Any) -> list[str]:
        return [n for n in names_in(value) if may_share(self.types.get(n))]

    def from_(self, *names: str) -> set[str]:
        """Return the names that arrays flow to."""
        return _reached(names, self.all.following)

    def sources(self, *names: str) -> set[str]:
        """Return the names that arrays come from, in the same iteration of the loop."""
        before = self.now.before
        found = _reached(names, before, self.states)
        return {n for n in found if n in self.states or not before.get(n)}

    def holders(self, *names: str) -> set[str]:
        """Return the names of arrays before the loop, apart from those in it."""
        origins = _reached(names, self.now.before)
        return _reached(origins, self.now.following, self.states) - self.states

    def is_written(self, *names: str) -> bool:
        """Whether arrays are written, by the names that they flow to."""
        return not self.stored.isdisjoint(self.from_(*names))

    def is_read_after(self, array: str) -> bool:
        """Whether an array is read by this name after the loop began."""
        return array in self._read_after


class _Edges:
    """The names that follow each name, and those before it."""

    def __init__(self) -> None:
        self.following: dict[str, set[str]] = {}
        self.before: dict[str, set[str]] = {}

    def add(self, source: str, target: str) -> None:
        self.following.setdefault(source, set()).add(target)
        self.before.setdefault(target, set()).add(source)


def _reached(
    names: Iterable[str], edges: dict[str, set[str]], ends: Container[str] = ()
) -> set[str]:
    """Return the names that edges lead to, without going on from `ends`."""
    found, todo = set(names), list(names)
    while todo:
        at = todo.pop()
        if at not in ends:
            more = edges.get(at, set()) - found
            found |= more
            todo += more
    return found


def _read_after(function: FunctionIR, loop: Loop) -> set[str]:
    """Return the names that are read after a loop began, and may have values from before.

    These are read in it, after it, or anywhere in a loop around it that they were defined before.
    """
    found: set[str] = set()
    results = {n for leaf in leaves_of(function.result) for n in names_in(leaf)}

    def visit(block: Block) -> bool:
        """Note what is read in a block; return whether the loop is in it."""
        seen = False
        for statement in block:
            if seen:
                for s in walk([statement]):
                    found.update(reads(s))
            elif statement is loop:
                seen = True
                found.update(n for s in walk(loop.body) for n in reads(s))
            elif isinstance(statement, If):
                seen = visit(statement.then)
                seen = visit(statement.orelse) or seen
            elif isinstance(statement, Loop):
                seen = visit(statement.body)
                if seen:
                    inside = {n for s in walk([statement]) for n in named_by(s)}
                    for s in walk(statement.body):
                        found.update(n for n in reads(s) if n not in inside)
        return seen

    visit(function.body)
    return found | results
