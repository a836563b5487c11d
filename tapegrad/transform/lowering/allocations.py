"""Which arrays that a function makes the elements of a name belong to."""

from __future__ import annotations

import ast

import numpy as np

from tapegrad.transform import facts
from tapegrad.transform.ir import Carried, FunctionIR, Let, Phi, makers, names_in
from tapegrad.transform.kinds import is_array

_NEW = tuple(getattr(np, name) for name in facts.MADE)
_OUTSIDE = ""  # stands for all arrays that the function is given


class Allocations:
    """Finds the allocations of arrays: those with none in common share no elements.

    Parameters
    ----------
    function
        The function, in normal form with types.
    """

    def __init__(self, function: FunctionIR) -> None:
        self.types = function.types
        self.statics = function.statics
        self.params = frozenset(function.params)
        self.made = makers(function.body)

    def are_apart(self, array: str, others: list[str]) -> bool:
        """Whether an array was made by the function, and shares no element with others."""
        found = self.of(array)
        if found is None or _OUTSIDE in found:
            return False
        return all((made := self.of(n)) is not None and not made & found for n in others)

    def of(self, array: str) -> set[str] | None:
        """Return the names of the arrays whose elements one may share, None if any could be."""
        found: set[str] = set()
        seen: set[str] = set()
        waiting = [array]
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            sources = self._sources(current)
            if sources is None:
                return None
            if current in sources:
                found.add(current)
            elif _OUTSIDE in sources:
                found.add(_OUTSIDE)
            else:
                waiting += sources
        return found

    def _sources(self, array: str) -> list[str] | None:
        """Return what an array is a view of: itself if it is new."""
        made = self.made.get(array)
        if made is None:
            is_given = array in self.params or isinstance(self.statics.get(array), np.ndarray)
            return [_OUTSIDE] if is_given else None
        if isinstance(made, Let):
            return self._of_value(array, made)
        assert isinstance(made, (Carried, Phi))
        values = (made.init, made.next) if isinstance(made, Carried) else (made.then, made.orelse)
        names = [n for value in values for n in names_in(value)]
        return names if len(names) == sum(value is not None for value in values) else None

    def _of_value(self, array: str, made: Let) -> list[str] | None:
        expr = made.expr
        if made.leaves is not None or not is_array(self.types.get(array)):
            return None
        match expr:
            case ast.Name(id=other):
                return [other]
            case ast.Subscript(ast.Name(id=base)) if is_array(self.types.get(base)):
                return [base]
            case ast.BinOp() | ast.UnaryOp():
                return [array]
            case ast.Call(ast.Attribute(ast.Name(id=base), "copy")):
                return [array] if is_array(self.types.get(base)) else None
            case ast.Call(ast.Name(id=text), arguments, keywords):
                callee = self.statics.get(text)
                if isinstance(callee, np.ufunc):
                    is_new = not keywords and len(arguments) == callee.nin
                else:
                    is_new = any(callee is function for function in _NEW)
                    if callee is np.array:
                        is_new |= isinstance(arguments[0], (ast.List, ast.Tuple))
                return [array] if is_new else None
        return None
