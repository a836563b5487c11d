"""Cotangents of values that were not selected: they are 0, and cost next to nothing.

The partial derivatives of a minimum are 1 and 0. A product with them becomes a selection, for which
the processor need not wait: ``x_bar = z_bar * (1.0 if x < y else 0.0)`` becomes::

    x_bar = z_bar if x < y else 0.0

So what was not selected receives nothing, not even nan. A loop in which everything depends on one
cotangent ends when that is 0. The reverse of a long computation in a loop is skipped if its result
was not selected: a search evaluates a function often, and returns one of its values.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection
from typing import TypeGuard

from numba.core import types

from tapegrad.transform.frontend.liveness import assigned
from tapegrad.transform.frontend.source import MATTERS
from tapegrad.transform.generated import Facts
from tapegrad.transform.nodes import opposite
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.sharing.calls import changes_nothing
from tapegrad.transform.syntax import (
    binding,
    blocks_of,
    callee_of,
    is_loop,
    name_of,
    nodes_in,
    subtree,
    text_of,
)
from tapegrad.transform.trees import quoted, quoted_block

PRODUCT = "runtime.product"
EXTREMES = "arrays.max_vjp_x"  # adds to the cotangents of those elements that are the extreme
_POSITIONS = ("runtime.from_bits", "np.argmin", "np.argmax")


def is_cotangent(node: ast.expr, facts: Facts) -> TypeGuard[ast.Name]:
    """Whether an expression is the name of the cotangent of a number."""
    if not isinstance(node, ast.Name) or node.id not in facts.values:
        return False
    return isinstance(facts.kind(node.id), (types.Float, types.Complex))


def select_cotangents(function: Function) -> bool:
    """Write products of cotangents with constants as selections; return whether there are any."""
    selections = _Selections(function.facts)
    selections.visit(function.tree)
    return selections.found


class _Selections(ast.NodeTransformer):
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.found = False

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(left, ast.Mult(), right):
                return self.selection(left, right) or node
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if callee_of(node) == PRODUCT:
            one, other = node.args
            return self.selection(one, other) or self.selection(other, one) or node
        return node

    def selection(self, left: ast.expr, right: ast.expr) -> ast.expr | None:
        """Return what stands for the product of a cotangent with constants, None for others."""
        if not is_cotangent(left, self.facts) or not isinstance(right, ast.IfExp):
            return None
        if not all(isinstance(part, ast.Constant) for part in _choices(right)):
            return None
        self.found = True
        return _selection(left, right)


def _choices(node: ast.expr) -> list[ast.expr]:
    """Return what a conditional expression may evaluate to."""
    match node:
        case ast.IfExp(_, body, orelse):
            return [*_choices(body), *_choices(orelse)]
    return [node]


def _selection(cotangent: ast.expr, factor: ast.expr) -> ast.expr:
    match factor:
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, _selection(cotangent, body), _selection(cotangent, orelse))
        case ast.Constant(0.0):
            return ast.Constant(0.0)
        case ast.Constant(1.0):
            return cotangent
    return ast.BinOp(cotangent, ast.Mult(), factor)


def end_early(function: Function) -> bool:
    """Let loops end when their cotangent is 0; return whether there are any.

    Those that run in blocks stay as they are.
    """
    return _end_early(function.tree.body, function.blocked)


def _end_early(body: list[ast.stmt], blocked: Collection[int]) -> bool:
    found = False
    for place, node in enumerate(body):
        for block in blocks_of(node):
            found |= _end_early(block, blocked)
        match node:
            # every iteration does nothing if one cotangent is 0
            case ast.For(body=[ast.If(test, inner, [])]) if callee_of(test) == MATTERS:
                if id(node) not in blocked:
                    node.body = [*inner, ast.If(opposite(test), [ast.Break()], [])]
                    body[place] = ast.If(test, [node], [])
                    found = True
    return found


def skip_unread(function: Function) -> bool:
    """Skip loops in which everything depends on the cotangent of one element that may be unread.

    It may be if elements are read at places that are data, as ``distance[np.argmin(distance)]``,
    or if the extreme of them is.
    Loops that run in blocks stay as they are. Return whether anything changes.
    """
    gathered = _gathered(function.tree)
    return bool(gathered) and _skip_unread(function.tree.body, function, gathered)


def _gathered(tree: ast.FunctionDef) -> set[str]:
    """Return the arrays of which some elements receive cotangents: at places that are data."""
    data = {
        name
        for name, value in filter(None, map(binding, subtree(tree)))
        if isinstance(value, ast.Subscript) or callee_of(value) in _POSITIONS
    }
    found: set[str] = set()
    for node in subtree(tree):
        match node:
            case ast.AugAssign(ast.Subscript(array, index)) if names_read(index).keys() & data:
                found.add(text_of(array))
            case ast.Call(_, [_, array, *_]) if callee_of(node) == EXTREMES:
                found.add(text_of(array))
    return found


def _skip_unread(body: list[ast.stmt], function: Function, gathered: set[str]) -> bool:
    found = False
    live_after = function.analyses.live_after
    for place, node in enumerate(body):
        for block in blocks_of(node):
            found |= _skip_unread(block, function, gathered)
        if isinstance(node, ast.For) and id(node) not in function.blocked:
            element = _depends_on_element(node, gathered, function.facts)
            if element is not None and not live_after[id(node)] & set(assigned([node])):
                body[place] = ast.If(matters(element), [node], [])
                found = True
    return found


def _depends_on_element(loop: ast.For, gathered: set[str], facts: Facts) -> ast.expr | None:
    """Return the element of `gathered` whose cotangent is all that a loop adds to others.

    If it is 0 at first, the loop adds zeros to what may share its memory, too.
    """
    inside = set(assigned([loop]))
    element: ast.expr | None = None
    vanishing: set[str] = set()
    for node in loop.body:
        match node:
            case ast.Assign([ast.Name(id=name) as target, *_], ast.Subscript(array) as value) if (
                is_cotangent(target, facts) and not vanishing
            ):
                if name_of(array) not in gathered or names_read(value).keys() & inside:
                    return None
                element = value
                vanishing.add(name)
            case ast.Assign([ast.Name(id=name), *_], value) if vanishes(value, vanishing):
                vanishing.add(name)
            case ast.Assign([ast.Name(), *_], value) if (
                is_pure(value) and not names_read(value).keys() & vanishing
            ):
                pass
            case ast.AugAssign(_, _, value) if vanishes(value, vanishing):
                pass
            case _:
                return None
    return element


def is_pure(node: ast.expr) -> bool:
    """Whether an expression does nothing but compute a value."""
    return all(map(changes_nothing, nodes_in(node, ast.Call)))


def skip_unselected(function: Function) -> bool:
    """Skip the reverse of long computations in loops if their results were not selected.

    Loops that run in blocks stay as they are. Return whether anything changes.
    """
    return _Skipping(function).block(function.tree.body, in_loop=False, in_branch=False)


_LONG = 12  # statements that are worth a branch, which may be predicted wrongly


class _Skipping:
    """Puts statements that do nothing if a cotangent is 0 into a branch."""

    def __init__(self, function: Function) -> None:
        self.blocked = function.blocked
        self.facts = function.facts
        self.reads: Counter[str] = names_read(function.tree)

    def block(self, body: list[ast.stmt], in_loop: bool, in_branch: bool) -> bool:
        """Process a block; return whether anything changes."""
        found = False
        for node in body:
            if id(node) not in self.blocked:
                is_inside = is_loop(node)
                for inner in blocks_of(node):
                    found |= self.block(inner, in_loop or is_inside, not is_inside)
        place = 0
        while in_loop and place < len(body):
            name = self.selected(body[place], in_branch)
            place += 1
            if name:
                start = self.first(body, place, name)
                end, vanishing = self.run(body, start, name)
                if end - start >= _LONG:
                    body[start:end] = [self.guard(name, body[start:end], vanishing)]
                    found = True
        return found

    def selected(self, node: ast.stmt, in_branch: bool) -> str:
        """Return the cotangent that a statement assigns if it may be 0 for most iterations."""
        match node:
            case ast.Assign([target, *_], ast.IfExp() | ast.Name() as value):
                if in_branch or isinstance(value, ast.IfExp):
                    return target.id if is_cotangent(target, self.facts) else ""
        return ""

    def first(self, body: list[ast.stmt], place: int, name: str) -> int:
        """Return the place of the first statement that reads a cotangent."""
        while place < len(body) and not names_read(body[place])[name]:
            if name in assigned([body[place]]):
                return len(body)
            place += 1
        return place

    def run(self, body: list[ast.stmt], start: int, name: str) -> tuple[int, set[str]]:
        """Return the end of the statements that do nothing if a cotangent is 0.

        The names that they assign are 0 then; they are returned as well.
        """
        vanishing = {name}
        for place in range(start, len(body)):
            match body[place]:
                case ast.Assign([ast.Name(id=target), *_], value) if target != name:
                    is_zero, made = vanishes(value, vanishing), {target}
                case ast.AugAssign(element, ast.Add() | ast.Sub(), value):
                    is_zero, made = vanishes(value, vanishing), set[str]()
                    is_zero = is_zero and name not in names_read(element)
                case _:
                    return place, vanishing - {name}
            if not is_zero:
                return place, vanishing - {name}
            vanishing |= made
        return len(body), vanishing - {name}

    def guard(self, name: str, run: list[ast.stmt], vanishing: set[str]) -> ast.stmt:
        """Return the branch that stands for some statements; the names that they assign vanish."""
        inside = sum((names_read(node) for node in run), Counter[str]())
        outside = [n for n in sorted(vanishing) if self.reads[n] > inside[n]]
        zeros = [zero for n in outside for zero in quoted_block("x = 0.0", x=n)]
        return ast.If(matters(name), run, zeros)


def matters(cotangent: ast.expr | str) -> ast.expr:
    """Return the test whether a cotangent may change others."""
    return quoted("matters(x)", matters=MATTERS, x=cotangent)


def names_read(node: ast.AST) -> Counter[str]:
    """Return how often a node reads names, also to add to them."""
    found: Counter[str] = Counter()
    for part in subtree(node):
        match part:
            case ast.Name(id=name, ctx=ast.Load()) | ast.AugAssign(ast.Name(id=name)):
                found[name] += 1
    return found


def vanishes(node: ast.expr, vanishing: Collection[str]) -> bool:
    """Whether an expression is 0 if some names are."""
    match node:
        case ast.Name(id=name):
            return name in vanishing
        case ast.UnaryOp(ast.USub(), operand):
            return vanishes(operand, vanishing)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right) | ast.IfExp(_, left, right):
            return vanishes(left, vanishing) and vanishes(right, vanishing)
        case ast.BinOp(left, ast.Mult(), right):
            return vanishes(left, vanishing) or vanishes(right, vanishing)
        case ast.Call(_, [cotangent, *_]):
            return callee_of(node) == PRODUCT and vanishes(cotangent, vanishing)
    return False
