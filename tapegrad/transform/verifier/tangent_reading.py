"""The tangents that statements of forward mode read, and the tangents that follow."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator

from tapegrad.transform.facts import NEW_METHODS
from tapegrad.transform.nodes import integer
from tapegrad.transform.syntax import leaves
from tapegrad.transform.verifier.code import ZEROS, called, module_call, names_in, sign_of
from tapegrad.transform.verifier.events import (
    Event,
    ExpectedTangents,
    Handle,
    Memory,
    Number,
    Operand,
    Value,
)
from tapegrad.transform.verifier.linear import ZERO, Map, negative, product, total
from tapegrad.transform.verifier.memory import shape_only
from tapegrad.transform.verifier.sources import Helper, Source, Sources
from tapegrad.transform.verifier.walk import Walk

# functions that map zeros to zeros, with the arguments that have to be zero
_LINEAR: dict[str, Callable[[list[ast.expr]], list[ast.expr]]] = {
    **dict.fromkeys(
        ("concatenate", "stack", "hstack", "vstack", "dstack", "column_stack"),
        lambda args: leaves(args[0]),
    ),
    **dict.fromkeys(("copy", "ascontiguousarray", "atleast_1d", "repeat"), lambda args: args[:1]),
    "where": lambda args: args[1:],
}
_KEEP_ZEROS = NEW_METHODS - {"argsort", "clip"}  # methods that make zeros of zeros
_NUMBERS = ("float32", "float64", "complex64", "complex128", "complex", "float")


class TangentReading(Sources):
    """The tangents at each point, and those that follow from the function.

    Parameters
    ----------
    walk
        The walk.
    """

    kind = "tangent"

    def __init__(self, walk: Walk) -> None:
        super().__init__(walk)
        self.expected = ExpectedTangents(self.maps)
        self.of: dict[str, Value] = {}  # the values that tangents of numbers belong to
        self.helpers: dict[str, list[Source]] = {}
        self.shadows: dict[Memory, Memory] = {}
        self.names: dict[Memory, str] = {}  # a name of each array with tangents
        self.shown: set[Memory] = set()  # arrays of tangents
        self.constant: set[Memory] = set()  # arrays without tangents, which are never written
        self.versions: dict[Memory, int] = {}
        self.readings: dict[int, dict[str, tuple[Value, int]]] = {}
        self.given: list[tuple[str, Number, Map]] = []  # all tangents of numbers
        self.now: dict[str, Value] = {}  # values that the current statement assigns together
        self.parts = walk.cotangents.parts  # names of parts of tangents, and what they belong to

    def stem(self, name: str) -> str:
        """Return the name that a tangent belongs to; "" for other values."""
        stem = self.parts.get(name) or self.cotangents.values.get(name, "")
        return stem if stem in self.facts.primal else ""

    def current(self, name: str) -> Value | None:
        return self.now.get(name) or self.walk.frame.get(name)

    def number(self, name: str, node: ast.AST) -> Map | Helper:
        found = super().number(name, node)
        if self.stem(name) and self.of[name] is not self.walk.frame.get(self.stem(name)):
            raise self.wrong(f"{name} is read where it is the tangent of another value", node)
        return found

    def source(self, node: ast.expr) -> Source | None:
        found = super().source(node)
        if found is not None:
            frame = self.walk.frame
            value, handle = frame.get(self.stem(found.name)), frame.get(found.name)
            if isinstance(value, Handle) and isinstance(handle, Handle):
                self.pair(value, handle, found.name, node)
        return found

    def pair(self, value: Handle, handle: Handle, name: str, node: ast.AST) -> None:
        """Refuse an array of tangents that belongs to a different array."""
        if value.memory in self.constant:
            return
        if value.steps != handle.steps:
            raise self.wrong(f"{name} does not show what {self.stem(name)} shows", node)
        known = self.shadows.get(value.memory)
        if known is None:
            if handle.memory in self.shown:
                raise self.wrong(f"{name} is shared with the tangent of another array", node)
            self.shadows[value.memory] = handle.memory
            self.names[value.memory] = self.stem(name)
            self.shown.add(handle.memory)
        elif known is not handle.memory:
            raise self.wrong(f"{name} is not the tangent of all names of the array", node)

    def is_zero(self, node: ast.expr) -> bool:
        """Whether an expression is visibly zero."""
        module, name = module_call(node)
        match node:
            case ast.Constant(0):
                return True
            case ast.UnaryOp(ast.UAdd() | ast.USub(), operand):
                return self.is_zero(operand)
            case ast.Call() if (module, name) in ZEROS:
                return True
            case ast.Call(_, given) if module == "np" and name in _LINEAR:
                parts = _LINEAR[name](given)
                return bool(parts) and all(map(self.is_zero, parts))
            case ast.Call(ast.Attribute(base, method)) if method in _KEEP_ZEROS:
                return self.is_zero(base)
            case ast.Call(_, given) if (called(node) or name) in _NUMBERS:
                return bool(given) and all(map(self.is_zero, given))
        return False

    def gain(self, node: ast.expr, stem: str, statement: ast.AST) -> Map:
        """Return the tangent that an expression assigns to a name."""
        value = self.current(stem)
        found = ZERO
        for sign, term in _terms(node, 1):
            scaled = self.scaled(term, value, statement)
            if scaled is not None:
                found = total(found, scaled if sign > 0 else negative(scaled))
                continue
            sources, plain = self.read_by(term, value, statement)
            if not sources and not self.is_zero(term):
                raise self.wrong(f"what is added to the tangent of {stem} is no tangent", statement)
            if sources and isinstance(value, (Number, Handle)) and value.event is not None:
                self.check_reads(term, value.event, statement)
            for name, given, _ in sources:
                assert not isinstance(given, Helper)
                change = self.edge(value, name, given, sign * plain, statement)
                found = total(found, change)
        return found

    def scaled(self, term: ast.expr, value: Value | None, node: ast.AST) -> Map | None:
        """Return a slope times the tangent that a recurrence starts from; None for other terms."""
        match term:
            case ast.BinOp(ast.Name(id=slope), ast.Mult(), ast.Name(id=dot)):
                if slope not in self.parts or dot not in self.bars:
                    return None
                if not same(value, self.walk.frame.get(self.stem(slope))):
                    raise self.wrong(f"{slope} is the slope of another value", node)
                one, two = self.number(slope, node), self.number(dot, node)
                assert not isinstance(one, Helper)
                assert not isinstance(two, Helper)
                return product(one, two)
        return None

    def read_by(
        self, term: ast.expr, value: Value | None, node: ast.AST
    ) -> tuple[list[Source], int]:
        """Return the tangents that a term reads, and the sign if it is a tangent itself.

        An item of a helper reads the tangents that the helper reads.
        """
        match term:
            case ast.Subscript(ast.Name(id=helper), place) if helper in self.helpers:
                if value is None or integer(place) != value.place:
                    raise self.wrong("the tangent of another result", node)
                return self.helpers[helper], 0
        return self.sources(term), self.sign(term)

    def edge(
        self, value: Value | None, name: str, given: Map, sign: int, statement: ast.AST
    ) -> Map:
        """Return the contribution of the tangent of an operand to that of a result."""
        stem = self.stem(name)
        source = self.walk.frame.get(stem)
        if value is None:
            raise self.wrong("a tangent of what has no value", statement)
        if same(value, source):
            return self.unscaled(given, sign, statement)
        if value.event is None:
            raise self.wrong(f"{name} is no tangent of what its value is made from", statement)
        return self.through(value.event, value.place, name, given, sign, statement)

    def through(
        self, event: Event, place: Hashable, name: str, given: Map, sign: int, node: ast.AST
    ) -> Map:
        stem = self.stem(name)
        source = self.walk.frame.get(stem)
        operand = event.operands.get(stem)
        if operand is None:
            known = self.readings.get(event.number, {}).get(stem)
            if known is None:
                what = f"{stem} is no operand of what made the value whose tangent it goes to"
                raise self.wrong(what, node)
            operand = event.operands[stem] = Operand(known[0], -1)
        if not _of_one(operand.value, source):
            raise self.wrong(f"{stem} is not what it was at the operation", node)
        part = name if name in self.parts else ""  # each part has all terms
        count = event.used.get((place, stem, part), 0)
        event.used[place, stem, part] = count + 1
        event.used[place, stem] = max(event.used.get((place, stem), 0), count + 1)
        if operand.sign:
            return self.unscaled(given, sign, node)
        return product(self.maps.of(event.number, place, stem, count), given)

    def check_reads(self, node: ast.expr, event: Event, statement: ast.AST) -> None:
        """Refuse values that are not those that the operation read or made."""
        known = self.readings.get(event.number)
        if known is None:
            return
        free = shape_only(node)
        for read in names_in(node):
            name = read.id
            if name in self.bars or name not in self.facts.primal or id(read) in free:
                continue
            value = self.walk.frame.get(name)
            if value is None or known.get(name) == (value, self.version(value)):
                continue
            if not any(value is result for result in event.results):
                what = f"{name} is not what it was at the operation, or no part of it"
                raise self.wrong(what, statement)
            if self.version(value):
                raise self.wrong(f"{name} was written since the operation", statement)

    def read(self, node: ast.AST) -> dict[str, tuple[Value, int]]:
        found = {}
        for name in names_in(node):
            value = self.walk.frame.get(name.id)
            if value is not None:
                found[name.id] = (value, self.version(value))
        return found

    def version(self, value: Value) -> int:
        return self.versions.get(value.memory, 0) if isinstance(value, Handle) else 0

    def set_value(self, name: str, value: Value) -> None:
        self.walk.frame.set(name, value)

    def set_number(self, name: str, found: Map | Helper, value: Value | None) -> None:
        self.numbers[name] = found
        if value is not None:
            self.of[name] = value
        if isinstance(value, Number) and name not in self.parts:
            assert not isinstance(found, Helper)
            self.given.append((self.stem(name), value, found))


def _terms(node: ast.expr, sign: int) -> Iterator[tuple[int, ast.expr]]:
    """Yield the terms of a sum."""
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            yield from _terms(left, sign)
            yield from _terms(right, sign * sign_of(op))
        case ast.UnaryOp(ast.UAdd() | ast.USub() as op, operand):
            yield from _terms(operand, sign * sign_of(op))
        case _:
            yield sign, node


def same(one: Value | None, other: Value | None) -> bool:
    """Whether two values are identical, or equal views of one array."""
    if isinstance(one, Handle) and isinstance(other, Handle):
        return one.memory is other.memory and one.steps == other.steps
    return one is other and one is not None


def _of_one(one: Value | None, other: Value | None) -> bool:
    """Whether two values are identical, or views of one array."""
    if isinstance(one, Handle) and isinstance(other, Handle):
        return one.memory is other.memory
    return one is other
