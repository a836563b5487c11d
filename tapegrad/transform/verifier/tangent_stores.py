"""Stores to arrays, each with a store to the array of tangents."""

from __future__ import annotations

import ast
from collections.abc import Hashable

from tapegrad.transform.syntax import text_of
from tapegrad.transform.verifier.code import POPS, base_of, called, calls, module_call, names_among
from tapegrad.transform.verifier.events import Event, Handle, Number
from tapegrad.transform.verifier.linear import ZERO, negative, total
from tapegrad.transform.verifier.sources import Helper
from tapegrad.transform.verifier.tangent_reading import TangentReading, same
from tapegrad.transform.verifier.walk import WHOLE, Walk


class TangentStores:
    """The stores of a walk, and its use of the tape of a gradient.

    Parameters
    ----------
    walk
        The walk.
    reading
        The tangents.

    Attributes
    ----------
    open
        Those whose tangents are not stored yet.
    wanted
        Those that need a tangent, by number, with the names of the arrays.
    kept
        Tangents that forward code made and kept on the tape.
    tops
        Positions on the tape, and how they were computed.
    """

    def __init__(self, walk: Walk, reading: TangentReading) -> None:
        self.walk, self.reading = walk, reading
        self.wrong = walk.wrong
        self.open: list[Event] = []
        self.wanted: dict[int, str] = {}
        self.kept: set[str] = set()
        self.tops: dict[str, Hashable] = {}

    def use_tape(self, target: ast.Tuple, call: ast.Call) -> None:
        """Process a push or pop of an array, which is treated as a part of the tape.

        The tape remains the same array.
        """
        tape, top = names_among(target.elts)
        step = self.place_on_tape(call)
        found = self.walk.handle(call.args[0])
        assert found is not None
        if step[0] == "push":
            self.walk.store(call.args[0], step, call.args[2], False)
        else:
            found = found.view(step)
        self.reading.set_value(tape, found)
        self.reading.set_value(top, Number(self.walk.outcomes.fresh()))
        self.tops[top] = step

    def place_on_tape(self, call: ast.Call) -> tuple[Hashable, ...]:
        kind = "pop" if calls(call, POPS) else "push"
        return kind, self.walk.outcomes.key(call.args[1]), text_of(call.args[-1])

    def addition(self, call: ast.Call) -> tuple[str | None, Hashable, bool]:
        """Return the array that a call adds its last argument to, or assigns it to.

        Also return the step to the elements, and whether their old values are lost.
        """
        module = module_call(call)
        function = called(call) or (module[1] if module[0] == "arrays" else "")
        if not function or not call.args or not isinstance(call.args[0], ast.Name):
            return None, None, False
        base = call.args[0].id
        if function.startswith("assign_"):
            return base, self.walk.step(WHOLE), True
        return base, (function, *map(self.walk.outcomes.key, call.args[1:-1])), False

    # -- stores of tangents -------------------------------------------------------------------

    def store_tangent(self, node: ast.stmt, target: ast.expr, value: ast.expr, sign: int) -> None:
        handle = self.walk.handle(target.value) if isinstance(target, ast.Subscript) else None
        base = base_of(target)
        if handle is None or not isinstance(base, ast.Name):
            raise self.wrong("a store that no pass knows", node)
        assert isinstance(target, ast.Subscript)
        self.write(node, base.id, handle, self.walk.step(target.slice), value, sign)

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
            raise self.wrong(
                f"no element of {self.reading.stem(base)} is stored that it goes with", node
            )
        self.open.remove(event)
        found = ZERO
        sources = self.reading.sources(value)
        if not sources and not self.reading.is_zero(value):
            raise self.wrong("what is stored is no tangent", node)
        for name, given, _ in sources:
            operand = event.operands.get(self.reading.stem(name))
            plain = sign * self.reading.sign(value)
            if operand is None or not same(
                operand.value, self.walk.frame.get(self.reading.stem(name))
            ):
                raise self.wrong(f"{self.reading.stem(name)} is not what the function stores", node)
            if isinstance(given, Helper) or not plain:
                raise self.wrong("a factor where the tangent goes on as it is", node)
            found = total(found, given if plain > 0 else negative(given))
        shown = handle.view(step)
        if event.is_lost:
            self.reading.contents.clear(shown)
        self.reading.contents.add(shown, found)

    def pending(self, handle: Handle, steps: tuple[Hashable, ...]) -> Event | None:
        """Return the last store of the function that matches a store of tangents."""
        for event in reversed(self.open):
            stored = event.stored
            assert stored is not None
            if stored.steps == steps and self.reading.shadows.get(stored.memory) is handle.memory:
                return event
        return None

    def call_for_effect(self, node: ast.stmt, call: ast.Call) -> None:
        base, step, _ = self.addition(call)
        handle = None if base is None else self.walk.frame.get(base)
        if base is None or not isinstance(handle, Handle):
            raise self.wrong("a call that no pass knows", node)
        self.write(node, base, handle, step, call.args[-1], 1)

    def add_whole(self, node: ast.stmt, target: ast.Name, value: ast.expr, sign: int) -> None:
        """Process ``x_dot += y``: a store, or a sum that is broadcast to an array."""
        handle = self.walk.frame.get(target.id)
        if not isinstance(handle, Handle):
            raise self.wrong("a tangent is changed that is no array", node)
        if self.pending(handle, (*handle.steps, self.walk.step(WHOLE))) is not None:
            self.write(node, target.id, handle, self.walk.step(WHOLE), value, sign)
            return
        if sign < 0:
            raise self.wrong("a tangent is changed where its array is not", node)
        self.reading.contents.add(
            handle, self.reading.gain(value, self.reading.stem(target.id), node)
        )

    def keep_tangent(self, node: ast.stmt, target: ast.Tuple, call: ast.Call) -> None:
        """Process a push or pop of an array of tangents on the tape of tangents."""
        tape, top = names_among(target.elts)
        step = self.check_top(node, top, call)
        base = call.args[0]
        found = self.walk.handle(base)
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
        self.reading.set_value(tape, found)
        value = self.walk.frame.get(self.reading.stem(tape))
        assert isinstance(value, Handle)
        self.reading.pair(value, found, tape, node)

    def check_top(self, node: ast.stmt, top: str, call: ast.Call) -> tuple[Hashable, ...]:
        """Return the position on the tape of tangents, which has to equal that on the tape."""
        step = self.place_on_tape(call)
        if self.tops.get(top) != step:
            raise self.wrong("the tape of tangents is used in another way than the tape", node)
        return step

    def check_stores(self, node: ast.AST) -> None:
        """Refuse stores without the matching store of tangents."""
        for event in self.open:
            if event.number in self.wanted:
                name = self.wanted[event.number]
                raise self.wrong(f"an element of {name} is stored, and no tangent of it", node)
