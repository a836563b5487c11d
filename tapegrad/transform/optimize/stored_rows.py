"""Kept values that an array holds anyway are read from there, and not kept on the tape.

A loop that computes elements of a new array often needs the same values for its reverse::

    row = runtime.row(tape, top, trips)
    for j in range(n):                      for j in range(n):
        z[i, j] = v                             z[i, j] = v
        row[j] = v
    ...                                     ...
    row = runtime.row(tape, top, trips)
    for j in range(n):                      for j in range(n):
        v = row[j]                              v = z[i, j]

Nothing else may write to the array, and each iteration has an element of its own.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from numba.core import types

from tapegrad.transform.facts import SHAPE_ATTRIBUTES
from tapegrad.transform.frontend.liveness import times_assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.ir import names_in
from tapegrad.transform.nodes import integer
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import MAKERS, is_plain_array
from tapegrad.transform.optimize.rows import Rows, drop_rows, filled, loops_with_rows
from tapegrad.transform.sharing.calls import VIEWS, effect_of, inputs_of
from tapegrad.transform.sharing.flow import Flow
from tapegrad.transform.syntax import (
    array_of,
    blocks_of,
    callee_of,
    is_loop,
    leaves,
    name_of,
    nodes_in,
    subtree,
    text_of,
)
from tapegrad.transform.trees import complete


def read_stored_rows(function: Function) -> bool:
    """Read kept values from arrays that hold them; return whether there are any."""
    tree = function.tree
    pairs: dict[tuple[str, ...], list[Rows]] = {}
    for rows in loops_with_rows(tree.body):
        pairs.setdefault((text_of(rows.statement.target), *rows.names), []).append(rows)
    search = _Search(tree, function.facts, function.analyses.flow)
    found = []
    for pair in pairs.values():
        if sorted(rows.is_forward for rows in pair) == [False, True]:
            forward, backward = sorted(pair, key=lambda rows: not rows.is_forward)
            if stored := search.stored(forward, backward):
                found.append((forward, backward, stored))
    for _, backward, stored in found:
        _read(backward, stored)
    halves = [(rows, stored) for *pair, stored in found for rows in pair]
    for rows, stored in sorted(halves, key=lambda half: -half[0].first):
        drop_rows(rows, stored)  # the last of a block first: the places of others stay
    read = used(tree)
    for rows, _ in halves:
        if rows.trips not in read:
            rows.block[:] = [node for node in rows.block if _name(node) != rows.trips]
    return bool(found)


class _Search:
    """The search for arrays that hold what loops of a function keep."""

    def __init__(self, tree: ast.FunctionDef, facts: Facts, flow: Flow) -> None:
        self.tree, self.facts, self.flow = tree, facts, flow
        self.uses = Counter(names_in(tree))
        self.assigned = times_assigned([tree])

    def stored(self, forward: Rows, backward: Rows) -> dict[str, ast.Subscript]:
        """Return the rows of a loop that an array holds, with the elements of the array."""
        self.loop = forward.statement
        halves = (forward, backward)
        self.around = [_loops_around(self.tree.body, rows.statement) for rows in halves]
        return {name: place for name in backward.names if (place := self.place_of(name))}

    def place_of(self, row: str) -> ast.Subscript | None:
        """Return the element of an array that holds what a row keeps, None if there is none."""
        match [node for node in self.loop.body if filled(node) == row]:
            case [ast.Assign(_, stored) as fill] if self.uses[row] == 4:
                value = text_of(stored)  # the row is made twice, filled once, read once
            case _:
                return None
        if self.facts.kind(value) != types.float64 or times_assigned([self.loop])[value] != 1:
            return None
        for store in self.loop.body:
            match store:
                case ast.Assign([ast.Subscript() as target, *_], kept) if (
                    store is not fill
                    and name_of(kept) == value
                    and not self.is_between(value, fill, store)
                    and self.is_own(target)
                    and self.holds(text_of(target.value))
                ):
                    return target
        return None

    def is_between(self, value: str, *both: ast.stmt) -> bool:
        """Whether a name is assigned between two statements of the loop."""
        first, last = sorted(map(self.loop.body.index, both))
        return times_assigned(self.loop.body[first:last])[value] > 0

    def is_own(self, element: ast.Subscript) -> bool:
        """Whether each iteration has an element of its own, in the reverse loop the same one."""
        targets = []
        for loops in self.around:
            names = [text_of(loop.target) for loop in loops if isinstance(loop, ast.For)]
            times = times_assigned(loops[:1])
            if len(names) < len(loops) or any(times[name] != 1 for name in names):
                return False
            targets.append(names)
        parts = leaves(element.slice)
        own = set(map(name_of, parts)) - {""}
        others = [integer(part) for part in parts if not name_of(part)]
        if targets[0] != targets[1] or set(targets[0]) != own:
            return False
        return all(number is not None and number >= 0 for number in others)

    def holds(self, array: str) -> bool:
        """Whether an array is made once, before all loops, and written to by one statement."""
        kind = self.facts.kind(array)
        if not is_plain_array(kind) or self.assigned[array] != 1 or array in self.flow.kept:
            return False
        match [node for node in self.tree.body if _name(node) == array]:
            case [ast.Assign(_, call)] if callee_of(call) in MAKERS:
                return self.flow.reached([array]) == {array} and self.is_only_read(array)
        return False

    def is_only_read(self, array: str) -> bool:
        """Whether an array is used by what makes it, by what fills it, and otherwise only read."""
        read = 2
        for node in subtree(self.tree):
            match node:
                case ast.Attribute(ast.Name(id=name), attribute) if name == array:
                    read += attribute in SHAPE_ATTRIBUTES
                case ast.Subscript(ast.Name(id=name), _, ast.Load()) if name == array:
                    read += self.is_element(node)
                case ast.Call():
                    read += sum(name_of(argument) == array for argument in _only_read(node))
        return read == self.uses[array]

    def is_element(self, node: ast.Subscript) -> bool:
        """Whether an expression is one element of an array, and no view."""
        parts = leaves(node.slice)
        is_view = any(isinstance(part, ast.Slice) for part in parts)
        return not is_view and len(parts) == self.facts.kind(array_of(node)).ndim


def _loops_around(
    body: list[ast.stmt], loop: ast.For, around: tuple[ast.stmt, ...] = ()
) -> list[ast.stmt]:
    """Return the loops around a loop, from the outermost to itself."""
    for node in body:
        if node is loop:
            return [*filter(is_loop, around), node]
        for block in blocks_of(node):
            if found := _loops_around(block, loop, (*around, node)):
                return found
    return []


def _only_read(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments of a call that it reads and that its result does not share."""
    name = text_of(call.func).rpartition(".")[2]
    if call.keywords:
        return
    effect = effect_of(text_of(call.func))
    if effect is not None and effect.adds_to is not None:
        yield from (arg for place, arg in enumerate(call.args) if place != effect.adds_to)
    elif name not in VIEWS and (inputs := inputs_of(call)) is not None:
        yield from call.args[:inputs]


def _read(backward: Rows, stored: dict[str, ast.Subscript]) -> None:
    """Let a reverse loop read values from arrays."""
    for node in nodes_in(backward.statement, ast.Subscript):
        if (value := name_of(node.value)) in stored:
            made = complete(stored[value])
            node.value, node.slice = made.value, made.slice


def _name(node: ast.stmt) -> str:
    """Return the name that a statement assigns, "" for other statements."""
    return text_of(node.targets[0]) if isinstance(node, ast.Assign) else ""
