"""Code for tangents of several directions is the code of one direction, once for each of them.

What belongs to the other directions is left out, and the names of one direction are replaced by
those of the code with one direction. That code, which was verified, has to remain.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from tapegrad.transform.errors import InternalError
from tapegrad.transform.syntax import array_of, is_loop, leaves, subtree
from tapegrad.transform.verifier.code import (
    POPS,
    TANGENT_PUSHES,
    blocks,
    called,
    is_in,
    module_call,
)

Names = Mapping[str, Sequence[str]]


def verify_directions(
    single: Sequence[str], several: Sequence[str], names: Mapping[str, Names], entry: str
) -> None:
    """Compare functions with several directions to the same functions with one.

    Parameters
    ----------
    single, several
        The texts of the functions, in the same order.
    names
        The names of a tangent in all directions, by its name in code with one direction, by
        functions.
    entry
        The pushforward.

    Raises
    ------
    InternalError
        With the function.
    """
    params = {tree.name: [p.arg for p in tree.args.args] for tree in map(_function, single)}
    for one, text in zip(single, several, strict=True):
        tree = _function(one)
        found = names.get(tree.name, {})
        taken = {n.id for n in subtree(tree) if isinstance(n, ast.Name)}
        new = [name for directions in found.values() for name in directions[1:]]
        if len(set(new)) < len(new) or taken.union(params[tree.name]).intersection(new):
            raise _wrong("directions share a name", tree.name)
        counts = {len(directions) for directions in found.values()}
        for direction in range(max(counts, default=1)):
            left = _Projection(names, params, found, direction, tree.name, tree.name == entry)
            if ast.dump(left.visit(_function(text))) != ast.dump(tree):
                raise _wrong(f"direction {direction} is not the code of one direction", tree.name)


def _function(text: str) -> ast.FunctionDef:
    tree = ast.parse(text).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _wrong(what: str, function: str) -> InternalError:
    return InternalError(what, function, 1, f"def {function}")


class _Projection(ast.NodeTransformer):
    """Leaves the code of one direction."""

    def __init__(
        self,
        of_all: Mapping[str, Names],
        params: Mapping[str, Sequence[str]],
        names: Names,
        direction: int,
        function: str,
        is_entry: bool,
    ) -> None:
        self.function = function
        self.of_all = of_all
        self.params = params
        self.direction = direction
        self.is_entry = is_entry
        self.count = max((len(d) for d in names.values()), default=1)
        self.others = {n for d in names.values() for k, n in enumerate(d) if k != direction}
        self.old = {d[direction]: name for name, d in names.items()}

    def is_other(self, node: ast.AST) -> bool:
        """Whether code belongs to another direction."""
        return any(
            (n.id if isinstance(n, ast.Name) else getattr(n, "arg", None)) in self.others
            for n in subtree(node)
        )

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for block in blocks(node) if isinstance(node, ast.stmt) else ():
            block[:] = [s for s in map(self.statement, block) if s is not None]
        return super().generic_visit(node)

    def statement(self, node: Any) -> Any:
        """Return a statement without other directions, None if it is of one of them."""
        value: Any = getattr(node, "value", None)
        is_call = called(value) in self.of_all
        match node:
            case _ if is_call and isinstance(node.targets[0].elts[1], ast.Tuple):
                node.targets[0].elts[1] = self.part(node.targets[0].elts[1])
            case ast.Return() if self.is_entry:
                node.value = value.elts[self.direction]
            case ast.Return() if self.count > 1:
                value.elts[1] = self.part(value.elts[1])
            case ast.Assign([ast.Tuple() as target, *_], ast.Tuple()):
                pairs = zip(target.elts, value.elts, strict=True)
                kept = [pair for pair in pairs if not any(map(self.is_other, pair))]
                target.elts = [pair[0] for pair in kept]
                value.elts = [pair[1] for pair in kept]
        is_whole = is_loop(node) or (isinstance(node, ast.If) and not self.is_entry)
        if is_whole or is_call or not self.is_other(node):
            return node
        if not self.changes_nothing_else(node):
            raise _wrong("what belongs to a direction changes something else", self.function)
        return None

    def changes_nothing_else(self, node: Any) -> bool:
        """Whether a statement of another direction assigns and changes names of it only."""
        match node:
            case ast.Return() | ast.If():
                return True
            case ast.Expr(call):
                assert isinstance(call, ast.Call)
                return self.is_other(call.args[0])
            case ast.Assign(_, value) if module_call(value) in TANGENT_PUSHES | POPS:
                return True
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return all(is_in(_whole(leaf), self.others) for leaf in leaves(target))

    def part(self, dots: ast.Tuple) -> ast.Tuple:
        return ast.Tuple(dots.elts[self.direction :: self.count], dots.ctx)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.args.args = [p for p in node.args.args if p.arg not in self.others]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> Any:
        return ast.arg(self.old.get(node.arg, node.arg))

    def visit_Call(self, node: ast.Call) -> Any:
        own = self.of_all.get(called(node))
        if own is not None:
            args = iter(node.args)
            node.args = []
            for param in self.params[called(node)]:
                given = [next(args) for _ in own.get(param, (param,))]
                node.args.append(given[self.direction if param in own else 0])
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if self.is_entry and array_of(node) == "dots":
            assert isinstance(node.slice, ast.Constant)
            assert isinstance(node.slice.value, int)
            place, direction = divmod(node.slice.value, self.count)
            if direction != self.direction:
                raise _wrong("it returns the tangent of another direction", "pushforward")
            node.slice = ast.Constant(place)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        return ast.Name(self.old.get(node.id, node.id), node.ctx)


def _whole(node: ast.expr) -> ast.expr:
    """Return what elements, parts and attributes are of."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node
