"""Kept elements of one array in one row of the tape.

A loop that reads ``u[i - 1]``, ``u[i]`` and ``u[i + 1]`` keeps three values in each iteration, for
its reverse. They are one part of the array, if the loop does not write it: then the array is copied
to one row before the loop, and the rows that the reverse loop reads begin at different places of
it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass

from tapegrad.transform.builder import Builder
from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.independence.plan import known_offsets, moved, offset_of, range_of
from tapegrad.transform.independence.sums import assignments
from tapegrad.transform.ir import name as as_name
from tapegrad.transform.nodes import element_of, integer, is_number
from tapegrad.transform.optimize import sizes
from tapegrad.transform.optimize.elements import may_raise_error
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import MAKERS, stored_by
from tapegrad.transform.sharing.calls import changes_nothing
from tapegrad.transform.syntax import (
    binding,
    blocks_of,
    callee_of,
    key_of,
    leaves,
    nodes_in,
    text_of,
)
from tapegrad.transform.trees import is_code, quoted

Key = tuple[str, frozenset[str]]  # what forward and reverse loops have in common
Kept = dict[str, tuple[str, list[ast.expr], int]]  # array, other indices and offset of each row


@dataclass
class Rows:
    """A loop with rows of the tape.

    Attributes
    ----------
    block, first, loop
        The statements around it, and the places of the first row and of the loop among them.
    names
        The rows, in order.
    trips
        The name of their length.
    """

    block: list[ast.stmt]
    first: int
    loop: int
    names: list[str]
    trips: str

    @property
    def statement(self) -> ast.For:
        """The loop."""
        found = self.block[self.loop]
        assert isinstance(found, ast.For)
        return found

    @property
    def is_forward(self) -> bool:
        """Whether the loop fills the rows."""
        return isinstance(self.block[self.first - 1], ast.If)


def share_rows(function: Function) -> bool:
    """Let kept elements of one array share a row; return whether there are any.

    The rows that a loop of the function fills are read by a loop of it, or of another function,
    which then changes, too.
    """
    unit = [f for f in function.peers if f.generated.unit is function.generated.unit]
    found: dict[Key, list[tuple[Function, Rows]]] = {}
    for other in unit:
        for rows in loops_with_rows(other.tree.body):
            key = _target(rows.statement), frozenset(rows.names)
            found.setdefault(key, []).append((other, rows))
    raises = function.generated.made_from.targetoptions.get("error_model") != "numpy"
    shared = []
    for pair in found.values():
        forward = [(other, rows) for other, rows in pair if rows.is_forward]
        if len(pair) != 2 or len(forward) != 1 or pair[0][1].names != pair[1][1].names:
            continue
        filling, rows = forward[0]
        if filling is function:
            kept = _kept(rows, function, raises=raises)
            groups = _groups(kept)
            if any(len(group) > 1 for group in groups):
                shared += [(other, rows, kept, groups) for other, rows in pair]
    for other, rows, kept, groups in sorted(shared, key=lambda found: -found[1].first):
        _write(rows, kept, groups)  # the last of a block first: the places of others stay
        other.is_faster = True
        other.drop_analyses()
    return bool(shared)


def loops_with_rows(body: list[ast.stmt]) -> Iterator[Rows]:
    """Yield the loops with rows; those of one block from the last to the first."""
    for place in range(len(body) - 1, -1, -1):
        node = body[place]
        for block in blocks_of(node):
            yield from loops_with_rows(block)
        first = place
        while first and _row_of(body[first - 1]):
            first -= 1
        if isinstance(node, ast.For) and 0 < first < place and _is_known(body, first):
            found = list(filter(None, map(_row_of, body[first:place])))
            lengths = {length for _, length in found}
            if len(lengths) == 1:
                yield Rows(body, first, place, [name for name, _ in found], lengths.pop())


def _row_of(node: ast.stmt) -> tuple[str, str] | None:
    """Return the name and the length of the row that a statement makes."""
    match binding(node):
        case name, ast.Call(_, [_, _, ast.Name(id=length), *_]) as call:
            return (name, length) if callee_of(call) == "runtime.row" else None
    return None


def _is_known(body: list[ast.stmt], first: int) -> bool:
    """Whether the statements before rows are those that make room for them, or go back to them."""
    match body[first - 1]:
        case ast.If(ast.Compare(_, [ast.Gt()], [size])) if is_code(size, "tape.size"):
            return isinstance(body[first - 2], ast.Assign)
        case ast.AugAssign(ast.Name(id="top"), ast.Sub()):
            return True
    return False


def _target(loop: ast.For) -> str:
    return text_of(loop.target)


def _kept(rows: Rows, function: Function, raises: bool) -> Kept:
    """Return the rows that keep elements of arrays which the loop does not write."""
    loop = rows.statement
    start, _, step = range_of(loop.iter)
    if not is_number(step, 1):
        return {}
    made = set(assigned([loop]))
    offsets = known_offsets(loop)
    values: dict[str, list[ast.expr]] = {}
    for name, value in assignments(loop.body):
        values.setdefault(name, []).append(value)
    written = stored_by(loop, function.facts)
    calls = [call for node in loop.body for call in nodes_in(node, ast.Call)]
    if not all(map(changes_nothing, calls)):
        return {}
    may_raise = any(may_raise_error(node, raises) for node in loop.body)
    place: ast.expr = loop.target
    if not is_number(start, 0):
        place = quoted("k - start", k=loop.target, start=start)
    found: Kept = {}
    for node in loop.body:
        name = _row_in(node, place)
        if name not in rows.names:
            continue
        assert isinstance(node, ast.Assign)
        match values.get(text_of(node.value)):
            case [ast.Subscript(ast.Name(id=array), index)] if array not in made:
                parts = leaves(index)
            case _:
                continue
        offset = offset_of(parts[-1], offsets)
        if offset is None or any(used(part) & made for part in parts[:-1]):
            continue
        low = integer(start)
        if may_raise and (parts[:-1] or low is None or low < 0 or low + offset < 0):
            continue  # an iteration with an error may read no such element
        others = {other for other in written - set(rows.names) if not _is_new(other, array, rows)}
        may_share = function.analyses.flow.may_share
        if not any(may_share(array, other) for other in others):
            found[name] = array, parts[:-1], offset
    return found


def _is_new(name: str, array: str, rows: Rows) -> bool:
    """Whether an array is made before a loop, after another one had its name."""
    if name == array:
        return False
    for node in reversed(rows.block[: rows.loop]):
        match binding(node):
            case other, value if other == name:
                return callee_of(value) in MAKERS
        names = assigned([node])
        if name in names or array in names:
            break
    return False


def _row_in(node: ast.stmt, place: ast.expr) -> str:
    """Return the row whose place for an iteration a statement fills, "" for other statements."""
    match node:
        case ast.Assign([ast.Subscript(ast.Name(id=row), index), *_]):
            return row if key_of(index) == key_of(place) else ""
    return ""


def _groups(kept: Kept) -> list[list[str]]:
    """Return the rows that share one, in the order of their offsets."""
    groups: dict[tuple[str, Hashable], list[str]] = {}
    for name, (array, others, _) in kept.items():
        groups.setdefault((array, key_of(others)), []).append(name)
    found: list[list[str]] = []
    for group in groups.values():
        found.append([])
        for name in sorted(group, key=lambda name: kept[name][2]):
            if found[-1] and kept[name][2] - kept[found[-1][0]][2] > sizes.MARGIN:
                found.append([])
            found[-1].append(name)
    return found


def _write(rows: Rows, kept: Kept, groups: list[list[str]]) -> None:
    """Let the rows of groups begin within one row each; copy arrays to these before the loop."""
    shared = [group for group in groups if len(group) > 1]
    single = [name for name in rows.names if not any(name in group for group in shared)]
    trips, loop = rows.trips, rows.statement
    target = _target(loop)
    made, copies = Builder(), Builder()
    count, more = 0, 0
    for name in single:
        made.assign(as_name(name), _row(_place(count, trips, more), as_name(trips)))
        count += 1
    for group in shared:
        array, others, low = kept[group[0]]
        reach = kept[group[-1]][2] - low
        if rows.is_forward:
            first, last, _ = range_of(loop.iter)
            end = quoted("last + reach", last=last, reach=reach)
            if not others:  # an error may be raised before the last elements are read
                size = moved(quoted("x.size", x=array), -low)
                end = quoted("min(end, size)", end=end, size=size)
            index = [*others, moved(as_name(target), low)]
            copies.quote(
                """
if trips > 0:
    whole = row
    for k in range(first, end):
        whole[k - first] = element
""",
                trips=trips,
                whole=group[0],
                row=_row(_place(count, trips, more), quoted("n + m", n=trips, m=reach)),
                k=target,
                first=first,
                end=end,
                element=element_of(array, index),
            )
        else:
            for name in group:
                place = _place(count, trips, more + kept[name][2] - low)
                made.assign(as_name(name), _row(place, as_name(trips)))
        count, more = count + 1, more + reach
    before = rows.block[rows.first - 1]
    if rows.is_forward:
        reserve = rows.block[rows.first - 2]
        assert isinstance(reserve, ast.Assign)
        reserve.value = _place(count, trips, more)
        _drop_fills(loop, {name for group in shared for name in group})
    else:
        assert isinstance(before, ast.AugAssign)
        before.value = _sum(_lengths(count, trips, more))
    rows.block[rows.first : rows.loop] = [*made.statements(), *copies.statements()]


def drop_rows(rows: Rows, names: Collection[str]) -> None:
    """Drop some rows of a loop, and with the last of them its part of the tape."""
    block, loop, is_forward = rows.block, rows.statement, rows.is_forward
    if is_forward:
        _drop_fills(loop, names)
    rows.names[:] = [name for name in rows.names if name not in names]
    if rows.names:
        _write(rows, {}, [])
        return
    gone = block[rows.first - 1 - is_forward : rows.loop]
    if is_forward:  # top becomes what was reserved
        assert isinstance(gone[0], ast.Assign)
        reserved = gone[0].targets[0]
        after = block[rows.loop + 1 :]
        gone += [n for n in after if is_code(n, "top = reserved", reserved=reserved)][:1]
    block[:] = [node for node in block if not any(node is part for part in gone)]


def _row(place: ast.expr, length: ast.expr) -> ast.expr:
    """Return the row of a length at a place of the tape."""
    return quoted("runtime.row(tape, place, length)", place=place, length=length)


def _place(count: int, trips: str, more: int) -> ast.expr:
    """Return a place on the tape, after some rows."""
    return _sum([as_name("top"), *_lengths(count, trips, more)])


def _lengths(count: int, trips: str, more: int) -> list[ast.expr]:
    """Return the lengths of some rows, and more."""
    found: list[ast.expr] = []
    if count:
        rows = quoted("count * trips", count=count, trips=trips)
        found.append(as_name(trips) if count == 1 else rows)
    return [*found, ast.Constant(more)] if more else found


def _sum(parts: list[ast.expr]) -> ast.expr:
    return functools.reduce(lambda left, right: ast.BinOp(left, ast.Add(), right), parts)


def filled(node: ast.stmt) -> str:
    """Return the array of which a statement sets an element, "" for other statements."""
    match node:
        case ast.Assign([ast.Subscript(array), *_]):
            return text_of(array)
    return ""


def _drop_fills(loop: ast.For, names: Collection[str]) -> None:
    """Drop the statements of a loop that fill some rows."""
    loop.body = [node for node in loop.body if filled(node) not in names] or [ast.Pass()]
