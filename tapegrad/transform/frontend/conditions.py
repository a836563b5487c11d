"""Conditions of a function: their operands, and numba's decisions on them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tapegrad.transform.syntax import has, subtree, text_of

UNDECIDED = "undecided"
_PURE = ("isinstance", "hasattr", "len", "bool")
Visit = Callable[[ast.expr], ast.expr]


class Uncertain(ast.expr):
    """A condition that numba decides only in some places or iterations.

    Variables that its branches assign must have one type, since it is unknown which branch counts.
    If `entered`, it is the condition of a loop that is known to be entered.
    """

    _fields = ("value",)
    value: ast.expr
    entered: bool


@dataclass
class Jump:
    """A conditional jump in numba's form of a function."""

    negative: bool  # whether its condition is a negation
    decisions: set[Any] = field(default_factory=set)  # True, False, UNDECIDED


@dataclass
class Condition:
    """An expression or statement that branches.

    Attributes
    ----------
    node
        The expression or statement.
    operands
        The operands tested in order, one for each jump.
    parts
        The nodes whose code jumps, and these operands.
    decisions
        numba's decisions on the operands, if the condition is reachable.
    is_certain
        Whether they hold at every evaluation of the condition.
    is_entered
        Whether numba decides that a loop is entered, but not when it is left.
    """

    node: ast.AST
    operands: list[ast.expr]
    parts: list[ast.AST]
    decisions: list[Any] = field(default_factory=list)
    is_certain: bool = True
    is_entered: bool = False

    def decide(self, jumps: list[Jump]) -> None:
        """Find the decision on each operand.

        An operand has several decisions if an inner function is called several times, or if a loop
        is tested both before it starts and after each iteration.
        """
        count = len(self.operands)
        if count == 0:
            return
        if not jumps or len(jumps) % count:
            self.is_certain = False
            return
        for k, operand in enumerate(self.operands):
            found = {d for jump in jumps[k::count] for d in _decisions(operand, jump)}
            self.is_certain &= len(found) == 1
            self.decisions.append(found.pop() if len(found) == 1 else UNDECIDED)
        if isinstance(self.node, ast.While) and not self.is_certain and len(jumps) == 2 * count:
            first, again = (self.truth(self.node.test, jumps[k : k + count]) for k in (0, count))
            self.is_certain = first is again is None  # only parts of the condition differ
            self.is_entered = first is True and again is None
        if isinstance(self.node, ast.BoolOp):
            for k, operand in enumerate(self.operands):
                # the jump may be that of the last part only, as the others jump further
                if isinstance(self.decisions[k], bool) and _is_compound(operand):
                    self.decisions[k], self.is_certain = UNDECIDED, False

    def truth(self, test: ast.expr, jumps: list[Jump]) -> bool | None:
        """Return the value of a condition from the decisions on some jumps, None if undecided."""
        decided = Condition(self.node, self.operands, [])
        decided.decide(jumps)
        found = decided.left(test, lambda operand: operand)
        return found if isinstance(found, bool) else None

    def on(self, operand: ast.expr) -> Any:
        """Return the decision on an operand: True, False or UNDECIDED."""
        found = [d for o, d in zip(self.operands, self.decisions, strict=False) if o is operand]
        if False in found:
            return False
        return found[0] if len(set(found)) == 1 else UNDECIDED

    def marked(self, test: ast.expr) -> ast.expr:
        """Return the rest of the condition, marked if it is uncertain."""
        if self.is_certain:
            return test
        node = Uncertain()
        node.value, node.entered = test, self.is_entered
        return ast.copy_location(node, test)

    def left(self, test: ast.expr, visit: Visit) -> ast.expr | bool:
        """Return the undecided rest of a condition, or its value."""
        if (known := constant_truth(test)) is not None:
            return known
        found: ast.expr | bool
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                found = self.left(operand, visit)
                if isinstance(found, bool):
                    return not found
                return ast.copy_location(ast.UnaryOp(ast.Not(), found), test)
            case ast.BoolOp(op, operands):
                either = isinstance(op, ast.Or)
                values: list[ast.expr] = []
                for value in operands:
                    found = self.left(value, visit)
                    if found is either:
                        return either
                    if not isinstance(found, bool):
                        values.append(found)
                    elif has_calls(value):
                        values.append(value)
                if not values:
                    return not either
                left = ast.BoolOp(op, values) if len(values) > 1 else values[0]
                return ast.copy_location(left, test)
            case ast.IfExp(asked, then, orelse):
                found = self.left(asked, visit)
                if isinstance(found, bool):
                    side = self.left(then if found else orelse, visit)
                    return side if isinstance(side, bool) else after(asked, side)
                sides = [self.left(side, visit) for side in (then, orelse)]
                if isinstance(sides[0], bool) and sides[0] is sides[1]:
                    return sides[0]
                parts = [ast.Constant(p) if isinstance(p, bool) else p for p in (found, *sides)]
                return ast.fix_missing_locations(ast.copy_location(ast.IfExp(*parts), test))
        decision = self.on(test)
        if isinstance(decision, bool):
            return decision
        return visit(test)


def _is_compound(node: ast.expr) -> bool:
    """Whether the code of an expression jumps."""
    match node:
        case ast.BoolOp() | ast.IfExp() | ast.Compare(_, [_, _, *_]):
            return True
    return False


def _decisions(operand: ast.expr, jump: Jump) -> set[Any]:
    """Return the decisions of a jump on its operand."""
    match operand:
        case ast.UnaryOp(ast.Not(), negated):
            return _decisions(negated, Jump(not jump.negative, jump.decisions))
        case ast.Compare(_, [ast.Is() | ast.In()]) if jump.negative:
            pass  # the compiler may test the opposite
        case ast.Compare(_, [ast.IsNot() | ast.NotIn()]) if not jump.negative:
            pass
        case _:
            return jump.decisions
    return {d if d == UNDECIDED else not d for d in jump.decisions}


def constant_truth(node: ast.expr) -> bool | None:
    """Return the truth of an expression that Python's compiler folds, None for others."""
    if has(node, ast.Name, ast.Call):
        return None
    code = compile(text_of(node), "<constant>", "eval", dont_inherit=True)
    # the code of a constant only loads and returns it
    return bool(eval(code, {})) if len(code.co_code) <= 6 else None


class Conditions(ast.NodeVisitor):
    """Finds all conditions of a function."""

    def __init__(self) -> None:
        self.found: list[Condition] = []

    def add(self, node: ast.AST, operands: list[ast.expr], parts: list[ast.AST]) -> None:
        self.found.append(Condition(node, operands, [node, *parts]))

    def tested(self, node: ast.AST, test: ast.expr) -> None:
        """Add the condition of a node, and visit its operands."""
        operands, parts, _ = _tested(test)
        self.add(node, operands, parts)
        self.within(test)

    def within(self, test: ast.expr) -> None:
        """Visit the operands of a condition."""
        match test:
            case ast.BoolOp(_, parts):
                pass
            case ast.UnaryOp(ast.Not(), operand):
                parts = [operand]
            case ast.IfExp(asked, then, orelse):
                parts = [asked, then, orelse]
            case _:
                self.visit(test)
                return
        for part in parts:
            self.within(part)

    def visit_If(self, node: ast.If | ast.While) -> None:
        self.tested(node, node.test)
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    visit_While = visit_If  # noqa: N815

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.tested(node, node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.within(node.test)  # the failing branch has no derivative

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        for test in node.ifs:
            self.within(test)  # skipped items do not affect types

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Visit an operation used for its value: that of the last or the deciding operand."""
        operands = []
        for value in node.values[:-1]:
            known = constant_truth(value)
            if known is None:
                operands.append(value)
            elif known == isinstance(node.op, ast.Or):
                break
        self.add(node, operands, [])
        self.generic_visit(node)


def _tested(test: ast.expr) -> tuple[list[ast.expr], list[ast.AST], bool | None]:
    """Return the operands of a condition in order, their nodes, and the value if constant.

    Operands that a constant makes unreachable have no code.
    """
    if (known := constant_truth(test)) is not None:
        return [], [test], known
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            operands, parts, known = _tested(operand)
            return operands, [test, *parts], None if known is None else not known
        case ast.BoolOp(op, sides):
            either = isinstance(op, ast.Or)
            operands, parts, values = [], [test], []
            for side in sides:
                more, also, known = _tested(side)
                operands += more
                parts += also
                values.append(known)
                if known is either:
                    return operands, parts, either
            return operands, parts, None if None in values else not either
        case ast.IfExp(asked, then, orelse):
            operands, parts, known = _tested(asked)
            found = [_tested(side) for side in (then, orelse)]
            if known is not None:
                found = [found[0] if known else found[1]]
            for more, also, _ in found:
                operands += more
                parts += also
            values = [value for _, _, value in found]
            return operands, [test, *parts], values[0] if len(set(values)) == 1 else None
        case ast.Compare(_, ops):
            return [test] * len(ops), [test], None
    return [test], [test], None


def after(test: ast.expr, value: ast.expr) -> ast.expr:
    """Return a value evaluated after a condition, if the condition may have side effects."""
    if not has_calls(test):
        return value
    both = ast.Tuple([test, value], ast.Load())
    found = ast.Subscript(both, ast.Constant(1), ast.Load())
    return ast.fix_missing_locations(ast.copy_location(found, value))


def has_calls(node: ast.expr) -> bool:
    """Whether evaluating an expression may have side effects."""
    for part in subtree(node):
        match part:
            case ast.Call(ast.Name(id=called)) if called in _PURE:
                pass
            case ast.Call() | ast.NamedExpr():
                return True
    return False
