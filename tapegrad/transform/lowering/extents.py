"""Extents of arrays that are known to be equal before a function runs."""

from __future__ import annotations

import ast
from typing import Any, TypeGuard

import numpy as np
from numba.core import types

from tapegrad.transform import facts
from tapegrad.transform.ir import Carried, FunctionIR, Let, makers, names_in
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import integer
from tapegrad.transform.rules.array_specs import SPECS
from tapegrad.transform.syntax import leaves, text_of

Key = tuple[Any, ...]  # extents with equal keys are equal

_SHAPED, _LIKE = (
    tuple(getattr(np, name) for name in facts.functions(facts.Elements.OWN, shapes=(shape,)))
    for shape in (facts.Shape.GIVEN, facts.Shape.LIKE)
)


class Extents:
    """Finds keys of the extents of arrays: extents with equal keys are equal.

    Parameters
    ----------
    function
        The function, in normal form with types.
    """

    def __init__(self, function: FunctionIR) -> None:
        self.types = function.types
        self.statics = function.statics
        self.made = makers(function.body)
        self.equal: dict[Key, Key] = function.equal
        self.known: dict[tuple[str, int], Key] = {}

    def of(self, array: str, axis: int) -> Key:
        """Return the key of the extent of an axis."""
        place = array, axis
        if place not in self.known:
            own: Key = ("own", array, axis)
            self.known[place] = own = self.equal.get(own, own)
            made = self.made.get(array)
            fixed = self.statics.get(array) if array not in self.types else None
            if isinstance(fixed, np.ndarray):
                self.known[place] = ("constant", fixed.shape[axis])
            elif isinstance(made, Carried):
                self._carry(made, axis)
            elif isinstance(made, Let):
                found = self._of_value(made.expr, axis)
                self.known[place] = own if found is None else found
        return self.known[place]

    def set(self, array: str, keys: list[Key]) -> None:
        """Set the keys of an array whose extents are computed from others."""
        self.known.update({(array, axis): key for axis, key in enumerate(keys)})

    def _carry(self, entry: Carried, axis: int) -> None:
        """Set the keys of a loop-carried array: those of the first one, if no iteration changes it.

        That is assumed first. What was concluded from an assumption that is wrong is dropped.
        """
        before = dict(self.known)
        match entry.init, entry.next:
            case ast.Name(id=init), ast.Name(id=following):
                first = self.of(init, axis)
                self.known[entry.phi, axis] = self.known[entry.out, axis] = first
                if self.of(following, axis) != first:
                    self.known = before
                    self.known[entry.phi, axis] = ("own", entry.phi, axis)
                    self.known[entry.out, axis] = ("own", entry.out, axis)

    def _is_array(self, expr: ast.expr) -> TypeGuard[ast.Name]:
        """Whether an expression is the name of an array."""
        return isinstance(expr, ast.Name) and is_array(self.types.get(expr.id))

    def _of_value(self, expr: ast.expr, axis: int) -> Key | None:
        match expr:
            case ast.Name() if self._is_array(expr):
                return self.of(expr.id, axis)
            case ast.Attribute(base, "T") if self._is_array(base):
                return self.of(base.id, self.types[base.id].ndim - 1 - axis)
            case ast.Subscript():
                return self.of_part(expr, axis)
            case ast.BinOp(left, ast.MatMult(), right):
                return self.of_product([left, right], axis)
            case ast.BinOp() | ast.UnaryOp():
                return self._of_broadcast(expr, axis)
            case ast.Call(ast.Attribute(base, "copy")) if self._is_array(base):
                return self.of(base.id, axis)
            case ast.Call(ast.Name(id=function), [_, *_]):
                return self._of_call(expr, self.statics.get(function), axis)
        return None

    def _of_call(self, expr: ast.Call, callee: Any, axis: int) -> Key | None:
        spec, first = SPECS.get(getattr(callee, "tapegrad_rule", "")), expr.args[0]
        if spec is not None and spec.extents is not None:
            found: Key | None = spec.extents(self, expr.args, axis)
            return found
        if callee is np.dot:
            return self.of_product(expr.args, axis) if not expr.keywords else None
        if isinstance(callee, np.ufunc) and callee.signature is None:
            return self._of_broadcast(expr, axis) if not expr.keywords else None
        if any(callee is function for function in _LIKE):
            return self.of(first.id, axis) if self._is_array(first) else None
        if any(callee is function for function in _SHAPED):
            return self.of_number(self._item(first, axis))
        return self._of_literal(first, axis) if callee is np.array else None

    def of_product(self, factors: list[ast.expr], axis: int) -> Key | None:
        """Return the key of an axis of a product of matrices and vectors, or of stacks of these."""
        names = [factor.id for factor in factors if isinstance(factor, ast.Name)]
        ndims = [getattr(self.types.get(name), "ndim", 0) for name in names]
        if ndims in ([2, 2], [3, 3]):
            return self.of(names[axis == ndims[0] - 1], axis)
        if ndims == [2, 1]:
            return self.of(names[0], 0)
        return self.of(names[1], 1) if ndims == [1, 2] else None

    def _of_literal(self, items: ast.expr, axis: int) -> Key | None:
        """Return the key of an axis of an array of the items of lists."""
        match items:
            case ast.List([first, *_] as found) | ast.Tuple([first, *_] as found):
                return self._of_literal(first, axis - 1) if axis else ("constant", len(found))
        return None

    def _of_broadcast(self, expr: ast.expr, axis: int) -> Key | None:
        """Return the key of an axis of what arrays are broadcast to, if they all have it."""
        operands = expr.args if isinstance(expr, ast.Call) else ast.iter_child_nodes(expr)
        arrays: dict[str, Any] = {}  # with what says how many axes they have
        for operand in names_in(ast.Tuple([n for n in operands if isinstance(n, ast.expr)])):
            kind = self.types.get(operand, self.statics.get(operand))
            if is_array(kind) or isinstance(kind, np.ndarray):
                arrays[operand] = kind
            elif not isinstance(kind, (types.Number, types.Boolean, int, float, complex)):
                return None
        ndim = max((kind.ndim for kind in arrays.values()), default=0)
        places = [(n, axis - ndim + kind.ndim) for n, kind in arrays.items()]
        found = {self.of(n, place) for n, place in places if place >= 0}
        return found.pop() if len(found) == 1 else None

    def _item(self, shape: ast.expr, axis: int) -> ast.expr | None:
        """Return an item of a shape."""
        made = self.made.get(text_of(shape))
        if isinstance(made, Let) and isinstance(self.types.get(text_of(shape)), types.BaseTuple):
            shape = made.expr
        if isinstance(shape, ast.Tuple):
            return shape.elts[axis]
        return shape if axis == 0 else None

    def of_number(self, number: ast.expr | None) -> Key | None:
        """Return the key of an extent that a number gives."""
        match number:
            case ast.Constant(value):
                return ("constant", value)
            case ast.Name(id=name) if isinstance(self.types.get(name), types.Integer):
                made = self.made.get(name)
                found = self._of_computed(made.expr) if isinstance(made, Let) else None
                return found or ("number", name)
        return None

    def _of_computed(self, expr: ast.expr) -> Key | None:
        """Return the key of an extent that an expression reads, None for other expressions."""
        match expr:
            case ast.Constant(value):
                return ("constant", value)
            case ast.Attribute(base, "size"):
                if self._is_array(base) and self.types[base.id].ndim == 1:
                    return self.of(base.id, 0)
            case ast.Call(ast.Name(id=function), [base]):
                is_len = self.statics.get(function, function) in (len, "len")
                return self.of(base.id, 0) if is_len and self._is_array(base) else None
            case ast.Subscript(shape, ast.Constant() as item):
                made, axis = self.made.get(text_of(shape)), integer(item)
                match made.expr if isinstance(made, Let) else shape:
                    case ast.Attribute(base, "shape") if self._is_array(base):
                        return self.of(base.id, axis) if axis is not None and axis >= 0 else None
        return None

    def of_part(self, expr: ast.Subscript, axis: int) -> Key | None:
        """Return the key of an axis of the elements that integers and slices select."""
        base = expr.value
        if not self._is_array(base):
            return None
        taken = position = 0
        for part in leaves(expr.slice):
            match part:
                case ast.Slice() if taken == axis:
                    return self._cut(self.of(base.id, position), part)
                case ast.Constant(None) if taken == axis:
                    return ("constant", 1)
                case ast.Slice():
                    taken, position = taken + 1, position + 1
                case ast.Constant(None):
                    taken += 1
                case ast.Constant(value) if type(value) is int:
                    position += 1
                case ast.Name(id=name) if isinstance(self.types.get(name), types.Integer):
                    position += 1
                case _:
                    return None
        return self.of(base.id, position + axis - taken)

    def _cut(self, whole: Key, part: ast.Slice) -> Key | None:
        """Return the key of ``whole[a:-b]``, the same for all ``a + b``."""
        if part.step is not None:
            return None
        cut = 0
        for bound, sign in ((part.lower, 1), (part.upper, -1)):
            if bound is None:
                continue
            value = integer(bound)
            if value is None or sign * value < 0 or (sign < 0 and value == 0):
                return None
            cut += abs(value)
        return ("cut", whole, cut) if cut else whole

    @staticmethod
    def constant(key: Key) -> int | None:
        """Return the extent that a key stands for, None if it is not a constant."""
        return key[1] if key[0] == "constant" else None

    @staticmethod
    def taken_from(key: Key) -> tuple[Key, int] | None:
        """Return the key of a whole extent and how much is cut from it, None for other keys."""
        return key[1:] if key[0] == "cut" else None
