"""A function that keeps nothing on its tape takes none.

Where the rows of the tape became parts of arrays (`rows_in_gradients`), the tape would still grow,
and be taken and given back.
"""

from __future__ import annotations

import ast

from tapegrad.transform.ir import names_in
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.syntax import blocks_in, callee_of, subtree, text_of


def drop_unused_tape(function: Function) -> bool:
    """Remove a tape that holds no values from a function; return whether it has one."""
    tree = function.tree
    match [node for node in tree.body if _is_call(node, "runtime.take_tape")]:
        case [ast.Assign([target, *_])]:
            tape = text_of(target)
        case _:
            return False
    removed = [node for node in subtree(tree) if _is_care(node)]
    if names_in(tree).count(tape) != sum(names_in(node).count(tape) for node in removed):
        return False
    ids = {id(node) for node in removed}
    for block in list(blocks_in(tree.body)):
        block[:] = [node for node in block if id(node) not in ids] or [ast.Pass()]
    return True


def _is_care(node: ast.AST) -> bool:
    """Whether a statement takes the tape, makes it larger or gives it back."""
    match node:
        case ast.If(_, [only], []):
            return _is_call(only, "runtime.grown")
    return _is_call(node, "runtime.give_tape") or _is_call(node, "runtime.take_tape")


def _is_call(node: ast.AST, function: str) -> bool:
    return isinstance(node, (ast.Assign, ast.Expr)) and callee_of(node.value) == function
