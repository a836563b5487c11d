"""Arrays of a few elements, whose number is constant, are on the stack.

The compiler keeps their elements in registers, as it keeps numbers, if the memory belongs to one
name. So a name that such arrays are given has its own memory, and ``u = w`` copies the elements,
if the array has no other name from then on: a copy is not told from the array.
"""

from __future__ import annotations

import ast
import math
from typing import Any

from tapegrad.transform.frontend.liveness import assigned, used
from tapegrad.transform.generated import Facts
from tapegrad.transform.nodes import tuple_of
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import is_plain_array, made
from tapegrad.transform.printer import is_parallel
from tapegrad.transform.sharing.calls import changes_nothing
from tapegrad.transform.sharing.holders import OUTSIDE
from tapegrad.transform.syntax import (
    blocks_in,
    blocks_of,
    callee_of,
    name_of,
    nodes_in,
    subtree,
    text_of,
)
from tapegrad.transform.trees import complete, quoted_block

MOST_ELEMENTS = 16
_SIZED = ("np.zeros", "np.empty", "range")

Place = tuple[list[ast.stmt], ast.Assign]  # a statement, and its block


def write_extents(function: Function) -> bool:
    """Write constant extents as numbers where arrays are made, and in ranges."""
    numbers = _Numbers(function.facts)
    for node in nodes_in(function.tree, ast.Call):
        if callee_of(node) in _SIZED:
            node.args = [numbers.visit(argument) for argument in node.args]
    return numbers.found


class _Numbers(ast.NodeTransformer):
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.found = False

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self.facts.extent(node.id)
        self.found |= found is not None
        return node if found is None else ast.Constant(found)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        sides = (node.left, node.right)
        numbers: list[Any] = [side.value for side in sides if isinstance(side, ast.Constant)]
        if len(numbers) == 2 and isinstance(node.op, ast.Sub):
            self.found = True
            return complete(ast.Constant(numbers[0] - numbers[1]))
        return node


def keep_on_stack(function: Function) -> bool:
    """Put the small arrays of a function on the stack; return whether there are any."""
    if any(map(is_parallel, subtree(function.tree))):  # threads would share them
        return False
    return _Stack(function).run()


class _Stack:
    """The pass over one function."""

    def __init__(self, function: Function) -> None:
        self.tree = tree = function.tree
        self.facts, self.flow = function.facts, function.analyses.flow
        self.params = {parameter.arg for parameter in tree.args.args}
        self.after = function.analyses.live_after
        self.made: dict[str, list[Place]] = {}  # where names are given new arrays ...
        self.renamed: dict[str, list[Place]] = {}  # ... or those of other names
        self.others: set[str] = set()  # names that are given arrays in other ways
        for block in blocks_in(tree.body):
            for node in block:
                self.note(block, node)

    def note(self, block: list[ast.stmt], node: ast.stmt) -> None:
        """Note the names that a statement assigns."""
        match node:
            case ast.Assign([ast.Name(id=name), *_], value) if self.is_small(name):
                if self.is_small(name_of(value)):
                    self.renamed.setdefault(name, []).append((block, node))
                elif self.elements(node) is not None:
                    self.made.setdefault(name, []).append((block, node))
                else:
                    self.others.add(name)
            case ast.Assign([ast.Name(id=name), *_]):
                self.others.add(name)
            case _:
                inner = {id(part) for body in blocks_of(node) for part in body}
                own = [part for part in ast.iter_child_nodes(node) if id(part) not in inner]
                self.others.update(assigned(own))

    def is_small(self, name: str) -> bool:
        """Whether a name means arrays of a few elements."""
        shape = self.facts.shape(name)
        return (
            shape is not None
            and 0 < math.prod(shape) <= MOST_ELEMENTS
            and is_plain_array(self.facts.kind(name))
        )

    def elements(self, node: ast.Assign) -> list[ast.stmt] | None:
        """Return the statements that set the elements of a new array, None for other values."""
        name = text_of(node.targets[0])
        found = made(name, node.value, self.facts.kind(name).ndim, self.facts)
        return None if found is None or name in used(node.value) else found[1]

    def run(self) -> bool:
        """Run the pass; return whether anything changes."""
        names = (self.made.keys() | self.renamed.keys()) - self.others - self.params
        while more := {name for name in names if not self.is_apart(name, names)}:
            names -= more
        for name in sorted(names):
            for block, node in [*self.made.get(name, []), *self.renamed.get(name, [])]:
                at = next(k for k, other in enumerate(block) if other is node)
                block[at : at + 1] = self.written(name, node)
                block[:] = block or [ast.Pass()]
            shape = tuple_of(map(ast.Constant, self.facts.shape(name) or ()))
            made = quoted_block("x = runtime.on_stack(shape)", x=name, shape=shape)
            self.tree.body[:0] = made
        return bool(names)

    def is_apart(self, name: str, names: set[str]) -> bool:
        """Whether a name can have its own memory, if some other ones have theirs."""
        reached = self.flow.reached([name])
        views = reached - names
        if reached & self.flow.held:
            return False
        places = [*self.made.get(name, []), *self.renamed.get(name, [])]
        if any(views & self.after[id(node)] for _, node in places):
            return False  # they would show the elements of the next array
        return all(self.can_copy(name, node, names) for _, node in self.renamed.get(name, []))

    def can_copy(self, name: str, node: ast.Assign, names: set[str]) -> bool:
        """Whether a copy in place of an array that gets another name makes no difference."""
        assert isinstance(node.value, ast.Name)
        source = node.value.id
        same = {source, *(self.flow.reached([source]) - names)}
        if source not in names:
            same |= self.flow.origins(source)
            is_seen = OUTSIDE in same or bool(same & self.flow.held)
            if is_seen and self.is_written(self.flow.reached([name])):
                return False
        return not same & self.after[id(node)]

    def is_written(self, names: set[str]) -> bool:
        """Whether statements may write to elements of an array with some names."""
        for node in subtree(self.tree):
            match node:
                case ast.Subscript(array, _, ast.Store()) if used(array) & names:
                    return True
                case ast.AugAssign(ast.Name(id=name)) if name in names:
                    return True
                case ast.Call() if used(node) & names and not changes_nothing(node):
                    return True
        return False

    def written(self, name: str, node: ast.Assign) -> list[ast.stmt]:
        """Return the statements that give the memory of a name its elements."""
        if isinstance(node.value, ast.Name):
            return quoted_block("runtime.assign(x, y)", x=name, y=node.value)
        found = self.elements(node)
        assert found is not None
        return found
