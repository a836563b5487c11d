"""Stores to arrays, each with a store to the array of tangents."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from tapegrad.transform.syntax import text_of
from tapegrad.transform.verifier.code import POPS, PUSHES, called, module_call, names_in
from tapegrad.transform.verifier.events import Event, Handle, Number, Value
from tapegrad.transform.verifier.linear import ZERO, negative, total
from tapegrad.transform.verifier.sources import Helper
from tapegrad.transform.verifier.tangent_reading import TangentReading, same
from tapegrad.transform.verifier.walk import WHOLE


class TangentStores(TangentReading):
    """The part that processes stores, and the tape of a gradient."""

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
            self.versions[memory] = self.versions.get(memory, 0) + 1
            if found.stored.memory in self.constant:
                raise self.wrong("an array without tangents is written", self.code.body[0])
            self.stores.append(found)
        return found

    def simple(self, node: ast.stmt) -> None:
        is_cotangent = self.cotangents.is_cotangent(node)
        value = getattr(node, "value", None)
        reads = {} if value is None or is_cotangent else self.read(value)
        first = len(self.events)
        super().simple(node)
        if not is_cotangent:
            for event in self.events[first:]:
                self.readings[event.number] = reads

    def read(self, node: ast.AST) -> dict[str, tuple[Value, int]]:
        found = {}
        for name in names_in(node):
            value = self.frame.get(name.id)
            if value is not None:
                found[name.id] = (value, self.version(value))
        return found

    def assign(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        if not isinstance(value, ast.Call) or module_call(value) not in PUSHES | POPS:
            super().assign(node)
        elif isinstance(target, ast.Tuple):
            self.use_tape(target, value)
        else:  # values without tangent are on both tapes
            assert isinstance(target, ast.Name)
            self.set_value(target.id, Number(self.fresh()))
            self.tops[target.id] = self.place_on_tape(value)

    def use_tape(self, target: ast.Tuple, call: ast.Call) -> None:
        """Process a push or pop of an array, which is treated as a part of the tape.

        The tape remains the same array.
        """
        tape, top = (leaf.id for leaf in target.elts if isinstance(leaf, ast.Name))
        step = self.place_on_tape(call)
        found = self.handle(call.args[0])
        assert found is not None
        if step[0] == "push":
            self.store(call.args[0], step, call.args[2], False)
        else:
            found = found.view(step)
        self.set_value(tape, found)
        self.set_value(top, Number(self.fresh()))
        self.tops[top] = step

    def place_on_tape(self, call: ast.Call) -> tuple[Hashable, ...]:
        function = (module_call(call) or ("", ""))[1]
        kind = "pop" if ("runtime", function) in POPS else "push"
        return kind, self.key(call.args[1]), text_of(call.args[-1])

    def store(
        self, base: ast.expr, step: Hashable, value: ast.expr, is_lost: bool, sign: int = 1
    ) -> None:
        first = len(self.events)
        super().store(base, step, value, is_lost, sign)
        has_tangent = isinstance(value, ast.Name) and value.id + self.suffix in self.bars
        while isinstance(base, ast.Subscript):
            base = base.value
        name = base.id if isinstance(base, ast.Name) else ""
        is_read = name + self.suffix in self.checked.reads or name + self.suffix in self.kept
        if is_read and (is_lost or has_tangent):
            self.wanted.update((event.number, name) for event in self.events[first:])

    def effect(self, call: ast.Call) -> None:
        base, step, is_lost = self.addition(call)
        if base is not None and base + self.suffix in self.bars:
            self.store(call.args[0], step, call.args[-1], is_lost)
        else:
            super().effect(call)

    def addition(self, call: ast.Call) -> tuple[str | None, Hashable, bool]:
        """Return the array that a call adds its last argument to, or assigns it to.

        Also return the step to the elements, and whether their old values are lost.
        """
        module = module_call(call)
        function = called(call) if module is None else module[1] if module[0] == "arrays" else None
        if function is None or not call.args or not isinstance(call.args[0], ast.Name):
            return None, None, False
        base = call.args[0].id
        if function.startswith("assign_"):
            return base, self.step(WHOLE), True
        return base, (function, *map(self.key, call.args[1:-1])), False

    # -- stores of tangents -------------------------------------------------------------------

    def store_tangent(self, node: ast.stmt, target: ast.expr, value: ast.expr, sign: int) -> None:
        handle = self.handle(target.value) if isinstance(target, ast.Subscript) else None
        base = target
        while isinstance(base, ast.Subscript):
            base = base.value
        if handle is None or not isinstance(base, ast.Name):
            raise self.wrong("a store that no pass knows", node)
        assert isinstance(target, ast.Subscript)
        self.write(node, base.id, handle, self.step(target.slice), value, sign)

    def write(
        self,
        node: ast.stmt,
        base: str,
        handle: Handle,
        step: Hashable,
        value: ast.expr,
        sign: int,
    ) -> None:
        """Process a store to an array of tangents, which belongs to a store of the function."""
        steps = (*handle.steps, step)
        event = self.pending(handle, steps)
        if event is None:
            raise self.wrong(f"no element of {self.stem(base)} is stored that it goes with", node)
        self.stores.remove(event)
        found = ZERO
        sources = self.sources(value)
        if not sources and not self.is_zero(value):
            raise self.wrong("what is stored is no tangent", node)
        for _, name, given, _ in sources:
            operand = event.operands.get(self.stem(name))
            plain = sign * self.sign(value)
            if operand is None or not same(operand.value, self.frame.get(self.stem(name))):
                raise self.wrong(f"{self.stem(name)} is not what the function stores", node)
            if isinstance(given, Helper) or not plain:
                raise self.wrong("a factor where the tangent goes on as it is", node)
            found = total(found, given if plain > 0 else negative(given))
        shown = handle.view(step)
        if event.is_lost:
            self.contents.clear(shown)
        self.contents.add(shown, found)

    def pending(self, handle: Handle, steps: tuple[Hashable, ...]) -> Event | None:
        """Return the last store of the function that matches a store of tangents."""
        for event in reversed(self.stores):
            stored = event.stored
            assert stored is not None
            if stored.steps == steps and self.shadows.get(stored.memory) is handle.memory:
                return event
        return None

    def call_for_effect(self, node: ast.stmt, call: ast.Call) -> None:
        base, step, _ = self.addition(call)
        handle = None if base is None else self.frame.get(base)
        if base is None or not isinstance(handle, Handle):
            raise self.wrong("a call that no pass knows", node)
        self.write(node, base, handle, step, call.args[-1], 1)

    def add_whole(self, node: ast.stmt, target: ast.Name, value: ast.expr, sign: int) -> None:
        """Process ``x_dot += y``: a store, or a sum that is broadcast to an array."""
        handle = self.frame.get(target.id)
        if not isinstance(handle, Handle):
            raise self.wrong("a tangent is changed that is no array", node)
        if self.pending(handle, (*handle.steps, self.step(WHOLE))) is not None:
            self.write(node, target.id, handle, self.step(WHOLE), value, sign)
            return
        if sign < 0:
            raise self.wrong("a tangent is changed where its array is not", node)
        self.contents.add(handle, self.gain(value, self.stem(target.id), node))

    def keep_tangent(self, node: ast.stmt, target: ast.Tuple, call: ast.Call) -> None:
        """Process a push or pop of an array of tangents on the tape of tangents."""
        tape, top = (leaf.id for leaf in target.elts if isinstance(leaf, ast.Name))
        step = self.check_top(node, top, call)
        base = call.args[0]
        found = self.handle(base)
        assert found is not None
        assert isinstance(base, ast.Name)
        if step[0] == "push":
            kept = call.args[2]
            event = self.pending(found, (*found.steps, step))
            if isinstance(kept, ast.Name) and event is not None and kept.id in event.operands:
                kept = ast.Constant(0.0)  # values without tangent are on both tapes
            self.write(node, base.id, found, step, kept, 1)
        else:
            found = found.view(step)
        self.set_value(tape, found)
        value = self.frame.get(self.stem(tape))
        assert isinstance(value, Handle)
        self.pair(value, found, tape, node)

    def check_top(self, node: ast.stmt, top: str, call: ast.Call) -> tuple[Hashable, ...]:
        """Return the position on the tape of tangents, which has to equal that on the tape."""
        step = self.place_on_tape(call)
        if self.tops.get(top) != step:
            raise self.wrong("the tape of tangents is used in another way than the tape", node)
        return step

    def check_stores(self, node: ast.AST) -> None:
        """Refuse stores without the matching store of tangents."""
        for event in self.stores:
            if event.number in self.wanted:
                name = self.wanted[event.number]
                raise self.wrong(f"an element of {name} is stored, and no tangent of it", node)
