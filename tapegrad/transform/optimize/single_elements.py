"""Loops over cotangents of which few are not 0 visit these alone.

A program fills a work array in each iteration, and reads one element of it::

    for k in range(n):                        distance_bar[t] += total_bar
        distance[k] = ...                     for k in range(n - 1, -1, -1):
    t = np.argmin(distance)                       if distance_bar[k] != 0.0:
    total += distance[t]                              ...
                                                  distance_bar[k] = 0.0

In reverse, the element that was read is the only one that has a cotangent: the others were 0 when
the function began, and each loop leaves zeros behind. So the loop over `k` becomes that of ``t``.

Likewise, ``np.min(distance)`` adds to the cotangents of elements that equal the minimum. Where all
others are 0, the loop goes from the first of them to the last.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tapegrad.transform.frontend.liveness import assigned
from tapegrad.transform.ir import replace_names
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import is_plain_array
from tapegrad.transform.optimize.unread_zeros import extent_of
from tapegrad.transform.optimize.zeros import EXTREMES, is_pure, matters, names_read, vanishes
from tapegrad.transform.syntax import (
    binding,
    blocks_of,
    callee_of,
    has,
    is_zero,
    key_of,
    name_of,
    nodes_in,
    subtree,
    text_of,
)
from tapegrad.transform.trees import quoted, quoted_block

_JUMPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)


@dataclass
class _Pair:
    """A statement that adds to few elements of an array, and the next loop that uses it.

    Attributes
    ----------
    body, place
        The block of both, and the place of the statement there.
    array
        The array.
    index
        The index of the element that it adds to; None if it adds to extremes.
    loop
        The loop.
    """

    body: list[ast.stmt]
    place: int
    array: str
    index: str | None
    loop: ast.For

    def narrow(self, fresh: Callable[[str], str]) -> None:
        """Let the loop visit the elements that the statement adds to."""
        node, first, end = self.body[self.place], fresh("first"), fresh("end")
        if self.index is None:
            assert isinstance(node, ast.Expr)
            assert isinstance(node.value, ast.Call)
            template = "first, end = arrays.add_to_extremes_of_vector(*arguments)"
            made = quoted_block(template, first=first, end=end, arguments=node.value.args)
            self.body[self.place : self.place + 1] = made
        else:
            template = "first = k if k >= 0 else k + x.size\nend = first + 1"
            made = quoted_block(template, first=first, end=end, k=self.index, x=self.array)
            self.body[self.place : self.place] = made
        assert isinstance(self.loop.iter, ast.Call)
        is_ascending = len(self.loop.iter.args) < 3
        over = "range(first, end)" if is_ascending else "range(end - 1, first - 1, -1)"
        self.loop.iter = quoted(over, first=first, end=end)


def visit_single_elements(function: Function) -> bool:
    """Let loops visit elements whose cotangents are not 0; return whether there are any.

    Loops skip elements whose cotangent is 0 already (`zeros`). Those that run in blocks stay as
    they are.
    """
    tree, facts, live_after = function.tree, function.facts, function.analyses.live_after
    values, reads = _Values(tree), names_read(tree)
    pairs = []
    for pair in _pairs(tree.body):
        loop, array = pair.loop, pair.array
        uses = names_read(pair.body[pair.place]) + names_read(loop)
        if id(loop) in function.blocked or uses[array] < reads[array]:
            continue
        if not is_plain_array(facts.kind(array)) or facts.kind(array).ndim > 1:
            continue
        iteration = _Iteration(loop, array)
        if iteration.needs_element and not iteration.results & live_after[id(loop)]:
            if values.is_made_before(pair) or (iteration.leaves_zero and values.is_made_once(pair)):
                pairs.append(pair)
    for pair in reversed(pairs):  # places in blocks change
        pair.narrow(function.fresh)
    return bool(pairs)


def _pairs(body: list[ast.stmt]) -> Iterator[_Pair]:
    """Yield the pairs: nothing leaves the block between them, and the index stays the same."""
    for place, node in enumerate(body):
        for block in blocks_of(node):
            yield from _pairs(block)
        found = _added_to(node)
        if found is None:
            continue
        array, index = found
        for later in body[place + 1 :]:
            if index in assigned([later]) or has(later, *_JUMPS):
                break
            if names_read(later)[array]:
                if isinstance(later, ast.For):
                    yield _Pair(body, place, array, index, later)
                break


def _added_to(node: ast.stmt) -> tuple[str, str | None] | None:
    """Return the array that a statement adds to, and the index; None for other statements."""
    match node:
        case ast.AugAssign(ast.Subscript(ast.Name(id=array), ast.Name(id=index))):
            return array, index
        case ast.Expr(ast.Call(_, [_, values, *_]) as call) if callee_of(call) == EXTREMES:
            return text_of(values), None
    return None


class _Iteration:
    """What an iteration of a loop does if the element of an array at its index is 0.

    Parameters
    ----------
    loop
        The loop.
    array
        The array.

    Attributes
    ----------
    needs_element
        Whether it does nothing then.
    leaves_zero
        Whether it sets the element to 0 otherwise.
    results
        The names that iterations assign, apart from sums.
    """

    def __init__(self, loop: ast.For, array: str) -> None:
        self.array = array
        self.element = quoted("x[k]", x=array, k=loop.target)
        self.leaves_zero = False
        self.vanishing: set[str] = set()
        self.results = set(assigned(nodes_in(loop, ast.Assign)))
        is_fixed = name_of(loop.target) not in assigned(loop.body)
        self.needs_element = is_fixed and all(map(self.statement, loop.body))

    def statement(self, node: ast.stmt) -> bool:
        """Follow a statement; return whether it does nothing if the element is 0."""
        match node:
            case ast.If():
                return self.is_skipped(node)
            case ast.AugAssign(_, ast.Add() | ast.Sub(), value):
                return not names_read(node)[self.array] and vanishes(value, self.vanishing)
            case ast.Assign([ast.Name(id=name), *_], value):
                if self.is_element(value) or vanishes(value, self.vanishing):
                    self.vanishing.add(name)
                    return True
                others = {self.array, *self.vanishing}
                return is_pure(value) and not names_read(value).keys() & others
            case ast.Assign([target, *_], value) if self.is_element(target):
                if is_zero(value):
                    self.leaves_zero = True
                    return True
            case ast.Pass():
                return True
        return False

    def is_element(self, node: ast.expr) -> bool:
        """Whether an expression is the element."""
        return key_of(node) == key_of(self.element)

    def is_skipped(self, node: ast.If) -> bool:
        """Whether a branch is skipped, and does not change the array."""
        parts: list[ast.expr | str] = [self.element, *self.vanishing]
        tests = [key_of(matters(part)) for part in parts]
        uses = names_read(ast.Module(node.body, []))[self.array]
        parts_inside = nodes_in(ast.Module(node.body, []), ast.Subscript)
        elements = [p for p in parts_inside if isinstance(p.ctx, ast.Load) and self.is_element(p)]
        return key_of(node.test) in tests and not node.orelse and len(elements) == uses


class _Values:
    """What names are in terms of the parameters of a function, for those that are always the same.

    Parameters
    ----------
    tree
        The function.
    """

    def __init__(self, tree: ast.FunctionDef) -> None:
        # all that is assigned to names; None for what is no expression
        self.assigned: dict[str, list[ast.expr | None]] = {}
        for node in subtree(tree):
            if (bound := binding(node)) is not None:
                self.assigned.setdefault(bound[0], []).append(bound[1])
            elif isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
                own = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
                for name in assigned([ast.Expr(part) for part in own]):
                    self.assigned.setdefault(name, []).append(None)

    def is_made_before(self, pair: _Pair) -> bool:
        """Whether the block of a pair makes the array: zeros, over all of which the loop goes."""
        zeros = _zeros(pair.loop)
        if zeros is None or len(self.assigned.get(pair.array, ())) != 1:
            return False
        (made,) = quoted_block("x = zeros", x=pair.array, zeros=zeros)
        for place, node in enumerate(pair.body[: pair.place]):
            if key_of(node) == key_of(made):
                between = pair.body[place : pair.body.index(pair.loop)]
                return not names_read(pair.loop.iter).keys() & set(assigned(between))
        return False

    def is_made_once(self, pair: _Pair) -> bool:
        """Whether the array was made before: zeros, over all of which the loop goes each time."""
        made, zeros = self.value(pair.array), self.fixed(_zeros(pair.loop))
        return made is not None and key_of(made) == key_of(zeros)

    def fixed(self, node: ast.expr | None) -> ast.expr | None:
        """Return what an expression is in terms of parameters, None if it may change."""
        if node is None:
            return None
        found: dict[str, str | ast.expr] = {}
        for name in names_read(node).keys() & self.assigned.keys():
            value = self.value(name)
            if value is None:
                return None
            found[name] = value
        return replace_names(node, found)

    def value(self, name: str) -> ast.expr | None:
        """Return what a name that is assigned always is, None if it may change."""
        values = self.assigned.get(name, [None])
        return self.fixed(values[0]) if len(set(map(key_of, values))) == 1 else None


def _zeros(loop: ast.For) -> ast.expr | None:
    """Return zeros, over all of which a loop goes."""
    extent = extent_of(loop.iter)
    return None if extent is None else quoted("np.zeros(n)", n=extent)
