"""What is pushed onto the tape is popped: in reverse order, on every path, in every iteration.

The tape is tracked symbolically. A block pushes a sequence of items; the item of a branch or loop
contains the sequences of its blocks. Items have to be popped from the end, each in the way in which
it was pushed: a branch under the same condition, a loop in as many iterations. Numbers on the tape
are identified by value number, so a pop determines the value of a name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tapegrad.transform.syntax import text_of
from tapegrad.transform.verifier.code import POPS, is_in, module_call, nodes_of, walk


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
    kind: str
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


def mentions(node: ast.AST) -> bool:
    """Whether code uses the tape."""
    found: bool | None = getattr(node, "_mentions", None)
    if found is None:
        found = any(is_in(n, ("tape", "top")) for n in nodes_of(node))
        vars(node)["_mentions"] = found
    return found


def pops(body: list[ast.stmt], is_reverse: Callable[[str], bool]) -> bool:
    """Whether code pops anything from the tape."""
    for statement in walk(body):
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Sub):
            if isinstance(statement.target, ast.Name) and statement.target.id == "top":
                return True
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            func = statement.value.func
            if module_call(statement.value) in POPS:
                return True
            if isinstance(func, ast.Name) and is_reverse(func.id) and mentions(statement):
                return True
    return False


def place(index: ast.expr) -> tuple[int, ast.expr | None, ast.expr | None] | None:
    """Parse the position of a number on the tape.

    Returns an offset only, or the number of a row, the length of a row (None for the first row) and
    the position in the row; None if it is neither.
    """
    if isinstance(index, ast.Name) and index.id == "top":
        return 0, None, None
    if not isinstance(index, ast.BinOp) or not isinstance(index.op, ast.Add):
        return None
    left, turn = index.left, index.right
    if isinstance(left, ast.Name) and left.id == "top":
        if isinstance(turn, ast.Constant) and type(turn.value) is int:
            return turn.value, None, None
        return 0, None, turn
    if not isinstance(left, ast.BinOp) or not isinstance(left.op, ast.Add):
        return None
    if not isinstance(left.left, ast.Name) or left.left.id != "top":
        return None
    count, length = rows_of(left.right)
    return (count, length, turn) if length is not None else None


def rows_of(node: ast.expr) -> tuple[int, ast.expr | None]:
    """Parse ``2 * trips`` or ``trips``."""
    if isinstance(node, ast.Name):
        return 1, node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        if isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Name):
            count: Any = node.left.value
            return int(count), node.right
    return 0, None


def kept_value(node: ast.expr) -> tuple[str, bool] | None:
    """Return the name that is written to the tape, and whether as raw bits."""
    if isinstance(node, ast.Name):
        return node.id, False
    if isinstance(node, ast.Call) and text_of(node.func) == "runtime.to_bits":
        if len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            return node.args[0].id, True
    return None


# conversions of values read to integers of other types and to members of enumerations
_OF_BITS = {f"np.{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_OF_BITS.add("runtime.member")


def read_value(node: ast.expr) -> tuple[ast.expr, bool] | None:
    """Return the position that a value is read from, and whether as raw bits."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        zero = node.comparators[0]
        if isinstance(node.ops[0], ast.NotEq) and _is_zero(zero):
            found = read_value(node.left)
            return found if found is not None and found[1] else None
        return None
    bits = False
    if isinstance(node, ast.Call) and text_of(node.func) in _OF_BITS:
        found = read_value(node.args[-1])
        return found if found is not None and found[1] else None
    if isinstance(node, ast.Call) and len(node.args) == 1:
        name = text_of(node.func)
        if name == "runtime.from_bits":
            bits = True
        elif name not in ("np.float32", "np.float16"):
            return None
        node = node.args[0]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        if node.value.id == "tape":
            return node.slice, bits
    return None


def _is_zero(node: Any) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == 0
