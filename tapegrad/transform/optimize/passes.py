"""The passes, in the order in which they run.

A pass gets a function of the module, changes it, and returns whether it did. What a pass changes,
the next ones see. The functions that became faster are added to the module under other names, and
so are those that call them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tapegrad.transform.generated import Generated
from tapegrad.transform.optimize.additions_of_zero import leave_out_zeros
from tapegrad.transform.optimize.blocked_loops import put_in_blocks, write_blocks
from tapegrad.transform.optimize.faster_calls import add_products, call_runtime
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.invariants import move_out_invariants
from tapegrad.transform.optimize.last_changes import begin_at_last_changes
from tapegrad.transform.optimize.module import Module
from tapegrad.transform.optimize.outer_powers import call_outer_powers
from tapegrad.transform.optimize.reuse import reuse_arrays
from tapegrad.transform.optimize.rows import share_rows
from tapegrad.transform.optimize.rows_in_gradients import keep_rows_in_gradients
from tapegrad.transform.optimize.single_elements import visit_single_elements
from tapegrad.transform.optimize.small_arrays import keep_on_stack, write_extents
from tapegrad.transform.optimize.stored_rows import read_stored_rows
from tapegrad.transform.optimize.unread_zeros import remove_unread_zeros
from tapegrad.transform.optimize.unrolling import unroll
from tapegrad.transform.optimize.unused_tape import drop_unused_tape
from tapegrad.transform.optimize.webs import drop_copies, split_names
from tapegrad.transform.optimize.zeros import (
    end_early,
    select_cotangents,
    skip_unread,
    skip_unselected,
)
from tapegrad.transform.syntax import nodes_in

Pass = Callable[[Function], bool]

PASSES: list[Pass] = [
    unroll,
    write_extents,
    move_out_invariants,
    read_stored_rows,
    share_rows,
    select_cotangents,
    remove_unread_zeros,
    keep_rows_in_gradients,
    put_in_blocks,
    end_early,
    begin_at_last_changes,
    skip_unread,
    skip_unselected,
    visit_single_elements,
    keep_on_stack,
    reuse_arrays,
    leave_out_zeros,
    call_outer_powers,
    add_products,
]
"""The passes over every function that is needed."""

FINISHING: list[Pass] = [call_runtime, write_blocks, drop_unused_tape, split_names, drop_copies]
"""The passes over what is then added to the module."""

WITHOUT_GAIN = frozenset([unroll, write_extents, move_out_invariants, leave_out_zeros])
"""Those that alone are not worth another version of a function."""


@dataclass
class Made:
    """What is added to a module."""

    functions: list[Generated] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of faster versions of functions


def optimize(module: Module, entries: list[str]) -> Made:
    """Run the passes on what some functions of a module need; return what is faster."""
    functions = [Function(module.functions[name], module) for name in module.reached(entries)]
    for function in functions:
        function.peers = functions
    for pass_ in PASSES:
        for function in functions:
            is_changed = run_pass(pass_, function)
            function.is_faster |= is_changed and pass_ not in WITHOUT_GAIN
    changed = module.with_callers({f.name for f in functions if f.is_faster})
    written = [function for function in functions if function.name in changed]
    names = {n: module.fresh(f"{n}_in_blocks") for n in sorted(f.name for f in written)}
    for function in written:
        for pass_ in FINISHING:
            run_pass(pass_, function)
        _rename(function.tree, names)
    made = [replace(f.generated, tree=ast.fix_missing_locations(f.tree)) for f in written]
    return Made([*module.vectorized.functions, *made], names)


def run_pass(pass_: Pass, function: Function) -> bool:
    """Run a pass on a function; return whether it changes."""
    is_changed = pass_(function)
    if is_changed:
        function.drop_analyses()
    return is_changed


def _rename(tree: ast.FunctionDef, names: dict[str, str]) -> None:
    """Give a function, and those that it calls, the names of their faster versions."""
    for node in nodes_in(tree, ast.Name):
        node.id = names.get(node.id, node.id)
    tree.name = names[tree.name]
