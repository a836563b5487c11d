"""Versions of the functions of a generated module whose loops run in blocks."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from numba.core import types

from tapegrad.transform import vector_math
from tapegrad.transform.blocks import sizes
from tapegrad.transform.blocks.additions_of_zero import leave_out_zeros
from tapegrad.transform.blocks.faster_calls import has_products, make_faster
from tapegrad.transform.blocks.holding import Flow, Holding
from tapegrad.transform.blocks.invariants import move_out_invariants
from tapegrad.transform.blocks.iteration import RUNTIME, Iteration
from tapegrad.transform.blocks.last_changes import begin_at_last_changes
from tapegrad.transform.blocks.loop_code import LoopCode
from tapegrad.transform.blocks.outer_powers import OuterPower, outer_powers
from tapegrad.transform.blocks.reuse import reuse_arrays
from tapegrad.transform.blocks.rows import share_rows
from tapegrad.transform.blocks.rows_in_gradients import keep_rows_in_gradients
from tapegrad.transform.blocks.sharing import Sharing
from tapegrad.transform.blocks.single_elements import visit_single_elements
from tapegrad.transform.blocks.small_arrays import keep_on_stack, write_extents
from tapegrad.transform.blocks.stored_rows import read_stored_rows
from tapegrad.transform.blocks.unread_zeros import remove_unread_zeros
from tapegrad.transform.blocks.unrolling import unrolled
from tapegrad.transform.blocks.unused_tape import drop_unused_tape
from tapegrad.transform.blocks.webs import drop_copies, split_names
from tapegrad.transform.blocks.zeros import (
    end_early,
    select_cotangents,
    skip_unread,
    skip_unselected,
)
from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.generated import Facts, Generated, copy_with
from tapegrad.transform.independence.plan import Surroundings, index_of, plan_of
from tapegrad.transform.independence.sums import blocks_of
from tapegrad.transform.independence.uses import Effects, UnprovedError
from tapegrad.transform.syntax import subtree, text_of
from tapegrad.transform.verifier.code import leaves

# statements that take the place of loops, and statements before loops, by the ids of the loops
Replaced = tuple[dict[int, list[ast.stmt]], dict[int, list[ast.stmt]]]


@dataclass
class Made:
    """What is added to a module."""

    functions: list[Generated] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of versions of functions in blocks


class Module:
    """Makes versions of the functions of a module.

    Parameters
    ----------
    functions
        The functions.
    helpers
        Functions of numbers that are called and not among them, by their names.
    fresh
        Returns a name that the module does not use.
    """

    def __init__(
        self,
        functions: list[Generated],
        helpers: Callable[[str], Generated | None],
        fresh: Callable[[str], str],
    ) -> None:
        self.functions = {function.name: function for function in functions}
        self.helpers = helpers
        self.fresh = fresh
        self.made = Made()
        self._trees: dict[str, ast.FunctionDef] = {}  # of functions, with short loops written out
        self._facts: dict[str, Facts] = {}  # of these
        self._blocks: dict[str, tuple[str, int]] = {}  # of functions: the array, and how many rows
        self._vectorized: dict[str, str] = {}  # helpers, by their names; "" for none
        self._fresh: dict[str, Callable[[str], str]] = {}  # return names that these do not use
        self._holdings: dict[str, Holding] = {}  # what functions do with their arguments

    def run(self, entries: list[str]) -> Made:
        """Make versions of what functions need, where there is something to gain."""
        reached = self._reached(entries)
        for name in reached:
            self._trees[name] = self._unrolled(self.functions[name])
        changed = {name for name in reached if self._reads_stored(name)}
        changed |= share_rows([self.functions[name] for name in reached], self._trees)
        changed |= {name for name in reached if self._selects(name)}
        changed |= {name for name in reached if self._removes_zeros(name)}
        loops = {name: self._loops(self.functions[name]) for name in reached}
        changed |= {name for name, (found, _) in loops.items() if found}
        changed |= {name for name in reached if self._skips_zeros(name, loops[name][0])}
        changed |= {name for name in reached if self._reuses_arrays(name)}
        changed |= {n for n in reached if has_products(self._trees[n], self._facts[n])}
        changed |= {name for name in reached if self._powers(self.functions[name])}
        changed |= {n for n in reached if leave_out_zeros(self._trees[n], loops[n][0])}
        if not changed:
            return Made()
        while True:  # and what calls them
            more = {n for n in reached if used(self.functions[n].tree) & changed} - changed
            if not more:
                break
            changed |= more
        self.made.names = {name: self.fresh(f"{name}_in_blocks") for name in sorted(changed)}
        for name in reached:
            if name in changed:
                self._write(self.functions[name], loops[name])
        return self.made

    def _reached(self, entries: list[str]) -> list[str]:
        """Return the functions that some need, callees first."""
        found: dict[str, None] = {}
        open_: set[str] = set()

        def visit(name: str) -> None:
            if name in open_:
                return
            open_.add(name)
            for callee in sorted(used(self.functions[name].tree) & self.functions.keys()):
                visit(callee)
            found[name] = None

        for entry in entries:
            visit(entry)
        return list(found)

    def _unrolled(self, function: Generated) -> ast.FunctionDef:
        tree, renamed = unrolled(function.tree)
        facts = function.facts
        more = {name: facts.kind(origin) for name, origin in renamed.items()}
        self._facts[function.name] = replace(facts, kinds={**facts.kinds, **more})
        write_extents(tree, self._facts[function.name])
        move_out_invariants(tree, self._facts[function.name])
        self._fresh[function.name] = unused_in(tree)
        return tree

    def _called_by(self, name: str) -> set[str]:
        """Return the functions that one calls, and those that they call."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            called = used(self.functions[waiting.pop()].tree) & self.functions.keys()
            waiting += called - found
            found |= called
        return found

    def _selects(self, name: str) -> bool:
        """Write products of cotangents as selections; return whether there are any."""
        return select_cotangents(self._trees[name], self._facts[name])

    def _skips_zeros(self, name: str, replaced: Collection[int]) -> bool:
        """Let other loops do nothing for cotangents that are 0; return whether any does."""
        tree, facts, fresh = self._trees[name], self._facts[name], self._fresh[name]
        found = end_early(tree.body, replaced)
        found |= begin_at_last_changes(tree, replaced, facts, fresh)
        found |= skip_unread(tree, replaced, facts)
        found |= skip_unselected(tree, replaced, facts)
        return visit_single_elements(tree, replaced, facts, fresh) or found

    def _reuses_arrays(self, name: str) -> bool:
        """Let the loops of a function reuse arrays; return whether there are any."""
        tree, facts = self._trees[name], self._facts[name]
        flow = Flow(tree, facts, self._holding)
        is_changed = keep_on_stack(tree, facts, flow)
        if is_changed:
            flow = Flow(tree, facts, self._holding)
        return reuse_arrays(tree, facts, flow, self._fresh[name]) or is_changed

    def _reads_stored(self, name: str) -> bool:
        """Read kept values from arrays that hold them; return whether there are any."""
        tree, facts = self._trees[name], self._facts[name]
        return read_stored_rows(tree, facts, Flow(tree, facts, self._holding))

    def _removes_zeros(self, name: str) -> bool:
        """Remove zeros that nothing reads; return whether there are any."""
        tree, facts = self._trees[name], self._facts[name]
        found = remove_unread_zeros(tree, facts, Flow(tree, facts, self._holding))
        return keep_rows_in_gradients(tree, facts) or found

    def _holding(self, name: str) -> Holding | None:
        """Return what a function does with its arguments, None if it is not of the module."""
        if name not in self.functions:
            return None
        if name not in self._holdings:
            tree = self.functions[name].tree
            # while it is being looked at, if it calls itself
            everything = frozenset(range(len(tree.args.args)))
            self._holdings[name] = Holding(everything, ())
            found = Flow(tree, self.functions[name].facts, self._holding).holding()
            self._holdings[name] = found
        return self._holdings[name]

    def _powers(self, function: Generated) -> list[OuterPower]:
        """Return the loops of a function that are calls instead."""
        if function.made_from.targetoptions.get("boundscheck"):
            return []
        return outer_powers(self._trees[function.name], self._facts[function.name])

    def _write(self, function: Generated, replaced: Replaced) -> None:
        for powers in self._powers(function):
            powers.write()
        make_faster(self._trees[function.name], self._facts[function.name])
        tree = copy_with(self._trees[function.name], *replaced)
        drop_unused_tape(tree)
        facts = self._facts[function.name]
        if split_names(tree, self._fresh[function.name], facts.is_number):
            drop_copies(tree)
        block, places = self._blocks[function.name]
        if places:
            tree.body.insert(
                0, ast.parse(f"{block} = runtime.block({places * sizes.stride()})").body[0]
            )
        for node in subtree(tree):
            if isinstance(node, ast.Name):
                node.id = self.made.names.get(node.id, node.id)
        tree.name = self.made.names[function.name]
        self._add(ast.fix_missing_locations(tree), function, function.options)

    def _loops(self, function: Generated) -> Replaced:
        """Return what takes the place of loops."""
        self._blocks[function.name] = "", 0
        if function.made_from.targetoptions.get("boundscheck"):
            return {}, {}
        if function.name in self._called_by(function.name):  # each call would need its own block
            return {}, {}
        tree = self._trees[function.name]
        fresh = self._fresh[function.name]
        block, places = fresh("block"), 0
        sharing = Sharing(tree)
        around = Surroundings(tree, self._facts[function.name])
        found: dict[int, list[ast.stmt]] = {}
        before: dict[int, list[ast.stmt]] = {}
        for loop, outer in _inner_loops(tree.body):
            try:
                code = self._loop(function, around, loop, sharing, fresh, block)
                are_apart = fresh("are_apart")
                text = code.text(are_apart)
            except UnprovedError:
                continue
            if code.gain < sizes.LEAST_GAIN or code.iteration.places > sizes.MOST_ROWS:
                continue
            found[id(loop)] = ast.parse(text).body
            places = max(places, code.iteration.places)
            if code.overlaps:
                names = {name for pair in code.overlaps for name in pair}
                place = _outermost([*outer, loop], names)
                test = ast.parse(f"{are_apart} = {code.are_apart()}").body
                before.setdefault(id(place), []).extend(test)
        self._blocks[function.name] = block, places
        return found, before

    def _loop(
        self,
        function: Generated,
        around: Surroundings,
        loop: ast.For,
        sharing: Sharing,
        fresh: Callable[[str], str],
        block: str,
    ) -> LoopCode:
        plan = plan_of(loop, around, _effects)
        if plan.uses_tape:
            raise UnprovedError("it uses the tape")
        iteration = Iteration(
            plan,
            around.facts,
            around.rows,
            function.made_from.targetoptions.get("error_model") != "numpy",
            function.is_half and index_of(loop) not in function.fused,
            self._helper,
            fresh,
            block,
        )
        return LoopCode(iteration, sharing, fresh)

    # -- helpers ------------------------------------------------------------------------------

    def _helper(self, name: str) -> str:
        """Return the version of a function of numbers that vectorizes, "" if there is none."""
        if name not in self._vectorized:
            self._vectorized[name] = ""  # while it is being looked at
            function = self.functions.get(name) or self.helpers(name)
            if function is not None:
                self._vectorized[name] = self._vectorized_helper(function)
        return self._vectorized[name]

    def _vectorized_helper(self, function: Generated) -> str:
        tree = copy.deepcopy(function.tree)
        options = function.made_from.targetoptions
        if function.made_from.py_func.__defaults__:  # calls may have fewer arguments
            return ""
        if options.get("error_model") != "numpy" and any(
            isinstance(node, (ast.Div, ast.FloorDiv, ast.Mod)) for node in subtree(tree)
        ):
            return ""
        if any(
            isinstance(n, (ast.For, ast.While, ast.Raise, ast.Subscript)) for n in subtree(tree)
        ):
            return ""
        for parameter in tree.args.args:
            kind = function.facts.kind(parameter.arg)
            if types.unliteral(kind) != types.float64:
                return ""
        last = tree.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            return ""
        for result in leaves(last.value):
            kind = function.facts.kind(result.id) if isinstance(result, ast.Name) else None
            if kind is None or types.unliteral(kind) != types.float64:
                return ""
        for node in subtree(tree):
            if isinstance(node, ast.Call):
                found = self._vector_function(node)
                if not found:
                    return ""
                node.func = ast.parse(found, mode="eval").body
        tree.name = self.fresh(f"{function.name}_vectorized")
        self._add(tree, function, {"forceinline": True})
        return tree.name

    def _add(self, tree: ast.FunctionDef, function: Generated, options: dict[str, Any]) -> None:
        """Add a function that was made from another one."""
        made = replace(function, tree=tree, options=options)
        self.made.functions.append(made)

    def _vector_function(self, node: ast.Call) -> str:
        """Return what takes the place of a function of numbers, "" for nothing."""
        text = text_of(node.func)
        module, _, name = text.rpartition(".")
        if text in RUNTIME or text in ("abs", "min", "max"):
            return text
        if module in ("np", "math", "scalar_ops"):
            count = vector_math.ARGUMENTS.get(name)
            if count == len(node.args) and name not in ("pow", *vector_math.SINES):
                return f"vector_math.{name}"
            return ""
        return self._helper(name) if not module else ""


def unused_in(tree: ast.FunctionDef) -> Callable[[str], str]:
    """Return a function that returns names which a function does not use."""
    taken = {n.id for n in subtree(tree) if isinstance(n, ast.Name)}
    taken |= {parameter.arg for parameter in tree.args.args}

    def fresh(stem: str) -> str:
        name, number = stem, 0
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name)
        return name

    return fresh


def _effects(name: str) -> Effects | None:
    """What functions do that are not known: they must be functions of numbers."""
    return Effects([])


def _inner_loops(
    body: list[ast.stmt], outer: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.For, tuple[ast.stmt, ...]]]:
    """Yield the loops that have no loop inside, with those around them."""
    for node in body:
        is_loop = isinstance(node, (ast.For, ast.While))
        around = (*outer, node) if is_loop else outer
        for block in blocks_of(node):
            yield from _inner_loops(block, around)
        if isinstance(node, ast.For) and not any(
            isinstance(part, (ast.For, ast.While)) for part in subtree(node) if part is not node
        ):
            if isinstance(node.target, ast.Name) and _is_range(node.iter):
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
    if not isinstance(node, ast.Call) or text_of(node.func) != "range":
        return False
    bounds = [part.value for part in node.args if isinstance(part, ast.Constant)]
    if len(bounds) < len(node.args):
        return True
    return len(range(*bounds)) >= sizes.SHORT
