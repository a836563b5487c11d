"""Loops that raise all numbers of an array to all exponents of another one become calls.

For example::

z = np.empty((n, m))                    z = np.empty((n, m))
for i in range(n):                      runtime.outer_power(x[:n], y[:m], z)
    for j in range(m):
        a = x[i]
        b = y[j]
        c = a ** b
        z[i, j] = c
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from numba.core import types

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import element_of, is_number
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import MAKERS, is_plain_array, uses_of
from tapegrad.transform.syntax import binding, blocks_in, callee_of, key_of, leaves
from tapegrad.transform.trees import quoted, quoted_block

_EXPONENTS = (types.float64, types.int64)


@dataclass
class Element:
    """An element of an array: its name, and the parts of the index, names or 0."""

    array: str
    index: list[ast.expr]

    def all(self, count: ast.expr) -> ast.expr:
        """Return as many elements of a row or column."""
        stop = count if isinstance(count, ast.Constant) else quoted("max(n, 0)", n=count)
        whole = ast.Slice(None, stop, None)
        parts = [part if is_number(part, 0) else whole for part in self.index]
        return element_of(self.array, parts)


@dataclass
class OuterPower:
    """Loops that compute powers.

    Attributes
    ----------
    block, place
        The block that they are in, and their place there.
    base, exponents, result
        Elements of the arrays.
    rows, columns
        How many there are.
    """

    block: list[ast.stmt]
    place: int
    base: Element
    exponents: Element
    result: Element
    rows: ast.expr
    columns: ast.expr

    def write(self) -> None:
        """Replace the loops."""
        x, y = self.base.all(self.rows), self.exponents.all(self.columns)
        call = quoted_block("runtime.outer_power(x, y, z)", x=x, y=y, z=self.result.array)
        self.block[self.place : self.place + 1] = call


def call_outer_powers(function: Function) -> bool:
    """Call a function in place of loops that are nothing but powers; return whether there are any.

    Where numba checks indices, they stay as they are.
    """
    if function.generated.made_from.targetoptions.get("boundscheck"):
        return False
    blocks = blocks_in(function.tree.body)
    found = [power for block in blocks for power in _in_block(block, function.facts)]
    found = [power for power in found if _is_all(power, function.analyses.live_after)]
    for power in found:
        power.write()
    return bool(found)


def _is_all(power: OuterPower, after: dict[int, set[str]]) -> bool:
    """Whether nothing but the powers is read later."""
    loop = power.block[power.place]
    return not after[id(loop)] & {*assigned([loop])} - {power.result.array}


def _in_block(block: list[ast.stmt], facts: Facts) -> Iterator[OuterPower]:
    for place, outer in enumerate(block):
        match outer:
            case ast.For(row, over, [ast.For(column, under, body, [])], []):
                rows, columns = _stop(over), _stop(under)
            case _:
                continue
        names = _powers(body, row, column)
        if rows is None or columns is None or names is None:
            continue
        if (used(rows) | used(columns)) & {*assigned([outer])}:
            continue
        power = OuterPower(block, place, *names, rows, columns)
        if _is_known(power, facts) and _is_new(block[:place], power.result.array):
            yield power


def _stop(over: ast.expr) -> ast.expr | None:
    """Return how often a loop over 0, 1, 2, ... runs: a name or a number."""
    match over:
        case ast.Call(ast.Name(id="range"), [ast.Name() | ast.Constant() as stop]):
            return stop
    return None


def _powers(
    body: list[ast.stmt], row: ast.expr, column: ast.expr
) -> tuple[Element, Element, Element] | None:
    """Return the arrays of a base, an exponent and their power, if a body computes nothing else."""
    found = list(filter(None, map(binding, body[:-1])))
    values, zero = dict(found), ast.Constant(0)
    if len(found) < len(body) - 1 or len(values) != 3:
        return None
    match body[-1]:
        case ast.Assign([target, *_], ast.Name(id=name)):
            result = _element(target, [row, column])
        case _:
            return None
    match values.get(name):
        case ast.BinOp(ast.Name(id=left), ast.Pow(), ast.Name(id=right)):
            base = _element(values.get(left), [row], [row, zero])
            exponents = _element(values.get(right), [column], [zero, column])
            return (base, exponents, result) if base and exponents and result else None
    return None


def _element(value: ast.expr | None, *indices: list[ast.expr]) -> Element | None:
    """Return the element that an expression is, if its index is one of some."""
    match value:
        case ast.Subscript(ast.Name(id=array), index):
            parts = leaves(index)
            return Element(array, parts) if key_of(parts) in map(key_of, indices) else None
    return None


def _is_known(power: OuterPower, facts: Facts) -> bool:
    """Whether the arrays have types that there is a function for."""
    elements = (power.base, power.exponents, power.result)
    if power.result.array in (power.base.array, power.exponents.array):
        return False
    kinds = [facts.kind(element.array) for element in elements]
    if not all(map(is_array, kinds)):
        return False
    base, exponents, result = kinds
    return (
        [kind.ndim for kind in kinds] == [len(element.index) for element in elements]
        and base.dtype == types.float64
        and exponents.dtype in _EXPONENTS
        and is_plain_array(result)
    )


def _is_new(before: list[ast.stmt], array: str) -> bool:
    """Whether statements make an array and use nothing but its shape: no other shares memory."""
    for node in reversed(before):
        if array in assigned([node]):
            return isinstance(node, ast.Assign) and callee_of(node.value) in MAKERS
        if uses_of(node, [array]):
            return False
    return False
