"""Calls of derivatives in functions that are differentiated themselves."""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.ir import (
    Let,
    Structure,
    leaves_of,
    name,
    names_in,
)
from tapegrad.transform.kinds import is_array, is_real, result_kind
from tapegrad.transform.printer import show
from tapegrad.transform.rules.base import Rule, real_names
from tapegrad.transform.rules.calls import dotted, expr_of, paths_of, text_of
from tapegrad.transform.rules.generators import ForwardCode, Generator, Lowerer, ReverseCode


class TransformCall(Rule):
    """A call of a derivative that was made with `tapegrad.grad` and similar functions."""

    cheap = False
    calls = True
    fresh = True

    def __init__(
        self, lowering: Lowerer, callee: Any, values: list[Any], kinds: tuple[Any, ...]
    ) -> None:
        self.callee = callee
        self.values = values
        self.kinds = kinds
        self.types = lowering.types
        leaves = [leaf for value in values for leaf in leaves_of(value)]
        self._inputs = real_names(leaves, lowering)

    def inputs(self) -> list[str]:
        return self._inputs

    def results(self, let: Let) -> list[str]:
        return [let.target] if let.leaves is None else let.leaves

    def contents(self, let: Let) -> list[str]:
        return [leaf.id for value in self.values for leaf in leaves_of(value) if names_in(leaf)]

    def written(self) -> list[str]:
        """Return the arrays that the callee writes."""
        return [self.values[k].id for k in self.callee.changed_arguments(self.kinds)]

    def cotangent(self, gen: ReverseCode, let: Let) -> ast.expr:
        """Return the cotangent of the result, in the structure of the result."""

        def one(node: ast.expr, kind: Any) -> ast.expr:
            if isinstance(node, ast.Tuple):
                items = zip(node.elts, kind, strict=True)
                return Structure(kind, [one(*item) for item in items]).build(lambda leaf: leaf)
            assert isinstance(node, ast.Name)
            if is_array(self.types[node.id]):
                return name(gen.shadow(node.id))
            return name(gen.bar(node.id) if node.id in gen.has else "0.0")

        pattern = ast.parse(let.target, mode="eval").body
        return one(pattern, result_kind(self.callee, self.kinds))

    def active_positions(self, gen: Generator) -> tuple[int, ...]:
        """Return the positions of the arguments that carry derivatives."""
        return tuple(
            position
            for position, value in enumerate(self.values)
            if any(gen.is_active(n) for n in self.real_leaves(value))
        )

    def real_leaves(self, value: Any) -> list[str]:
        return [
            leaf.id
            for leaf in leaves_of(value)
            if isinstance(leaf, ast.Name) and leaf.id in self._inputs
        ]

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the call of the jvp of the derivative."""
        positions = self.active_positions(gen)
        if not positions:
            gen.write(f"{let.target} = {show(let.expr)}")
            for result in self.results(let):
                if gen.is_active(result):
                    gen.write(f"{gen.dot(result)} = {gen.zero(result)}")
            return
        jvp = gen.program.derived(self.callee, "jvp", positions)
        arguments = [text_of(value) for value in self.values]
        for position in positions:
            value = self.values[position]
            if isinstance(value, Structure):
                arguments.append(show(value.build(lambda leaf: name(gen.tangent(leaf)))))
            else:
                arguments.append(gen.tangent(value))
        pattern = let.target
        dots = dotted(let, gen)
        gen.write(f"{pattern}, {dots} = {jvp}({', '.join(arguments)})")

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        """Write the call that gives the cotangents: a Hessian is symmetric."""
        positions = self.active_positions(gen)
        results = [n for n in self.results(let) if is_real(self.types.get(n, types.none))]
        live = [n for n in results if gen.is_active(n)]
        if not positions or not live:
            return
        if not any(n in gen.has or is_array(self.types[n]) for n in live):
            return
        vjp = gen.program.derived(self.callee, "vjp", positions)
        arguments = []
        for value in self.values:
            expr = self.read(expr_of(value))
            gen.read(expr)
            arguments.append(show(expr))
        arguments.append(show(self.cotangent(gen, let)))
        found = f"cotangents_{gen.number()}"
        gen.write(f"{found} = {vjp}({', '.join(arguments)})")
        for number, position in enumerate(positions):
            for path, leaf in paths_of(self.values[position], f"{found}[{number}]"):
                if not isinstance(leaf, ast.Name) or leaf.id not in self._inputs:
                    continue
                if not gen.is_active(leaf.id):
                    continue
                if is_array(self.types[leaf.id]):
                    gen.add_array(leaf.id, name(path))
                else:
                    gen.add(leaf.id, path, ast.Constant(1.0))
