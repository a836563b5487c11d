"""The code of forward mode computes the tangents that follow from the function in it.

Some paths through the code are drawn at random (`walk`). On each, the tangents are computed twice:
by the statements for tangents, and from the operations of the function, in order (`events`).
Derivatives are random maps (`linear`), the same in both. A contribution that is missing, repeated
or out of order changes the tangents of the result or of the final contents of arguments.

A tangent has to belong to the current value of its name, and has to be computed from the values
that the operation read; each array has exactly one array of tangents, which it does not share.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator

from tapegrad.transform.syntax import key_of
from tapegrad.transform.verifier.code import (
    POPS,
    PUSHES,
    Code,
    base_of,
    calls,
    is_in,
    name_of,
    named_pairs,
    names_in,
    pairs_in,
    results_of,
    sign_of,
)
from tapegrad.transform.verifier.events import Event, Handle, Memory, Number, Value
from tapegrad.transform.verifier.forward_names import Facts, TangentCode, find_arrays
from tapegrad.transform.verifier.frames import Choices, go_ways
from tapegrad.transform.verifier.linear import ONE, ZERO, Map
from tapegrad.transform.verifier.purpose import Half
from tapegrad.transform.verifier.pushforward import check_pushforward
from tapegrad.transform.verifier.sources import Helper
from tapegrad.transform.verifier.summary import Summary
from tapegrad.transform.verifier.tangent_calls import TangentCalls
from tapegrad.transform.verifier.tangent_reading import TangentReading, same
from tapegrad.transform.verifier.tangent_stores import TangentStores
from tapegrad.transform.verifier.walk import Walk


class Tangents(Walk):
    """The comparison on one path.

    Parameters
    ----------
    checked
        The function.
    choices
        The random choices.
    others
        All functions of forward mode, by name.
    """

    def __init__(
        self, checked: TangentCode, choices: Choices, others: dict[str, TangentCode]
    ) -> None:
        super().__init__(checked, choices)
        self.reading = TangentReading(self)
        self.stores = TangentStores(self, self.reading)
        self.calls = TangentCalls(self, self.reading, self.stores, others)

    # -- the whole function -------------------------------------------------------------------

    def run(self) -> None:
        """Compare the tangents of the result, and the final ones of arguments."""
        names = self.frame.names
        for param in self.checked.own:
            names[param] = self.value_of(param)
        for name in self.facts.outside:
            names[name] = Handle(Memory())
        for part in self.checked.parts:
            if part in names:
                self.give(part, names[part])
        self.block(self.code.body)
        self.finish()

    def value_of(self, name: str) -> Value:
        return Handle(Memory()) if name in self.arrays else Number(self.outcomes.fresh())

    def give(self, name: str, value: Value) -> None:
        """Register a part of the arguments that has a tangent."""
        seed = self.maps.of("seed", name)
        dot = self.cotangents.of(name)
        self.reading.expected.add(value, seed)
        if isinstance(value, Handle):
            handle = self.frame.names[dot] = Handle(Memory())
            self.reading.contents.add(handle, seed)
            self.reading.pair(value, handle, dot, self.code.body[0])
        else:
            self.reading.set_number(dot, seed, value)

    def finish(self) -> None:
        end = self.code.body[-1]
        self.stores.check_stores(end)
        result, dots = self.checked.results()
        rest = iter(results_of(result))
        found: list[tuple[str, Map]] = []
        for dot in dots:
            if is_in(dot, self.bars):
                given = self.reading.sources(dot)[0].value
                assert not isinstance(given, Helper)
                found += [
                    *self.skipped(self.reading.stem(dot.id), rest, end),
                    (self.reading.stem(dot.id), given),
                ]
            elif self.reading.is_zero(dot):
                zero = [n.id for n in names_in(dot) if n.id in self.facts.primal]
                found += self.skipped(zero[0] if zero else "", rest, end)
            else:
                raise self.wrong("it returns what is no tangent", end)
        found += [(name, ZERO) for name in map(name_of, rest) if name]
        self.reading.expected.run(self.events)
        for stem, given in found:
            if self.reading.expected.get(self.frame.get(stem)) != given:
                raise self.wrong(f"the tangent of {stem} is not what follows from the code", end)
        self.check_all(end)

    def check_all(self, end: ast.stmt) -> None:
        """Compare all tangents that are read, including those reached only through the tape."""
        wrong = [
            n
            for n, v, given in self.reading.given
            if self.reading.expected.numbers.get(v, ZERO) != given
        ]
        for array, shadow in self.reading.shadows.items():
            left = self.reading.expected.contents.known.get(array, ZERO)
            if left != self.reading.contents.known.get(shadow, ZERO):
                wrong.append(self.reading.names[array])
        for name in wrong:
            if self.cotangents.of(name) in self.checked.reads:
                raise self.wrong(f"the tangent of {name} is not what follows from the code", end)

    def skipped(self, stem: str, rest: Iterator[ast.expr], end: ast.stmt) -> list[tuple[str, Map]]:
        """Return the parts of the result before one with a tangent; their tangents are zero.

        Without a name, return the next part.
        """
        found: list[tuple[str, Map]] = []
        for leaf in rest:
            name = name_of(leaf)
            if name == stem and name:
                return found
            if name:
                found.append((name, ZERO))
            if not stem:
                return found
        raise self.wrong(f"the tangent of {stem} has no place in the result", end)

    # -- statements of the function -----------------------------------------------------------

    def is_of_tape(self, node: ast.AST) -> bool:
        return False  # in a differentiated gradient, the tape is an array like any other

    def is_room(self, node: ast.If) -> bool:
        return False

    def is_done(self, name: str) -> bool:
        return False

    def event(self, **given: object) -> Event:
        found = super().event(**given)
        if found.stored is not None:
            memory = found.stored.memory
            self.reading.versions[memory] = self.reading.versions.get(memory, 0) + 1
            if found.stored.memory in self.reading.constant:
                raise self.wrong("an array without tangents is written", self.code.body[0])
            self.stores.open.append(found)
        return found

    def simple(self, node: ast.stmt) -> None:
        is_cotangent = self.cotangents.is_cotangent(node)
        value = getattr(node, "value", None)
        reads = {} if value is None or is_cotangent else self.reading.read(value)
        first = len(self.events)
        super().simple(node)
        if not is_cotangent:
            for event in self.events[first:]:
                self.reading.readings[event.number] = reads

    def assign(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        if not calls(value, PUSHES | POPS):
            super().assign(node)
        elif isinstance(target, ast.Tuple):
            self.stores.use_tape(target, value)
        else:  # values without tangent are on both tapes
            assert isinstance(target, ast.Name)
            self.reading.set_value(target.id, Number(self.outcomes.fresh()))
            self.stores.tops[target.id] = self.stores.place_on_tape(value)

    def store(
        self, base: ast.expr, step: Hashable, value: ast.expr, is_lost: bool, sign: int = 1
    ) -> None:
        first = len(self.events)
        super().store(base, step, value, is_lost, sign)
        has_tangent = isinstance(value, ast.Name) and bool(self.cotangents.of(value.id))
        name = name_of(base_of(base))
        dot = self.cotangents.of(name)
        is_read = dot in self.checked.reads or dot in self.stores.kept
        if is_read and (is_lost or has_tangent):
            self.stores.wanted.update((event.number, name) for event in self.events[first:])

    def effect(self, call: ast.Call) -> None:
        base, step, is_lost = self.stores.addition(call)
        if base is not None and self.cotangents.of(base):
            self.store(call.args[0], step, call.args[-1], is_lost)
        else:
            super().effect(call)

    def value(self, target: str, node: ast.expr) -> Value:
        if target in self.checked.parts and target not in self.checked.own:
            made = self.value_of(target)
            self.give(target, made)
            return made
        if target in self.arrays and self.is_copy_of_passive(node):
            return self.made(target, self.event(operands={}))
        return super().value(target, node)

    def is_copy_of_passive(self, node: ast.expr) -> bool:
        """Whether elements of an array without tangents are gathered at an array of positions."""
        match node:
            case ast.Subscript(ast.Name(id=array), index) if not self.cotangents.of(array):
                return any(part.id in self.code.arrays for part in names_in(index))
        return False

    # -- statements for tangents --------------------------------------------------------------

    def cotangent(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                self.assign_tangents(node)
            case ast.AugAssign(ast.Name() as target, ast.Add() | ast.Sub() as op, value):
                self.stores.add_whole(node, target, value, sign_of(op))
            case ast.AugAssign(target, ast.Add() | ast.Sub() as op, value):
                self.stores.store_tangent(node, target, value, sign_of(op))
            case ast.AugAssign():
                raise self.wrong("a tangent is changed by something else than a sum", node)
            case ast.Expr(ast.Call() as call):
                self.stores.call_for_effect(node, call)
            case _:
                raise self.wrong("a statement that no pass knows", node)

    def assign_tangents(self, node: ast.Assign) -> None:
        match node.targets[0], node.value:
            case ast.Tuple() as target, ast.Call() as call:
                is_both = not self.calls.makes_tangents(target.elts[0])
                (self.calls.call if is_both else self.calls.several)(node, target, call)
            case ast.Subscript() as target, value:
                self.stores.store_tangent(node, target, value, 1)
            case ast.Name(id=name), value if name in self.stores.tops:
                assert isinstance(value, ast.Call)
                self.stores.check_top(node, name, value)
            case _:
                self.assign_together(node)

    def assign_together(self, node: ast.Assign) -> None:
        """Process the values and tangents that a statement assigns to names."""
        self.reading.now = {
            name: self.value(name, value)
            for name, value in named_pairs(node)
            if name not in self.bars
        }
        made: list[tuple[str, Map | Handle | Helper]] = []
        for target, expr in pairs_in(node):
            name = name_of(target)
            if not name:
                raise self.wrong("a store that no pass knows", node)
            if name in self.bars and not self.reading.stem(name):
                self.reading.helpers[name] = self.reading.sources(expr)
            elif name in self.bars:
                made.append((name, self.tangent(name, expr, node)))
        for name, new in self.reading.now.items():
            self.reading.set_value(name, new)
        for name, found in made:
            stem = self.reading.stem(name)
            if isinstance(found, Handle):
                self.reading.set_value(name, found)
                owner = self.reading.now.get(stem) or self.frame.get(stem)
                assert isinstance(owner, Handle)
                self.reading.pair(owner, found, name, node)
            else:
                self.reading.set_number(name, found, self.frame.get(stem))
        self.reading.now = {}

    def tangent(self, name: str, expr: ast.expr, node: ast.stmt) -> Map | Handle | Helper:
        """Return the tangent that an expression assigns to a name."""
        stem = self.reading.stem(name)
        value = self.reading.current(stem)
        if name in self.reading.parts and key_of(expr) == key_of(ast.Constant(1.0)):
            return ONE  # the slope of what a recurrence starts from
        if not isinstance(value, Handle):
            return self.reading.gain(expr, stem, node)
        shown = self.handle(expr)
        if shown is not None:
            self.reading.sources(expr)
            return shown
        if isinstance(expr, ast.Call) and self.reading.is_zero(expr):
            if value.memory not in self.reading.shadows and self.is_of_passive(value, expr):
                self.reading.constant.add(value.memory)
            return Handle(Memory())
        made = Handle(Memory())
        self.reading.contents.add(made, self.reading.gain(expr, stem, node))
        return made

    def is_of_passive(self, value: Handle, zero: ast.expr) -> bool:
        """Whether zeros are assigned as the tangent of an array without tangents, or of a view."""
        passive = [n.id for n in names_in(zero) if not self.cotangents.of(n.id)]
        return bool(value.steps) or any(same(value, self.frame.get(name)) for name in passive)


def verify_tangents(codes: list[Code], summaries: dict[str, Summary]) -> None:
    """Check the functions of forward mode.

    Raises
    ------
    InternalError
        With the function and the line.
    """
    made = [code for code in codes if code.primal and code.purpose.half is Half.TANGENT]
    others = {code.name: TangentCode(code, summaries) for code in made}
    find_arrays(others)
    for checked in others.values():
        checked.static = Facts(checked, set())

        def follow(choices: Choices, one: TangentCode = checked) -> None:
            Tangents(one, choices, others).run()

        go_ways(checked.codes, follow)
    for code in codes:
        if code.name not in others:
            check_pushforward(code, others)
