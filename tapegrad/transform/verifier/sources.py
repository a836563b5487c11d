"""The cotangents or tangents that expressions of derivative code read."""

from __future__ import annotations

import ast
from typing import NamedTuple

from tapegrad.transform.verifier.code import called, calls, module_call
from tapegrad.transform.verifier.events import Contents, Event, Handle
from tapegrad.transform.verifier.linear import Map
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

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.bars, self.suffix, self.facts = walk.bars, walk.suffix, walk.facts
        self.maps, self.wrong = walk.maps, walk.wrong
        self.numbers: dict[str, Map | Helper] = {}
        self.contents = Contents(self.maps)

    def number(self, name: str, node: ast.AST) -> Map | Helper:
        found = self.numbers.get(name)
        if found is None:
            raise self.wrong(f"{name} is read where it has no value", node)
        return found

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
        inner: ast.expr = node
        while not isinstance(inner, ast.Name):
            if isinstance(inner, ast.Subscript):
                inner = inner.value
            elif (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr in ("copy", "reshape", "ravel", "flatten", "transpose")
            ):
                inner = inner.func.value
            elif isinstance(inner, ast.Attribute) and inner.attr == "T":
                inner = inner.value
            else:
                return None
        name = inner.id
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
        if isinstance(node, ast.UnaryOp):
            found = self.sign(node.operand)
            return -found if isinstance(node.op, ast.USub) else found
        if isinstance(node, ast.Attribute) and node.attr == "real":
            return self.sign(node.value)  # the cotangent of a real operand
        if isinstance(node, ast.Call) and node.args:
            if (called(node) or module_call(node)[1]) in _SUMS:
                return self.sign(node.args[-1])
        return 0
