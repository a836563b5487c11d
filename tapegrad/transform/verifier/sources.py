"""The cotangents or tangents that expressions of derivative code read."""

from __future__ import annotations

import ast
from typing import NamedTuple

from tapegrad.transform.verifier.code import called, calls, module_call, sign_of
from tapegrad.transform.verifier.events import Contents, Event, Handle
from tapegrad.transform.verifier.linear import Map, negative
from tapegrad.transform.verifier.memory import SHAPE, SHAPE_CALLS
from tapegrad.transform.verifier.walk import Walk

_SUMS = ("sum", "float32", "float64", "float", "sum_numbered")


class Helper:
    """A value computed from cotangents of results, from which those of operands are computed."""

    def __init__(self, event: Event, value: Map) -> None:
        self.event, self.value = event, value


class Source(NamedTuple):
    """A cotangent or tangent that is read: its name, its value, and whether it is only a part."""

    name: str
    value: Map | Helper
    is_part: bool


class Sources:
    """The cotangents or tangents at each point of a walk."""

    kind: str  # "cotangent" or "tangent"

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.bars, self.cotangents, self.facts = walk.bars, walk.cotangents, walk.facts
        self.maps, self.wrong = walk.maps, walk.wrong
        self.numbers: dict[str, Map | Helper] = {}
        self.contents = Contents(self.maps)

    def number(self, name: str, node: ast.AST) -> Map | Helper:
        found = self.numbers.get(name)
        if found is None:
            raise self.wrong(f"{name} is read where it has no value", node)
        return found

    def unscaled(self, value: Map, sign: int, node: ast.AST) -> Map:
        """Return a cotangent or tangent that goes on as it is, with a sign."""
        if not sign:
            raise self.wrong(f"a factor where the {self.kind} goes on as it is", node)
        return value if sign > 0 else negative(value)

    def sources(self, node: ast.expr) -> list[Source]:
        """Return the cotangents or tangents that an expression reads."""
        found = self.source(node)
        if found is not None:
            return [found]
        if isinstance(node, ast.Attribute) and node.attr in SHAPE:
            return []
        if module_call(node)[1] in SHAPE_CALLS:
            return []
        return [
            source
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
            for source in self.sources(child)
        ]

    def source(self, node: ast.expr) -> Source | None:
        while calls(node, [("runtime", "moved")]):
            node = node.args[0]  # or what stands for 0, if others are not 0
        name = _shown(node)
        if name not in self.bars:
            return None
        handle = self.walk.frame.get(name)
        if isinstance(handle, Handle):
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                node = node.func.value
            shown = self.walk.handle(node)
            if shown is None:
                return Source(name, self.contents.read(handle), False)
            return Source(name, self.contents.read(shown), not isinstance(node, ast.Name))
        return Source(name, self.number(name, node), False)

    def sign(self, node: ast.expr) -> int:
        """Return 1 or -1 if an expression is a cotangent or minus a cotangent, else 0."""
        if self.source(node) is not None:
            return 1
        match node:
            case ast.UnaryOp(ast.UAdd() | ast.USub() as op, operand):
                return sign_of(op) * self.sign(operand)
            case ast.Attribute(base, "real"):
                return self.sign(base)  # the cotangent of a real operand
            case ast.Call(_, [*_, last]) if (called(node) or module_call(node)[1]) in _SUMS:
                return self.sign(last)
        return 0


def _shown(node: ast.expr) -> str:
    """Return the name that a part or a copy is of, "" for other expressions."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Subscript(base) | ast.Attribute(base, "T"):
            return _shown(base)
        case ast.Call(ast.Attribute(base, "copy" | "reshape" | "ravel" | "flatten" | "transpose")):
            return _shown(base)
    return ""
