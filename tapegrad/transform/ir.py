"""The normal form of a function: structured single-assignment code.

Every expression is an operation on atoms (names or constants), every name is assigned in one
place, and control flow is nested blocks. Values are merged by name where paths meet: an `If` has
`Phi` entries, a `Loop` has `Carried` entries. Expressions are Python's own ``ast`` nodes, so the
normal form prints as Python: numba infers the types of the printed text, and generated code is
built from the same nodes.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tapegrad.transform.syntax import copied, identifier, subtree

Atom = ast.expr  # a Name or a Constant
Block = list[Any]  # of the statements below


class Role(enum.Enum):
    """What a name of generated code is to a value of the user's function."""

    COTANGENT = "its cotangent"
    SEED = "its cotangent, which the caller gives"
    PART = "a part of its cotangent, which a call returns"
    RETURNED = "several derivatives that one call returns, where it is computed"
    HANDED = "a number that the forward half which makes it hands over"
    KEPT = "a part of it, such as the real one, that is kept"
    TANGENT = "its tangent"
    SLOPE = "the derivative of the next value of a recurrence with respect to it"
    REST = "its tangent without the part that comes from the last value of a recurrence"


DERIVATIVES = frozenset([Role.COTANGENT, Role.TANGENT, Role.REST])
"""The roles of names that code for derivatives computes, each of a value that it has once."""


@dataclass(frozen=True)
class Value:
    """What a name of generated code stands for.

    Attributes
    ----------
    role
        What it is.
    of
        The value of the user's function that it belongs to.
    """

    role: Role
    of: str


@dataclass
class Let:
    """``target = expr``, an expression over atoms.

    If the value is a tuple, `leaves` names its parts and `target` is the pattern that unpacks it.
    The `rule` says how the operation is differentiated. With `every`, it is a read of an element,
    in loops that read all elements of the array.
    """

    target: str
    expr: ast.expr
    line: int = 0
    rule: Any = None
    leaves: list[str] | None = None
    every: bool = False


@dataclass
class Store:
    """``array[index] = value``; with `op` ``+`` or ``-``, ``array[index] += value``.

    If the value is an array of the same shape, `ndim` is the number of dimensions of both. With
    `every`, it is in loops that make a new array and store all of its elements.
    """

    array: str
    index: ast.expr
    value: Atom
    op: str = ""
    line: int = 0
    ndim: int = 0
    every: bool = False


@dataclass
class Effect:
    """A statement that computes no value, such as ``raise``."""

    statement: ast.stmt
    line: int = 0


@dataclass
class Phi:
    """A name that has one of two values, by the branch taken; None means undefined.

    `unread` names the side, if any, whose value is dead because of a jump; it does not determine
    the type of the name.
    """

    target: str
    then: Atom | None
    orelse: Atom | None
    unread: str = ""


@dataclass
class If:
    """A branch between two blocks.

    Unless it is `certain` which of them numba considers, names must have the same type in both.
    """

    cond: Atom
    then: Block
    orelse: Block
    phis: list[Phi] = field(default_factory=list)
    line: int = 0
    certain: bool = True

    def merged(self, side: str) -> list[tuple[str, Any]]:
        """Return the names that a side (the name of its field) assigns, with their values."""
        if always_raises(getattr(self, side)):
            return []
        return [
            (phi.target, None if phi.unread == side else getattr(phi, side)) for phi in self.phis
        ]


@dataclass
class Carried:
    """A loop-carried value: `phi` in an iteration, `out` after the loop."""

    phi: str
    init: Atom | None
    next: Atom | None
    out: str


@dataclass
class Loop:
    """A loop: ``for index in range(*bounds)``, or, without bounds, while `cond` after `test`.

    It is left after the body if `exit` holds. `trips` names the trip count. Unless it is `certain`
    which paths numba considers, names must have the same type on all of them; if the loop is
    `entered`, paths that skip it do not matter. The user allows the iterations of a `parallel` one
    (``prange``) to run at the same time. `memory` is the number of states that a checkpointed one
    keeps, 0 for the default; None of another one.
    """

    index: str | None
    bounds: tuple[Atom, Atom, Atom] | None
    test: Block
    cond: Atom | None
    body: Block
    exit: Atom | None
    carried: list[Carried]
    trips: str
    line: int = 0
    certain: bool = True
    entered: bool = False
    parallel: bool = False
    memory: Atom | None = None

    @property
    def counted(self) -> bool:
        """Whether the trip count is known before the first iteration."""
        return self.bounds is not None and self.exit is None


@dataclass
class Structure:
    """A tuple or named tuple of atoms and structures."""

    type: Any
    items: list[Any]

    def leaves(self) -> list[Atom]:
        """Return the atoms in it."""
        return [leaf for item in self.items for leaf in leaves_of(item)]

    def build(self, convert: Any) -> ast.expr:
        """Return the expression that makes the tuple; `convert` maps its atoms."""
        items = [
            item.build(convert) if isinstance(item, Structure) else convert(item)
            for item in self.items
        ]
        if hasattr(self.type, "instance_class"):
            return ast.Call(name(class_text(self.type.instance_class)), items, [])
        return ast.Tuple(items, ast.Load())


def class_text(cls: type) -> str:
    """Return the name of a named tuple's class in generated code."""
    return f"class_{identifier(cls.__name__, 'tuple')}"


def leaves_of(value: Any) -> list[Atom]:
    """Return the atoms of a value that may be a structure."""
    return value.leaves() if isinstance(value, Structure) else [value]


def leaf_names(value: Any) -> list[str]:
    """Return the names in an atom or structure."""
    return [leaf.id for leaf in leaves_of(value) if isinstance(leaf, ast.Name)]


Statement = Let | Store | Effect | If | Loop


@dataclass
class FunctionIR:
    """A function in normal form."""

    name: str
    params: list[str]
    body: Block
    result: Any  # an atom, a `Structure` of them, or None
    source: Any
    statics: dict[str, Any]  # values from outside, by the text that names them
    types: dict[str, Any] = field(default_factory=dict)  # the numba type of every name
    # arrays and the arrays that in-place operations combine them with, with lines
    inplace: list[tuple[str, str, int]] = field(default_factory=list)
    named: dict[str, list[Atom]] = field(default_factory=dict)  # the values of each variable
    origins: dict[str, Any] = field(
        default_factory=dict
    )  # of statics that are not the source's own
    # for extents of arguments, others that they are assumed to be equal to
    equal: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)


def name(identifier: str) -> ast.Name:
    """Return a name as an expression."""
    return ast.Name(identifier, ast.Load())


def constant(value: Any) -> ast.Constant:
    """Return a constant as an expression."""
    return ast.Constant(value)


def unused(stem: str, taken: Container[str]) -> str:
    """Return the first of ``stem``, ``stem_1``, ... that is not taken."""
    number, found = 0, stem
    while found in taken:
        number += 1
        found = f"{stem}_{number}"
    return found


def stem_of(identifier: str) -> str:
    """Return the stem of a name that `unused` may have made, or the name itself."""
    stem, _, number = identifier.rpartition("_")
    return stem_of(stem) if stem and number.isdecimal() else identifier


def take(stem: str, taken: set[str]) -> str:
    """Return an unused name, which is taken from now on."""
    found = unused(stem, taken)
    taken.add(found)
    return found


def names_in(node: ast.AST | None) -> list[str]:
    """Return the names that an expression reads, in order."""
    if node is None:
        return []
    return [part.id for part in subtree(node) if isinstance(part, ast.Name)]


def replace_names(expr: ast.expr, new: Mapping[str, str | ast.expr]) -> ast.expr:
    """Return an expression with names replaced, by others or by expressions."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            found = new.get(node.id, node.id)
            return name(found) if isinstance(found, str) else found

    return Replace().visit(copied(expr))


def defined(statement: Statement) -> list[str]:
    """Return the names that a statement defines for the rest of its block."""
    if isinstance(statement, Let):
        return [statement.target] if statement.leaves is None else statement.leaves
    if isinstance(statement, If):
        return [phi.target for phi in statement.phis]
    if isinstance(statement, Loop):
        return [*(carried.out for carried in statement.carried), statement.trips]
    return []


def named_by(statement: Statement) -> set[str]:
    """Return the names that a statement defines, for the rest of its block or its inner blocks."""
    found = set(defined(statement))
    if isinstance(statement, Loop):
        found.update(c.phi for c in statement.carried)
        if statement.index is not None:
            found.add(statement.index)
    return found


def makers(block: Block) -> dict[str, Any]:
    """Return what makes each name: an operation, a loop-carried entry, or a phi."""
    found: dict[str, Any] = {}
    for statement in walk(block):
        if isinstance(statement, Let):
            found[statement.target] = statement
        elif isinstance(statement, Loop):
            for entry in statement.carried:
                found[entry.phi] = found[entry.out] = entry
        elif isinstance(statement, If):
            found.update({phi.target: phi for phi in statement.phis})
    return found


def closure(names: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
    """Return names and all that edges lead to from them."""
    found = set(names)
    waiting = list(found)
    while waiting:
        new = edges.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def walk(block: Block) -> Iterator[Statement]:
    """Yield all statements of a block and its inner blocks, in order."""
    for statement in block:
        yield statement
        if isinstance(statement, If):
            yield from walk(statement.then)
            yield from walk(statement.orelse)
        elif isinstance(statement, Loop):
            yield from walk(statement.test)
            yield from walk(statement.body)


def raises(block: Block) -> bool:
    """Whether a block ends with an error."""
    match block[-1:]:
        case [Effect(ast.Raise())]:
            return True
    return False


def names_of(function: FunctionIR) -> set[str]:
    """Return all names of a function, including those that never have a value."""
    found = {*function.types, *function.params}
    return found.union(n for s in walk(function.body) for n in (*defined(s), *reads(s)))


def always_raises(block: Block) -> bool:
    """Whether a block ends with an error on all paths."""
    match block[-1:]:
        case [If(_, then, orelse)]:
            return always_raises(then) and always_raises(orelse)
    return raises(block)


def reads(statement: Statement) -> list[str]:
    """Return the names that a statement reads, without those of its inner blocks."""
    if isinstance(statement, Let):
        return names_in(statement.expr)
    if isinstance(statement, Store):
        return [statement.array, *names_in(statement.index), *names_in(statement.value)]
    if isinstance(statement, Effect):
        return names_in(statement.statement)
    if isinstance(statement, If):
        parts = [statement.cond, *(v for p in statement.phis for v in (p.then, p.orelse))]
    else:
        bounds = statement.bounds or ()
        ends = [v for c in statement.carried for v in (c.init, c.next)]
        parts = [*bounds, statement.cond, statement.exit, *ends]
    return [found for part in parts for found in names_in(part)]
