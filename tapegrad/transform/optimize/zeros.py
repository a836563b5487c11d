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
from tapegrad.transform.independence.sums import blocks_of
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.syntax import callee_of, subtree, text_of
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
        if isinstance(node.op, ast.Mult):
            return self.selection(node.left, node.right) or node
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if callee_of(node) == PRODUCT:
            return self.selection(*node.args) or node
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
    if isinstance(node, ast.IfExp):
        return [*_choices(node.body), *_choices(node.orelse)]
    return [node]


def _selection(cotangent: ast.expr, factor: ast.expr) -> ast.expr:
    if isinstance(factor, ast.IfExp):
        sides = (_selection(cotangent, side) for side in (factor.body, factor.orelse))
        return ast.IfExp(factor.test, *sides)
    assert isinstance(factor, ast.Constant)
    if factor.value == 0.0:
        return ast.Constant(0.0)
    return cotangent if factor.value == 1.0 else ast.BinOp(cotangent, ast.Mult(), factor)


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
        if isinstance(node, ast.For) and id(node) not in blocked and _depends_on_one(node):
            (guard,) = node.body
            assert isinstance(guard, ast.If)
            leave = ast.If(ast.UnaryOp(ast.Not(), guard.test), [ast.Break()], [])
            node.body = [*guard.body, leave]
            body[place] = ast.If(guard.test, [node], [])
            found = True
    return found


def _depends_on_one(loop: ast.For) -> bool:
    """Whether every iteration does nothing if one cotangent is 0."""
    (guard,) = loop.body if len(loop.body) == 1 else (None,)
    return isinstance(guard, ast.If) and not guard.orelse and callee_of(guard.test) == MATTERS


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
    data: set[str] = set()
    for node in subtree(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            called = text_of(value.func) if isinstance(value, ast.Call) else ""
            if isinstance(value, ast.Subscript) or called in _POSITIONS:
                data.add(node.targets[0].id)
    found: set[str] = set()
    for node in subtree(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            if names_read(node.target.slice).keys() & data:
                found.add(text_of(node.target.value))
        elif isinstance(node, ast.Call) and callee_of(node) == EXTREMES:
            found.add(text_of(node.args[1]))
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
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target, value = node.targets[0], node.value
            if is_cotangent(target, facts) and isinstance(value, ast.Subscript) and not vanishing:
                if text_of(value.value) not in gathered or names_read(value).keys() & inside:
                    return None
                element = value
                vanishing.add(target.id)
            elif vanishes(value, vanishing):
                vanishing.add(target.id)
            elif names_read(value).keys() & vanishing or not is_pure(value):
                return None
        elif not isinstance(node, ast.AugAssign) or not vanishes(node.value, vanishing):
            return None
    return element


def is_pure(node: ast.expr) -> bool:
    """Whether an expression does nothing but compute a value."""
    calls = [text_of(part.func) for part in subtree(node) if isinstance(part, ast.Call)]
    return all(call.split(".")[0] in ("math", "np", "runtime", "scalar_ops") for call in calls)


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
                is_loop = isinstance(node, (ast.For, ast.While))
                for inner in blocks_of(node):
                    found |= self.block(inner, in_loop or is_loop, not is_loop)
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
        if not isinstance(node, ast.Assign) or not is_cotangent(node.targets[0], self.facts):
            return ""
        is_selection = isinstance(node.value, ast.IfExp) or (
            in_branch and isinstance(node.value, ast.Name)
        )
        return node.targets[0].id if is_selection else ""

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
            node = body[place]
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                target = node.targets[0].id
                if target == name or not vanishes(node.value, vanishing):
                    return place, vanishing - {name}
                vanishing.add(target)
            elif not (
                isinstance(node, ast.AugAssign)
                and isinstance(node.op, (ast.Add, ast.Sub))
                and vanishes(node.value, vanishing)
                and name not in names_read(node.target)
            ):
                return place, vanishing - {name}
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
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            found[part.id] += 1
        elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            found[part.target.id] += 1
    return found


def vanishes(node: ast.expr, vanishing: Collection[str]) -> bool:
    """Whether an expression is 0 if some names are."""
    if isinstance(node, ast.Name):
        return node.id in vanishing
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and vanishes(node.operand, vanishing)
    if isinstance(node, ast.BinOp):
        left, right = (vanishes(side, vanishing) for side in (node.left, node.right))
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return left and right
        return isinstance(node.op, ast.Mult) and (left or right)
    if isinstance(node, ast.IfExp):
        return vanishes(node.body, vanishing) and vanishes(node.orelse, vanishing)
    if isinstance(node, ast.Call) and callee_of(node) == PRODUCT:
        return vanishes(node.args[0], vanishing)
    return False
