"""What an iteration does with elements of arrays, and where a block puts them aside."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from numba.core import types

from tapegrad.transform.frontend.liveness import used
from tapegrad.transform.generated import Facts
from tapegrad.transform.independence.plan import Plan
from tapegrad.transform.independence.uses import ADD, READ, STORE, UnprovedError
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import element_of, integer
from tapegrad.transform.optimize import sizes
from tapegrad.transform.optimize.indices import Indices, Position
from tapegrad.transform.syntax import array_of, key_of, leaves, subtree, text_of
from tapegrad.transform.trees import quoted

Key = tuple[str, Hashable]  # an array and the key of an index


@dataclass
class Element:
    """An element that iterations use by one index.

    Attributes
    ----------
    array, key, index
        The array, the key of the index, and its parts.
    position
        What the last part is if a block of iterations uses neighbouring elements, otherwise None.
    is_fixed
        Whether all iterations use the same element.
    is_certain
        Whether every iteration uses it.
    kinds
        What it is used for.
    first
        The first use, and whether every iteration has it.
    local
        The variable that stands for it, if it is written.
    last
        The constant that every iteration writes last, if there is one.
    """

    array: str
    key: Hashable
    index: list[ast.expr]
    position: Position | None
    is_fixed: bool
    is_certain: bool = False
    kinds: set[str] = field(default_factory=set)
    first: tuple[str, bool] = ("", False)
    local: str = ""
    last: ast.Constant | None = None

    def expr(self) -> ast.expr:
        """Return the element as an expression."""
        return self.expr_at(self.index[-1])

    def expr_at(self, last: ast.expr) -> ast.expr:
        """Return the element of the array with another last part of the index."""
        if self.position is not None:
            last = quoted("runtime.index(k)", k=last)
        return element_of(self.array, [*self.index[:-1], last])

    def note(self, kind: str, is_certain: bool) -> None:
        """Note a use."""
        if not self.kinds:
            self.first = kind, is_certain
        self.kinds.add(kind)
        self.is_certain |= is_certain


class Elements:
    """The elements that the iterations of a loop use.

    Parameters
    ----------
    plan
        The proof that iterations are independent.
    facts
        What is known of the function.
    rows
        The names of parts of the tape.
    raises
        Whether divisions by zero raise errors.
    """

    def __init__(self, plan: Plan, facts: Facts, rows: set[str], raises: bool) -> None:
        self.plan = plan
        self.facts = facts
        self.rows = rows
        self.body = plan.loop.body
        self.indices = Indices(plan, facts)
        # an iteration may come after one that raises
        self.is_late = any(may_raise_error(node, raises) for node in self.body)
        self.found: dict[Key, Element] = {}
        self._collect(self.body, True)
        for element in self.found.values():  # the cotangent has the shape of the array
            twin = self.found.get((facts.primal(element.array), element.key))
            element.is_certain |= twin is not None and twin.is_certain
        self.arrays = {array for array, _ in self.found}
        kinds = {a: set[str]().union(*(e.kinds for e in self.of(a))) for a in self.arrays}
        self.written = {array for array, found in kinds.items() if found != {READ}}
        self.added = {array for array, found in kinds.items() if found == {ADD}}
        for array in self.written - self.added:
            self._check_own(array)

    def bounds(self, first: ast.expr, last: ast.expr) -> list[ast.expr]:
        """Return what must hold for the iterations of a range to read elements after an error.

        Without errors, or where an element is only added to, iterations use what they use in order.
        """
        found: list[ast.expr] = []
        for element in self.found.values():
            if not self.is_late or element.array in self.added:
                continue
            if not element.is_certain:
                raise UnprovedError(f"an error may come before an index of `{element.array}`")
            for axis, part in enumerate(element.index):
                size = quoted("x.shape[axis]", x=element.array, axis=axis)
                position = self.indices.position(part)
                large = sizes.LARGE
                if position is not None:
                    # no sum of these numbers overflows
                    found.append(quoted("last < large", last=last, large=large))
                    if position.number:
                        number = position.number
                        found.append(quoted("-large < n < large", n=number, large=large))
                    found.append(quoted("last <= size", last=position.at(last), size=size))
                    found.append(quoted("first >= 0", first=position.at(first)))
                elif not self.indices.uses_made(part):
                    found.append(quoted("0 <= k < size", k=part, size=size))
                else:
                    raise UnprovedError(f"an error may come before an index of `{element.array}`")
        return found

    def of(self, array: str) -> list[Element]:
        """Return the elements of an array."""
        return [element for (name, _), element in self.found.items() if name == array]

    def at(self, node: ast.Subscript) -> Element:
        """Return the element that an expression means."""
        return self.found[array_of(node), key_of(node.slice)]

    def kind(self, array: str) -> Any:
        """Return the type of an array."""
        return types.Array(types.float64, 1, "C") if array in self.rows else self.facts.kind(array)

    # -- collecting ---------------------------------------------------------------------------

    def _collect(self, body: list[ast.stmt], is_certain: bool) -> None:
        for node in body:
            match node:
                case ast.If(test, then, orelse):
                    self._read(test, is_certain)
                    self._collect(then, False)
                    self._collect(orelse, False)
                case ast.Assign([ast.Subscript(ast.Name(id=array), index), *_], value):
                    self._read(value, is_certain)
                    self._read(index, is_certain)
                    self._note(array, index, STORE, is_certain)
                case ast.AugAssign(ast.Subscript(ast.Name(id=array), index), op, value):
                    self._read(value, is_certain)
                    if not isinstance(op, (ast.Add, ast.Sub)):
                        raise UnprovedError(f"of `{text_of(node)}`")
                    self._read(index, is_certain)
                    self._note(array, index, ADD, is_certain)
                case ast.AugAssign(ast.Name(), _, value) | ast.Assign([ast.Name(), *_], value):
                    self._read(value, is_certain)
                case ast.Assign(_, value) if gives_several(node):
                    self._read(value, is_certain)
                case ast.Raise() | ast.Pass():
                    pass
                case _:
                    raise UnprovedError(f"of `{text_of(node)}`")

    def _read(self, node: ast.AST, is_certain: bool) -> None:
        match node:
            case ast.IfExp(first) | ast.BoolOp(_, [first, *_]):
                for part in ast.iter_child_nodes(node):
                    self._read(part, is_certain and part is first)
            case _:
                for part in ast.iter_child_nodes(node):
                    self._read(part, is_certain)
                match node:
                    case ast.Subscript(ast.Name(id=array), index):
                        self._note(array, index, READ, is_certain)

    def _note(self, array: str, index: ast.expr, kind: str, is_certain: bool) -> None:
        key = array, key_of(index)
        if key not in self.found:
            self.found[key] = self._element(array, index)
        self.found[key].note(kind, is_certain)

    def _element(self, array: str, node: ast.expr) -> Element:
        kind = self.kind(array)
        index = leaves(node)
        if not is_array(kind) or kind.ndim != len(index) or not index:
            raise UnprovedError(f"of `{array}[{text_of(node)}]`")
        if any(
            isinstance(part, (ast.Slice, ast.Constant)) and not _is_place(part) for part in index
        ):
            raise UnprovedError(f"of `{array}[{text_of(node)}]`")
        if any(used(part) & self.indices.changing for part in index):
            raise UnprovedError(f"the index of `{array}[{text_of(node)}]` changes")
        is_fixed = not self.indices.uses_made(*index)
        is_direct = kind.layout == "C" or kind.ndim == 1
        found = None
        if is_direct and not self.indices.uses_made(*index[:-1]):
            found = self.indices.position(index[-1])
        return Element(array, key_of(node), list(map(self._shown, index)), found, is_fixed)

    def _shown(self, part: ast.expr) -> ast.expr:
        """Return an index as the loop variable plus a number, if it is that."""
        found = self.indices.position(part)
        return part if found is None else found.at(self.plan.target)

    def _check_own(self, array: str) -> None:
        """Refuse an array that is read and written if two indices may mean one element."""
        found = self.of(array)
        for number, one in enumerate(found):
            if not one.is_certain:
                raise UnprovedError(f"`{array}` is written in some iterations only")
            for other in found[:number]:
                if not _are_apart(one.index, other.index):
                    raise UnprovedError(f"two indices of `{array}` may be equal")


def may_raise_error(node: ast.stmt, divisions_raise: bool) -> bool:
    """Whether a statement may raise an error."""
    for part in subtree(node):
        match part:
            case ast.Raise():
                return True
            case ast.BinOp(_, op, divisor) | ast.AugAssign(_, op, divisor) if divisions_raise:
                is_safe = isinstance(divisor, ast.Constant) and bool(divisor.value)
                if isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod)) and not is_safe:
                    return True
    return False


def gives_several(node: ast.Assign) -> bool:
    """Whether a statement gives the results of a call to several names."""
    match node:
        case ast.Assign([ast.Tuple() as target, *_], ast.Call()):
            return all(isinstance(part, ast.Name) for part in leaves(target))
    return False


def _is_place(node: ast.expr) -> bool:
    """Whether an expression is a constant that counts from the start."""
    value = integer(node)
    return value is not None and value >= 0


def _are_apart(one: list[ast.expr], other: list[ast.expr]) -> bool:
    """Whether two indices certainly mean different elements."""
    for a, b in zip(one, other, strict=True):
        match a, b:
            case ast.Constant(first), ast.Constant(second) if first != second:
                return True
    return False
