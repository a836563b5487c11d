"""The cotangents that reverse code reads, and its contributions to others."""

from __future__ import annotations

import ast

from tapegrad.transform.syntax import text_of
from tapegrad.transform.verifier.cotangents import SEED
from tapegrad.transform.verifier.events import Event, Expected, Value
from tapegrad.transform.verifier.linear import ONE, ZERO, Map, negative, product, total
from tapegrad.transform.verifier.sources import Helper, Sources
from tapegrad.transform.verifier.walk import Walk


class Reading(Sources):
    """The cotangents at each point, and those that follow from the forward code.

    Parameters
    ----------
    walk
        The walk.
    """

    def __init__(self, walk: Walk) -> None:
        super().__init__(walk)
        self.expected = Expected(self.maps)
        self.seeds: list[tuple[Value | str, Map]] = []
        self.are_seeded = False  # otherwise seeds belong to the names that they are first added to
        self.slopes = {n for n in self.bars if n.endswith("_slope")}
        self.scales = {n.removesuffix("_slope") + self.suffix for n in self.slopes}

    def stem(self, name: str) -> str:
        """Return the name that a cotangent belongs to; "" for other values."""
        if name in self.slopes:
            return name.removesuffix("_slope")
        stem = name.removesuffix(self.suffix)
        return stem if stem != name and stem in self.facts.primal else ""

    def gain(self, node: ast.expr, target: str, statement: ast.stmt) -> Map:
        """Return what an expression adds to the cotangent of a name."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.BinOp):
            inner = node.operand  # the scale of a recurrence comes before the sign
            if isinstance(inner.left, ast.Name) and inner.left.id in self.scales:
                node = ast.BinOp(inner.left, inner.op, ast.UnaryOp(node.op, inner.right))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            left = node.left
            if isinstance(left, ast.Name) and left.id in self.scales and self.sources(node.right):
                scale = self.number(left.id, statement)
                assert not isinstance(scale, Helper)
                return product(self.gain(node.right, target, statement), scale)
        found = self.sources(node)
        if not found:
            return self.constant(node, target, statement)
        sign = self.sign(node)
        if len(found) == 1:
            name, value, is_part = found[0]
            stem = self.stem(name)
            if SEED.match(name) and sign > 0 and not isinstance(value, Helper):
                if not self.are_seeded:
                    self.seeds.append((target, value))
                return value
            if isinstance(value, Helper):
                return self.edge(value.event, [(0, value.value)], target, sign, statement)
            is_copy = self.facts.is_copy(stem, target)
            if (is_copy and sign) or is_part or not stem:
                if not sign:
                    raise self.wrong("a factor where the cotangent goes on as it is", statement)
                return value if sign > 0 else negative(value)
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
        text = text_of(node)
        if text in ("0.0", "-0.0", "0j"):
            return ZERO
        if text == "1.0":
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
                if not sign:
                    raise self.wrong("a factor where the cotangent goes on as it is", statement)
                change = value if sign > 0 else negative(value)
            else:
                change = product(self.maps.of(event.number, place, target, count), value)
            found = total(found, change)
        return found
