"""Checkpointed loops are cut into segments: functions that do some of the iterations.

``for i in tg.checkpointed(range(low, high, step))`` becomes a plain loop over calls::

    trips = runtime.trip_count(low, high, step)
    length = runtime.root(trips)
    for number in range(0, trips, length):
        first = runtime.iteration_at(low, high, step, number, trips)
        last = runtime.iteration_at(low, high, step, number + length, trips)
        state = function_steps(first, last, ..., state)

The derivative of ``function_steps`` keeps what it is given, and no more (`checkpointed`). Arrays
that an iteration takes from the one before are copied at the start and at the end of a segment: so
results are new arrays. A loop is refused if that would make a difference (`array_flows`).
"""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform import runtime
from tapegrad.transform.codegen.array_flows import check_copies
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
    Structure,
    constant,
    name,
    named_by,
    names_in,
    reads,
    walk,
)
from tapegrad.transform.kinds import copy_kind, is_array
from tapegrad.transform.lowering import operations
from tapegrad.transform.rules import base as rules
from tapegrad.transform.rules.calls import Call
from tapegrad.transform.syntax import text_of


def cut(program: Any, instance: Instance) -> list[Instance]:
    """Cut the checkpointed loops of a function; return the instances of their segments."""
    cutter = _Cutter(program, instance)
    cutter.check(instance.function.body)  # before anything is cut
    instance.function.body = cutter.block(instance.function.body)
    return cutter.made


class _Cutter:
    """Cuts the loops of one function."""

    def __init__(self, program: Any, instance: Instance) -> None:
        self.program, self.instance = program, instance
        self.function = instance.function
        self.types = self.function.types
        self.made: list[Instance] = []

    def check(self, block: Block) -> None:
        """Refuse the checkpointed loops of a block that cannot be cut."""
        for statement in block:
            if isinstance(statement, Loop) and statement.memory is not None:
                check_copies(self.instance, statement, self._taken(statement))
            elif isinstance(statement, If):
                self.check(statement.then)
                self.check(statement.orelse)
            elif isinstance(statement, Loop):
                self.check(statement.body)

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
        low, high, step = loop.bounds
        given = self._taken(loop)
        number = self.fresh("number", types.int64)
        following = self.fresh("following", types.int64)
        length = self.fresh("length", types.int64)
        first, last = self.fresh("first", types.int64), self.fresh("last", types.int64)
        trips = name(loop.trips)
        before = [
            self.let(loop.trips, "trip_count", *loop.bounds),
            self.let(length, "root", trips)
            if self._is_default(loop.memory)
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
            self.let(first, "iteration_at", low, high, step, name(number), trips),
            Let(
                following,
                ast.BinOp(name(number), ast.Add(), name(length)),
                self.line,
                rules.Passive(True),
            ),
            self.let(last, "iteration_at", low, high, step, name(following), trips),
        ]
        if not results:
            body.append(Let(self.fresh("done", types.none), call, self.line, rule))
        elif len(results) == 1:
            body.append(Let(results[0].id, call, self.line, rule))
        else:
            pattern = text_of(ast.Tuple([*results], ast.Load()))
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

    def _is_default(self, memory: Atom) -> bool:
        """Whether no number of states is given; refuse anything but an integer."""
        if isinstance(memory, ast.Constant):
            return memory.value in (0, None)
        kind = self.types.get(memory.id) if isinstance(memory, ast.Name) else None
        if isinstance(kind, types.NoneType):
            return True
        if not isinstance(kind, types.Integer):
            raise TransformError(
                f"tapegrad.checkpointed: memory is an integer, got {kind}",
                self.function.source,
                self.line,
            )
        return False

    def _taken(self, loop: Loop) -> list[str]:
        """Return the names from outside that a loop reads, in order."""
        function = self.function
        known = {*function.params}
        for statement in walk(function.body):
            known |= named_by(statement)
        inside = {n for s in walk([loop]) for n in named_by(s)}
        inside -= {c.out for c in loop.carried} | {loop.trips}
        read = [n for statement in walk(loop.body) for n in reads(statement)]
        read += [n for c in loop.carried for n in names_in(c.next)]
        assert loop.bounds is not None
        read += names_in(loop.bounds[2])
        return [n for n in dict.fromkeys(read) if n in known and n not in inside]

    def _segment(
        self, loop: Loop, first: str, last: str, given: list[str], state: list[str]
    ) -> Instance:
        """Return the function that does the iterations from `first` until before `last`."""
        function, lowering = self.function, self.instance.lowering
        body: Block = []
        carried: list[Carried] = []
        results: list[ast.Name] = []
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
        target = self.fresh(array, copy_kind(self.types[array]))
        call = ast.Call(ast.Attribute(name(array), "copy", ast.Load()), [], [])
        rule = operations.find(self.instance.lowering, call, self.types[target])
        block.append(Let(target, call, self.line, rule))
        return target
