"""Calls of differentiated functions and of their reverse halves."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import Any

from tapegrad.transform.ir import Role
from tapegrad.transform.verifier.code import is_in, names_in, names_of
from tapegrad.transform.verifier.cotangents import TAPE
from tapegrad.transform.verifier.events import Event, Handle, Memory, Operand, Value
from tapegrad.transform.verifier.frames import Frame
from tapegrad.transform.verifier.linear import ZERO
from tapegrad.transform.verifier.numbering import Needs
from tapegrad.transform.verifier.reading import Reading
from tapegrad.transform.verifier.sources import Helper
from tapegrad.transform.verifier.walk import Walk

_UNREAD = object()  # stands for an argument that a reverse function does not read


class Calls:
    """The calls of a walk.

    Parameters
    ----------
    walk
        The walk.
    reading
        The cotangents.

    Attributes
    ----------
    reversed
        The numbers of the calls that are reversed already.
    frames_of
        The frames in which calls are, by their numbers.
    """

    def __init__(self, walk: Walk, reading: Reading) -> None:
        self.walk, self.reading = walk, reading
        self.checked, self.bars, self.bar_of = walk.checked, walk.bars, walk.cotangents.of
        self.wrong = walk.wrong
        self.reversed: set[int] = set()
        self.frames_of: dict[int, Frame] = {}

    def forward_call(self, node: ast.stmt, call: ast.Call, function: str) -> None:
        assert isinstance(node, ast.Assign)
        found = names_of(node.targets[0])
        names = [n for n in found if n not in TAPE]
        if self.walk.frame.own.issuperset(names) and names:
            return
        summary = self.checked.summaries[function]
        event = self.walk.event(operands={})
        self.walk.note_call(event, call, [])
        event.function = function
        for node_read in names_in(call):
            read = node_read.id
            value = self.walk.frame.get(read)
            if value is not None and read not in self.bars and read not in event.operands:
                event.operands[read] = Operand(value, None)
        shadowed: dict[str, Handle | None] = {}
        unread: set[str] = set()  # views of arguments that the call does not write
        results = summary.results or ()
        written = {summary.classes[position] for position in summary.writes}
        for place, name in enumerate(found):
            if name in self.bars:
                shadowed[self.reading.stem(name)] = None
                kind = results[place] if len(results) == len(found) else None
                for position, of in summary.classes.items():
                    given = call.args[position]
                    if of == kind and is_in(given, self.bars) and self.walk.choices.is_view():
                        base = self.walk.frame.get(given.id)
                        array = self.walk.frame.get(self.reading.stem(given.id))
                        if isinstance(base, Handle) and isinstance(array, Handle):
                            step = ("result", event.number, place)
                            self.walk.frame.names[name] = base.view(step)
                            shadowed[self.reading.stem(name)] = array.view(step)
                            if kind not in written:
                                unread.add(self.reading.stem(name))
                            break
                else:
                    self.walk.frame.names[name] = Handle(Memory())
                self.walk.frame.own.add(name)
        for name in names:
            if name in self.bars:
                continue
            made: Value | None = shadowed.get(name)
            if made is None and name in shadowed:
                event.makes(made := Handle(Memory()))
            self.walk.frame.set(name, self.walk.made(name, event) if made is None else made)
        heard = [n for n in shadowed if n not in unread]
        event.seeds = [self.walk.frame.names[n] for n in heard if n in self.walk.frame.names]
        self.frames_of[event.number] = self.walk.frame

    def reverse_call(self, node: ast.stmt, call: ast.Call, function: str) -> None:
        summary = self.checked.summaries[function]
        purpose = self.walk.code.purpose_of(function)
        given = [a for a in call.args if not is_tape(a)]
        primal: list[ast.expr] = []
        shadows: list[tuple[ast.expr, bool]] = []  # with whether it is read or cleared
        made: list[ast.expr] = []  # the cotangents of arrays that are results
        seeds: list[ast.expr] = []
        needs = self.checked.calls.needs.get(function, Needs())
        for position, (param, argument) in enumerate(zip(summary.params, given, strict=False)):
            if position in needs.handed:
                continue
            if purpose.has_role(param, Role.SEED):
                seeds.append(argument)
            elif param not in summary.given and (
                is_in(argument, self.bars) or purpose.has_role(param, Role.COTANGENT)
            ):
                shadows.append((argument, position in summary.reads))
                is_of_result = not purpose.has_role(param, Role.COTANGENT)
                if is_of_result or purpose.names[param].of not in summary.params:
                    made.append(argument)
            else:
                primal.append(argument)
        made_names = names_of(node.targets[0]) if isinstance(node, ast.Assign) else []
        targets = [n for n in made_names if n not in TAPE]
        parts_of = list(map(self.walk.cotangents.part_of, targets))
        stems = [self.reading.stem(n.id) for bar in [*seeds, *made] for n in names_in(bar)]
        seeded = [
            value for value in map(self.walk.frame.get, filter(None, stems)) if value is not None
        ]
        arguments = tuple(
            _UNREAD if place in needs.unread else self.walk.identity(argument)
            for place, argument in enumerate(primal)
        )
        passed = {self.reading.stem(bar.id) for bar, _ in shadows if isinstance(bar, ast.Name)}
        event = self.event_of(function, arguments, set(parts_of), seeded, passed)
        if event is None:
            raise self.wrong("the reverse of a call that the forward code does not make", node)
        self.reversed.add(event.number)
        shown = [(s.id, is_read) for s, is_read in shadows if isinstance(s, ast.Name)]
        handles: list[Any] = [self.walk.frame.get(n) for n, _ in shown]  # None without a value
        arrays = [self.walk.frame.get(self.reading.stem(n)) for n, _ in shown]
        event.read = [is_read for _, is_read in shown]
        results = list(event.seeds)  # arrays of the result whose cotangents the callee keeps
        for value in results:
            for name, other in self.walk.frame.names.items():
                if other is value and self.bar_of(name) in self.walk.frame.names:
                    handles.append(self.walk.frame.names[self.bar_of(name)])
                    arrays.append(value)
                    event.read.append(True)
                    break
        event.passed = [a if isinstance(a, Handle) else Handle(Memory()) for a in arrays]
        event.seeds = []
        maps = []
        for seed in seeds:
            found = self.reading.sources(seed)
            if not found:
                maps.append(ZERO)
                event.seeds.append(None)
                continue
            change = found[0].value
            stem = self.reading.stem(found[0].name)
            if (
                len(found) != 1
                or self.reading.sign(seed) != 1
                or isinstance(change, Helper)
                or not stem
            ):
                raise self.wrong("a cotangent of a call that no pass knows", node)
            maps.append(change)
            event.seeds.append(self.walk.frame.get(stem))
        event.parts = parts_of
        for stem in event.parts:
            if stem not in event.operands:
                raise self.wrong(f"{stem} is no argument of the call", node)
        parts = self.reading.contents.call(event, handles, maps)
        self.reading.numbers.update(zip(targets, parts, strict=True))

    def event_of(
        self,
        function: str,
        arguments: tuple[Hashable, ...],
        operands: set[str],
        seeded: list[Value],
        passed: set[str],
    ) -> Event | None:
        """Return the last call that is not reversed yet, preferably one that made what is seeded.

        Calls whose arguments have the given names come first: on some paths several names have
        equal values, so calls with other names may have the same arguments. Then come those that
        take most of the arrays whose cotangents are passed, and those whose results have
        cotangents: a reverse function may read nothing. The function may be called by a different
        name.
        """
        names = self.walk.frame.names
        heard = {id(value) for n, value in names.items() if self.bar_of(n) in names}
        purpose = self.walk.code.purpose_of(function)
        open_calls = [
            event
            for event in reversed(self.walk.events)
            if event.function
            and event.number not in self.reversed
            and self.frames_of.get(event.number) is self.walk.frame
        ]
        open_calls.sort(
            key=lambda event: (
                not operands.issubset(event.operands),
                -sum(value is made for made in event.results for value in seeded),
                -len(passed & event.operands.keys()),
                not any(id(made) in heard for made in event.results),
            )
        )
        if self.checked.calls.has_forward(function):
            for event in open_calls:
                if event.function == purpose.other and _agree(event.arguments, arguments):
                    return event
            return None
        plain = [
            event
            for event in open_calls
            if not self.walk.cotangents.is_forward(event.function) and not event.joined
        ]
        own = purpose.of
        named = [event for event in plain if event.function == own]
        for event in [*named, *plain]:
            if _is_given(event, own, arguments):
                self.walk.facts.differentiated.add(event.function)
                return event
        return None


def _is_given(event: Event, own: str, arguments: tuple[Hashable, ...]) -> bool:
    """Whether a call has the given arguments; for a method, also the name `own`."""
    if event.instance is not None:
        if own != event.function:
            return False
        if arguments[:1] == (event.instance,):
            arguments = arguments[1:]
    given = arguments[: len(event.arguments)]
    return len(given) == len(event.arguments) and _agree(event.arguments, given)


def _agree(one: tuple[Hashable, ...], other: tuple[Hashable, ...]) -> bool:
    """Whether all of `other` are the first arguments of a call, or are not read."""
    return len(one) >= len(other) and all(
        b in (a, _UNREAD) for a, b in zip(one, other, strict=False)
    )


def is_tape(node: ast.expr) -> bool:
    """Whether an expression is the tape or its top."""
    return is_in(node, TAPE)
