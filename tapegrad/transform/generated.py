"""Functions of a generated module, and what is known of their names."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numba.core import types

from tapegrad.transform.ir import Value
from tapegrad.transform.kinds import holds_array, is_array, is_complex
from tapegrad.transform.syntax import copied


@dataclass
class Facts:
    """What is known of the names of a generated function.

    Attributes
    ----------
    kinds
        numba types of the names of the function that it was made from.
    values
        What the names of cotangents or tangents stand for.
    extents
        The `Extents` of that function, if known.
    """

    kinds: dict[str, Any]
    values: Mapping[str, Value] = field(default_factory=dict)
    extents: Any = None

    def kind(self, name: str) -> Any:
        """Return the type of a name, None if it is unknown."""
        found = self.kinds.get(name)
        return self.kinds.get(self.primal(name)) if found is None else found

    def kind_of(self, node: ast.expr) -> Any:
        """Return the type of a name, a number or a sum of integers, None for other expressions."""
        match node:
            case ast.Name(id=name):
                kind = self.kind(name)
                return None if kind is None else types.unliteral(kind)
            case ast.Constant(value):
                return {int: types.int64, float: types.float64}.get(type(value))
            case ast.Attribute(ast.Name(id="np"), "inf" | "nan"):
                return types.float64
            case ast.Attribute(_, "size"):
                return types.int64
            case ast.UnaryOp(ast.USub(), operand):
                return self.kind_of(operand)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
                kinds = self.kind_of(left), self.kind_of(right)
                return types.int64 if kinds == (types.int64, types.int64) else None
        return None

    def primal(self, name: str) -> str:
        """Return the value whose cotangent or tangent a name is, or the name itself."""
        return self.values[name].of if name in self.values else name

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of an array if it is constant, None if that is unknown."""
        kind = self.kind(name)
        if self.extents is None or not is_array(kind):
            return None
        own = self.primal(name)
        keys = [self.extents.of(own, axis) for axis in range(kind.ndim)]
        found = [self.extents.constant(key) for key in keys]
        return None if None in found else tuple(found)

    def extent(self, name: str) -> int | None:
        """Return the value of a number if it is a constant extent, None for other names."""
        if self.extents is None or self.kinds.get(name) != types.int64:
            return None
        key = self.extents.of_number(ast.Name(name, ast.Load()))
        return None if key is None else self.extents.constant(key)

    def sum_kind(self, name: str) -> Any:
        """Return the type of a sum with this name, None if it is not a number."""
        found = self.kinds.get(name)
        if found is None and self.is_number(name):
            return types.complex128 if is_complex(self.kind(name)) else types.float64
        return types.unliteral(found) if isinstance(found, types.Number) else None

    def is_number(self, name: str) -> bool:
        """Whether a name is known to hold no array."""
        kind = self.kind(name)
        if isinstance(kind, types.BaseTuple):
            return not holds_array(kind)
        return isinstance(kind, (types.Number, types.Boolean, types.EnumMember))


@dataclass
class Generated:
    """A function of a generated module.

    Attributes
    ----------
    tree
        The function. Passes change copies of it.
    made_from
        The compiled function that it was made from, whose options it inherits.
    facts
        What is known of its names.
    fused
        The indices of loops whose iterations are forward and reverse code, and leave the tape as
        it was.
    is_half
        Whether other loops are forward or reverse code only.
    unit
        What forward and reverse code of the same loops have in common.
    lines
        The lines of the user's loops, by their indices.
    source
        The user's function.
    options
        Its own compiler options.
    """

    tree: ast.FunctionDef
    made_from: Any
    facts: Facts = field(default_factory=lambda: Facts({}))
    fused: set[str] = field(default_factory=set)
    is_half: bool = False
    unit: Any = None
    lines: dict[str, int] = field(default_factory=dict)
    source: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name."""
        return self.tree.name

    @functools.cached_property
    def text(self) -> str:
        """Its source."""
        return ast.unparse(self.tree) + "\n"


def parsed_function(text: str) -> ast.FunctionDef:
    """Return the function whose text is given."""
    (tree,) = parsed_functions(text)
    return tree


def parsed_functions(text: str) -> list[ast.FunctionDef]:
    """Return the functions whose text is given."""
    return [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]


def copy_with(
    tree: ast.FunctionDef,
    replaced: dict[int, list[ast.stmt]],
    before: dict[int, list[ast.stmt]] | None = None,
) -> ast.FunctionDef:
    """Return a copy of a function with statements in place of loops, and before loops.

    Both are given by the ids of the loops.
    """

    def block(body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for node in body:
            found += (before or {}).get(id(node), [])
            if id(node) in replaced:
                found += replaced[id(node)]
                continue
            made = copy.copy(node)
            for name in ("body", "orelse"):
                if getattr(made, name, None):
                    setattr(made, name, block(getattr(made, name)))
            found.append(made)
        return found

    made = copy.copy(tree)
    made.body = block(tree.body)
    return copied(made)
