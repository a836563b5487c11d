"""Extents of arrays that are known to be equal before a function runs."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform import facts
from tapegrad.transform.ir import Carried, FunctionIR, Let, makers, names_in
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import integer

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
        if not isinstance(entry.init, ast.Name) or not isinstance(entry.next, ast.Name):
            return
        first = self.of(entry.init.id, axis)
        self.known[entry.phi, axis] = self.known[entry.out, axis] = first
        if self.of(entry.next.id, axis) != first:
            self.known = before
            self.known[entry.phi, axis] = ("own", entry.phi, axis)
            self.known[entry.out, axis] = ("own", entry.out, axis)

    def _of_value(self, expr: ast.expr, axis: int) -> Key | None:
        if isinstance(expr, ast.Name) and is_array(self.types.get(expr.id)):
            return self.of(expr.id, axis)
        if isinstance(expr, ast.Attribute) and expr.attr == "T":
            base = expr.value
            if isinstance(base, ast.Name) and is_array(self.types.get(base.id)):
                return self.of(base.id, self.types[base.id].ndim - 1 - axis)
        if isinstance(expr, ast.Subscript):
            return self.of_part(expr, axis)
        if isinstance(expr, (ast.BinOp, ast.UnaryOp)):
            if isinstance(expr, ast.BinOp) and isinstance(expr.op, ast.MatMult):
                return self._of_product([expr.left, expr.right], axis)
            return self._of_broadcast(expr, axis)
        if not isinstance(expr, ast.Call):
            return None
        if isinstance(expr.func, ast.Attribute):
            base = expr.func.value
            if expr.func.attr == "copy" and isinstance(base, ast.Name):
                return self.of(base.id, axis) if is_array(self.types.get(base.id)) else None
            return None
        if not isinstance(expr.func, ast.Name) or not expr.args:
            return None
        callee, first = self.statics.get(expr.func.id), expr.args[0]
        rule = getattr(callee, "tapegrad_rule", "")
        if rule == "stacked_product_t" and axis == 2:
            return self._of_product(expr.args[::-1], 1)
        if callee is np.dot or rule in ("stacked_product", "stacked_product_t"):
            return self._of_product(expr.args, axis) if not expr.keywords else None
        if isinstance(callee, np.ufunc) and callee.signature is None:
            return self._of_broadcast(expr, axis) if not expr.keywords else None
        if any(callee is function for function in _LIKE):
            if isinstance(first, ast.Name) and is_array(self.types.get(first.id)):
                return self.of(first.id, axis)
            return None
        if any(callee is function for function in _SHAPED):
            return self.of_number(self._item(first, axis))
        if callee is np.array:
            return self._of_literal(first, axis)
        return None

    def _of_product(self, factors: list[ast.expr], axis: int) -> Key | None:
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
        if not isinstance(items, (ast.List, ast.Tuple)) or not items.elts:
            return None
        if axis == 0:
            return ("constant", len(items.elts))
        return self._of_literal(items.elts[0], axis - 1)

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
        if isinstance(shape, ast.Name):
            made = self.made.get(shape.id)
            if isinstance(self.types.get(shape.id), types.BaseTuple):
                shape = made.expr if isinstance(made, Let) else shape
        if isinstance(shape, ast.Tuple):
            return shape.elts[axis]
        return shape if axis == 0 else None

    def of_number(self, number: ast.expr | None) -> Key | None:
        """Return the key of an extent that a number gives."""
        if isinstance(number, ast.Constant):
            return ("constant", number.value)
        if not isinstance(number, ast.Name) or not isinstance(
            self.types.get(number.id), types.Integer
        ):
            return None
        made = self.made.get(number.id)
        expr = made.expr if isinstance(made, Let) else None
        if isinstance(expr, ast.Constant):
            return ("constant", expr.value)
        if isinstance(expr, ast.Attribute) and expr.attr == "size":
            base = expr.value
            if isinstance(base, ast.Name) and getattr(self.types.get(base.id), "ndim", 0) == 1:
                return self.of(base.id, 0)
        if isinstance(expr, ast.Call) and isinstance(expr.func, ast.Name) and len(expr.args) == 1:
            (given,) = expr.args
            if self.statics.get(expr.func.id, expr.func.id) in (len, "len"):
                if isinstance(given, ast.Name) and is_array(self.types.get(given.id)):
                    return self.of(given.id, 0)
        if isinstance(expr, ast.Subscript) and isinstance(expr.slice, ast.Constant):
            shape = self.made.get(expr.value.id) if isinstance(expr.value, ast.Name) else None
            shaped = shape.expr if isinstance(shape, Let) else expr.value
            if isinstance(shaped, ast.Attribute) and shaped.attr == "shape":
                base, axis = shaped.value, integer(expr.slice)
                if isinstance(base, ast.Name) and is_array(self.types.get(base.id)):
                    if axis is not None and axis >= 0:
                        return self.of(base.id, axis)
        return ("number", number.id)

    def of_part(self, expr: ast.Subscript, axis: int) -> Key | None:
        """Return the key of an axis of the elements that integers and slices select."""
        base = expr.value
        if not isinstance(base, ast.Name) or not is_array(self.types.get(base.id)):
            return None
        parts = expr.slice.elts if isinstance(expr.slice, ast.Tuple) else [expr.slice]
        taken = position = 0
        for part in parts:
            if isinstance(part, ast.Slice):
                if taken == axis:
                    return self._cut(self.of(base.id, position), part)
                taken += 1
            elif isinstance(part, ast.Constant) and part.value is None:
                if taken == axis:
                    return ("constant", 1)
                taken += 1
                continue
            elif isinstance(part, ast.Constant):
                if type(part.value) is not int:
                    return None
            elif not isinstance(part, ast.Name) or not isinstance(
                self.types.get(part.id), types.Integer
            ):
                return None
            position += 1
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
