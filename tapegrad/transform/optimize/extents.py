"""What the statements of a function say of the extents of arrays."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from tapegrad.transform.frontend.liveness import times_assigned
from tapegrad.transform.generated import Facts
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import integer, is_number
from tapegrad.transform.syntax import (
    arguments_of,
    binding,
    callee_of,
    key_of,
    leaves,
    name_of,
    subtree,
)
from tapegrad.transform.trees import quoted

_Extent = tuple[str, int]  # an array, and one of its axes


class Extents:
    """What the names of a function say of extents.

    Parameters
    ----------
    tree
        The function.
    facts
        What is known of its names.

    Attributes
    ----------
    once
        The names that one statement assigns.
    """

    def __init__(self, tree: ast.FunctionDef, facts: Facts) -> None:
        self.facts = facts
        count = times_assigned([tree])
        self.once = {n for n in count if count[n] == 1}
        given = {parameter.arg for parameter in tree.args.args}
        self._fixed = (self.once - given) | (given - count.keys())  # they have one value
        self._names = dict(self._named(tree))

    def _named(self, tree: ast.FunctionDef) -> Iterator[tuple[str, _Extent]]:
        """Yield names that are extents of arrays, and what they are."""
        bindings = filter(None, map(binding, subtree(tree)))
        values = {name: value for name, value in bindings if name in self._fixed}

        def named(node: ast.expr) -> ast.expr:
            return values.get(name_of(node), node)

        for name, value in values.items():
            match arguments_of(value, "max"):
                case [extent, *_, last] if is_number(last, 0):  # of a loop
                    value = extent
            match named(value):
                case ast.Subscript(shape, axis):
                    if (found := self._of_array(named(shape), axis)) is not None:
                        yield name, found

    def _of_array(self, shape: ast.expr, axis: ast.expr) -> _Extent | None:
        """Return the extent that an item of the shape of an array is."""
        match shape, integer(axis):
            case ast.Attribute(ast.Name(id=array), "shape"), int(number) if number >= 0:
                return (array, number) if array in self._fixed else None
        return None

    def known(self, extents: Sequence[ast.expr]) -> list[Hashable]:
        """Return values that are equal where extents are known to be."""
        return list(map(self._known, extents))

    def _known(self, extent: ast.expr) -> Hashable:
        """Return what the function that this one was made from says of an extent."""
        if (number := integer(extent)) is not None:
            return "constant", number
        found = self._names.get(name_of(extent))
        match extent:
            case ast.Subscript(shape, axis):
                found = self._of_array(shape, axis)
        key = None
        if self.facts.extents is not None:
            if found is not None:
                key = self.facts.extents.of(*found) if found[0] in self.facts.kinds else None
            elif name_of(extent) in self._fixed:
                key = self.facts.extents.of_number(extent)
        return key or found or key_of(extent)

    def constant(self, extent: ast.expr) -> int | None:
        """Return an extent that is known to be a constant, None for others."""
        key: Any = self._known(extent)
        return key[1] if isinstance(key, tuple) and key[:1] == ("constant",) else None

    def of_zeros(self, call: ast.expr) -> list[ast.expr]:
        """Return the extents of the zeros that a call makes; none if it makes no zeros."""
        return self._of(call, "np.zeros")

    def of_empty(self, call: ast.expr) -> list[ast.expr]:
        """Return the extents of the array without values that a call makes, if it makes one."""
        return self._of(call, "np.empty")

    def _of(self, call: ast.expr, maker: str) -> list[ast.expr]:
        match call:
            case ast.Call(_, [given], []) if callee_of(call) == maker:
                return leaves(given)
            case ast.Call(_, [ast.Name(id=array)], []) if array in self._fixed:
                kind = self.facts.kind(array)
                if callee_of(call) == f"{maker}_like" and is_array(kind):
                    return [quoted("x.shape[k]", x=array, k=axis) for axis in range(kind.ndim)]
        return []
