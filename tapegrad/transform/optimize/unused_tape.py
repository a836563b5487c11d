"""A function that keeps nothing on its tape takes none.

Where the rows of the tape became parts of arrays (`rows_in_gradients`), the tape would still grow,
and be taken and given back.
"""

from __future__ import annotations

import ast

from tapegrad.transform.independence.sums import blocks_of
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.syntax import callee_of, subtree, text_of


def drop_unused_tape(function: Function) -> bool:
    """Remove a tape that holds no values from a function; return whether it has one."""
    tree = function.tree
    taken = [node for node in tree.body if _is_call(node, "runtime.take_tape")]
    if len(taken) != 1 or not isinstance(taken[0], ast.Assign):
        return False
    tape = text_of(taken[0].targets[0])
    statements = [node for node in subtree(tree) if isinstance(node, ast.stmt)]
    removed = [node for node in statements if _is_care(node)]
    if _count(tree, tape) != sum(_count(node, tape) for node in removed):
        return False
    ids = {id(node) for node in removed}
    for block in [block for node in statements for block in blocks_of(node)]:
        block[:] = [node for node in block if id(node) not in ids] or [ast.Pass()]
    return True


def _is_care(node: ast.stmt) -> bool:
    """Whether a statement takes the tape, makes it larger or gives it back."""
    if isinstance(node, ast.If):
        return len(node.body) == 1 and not node.orelse and _is_call(node.body[0], "runtime.grown")
    is_given = _is_call(node, "runtime.give_tape")
    return is_given or _is_call(node, "runtime.take_tape")


def _is_call(node: ast.stmt, function: str) -> bool:
    call = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
    return callee_of(call) == function


def _count(tree: ast.AST, name: str) -> int:
    return sum(isinstance(part, ast.Name) and part.id == name for part in subtree(tree))
