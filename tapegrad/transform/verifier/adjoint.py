"""The reverse code computes the cotangents that follow from the forward code.

Some paths through the code are drawn at random (`walk`). On each, the cotangents are computed
twice: by the statements of the reverse code, and from the operations of the forward code, from the
last to the first (`events`). Derivatives are random maps (`linear`): the map from the cotangent of
a result to that of an operand is the same in both. A contribution that is missing, repeated, out of
order or not cleared changes the cotangents of the arguments.
"""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform.ir import Role
from tapegrad.transform.syntax import array_of, is_zero
from tapegrad.transform.trees import is_code
from tapegrad.transform.verifier.calls import Calls, is_tape
from tapegrad.transform.verifier.code import (
    ZEROS,
    base_of,
    call_in,
    called,
    calls,
    module_call,
    name_of,
    named_pairs,
    names_among,
    names_in,
    names_of,
)
from tapegrad.transform.verifier.cotangents import TAPE
from tapegrad.transform.verifier.events import Event, Handle, Memory, Number, Value, joined
from tapegrad.transform.verifier.frames import Choices, go_ways
from tapegrad.transform.verifier.linear import ZERO, Map, product, total
from tapegrad.transform.verifier.memory import added_to
from tapegrad.transform.verifier.reading import Reading
from tapegrad.transform.verifier.sources import Helper
from tapegrad.transform.verifier.static import Static
from tapegrad.transform.verifier.walk import Walk


class Adjoint(Walk):
    """The comparison on one path."""

    def __init__(self, checked: Any, choices: Choices) -> None:
        super().__init__(checked, choices)
        self.reading = Reading(self)
        self.calls = Calls(self, self.reading)
        self.inputs: list[tuple[str, str]] = []
        self.made_in_reverse: list[Memory] = []  # of cotangents that reverse code makes again

    # -- the whole function -------------------------------------------------------------------

    def run(self) -> None:
        """Compare the cotangents of the arguments."""
        codes = self.checked.codes
        names = self.frame.names
        for code in codes:
            self.code = code
            for param in code.parameters:
                if param in TAPE or param in names:
                    continue
                if param not in self.bars:
                    names[param] = Handle(Memory()) if param in self.arrays else Number(param)
                elif self.cotangents.has_role(param, Role.SEED):
                    self.reading.numbers[param] = self.maps.of("seed", param)
        for name in self.facts.outside:
            names[name] = Handle(Memory())
        results: list[str] = []
        for place, code in enumerate(codes):
            self.code = code
            for param in code.parameters:
                stem = self.reading.stem(param)
                if stem and param not in names:
                    names[param] = Handle(Memory())
                    self.inputs.append((param, stem))
            self.block(code.body)
            if place + 1 < len(codes):
                results = names_among(self.returned)
        self.start(results)
        self.is_forward = False
        self.block(self.code.body)
        self.finish()

    def start(self, results: list[str]) -> None:
        """Seed the cotangents of arrays and of the numbers that are returned."""
        is_combined = len(self.checked.codes) == 1
        first, last = self.checked.codes[0].parameters, self.checked.codes[-1].parameters
        handed = set(last).difference(first)
        numbers = [n for n in results if n not in self.bars | self.arrays | handed | set(TAPE)]
        seeds = [p for p in last if self.cotangents.has_role(p, Role.SEED)]
        # otherwise some are integers
        if len(seeds) == len(numbers) and not is_combined:
            self.reading.are_seeded = True
            self.reading.seeds += [
                (self.frame.names[n], self.maps.of("seed", p))
                for n, p in zip(numbers, seeds, strict=True)
            ]
        for name in [*(n for n, _ in self.inputs), *results]:
            stem = self.reading.stem(name)
            handle, array = self.frame.get(name), self.frame.get(stem)
            if stem and isinstance(handle, Handle):
                seed = self.maps.of("array", name)
                self.reading.contents.add(handle, seed)
                if isinstance(array, Handle):
                    self.reading.seeds.append((array, seed))

    def finish(self) -> None:
        names = self.frame.names
        for seeded, seed in self.reading.seeds:
            self.reading.expected.add(names[seeded] if isinstance(seeded, str) else seeded, seed)
        self.reading.expected.run(self.events)
        end = self.code.body[-1]
        # what the cotangents of results are afterwards does not matter
        params = {param for code in self.checked.codes for param in code.parameters}
        given = [n for n, stem in self.inputs if stem in params]
        for node in self.returned:
            given += [n.id for n in names_in(node) if n.id in self.bars]
        for name in dict.fromkeys(given):
            stem = self.reading.stem(name)
            value = names.get(stem)
            if value is None or (isinstance(value, Number) and name in names):
                continue
            if isinstance(value, Number):
                found = self.reading.number(name, end)
                found = found.value if isinstance(found, Helper) else found
            else:
                handle = names[name]
                if not isinstance(handle, Handle) or value.event is not None:
                    continue
                found = self.reading.contents.read(handle)
            if found != self.reading.expected.get(value):
                raise self.wrong(f"{name} is not what follows from the forward code", end)

    # -- statements ---------------------------------------------------------------------------

    def note_call(self, event: Event, node: ast.expr, results: list[str]) -> None:
        super().note_call(event, node, results)
        self.calls.frames_of[event.number] = self.frame

    def cotangent(self, node: ast.stmt) -> None:
        call = call_in(node)
        function = called(call)
        if call is not None and self.cotangents.is_forward(function):
            if self.is_forward:
                self.calls.forward_call(node, call, function)
        elif self.is_forward:
            if isinstance(node, ast.Assign):
                self.make_shadows(node)
        elif call is not None and self.cotangents.is_reverse(function):
            self.calls.reverse_call(node, call, function)
        else:
            match node:
                case ast.Assign():
                    self.assign_cotangents(node)
                case ast.AugAssign():
                    self.add_cotangent(node)
                case ast.Expr() if call is not None:
                    self.added(node, call)

    def assign_cotangents(self, node: ast.Assign) -> None:
        match node.targets[0], node.value:
            case ast.Tuple(), ast.Call() as call if any(map(is_tape, names_in(call))):
                pass  # popped from the tape, so known
            case ast.Tuple(targets), ast.Tuple(values):
                self.assign_together(node, targets, values)
            case ast.Tuple() as target, value:
                self.help(node, names_of(target), value)
            case ast.Subscript() as target, value:
                handle = self.handle(target)
                if handle is None:
                    raise self.wrong("a store that no pass knows", node)
                if not is_zero(value):
                    raise self.wrong("a cotangent is overwritten by something else than zero", node)
                self.reading.contents.clear(handle)
            case ast.Name() as target, value:
                self.assign_together(node, [target], [value])

    def assign_together(
        self, node: ast.Assign, targets: list[ast.expr], values: list[ast.expr]
    ) -> None:
        numbers: list[tuple[str, Map | Helper]] = []
        self.make_shadows(node)
        for target, value in zip(targets, values, strict=True):
            assert isinstance(target, ast.Name)
            name = target.id
            if name not in self.bars or isinstance(self.frame.get(name), Handle):
                continue
            if array_of(value) == "tape":
                continue
            if self.reading.stem(name):
                numbers.append((name, self.reading.gain(value, self.reading.stem(name), node)))
            else:
                self.help(node, [name], value)
        self.reading.numbers.update(numbers)

    def make_shadows(self, node: ast.Assign) -> None:
        """Process assignments that make arrays of cotangents, and of their arrays."""
        found: list[tuple[str, Value]] = []
        for name, value in named_pairs(node):
            if name in self.frame.own:
                again = self._made_again(name, value)
                if again is not None:
                    self.frame.replace(name, again)
                    self.frame.carried.add(name)
                continue
            if name not in self.bars:
                if self.is_forward:
                    found.append((name, self.value(name, value)))
                continue
            handle = self.shadow(name, value)
            if handle is not None:
                found.append((name, handle))
        for name, made in found:
            self.frame.set(name, made)
            if not self.is_forward:
                self.frame.carried.add(name)

    def _made_again(self, name: str, value: ast.expr) -> Handle | None:
        """Return an array of cotangents that reverse code makes after a forward function did.

        It is another array, of which the caller of the forward function knows nothing, or a view of
        one. None for other values.
        """
        if len(self.checked.codes) == 1 or self.is_forward or name in self.frame.carried:
            return None
        made = self.shadow(name, value)
        if calls(value, ZEROS) and made is not None:
            self.made_in_reverse.append(made.memory)
        return made if made is not None and made.memory in self.made_in_reverse else None

    def shadow(self, name: str, value: ast.expr) -> Handle | None:
        """Return the array of cotangents that an expression evaluates to, None for a number."""
        stem = self.reading.stem(name)
        if not stem:
            return None
        if calls(value, ZEROS):
            return Handle(Memory())
        return self.handle(value) if stem in self.arrays else None

    def help(self, node: ast.stmt, names: list[str], value: ast.expr) -> None:
        """Process an intermediate value that several operands use."""
        if calls(value, [("arrays", "taken")]):
            base, places, clear = value.args
            handle = self.handle(base)
            if handle is None or not isinstance(places, ast.Subscript):
                raise self.wrong("a store that no pass knows", node)
            handle = handle.view(self.step(places.slice))
            self.reading.numbers[names[0]] = self.reading.contents.read(handle)
            if is_code(clear, "True"):
                self.reading.contents.clear(handle)
            return
        found = self.reading.sources(value)
        if (
            len(found) == 1
            and self.reading.sign(value) > 0
            and not isinstance(found[0].value, Helper)
        ):
            self.reading.numbers.update(dict.fromkeys(names, found[0].value))
            return
        event: Event | None = None
        values: dict[int, Map] = {}
        for name, given, is_part in found:
            made = self.frame.get(self.reading.stem(name))
            if made is None or made.event is None or is_part or isinstance(given, Helper):
                raise self.wrong(f"{name} is no cotangent of what an operation makes", node)
            if event is not None and event is not made.event:
                raise self.wrong("cotangents of the results of several operations in one", node)
            event = made.event
            values[made.place] = total(values.get(made.place, ZERO), given)
        if event is None:
            raise self.wrong("it is computed from no cotangent", node)
        event.joined = True
        event.silent = {k for k, r in enumerate(event.results) if not self.has_cotangent(r)}
        together = [values.get(k, ZERO) for k in range(len(event.results))]
        helper = Helper(event, joined(self.maps, event, together))
        self.reading.numbers.update(dict.fromkeys(names, helper))

    def add_cotangent(self, node: ast.AugAssign) -> None:
        target, value = node.target, node.value
        match node.op, target:
            case ast.Sub(), _:
                value = ast.UnaryOp(ast.USub(), value)
            case (ast.Add(), _) | (ast.Mult(), ast.Name()):
                pass
            case _:
                raise self.wrong("an operation on cotangents that no pass knows", node)
        if isinstance(target, ast.Subscript):
            base, handle = name_of(base_of(target)), self.handle(target)
            if handle is None or not base:
                raise self.wrong("a store that no pass knows", node)
            change = self.reading.gain(value, self.reading.stem(base), node)
            self.reading.contents.add(handle, change)
            return
        assert isinstance(target, ast.Name)
        name = target.id
        if isinstance(node.op, ast.Mult):
            slope = name_of(value)
            stem = self.cotangents.values.get(name)
            if slope not in self.reading.slopes or self.reading.slopes[slope] != stem:
                raise self.wrong("a product that is no slope", node)
            one, two = self.reading.number(slope, node), self.reading.number(name, node)
            assert not isinstance(one, Helper)
            assert not isinstance(two, Helper)
            self.reading.numbers[name] = product(one, two)
            return
        change = self.reading.gain(value, self.reading.stem(name), node)
        known = self.frame.get(name)
        if isinstance(known, Handle):
            self.reading.contents.add(known, change)
            return
        before = self.reading.number(name, node)
        assert not isinstance(before, Helper)
        self.reading.numbers[name] = total(before, change)

    def has_cotangent(self, value: Value | None) -> bool:
        """Whether any name of a value has a cotangent."""
        names = self.frame.names.items()
        return any(found is value and self.cotangents.of(name) for name, found in names)

    def added(self, node: ast.Expr, call: ast.Call) -> None:
        """Process a call that adds to the cotangent of an array."""
        module = module_call(call)
        if module[0] != "arrays":
            if module[1] == "give_tape":
                return
            raise self.wrong("a call that no pass knows", node)
        if module[1] == "mark_zeros":
            return  # what it adds to zeros is not part of the derivative
        position = added_to(module)
        first = call.args[position]
        handle = self.handle(first)
        if handle is None or not isinstance(first, ast.Name):
            if isinstance(first, ast.Call):
                return  # cotangents that are not read
            raise self.wrong("a call that no pass knows", node)
        whole: ast.expr = call.args[-1]
        if not module[1].startswith("add_"):
            others = [a for k, a in enumerate(call.args) if k != position]
            whole = ast.Call(call.func, others, [])
        self.reading.contents.add(
            handle, self.reading.gain(whole, self.reading.stem(first.id), node)
        )


def compare(checked: Any, differentiated: set[str]) -> None:
    """Check some paths through a function, or through a forward function and its reverse."""
    checked.static = Static(checked, differentiated)
    go_ways(checked.codes, lambda choices: Adjoint(checked, choices).run())
