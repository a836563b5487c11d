"""Extents of arrays as numbers.

Where the reverse code needs only the extents of an array, to make its cotangents, the forward code
keeps these numbers rather than the array.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from numba.core import types

from tapegrad.transform.codegen.analysis import Scope
from tapegrad.transform.codegen.reverse_state import ReverseState
from tapegrad.transform.ir import Block, Let, Loop, Statement, name, unused
from tapegrad.transform.printer import show
from tapegrad.transform.rules import base as rules
from tapegrad.transform.syntax import text_of
from tapegrad.transform.trees import quoted


class Sizes:
    """The names of extents of arrays.

    Parameters
    ----------
    state
        The state of reverse mode.
    """

    def __init__(self, state: ReverseState) -> None:
        self.state = state
        # statements that read extents, by the id of the statement before, or of the block
        self.added: dict[int, list[Let]] = {}

    def zeros(self, array: str) -> ast.expr:
        """Return an expression for zeros like an array, which reads only extents if it can."""
        if not self._has_numbers(array):
            return self.zeros_like(array)
        scope, ndim = self.state.scopes.scope_of[array], self.state.types[array].ndim
        return _zeros([self.of(array, k, scope) for k in range(ndim)])

    def zeros_like(self, array: str) -> ast.expr:
        """Return the expression that reads the array."""
        return ast.Call(name("np.zeros_like"), [name(array)], [])

    def zeros_outside(self, array: str) -> ast.expr | None:
        """Return such an expression of extents from before the loops around it, if all are."""
        if not self._has_numbers(array):
            return None
        scope, found = self.state.scopes.scope_of[array], []
        for k in range(self.state.types[array].ndim):
            count = self.state.extents.constant(self.state.extents.of(array, k))
            extent = self._outside(array, k, scope) if count is None else count
            if extent == "":
                return None
            found.append(extent)
        return _zeros(found)

    def _has_numbers(self, array: str) -> bool:
        """Whether zeros like an array are made of numbers rather than of the array."""
        kind, scope = self.state.types[array], self.state.scopes.scope_of[array]
        is_usual = kind.layout == "C" and kind.dtype == types.float64 and kind.ndim > 0
        return is_usual and not scope.local

    def of(self, array: str, axis: int, scope: Scope) -> str:
        """Return the name of the extent of an axis; if it has none, add a statement for it."""
        state = self.state
        for statement in self.statements(scope.block):
            if self.measured(statement) == (array, axis):
                assert isinstance(statement, Let)
                return statement.target
        if outside := self._outside(array, axis, scope):
            return outside
        is_vector = state.types[array].ndim == 1
        expr = quoted("x.size" if is_vector else "x.shape[axis]", x=array, axis=axis)
        # of parameters, any place will do
        maker: Any = state.scopes.makers.get(array, scope.block[0])
        found = Let(unused(f"{array}_size", state.types), expr, maker.line, rules.Passive(True))
        place = maker.body if isinstance(maker, Loop) and maker.body is scope.block else maker
        self.added.setdefault(id(place), []).append(found)
        state.types[found.target] = types.int64
        scope.own.add(found.target)
        state.scopes.scope_of[found.target] = scope
        state.scopes.makers[found.target] = found
        state.added.add(found.target)
        state.scopes.roots[id(found)] = state.scopes.roots.get(id(maker), scope.root)
        return found.target

    def _outside(self, array: str, axis: int, scope: Scope) -> str:
        """Return the name of an equal extent from before the loops around an array, "" for none."""
        state = self.state
        key = state.extents.of(array, axis)
        for statement in state.top.block[: scope.root]:
            measured = self.measured(statement)
            if measured is not None and state.extents.of(*measured) == key:
                assert isinstance(statement, Let)
                return statement.target
        if key[0] == "own" and key[1] in state.function.params and scope.root > 0:
            return self.of(key[1], key[2], state.top)
        return ""

    def statements(self, block: Block) -> Iterator[Statement]:
        """Yield the statements of a block, and those that read extents."""
        yield from self.added.get(id(block), ())
        for statement in block:
            yield statement
            yield from self.added.get(id(statement), ())

    def measured(self, statement: Any) -> tuple[str, int] | None:
        """Return the array and the axis whose extent a statement reads, None for other ones."""
        match statement:
            case Let(expr=ast.Attribute(base, "size")):
                array = show(base)
                return (array, 0) if getattr(self.state.types.get(array), "ndim", 0) == 1 else None
            case Let(expr=ast.Subscript(shape, ast.Constant(int(axis)))) if axis >= 0:
                made = self.state.scopes.makers.get(text_of(shape))
                match made.expr if isinstance(made, Let) else shape:
                    case ast.Attribute(base, "shape"):
                        return show(base), axis
        return None


def _zeros(extents: Sequence[str | int]) -> ast.expr:
    parts: list[ast.expr] = [name(n) if isinstance(n, str) else ast.Constant(n) for n in extents]
    shape = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
    return ast.Call(name("np.zeros"), [shape], [])
