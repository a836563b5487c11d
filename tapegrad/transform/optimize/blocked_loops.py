"""Which loops run in blocks, and where their code stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from tapegrad.transform.frontend.liveness import assigned
from tapegrad.transform.generated import copy_with
from tapegrad.transform.independence.plan import Surroundings, index_of, plan_of
from tapegrad.transform.independence.uses import Effects, UnprovedError
from tapegrad.transform.optimize import sizes
from tapegrad.transform.optimize.function import BlockedLoop, Function
from tapegrad.transform.optimize.iteration import Iteration
from tapegrad.transform.optimize.loop_code import LoopCode
from tapegrad.transform.syntax import arguments_of, blocks_of, is_loop, subtree
from tapegrad.transform.trees import quoted_block


def put_in_blocks(function: Function) -> bool:
    """Find the loops that run in blocks, which gain by it; return whether there are any."""
    if function.generated.made_from.targetoptions.get("boundscheck"):
        return False
    if function.module.is_recursive(function.name):  # each call would need its own block
        return False
    tree, fresh = function.tree, function.fresh
    function.block = fresh("block")
    around = Surroundings(tree, function.facts, function.analyses.live_after)
    for loop, outer in _inner_loops(tree.body):
        try:
            code = _code_of(function, around, loop)
            are_apart = fresh("are_apart")
            statements = code.statements(are_apart)
        except UnprovedError:
            continue
        if code.gain < sizes.LEAST_GAIN or code.iteration.places > sizes.MOST_ROWS:
            continue
        function.blocked[id(loop)] = BlockedLoop(loop, statements)
        function.rows = max(function.rows, code.iteration.places)
        if code.overlaps:
            names = {name for pair in code.overlaps for name in pair}
            place = _outermost([*outer, loop], names)
            test = quoted_block("is_true = test", is_true=are_apart, test=code.are_apart())
            function.before.setdefault(id(place), []).extend(test)
    return bool(function.blocked)


def write_blocks(function: Function) -> bool:
    """Put the code of loops that run in blocks in their places; return whether there is any."""
    if not function.blocked:
        return False
    replaced = {key: blocked.statements for key, blocked in function.blocked.items()}
    function.tree = copy_with(function.tree, replaced, function.before)
    if function.rows:
        size = function.rows * sizes.stride()
        made = quoted_block("block = runtime.block(n)", block=function.block, n=size)
        function.tree.body[:0] = made
    return True


def _code_of(function: Function, around: Surroundings, loop: ast.For) -> LoopCode:
    plan = plan_of(loop, around, _effects)
    if plan.uses_tape:
        raise UnprovedError("it uses the tape")
    generated = function.generated
    iteration = Iteration(
        plan,
        around.facts,
        around.rows,
        generated.made_from.targetoptions.get("error_model") != "numpy",
        generated.is_half and index_of(loop) not in generated.fused,
        function.module.vectorized.name_of,
        function.fresh,
        function.block,
    )
    return LoopCode(iteration, function.analyses.flow, function.fresh)


def _effects(name: str) -> Effects | None:
    """What functions do that are not known: they must be functions of numbers."""
    return Effects([])


def _inner_loops(
    body: list[ast.stmt], outer: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.For, tuple[ast.stmt, ...]]]:
    """Yield the loops that have no loop inside, with those around them."""
    for node in body:
        around = (*outer, node) if is_loop(node) else outer
        for block in blocks_of(node):
            yield from _inner_loops(block, around)
        match node:
            case ast.For(ast.Name(), over) if sum(map(is_loop, subtree(node))) == 1:
                if _is_range(over):
                    yield node, outer


def _outermost(loops: list[ast.stmt], names: set[str]) -> ast.stmt:
    """Return the outermost of nested loops before which names have their values."""
    found = loops[-1]
    for loop in reversed(loops[:-1]):
        if names & set(assigned([loop])):
            break
        found = loop
    return found


def _is_range(node: ast.expr) -> bool:
    given = arguments_of(node, "range")
    if given is None:
        return False
    bounds: list[Any] = [part.value for part in given if isinstance(part, ast.Constant)]
    return len(bounds) < len(given) or len(range(*bounds)) >= sizes.SHORT
