"""Value numbering: equal operations on equal values have equal numbers."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field
from typing import Any

from tapegrad.transform.verifier.code import (
    POPS,
    Code,
    called,
    makes_named_tuple,
    method_of,
    module_call,
    names_in,
)
from tapegrad.transform.verifier.cotangents import Cotangents
from tapegrad.transform.verifier.memory import SHAPE, SHAPE_CALLS, Memory
from tapegrad.transform.verifier.summary import Summary
from tapegrad.transform.verifier.tape import InRow, Item, Tape

_PURE = frozenset(vars(builtins)) - {"input", "print", "open", "next", "iter"}


@dataclass
class Needs:
    """The parameters and forward results whose elements a reverse function reads."""

    params: set[int] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)  # parameters that it does not read at all
    results: set[int] = field(default_factory=set)
    # parameters that are given results of the forward function: their positions, by each other
    handed: dict[int, int] = field(default_factory=dict)


@dataclass
class Turned:
    """A loop of the forward code."""

    number: int
    path: tuple[int, ...]  # the enclosing loops
    index: str | None
    index_value: int
    bounds: tuple[ast.expr, ast.expr, ast.expr] | None
    values: tuple[int, int, int] | None  # of the bounds
    trips: int | None  # the value number of the trip count, as reservations compute it
    items: tuple[Item, ...] = ()
    rows: dict[int, list[InRow]] = field(default_factory=dict)
    known: frozenset[int] = frozenset()  # conditions that were decided before the loop
    # what was counted and kept at each break
    breaks: list[tuple[set[str], tuple[Item, ...]]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)
    # versions of the arrays that belong to an iteration, at its end and at each break
    final: dict[str, int] = field(default_factory=dict)
    left: list[dict[str, int]] = field(default_factory=list)
    is_claimed: bool = True
    node: ast.stmt | None = None


@dataclass
class State:
    """The value numbers of names and of the contents of arrays at a point."""

    values: dict[str, int]
    contents: dict[str, int]

    def copy(self) -> State:
        return State(dict(self.values), dict(self.contents))


@dataclass
class Place:
    """Where a pass is.

    Attributes
    ----------
    tape
        What is on the tape.
    loops
        The loops of the forward code so far, by number.
    path
        The numbers of the enclosing ones.
    frames, tapes
        The enclosing loops, None for those of reverse code, and the tape in each.
    """

    tape: Tape = field(default_factory=Tape)
    loops: dict[int, Turned] = field(default_factory=dict)
    path: tuple[int, ...] = ()
    frames: list[Turned | None] = field(default_factory=list)
    tapes: list[Tape] = field(default_factory=list)


class Numbering:
    """The numbers of the values of one function, or of a forward function and its reverse.

    Parameters
    ----------
    forward
        The forward function, None if the function holds both halves.
    code
        The function.
    summaries
        The summaries of all functions of the module.
    """

    def __init__(self, forward: Code | None, code: Code, summaries: dict[str, Summary]) -> None:
        self.code = code
        self.codes = [code] if forward is None else [forward, code]
        self.summaries = summaries
        self.cotangents = Cotangents(self.codes)
        self.bars = self.cotangents.names
        self.is_known = bool(self.bars)
        self.memory = Memory(self.codes, summaries, self.cotangents)
        self.numbers: dict[Any, int] = {}
        # parts of complex numbers and tuples: the position, the number of parts, and the whole
        self.parts: dict[int, tuple[int, int, int]] = {}
        # elements taken from the tape: their array, and the version of its contents
        self.elements: dict[int, tuple[int, tuple[Any, ...]]] = {}
        self.classes: set[int] = set()  # results of ``type(x)``
        self.joins: dict[int, tuple[int, int | None, int | None]] = {}
        self.facts: dict[int, bool] = {}
        self.canon: dict[str, int] = {}
        self.readings: dict[str, dict[str, int]] = {}
        self.reading: dict[str, int] = {}
        # what reverse code has read of arrays before the forward code, by the name it computes
        self.awaited: dict[str, list[tuple[str, int, ast.stmt]]] = {}
        self.read_classes: set[str] = set()
        self.in_reverse = False
        self.current: Code  # the function that is processed, and its names
        self.local: set[str]
        self.state = State({}, {})

    # -- numbers ------------------------------------------------------------------------------

    def number(self, *key: Any) -> int:
        """Return the number of a key."""
        return self.numbers.setdefault(key, len(self.numbers))

    def new(self) -> int:
        """Return a new number."""
        return self.number("new", len(self.numbers))

    def join(self, cond: int, one: int | None, two: int | None) -> int:
        """Return the number of a value selected from two by a condition."""
        if one == two and one is not None:
            return one
        found = self.number("join", cond, one, two)
        self.joins[found] = (cond, one, two)
        return found

    def resolved(self, value: int | None) -> int | None:
        """Return the number of a value, given the conditions known on this path."""
        while value in self.joins:
            cond, one, two = self.joins[value]
            if cond not in self.facts:
                break
            side = one if self.facts[cond] else two
            if side is None:
                break
            value = side
        return value

    def version(self, names: list[str]) -> tuple[Any, ...]:
        """Return the versions of arrays, and note that they are read."""
        found = []
        for of in sorted({self.memory.of(n) for n in names if n not in self.bars}):
            current = self.contents(of)
            found.append((of, current))
            self.reading[of] = current
            if self.in_reverse:
                self.read_classes.add(of)
        return tuple(found)

    def contents(self, of: str) -> int:
        """Return the version of the elements of an alias class."""
        found = self.resolved(self.state.contents.get(of, -1))
        assert found is not None
        return found

    def handle(self, node: ast.expr) -> int:
        """Return the number of a value, ignoring the elements of arrays."""
        match node:
            case ast.Name(id=name):
                found = self.named(name)
                return self.elements[found][0] if found in self.elements else found
            case ast.Subscript(base, index):
                return self.number("view", self.handle(base), self.value(index))
            case ast.Attribute(base, name):
                return self.number("attribute", name, self.handle(base))
            case ast.Tuple(items):
                whole = self.joined_tuple(node)
                return self.number("tuple", *map(self.handle, items)) if whole is None else whole
            case ast.IfExp(test, one, other):
                return self.number("choice", self.value(test), self.handle(one), self.handle(other))
            case ast.Call() if self.is_pure(node):
                return self.call(node, self.handle)
        return self.value(node)

    def named(self, name: str) -> int:
        if name not in self.local:
            return self.number("global", name)
        found = self.resolved(self.state.values.get(name))
        return self.new() if found is None else found

    def value(self, node: ast.expr) -> int:
        """Return the number of a value, including the elements of arrays."""
        match node:
            case ast.Name(id=name):
                found = self.named(name)
                if found in self.elements:
                    array, contents = self.elements[found]
                    self.reading.update(contents)
                    return self.number("content", array, contents)
                if name not in self.memory.arrays:
                    return found
                return self.number("content", found, self.version([name]))
            case ast.Constant(constant):
                return self.number("constant", type(constant).__name__, repr(constant))
            case ast.Subscript(base, index):
                parts = (self.handle(base), self.value(index))
                of = self.named(base.id) if isinstance(base, ast.Name) else -1
                if of in self.elements:
                    self.reading.update(contents := self.elements[of][1])
                    return self.number("item", *parts, contents)
                return self.number("item", *parts, self.version(self.memory.shared(base)))
            case ast.Attribute(base, name):
                of = (self.handle if name in SHAPE else self.value)(base)
                found = self.number("attribute", name, of)
                if name in ("real", "imag"):
                    self.parts[found] = (int(name == "imag"), 2, of)
                return found
            case ast.Call():
                return self.returned(node)
            case ast.Tuple():
                whole = self.joined_tuple(node)
                if whole is not None:
                    return whole
        fields: list[int | str] = []
        for name, part in ast.iter_fields(node):
            if name == "ctx":
                continue
            for one in part if isinstance(part, list) else [part]:
                if isinstance(one, ast.expr):
                    fields.append(self.value(one))
                else:
                    fields.append(type(one).__name__ if isinstance(one, ast.AST) else repr(one))
        return self.number(type(node).__name__, *fields)

    def returned(self, node: ast.Call) -> int:
        """Return the number of what a call returns."""
        name = called(node)
        if name == "complex":
            whole = self.joined([self.value(part) for part in node.args])
            if whole is not None:
                return whole
        if not self.is_pure(node):
            if not self.cotangents.is_reverse(name):  # its reads are known
                for argument in node.args:
                    self.value(argument)
            return self.new()
        is_shape = name == "len" or module_call(node)[1] in SHAPE_CALLS
        made = self.call(node, self.handle if is_shape else self.value)
        if name == "type":
            self.classes.add(made)
        return made

    def joined(self, parts: list[int]) -> int | None:
        """Return the number of a whole that is rebuilt from all its parts, None otherwise."""
        found = [self.parts.get(part) for part in parts]
        whole = found[0][2] if found and found[0] is not None else -1
        expected = [(k, len(found), whole) for k in range(len(found))]
        return whole if whole >= 0 and found == expected else None

    def joined_tuple(self, node: ast.Tuple) -> int | None:
        """Return the number of a tuple that is rebuilt from all its parts, None otherwise."""
        return self.joined([self.handle(part) for part in node.elts])

    def is_pure(self, node: ast.Call) -> bool:
        """Whether a call returns the same for the same arguments."""
        name = called(node)
        if makes_named_tuple(node):
            return True
        if name:
            if name in self.local:
                return self.named(name) in self.classes
            if name.endswith("stop_gradient"):  # it copies arrays
                return not any(n.id in self.memory.arrays for n in names_in(node))
            return name in _PURE or name in self.code.pure
        found = module_call(node)
        is_tape = found in POPS or found[1] in ("take_tape", "take_owned_tape")
        return "random" not in found[0] and not is_tape

    def call(self, node: ast.Call, of: Any) -> int:
        base: Any = called(node) or module_call(node)
        if base in self.local:
            base = ("class", self.named(base))
        if method := method_of(node):
            base = (method[1], of(method[0]))
        named = tuple((k.arg, of(k.value)) for k in node.keywords)
        return self.number("call", base, tuple(map(of, node.args)), named)

    def wrong(self, what: str, node: ast.AST) -> Exception:
        return self.current.wrong(what, node)

    def assigned(self, name: str, value: int) -> None:
        """Assign a value to a name."""
        if name in self.bars:
            return
        self.state.values[name] = value
        if name not in self.canon:
            self.canon[name] = value
            self.readings[name] = dict(self.reading)
            for of, version, node in self.awaited.pop(name, ()):
                if self.reading.get(of, version) != version:
                    what = f"elements of {of} are read before the forward code writes them"
                    raise self.wrong(what, node)
