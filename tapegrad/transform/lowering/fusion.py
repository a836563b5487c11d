"""Array expressions become loops over elements before they are differentiated.

numba compiles ``y + 0.5 * h * k`` as one loop, without arrays for the parts. So does this pass,
with statements of the normal form: the derivative of the loop keeps and recomputes single numbers,
where the derivative of each operation on whole arrays would keep an array and make two others.

An expression is a list of elementwise operations, each used once by a later one. Its loop is where
its value is used, or before the next statement that may write an array. One that is only summed, or
stored in a part of an array that it does not read, needs no array at all. Elements that an array of
integers selects, as in ``y[i] * (1.0 - w)``, are read in the loop.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform import runtime
from tapegrad.transform.ir import (
    Block,
    Carried,
    Effect,
    FunctionIR,
    If,
    Let,
    Loop,
    Phi,
    Store,
    constant,
    defined,
    leaves_of,
    name,
    names_in,
    names_of,
    reads,
    replace_names,
    take,
    walk,
)
from tapegrad.transform.kinds import is_array, may_share
from tapegrad.transform.lowering import callees
from tapegrad.transform.lowering.elements import Elements, leaves, tables
from tapegrad.transform.lowering.extents import Extents, Key
from tapegrad.transform.nodes import integer
from tapegrad.transform.sharing.flow import Flow, flow_of
from tapegrad.transform.syntax import items_of, key_of, name_of

_DTYPES = {types.int64: ("np.int64", np.int64), types.boolean: ("np.bool_", np.bool_)}


def fuse(function: FunctionIR) -> None:
    """Replace the array expressions of a function, in normal form with types, by loops."""
    Fusion(function).run()


class Fusion:
    """The pass over one function.

    Parameters
    ----------
    function
        The function.
    """

    def __init__(self, function: FunctionIR) -> None:
        self.function = function
        self.types = function.types
        self.elements = Elements(function)
        self.extents = Extents(function)
        self.taken = names_of(function)
        self.block: Block = []
        self.pending: dict[str, list[Let]] = {}  # expressions, by the names of their values
        self.sizes: dict[Key, ast.Name] = {}  # names of extents, by their keys
        self.indices: dict[Hashable, Let] = {}  # computed from those of loops ...
        self.loop_of: dict[str, str] = {}  # ... and the index of the loop, by their names
        self.line = 0
        self.result = ""  # of the last expression
        self.keys: list[Key] = []  # of its extents
        self.uses: Counter[str] = Counter()
        for statement in walk(function.body):
            self.uses.update(reads(statement))
        if function.result is not None:
            self.uses.update(n for leaf in leaves_of(function.result) for n in names_in(leaf))

    @functools.cached_property
    def flow(self) -> Flow:
        """Where its arrays may go."""
        return flow_of(self.function)

    def run(self) -> None:
        if any(self.elements.are_computed(s) for s in walk(self.function.body)):
            self.note_sizes(self.function.params)
            self.function.body = self.fused(self.function.body)

    def fused(self, block: Block) -> Block:
        """Return a block with loops for its array expressions."""
        outer, self.block = self.block, []
        pending, self.pending = self.pending, {}
        sizes, self.sizes = self.sizes, dict(self.sizes)
        for statement in block:
            self.statement(statement)
            self.note_sizes(defined(statement))
        self.flush()
        found, self.block, self.pending, self.sizes = self.block, outer, pending, sizes
        return found

    def note_sizes(self, names: Iterable[str]) -> None:
        """Note the extents that numbers are equal to."""
        for number in names:
            if self.types.get(number) == types.int64:
                key = self.extents.of_number(name(number))
                if key is not None:
                    self.sizes.setdefault(key, name(number))

    def statement(self, statement: Any) -> None:
        if self.elements.are_computed(statement):
            self.enter(statement)
            return
        if isinstance(statement, Let) and (summed := self.summed(statement)) is not None:
            self.line = statement.line
            expression = self.pending.pop(summed)
            if is_array(self.types[statement.target]):
                self.sum_last(statement, expression)
            else:
                self.sum(statement, expression)
            return
        if isinstance(statement, Store) and (part := self.selected(statement)) is not None:
            self.store(statement, part)
            return
        if isinstance(statement, Store) and self.elements.is_masked(statement):
            self.store_where(statement)
            return
        inside = list(walk([statement]))
        if any(self.may_write(inner) for inner in inside):
            self.flush()
        else:
            read = {n for inner in inside for n in reads(inner)}
            for target in [n for n in self.pending if n in read]:
                self.write(self.pending.pop(target))
        if isinstance(statement, If):
            statement.then = self.fused(statement.then)
            statement.orelse = self.fused(statement.orelse)
        elif isinstance(statement, Loop):
            statement.test = self.fused(statement.test)
            statement.body = self.fused(statement.body)
        self.block.append(statement)

    def may_write(self, statement: Any) -> bool:
        """Whether a statement may write an array, or end the function."""
        if isinstance(statement, Let):
            return callees.may_write(statement, self.function.statics) and any(
                may_share(self.types.get(n)) for n in names_in(statement.expr)
            )
        return isinstance(statement, (Store, Effect))

    # -- expressions --------------------------------------------------------------------------

    def enter(self, let: Let) -> None:
        """Enter an operation, which waits for its use if there is only one."""
        self.line = let.line
        for table in tables([let]):
            if table in self.pending:  # elements are selected from an array
                self.write(self.pending.pop(table))
        operands = [self.pending.pop(n) for n in names_in(let.expr) if n in self.pending]
        expression = [*itertools.chain(*operands), let]
        if self.uses[let.target] == 1:
            self.pending[let.target] = expression
        else:
            self.write(expression)

    def summed(self, let: Let) -> str | None:
        """Return the pending array whose elements a statement sums, None for others.

        It sums all of them, or those along the last axis.
        """
        match let.expr:
            case ast.Call(ast.Attribute(ast.Name(id=array), "sum"), more, keywords):
                pass
            case ast.Call(ast.Name(id=function), [ast.Name(id=array), *more], keywords):
                if self.function.statics.get(function) is not np.sum:
                    return None
            case _:
                return None
        if array not in self.pending:
            return None
        more = [*more, *[k.value if k.arg == "axis" else name(str(k.arg)) for k in keywords]]
        kind: Any = self.types.get(let.target)
        if not more:
            return array if kind == types.float64 else None
        ndim = self.types[array].ndim
        is_last = len(more) == 1 and integer(more[0]) in (-1, ndim - 1)
        is_new = _is_of_floats(kind) and kind.layout == "C"
        return array if is_last and is_new else None

    def selected(self, store: Store) -> list[ast.expr | int | None] | None:
        """Return the part of an array in which a store puts a pending array, None for others.

        It is an index for each axis: of elements, or where the values of an axis begin.
        """
        stored = name_of(store.value)
        kind: Any = self.types.get(store.array)
        if stored not in self.pending or not _is_of_floats(kind):
            return None
        found = self.part(store.index, kind.ndim)
        if found is None:
            return None
        slices = [part for part in found if isinstance(part, int)]
        if len(slices) != self.types[stored].ndim:
            return None
        expression = self.pending[stored]
        read = dict.fromkeys([*leaves(expression), *tables(expression)])
        arrays = [n for n in read if is_array(self.types.get(n))]
        return found if self.flow.are_apart(store.array, arrays) else None

    def part(self, index: ast.expr, ndim: int) -> list[ast.expr | int | None] | None:
        """Return the part of an array that an index selects, None if it is not a simple one.

        It is an index for each axis: of elements, or where those of an axis begin; None for a whole
        axis.
        """
        parts = items_of(index)
        found: list[ast.expr | int | None] = []
        for part in [*parts, *[ast.Slice()] * (ndim - len(parts))]:
            match part:
                case ast.Slice(None, None, None):
                    found.append(None)
                case ast.Slice(lower, _, None):
                    first = 0 if lower is None else integer(lower)
                    if first is None or first < 0:
                        return None
                    found.append(first)
                case _:
                    is_named = isinstance(self.types.get(name_of(part)), types.Integer)
                    if not is_named and integer(part) is None:
                        return None
                    found.append(part)
        return found if len(found) == ndim else None

    def store(self, store: Store, part: list[ast.expr | int | None]) -> None:
        """Append a store of a pending array in part of an array, its place on each axis.

        Where the part may have another shape, an array of the values is stored instead.
        """
        expression = self.pending.pop(names_in(store.value)[0])
        self.flush()
        indices, counts, body = self.prepared(expression)
        view = ast.Subscript(name(store.array), store.index, ast.Load())
        wanted = [self.extents.of_part(view, axis) for axis in range(len(counts))]
        if wanted != self.keys:
            self.fill(expression[-1].target, counts, indices, body, self.result)
            self.block.append(store)
            return
        self.line = store.line
        places = self.placed(indices, part)
        body.append(Store(store.array, _subscript(places), name(self.result), store.op, store.line))
        self.nest(indices, counts, body)

    def store_where(self, store: Store) -> None:
        """Append a store of a number where elements of an array of truths are true."""
        mask = store.index
        assert isinstance(mask, ast.Name)
        expression = self.pending.pop(mask.id, None)
        self.flush()
        self.line = store.line
        if expression is not None:
            read = [*[n for n in leaves(expression) if n != store.array], *tables(expression)]
            arrays = [n for n in dict.fromkeys(read) if is_array(self.types.get(n))]
            if arrays and not self.flow.are_apart(store.array, arrays):
                self.write(expression)
                expression = None
        if expression is None:
            expression = [Let(self.fresh("mask", self.types[mask.id]), mask, store.line)]
        indices, counts, body = self.prepared(expression)
        place = _subscript(indices)
        stored = Store(store.array, place, store.value, store.op, store.line)
        self.line = store.line
        body.append(If(name(self.result), [stored], [], [], store.line))
        self.nest(indices, counts, body)

    def placed(self, indices: list[Any], part: list[ast.expr | int | None]) -> list[Any]:
        """Return indices in an array for those in a part of it."""
        remaining = iter(indices)
        return [
            place if isinstance(place, ast.expr) else self.moved(next(remaining), place or 0)
            for place in part
        ]

    def moved(self, index: ast.Name, first: int) -> ast.Name:
        """Return an index in an array of an index in a part of it."""
        return self.computed(index, ast.Add(), constant(first)) if first else index

    def computed(self, index: ast.Name, op: ast.operator, other: ast.expr) -> ast.Name:
        """Return an index that is computed from that of a loop, at the beginning of its body."""
        key = index.id, key_of(op), key_of(other)
        if key not in self.indices:
            target = self.fresh("i", types.int64)
            self.indices[key] = Let(target, ast.BinOp(index, op, other), self.line)
            self.loop_of[target] = self.loop_of.get(index.id, index.id)
        return name(self.indices[key].target)

    def element_of(self, array: str, indices: list[Any], fixed: Sequence[Any] = ()) -> ast.expr:
        """Return an element of an array; of a view, that of the array with the memory.

        An index that is `fixed`, as in ``a[1:][k]``, may count from the end of its axis. So it is
        one of the array around only where the view has the whole axis.
        """
        match self.extents.made.get(array):
            case Let(expr=ast.Subscript(ast.Name(id=base), index)):
                kind: Any = self.types.get(base)
                part = self.part(index, kind.ndim) if is_array(kind) else None
                axes = [place for place in part or () if not isinstance(place, ast.expr)]
                if part is not None and not any(
                    place is not None and any(index is other for other in fixed)
                    for index, place in zip(indices, axes, strict=True)
                ):
                    fixed = [*fixed, *(place for place in part if isinstance(place, ast.expr))]
                    return self.element_of(base, self.placed(indices, part), fixed)
        return ast.Subscript(name(array), _subscript(indices), ast.Load())

    def flush(self) -> None:
        """Write the loops of all that waits."""
        pending, self.pending = self.pending, {}
        for expression in pending.values():
            self.write(expression)

    # -- loops --------------------------------------------------------------------------------

    def fresh(self, stem: str, kind: Any) -> str:
        found = take(stem, self.taken)
        self.types[found] = kind
        return found

    def let(self, stem: str, kind: Any, expr: ast.expr) -> ast.Name:
        """Append an operation with a new name."""
        target = self.fresh(stem, kind)
        self.block.append(Let(target, expr, self.line))
        return name(target)

    def call(self, text: str, function: Any, *arguments: ast.expr) -> ast.Call:
        """Return a call of a function by the name that it has in generated code."""
        self.function.statics.setdefault(text, function)
        return ast.Call(name(text), list(arguments), [])

    def extent(self, key: Key, array: str, axis: int) -> ast.Name:
        """Return a name of the extent of an axis; append the extent if it has none.

        A name that is there already serves better than the array, which the reverse code would need
        only for this.
        """
        if key not in self.sizes:
            self.sizes[key] = self.measured(key, array, axis)
        return self.sizes[key]

    def measured(self, key: Key, array: str, axis: int) -> ast.Name:
        """Append the extent of an axis."""
        if (fixed := self.extents.constant(key)) is not None:
            return self.let("n", types.int64, constant(fixed))
        taken = self.extents.taken_from(key)
        if taken is not None and taken[0] in self.sizes:
            size, cut = self.sizes[taken[0]], constant(taken[1])
            call = self.call("runtime.shortened", runtime.shortened, size, cut)
            return self.let("n", types.int64, call)
        ndim = self.types[array].ndim
        if ndim == 1:
            return self.let("n", types.int64, ast.Attribute(name(array), "size", ast.Load()))
        shape = self.let(
            "shape",
            types.UniTuple(types.int64, ndim),
            ast.Attribute(name(array), "shape", ast.Load()),
        )
        return self.let("n", types.int64, ast.Subscript(shape, constant(axis), ast.Load()))

    def write(self, expression: list[Let]) -> None:
        """Append a new array for the value of an expression, and the loop that computes it."""
        indices, counts, body = self.prepared(expression)
        self.fill(expression[-1].target, counts, indices, body, self.result)

    def prepared(self, expression: list[Let]) -> tuple[list[ast.Name], list[ast.Name], Block]:
        """Append the extents of a value; return its indices, extents, and what an element takes."""
        counts, steps = self.shape(expression)
        indices = [name(self.fresh("i", types.int64)) for _ in counts]
        return indices, counts, self.inside(expression, indices, steps)

    def fill(
        self,
        target: str,
        counts: list[ast.Name],
        indices: list[ast.Name],
        body: Block,
        result: str,
    ) -> None:
        """Append a new array, and the loops over statements that compute its elements."""
        shape: ast.expr = counts[0]
        if len(counts) > 1:
            kind = types.UniTuple(types.int64, len(counts))
            shape = self.let("shape", kind, ast.Tuple(list(counts), ast.Load()))
        made = self.call("np.empty", np.empty, shape)
        dtype = self.types[target].dtype
        if dtype in _DTYPES:
            text, static = _DTYPES[dtype]
            self.function.statics.setdefault(text, static)
            made.args.append(name(text))
        self.types[target] = types.Array(dtype, len(counts), "C")
        self.block.append(Let(target, made, self.line))
        place = _subscript(indices)
        body.append(Store(target, place, name(result), "", self.line, every=True))
        self.nest(indices, counts, body)

    def nest(self, indices: list[ast.Name], counts: list[ast.Name], body: Block) -> None:
        """Append loops over statements."""
        for index, count in zip(reversed(indices), reversed(counts), strict=True):
            body = [self.loop(index, count, body, [])]
        self.block += body

    def sum_last(self, let: Let, expression: list[Let]) -> None:
        """Append a new array for the sums of a value along its last axis, and their loops."""
        indices, counts, body = self.prepared(expression)
        total = self.fresh("total", types.float64)
        body = [self.adding(indices[-1:], counts[-1:], body, total)]
        self.extents.set(let.target, self.keys[:-1])
        self.fill(let.target, counts[:-1], indices[:-1], body, total)

    def sum(self, let: Let, expression: list[Let]) -> None:
        """Append the loops that sum the value of an expression."""
        self.block.append(self.adding(*self.prepared(expression), let.target))

    def adding(
        self, indices: list[ast.Name], counts: list[ast.Name], body: Block, out: str
    ) -> Loop:
        """Return the loops that add the results of their body to a number."""
        total = self.fresh("total", types.float64)
        phis = [self.fresh("total", types.float64) for _ in counts]
        body.append(Let(total, ast.BinOp(name(phis[-1]), ast.Add(), name(self.result)), self.line))
        for depth in range(len(counts) - 1, -1, -1):
            first: ast.expr = name(phis[depth - 1]) if depth else constant(0.0)
            after = self.fresh("total", types.float64) if depth else out
            entry = Carried(phis[depth], first, name(total), after)
            loop = self.loop(indices[depth], counts[depth], body, [entry])
            body, total = [loop], after
        return loop

    def loop(self, index: ast.Name, count: ast.Name, body: Block, carried: list[Carried]) -> Loop:
        """Return a loop over statements."""
        bounds = constant(0), count, constant(1)
        trips = self.fresh("trips", types.int64)
        before = [let for let in self.indices.values() if self.loop_of[let.target] == index.id]
        return Loop(index.id, bounds, [], None, [*before, *body], None, carried, trips, self.line)

    def shape(self, expression: list[Let]) -> tuple[list[ast.Name], dict[str, list[Any]]]:
        """Append the extents of an expression's value.

        Returns them, and for each array the step along each of its axes: 0 or 1, None if it is
        known to be 1.
        """
        target = expression[-1].target
        arrays = [n for n in dict.fromkeys(leaves(expression)) if is_array(self.types.get(n))]
        ndim = self.types[target].ndim
        counts: list[ast.Name] = []
        keys: list[Key] = []
        steps: dict[str, list[Any]] = {n: [None] * self.types[n].ndim for n in arrays}
        for turn in range(ndim):
            found: dict[Key, list[tuple[str, int]]] = {}
            for array in arrays:
                axis = turn - ndim + self.types[array].ndim
                if axis >= 0:
                    found.setdefault(self.extents.of(array, axis), []).append((array, axis))
            sizes = {key: self.extent(key, *same[0]) for key, same in found.items()}
            if len(found) > 1:
                keys.append(("broadcast", frozenset(found)))
                self.broadcast(keys[-1], sizes)
                for key, same in found.items():
                    for array, axis in same:
                        steps[array][axis] = self.sizes["step", key, keys[-1]]
            else:
                keys.extend(found)
            counts.append(self.sizes[keys[-1]])
        self.keys = keys
        self.extents.set(target, keys)
        return counts, steps

    def broadcast(self, whole: Key, sizes: dict[Key, ast.Name]) -> None:
        """Append what several extents are broadcast to, and their steps, unless they are there."""
        if whole in self.sizes:
            return
        count, *others = sizes.values()
        for other in others:
            call = self.call("runtime.broadcast", runtime.broadcast, count, other)
            count = self.let("n", types.int64, call)
        self.sizes[whole] = count
        for key, size in sizes.items():
            call = self.call("runtime.stride", runtime.stride, size, count)
            self.sizes["step", key, whole] = self.let("step", types.int64, call)

    def inside(
        self, expression: list[Let], indices: list[ast.Name], steps: dict[str, list[Any]]
    ) -> Block:
        """Return the statements that compute one element of a value; `result` names it."""
        outer, self.block = self.block, []
        known: dict[str, ast.expr] = {}
        for array, along in steps.items():
            first = len(indices) - len(along)
            places = [
                index if step is None else self.computed(index, ast.Mult(), step)
                for index, step in zip(indices[first:], along, strict=True)
            ]
            target = self.fresh("item", self.types[array].dtype)
            item = self.element_of(array, places)
            self.block.append(Let(target, item, self.line, every=True))
            known[array] = name(target)
        for let in expression:
            known[let.target] = self.element(let, known)
        (self.result,) = names_in(known[expression[-1].target])
        found, self.block = self.block, outer
        return found

    def element(self, let: Let, known: dict[str, ast.expr]) -> ast.expr:
        """Append an operation on single numbers, of which some are known; return its result."""
        expr, dtype = let.expr, self.types[let.target].dtype
        found = replace_names(expr, known)
        if isinstance(found, ast.Name):
            return found
        self.line = let.line
        match expr, found:
            case ast.Subscript(table), ast.Subscript():
                found.value = table  # which is no operand
            case _, ast.BinOp(left, ast.Div(), right):  # by 0 as for arrays
                found = self.call("np.divide", np.divide, left, right)
            case _, ast.Call(ast.Name(id=function), operands):
                if self.function.statics[function] is np.where:
                    return self.chosen(operands, dtype)
        return self.let("t", dtype, found)

    def chosen(self, operands: list[ast.expr], dtype: Any) -> ast.Name:
        """Append the choice of one of two numbers."""
        truth, *values = operands
        target = self.fresh("t", dtype)
        one, other = (_of_type(value, dtype) for value in values)
        self.block.append(If(truth, [], [], [Phi(target, one, other)], self.line))
        return name(target)


def _of_type(value: ast.expr, dtype: Any) -> ast.expr:
    """Return a value; a constant that is chosen where others are floats is one."""
    match value:
        case ast.Constant(number) if dtype == types.float64 and type(number) is int:
            return constant(float(number))
    return value


def _is_of_floats(kind: Any) -> bool:
    return is_array(kind) and kind.dtype == types.float64


def _subscript(indices: list[Any]) -> ast.expr:
    return indices[0] if len(indices) == 1 else ast.Tuple(list(indices), ast.Load())
