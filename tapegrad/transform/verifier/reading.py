"""The cotangents that reverse code reads, and its contributions to others."""

from __future__ import annotations

import ast

from tapegrad.transform.ir import Role
from tapegrad.transform.trees import is_code
from tapegrad.transform.verifier.code import is_in
from tapegrad.transform.verifier.events import Event, Expected, Value
from tapegrad.transform.verifier.linear import ONE, ZERO, Map, product, total
from tapegrad.transform.verifier.sources import Helper, Sources
from tapegrad.transform.verifier.walk import Walk


class Reading(Sources):
    """The cotangents at each point, and those that follow from the forward code.

    Parameters
    ----------
    walk
        The walk.
    """

    kind = "cotangent"

    def __init__(self, walk: Walk) -> None:
        super().__init__(walk)
        self.expected = Expected(self.maps)
        self.seeds: list[tuple[Value | str, Map]] = []
        self.are_seeded = False  # otherwise seeds belong to the names that they are first added to
        self.slopes = self.cotangents.slopes
        self.scales = set(map(self.cotangents.of, self.slopes.values()))

    def stem(self, name: str) -> str:
        """Return the name that a cotangent belongs to; "" for other values."""
        if name in self.slopes:
            return self.slopes[name]
        stem = self.cotangents.values.get(name, "")
        return stem if stem in self.facts.primal else ""

    def gain(self, node: ast.expr, target: str, statement: ast.stmt) -> Map:
        """Return what an expression adds to the cotangent of a name."""
        match node:
            case ast.UnaryOp(minus, ast.BinOp(left, op, right)) if is_in(left, self.scales):
                # the scale of a recurrence comes before the sign
                node = ast.BinOp(left, op, ast.UnaryOp(minus, right))
        match node:
            case ast.BinOp(ast.Name(id=factor), ast.Mult(), right) if factor in self.scales:
                if self.sources(right):
                    scale = self.number(factor, statement)
                    assert not isinstance(scale, Helper)
                    return product(self.gain(right, target, statement), scale)
        found = self.sources(node)
        if not found:
            return self.constant(node, target, statement)
        sign = self.sign(node)
        if len(found) == 1:
            name, value, is_part = found[0]
            stem = self.stem(name)
            if (
                self.cotangents.has_role(name, Role.SEED)
                and sign > 0
                and not isinstance(value, Helper)
            ):
                if not self.are_seeded:
                    self.seeds.append((target, value))
                return value
            if isinstance(value, Helper):
                return self.edge(value.event, [(0, value.value)], target, sign, statement)
            is_copy = self.facts.is_copy(stem, target)
            if (is_copy and sign) or is_part or not stem:
                return self.unscaled(value, sign, statement)
        events = []
        values: list[tuple[int, Map]] = []
        for name, value, is_part in found:
            made = self.walk.frame.get(self.stem(name))
            if made is None or made.event is None or is_part or isinstance(value, Helper):
                raise self.wrong(f"{name} is no cotangent of what an operation makes", statement)
            events.append(made.event)
            values.append((made.place, value))
        if any(event is not events[0] for event in events):
            raise self.wrong("cotangents of the results of several operations in one", statement)
        return self.edge(events[0], values, target, sign, statement)

    def constant(self, node: ast.expr, target: str, statement: ast.stmt) -> Map:
        if any(is_code(node, zero) for zero in ("0.0", "-0.0", "0j")):
            return ZERO
        if is_code(node, "1.0"):
            if self.walk.frame.outer is not None:
                return ONE  # the start of the slope of a recurrence
            self.seeds.append((target, ONE))
            return ONE
        raise self.wrong(f"it adds what is no cotangent to that of {target}", statement)

    def edge(
        self,
        event: Event,
        values: list[tuple[int, Map]],
        target: str,
        sign: int,
        statement: ast.stmt,
    ) -> Map:
        """Return the contribution of cotangents of results to that of an operand."""
        operand = event.operands.get(target)
        if operand is None:
            what = f"{target} is no operand of what made the value whose cotangent goes to it"
            raise self.wrong(what, statement)
        event.taken.update(place for place, _ in values)
        count = event.used.get(target, 0)
        event.used[target] = count + 1
        found = ZERO
        for place, value in values:
            if operand.sign:
                change = self.unscaled(value, sign, statement)
            else:
                change = product(self.maps.of(event.number, place, target, count), value)
            found = total(found, change)
        return found
