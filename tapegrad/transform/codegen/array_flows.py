"""Which names may refer to one array: whether a loop can go on with copies of its arrays.

A checkpointed loop (`segments`) copies its states, the arrays that an iteration takes from the one
before. That makes no difference unless two names refer to one array, at the start of an iteration
or after the loop, and one of them is written and the other one read. The names are the states, and
those of arrays from outside.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from numba.core import types

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
    closure,
    defined,
    leaves_of,
    named_by,
    names_in,
    reads,
    stem_of,
    walk,
)
from tapegrad.transform.kinds import is_array, may_share
from tapegrad.transform.rules import base as rules
from tapegrad.transform.syntax import subtree

_MUTABLE = (types.List, types.ListType, types.Set, types.DictType)


def check_copies(instance: Instance, loop: Loop, given: list[str]) -> None:
    """Refuse a loop whose arrays cannot be copied, or that uses lists.

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
    for name in (*given, *(c.phi for c in loop.carried)):
        kind = kinds[name]
        if is_array(kind) or (name in given and isinstance(kind, types.ClassInstanceType)):
            continue
        if isinstance(kind, _MUTABLE) or may_hold(kind):
            raise _refusal(
                function,
                loop,
                "that uses a list, a dict, a set, an iterator or a tuple of arrays of integers",
                "use arrays",
            )
    if any(isinstance(k, types.Optional) and may_hold(k) for k in kinds.values()):
        raise _refusal(function, loop, "in a function with an array that may be None", "use arrays")
    for statement in walk(function.body):
        if isinstance(statement, Let) and _is_of_storage(statement.expr, kinds):
            raise _refusal(
                function, loop, "in a function that looks how arrays are stored", "leave that out"
            )
    _Check(instance, loop, [n for n in given if is_array(kinds[n])]).run()


def may_hold(kind: Any) -> bool:
    """Whether values of a numba type may be or hold arrays, or change when they are used."""
    if isinstance(kind, types.Optional):
        return may_hold(kind.type)
    return may_share(kind) or isinstance(kind, types.IteratorType)


def _is_of_storage(expr: ast.expr, kinds: dict[str, Any]) -> bool:
    """Whether an expression depends on where the elements of arrays are, as it does not for copies.

    These are their strides, and whether two arrays are the same object.
    """
    match expr:
        case ast.Compare(ast.Name(id=one), [ast.Is() | ast.IsNot(), *_], [ast.Name(id=two), *_]):
            return is_array(kinds.get(one)) and is_array(kinds.get(two))
        case ast.Attribute(ast.Name(id=array), "strides" | "flags" | "ctypes" | "data"):
            return is_array(kinds.get(array))
    return False


def _refusal(function: FunctionIR, loop: Loop, what: str, way_out: str) -> TransformError:
    text = f"cannot checkpoint a loop {what}; {way_out}, or loop over a plain range"
    return TransformError(text, function.source, loop.line)


class _Check:
    """The comparison of a loop with one that goes on with copies.

    Attributes
    ----------
    held
        By state, names from outside whose arrays it may be, or be a part of.
    same
        Pairs of states that may refer to one array.
    """

    def __init__(self, instance: Instance, loop: Loop, given: list[str]) -> None:
        self.instance, self.loop, self.given = instance, loop, given
        self.function = instance.function
        self.flows = Flows(instance, loop)
        self.states = {c.phi: c for c in loop.carried if is_array(self.function.types[c.phi])}
        self.next = {s: self.flows.origins(names_in(c.next)) for s, c in self.states.items()}
        starts = {s: self.flows.ancestors(names_in(c.init)) for s, c in self.states.items()}
        self.held = {s: set(found) for s, found in starts.items()}
        pairs = [(s, t) for s in self.states for t in self.states if s < t]
        self.same = {(s, t) for s, t in pairs if starts[s] & starts[t]}
        count = -1
        while count != (count := sum(map(len, self.held.values())) + len(self.same)):
            for s in self.states:
                self.held[s] |= self.held_later(s)
            self.same |= {(s, t) for s, t in pairs if self.are_same_later(s, t)}

    def held_later(self, state: str) -> set[str]:
        """Return the names from outside whose arrays a state may be after an iteration."""
        found = self.flows.outside_of(self.next[state])
        return found.union(*(self.held[s] for s in self.next[state] & self.states.keys()))

    def are_same_later(self, one: str, other: str) -> bool:
        """Whether two states may refer to one array after an iteration."""
        first, second = self.next[one], self.next[other]
        if first & second or self.flows.outside_of(first) & self.held_later(other):
            return True
        if self.flows.outside_of(second) & self.held_later(one):
            return True
        both = ((s, t) for s in first & self.states.keys() for t in second & self.states.keys())
        return any((min(s, t), max(s, t)) in self.same for s, t in both)

    def run(self) -> None:
        """Raise unless copies make no difference."""
        flows = self.flows
        changed = [flows.origins([n]) for n in flows.stored_inside]
        own = {s for found in changed for s in found & self.states.keys()}
        outside = {n for found in changed for n in flows.outside_of(found)}
        for k, one in enumerate(self.given):
            for other in self.given[k + 1 :]:
                both = flows.ancestors([one]) & flows.ancestors([other])
                if both and outside & (flows.ancestors([one]) | flows.ancestors([other])):
                    raise self.two_names([one, other])
        for state in self.states:
            holders = [n for n in flows.live if flows.ancestors([n]) & self.held[state]]
            others = [t for pair in self.same if state in pair for t in pair if t != state]
            if state in own and holders:
                raise self.refuse(
                    f"that writes to {self.shown(state)}, an array with another name outside of it",
                    "copy it before the loop",
                )
            if state in own and others:
                raise self.refuse(
                    f"that writes to {self.shown(state)}, which may be the same array as "
                    f"{self.shown(others[0])}",
                    "let one of them be a copy",
                )
            if self.held[state] & outside:
                raise self.refuse(
                    f"that goes on with {self.shown(state)}, which may be an array that it writes "
                    "by another name, or a part of it",
                    "let it be a copy",
                )
            self.check_results(state)

    def check_results(self, state: str) -> None:
        """Raise if a state after the loop may be another array, and one of them may be written."""
        flows, out = self.flows, self.states[state].out
        later = self.held_later(state)
        holders = [n for n in flows.live if flows.ancestors([n]) & later]
        others = [t for t in self.states if t != state and self.are_same_later(*sorted((state, t)))]
        if not holders and not others:
            return
        of = self.instance.arrays.of
        is_written = any(of(n) == of(state) for n in flows.stored_later)
        ends = [*holders, *(self.states[t].out for t in others)]
        escapes = flows.is_returned(out) and any(
            n in flows.given or flows.is_returned(n) for n in ends
        )
        if is_written or escapes:
            raise self.refuse(
                f"after which {self.shown(state)} may be an array with another name, of which one "
                "may be written",
                "let it be a copy",
            )

    def two_names(self, names: list[str]) -> TransformError:
        """Return the refusal of a loop that is given one array twice."""
        shown = " and ".join(map(self.shown, names))
        return self.refuse(
            f"that writes to an array which it knows by two names, {shown}",
            "take parts of arrays inside of the loop",
        )

    def refuse(self, what: str, way_out: str) -> TransformError:
        return _refusal(self.function, self.loop, what, way_out)

    def shown(self, name: str) -> str:
        """Return the user's name of a value."""
        stem = stem_of(name)
        tree = self.function.source.tree
        known = set(names_in(tree))
        known |= {n.arg for n in subtree(tree) if isinstance(n, ast.arg)}
        return next((repr(n) for n in (name, stem) if n in known), "a part of an array or tuple")


class Flows:
    """From which names to which others arrays, or parts of them, flow in a function.

    Parameters
    ----------
    instance
        The function.
    loop
        A loop of it.

    Attributes
    ----------
    given
        Names that the caller knows: parameters, and values from outside.
    live
        Names of arrays from before the loop that are read after it began, or known to the caller.
    stored_inside, stored_later
        Names by which arrays are written in an iteration, and after the loop: those in a loop
        around it are among the latter.
    """

    def __init__(self, instance: Instance, loop: Loop) -> None:
        self.function, self.loop = instance.function, loop
        self.types = self.function.types
        self.inside = {n for s in walk(loop.body) for n in named_by(s)}
        self.states = {c.phi for c in loop.carried}
        self.given = {*self.function.params, *self.function.statics}
        self._before: dict[str, set[str]] = {}
        self._following: dict[str, set[str]] = {}
        for statement in walk(self.function.body):
            if _is_part(statement):
                continue
            for source, target in instance.arrays.edges(statement):
                if may_hold(self.types.get(source)) and may_hold(self.types.get(target)):
                    self._before.setdefault(target, set()).add(source)
                    self._following.setdefault(source, set()).add(target)
        known, read, later = _around(self.function, loop)
        results = {n for leaf in leaves_of(self.function.result) for n in names_in(leaf)}
        self._results = results
        names = (known & (read | results)) | self.given
        # a parameter that is a tuple has parts that are known to the caller
        parts = {n for s in walk(self.function.body) if _is_part(s) for n in defined(s)}
        self.given |= parts
        self.live = [n for n in names | parts if may_hold(self.types.get(n))]
        self.stored_inside = {n for s in walk(loop.body) for n in written(s)}
        self.stored_later = {n for s in later for n in written(s)}

    def ancestors(self, names: Iterable[str]) -> set[str]:
        """Return the names that arrays come from, these included."""
        return closure(names, self._before)

    def origins(self, names: Iterable[str]) -> set[str]:
        """Return the names that arrays come from in one iteration, these included.

        They end with states and names from outside.
        """
        inner = {n: found for n, found in self._before.items() if n in self.inside}
        return closure(names, inner)

    def outside_of(self, names: Iterable[str]) -> set[str]:
        """Return the ancestors of those of some names that are from outside of the loop."""
        return self.ancestors(n for n in names if n not in self.inside and n not in self.states)

    def is_returned(self, name: str) -> bool:
        """Whether an array may be part of the result."""
        return not self._results.isdisjoint(closure([name], self._following))


def _is_part(statement: Statement) -> bool:
    """Whether a statement takes an item of a tuple that is a parameter."""
    return isinstance(statement, Let) and isinstance(statement.rule, rules.Part)


def _around(function: FunctionIR, loop: Loop) -> tuple[set[str], set[str], list[Statement]]:
    """Return the names defined before a loop, and those that are read when it has begun.

    Names that a loop around it defines are read again before it, but not from the iteration before.
    The last part are the statements that may run after it.
    """
    known: set[str] = set(function.params)
    read: set[str] = set()
    later: list[Statement] = []

    def visit(block: Block) -> bool:
        """Process a block; return whether the loop is in it."""
        seen = False
        for statement in block:
            if seen:
                later.extend(walk([statement]))
                read.update(n for s in walk([statement]) for n in reads(s))
                continue
            if statement is loop:
                read.update(n for s in walk(loop.body) for n in reads(s))
                read.update(n for c in loop.carried for n in names_in(c.next))
                seen = True
            elif isinstance(statement, If):
                seen = visit(statement.then)
                seen = visit(statement.orelse) or seen
                if seen:  # values are merged at the end
                    read.update(reads(statement))
            elif isinstance(statement, Loop):
                known.update(c.phi for c in statement.carried)
                known.update(n for s in walk(statement.test) for n in named_by(s))
                seen = visit(statement.body)
                if seen:
                    read.update(n for c in statement.carried for n in names_in(c.next))
                    around = [*walk(statement.test), *walk(statement.body)]
                    later.extend(around)
                    inside = {n for s in around for n in named_by(s)}
                    inside |= {c.phi for c in statement.carried}
                    again = [n for s in around for n in reads(s)]
                    for part in (statement.cond, statement.exit):
                        again += names_in(part)
                    read.update(n for n in again if n not in inside)
            if not seen:
                known.update(named_by(statement))
        return seen

    visit(function.body)
    return known, read, later
