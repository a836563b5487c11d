"""Calls of functions that have custom rules."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from numba.core import types

from tapegrad.transform.builder import add_let
from tapegrad.transform.ir import Let, name
from tapegrad.transform.kinds import is_array, is_real
from tapegrad.transform.nodes import call_of, expression_of, tuple_of
from tapegrad.transform.rules.calls import Call, dotted, expr_of, tangent_of
from tapegrad.transform.rules.generators import ForwardCode, Generator, Lowerer, ReverseCode
from tapegrad.transform.syntax import identifier_of


class Ruled(Call):
    """A call of a function with rules of its own, of which one may follow from the other."""

    error = None  # its source is not differentiated

    def __init__(
        self, lowering: Lowerer, callee: Any, values: list[Any], kinds: tuple[Any, ...]
    ) -> None:
        super().__init__(lowering, callee, values, kinds)
        self.vjp = self.static(lowering, "vjp")
        self.jvp = self.static(lowering, "jvp")

    def vanishing(self, let: Let) -> Sequence[str]:
        return self.inputs()

    def static(self, lowering: Lowerer, kind: str) -> str:
        """Return the name of a rule in the generated module."""
        rule = getattr(self.callee, f"rule_{kind}")
        origin = lowering.program.origin_of(self.callee)
        text = f"{identifier_of(self.callee.py_func)}_{kind}"
        return lowering.program.static(text, rule, ("attribute", origin, f"rule_{kind}"))

    def refuse_unknown(self, gen: Generator, let: Let, kind: str, types_of: list[Any]) -> None:
        """Refuse the mode in which no derivative follows from the rule of the other mode."""
        refusal = getattr(getattr(self.callee, f"rule_{kind}"), "refusal", None)
        if refusal is not None:
            for found in filter(None, map(refusal, map(types.unliteral, types_of))):
                gen.refuse(found, let.line)

    def contents(self, let: Let) -> list[str]:
        leaves = [leaf.id for leaf in self.leaves() if isinstance(leaf, ast.Name)]
        return [*leaves, *self.results(let)]

    def is_differentiated(self, gen: ReverseCode, let: Let) -> bool:
        found = super().is_differentiated(gen, let)
        instance = self.instance
        if found and instance.error is None and (instance.writes or instance.shared):
            what = "writes into its argument" if instance.writes else "returns its argument"
            gen.refuse(
                f"{self.callee.py_func.__name__} has a rule of its own and {what}; let it copy the "
                "array first (y = y.copy()) and work on the copy",
                let.line,
            )
        return found

    def passed(self, gen: ReverseCode, let: Let) -> list[str]:
        return []

    def has_forward(self, gen: ReverseCode, let: Let, *, for_numbers: bool = True) -> bool:
        return False

    def write_forward(self, gen: ReverseCode, builder: Any, let: Let) -> None:
        add_let(builder, let)
        gen.shadows.write(builder, let)

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        if not self.is_differentiated(gen, let):
            return
        self.refuse_unknown(gen, let, "vjp", list(self.kinds))
        arguments = self.read_arguments(gen)
        result = self.read(expression_of(let.target))
        gen.read(result)
        arguments.append(result)

        def cotangent(node: ast.expr) -> ast.expr:
            if isinstance(node, ast.Tuple):
                return tuple_of(map(cotangent, node.elts))
            assert isinstance(node, ast.Name)
            kind = self.types.get(node.id, types.none)
            if is_array(kind):
                return gen.shadow(node.id)
            is_known = is_real(kind) and node.id in gen.has
            return name(gen.bar(node.id)) if is_known else gen.zero(node.id)

        found = name(gen.returned(let))
        arguments.append(cotangent(expression_of(let.target)))
        gen.builder.assign(found, call_of(self.vjp, *arguments))
        self.add_cotangents(gen, found, range(len(self.values)))

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        add_let(gen.builder, let)
        if any(map(gen.is_active, self.results(let))):
            made = [self.types[n] for n in self.results(let)]
            self.refuse_unknown(
                gen, let, "jvp", made if let.leaves is None else [types.Tuple(made)]
            )
            arguments = [expr_of(value) for value in self.values]
            arguments += [tangent_of(value, gen) for value in self.values]
            arguments.append(expression_of(let.target))
            gen.builder.assign(dotted(let, gen), call_of(self.jvp, *arguments))
