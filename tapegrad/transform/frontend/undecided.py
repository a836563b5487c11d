"""Whether numba may decide conditions before it finds types.

It decides those whose operands are constants. Asking it takes a tenth of a second or more, and
most functions compare arguments and elements of arrays. All that is known here of numba is what it
never takes for a constant: elements, results of NumPy's functions, arguments, and what is computed
from these.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform.frontend.conditions import Condition
from tapegrad.transform.frontend.source import Source
from tapegrad.transform.syntax import subtree

_SCOPES = (
    ast.FunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.NamedExpr,
)


def all_undecided(source: Source, conditions: list[Condition], kinds: tuple[Any, ...]) -> bool:
    """Whether it is known that numba decides none of some conditions.

    Parameters
    ----------
    source
        The function.
    conditions
        Its conditions.
    kinds
        numba types of its arguments.
    """
    nodes = [node for statement in source.tree.body for node in subtree(statement)]
    if any(isinstance(node, _SCOPES) for node in nodes):
        return False  # numba writes inner functions where they are called
    variables = _Variables(source, nodes, kinds)
    return all(
        variables.is_undecided(operand)
        for condition in conditions
        for operand in condition.operands
    )


class _Variables:
    """What is assigned to the names of a function."""

    def __init__(self, source: Source, nodes: list[ast.AST], kinds: tuple[Any, ...]) -> None:
        self._source = source
        self._values: dict[str, list[ast.expr]] = defaultdict(list)
        arguments = source.tree.args
        params = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        given = {param.arg for param in params}
        constant = {
            param.arg
            for param, kind in zip(params, kinds, strict=True)
            if isinstance(kind, (types.NoneType, types.Omitted, types.Literal))
        }
        assigned = set()
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                assignments = _parts(node.targets[0], node.value)
            elif isinstance(node, ast.AugAssign):
                assignments = [(node.target, ast.BinOp(node.target, node.op, node.value))]
            else:
                continue
            for target, value in assignments:
                if isinstance(target, ast.Name):
                    assigned.add(id(target))
                    self._values[target.id].append(value)
        indices = {
            id(node.target): node.target.id
            for node in nodes
            if isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and isinstance(node.iter, ast.Call)
            and isinstance(node.iter.func, ast.Name)
            and source.lookup(node.iter.func.id) is range
        }
        others = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, (ast.Store, ast.Del))
            and id(node) not in assigned
            and id(node) not in indices
        }
        varying = given | set(indices.values()) | set(self._values)
        self._varying = varying - constant - others
        while constant := {name for name in self._varying if not self._is_varying(name)}:
            self._varying -= constant

    def is_undecided(self, test: ast.expr) -> bool:
        """Whether the truth of an expression is no constant for numba."""
        if isinstance(test, ast.UnaryOp):
            return self.is_undecided(test.operand)
        if isinstance(test, ast.BinOp):
            return self.is_undecided(test.left) or self.is_undecided(test.right)
        if isinstance(test, ast.Compare):
            sides = test.left, *test.comparators
            return len(sides) == 2 and any(map(self.is_undecided, sides))
        if isinstance(test, ast.Call):
            called = test.func
            return (
                isinstance(called, ast.Attribute)
                and isinstance(called.value, ast.Name)
                and self._source.lookup(called.value.id) is np
            )
        if isinstance(test, ast.Name):
            return test.id in self._varying
        if isinstance(test, ast.Attribute):
            return test.attr in ("shape", "size") and self.is_undecided(test.value)
        return isinstance(test, ast.Subscript) and self.is_undecided(test.value)

    def _is_varying(self, name: str) -> bool:
        """Whether no value that is assigned to a variable is a constant for numba."""
        return all(map(self.is_undecided, self._values.get(name, ())))


def _parts(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment, with expressions for their values."""
    if not isinstance(target, ast.Tuple):
        return [(target, value)]
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        return [*zip(target.elts, value.elts, strict=True)]
    return [(part, ast.Subscript(value, ast.Constant(k))) for k, part in enumerate(target.elts)]
