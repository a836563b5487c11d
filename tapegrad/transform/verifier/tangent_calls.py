"""Calls in forward mode, of functions that return a value with its tangent and of rules."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from tapegrad.transform.syntax import leaves
from tapegrad.transform.verifier.code import (
    POPS,
    TANGENT_PUSHES,
    called,
    is_in,
    module_call,
    name_of,
    names_in,
    results_of,
)
from tapegrad.transform.verifier.events import Event, Handle, Memory, Operand, changed
from tapegrad.transform.verifier.forward_names import TangentCode
from tapegrad.transform.verifier.linear import ZERO, Map, total
from tapegrad.transform.verifier.sources import Helper, Source
from tapegrad.transform.verifier.summary import Summary
from tapegrad.transform.verifier.tangent_reading import TangentReading
from tapegrad.transform.verifier.tangent_stores import TangentStores
from tapegrad.transform.verifier.walk import Walk


class TangentCalls:
    """The calls of a walk.

    Parameters
    ----------
    walk
        The walk.
    reading
        The tangents.
    stores
        The stores.
    others
        All functions of forward mode, by name.
    """

    def __init__(
        self,
        walk: Walk,
        reading: TangentReading,
        stores: TangentStores,
        others: dict[str, TangentCode],
    ) -> None:
        self.walk, self.reading, self.stores, self.others = walk, reading, stores, others
        self.checked, self.bars, self.dot_of = walk.checked, walk.bars, walk.cotangents.of
        self.wrong = walk.wrong

    def several(self, node: ast.Assign, target: ast.Tuple, call: ast.Call) -> None:
        """Process the computation of the tangents of several results."""
        if module_call(call) in TANGENT_PUSHES | POPS:
            self.stores.keep_tangent(node, target, call)
            return
        for leaf in leaves(target):
            assert isinstance(leaf, ast.Name)
            if leaf.id not in self.bars:
                raise self.wrong(f"{leaf.id} is assigned where its tangent is", node)
            value = self.walk.frame.get(self.reading.stem(leaf.id))
            if value is not None and value.event is not None and leaf.id not in self.checked.reads:
                value.event.silent.add(value.place)  # an integer
            self.take(leaf.id, self.reading.gain(call, self.reading.stem(leaf.id), node), node)

    def take(self, name: str, found: Map, node: ast.AST) -> None:
        """Assign the tangent of a result to a name."""
        value = self.walk.frame.get(self.reading.stem(name))
        if isinstance(value, Handle):
            handle = Handle(Memory())
            self.reading.contents.add(handle, found)
            self.reading.set_value(name, handle)
            self.reading.pair(value, handle, name, node)
        else:
            self.reading.set_number(name, found, value)

    def call(self, node: ast.Assign, target: ast.Tuple, call: ast.Call) -> None:
        """Process a call that returns a value with its tangent."""
        self.stores.check_stores(node)  # the call may read them, possibly through the tape
        function = called(call)
        other = self.others.get(function)
        if other is None:
            count = next(k for k, a in enumerate(call.args) if self.reads_tangents(a))
        else:
            count = len(other.own)
        own, dots = call.args[:count], call.args[count:]
        event = self.walk.event(operands={})
        reads = self.reading.readings[event.number] = {}
        for argument in own:
            reads.update(self.reading.read(argument))
        for name, (read, _) in reads.items():
            event.operands[name] = Operand(read, None if self.dot_of(name) else -1)
        if other is not None:
            self.check_arguments(node, other, own, dots)
            self.check_results(node, other, target)
        given = [source for dot in dots for source in self.reading.sources(dot)]
        summary = self.checked.summaries.get(function)
        shown = {} if summary is None else self.shown_by(summary, own, event, target)
        for leaf in leaves(target.elts[0]):
            assert isinstance(leaf, ast.Name)
            view = shown.get(leaf.id)
            self.reading.set_value(
                leaf.id, self.walk.made(leaf.id, event) if view is None else view[0]
            )
        made: list[tuple[str, Map]] = []
        event.silent = set(range(len(event.results)))
        for place, leaf in enumerate(leaves(target.elts[1])):
            assert isinstance(leaf, ast.Name)
            stem = self.reading.stem(leaf.id)
            view = shown.get(stem)
            value = self.walk.frame.get(stem)
            if view is not None:
                self.reading.set_value(leaf.id, view[1])
                self.reading.pair(*view, leaf.id, node)
            elif value is None or value.event is not event:
                raise self.wrong(f"{leaf.id} is the tangent of no result of the call", node)
            else:
                event.silent.remove(value.place)
                made.append((leaf.id, self.passed(event, value.place, given, node)))
                if other is not None and other.is_kept(place):
                    self.stores.kept.add(leaf.id)
        if summary is not None:
            self.change(node, event, summary, own, given)
        for name, found in made:
            self.take(name, found, node)

    def passed(self, event: Event, place: Hashable, given: list[Source], node: ast.AST) -> Map:
        """Return the tangent of a result of a call, from the tangents that it is given."""
        found = ZERO
        for name, value, _ in given:
            assert not isinstance(value, Helper)
            found = total(found, self.reading.through(event, place, name, value, 0, node))
        return found

    def makes_tangents(self, node: ast.expr) -> bool:
        return any(is_in(n, self.bars) for n in leaves(node))

    def reads_tangents(self, node: ast.expr) -> bool:
        return any(n.id in self.bars for n in names_in(node))

    def check_arguments(
        self, node: ast.AST, other: TangentCode, own: list[ast.expr], dots: list[ast.expr]
    ) -> None:
        """Refuse tangents that do not belong to the arguments that the function expects."""
        if len(dots) != len(other.given):
            raise self.wrong("it does not get the tangents that it wants", node)
        for path, dot in zip(other.given, dots, strict=True):
            part = own[path[0]]
            for place in path[1:]:
                items = part.elts if isinstance(part, ast.Tuple) else getattr(part, "args", [])
                part = items[place]
            if self.reading.is_zero(dot):
                continue
            if not isinstance(dot, ast.Name) or not isinstance(part, ast.Name):
                raise self.wrong("it gets what is no tangent", node)
            if self.reading.stem(dot.id) != part.id:
                raise self.wrong(f"it gets {dot.id} for the tangent of {part.id}", node)

    def check_results(self, node: ast.AST, other: TangentCode, target: ast.Tuple) -> None:
        """Refuse tangents assigned to the names of other results."""
        value, given = other.results()
        parts = list(map(name_of, results_of(value)))
        names = list(map(name_of, leaves(target.elts[0])))
        dots = list(map(name_of, leaves(target.elts[1])))
        if len(dots) != len(given):
            raise self.wrong("it does not take the tangents that it is given", node)
        for name, dot in zip(dots, given, strict=True):
            if not isinstance(dot, ast.Name) or len(parts) != len(names):
                continue
            place = names.index(self.reading.stem(name)) if self.reading.stem(name) in names else -1
            if place < 0 or other.cotangents.of(parts[place]) != dot.id:
                raise self.wrong(f"{name} is the tangent of another result", node)

    def shown_by(
        self, summary: Summary, own: list[ast.expr], event: Event, target: ast.Tuple
    ) -> dict[str, tuple[Handle, Handle]]:
        """Return the results that are views of arguments, with their tangents."""
        found: dict[str, tuple[Handle, Handle]] = {}
        results = leaves(target.elts[0])
        for place, leaf in enumerate(results):
            kind = summary.results[place] if summary.results else None
            for position, of in summary.classes.items():
                if of != kind or position >= len(own):
                    continue
                array = self.walk.handle(own[position])
                dot = self.tangent_of(own[position])
                if array is not None and dot is not None and isinstance(leaf, ast.Name):
                    step = ("result", event.number, place)
                    found[leaf.id] = array.view(step), dot.view(step)
                    break
        return found

    def tangent_of(self, node: ast.expr) -> Handle | None:
        found = self.walk.frame.get(self.dot_of(node.id)) if isinstance(node, ast.Name) else None
        return found if isinstance(found, Handle) else None

    def change(
        self,
        node: ast.AST,
        event: Event,
        summary: Summary,
        own: list[ast.expr],
        given: list[Source],
    ) -> None:
        """Process the changes that a call makes to the elements of its arguments."""
        changes: list[tuple[Handle, Map]] = []
        event.passed = []
        written = [n.id for k in summary.writes if k < len(own) for n in names_in(own[k])]
        for name in dict.fromkeys(written):
            own_dot = self.dot_of(name)
            value, dot = self.walk.frame.get(name), self.walk.frame.get(own_dot)
            if not isinstance(value, Handle):
                continue
            self.reading.versions[value.memory] = self.reading.versions.get(value.memory, 0) + 1
            if isinstance(dot, Handle) and any(source.name == own_dot for source in given):
                event.parts.append(name)
                event.passed.append(value)
                changes.append((dot, self.passed(event, changed(name), given, node)))
            elif isinstance(dot, Handle) and own_dot in self.checked.reads:
                raise self.wrong(f"it writes {name} and not its tangent", node)
        for dot, found in changes:
            self.reading.contents.add(dot, found)
