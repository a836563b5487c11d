"""What is pushed onto the tape is popped: in reverse order, on every path, in every iteration.

The tape is tracked symbolically. A block pushes a sequence of items; the item of a branch or loop
contains the sequences of its blocks. Items have to be popped from the end, each in the way in which
it was pushed: a branch under the same condition, a loop in as many iterations. Numbers on the tape
are identified by value number, so a pop determines the value of a name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from tapegrad.transform.nodes import is_number
from tapegrad.transform.syntax import callee_of
from tapegrad.transform.verifier.code import POPS, called, calls, is_in, nodes_of, noted, walk


@dataclass(frozen=True)
class Kept:
    """A value on the tape: its name, its value number, and whether it is kept as raw bits."""

    name: str
    value: int
    bits: bool = False


@dataclass(frozen=True)
class Numbers:
    """Numbers that were pushed together."""

    values: tuple[Kept, ...]


@dataclass(frozen=True)
class Array:
    """An array, and its type: a reference to it, or its elements in a version of its contents."""

    kept: Kept
    kind: Hashable
    contents: tuple[Any, ...]


@dataclass(frozen=True)
class Called:
    """The items that a forward function pushed."""

    pair: str
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Branch:
    """The items that the sides of a branch pushed."""

    condition: int
    then: tuple[Item, ...]
    orelse: tuple[Item, ...]


@dataclass(frozen=True)
class Turns:
    """The items that each iteration of a loop pushed."""

    loop: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class InRow:
    """A value in a row: its position, and the branches of the iteration that keeps it.

    Branches are conditions with the side that was taken.
    """

    kept: Kept
    position: int
    facts: frozenset[tuple[int, bool]]

    def excludes(self, other: InRow) -> bool:
        """Whether no iteration keeps both values."""
        return any((condition, not side) in other.facts for condition, side in self.facts)


@dataclass(frozen=True)
class Rows:
    """A part of the tape with rows that have a position for every iteration of a loop.

    What iterations keep in other branches excludes each other. A position is undefined for an
    iteration that takes none of them.
    """

    loop: int
    trips: int
    rows: tuple[tuple[InRow, ...], ...]


Item = Numbers | Array | Called | Branch | Turns | Rows


@dataclass
class Tape:
    """What is known of the tape at a point of a block.

    Attributes
    ----------
    items
        The items pushed in the block, or those that it still has to pop.
    room
        How many numbers fit.
    reserved
        For variables that hold a future top: the number of rows, their length, and whether they
        fit.
    slots
        Numbers that are written but not pushed yet.
    taken
        Numbers that were popped last.
    rows
        Rows that were popped last.
    """

    items: list[Item] = field(default_factory=list)
    room: int = 0
    reserved: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    slots: dict[int, Kept] = field(default_factory=dict)
    taken: Numbers | None = None
    rows: Rows | None = None

    def moved(self) -> None:
        """Forget what holds only for the previous position of the top."""
        self.room, self.reserved, self.taken, self.rows = 0, {}, None, None

    def inside(self, items: list[Item]) -> Tape:
        """Return the state at the start of an inner block."""
        return Tape(items, reserved=dict(self.reserved), rows=self.rows)

    def copy(self) -> Tape:
        return replace(
            self, items=list(self.items), reserved=dict(self.reserved), slots=dict(self.slots)
        )


@noted
def mentions(node: ast.AST) -> bool:
    """Whether code uses the tape (cached)."""
    return any(is_in(n, ("tape", "top")) for n in nodes_of(node))


def pops(body: list[ast.stmt], is_reverse: Callable[[str], bool]) -> bool:
    """Whether code pops anything from the tape."""
    for statement in walk(body):
        match statement:
            case ast.AugAssign(ast.Name("top"), ast.Sub()):
                return True
            case ast.Assign(_, value):
                if calls(value, POPS) or (is_reverse(called(value)) and mentions(statement)):
                    return True
    return False


def place(index: ast.expr) -> tuple[int, ast.expr | None, ast.expr | None] | None:
    """Parse the position of a number on the tape.

    Returns an offset only, or the number of a row, the length of a row (None for the first row) and
    the position in the row; None if it is neither.
    """
    match index:
        case ast.Name("top"):
            return 0, None, None
        case ast.BinOp(ast.Name("top"), ast.Add(), ast.Constant(number)) if type(number) is int:
            return number, None, None
        case ast.BinOp(ast.Name("top"), ast.Add(), turn):
            return 0, None, turn
        case ast.BinOp(ast.BinOp(ast.Name("top"), ast.Add(), rows), ast.Add(), turn):
            count, length = rows_of(rows)
            return (count, length, turn) if length is not None else None
    return None


def rows_of(node: ast.expr) -> tuple[int, ast.expr | None]:
    """Parse ``2 * trips`` or ``trips``."""
    match node:
        case ast.Name():
            return 1, node
        case ast.BinOp(ast.Constant(int(count)), ast.Mult(), ast.Name() as length):
            return count, length
    return 0, None


def kept_value(node: ast.expr) -> tuple[str, bool] | None:
    """Return the name that is written to the tape, and whether as raw bits."""
    match node:
        case ast.Name(name):
            return name, False
        case ast.Call(ast.Attribute(ast.Name("runtime"), "to_bits"), [ast.Name(name)]):
            return name, True
    return None


# conversions of values read to integers of other types and to members of enumerations
_OF_BITS = {f"np.{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_OF_BITS.add("runtime.member")
_OF_NUMBERS = ("runtime.from_bits", "np.float32", "np.float16")


def read_value(node: ast.expr) -> tuple[ast.expr, bool] | None:
    """Return the position that a value is read from, and whether as raw bits."""
    match node:
        case ast.Compare(inner, [ast.NotEq()], [zero]) if is_number(zero, 0):
            found = read_value(inner)
            return found if found is not None and found[1] else None
        case ast.Call(_, [*_, inner]) if callee_of(node) in _OF_BITS:
            found = read_value(inner)
            return found if found is not None and found[1] else None
        case ast.Call(_, [ast.Subscript(ast.Name("tape"), index)]):
            name = callee_of(node)
            return (index, name == "runtime.from_bits") if name in _OF_NUMBERS else None
        case ast.Subscript(ast.Name("tape"), index):
            return index, False
    return None
