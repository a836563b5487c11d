"""Branches that numba decides before type inference.

A copy of the function is compiled in which each conditional jump has a unique line number, which
numba preserves. The jumps of a condition come in the order of its operands.
"""

from __future__ import annotations

import ast
import copy
import operator
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
from numba.core.untyped_passes import DeadBranchPrune, LiteralPropagationSubPipelinePass

from tapegrad.transform.frontend import pipelines
from tapegrad.transform.frontend.conditions import UNDECIDED, Condition, Jump
from tapegrad.transform.frontend.source import Source

FIRST_LINE = 1_000_000  # of the lines that jumps are given
_COPY = "<copy>"  # not an identifier, so no body can refer to it
_WITHOUT_COLUMNS = 13  # a kind of entry in line tables


def numbered(source: Source, conditions: list[Condition]) -> tuple[FunctionType, list[int]]:
    """Return a copy of a function in which each conditional jump has a unique line.

    Also return the numbers of the conditions that these lines belong to.
    """
    twins: dict[int, Any] = {}
    tree = copy.deepcopy(source.tree, twins)
    tree.decorator_list = []
    tree.name = _COPY  # recursive calls refer to the original function
    tree.args.defaults = [ast.Constant(None) for _ in tree.args.defaults]
    tree.args.kw_defaults = [d and ast.Constant(None) for d in tree.args.kw_defaults]
    for number, condition in enumerate(conditions):
        for part in condition.parts:
            # only the end line: the compiler's choice of jumps depends on the start line
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
    """Return code in which the jumps of conditions have unique lines.

    For the format of the table, see "Source code locations" in CPython's notes on code objects.
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


def jumps_of(function: FunctionType, kinds: tuple[Any, ...]) -> dict[int, Jump]:
    """Return the conditional jumps by line, with numba's decisions."""
    found: dict[int, Jump] = pipelines.run(_Untyped, function, kinds)
    return found


class _Untyped(compiler.CompilerBase):
    """numba's pipeline before type inference, which notes the decisions on branches."""

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
    """Whether the condition of a jump is a negation."""
    try:
        value = state.func_ir.get_definition(state.func_ir.get_definition(jump.cond).args[0])
    except (KeyError, AttributeError, IndexError):
        return False
    if not isinstance(value, ir.Expr):
        return False
    return value.op in ("unary", "binop") and value.fn in (operator.not_, operator.is_not)


class _Noting(CompilerPass):
    """A pass of numba that decides branches, and notes its decisions."""

    def run_pass(self, state: Any) -> bool:
        found = state.setdefault("jumps", {})
        before = {label: block.terminator for label, block in state.func_ir.blocks.items()}
        for jump in before.values():
            if isinstance(jump, ir.Branch) and jump.loc.line not in found:
                found[jump.loc.line] = Jump(_is_negative(state, jump))
        changed: bool = super().run_pass(state)
        blocks = state.func_ir.blocks
        decided = state.setdefault("decided", [])
        for label, jump in before.items():
            if isinstance(jump, ir.Branch) and label in blocks:
                after = blocks[label].terminator
                if isinstance(after, ir.Jump):
                    decided.append((label, jump.loc.line, after.target == jump.truebr))
        return changed


@register_pass(mutates_CFG=True, analysis_only=False)
class _Decide(_Noting, DeadBranchPrune):
    """Decides conditions on constants."""

    _name = "tapegrad_decide_branches"


@register_pass(mutates_CFG=True, analysis_only=False)
class _DecideByTypes(_Noting, LiteralPropagationSubPipelinePass):
    """Decides calls of `isinstance` and `hasattr` on arguments."""

    _name = "tapegrad_decide_branches_by_types"


@register_pass(mutates_CFG=False, analysis_only=True)
class _Return(AnalysisPass):
    """Ends the compilation, with the jumps as its result."""

    _name = "tapegrad_return_jumps"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        blocks, jumps = state.func_ir.blocks, state["jumps"]
        for block in blocks.values():
            if isinstance(block.terminator, ir.Branch):
                jumps[block.terminator.loc.line].decisions.add(UNDECIDED)
        for label, line, decision in state["decided"]:
            if label in blocks:  # still reachable
                jumps[line].decisions.add(decision)
        state["cr"] = jumps
        return False
