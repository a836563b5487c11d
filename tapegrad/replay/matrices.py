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


def with_factors(nodes: list[Node], outputs: list[Node]) -> tuple[list[Node], list[Node]]:
    """Return recorded values with functions of matrices in place of some, and the results.

    So a loop whose steps solve systems with one matrix decomposes it before the first step.
    """
    made: list[Node] = []
    same: dict[Node, Node] = {}
    for node in nodes:
        for body in bodies_of(node):
            body.nodes, body.outputs = with_factors(body.nodes, body.outputs)
        node.args = replaced(node.args, same)
        if spelt := on_stacks(node):
            made += spelt
            same[node] = spelt[-1]
        else:
            made.append(node)
    outputs = [replaced(output, same) for output in outputs]
    return _without_solutions(made, outputs), outputs


def _without_solutions(nodes: list[Node], outputs: list[Node]) -> list[Node]:
    """Return values without calls of ``lstsq`` of which no other result than x was used."""
    calls = {node for node in nodes if node.name == "lstsq"}
    if not calls:
        return nodes
    items = {node: node.args[0] for node in nodes if node.name == "item" and node.args[0] in calls}
    used = {items.get(node) for node in outputs}
    for node in nodes:
        used |= {items.get(arg) for arg in node.inputs()}
    unused = calls - used
    return [node for node in nodes if node not in unused and items.get(node) not in unused]


def on_stacks(node: Node) -> list[Node]:
    """Return the values that a function of matrices of floats consists of, none for others."""
    if node.name in _OF_STACKS and are_matrices(node.args):
        matrix, *right = node.args
        is_turned = bool(right) and is_transpose(matrix)  # it has the factors of the other one
        return _Written(matrix.args[0] if is_turned else matrix, is_turned).function(node, *right)
    if node.name == "item" and node.args[0].name == "slogdet" and are_matrices(node.args[0].args):
        return _Written(node.args[0].args[0]).logarithm(node)
    if node.name == "item" and node.args[0].name == "lstsq" and node.parameters["number"] == 0:
        return _least_squares(node.args[0])
    return []


def _least_squares(node: Node) -> list[Node]:
    """Return the values of a least-squares solution, none if it is not one of floats."""
    if len(node.args) != 2 or not are_matrices(node.args):
        return []
    a, b = node.args
    given = node.parameters.get("rcond")
    epsilon = float(np.finfo(FLOAT).eps)
    limit = epsilon * max(a.shape) if given is None else epsilon if given < 0.0 else given
    inverse = _value("pinv", a.shape[::-1], (a,), rcond=limit)
    return [inverse, _value("matmul", (a.shape[1], *b.shape[1:]), (inverse, b))]


def limit_of_pinv(node: Node) -> float | None:
    """Return up to which part of the largest one singular values count as 0.

    None for a pseudo-inverse that compiled code does not compute: of a stack, or with a limit that
    leaves out more than what rounding may make of 0, so that there may be no derivative.
    """
    x, given = node.args[0], dict(node.parameters)
    if len(node.args) != 1 or len(x.shape) != 2 or not are_matrices(node.args):
        return None
    if given.pop("hermitian", False):
        return None
    limits = [limit for limit in given.values() if limit is not None]
    if not limits:
        return 1e-15  # as NumPy has it
    (limit,) = limits if len(limits) == 1 else (None,)
    most = 10.0 * max(x.shape) * float(np.finfo(FLOAT).eps)
    return float(limit) if isinstance(limit, float) and limit <= most else None


def _value(name: str, of: tuple[int, ...], args: tuple[Node, ...], **parameters: Any) -> Node:
    """Return a value of floats, of a shape."""
    return Node(name, np.broadcast_to(np.zeros(()), of), args, parameters, TABLE.get(name))


def are_matrices(args: Any) -> bool:
    """Whether arguments are matrices, or stacks of them, of floats and not empty."""
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
        made = _value(name, of, args, **parameters)
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
