"""Linear algebra in recorded programs: functions of stacks of matrices by their factors.

Each becomes values for which compiled code has functions (`rules.numpy_functions.factors`). Stacks
have one axis; what is computed of one matrix has one set of factors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node, bodies_of, replaced
from tapegrad.ops.table.op import TABLE
from tapegrad.replay.forms import FLOAT, is_transpose
from tapegrad.transform.lapack import TURNED, UNIT, UPPER

_OF_STACKS = ("cholesky", "inv", "solve", "solve_triangular")


def with_factors(nodes: list[Node]) -> tuple[list[Node], dict[Node, Node]]:
    """Return recorded values with functions of matrices in place of some, and these by those.

    So a loop whose steps solve systems with one matrix decomposes it before the first step.
    """
    made: list[Node] = []
    same: dict[Node, Node] = {}
    for node in nodes:
        for body in bodies_of(node):
            body.nodes, inner = with_factors(body.nodes)
            body.outputs = [replaced(output, inner) for output in body.outputs]
        node.args = replaced(node.args, same)
        if spelt := on_stacks(node):
            made += spelt
            same[node] = spelt[-1]
        else:
            made.append(node)
    return made, same


def on_stacks(node: Node) -> list[Node]:
    """Return the values that a function of matrices of floats consists of, none for others."""
    if node.name in _OF_STACKS and _are_matrices(node.args):
        matrix, *right = node.args
        is_turned = bool(right) and is_transpose(matrix)  # it has the factors of the other one
        return _Written(matrix.args[0] if is_turned else matrix, is_turned).function(node, *right)
    if node.name == "item" and node.args[0].name == "slogdet" and _are_matrices(node.args[0].args):
        return _Written(node.args[0].args[0]).logarithm(node)
    return []


def _are_matrices(args: Any) -> bool:
    return all(isinstance(x, Node) and x.dtype == FLOAT and 0 not in x.shape for x in args)


class _Written:
    """Values that are computed of a stack of matrices, or of their transposes."""

    def __init__(self, matrix: Node, is_turned: bool = False) -> None:
        self.nodes: list[Node] = []
        self.is_turned = is_turned
        self.batch = matrix.shape[:-2]
        self.matrix = self.stacked(matrix)

    def function(self, node: Node, *right: Node) -> list[Node]:
        """Return the values of what has one result."""
        if node.name == "cholesky":
            found = self.add("stacked_cholesky", self.matrix.shape, self.matrix)
        elif node.name == "inv":
            factors = self.factors()
            found = self.add("factored_inverse", self.matrix.shape, self.matrix, factors)
        else:
            return self.solution(node, *right)
        self.reshaped(found, node.shape)
        return self.nodes

    def factors(self) -> Node:
        count, n, _ = self.matrix.shape
        return self.add("lu_factors", (count, n + 1, n), self.matrix)

    def logarithm(self, item: Node) -> list[Node]:
        """Return the values of a result of ``slogdet``."""
        factors, count = self.factors(), self.matrix.shape[:1]
        if item.parameters["number"] == 0:
            found = self.add("factored_sign", count, factors)
        else:
            found = self.add("factored_logarithm", count, self.matrix, factors)
        self.reshaped(found, item.shape)
        return self.nodes

    def solution(self, node: Node, right: Node) -> list[Node]:
        """Return the values of the solutions of systems of equations."""
        if len(right.shape) == 1:  # as NumPy has it
            right = self.reshaped(right, (*right.shape, 1))
        batch = right.shape[:-2]
        if batch == self.batch:
            found = self.system(node, self.stacked(right))
        elif not self.batch:  # all right-hand sides are columns beside one matrix
            rank, (rows, columns) = len(batch), right.shape[-2:]
            order = (rank, *range(rank), rank + 1)
            side = self.reshaped(self.permuted(right, order), (1, rows, math.prod(batch) * columns))
            found = self.reshaped(self.system(node, side), (rows, *batch, columns))
            found = self.permuted(found, (*range(1, rank + 1), 0, rank + 1))
        else:
            batch = np.broadcast_shapes(batch, self.batch)
            matrix = self.matrix
            if batch != self.batch:
                whole = self.reshaped(matrix, (*self.batch, *matrix.shape[1:]))
                self.matrix = self.stacked(self.broadcast(whole, (*batch, *matrix.shape[1:])))
            if batch != right.shape[:-2]:
                right = self.broadcast(right, (*batch, *right.shape[-2:]))
            found = self.system(node, self.stacked(right))
        if found.shape != node.shape:
            self.reshaped(found, node.shape)
        return self.nodes

    def system(self, node: Node, right: Node) -> Node:
        if node.name == "solve":
            name = "factored_solution_t" if self.is_turned else "factored_solution"
            return self.add(name, right.shape, self.matrix, self.factors(), right)
        is_lower = node.parameters["lower"] != self.is_turned  # of the matrix itself
        kind = (0 if is_lower else UPPER) | (TURNED if self.is_turned else 0)
        kind |= UNIT if node.parameters["unit_diagonal"] else 0
        return self.add("triangle_solution", right.shape, self.matrix, right, kind=kind)

    # -- values -------------------------------------------------------------------------------

    def add(self, name: str, of: tuple[int, ...], *args: Node, **parameters: Any) -> Node:
        """Add a value of floats, of a shape."""
        example = np.broadcast_to(np.zeros(()), of)
        made = Node(name, example, args, parameters, TABLE.get(name))
        self.nodes.append(made)
        return made

    def stacked(self, x: Node) -> Node:
        """Return a matrix, or a stack of any axes, as a stack of one."""
        return self.reshaped(x, (math.prod(x.shape[:-2]), *x.shape[-2:]))

    def reshaped(self, x: Node, shape: tuple[int, ...]) -> Node:
        return x if x.shape == shape else self.add("reshape", shape, x, shape=shape)

    def permuted(self, x: Node, order: tuple[int, ...]) -> Node:
        return self.add("transpose", tuple(x.shape[k] for k in order), x, axes=order)

    def broadcast(self, x: Node, shape: tuple[int, ...]) -> Node:
        return self.add("broadcast_to", shape, x, shape=shape)
