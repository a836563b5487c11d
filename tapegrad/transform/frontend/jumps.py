"""Structured code without jumps: `break`, `continue` and early `return` become flags and branches.

The code after an ``if`` that jumps moves into its other branch. If that is not enough, a flag
records that the jump was taken, and guards the code that follows. A loop that can be left early
gets an exit condition, checked after its body.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tapegrad.transform.frontend.breaks import Departures
from tapegrad.transform.syntax import nodes_in

RETURNED, RESULT = "returned", "result"
Statements = list[ast.stmt]


def _assign(target: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    node = ast.Assign([ast.Name(target, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(node, at))


def _set(flag: str, value: bool, at: ast.AST) -> ast.stmt:
    return _assign(flag, ast.Constant(value), at)


def contains(nodes: Statements, kinds: tuple[type, ...], through_loops: bool) -> bool:
    """Whether a block contains a jump of some kind, optionally also in its inner loops."""
    for node in nodes:
        if isinstance(node, kinds):
            return True
        match node:
            case ast.For() | ast.While() if not through_loops:
                blocks = [node.orelse]
            case ast.If() | ast.For() | ast.While():
                blocks = [node.body, node.orelse]
            case _:
                continue
        if any(contains(block, kinds, through_loops) for block in blocks):
            return True
    return False


def is_none(node: ast.expr | None) -> bool:
    """Whether an expression is missing or None."""
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _may_jump(node: ast.stmt) -> bool:
    return contains([node], (ast.Break, ast.Continue), False) or contains(
        [node], (ast.Return,), True
    )


def always_jumps(nodes: Statements) -> bool:
    """Whether a block never reaches its end."""
    match nodes[-1:]:
        case [ast.Break() | ast.Continue() | ast.Return() | ast.Raise()]:
            return True
        case [ast.While(ast.Constant(test), body)]:
            return bool(test) and not contains(body, (ast.Break,), False)
        case [ast.If(_, then, orelse)]:
            return always_jumps(then) and always_jumps(orelse)
    return False


class Structurer:
    """Rewrites the body of one function.

    `fresh` makes unused names, `has_effects` says whether an expression may have side effects. The
    breaks are added to `departures`.
    """

    def __init__(
        self, fresh: Any, has_effects: Callable[[ast.expr], bool], departures: Departures
    ) -> None:
        self.fresh = fresh
        self.has_effects = has_effects
        self.departures = departures
        self.returned: str | None = None
        self.result = ""
        self.valued = False

    def function(self, body: Statements) -> tuple[Statements, str | None]:
        """Return the body without jumps, and the name of its result, None if it has none."""
        self.result = self.fresh(RESULT)
        ends = (end for statement in body for end in nodes_in(statement, ast.Return))
        self.valued = any(not is_none(end.value) for end in ends)
        if self.valued and not always_jumps(body):
            # its end returns None, which the module `optionals` distinguishes from a value
            body = [*body, ast.copy_location(ast.Return(ast.Constant(None)), body[-1])]
        if _returns_in_loop(body):
            self.returned = self.fresh(RETURNED)
        found = self.block(body, None, None)
        if self.returned is not None:
            found = [_set(self.returned, False, body[0]), *found]
        returns = self.valued
        return found, self.result if returns else None

    def block(self, nodes: Statements, broke: str | None, skipped: str | None) -> Statements:
        """Rewrite a block; `broke` and `skipped` are the flags of the enclosing loop."""
        found: Statements = []
        for position, node in enumerate(nodes):
            rest = nodes[position + 1 :]
            match node:
                case ast.Return(value):
                    if self.valued:
                        result = value if value is not None else ast.Constant(None)
                        found.append(_assign(self.result, result, node))
                    if self.returned is not None:
                        found.append(_set(self.returned, True, node))
                    return found
                case ast.Break():
                    assert broke is not None
                    for variable, own in self.departures.by_flag[broke].own.items():
                        found.append(_assign(own, ast.Name(variable, ast.Load()), node))
                    return [*found, _set(broke, True, node)]
                case ast.Continue():
                    return found if skipped is None else [*found, _set(skipped, True, node)]
                case ast.Raise():
                    return [*found, node]
                case ast.If() if _may_jump(node):
                    return found + self._branch(node, rest, broke, skipped)
                case ast.If(test, body, orelse):
                    sides = [self.block(side, broke, skipped) for side in (body, orelse)]
                    found.append(_if(node, test, *sides))
                case ast.For() | ast.While():
                    loop, after = self._loop(node)
                    found += loop
                    if contains(node.body, (ast.Return,), True):
                        assert self.returned is not None
                        guarded = self.block([*after, *rest], broke, skipped)
                        if guarded:
                            test = ast.UnaryOp(ast.Not(), ast.Name(self.returned, ast.Load()))
                            found.append(_if(node, test, guarded, []))
                        return found
                    if any(map(_may_jump, after)):
                        return found + self.block([*after, *rest], broke, skipped)
                    found += self.block(after, broke, skipped)
                case _:
                    found.append(node)
        return found

    def _branch(
        self, node: ast.If, rest: Statements, broke: str | None, skipped: str | None
    ) -> Statements:
        """Rewrite an ``if`` that may jump, and the code that follows it."""
        then, orelse = node.body, node.orelse
        if always_jumps(then):
            orelse, rest = [*orelse, *rest], []
        elif always_jumps(orelse):
            then, rest = [*then, *rest], []
        if not rest:
            sides = [self.block(side, broke, skipped) for side in (then, orelse)]
            return [_if(node, node.test, *sides)]
        # both branches may fall through: guard the rest by the flags of the possible jumps
        flags = []
        found: Statements = []
        if contains([node], (ast.Return,), True):
            if self.returned is None:
                self.returned = self.fresh(RETURNED)
            flags.append(self.returned)
        if contains([node], (ast.Break,), False) and broke is not None:
            flags.append(broke)
        if contains([node], (ast.Continue,), False):
            if skipped is None:
                skipped = self.fresh("skipped")
                self.departures.skip(skipped, [node])
            found.append(_set(skipped, False, node))
            flags.append(skipped)
        sides = [self.block(side, broke, skipped) for side in (then, orelse)]
        found.append(_if(node, node.test, *sides))
        tests: list[ast.expr] = [ast.Name(flag, ast.Load()) for flag in flags]
        test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)
        guarded = self.block(rest, broke, skipped)
        if guarded:
            found.append(_if(node, ast.UnaryOp(ast.Not(), test), guarded, []))
        return found

    def _loop(self, node: ast.For | ast.While) -> tuple[Statements, Statements]:
        """Rewrite a loop; return it, and its ``else`` part as statements that follow it."""
        breaks = contains(node.body, (ast.Break,), False)
        returns = contains(node.body, (ast.Return,), True)
        found: Statements = []
        broke = None
        restored: Statements = []
        exits: list[ast.expr] = []
        if breaks:
            broke = self.fresh("broke")
            for variable, own in self.departures.add(broke, node.body, self.fresh).own.items():
                restored.append(_assign(variable, ast.Name(own, ast.Load()), node))
            found.append(_set(broke, False, node))
            exits.append(ast.Name(broke, ast.Load()))
        if returns:
            assert self.returned is not None
            exits.append(ast.Name(self.returned, ast.Load()))
        loop: Any
        if isinstance(node, ast.For):
            loop = ast.For(node.target, node.iter, self.block(node.body, broke, None), [])
        elif self.has_effects(node.test):
            # a condition with side effects moves into the body, which then ends the loop
            done = self.fresh("done")
            found.append(_set(done, False, node))
            exits.append(ast.Name(done, ast.Load()))
            body = [_if(node, node.test, node.body, [_set(done, True, node)])]
            loop = ast.While(ast.Constant(True), self.block(body, broke, None), [])
        else:
            loop = ast.While(node.test, self.block(node.body, broke, None), [])
        ast.copy_location(loop, node)
        loop.exit = exits
        found.append(loop)
        after = node.orelse
        if broke is not None and restored:
            after = [_if(node, ast.Name(broke, ast.Load()), restored, after)]
        elif broke is not None and after:
            test = ast.UnaryOp(ast.Not(), ast.Name(broke, ast.Load()))
            after = [_if(node, test, after, [])]
        return found, after


def _returns_in_loop(nodes: Statements) -> bool:
    """Whether a function returns from inside a loop."""
    for node in nodes:
        match node:
            case ast.For() | ast.While():
                if contains(node.body, (ast.Return,), True) or _returns_in_loop(node.orelse):
                    return True
            case ast.If(_, then, orelse) if _returns_in_loop(then) or _returns_in_loop(orelse):
                return True
    return False


def _if(at: ast.AST, test: ast.expr, then: Statements, orelse: Statements) -> ast.stmt:
    node = ast.If(test, then, orelse)
    ast.copy_location(node, at)
    return ast.fix_missing_locations(node)
