"""Branches that numba decides before it finds types: only what is left has any.

A condition of constants is decided if it stands in a form that numba recognizes. The normal form is
another text, in which other conditions would be decided, and variables that branches assign would
have other types. So numba's own passes say what they decide in the function as the user wrote it,
and the tree of the function becomes that of what is left.

A copy of the function is compiled in which each conditional jump has a line of its own, which numba
copies with it. The jumps of a condition come in the order of its operands.
"""

from __future__ import annotations

import ast
import copy
import operator
from dataclasses import dataclass, field
from dis import opname
from types import CodeType, FunctionType
from typing import Any

from numba.core import compiler, ir
from numba.core.compiler_machinery import (
    AnalysisPass,
    CompilerPass,
    PassManager,
    register_pass,
)
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.core.registry import cpu_target
from numba.core.untyped_passes import DeadBranchPrune, LiteralPropagationSubPipelinePass

from tapegrad.transform.jumps import always_jumps
from tapegrad.transform.source import Source

FIRST_LINE = 1_000_000  # of those that conditions are given
_COPY = "<copy>"  # a name that no body can mean
_WITHOUT_COLUMNS = 13  # a kind of entry in tables of lines
UNDECIDED = "undecided"


class Uncertain(ast.expr):
    """A condition that numba decides in some places or turns only.

    Variables that its branches assign must have one type: it is not known which of two they have.
    Of a loop it may be known that it is `entered`.
    """

    _fields = ("value",)
    value: ast.expr
    entered: bool


def prune(source: Source, kinds: tuple[Any, ...]) -> None:
    """Take out of the tree of a function what numba decides that is never reached.

    Parameters
    ----------
    source
        The function.
    kinds
        numba types of its arguments.
    """
    conditions = _Conditions()
    for statement in source.tree.body:
        conditions.visit(statement)
    if not conditions.found:
        return
    try:
        twin, owners = _numbered(source, conditions.found)
        jumps = _jumps(twin, kinds)
    except (NumbaError, UnsupportedBytecodeError, NotImplementedError):
        return  # what numba does not take is refused later, by its line
    decided: dict[int, Any] = {}
    for number, condition in enumerate(conditions.found):
        lines = [FIRST_LINE + k for k, owner in enumerate(owners) if owner == number]
        condition.decide([jumps.get(line, _Jump(False)) for line in lines])
        decided[id(condition.node)] = condition
    pruner = _Pruner(decided)
    source.tree.body = pruner.block(source.tree.body)


# -- conditions of a function -----------------------------------------------------------------


@dataclass
class _Jump:
    """A conditional jump in numba's form of a function."""

    negative: bool  # whether it asks if something is not something else
    decisions: set[Any] = field(default_factory=set)  # True, False, UNDECIDED


@dataclass
class _Condition:
    """An expression or statement that chooses.

    Attributes
    ----------
    node
        What chooses.
    operands
        What is asked in turn, an operand for each jump.
    parts
        The nodes whose code jumps, and these operands.
    decisions
        What numba decides on the operands, if it can be reached at all.
    is_certain
        Whether that holds wherever, and whenever, the condition is evaluated.
    is_entered
        Whether numba decides that a loop is entered, and does not decide when it is left.
    """

    node: ast.AST
    operands: list[ast.expr]
    parts: list[ast.AST]
    decisions: list[Any] = field(default_factory=list)
    is_certain: bool = True
    is_entered: bool = False

    def decide(self, jumps: list[_Jump]) -> None:
        """Find the decision on each operand.

        There are several for one where an inner function is called several times, and where a loop
        is tested before it begins and after each iteration.
        """
        count = len(self.operands)
        if count == 0:
            return
        if not jumps or len(jumps) % count:
            self.is_certain = False
            return
        for k, operand in enumerate(self.operands):
            found = {d for jump in jumps[k::count] for d in _decisions(operand, jump)}
            self.is_certain &= len(found) < 2
            self.decisions.append(found.pop() if len(found) == 1 else UNDECIDED)
        if isinstance(self.node, ast.While) and not self.is_certain and len(jumps) == 2 * count:
            first, again = (self.truth(self.node.test, jumps[k : k + count]) for k in (0, count))
            self.is_certain = first is again is None  # what differs are parts of the condition
            self.is_entered = first is True and again is None
        if isinstance(self.node, ast.BoolOp):
            for k, operand in enumerate(self.operands):
                # the jump may be that of the last part alone, as others go further
                if isinstance(self.decisions[k], bool) and _is_compound(operand):
                    self.decisions[k], self.is_certain = UNDECIDED, False

    def truth(self, test: ast.expr, jumps: list[_Jump]) -> bool | None:
        """Return the value of a condition by what numba decides of some jumps, None if open."""
        decided = _Condition(self.node, self.operands, [])
        decided.decide(jumps)
        found = _Pruner({}).test(decided, test)
        return found if isinstance(found, bool) else None

    def on(self, operand: ast.expr) -> Any:
        """Return the decision on an operand: True, False or UNDECIDED."""
        found = [d for o, d in zip(self.operands, self.decisions, strict=False) if o is operand]
        if False in found:
            return False
        return found[0] if len(set(found)) == 1 else UNDECIDED

    def marked(self, test: ast.expr) -> ast.expr:
        """Return what is left of the condition, marked if it is uncertain."""
        if self.is_certain:
            return test
        return ast.copy_location(Uncertain(value=test, entered=self.is_entered), test)


def _is_compound(node: ast.expr) -> bool:
    """Whether the code of an expression jumps."""
    return isinstance(node, (ast.BoolOp, ast.IfExp)) or (
        isinstance(node, ast.Compare) and len(node.ops) > 1
    )


def _decisions(operand: ast.expr, jump: _Jump) -> set[Any]:
    """Return what a jump says about its operand."""
    negated = False
    while isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.Not):
        operand, negated = operand.operand, not negated
    asked = operand.ops[0] if isinstance(operand, ast.Compare) and len(operand.ops) == 1 else None
    if not isinstance(asked, (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
        return jump.decisions
    # the compiler may ask the opposite
    if not jump.negative ^ negated ^ isinstance(asked, (ast.IsNot, ast.NotIn)):
        return jump.decisions
    return {d if d == UNDECIDED else not d for d in jump.decisions}


def _constant(node: ast.expr) -> bool | None:
    """Return the truth of what Python's compiler knows to be a constant, None for others."""
    if any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(node)):
        return None
    code = compile(ast.unparse(node), "<constant>", "eval", dont_inherit=True)
    # it begins, loads the constant and returns it, or is longer
    return bool(eval(code, {})) if len(code.co_code) <= 6 else None


class _Conditions(ast.NodeVisitor):
    """Finds all conditions of a function."""

    def __init__(self) -> None:
        self.found: list[_Condition] = []

    def add(self, node: ast.AST, operands: list[ast.expr], parts: list[ast.AST]) -> None:
        self.found.append(_Condition(node, operands, [node, *parts]))

    def tested(self, node: ast.AST, test: ast.expr) -> None:
        """Add what a condition chooses for, and visit what it asks."""
        operands, parts, _ = _tested(test)
        self.add(node, operands, parts)
        self.within(test)

    def within(self, test: ast.expr) -> None:
        """Visit what a condition asks."""
        if isinstance(test, ast.BoolOp):
            parts = test.values
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            parts = [test.operand]
        elif isinstance(test, ast.IfExp):
            parts = [test.test, test.body, test.orelse]
        elif isinstance(test, ast.Compare):
            self.generic_visit(test)
            return
        else:
            self.visit(test)
            return
        for part in parts:
            self.within(part)

    def visit_If(self, node: ast.If) -> None:
        self.tested(node, node.test)
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def visit_While(self, node: ast.While) -> None:
        self.tested(node, node.test)
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.tested(node, node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.within(node.test)  # what fails has no derivative

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        for test in node.ifs:
            self.within(test)  # what is left out has no type of its own

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Visit one that gives a value: that of the last operand, or of the first that decides."""
        operands = []
        for value in node.values[:-1]:
            known = _constant(value)
            if known is None:
                operands.append(value)
            elif known == isinstance(node.op, ast.Or):
                break
        self.add(node, operands, [])
        self.generic_visit(node)


def _tested(test: ast.expr) -> tuple[list[ast.expr], list[ast.AST], bool | None]:
    """Return what a condition asks in turn, the nodes that do, and its value if that is constant.

    What a constant leaves out has no code.
    """
    if (known := _constant(test)) is not None:
        return [], [test], known
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        operands, parts, known = _tested(test.operand)
        return operands, [test, *parts], None if known is None else not known
    if isinstance(test, ast.BoolOp):
        either = isinstance(test.op, ast.Or)
        operands, parts, values = [], [test], []
        for value in test.values:
            more, also, known = _tested(value)
            operands += more
            parts += also
            values.append(known)
            if known is either:
                return operands, parts, either
        return operands, parts, None if None in values else not either
    if isinstance(test, ast.IfExp):
        operands, parts, known = _tested(test.test)
        sides = [_tested(side) for side in (test.body, test.orelse)]
        if known is not None:
            sides = [sides[0] if known else sides[1]]
        for more, also, _ in sides:
            operands += more
            parts += also
        values = [value for _, _, value in sides]
        return operands, [test, *parts], values[0] if len(set(values)) == 1 else None
    jumps = len(test.ops) if isinstance(test, ast.Compare) else 1
    return [test] * jumps, [test], None


# -- what numba decides -------------------------------------------------------------------------


def _numbered(source: Source, conditions: list[_Condition]) -> tuple[FunctionType, list[int]]:
    """Return a copy of a function in which each conditional jump has a line of its own.

    Also returned are the numbers of the conditions to which these lines belong.
    """
    twins: dict[int, Any] = {}
    tree = copy.deepcopy(source.tree, twins)
    tree.decorator_list = []
    tree.name = _COPY  # what the body calls by its own name is the function itself
    tree.args.defaults = [ast.Constant(None) for _ in tree.args.defaults]
    tree.args.kw_defaults = [d and ast.Constant(None) for d in tree.args.kw_defaults]
    for number, condition in enumerate(conditions):
        for part in condition.parts:
            # where it ends: on where it begins depends which jumps there are
            twins[id(part)].end_lineno = FIRST_LINE + number
    function = source.function
    captured = function.__code__.co_freevars
    around = ast.FunctionDef(
        "around",
        ast.arguments([], [ast.arg(found) for found in captured], None, [], [], None, []),
        [tree],
        [],
    )
    module = ast.fix_missing_locations(ast.Module([around], []))
    code = compile(module, source.filename, "exec", dont_inherit=True)
    for name in ("around", _COPY):
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    owners: list[int] = []
    code = _relocated(code, owners)
    cells = dict(zip(captured, function.__closure__ or (), strict=True))
    twin = FunctionType(
        code,
        function.__globals__,
        source.name,
        function.__defaults__,
        tuple(cells[found] for found in code.co_freevars),
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin, owners


def _relocated(code: CodeType, owners: list[int]) -> CodeType:
    """Return code in which the jumps of conditions have lines of their own.

    Source: "Source code locations", format of the table, in CPython's notes on code objects.
    """
    constants = [_relocated(c, owners) if isinstance(c, CodeType) else c for c in code.co_consts]
    table = bytearray()
    before = code.co_firstlineno
    for unit, (start, end, *_) in enumerate(code.co_positions()):
        line = start or before
        if end is not None and end >= FIRST_LINE and "_IF_" in opname[code.co_code[2 * unit]]:
            line = FIRST_LINE + len(owners)
            owners.append(end - FIRST_LINE)
        table.append(0x80 | _WITHOUT_COLUMNS << 3)
        step = (before - line) << 1 | 1 if line < before else (line - before) << 1
        while step >= 64:
            table.append(64 | step & 63)
            step >>= 6
        table.append(step)
        before = line
    return code.replace(co_consts=tuple(constants), co_linetable=bytes(table))


def _jumps(function: FunctionType, kinds: tuple[Any, ...]) -> dict[int, _Jump]:
    """Return the conditional jumps by their lines, and what numba decides of them."""
    flags = compiler.Flags()
    flags.nrt = True
    flags.error_model = "python"
    target = cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
    found: dict[int, _Jump] = compiler.compile_extra(
        target.typing_context,
        target.target_context,
        function,
        kinds,
        None,
        flags,
        {},
        pipeline_class=_Untyped,
    )
    return found


class _Untyped(compiler.CompilerBase):
    """numba's pipeline before it finds types, with notes of what it decides."""

    def define_pipelines(self) -> list[PassManager]:
        untyped = compiler.DefaultPassBuilder.define_untyped_pipeline(self.state)
        noting = {DeadBranchPrune: _Decide, LiteralPropagationSubPipelinePass: _DecideByTypes}
        manager = PassManager("tapegrad_branches")
        for found, text in untyped.passes:
            manager.add_pass(noting.get(found, found), text)
        manager.add_pass(_Return, "return what was decided")
        manager.finalize()
        return [manager]


def _is_negative(state: Any, jump: ir.Branch) -> bool:
    """Whether what is asked is that something is not something else."""
    try:
        value = state.func_ir.get_definition(state.func_ir.get_definition(jump.cond).args[0])
    except (KeyError, AttributeError, IndexError):
        return False
    if not isinstance(value, ir.Expr):
        return False
    return value.op in ("unary", "binop") and value.fn in (operator.not_, operator.is_not)


class _Noting(CompilerPass):
    """A pass of numba that decides branches, and notes of each what it decides."""

    def run_pass(self, state: Any) -> bool:
        found = state.setdefault("jumps", {})
        before = {label: block.terminator for label, block in state.func_ir.blocks.items()}
        for jump in before.values():
            if isinstance(jump, ir.Branch) and jump.loc.line not in found:
                found[jump.loc.line] = _Jump(_is_negative(state, jump))
        changed: bool = super().run_pass(state)
        blocks = state.func_ir.blocks
        for label, jump in before.items():
            if isinstance(jump, ir.Branch) and label in blocks:
                after = blocks[label].terminator
                if isinstance(after, ir.Jump):
                    found[jump.loc.line].decisions.add(after.target == jump.truebr)
        return changed


@register_pass(mutates_CFG=True, analysis_only=False)
class _Decide(_Noting, DeadBranchPrune):
    """Decides conditions of constants."""

    _name = "tapegrad_decide_branches"


@register_pass(mutates_CFG=True, analysis_only=False)
class _DecideByTypes(_Noting, LiteralPropagationSubPipelinePass):
    """Decides what `isinstance` and `hasattr` say of arguments."""

    _name = "tapegrad_decide_branches_by_types"


@register_pass(mutates_CFG=False, analysis_only=True)
class _Return(AnalysisPass):
    """Ends the compilation, with the jumps as its result."""

    _name = "tapegrad_return_jumps"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        for block in state.func_ir.blocks.values():
            if isinstance(block.terminator, ir.Branch):
                state["jumps"][block.terminator.loc.line].decisions.add(UNDECIDED)
        state["cr"] = state["jumps"]
        return False


# -- what is left -------------------------------------------------------------------------------


class _Pruner(ast.NodeTransformer):
    """Takes out what is decided."""

    def __init__(self, conditions: dict[int, _Condition]) -> None:
        self.conditions = conditions

    def block(self, nodes: list[ast.stmt]) -> list[ast.stmt]:
        """Return what is left of some statements."""
        found: list[ast.stmt] = []
        for node in nodes:
            left = self.visit(node)
            found += left if isinstance(left, list) else [left]
            if always_jumps(found):
                break
        return found or [ast.copy_location(ast.Pass(), nodes[0])]

    def body(self, node: Any, names: tuple[str, ...]) -> Any:
        for part in names:
            if nodes := getattr(node, part):
                setattr(node, part, self.block(nodes))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.body(node, ("body",))

    def visit_For(self, node: ast.For) -> ast.AST:
        node.iter = self.visit(node.iter)
        return self.body(node, ("body", "orelse"))

    def visit_If(self, node: ast.If) -> Any:
        condition = self.conditions[id(node)]
        test = self.test(condition, node.test)
        if not isinstance(test, bool):
            node.test = condition.marked(test)
            return self.body(node, ("body", "orelse"))
        left = node.body if test else node.orelse
        asked = self.effects(node.test, node)
        return asked + (self.block(left) if left else [])

    def visit_While(self, node: ast.While) -> Any:
        condition = self.conditions[id(node)]
        test = self.test(condition, node.test)
        if test is False:
            left = self.block(node.orelse) if node.orelse else []
            return self.effects(node.test, node) + left
        node.test = ast.copy_location(ast.Constant(True), node.test) if test is True else test
        node.test = condition.marked(node.test)
        return self.body(node, ("body", "orelse"))

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        condition = self.conditions.get(id(node))
        if condition is None:
            return self.generic_visit(node)
        test = self.test(condition, node.test)
        if not isinstance(test, bool):
            node.test = condition.marked(test)
            node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
            return node
        left: ast.expr = self.visit(node.body if test else node.orelse)
        if _has_calls(node.test):
            both = ast.Tuple([node.test, left], ast.Load())
            left = ast.Subscript(both, ast.Constant(1), ast.Load())
        return ast.fix_missing_locations(ast.copy_location(left, node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        condition = self.conditions.get(id(node))
        if condition is None:
            return self.generic_visit(node)
        either = isinstance(node.op, ast.Or)
        values = []
        for value in node.values[:-1]:
            decision = condition.on(value)
            if (known := _constant(value)) is not None:
                decision = known
            if decision is (not either) and not _has_calls(value):
                continue
            values.append(self.visit(value))
            if decision is either:
                break
        else:
            values.append(self.visit(node.values[-1]))
        node.values = values
        return condition.marked(node) if len(values) > 1 else values[0]

    def effects(self, test: ast.expr, node: ast.stmt) -> list[ast.stmt]:
        """Return what evaluates a condition that may do more than compute a value."""
        if not _has_calls(test):
            return []
        return [ast.copy_location(ast.Expr(test), node)]

    def test(self, condition: _Condition, test: ast.expr) -> ast.expr | bool:
        """Return what is left of a condition, or its value."""
        if (known := _constant(test)) is not None:
            return known
        found: ast.expr | bool
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            found = self.test(condition, test.operand)
            if isinstance(found, bool):
                return not found
            return ast.copy_location(ast.UnaryOp(ast.Not(), found), test)
        if isinstance(test, ast.BoolOp):
            either = isinstance(test.op, ast.Or)
            values: list[ast.expr] = []
            for value in test.values:
                found = self.test(condition, value)
                if found is either:
                    return either
                if not isinstance(found, bool):
                    values.append(found)
                elif _has_calls(value):
                    values.append(value)
            if not values:
                return not either
            left = ast.BoolOp(test.op, values) if len(values) > 1 else values[0]
            return ast.copy_location(left, test)
        if isinstance(test, ast.IfExp):
            found = self.test(condition, test.test)
            if isinstance(found, bool) and not _has_calls(test.test):
                return self.test(condition, test.body if found else test.orelse)
            sides = [self.test(condition, side) for side in (test.body, test.orelse)]
            if isinstance(sides[0], bool) and sides[0] is sides[1]:
                return sides[0]
            parts = [ast.Constant(p) if isinstance(p, bool) else p for p in (found, *sides)]
            return ast.fix_missing_locations(ast.copy_location(ast.IfExp(*parts), test))
        decision = condition.on(test)
        if isinstance(decision, bool):
            return decision
        return self.visit(test)


def _has_calls(node: ast.expr) -> bool:
    return any(isinstance(part, (ast.Call, ast.NamedExpr)) for part in ast.walk(node))
