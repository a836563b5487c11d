"""Operators of tensors: public functions that leave operands to other classes' operators."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from tapegrad.ops.table.op import refuse_masked


def operator_of(function: Any) -> Callable[..., Any]:
    """Return the public function of a binary elementwise op as an operator.

    It is the same code, but returns NotImplemented for operands that want it (`wants_its_own`).
    """
    scope = dict(function.__globals__)
    scope["is_left"] = _is_left
    for name in ("apply_op", "apply_to_duals"):
        scope[name] = deferring(scope[name])
    known = scope["general"]
    scope["general"] = FunctionType(known.__code__.replace(), scope)
    if function is known:
        return scope["general"]
    return FunctionType(function.__code__.replace(), scope, argdefs=function.__defaults__)


def deferring(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of an op and its two operands which may return NotImplemented."""

    def computed(op: Any, operands: Any, *rest: Any) -> Any:
        try:
            return compute(op, operands, *rest)
        except TypeError:
            if wants_its_own(operands[1]):
                return NotImplemented
            raise

    return computed


def wants_its_own(value: Any) -> bool:
    """Whether a second operand asks, as NumPy has it, for its own reflected operator."""
    return getattr(type(value), "__array_ufunc__", True) is None


def _is_left(value: Any) -> bool:
    refuse_masked(value)
    return wants_its_own(value)
