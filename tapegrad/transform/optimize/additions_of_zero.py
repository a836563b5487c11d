"""Additions of and to what is 0, which are left out.

What branches of reverse code add to is 0 before, and it is still 0 after the branches that add
nothing. A compiler must not leave out the addition of 0, which changes the sign of a zero; but in a
chain of iterations each waits for it. So the first addition is an assignment, and what follows a
branch that may have left a number at 0 is added where it is not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.nodes import negative
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.syntax import is_loop, is_zero, name_of


def leave_out_zeros(function: Function) -> bool:
    """Leave out additions of and to numbers that are 0; return whether there are any.

    Loops that run in blocks stay as they are. Only what is left out in branches makes the function
    faster.
    """
    pass_ = _Additions(function.blocked)
    pass_.block(function.tree.body, set())
    function.is_faster |= pass_.is_faster
    return pass_.found


class _Additions:
    """The pass over one function."""

    def __init__(self, replaced: Collection[int]) -> None:
        self.replaced = replaced
        self.branches = self.loops = 0  # around a block
        self.found = self.is_faster = False

    def block(self, body: list[ast.stmt], zeros: set[str]) -> set[str]:
        """Change a block, before which some names are 0; return those that are 0 after it."""
        for place, node in enumerate(body):
            if isinstance(node, ast.If):
                self.branches += 1
                then, orelse = self.block(node.body, zeros), self.block(node.orelse, zeros)
                self.branches -= 1
                # a branch that ends with a jump does not reach what is put behind it either
                while place + 1 < len(body) and _adds(body[place + 1], then ^ orelse):
                    added = body.pop(place + 1)
                    if _adds(added, then):
                        node.orelse.append(added)
                        orelse = orelse - set(assigned([added]))  # what it adds to is not 0 now
                    else:
                        node.body.append(added)
                        then = then - set(assigned([added]))
                    self.found = self.is_faster = True
                zeros = then & orelse
            elif is_loop(node):
                zeros = zeros - set(assigned([node]))
                if id(node) not in self.replaced:
                    self.loops += 1
                    self.block(node.body, zeros)
                    self.loops -= 1
            elif (name := _added_to(node)) in zeros and (self.branches or self.loops):
                assert isinstance(node, ast.AugAssign)
                body[place] = _assignment(node)
                self.found = True
                self.is_faster |= self.branches > 0
                zeros = zeros - {name}
            else:
                zeros = zeros - set(assigned([node]))
                match node:
                    case ast.Assign(targets, value) if is_zero(value):
                        zeros = zeros | (set(map(name_of, targets)) - {""})
        return zeros


def _added_to(node: ast.stmt) -> str:
    """Return the number that a statement adds something else to, "" for other statements."""
    match node:
        case ast.AugAssign(ast.Name(id=name), ast.Add() | ast.Sub(), value):
            return "" if name in used(value) else name
    return ""


def _adds(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement adds one of some numbers to an element or another number."""
    match node:
        case ast.AugAssign(target, ast.Add() | ast.Sub(), ast.Name(id=name)):
            return name in names - used(target)
    return False


def _assignment(node: ast.AugAssign) -> ast.Assign:
    value = node.value if isinstance(node.op, ast.Add) else negative(node.value)
    return ast.Assign([node.target], value, lineno=0)
