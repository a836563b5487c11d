"""The rule of functions of whole arrays."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numba.core import types

from tapegrad.transform.ir import Let, name, names_in
from tapegrad.transform.kinds import is_complex
from tapegrad.transform.nodes import call_of
from tapegrad.transform.printer import show
from tapegrad.transform.rules.base import Rule, conjugate, real_names
from tapegrad.transform.rules.generators import ForwardCode, Generator, Lowerer, ReverseCode


def parameters_of(function: Any) -> tuple[str, ...]:
    """Return the names of the parameters of a compiled function."""
    code = function.py_func.__code__
    found: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return found


class Whole(Rule):
    """A function of whole arrays, with derivatives written in `tapegrad.transform.rules.arrays`."""

    def __init__(
        self, spec: Any, operands: dict[str, ast.expr], fresh: bool, lowering: Lowerer
    ) -> None:
        self.spec = spec
        self.operands = operands
        self.fresh = fresh
        self.types = lowering.types
        self.cheap = spec.cheap
        self.is_passing = not spec.chooses
        active = [atom for key, atom in operands.items() if key in spec.vjp or key in spec.jvp]
        self._inputs = real_names(active, lowering)

    def contents(self, let: Let) -> list[str]:
        return [*names_in(let.expr), let.target]

    def _call(
        self, function: Any, special: dict[str, ast.expr], let: Let, is_pull: bool
    ) -> ast.expr:
        values = {**self.operands, "z": name(let.target)}
        values = {key: self.value(atom, is_pull) for key, atom in values.items()} | special
        reads = parameters_of(function)
        return call_of(f"arrays.{function.py_func.__name__}", *(values[n] for n in reads))

    def value(self, atom: ast.expr, is_pull: bool) -> ast.expr:
        """Return the expression that a derivative reads for an operand, conjugated for a vjp."""
        found = self.read(atom)
        kind = self.types.get(atom.id) if isinstance(atom, ast.Name) else None
        if is_pull and kind is not None and is_complex(kind):
            return conjugate(found, isinstance(kind, types.Array))
        return found

    def refuse_unknown(self, gen: Generator, let: Let, argument: str) -> None:
        """Raise the error for an argument without a known derivative."""
        gen.refuse(
            f"cannot differentiate {show(let.expr)} with respect to {argument!r}; pass it through "
            "tg.stop_gradient, or write the function as a loop",
            let.line,
        )

    def derivatives(
        self, gen: Generator, let: Let, functions: Mapping[str, Any]
    ) -> Iterator[tuple[str, str, Any]]:
        """Yield the arguments that carry derivatives, with their names and functions."""
        for argument, atom in self.operands.items():
            if isinstance(atom, ast.Name) and self.is_active(gen, atom):
                if functions.get(argument) is None:
                    self.refuse_unknown(gen, let, argument)
                yield argument, atom.id, functions[argument]

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        g = gen.shadow(let.target) if self.fresh else name(gen.bar(let.target))
        given = {"g": g}
        vjps = [*self.derivatives(gen, let, self.spec.vjp)]
        if any("w" in parameters_of(function) for _, _, function in vjps):
            given["w"] = name(gen.returned(let))
            call = self._call(self.spec.shared, given, let, True)
            gen.read(call)
            gen.builder.assign(given["w"], call)
        for argument, operand, function in vjps:
            whole = isinstance(self.types[operand], types.Array)
            if not whole and f"{argument}_bar" in parameters_of(function):
                self.refuse_unknown(gen, let, argument)  # it is known for arrays only
            bar = {f"{argument}_bar": gen.shadow(operand)} if whole else {}
            call = self._call(function, {**given, **bar}, let, True)
            if whole:
                gen.line(call)
                if self.may_vanish(gen, argument, operand):
                    is_used = call_of("arrays.is_used", g) if self.fresh else g
                    gen.line(call_of("arrays.mark_zeros", gen.shadow(operand), is_used))
            else:
                gen.add(operand, call, ast.Constant(1.0), call)

    def vanishing(self, let: Let) -> Sequence[str]:
        if self.spec.chooses:
            return []
        names = {key: names_in(atom) for key, atom in self.operands.items()}
        found = [n for key in names if key not in self.spec.linear for n in names[key]]
        return found if len(self._inputs) < 2 else self._inputs

    def may_vanish(self, gen: ReverseCode, argument: str, operand: str) -> bool:
        """Whether cotangents of 0 that it adds have to be told from those of unused elements."""
        if self.spec.chooses or not gen.is_marked(operand):
            return False
        others = [atom for key, atom in self.operands.items() if key != argument]
        return argument not in self.spec.linear or any(self.is_active(gen, a) for a in others)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        found: ast.expr | None = None
        for argument, operand, function in self.derivatives(gen, let, self.spec.jvp):
            term = self._call(function, {f"{argument}_dot": name(gen.dot(operand))}, let, False)
            found = term if found is None else ast.BinOp(found, ast.Add(), term)
        gen.set_dot(let, found)
