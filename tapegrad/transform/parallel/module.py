"""Functions that run loops of a generated module in parallel."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tapegrad.transform.frontend.liveness import live_after, used
from tapegrad.transform.generated import Generated, copy_with
from tapegrad.transform.independence.plan import Plan, Surroundings, index_of, plan_of
from tapegrad.transform.independence.uses import (
    Effects,
    UnprovedError,
    effects_of_function,
)
from tapegrad.transform.ir import names_in
from tapegrad.transform.parallel.loop_code import LoopCode
from tapegrad.transform.printer import is_parallel
from tapegrad.transform.syntax import blocks_of, nodes_in, subtree

# of numba's own parallelism, only `prange`
OPTIONS = {
    "parallel": {
        "prange": True,
        **dict.fromkeys(
            (
                "comprehension",
                "fusion",
                "inplace_binop",
                "numpy",
                "reduction",
                "setitem",
                "stencil",
            ),
            False,
        ),
    }
}


@dataclass
class Made:
    """What is added to a module."""

    functions: list[Generated] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of parallel versions of functions
    serial: list[tuple[Any, int, str]] = field(default_factory=list)  # function, line and reason


class Module:
    """Makes parallel versions of the functions of a module.

    Parameters
    ----------
    functions
        The functions.
    effects_of_callee
        Returns what a function from outside does, None if that is unknown.
    fresh
        Returns a name that is not used yet.
    """

    def __init__(
        self,
        functions: list[Generated],
        effects_of_callee: Callable[[str], Effects | None],
        fresh: Callable[[str], str],
    ) -> None:
        self.functions = {function.name: function for function in functions}
        self.effects_of_callee = effects_of_callee
        self.fresh = fresh
        self._effects: dict[str, Effects | None] = {}
        self.made = Made()

    def run(self) -> Made:
        """Make what can be made in parallel."""
        plans: dict[str, list[Plan]] = {}
        for function in self.functions.values():
            around = Surroundings(function.tree, function.facts, live_after(function.tree.body))
            inside: set[int] = set()  # of loops that run in parallel
            for loop in _loops(function.tree.body):
                if id(loop) in inside:
                    continue
                try:
                    plan = plan_of(loop, around, self.effects_of)
                except UnprovedError as error:
                    self._note(function, loop, str(error))
                else:
                    plans.setdefault(function.name, []).append(plan)
                    inside |= set(map(id, subtree(loop)))
        self._drop_halves(plans)
        changed = {name for name, found in plans.items() if found}
        functions = self.functions.items()
        while more := {name for name, f in functions if used(f.tree) & changed} - changed:
            changed |= more  # and what calls them
        self.made.names = {name: self.fresh(f"{name}_parallel") for name in sorted(changed)}
        for name in sorted(changed):
            self._write(self.functions[name], plans.get(name, []))
        return self.made

    def _note(self, function: Generated, loop: ast.For, reason: str) -> None:
        line = function.lines.get(index_of(loop), 0)
        if all((function.source, line) != found[:2] for found in self.made.serial):
            self.made.serial.append((function.source, line, reason))

    def _drop_halves(self, plans: dict[str, list[Plan]]) -> None:
        """Drop loops with a tape for which the forward or the reverse loop has no plan."""
        halves: dict[Any, int] = {}
        for name, found in plans.items():
            for plan in found:
                key = (self.functions[name].unit, index_of(plan.loop))
                halves[key] = halves.get(key, 0) + plan.uses_tape
        for name, found in plans.items():
            function = self.functions[name]
            for plan in [*found]:
                index = index_of(plan.loop)
                if plan.uses_tape and index not in function.fused:
                    if halves[function.unit, index] != 2:
                        found.remove(plan)
                        self._note(function, plan.loop, "its reverse has to run in order")

    def effects_of(self, name: str) -> Effects | None:
        """Return what a function does, None if that is unknown."""
        if name not in self.functions:
            return self.effects_of_callee(name)
        if name not in self._effects:
            self._effects[name] = None  # while it is being looked at
            function = self.functions[name]
            try:
                found = effects_of_function(function.tree, function.facts, self.effects_of)
                self._effects[name] = found
            except UnprovedError:
                pass
        return self._effects[name]

    # -- code ---------------------------------------------------------------------------------

    def _write(self, function: Generated, plans: list[Plan]) -> None:
        """Write the parallel version of a function."""
        calls = {id(plan.loop): self._write_loop(function, plan) for plan in plans}
        tree = copy_with(function.tree, calls)
        for node in nodes_in(tree, ast.Name):
            node.id = self.made.names.get(node.id, node.id)
        tree.name = self.made.names[function.name]
        self._add(tree, function, {})

    def _write_loop(self, function: Generated, plan: Plan) -> list[ast.stmt]:
        """Write the functions for a loop; return the statements that replace it."""
        stem = f"{function.name}_{index_of(plan.loop)}"
        names = [self.fresh(f"{stem}_{role}") for role in ("worker", "guarded", "workers")]
        code = LoopCode(plan, names, self._tape_of(function, plan))
        self._add(code.worker(), function, {})
        self._add(code.guarded(), function, {})
        self._add(code.driver(), function, OPTIONS)
        return code.call()

    def _add(self, tree: ast.FunctionDef, function: Generated, options: dict[str, Any]) -> None:
        """Add a function that was made from another one."""
        made = replace(function, tree=tree, options=options)
        self.made.functions.append(made)

    def _tape_of(self, function: Generated, plan: Plan) -> str:
        """Return how a loop uses the tape."""
        if not plan.uses_tape:
            return ""
        if index_of(plan.loop) in function.fused:
            return "own"
        assignments = nodes_in(plan.loop, ast.Assign)
        pushes = any("tape" in names_in(t) for node in assignments for t in node.targets)
        return "pushes" if pushes else "pops"


def _loops(body: list[ast.stmt]) -> Iterator[ast.For]:
    """Yield the outermost loops that may run in parallel; those inside of one if it is refused."""
    for node in body:
        if is_parallel(node):
            yield node
        for block in blocks_of(node):
            yield from _loops(block)
