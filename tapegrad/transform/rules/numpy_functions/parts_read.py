"""Which parts of a matrix a function reads, as far as its text says so."""

from __future__ import annotations

import ast

from numba.core import types

from tapegrad.transform.ir import FunctionIR, Let, Loop, leaf_names, makers, reads, walk

Part = tuple[int, int]  # the start and stop of a slice

_END = 2**62
ALL = (0, _END)


class PartsRead:
    """The parts that a function reads.

    Parameters
    ----------
    function
        The function.
    """

    def __init__(self, function: FunctionIR) -> None:
        self.function = function
        self.makers = makers(function.body)
        self.loops = {s.index: s for s in walk(function.body) if isinstance(s, Loop)}

    def of(self, matrix: str, axis: int) -> set[Part]:
        """Return slices along an axis that all reads of a matrix are in."""
        found: set[Part] = set()
        if matrix in leaf_names(self.function.result):
            found.add(ALL)
        for statement in walk(self.function.body):
            if matrix not in reads(statement):
                continue
            match statement:
                case Let(expr=ast.Attribute(attr="T"), target=turned):
                    found |= self.of(turned, 1 - axis)
                case Let(expr=ast.Subscript(ast.Name(), index), target=shown):
                    indices = index.elts if isinstance(index, ast.Tuple) else [index]
                    if not all(map(self._is_place, indices)):
                        found.add(ALL)
                    elif axis < len(indices):
                        found.add(self._part(indices[axis]))
                    else:
                        left = sum(isinstance(index, ast.Slice) for index in indices)
                        found |= self.of(shown, axis - len(indices) + left)
                case _:
                    found.add(ALL)
        return found

    def _is_place(self, index: ast.expr) -> bool:
        """Whether an index is a number or a slice, which belongs to one axis."""
        match index:
            case ast.Slice():
                return True
            case ast.Name(id=name):
                return isinstance(self.function.types.get(name), types.Integer)
        return self._values(index) is not None

    def _part(self, index: ast.expr) -> Part:
        """Return a slice that an index is in."""
        match index:
            case ast.Slice(lower, upper, None):
                starts = (0, 0) if lower is None else self._values(lower)
                stops = (_END, _END) if upper is None else self._values(upper)
            case _:
                starts = stops = self._values(index)
                if stops is not None:
                    stops = (stops[1] + 1 or _END,) * 2
        if starts is None or stops is None:
            return ALL
        if any(least < 0 <= largest for least, largest in (starts, stops)):
            return ALL  # counted from both ends
        return starts[0], stops[1]

    def _values(self, expr: ast.expr) -> tuple[int, int] | None:
        """Return the least and the largest value that an integer may have, if they are known."""
        match expr:
            case ast.Constant(bool()):
                return None
            case ast.Constant(int(value)):
                return value, value
            case ast.BinOp(left, ast.Add(), right):
                a, b = self._values(left), self._values(right)
                return None if a is None or b is None else (a[0] + b[0], a[1] + b[1])
            case ast.Name(name) if name in self.loops:
                bounds = self.loops[name].bounds or ()
                match [self._values(bound) for bound in bounds]:
                    case [(low, _), (_, stop), (1, 1)]:
                        return low, max(low, stop - 1)
            case ast.Name(name) if isinstance(maker := self.makers.get(name), Let):
                return self._values(maker.expr)
        return None
