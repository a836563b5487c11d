"""Calls of functions that are differentiated as well.

A differentiated callee becomes two functions of the generated module: ``f_forward``, which keeps
what its reverse needs on the caller's tape, and ``f_reverse``, which pops it. The forward pass
calls a callee that keeps nothing and returns no shadows unchanged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from numba.core import types

from tapegrad.transform.builder import add_let
from tapegrad.transform.ir import (
    Let,
    Structure,
    leaf_names,
    leaves_of,
    name,
    names_in,
    replace_names,
)
from tapegrad.transform.kinds import is_array, is_real, may_share
from tapegrad.transform.nodes import call_of, expression_of, item, names, returned_of, tuple_of
from tapegrad.transform.rules.base import Rule, real_names
from tapegrad.transform.rules.generators import ForwardCode, Generator, Lowerer, ReverseCode


class AnyCall(Rule):
    """A call of a compiled function or of a derivative."""

    cheap = False
    calls = True

    def __init__(
        self, lowering: Lowerer, callee: Any, values: list[Any], kinds: tuple[Any, ...]
    ) -> None:
        self.callee = callee
        self.values = values
        self.kinds = kinds
        self.types = lowering.types
        self._inputs = real_names(self.leaves(), lowering)

    def vanishing(self, let: Let) -> Sequence[str]:
        return self.inputs()

    def leaves(self) -> list[ast.expr]:
        return [leaf for value in self.values for leaf in leaves_of(value)]

    def named(self) -> list[str]:
        """Return the names among the arguments."""
        return [found for value in self.values for found in leaf_names(value)]

    def results(self, let: Let) -> list[str]:
        return [let.target] if let.leaves is None else let.leaves

    def real_results(self, let: Let) -> list[str]:
        return [n for n in self.results(let) if is_real(self.types.get(n, types.none))]

    def read_arguments(self, gen: ReverseCode) -> list[ast.expr]:
        """Return the arguments as they were at the call, and note what they read."""
        found = [self.read(expr_of(value)) for value in self.values]
        for expr in found:
            gen.read(expr)
        return found

    def add_cotangents(self, gen: ReverseCode, found: ast.expr, positions: Iterable[int]) -> None:
        """Add the items of a tuple to the cotangents of the arguments at these positions."""
        for number, position in enumerate(positions):
            for path, leaf in paths_of(self.values[position], item(found, number)):
                if not self.is_active(gen, leaf):
                    continue
                if is_array(self.types[leaf.id]):
                    gen.add_array(leaf.id, path)
                else:
                    gen.add(leaf.id, path, ast.Constant(1.0))

    def write_passive(self, gen: ForwardCode, let: Let) -> None:
        """Write the call; its results have no tangents."""
        add_let(gen.builder, let)
        for result in self.real_results(let):
            if gen.is_active(result):
                gen.builder.assign(name(gen.dot(result)), gen.zero(result))


class Call(AnyCall):
    """A call of a numba function that is differentiated as well."""

    def __init__(
        self, lowering: Lowerer, callee: Any, values: list[Any], kinds: tuple[Any, ...]
    ) -> None:
        super().__init__(lowering, callee, values, kinds)
        self.instance = lowering.program.instance(callee, kinds)

    @property
    def error(self) -> Any:
        """Why the callee cannot be differentiated, None if it can."""
        return self.instance.error

    def vanishing(self, let: Let) -> Sequence[str]:
        return []  # what the callee does is known

    def always_used(self) -> list[str]:
        """Return the arguments that the callee uses wherever its results are used."""
        if self.error is not None:
            return []
        return [
            leaf.id
            for position, leaf in enumerate(self.leaves())
            if isinstance(leaf, ast.Name) and position not in self.instance.skips
        ]

    def written(self) -> list[str]:
        """Return the arrays that the callee writes."""
        if self.error is not None:
            return [n for n in self.named() if self._shares(n)]
        leaves = self.leaves()
        found = [leaves[position] for position in self.instance.writes]
        return [leaf.id for leaf in found if isinstance(leaf, ast.Name)]

    def arrays(self) -> list[str]:
        """Return the arrays among the arguments."""
        return [n for n in self.named() if self._is_array(n)]

    def _is_array(self, leaf: Any) -> bool:
        return is_array(self._kind(leaf))

    def _shares(self, leaf: Any) -> bool:
        """Whether an argument or result is an array, or holds arrays."""
        return may_share(self._kind(leaf))

    def _kind(self, leaf: Any) -> Any:
        identifier = leaf.id if isinstance(leaf, ast.Name) else leaf
        return self.types.get(identifier) if isinstance(identifier, str) else None

    def shared(self, let: Let) -> list[list[str]]:
        """Return the groups of arguments and results that may share elements."""
        if self.error is not None:
            return [list(filter(self._shares, [*self.results(let), *self.written()]))]
        leaves = self.leaves()
        found = []
        for made, given in self.instance.shared:
            group = [self.results(let)[k] for k in made]
            group += [leaves[k].id for k in given if self._shares(leaves[k])]
            found.append(group)
        return found

    def apart(self, let: Let) -> list[str]:
        return [self.results(let)[k] for k in self.instance.apart] if self.error is None else []

    def check_views(self, gen: Generator, let: Let) -> None:
        """Refuse arrays written later of which the callee returns a view with own derivatives."""
        leaves = self.leaves()
        for made, given in self.instance.shared:
            if not self.instance.apart.isdisjoint(made):
                arguments = [leaves[k].id for k in given if self._shares(leaves[k])]
                shown = arguments or [self.results(let)[k] for k in made]
                gen.check_view(
                    shown,
                    let,
                    f"what {self.instance.function.name} returns, a view",
                    "return a copy, as .copy() or + np.zeros(shape) makes one",
                )

    def variant(self, gen: ReverseCode, let: Let) -> Any:
        """Return the pair of generated functions for this call.

        It depends on which arguments are active, whether they may overlap, and which arrays,
        including results, keep their elements after the call. An array of which the callee reads
        few elements is not kept for them.
        """
        kept = []
        for position, leaf in enumerate(self.leaves()):
            array = leaf.id if isinstance(leaf, ast.Name) else ""
            is_final = not self._is_array(leaf) or gen.keeps(array, let)
            is_spared = position in self.instance.sampled and gen.is_on_tape(array)
            kept.append(is_final and not is_spared)
        if self.instance.result_leaves():
            kept += [not self._is_array(n) or gen.keeps(n, let) for n in self.results(let)]
        return gen.program.variant(
            self.instance, self.active_leaves(gen), self.same_arrays(gen), tuple(kept)
        )

    def active_leaves(self, gen: Generator) -> tuple[bool, ...]:
        """Return which parts of the arguments carry derivatives."""
        return tuple(self.is_active(gen, leaf) for leaf in self.leaves())

    def same_arrays(self, gen: Generator) -> bool:
        """Whether the callee writes an argument, and two arguments may be parts of one array."""
        if self.instance.is_segment:
            return False  # otherwise the loop is refused
        arrays = self.arrays()
        classes = [gen.arrays.of(array) for array in arrays]
        return bool(self.instance.writes) and len(set(classes)) < len(classes)

    def is_differentiated(self, gen: ReverseCode, let: Let) -> bool:
        """Whether any cotangent propagates through the call."""
        if self.error is not None:
            return False
        if not any(gen.is_active(n) for n in self._inputs):
            return self.has_several_arrays(gen, let)
        outputs = [n for n in self.results(let) if gen.is_active(n)]
        return bool(outputs) or any(gen.is_active(n) for n in self.written())

    def has_several_arrays(self, gen: Generator, let: Let) -> bool:
        """Whether several arrays of the result carry derivatives later: they may alias."""
        return sum(self._is_array(n) and gen.is_active(n) for n in self.results(let)) > 1

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        """Write the call of the reverse function."""
        if not self.is_differentiated(gen, let):
            return
        self.check_views(gen, let)
        variant = self.variant(gen, let)
        for array in self.passed(gen, let):
            gen.shadows.want(gen.derivative(array))
        arguments: list[ast.expr] = []
        for position, value in enumerate(self.values):
            if position in variant.unread:
                arguments.append(ast.Constant(0))
                continue
            gen.read(expr_of(value))
            arguments.append(expr_of(value))
        for number in gen.handed_by(let, variant):
            gen.read(name(number))
            arguments.append(name(number))
        scalars: list[str] = []
        leaves = self.leaves()
        for leaf, active in zip(leaves, variant.active, strict=True):
            if not active:
                continue
            assert isinstance(leaf, ast.Name)
            if is_array(self.types[leaf.id]):
                arguments.append(gen.shadow(leaf.id))
            else:
                scalars.append(leaf.id)
        for result, is_received in zip(self.real_results(let), variant.received, strict=True):
            if is_received:
                arguments.append(gen.shadow(result))
        for result in self.results(let):
            kind = self.types.get(result, types.none)
            if is_real(kind) and not is_array(kind):
                bar = name(gen.bar(result)) if result in gen.has else gen.zero(result)
                arguments.append(bar)
        targets = [gen.part(n, k) for k, n in enumerate(scalars)]
        if variant.uses_tape:
            gen.uses_tape = True
            arguments += names(["tape", "top"])
            targets.append("top")
        made = call_of(variant.reverse_name, *arguments)
        if targets:
            gen.builder.assign(returned_of(targets), made)
        else:
            gen.builder.do(made)
        for scalar, target in zip(scalars, targets, strict=False):
            gen.add(scalar, name(target), ast.Constant(1.0))

    def passed(self, gen: ReverseCode, let: Let) -> list[str]:
        """Return the arrays whose shadows are passed to the forward call or returned by it."""
        if not self.is_differentiated(gen, let):
            return []
        variant = self.variant(gen, let)
        found = self.shadowed_results(variant, let)
        if variant.takes_shadows:
            found += [n for n in self.arrays() if n in self._inputs and gen.is_active(n)]
        return found

    def shadowed_results(self, variant: Any, let: Let) -> list[str]:
        """Return the arrays of the result whose shadows the callee makes."""
        results = self.real_results(let)
        return [n for n, made in zip(results, variant.shadowed, strict=True) if made]

    def write_forward(self, gen: ReverseCode, builder: Any, let: Let) -> None:
        """Write the call of the forward function, and the shadows of its results."""
        variant = self.variant(gen, let) if self.is_differentiated(gen, let) else None
        returned = [] if variant is None else self.shadowed_results(variant, let)
        if variant is None or not self.has_forward(gen, let):
            add_let(builder, let)
        else:
            arguments = [expr_of(value) for value in self.values]
            if variant.takes_shadows:
                active = zip(self.leaves(), variant.active, strict=True)
                given = [n for leaf, on in active if on for n in names_in(leaf)]
                arguments += names(gen.derivative(n) for n in given if self._is_array(n))
            others = [*(gen.derivative(n) for n in returned), *gen.handed_by(let, variant)]
            if variant.uses_tape:
                arguments += names(["tape", "top"])
                others += ["tape", "top"]
            target = expression_of(let.target)
            made = call_of(variant.forward_name, *arguments)
            builder.assign(tuple_of([target, *names(others)]) if others else target, made)
        for result in self.results(let):
            if result not in returned and gen.shadows.is_wanted(result):
                builder.assign(name(gen.derivative(result)), call_of("np.zeros_like", name(result)))

    def has_forward(self, gen: ReverseCode, let: Let, *, for_numbers: bool = True) -> bool:
        """Whether the forward code calls the forward function, to keep values or make shadows.

        Unless it is called `for_numbers` that it hands over, and for nothing else.
        """
        if not self.is_differentiated(gen, let):
            return False
        variant = self.variant(gen, let)
        if variant.uses_tape or self.shadowed_results(variant, let):
            return True
        return for_numbers and bool(variant.handed)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        """Write the call of the function that computes tangents as well."""
        is_passive = not any(map(gen.is_active, self._inputs))
        if self.error is not None or (is_passive and not self.has_several_arrays(gen, let)):
            self.write_passive(gen, let)
            return
        self.check_views(gen, let)
        active = self.active_leaves(gen)
        function = gen.program.tangent(self.instance, active)
        arguments = [expr_of(value) for value in self.values]
        for leaf, is_active in zip(self.leaves(), active, strict=True):
            if is_active:
                arguments += [name(gen.dot(n)) for n in names_in(leaf)]
        dots = tuple_of(name(gen.dot(n)) for n in self.real_results(let))
        targets = tuple_of([expression_of(let.target), dots])
        gen.builder.assign(targets, call_of(function, *arguments))


def expr_of(value: Any) -> ast.expr:
    """Return the expression of an argument."""
    return value.build(lambda leaf: leaf) if isinstance(value, Structure) else value


def paths_of(value: Any, path: ast.expr) -> list[tuple[ast.expr, Any]]:
    """Return the atoms of a value, each with the expression that reads it from `path`."""
    if not isinstance(value, Structure):
        return [(path, value)]
    return [found for k, part in enumerate(value.items) for found in paths_of(part, item(path, k))]


def tangent_of(value: Any, gen: ForwardCode) -> ast.expr:
    """Return the tangent of an argument."""
    return value.build(gen.tangent) if isinstance(value, Structure) else gen.tangent(value)


def dotted(let: Let, gen: ForwardCode) -> ast.expr:
    """Return what the tangents of a result are assigned to."""
    target = expression_of(let.target)
    return replace_names(target, {n: gen.dot(n) for n in names_in(target)})
