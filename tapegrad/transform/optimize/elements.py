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
from tapegrad.transform.nodes import element_of
from tapegrad.transform.optimize import sizes
from tapegrad.transform.optimize.indices import Indices, Position
from tapegrad.transform.syntax import key_of, leaves, subtree, text_of
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
        assert isinstance(node.value, ast.Name)
        return self.found[node.value.id, key_of(node.slice)]

    def is_element(self, node: ast.AST) -> bool:
        """Whether an expression is an element of an array."""
        return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)

    def kind(self, array: str) -> Any:
        """Return the type of an array."""
        return types.Array(types.float64, 1, "C") if array in self.rows else self.facts.kind(array)

    # -- collecting ---------------------------------------------------------------------------

    def _collect(self, body: list[ast.stmt], is_certain: bool) -> None:
        for node in body:
            if isinstance(node, ast.If):
                self._read(node.test, is_certain)
                self._collect(node.body, False)
                self._collect(node.orelse, False)
            elif isinstance(node, ast.Assign):
                self._read(node.value, is_certain)
                target = node.targets[0]
                if self.is_element(target):
                    self._note(target, STORE, is_certain)
                elif not isinstance(target, ast.Name) and not gives_several(node):
                    raise UnprovedError(f"of `{text_of(node)}`")
            elif isinstance(node, ast.AugAssign):
                self._read(node.value, is_certain)
                if self.is_element(node.target):
                    if not isinstance(node.op, (ast.Add, ast.Sub)):
                        raise UnprovedError(f"of `{text_of(node)}`")
                    self._note(node.target, ADD, is_certain)
                elif not isinstance(node.target, ast.Name):
                    raise UnprovedError(f"of `{text_of(node)}`")
            elif not isinstance(node, (ast.Raise, ast.Pass)):
                raise UnprovedError(f"of `{text_of(node)}`")

    def _read(self, node: ast.AST, is_certain: bool) -> None:
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            parts = [node.test] if isinstance(node, ast.IfExp) else node.values[:1]
            for part in ast.iter_child_nodes(node):
                self._read(part, is_certain and part in parts)
            return
        for part in ast.iter_child_nodes(node):
            self._read(part, is_certain)
        if self.is_element(node):
            self._note(node, READ, is_certain)

    def _note(self, node: ast.AST, kind: str, is_certain: bool) -> None:
        assert isinstance(node, ast.Subscript)
        assert isinstance(node.value, ast.Name)
        if kind != READ:
            self._read(node.slice, is_certain)
        key = node.value.id, key_of(node.slice)
        if key not in self.found:
            self.found[key] = self._element(node.value.id, node.slice)
        self.found[key].note(kind, is_certain)

    def _element(self, array: str, node: ast.expr) -> Element:
        kind = self.kind(array)
        index = list(node.elts) if isinstance(node, ast.Tuple) else [node]
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
        if isinstance(part, ast.Raise):
            return True
        if divisions_raise and isinstance(part, (ast.BinOp, ast.AugAssign)):
            divisor = part.right if isinstance(part, ast.BinOp) else part.value
            is_safe = isinstance(divisor, ast.Constant) and bool(divisor.value)
            if isinstance(part.op, (ast.Div, ast.FloorDiv, ast.Mod)) and not is_safe:
                return True
    return False


def gives_several(node: ast.Assign) -> bool:
    """Whether a statement gives the results of a call to several names."""
    target = node.targets[0]
    is_several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call)
    return is_several and all(isinstance(part, ast.Name) for part in leaves(target))


def _is_place(node: ast.expr) -> bool:
    """Whether an expression is a constant that counts from the start."""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0


def _are_apart(one: list[ast.expr], other: list[ast.expr]) -> bool:
    """Whether two indices certainly mean different elements."""
    for a, b in zip(one, other, strict=True):
        if isinstance(a, ast.Constant) and isinstance(b, ast.Constant) and a.value != b.value:
            return True
    return False
