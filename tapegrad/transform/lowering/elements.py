"""Operations on arrays that a loop can do, one element at a time, and expressions of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import typeof
from numba.core import types

from tapegrad.ops.table.kinds import Elementwise
from tapegrad.transform.ir import FunctionIR, Let, Store, names_in
from tapegrad.transform.kinds import is_array
from tapegrad.transform.rules.partials import op_of
from tapegrad.transform.syntax import name_of, text_of

_NUMBERS = (types.float64, types.int64)
_MOST_AXES = 3


def leaves(expression: list[Let]) -> list[str]:
    """Return the names whose elements an expression reads, in their order.

    Parameters
    ----------
    expression
        Its elementwise operations: operands before what they are used by, the value last.
    """
    made = {let.target: let for let in expression}

    def read_by(let: Let) -> Iterator[str]:
        expr = let.expr
        for operand in names_in(expr.slice if isinstance(expr, ast.Subscript) else expr):
            if operand in made:
                yield from read_by(made[operand])
            else:
                yield operand

    return [*read_by(expression[-1])]


def tables(expression: list[Let]) -> list[str]:
    """Return the names of the arrays from which it reads the elements that others select."""
    selections = [let.expr for let in expression if isinstance(let.expr, ast.Subscript)]
    return [n for expr in selections for n in names_in(expr.value)]


class Elements:
    """Finds the operations of one function that a loop can do.

    Parameters
    ----------
    function
        The function, in normal form with types.
    """

    def __init__(self, function: FunctionIR) -> None:
        self.types = function.types
        self.statics = function.statics

    def are_computed(self, statement: Any) -> bool:
        """Whether a statement is an operation on the elements of arrays that a loop can do."""
        if not isinstance(statement, Let):
            return False
        kind: Any = self.types.get(statement.target)
        if not is_array(kind) or not 0 < kind.ndim <= _MOST_AXES or kind.layout == "F":
            return False
        if kind.dtype == types.boolean:
            return self._are_compared(statement.expr)
        if kind.dtype not in _NUMBERS:
            return False
        if self._are_chosen(statement.expr, kind.dtype):
            return True
        operands = self._operands(statement.expr)
        return bool(operands) and all(map(self._is_number, operands))

    def is_masked(self, store: Store) -> bool:
        """Whether a number is stored where elements of an array of the same shape are true."""
        kind: Any = self.types.get(store.array)
        mask = self._kind(store.index)
        return (
            _is_of_numbers(kind)
            and self._is_truth(store.index)
            and is_array(mask)
            and mask.ndim == kind.ndim <= _MOST_AXES
            and not is_array(self._kind(store.value))
            and self._is_number(store.value)
        )

    def _kind(self, operand: ast.expr) -> Any:
        return self.types.get(name_of(operand))

    def _callee(self, call: ast.Call) -> Any:
        """Return the function that is called."""
        return self.statics.get(name_of(call.func))

    def _are_compared(self, expr: ast.expr) -> bool:
        """Whether numbers are compared, or truths are combined."""
        match expr:
            case ast.Compare(left, _, others):
                return all(map(self._is_number, [left, *others]))
            case ast.BinOp(left, ast.BitAnd() | ast.BitOr(), right):
                return self._is_truth(left) and self._is_truth(right)
        return False

    def _are_chosen(self, expr: ast.expr, dtype: Any) -> bool:
        """Whether elements, or numbers, of the same type are chosen by truths."""
        match expr:
            case ast.Call(_, [truth, *values], []) if len(values) == 2:
                if self._callee(expr) is not np.where:
                    return False
            case _:
                return False
        if not self._is_truth(truth) or not all(map(self._is_number, values)):
            return False
        named = [kind for value in values if (kind := self._kind(value)) is not None]
        same = [(kind.dtype if is_array(kind) else kind) == dtype for kind in named]
        constants = [value for value in values if isinstance(value, ast.Constant)]
        return all(same) and len(named) + len(constants) == len(values)

    def _operands(self, expr: ast.expr) -> list[ast.expr]:
        """Return the operands of an operation on numbers; empty for others."""
        match expr:
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
                return [left, right]
            case ast.BinOp(left, ast.Pow(), right):
                return [left, right] if self._is_float(left) or self._is_float(right) else []
            case ast.UnaryOp(ast.USub(), operand):
                return [operand]
            case ast.Subscript(_, index) if self._is_taken(expr):
                return [index]
            case ast.Call(_, arguments) if isinstance(callee := self._callee(expr), np.ufunc):
                return arguments if isinstance(op_of(callee, expr), Elementwise) else []
        return []

    def _is_taken(self, expr: ast.Subscript) -> bool:
        """Whether an expression is the elements of a vector that a vector of integers selects."""
        index, table = self._kind(expr.slice), self._kind(expr.value)
        if table is None:
            fixed = self.statics.get(text_of(expr.value))
            table = typeof(fixed) if isinstance(fixed, np.ndarray) else None
        is_vector = _is_of_numbers(table) and table.ndim == 1
        return is_vector and is_array(index) and index.ndim == 1 and index.dtype == types.int64

    def _is_float(self, operand: ast.expr) -> bool:
        """Whether an operand is a float, or an array of them."""
        if isinstance(operand, ast.Constant):
            return isinstance(operand.value, float)
        kind = self._kind(operand)
        return isinstance(kind.dtype if is_array(kind) else kind, types.Float)

    def _is_number(self, operand: ast.expr) -> bool:
        """Whether an operand is a number of 64 bits, or an array of them."""
        match operand:
            case ast.Constant(value):
                return type(value) in (int, float)
            case ast.Name(id=name):
                kind: Any = self.types.get(name)
                if is_array(kind):
                    return kind.ndim > 0 and _is_of_numbers(kind)
                is_fixed = kind is None and type(self.statics.get(name)) in (int, float)
                return kind in _NUMBERS or is_fixed
        return False

    def _is_truth(self, operand: ast.expr) -> bool:
        """Whether an operand is a truth, or an array of them."""
        kind = self._kind(operand)
        return (kind.dtype if is_array(kind) and kind.ndim > 0 else kind) == types.boolean


def _is_of_numbers(kind: Any) -> bool:
    return is_array(kind) and kind.dtype in _NUMBERS
