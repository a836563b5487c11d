"""Zeros that nothing reads are not written.

The cotangent of an array that an iteration makes begins with zeros, to which loops add. Where a
loop adds to each element before anything else happens to the array, it sets the elements instead,
and clears those that it does not reach::

    k_bar = np.zeros(n)                     k_bar = np.empty(n)
    for i in range(n):                      for i in range(n):
        k_bar[i] += a_bar                       k_bar[i] = a_bar

Where a function adds a new array, that is
the cotangent::

    k_bar = np.zeros(n)                     k_bar = arrays.fourier_of_pairs(a_bar, 0)
    arrays.fourier_adjoint_of_pairs_vjp_z(k_bar, 0, a_bar)

If an element of a loop has several parts, as those
of complex numbers, it must add to each of them.

A cotangent becomes 0 when what computed the element is reversed, for what the element was before.
If it was nothing before, nothing reads that 0. Where the loop does not run because a cotangent is
0, the elements that it would set are set to 0.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from tapegrad.transform.frontend.liveness import assigned, live, used
from tapegrad.transform.frontend.source import MATTERS
from tapegrad.transform.independence.plan import offset_of
from tapegrad.transform.ir import name, names_in, replace_names
from tapegrad.transform.kinds import is_array
from tapegrad.transform.nodes import element_of, integer, is_number
from tapegrad.transform.optimize.extents import Extents
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import uses_of
from tapegrad.transform.rules.arrays import ADJOINTS
from tapegrad.transform.syntax import (
    binding,
    blocks_of,
    callee_of,
    is_loop,
    is_zero,
    key_of,
    leaves,
    may_leave,
    nodes_in,
    text_of,
)
from tapegrad.transform.trees import qualified, quoted_block

Index = tuple[Hashable, ...]  # the keys of its parts
_WITHOUT_ZEROS = {"np.zeros": "np.empty", "np.zeros_like": "np.empty_like"}


@dataclass
class _Site:
    """A statement that makes zeros.

    Attributes
    ----------
    node, call
        The statement, and the call in it that makes them.
    block
        The block of the statement.
    array, shape
        The name of the array, and its extents.
    names
        The names that may share elements with it.
    is_only
        Whether no other statement assigns the name of the array.
    later
        The names that are live after the block.
    """

    node: ast.stmt
    call: ast.Call
    block: list[ast.stmt]
    array: str
    shape: list[ast.expr]
    names: set[str]
    is_only: bool
    later: set[str]

    @property
    def place(self) -> int:
        """The place of the statement in its block."""
        return self.block.index(self.node)

    def uses(self, node: ast.AST) -> int:
        """Return how often a node uses elements of the array, or may."""
        return uses_of(node, self.names)


@dataclass
class Nest:
    """Loops over all indices from 0, each around the next one, and what the innermost contains."""

    targets: tuple[str, ...]
    extents: list[ast.expr]
    body: list[ast.stmt]

    def layers(self, indices: Sequence[Index]) -> list[int] | None:
        """Return the last parts of indices that are constants after those of the loops.

        None if one of the indices is another one.
        """
        found = []
        for index in indices:
            number = _number(index[-1]) if index else -1
            if index[:-1] != self.targets or number < 0:
                return None
            found.append(number)
        return found

    def first(self, index: Index) -> int | None:
        """Return the least of the last indices of elements, of which each iteration has its own.

        None if iterations may have the same element.
        """
        if index == self.targets:
            return 0
        *others, last = self.targets
        for node in self.body:
            match node:
                case ast.Assign([target, *_], value) if key_of(target) == index[-1]:
                    if list(index[:-1]) == others:
                        distance = offset_of(value, {last: 0})
                        return distance if distance in (1, 2) else None
        return None


def remove_unread_zeros(function: Function) -> bool:
    """Remove what sets elements of new arrays to 0 if nothing reads it; return whether any is."""
    return _Removal(function).run()


class _Removal:
    """The pass over one function."""

    def __init__(self, function: Function) -> None:
        self.tree, self.facts, self.flow = function.tree, function.facts, function.analyses.flow
        self.live_after = function.analyses.live_after
        self.extents = Extents(function.tree, function.facts)
        self._names: dict[int, tuple[ast.stmt, set[str]]] = {}  # of statements, by their ids

    def run(self) -> bool:
        """Run the pass; return whether anything changes."""
        found = False
        for site, loop in list(self.sites(self.tree.body, None)):
            found |= self.set_first(site)
            if site.is_only and self.ends_in_block(site, loop):
                found |= self.leave_last(site)
            found |= self.make_first(site)
        return found

    def sites(
        self, body: list[ast.stmt], loop: ast.stmt | None
    ) -> Iterator[tuple[_Site, ast.stmt | None]]:
        """Yield the statements that make zeros, each with the loop around it."""
        for node in body:
            for block in blocks_of(node):
                yield from self.sites(block, node if is_loop(node) else loop)
            match binding(node):
                case array, ast.Call() as call if is_array(self.facts.kind(array)):
                    if shape := self.extents.of_zeros(call):
                        names, is_only = self.flow.reached([array]), array in self.extents.once
                        later = self.live_after[id(body[-1])]
                        yield _Site(node, call, body, array, shape, names, is_only, later), loop

    def names_in(self, node: ast.stmt) -> set[str]:
        """Return the names in a statement when the pass met it: it removes some, but adds none."""
        if id(node) not in self._names:
            found = set(names_in(node))
            self._names[id(node)] = node, found
        return self._names[id(node)][1]

    def touching(self, site: _Site) -> list[int]:
        """Return the places of the statements after a site that may use elements of its array."""
        return [
            place
            for place, node in enumerate(site.block[site.place + 1 :], site.place + 1)
            if site.names & self.names_in(node) and site.uses(node) and not self.is_view(node)
        ]

    def is_view(self, node: ast.stmt) -> bool:
        """Whether a statement makes a view, or gives an array a name."""
        match binding(node):
            case array, ast.Name() | ast.Subscript():
                return is_array(self.facts.kind(array))
        return False

    def ends_in_block(self, site: _Site, loop: ast.stmt | None) -> bool:
        """Whether nothing needs an array after the block that makes it."""
        if site.names & self.flow.held:
            return False
        later = site.later
        if is_loop(loop):
            later = later | live(loop.body, set())
        return not site.names & later

    def set_first(self, site: _Site) -> bool:
        """Let a loop that adds to elements set them if it uses them first."""
        place, names = self.first_use(site)
        node, between = site.block[place], site.block[site.place : place + 1]
        outer: list[str] = []
        nest, test = nest_of(node), None
        if nest is None:
            nest, test, outer = guarded_nest_of(node)
        if nest is None:
            return False
        added = _additions(nest, site.array)
        own, whole = self.extents.known(nest.extents), self.extents.known(site.shape)
        indices = [index for _, index in added]
        if uses_of(node, names) != len(added):
            return False
        if indices == [nest.targets]:
            is_whole = own == whole
            if not is_whole and (len(own) != 1 or len(whole) != 1 or test is not None):
                return False
        else:
            layers, count = nest.layers(indices), self.extents.constant(site.shape[-1])
            if own != whole[:-1] or not layers or sorted(layers) != [*range(count or 0)]:
                return False
            is_whole = True
        extents = {name for extent in site.shape for name in used(extent)}
        if set(assigned(between)) & extents or any(map(may_leave, between)):
            return False
        for at, _ in added:
            inner = nest.body[at]
            assert isinstance(inner, ast.AugAssign)
            (nest.body[at],) = quoted_block("x = y", x=inner.target, y=inner.value)
        if test is not None:
            part: ast.expr = name(site.array)
            if outer:
                part = element_of(part, [name(target) for target in outer])
            test.orelse += quoted_block("runtime.clear(x)", x=part)
        if not is_whole:
            (extent,) = nest.extents
            rest = quoted_block("runtime.clear_from(x, n)", x=site.array, n=extent)
            site.block[place:place] = rest
        site.call.func = qualified(_WITHOUT_ZEROS[text_of(site.call.func)])
        return True

    def make_first(self, site: _Site) -> bool:
        """Let what a function adds to zeros first be the array; return whether there is any."""
        place, names = self.first_use(site)
        node, between = site.block[place], site.block[site.place : place + 1]
        match node:
            case ast.Expr(ast.Call(_, [ast.Name(id=array), *arguments]) as call) if (
                array == site.array and (known := ADJOINTS.get(callee_of(call)))
            ):
                parameters, added = known
            case _:
                return False
        extents = {name for extent in site.shape for name in used(extent)}
        if names != {array} or not site.is_only or site.uses(node) != 1:
            return False  # it would have to be the array that other names refer to
        if extents.intersection(assigned(between)):
            return False
        given = dict(zip(parameters, arguments, strict=True))
        shape = ast.Tuple(site.shape, ast.Load())
        made = replace_names(added, {**given, "shape": shape})
        (site.block[place],) = quoted_block("x = y", x=site.array, y=made)
        site.block[site.place] = ast.Pass()
        return True

    def first_use(self, site: _Site) -> tuple[int, set[str]]:
        """Return the place of the first statement that uses an array, and the names that it has.

        The place of the site stands for none in its block.
        """
        names = {site.array}
        for place in range(site.place + 1, len(site.block)):
            node = site.block[place]
            if not names & self.names_in(node):
                continue
            if names & {*assigned([node])}:
                break
            if uses_of(node, names):
                if not self.is_view(node):
                    return place, names
                names |= {*assigned([node])}
        return site.place, names

    def leave_last(self, site: _Site) -> bool:
        """Remove what sets elements to 0 after their last uses."""
        found = False
        read: set[Index] = set()  # the elements that are read afterwards
        for place in reversed(self.touching(site)):
            node = site.block[place]
            nest = nest_of(node)
            if nest is not None:
                return self.leave_in(nest, node, site, read) or found
            zero = _zero(node, site.array)
            if zero is not None:
                if not read or (_is_constant(zero) and zero not in read):
                    site.block[place] = ast.Pass()
                    found = True
                continue
            element = index_of(node.value, site.array) if isinstance(node, ast.Assign) else None
            if element is None or not _is_constant(element) or site.uses(node) > 1:
                break
            read.add(element)
        return found

    def leave_in(self, nest: Nest, node: ast.stmt, site: _Site, read: set[Index]) -> bool:
        """Remove what sets the elements of iterations to 0 after their last uses."""
        uses = [k for k, inner in enumerate(nest.body) if site.uses(inner)]
        zero = _zero(nest.body[uses[-1]], site.array) if uses else None
        if zero is None:
            return False
        elements = [index_of(part, site.array) for part in nodes_in(node, ast.Subscript)]
        own = [index for index in elements if index is not None]
        if len(own) != site.uses(node):
            return False
        if nest.layers(own) is not None:
            return not read and self.leave_in_layers(nest, site)
        first = nest.first(zero)
        if first is None or own.count(zero) != len(own):
            return False
        if not all(_is_constant(index) and _number(index[-1]) < first for index in read):
            return False
        nest.body[uses[-1]] = ast.Pass()
        return True

    def leave_in_layers(self, nest: Nest, site: _Site) -> bool:
        """Remove what sets parts of elements to 0 after their last uses."""
        last: dict[Index, int] = {}
        for k, inner in enumerate(nest.body):
            for part in nodes_in(inner, ast.Subscript):
                if (index := index_of(part, site.array)) is not None:
                    last[index] = k
        found = [k for index, k in last.items() if _zero(nest.body[k], site.array) == index]
        for k in found:
            nest.body[k] = ast.Pass()
        return bool(found)


def _additions(nest: Nest, array: str) -> list[tuple[int, Index]]:
    """Return the places of what adds to elements of an array in loops, and their indices."""
    found = []
    for at, inner in enumerate(nest.body):
        match inner:
            case ast.AugAssign(target, ast.Add()) if (index := index_of(target, array)) is not None:
                found.append((at, index))
    return found


def nest_of(node: ast.stmt) -> Nest | None:
    """Return the loops that a statement is, None for other statements."""
    targets, extents, body, between = _loops([node])
    return _nest(targets, extents, body, [*between, *body])


def guarded_nest_of(node: ast.stmt) -> tuple[Nest | None, ast.If | None, list[str]]:
    """Return loops of which the inner ones run if a cotangent matters.

    Also return the statement with this test, and the targets of the loops around it.
    """
    targets, extents, body, between = _loops([node])
    match body:
        case [*others, ast.If(test, then, orelse) as last] if callee_of(test) == MATTERS:
            inner_targets, inner_extents, inner, more = _loops(then)
            if inner_targets and all(map(_clears, orelse)) and not any(map(blocks_of, others)):
                own = [*between, *others, *more, *inner]
                nest = _nest([*targets, *inner_targets], [*extents, *inner_extents], inner, own)
                return nest, last, targets
    return None, None, []


def _clears(node: ast.stmt) -> bool:
    """Whether a statement sets all elements of an array to 0."""
    return isinstance(node, ast.Expr) and callee_of(node.value) == "runtime.clear"


def _loops(
    body: list[ast.stmt],
) -> tuple[list[str], list[ast.expr], list[ast.stmt], list[ast.stmt]]:
    """Return the targets and extents of loops around each other, and what is in the innermost.

    The others contain nothing else but assignments before it, which are returned last.
    """
    targets: list[str] = []
    extents: list[ast.expr] = []
    between: list[ast.stmt] = []
    while True:
        match body:
            case [*first, ast.For(ast.Name(id=target), over, inner, [])] if (
                extent := extent_of(over)
            ) and (not first or (targets and all(map(binding, first)))):
                targets.append(target)
                extents.append(extent)
                between += first
                body = inner
            case _:
                return targets, extents, body, between


def _nest(
    targets: list[str], extents: list[ast.expr], body: list[ast.stmt], own: list[ast.stmt]
) -> Nest | None:
    """Return loops, None if the statements `own` inside of them are not simple."""
    if not targets or set(targets) & set(assigned(own)) or any(map(blocks_of, body)):
        return None
    if any(map(may_leave, own)):
        return None
    return Nest(tuple(targets), extents, body)


def extent_of(node: ast.expr) -> ast.expr | None:
    """Return the extent that a range goes through, upwards or downwards; None for others."""
    match node:
        case ast.Call(ast.Name(id="range"), [extent]):
            return extent
        case ast.Call(ast.Name(id="range"), [first, extent]):
            return extent if is_number(first, 0) else None
        case ast.Call(ast.Name(id="range"), [first, *others]):
            if [integer(bound) for bound in others] != [-1, -1]:
                return None
        case _:
            return None
    if (last := integer(first)) is not None:
        return ast.Constant(last + 1) if last >= 0 else None
    match first:
        case ast.BinOp(ast.Name() as extent, ast.Sub(), one) if is_number(one, 1):
            return extent
    return None


def index_of(node: ast.expr, array: str) -> Index | None:
    """Return the indices of an element of an array, None for other expressions."""
    match node:
        case ast.Subscript(ast.Name(id=base), index) if base == array:
            parts = leaves(index)
            is_part = any(isinstance(part, ast.Slice) for part in parts)
            return None if is_part else tuple(map(key_of, parts))
    return None


def _zero(node: ast.stmt, array: str) -> Index | None:
    """Return the indices of the element that a statement sets to 0, None for others."""
    match node:
        case ast.Assign([target, *_], value) if is_zero(value):
            return index_of(target, array)
    return None


def _is_constant(index: Index) -> bool:
    """Whether an element has an index of non-negative integers."""
    return all(_number(part) >= 0 for part in index)


def _number(part: Hashable) -> int:
    """Return a part of an index that is a constant, -1 for others."""
    return part[1] if isinstance(part, tuple) and part[0] is int else -1
