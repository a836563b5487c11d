"""Checkpointed loops are cut into segments: functions that do some of the iterations.

``for i in tg.checkpointed(range(low, high, step))`` becomes a plain loop over calls::

    trips = runtime.trip_count(low, high, step)
    length = runtime.root(trips)
    for number in range(0, trips, length):
        first = runtime.iteration_at(low, step, number, trips)
        last = runtime.iteration_at(low, step, number + length, trips)
        state = function_steps(first, last, ..., state)

The derivative of ``function_steps`` keeps what it is given, and no more (`checkpointed`). Arrays
that an iteration takes from the one before are copied at the start and at the end of a segment: so
results are new arrays. A loop is refused if that would make a difference (`Flows`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from numba.core import types

from tapegrad.transform import runtime
from tapegrad.transform.codegen.analysis import written
from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import (
    Atom,
    Block,
    Carried,
    FunctionIR,
    If,
    Let,
    Loop,
    Statement,
    Structure,
    constant,
    defined,
    leaves_of,
    name,
    names_in,
    reads,
    walk,
)
from tapegrad.transform.kinds import is_array, may_share
from tapegrad.transform.lowering import operations
from tapegrad.transform.rules import base as rules
from tapegrad.transform.rules.calls import Call


def cut(program: Any, instance: Instance) -> list[Instance]:
    """Cut the checkpointed loops of a function; return the instances of their segments."""
    cutter = _Cutter(program, instance)
    instance.function.body = cutter.block(instance.function.body)
    return cutter.made


class _Cutter:
    """Cuts the loops of one function."""

    def __init__(self, program: Any, instance: Instance) -> None:
        self.program, self.instance = program, instance
        self.function = instance.function
        self.types = self.function.types
        self.made: list[Instance] = []

    def block(self, block: Block) -> Block:
        """Return a block with the checkpointed loops cut."""
        found: Block = []
        for statement in block:
            if isinstance(statement, Loop) and statement.memory is not None:
                found += self._cut(statement)
                continue
            if isinstance(statement, If):
                statement.then = self.block(statement.then)
                statement.orelse = self.block(statement.orelse)
            elif isinstance(statement, Loop):
                statement.body = self.block(statement.body)
            found.append(statement)
        return found

    def fresh(self, stem: str, kind: Any) -> str:
        """Return a new name of a type."""
        found = self.instance.lowering.fresh(stem)
        self.types[found] = kind
        return found

    def let(self, target: str, function: str, *arguments: Atom) -> Let:
        """Return ``target = runtime.function(*arguments)``, on integers."""
        text = f"runtime.{function}"
        self.function.statics[text] = getattr(runtime, function)
        self.types[target] = types.int64
        return Let(target, ast.Call(name(text), [*arguments], []), self.line, rules.Passive(True))

    def _cut(self, loop: Loop) -> Block:
        """Return the statements that replace a checkpointed loop."""
        assert loop.bounds is not None
        assert loop.memory is not None
        self.line = loop.line
        low, _, step = loop.bounds
        given = self._taken(loop)
        check(self.instance, loop, given)
        number = self.fresh("number", types.int64)
        following = self.fresh("following", types.int64)
        length = self.fresh("length", types.int64)
        first, last = self.fresh("first", types.int64), self.fresh("last", types.int64)
        trips = name(loop.trips)
        default = isinstance(loop.memory, ast.Constant) and loop.memory.value == 0
        before = [
            self.let(loop.trips, "trip_count", *loop.bounds),
            self.let(length, "root", trips)
            if default
            else self.let(length, "share", trips, loop.memory),
        ]
        carried = [
            Carried(
                self.fresh(c.phi, self.types[c.phi]),
                c.init,
                name(self.fresh(c.out, self.types[c.out])),
                c.out,
            )
            for c in loop.carried
        ]
        segment = self._segment(loop, first, last, given, [c.phi for c in carried])
        arguments: list[ast.expr] = [name(n) for n in segment.function.params]
        results = [name(c.next.id) for c in carried if isinstance(c.next, ast.Name)]
        call = ast.Call(name(segment.function.name), arguments, [])
        rule = Call(self.instance.lowering, segment.function.name, arguments, segment.kinds)
        body = [
            self.let(first, "iteration_at", low, step, name(number), trips),
            Let(
                following,
                ast.BinOp(name(number), ast.Add(), name(length)),
                self.line,
                rules.Passive(True),
            ),
            self.let(last, "iteration_at", low, step, name(following), trips),
        ]
        if not results:
            body.append(Let(self.fresh("done", types.none), call, self.line, rule))
        elif len(results) == 1:
            body.append(Let(results[0].id, call, self.line, rule))
        else:
            pattern = ast.unparse(ast.Tuple([*results], ast.Load()))
            body.append(Let(pattern, call, self.line, rule, [n.id for n in results]))
        outer = Loop(
            number,
            (constant(0), trips, name(length)),
            [],
            None,
            body,
            None,
            carried,
            self.fresh("trips", types.int64),
            self.line,
        )
        return [*before, outer]

    def _taken(self, loop: Loop) -> list[str]:
        """Return the names from outside that a loop reads, in order."""
        function = self.function
        known = {*function.params}
        for statement in walk(function.body):
            known |= _named_by(statement)
        inside = {n for s in walk([loop]) for n in _named_by(s)}
        inside -= {c.out for c in loop.carried} | {loop.trips}
        read = [n for statement in walk(loop.body) for n in reads(statement)]
        read += [n for c in loop.carried for n in names_in(c.next)]
        read += names_in(loop.bounds[2])
        return [n for n in dict.fromkeys(read) if n in known and n not in inside]

    def _segment(
        self, loop: Loop, first: str, last: str, given: list[str], state: list[str]
    ) -> Instance:
        """Return the function that does the iterations from `first` until before `last`."""
        function, lowering = self.function, self.instance.lowering
        body: Block = []
        carried: list[Carried] = []
        results: list[Atom] = []
        ends: Block = []
        for c, given_state in zip(loop.carried, state, strict=True):
            out = self.fresh(c.out, self.types[c.out])
            start, end = given_state, out
            if is_array(self.types[c.phi]):
                start, end = self._copied(given_state, body), self._copied(out, ends)
            carried.append(Carried(c.phi, name(start), c.next, out))
            results.append(name(end))
        assert loop.bounds is not None
        bounds = name(first), name(last), loop.bounds[2]
        trips = self.fresh("trips", types.int64)
        body.append(Loop(loop.index, bounds, [], None, loop.body, None, carried, trips, self.line))
        result: Any = None
        if len(results) == 1:
            result = results[0]
        elif results:
            result = Structure(types.Tuple([self.types[n.id] for n in results]), results)
        made = FunctionIR(
            self.program.fresh(f"{function.name}_steps"),
            [first, last, *given, *state],
            [*body, *ends],
            result,
            function.source,
            function.statics,
            self.types,
            function.inplace,
        )
        segment = Instance(self.instance.dispatcher, tuple(self.types[n] for n in made.params))
        segment.function, segment.lowering, segment.line = made, lowering, self.line
        segment.is_segment = True
        segment.params = [name(n) for n in made.params]
        self.program.add_segment(segment)
        self.made.append(segment)
        return segment

    def _copied(self, array: str, block: Block) -> str:
        """Append the copy of an array; return its name."""
        kind = self.types[array]
        layout = "F" if kind.layout == "F" else "C"  # as numba copies
        target = self.fresh(array, kind.copy(layout=layout, readonly=False))
        call = ast.Call(ast.Attribute(name(array), "copy", ast.Load()), [], [])
        rule = operations.find(self.instance.lowering, call, self.types[target])
        block.append(Let(target, call, self.line, rule))
        return target


def _named_by(statement: Statement) -> set[str]:
    """Return the names that a statement itself defines, also for its own blocks."""
    found = set(defined(statement))
    if isinstance(statement, Loop):
        found.update(c.phi for c in statement.carried)
        if statement.index is not None:
            found.add(statement.index)
    return found


def check(instance: Instance, loop: Loop, given: list[str]) -> None:
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
    inside = {n for s in walk(loop.body) for n in _named_by(s)}
    of = instance.arrays.of
    for c in states:
        if not flows.is_written(c.phi):
            continue
        first = names_in(c.init)
        classes = set(map(of, first))
        for other in kinds.keys() - inside - flows.from_(c.phi):
            if not is_array(kinds[other]) or of(other) not in classes:
                continue
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
        A loop of it; the sources of arrays are looked for in one iteration.
    """

    def __init__(self, function: FunctionIR, loop: Loop) -> None:
        self.types, self.loop = function.types, loop
        self.following: dict[str, set[str]] = {}
        self.before: dict[str, set[str]] = {}
        self.states = {c.phi for c in loop.carried}
        self.stored = {n for s in walk(function.body) for n in written(s)}
        for statement in walk(function.body):
            self._add(statement)
        self._read_after = _read_after(function, loop)

    def _add(self, statement: Statement) -> None:
        if isinstance(statement, If):
            for phi in statement.phis:
                self._edge(phi.then, phi.target)
                self._edge(phi.orelse, phi.target)
        elif isinstance(statement, Loop):
            for c in statement.carried:
                self._edge(c.init, c.phi)
                self._edge(c.next, c.phi)
                # without an iteration, what is before the loop is the same after it
                self._edge(c.next if statement is self.loop else name(c.phi), c.out)
        elif isinstance(statement, Let):
            rule = statement.rule
            if rule.base is not None:
                self._edge(name(rule.base), statement.target)
            elif hasattr(rule, "shared"):
                for group in rule.shared(statement):
                    self._join(group)
            elif not rule.fresh and any(may_share(self.types.get(n)) for n in defined(statement)):
                self._join([*defined(statement), *names_in(statement.expr)])

    def _join(self, group: Iterable[Any]) -> None:
        names = [n.id if isinstance(n, ast.Name) else n for n in group]
        for one in names:
            for two in names:
                if one != two:
                    self._edge(name(one), two)

    def _edge(self, value: Any, target: str) -> None:
        if isinstance(value, ast.Name) and may_share(self.types.get(value.id)):
            if may_share(self.types.get(target)):
                self.following.setdefault(value.id, set()).add(target)
                self.before.setdefault(target, set()).add(value.id)

    def from_(self, *names: str) -> set[str]:
        """Return the names that arrays flow to."""
        return _reached(names, self.following, set())

    def sources(self, *names: str) -> set[str]:
        """Return the names that arrays come from, in the same iteration of the loop."""
        found = _reached(names, self.before, self.states)
        return {n for n in found if n in self.states or not self.before.get(n)}

    def is_written(self, *names: str) -> bool:
        """Whether arrays are written, by the names that they flow to."""
        return not self.stored.isdisjoint(self.from_(*names))

    def is_read_after(self, array: str) -> bool:
        """Whether an array is read by this name after the loop began."""
        return array in self._read_after


def _reached(names: Iterable[str], edges: dict[str, set[str]], ends: set[str]) -> set[str]:
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
                    inside = {n for s in walk([statement]) for n in _named_by(s)}
                    for s in walk(statement.body):
                        found.update(n for n in reads(s) if n not in inside)
        return seen

    visit(function.body)
    return found | results
