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
        known = set()  # nodes of names that are assigned
        indices = set()
        for node in nodes:
            match node:
                case ast.Assign([target], value):
                    assignments = _parts(target, value)
                case ast.AugAssign(target, op, value):
                    assignments = [(target, ast.BinOp(target, op, value))]
                case ast.For(ast.Name(id=index) as target, ast.Call(ast.Name(id=called))):
                    if source.lookup(called) is range:
                        known.add(id(target))
                        indices.add(index)
                    continue
                case _:
                    continue
            for target, value in assignments:
                if isinstance(target, ast.Name):
                    known.add(id(target))
                    self._values[target.id].append(value)
        others = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name)
            and not isinstance(node.ctx, ast.Load)
            and id(node) not in known
        }
        varying = given | indices | set(self._values)
        self._varying = varying - constant - others
        while constant := {name for name in self._varying if not self._is_varying(name)}:
            self._varying -= constant

    def is_undecided(self, test: ast.expr) -> bool:
        """Whether the truth of an expression is no constant for numba."""
        match test:
            case ast.UnaryOp(_, part) | ast.Attribute(part, "shape" | "size") | ast.Subscript(part):
                return self.is_undecided(part)
            case ast.BinOp(left, _, right) | ast.Compare(left, _, [right]):
                return self.is_undecided(left) or self.is_undecided(right)
            case ast.Call(ast.Attribute(ast.Name(id=module))):
                return self._source.lookup(module) is np
            case ast.Name(id=name):
                return name in self._varying
        return False

    def _is_varying(self, name: str) -> bool:
        """Whether no value that is assigned to a variable is a constant for numba."""
        return all(map(self.is_undecided, self._values.get(name, ())))


def _parts(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment, with expressions for their values."""
    match target, value:
        case ast.Tuple(parts), ast.Tuple(values) if len(parts) == len(values):
            return [*zip(parts, values, strict=True)]
        case ast.Tuple(parts), _:
            return [(part, ast.Subscript(value, ast.Constant(k))) for k, part in enumerate(parts)]
    return [(target, value)]
