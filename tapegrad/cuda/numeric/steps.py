"""What a kernel computes for each position: formulas, applied one after the other."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.cuda.numeric.codegen import (
    CONTIGUOUS,
    OF_DEVICE,
    DeviceModule,
    Formula,
    converted,
    element,
    indented,
    parameters,
    unravelled,
)
from tapegrad.cuda.numeric.mathematics import returned, sine_of
from tapegrad.kernels.codegen import arguments_of

# what a step reads has the name that it has in a kernel: elements of arrays, numbers, and values
ARRAY, NUMBER, VALUE = "x", "n", "v"
_ROUNDED = {"float64": "dmul_rn", "float32": "fmul_rn"}  # products that are never joined with sums
# a partial of 0 means that the value was not chosen: its cotangent is 0 even where g is nan
_CHOSEN = ["def chosen(g, partial):", "    return g * partial if partial else partial"]


class Action:
    """A formula that kernels apply to numbers, for some types; there is one object for each.

    Attributes
    ----------
    formula
        Plain function of scalars.
    template
        The result: text in which ``{}`` stands for the value of the formula, and ``{name}`` for an
        operand that the formula does not read.
    names
        Names of the operands.
    computed, result
        Type in which the formula computes, and that of the result.
    is_single
        Whether it computes in single precision.
    is_rounded
        Whether what it computes last is not a product, as far as its text shows.
    """

    __slots__ = (
        "computed", "formula", "is_rounded", "is_single", "names", "result", "template",
    )  # fmt: skip

    def __init__(
        self, formula: Formula, template: str, names: Sequence[str],
        computed: np.dtype, result: np.dtype,
    ) -> None:  # fmt: skip
        self.formula = formula
        self.template = template
        self.names = names
        self.computed = computed
        self.result = result
        self.is_single = computed == np.float32
        self.is_rounded = template == "{}" and _is_rounded(formula)


@functools.cache
def action(
    formula: Formula, template: str, names: tuple[str, ...] | None,
    computed: np.dtype, result: np.dtype,
) -> Action:  # fmt: skip
    """Return the object for a formula and its types; names are its arguments' by default."""
    return Action(formula, template, names or tuple(arguments_of(formula)), computed, result)


@dataclass(frozen=True)
class Steps:
    """Actions in order, with what each reads.

    Attributes
    ----------
    steps
        Each an action and the names of what it reads, as ``("x0", "n0", "v2")``.
    arrays
        Types of the elements of arrays.
    """

    steps: tuple[tuple[Action, tuple[str, ...]], ...]
    arrays: tuple[np.dtype, ...]

    @property
    def is_single(self) -> bool:
        """Whether formulas compute in single precision."""
        return self.steps[0][0].is_single if self.steps else self.arrays[0] == np.float32

    @property
    def numbers(self) -> list[str]:
        """Names of the numbers, which are parameters of the kernel."""
        return [name for _, read in self.steps for name in read if name.startswith(NUMBER)]

    def statements(self, module: DeviceModule, elements: Sequence[str]) -> list[str]:
        """Return the statements that compute ``v0``, ``v1``, ... from the elements of arrays.

        A product that a later step reads is rounded as if it were stored: the compiler would join
        it with a sum otherwise, and results would depend on what is computed in one kernel. The
        sine and the cosine of one number are computed together.
        """
        if any("chosen" in made.template for made, _ in self.steps):
            module.lines += ["", "", module.decorator, *_CHOSEN]
        types = {f"{ARRAY}{k}": dtype for k, dtype in enumerate(self.arrays)}
        lines = [f"{name} = {text}" for name, text in zip(types, elements, strict=True)]
        used = {name for _, read in self.steps for name in read}
        both = self._sines_with_cosines()
        for k, (made, read) in enumerate(self.steps):
            computed, result = made.computed.name, made.result.name
            values = {}
            for name, text in zip(made.names, read, strict=True):
                is_kept = types.get(text, made.computed) in (made.computed, np.bool_)
                values[name] = text if is_kept else converted(text, computed)
            given = ", ".join(values[name] for name in arguments_of(made.formula))
            if k in both:
                sine, cosine = f"sine{both[k]}", f"cosine{both[k]}"
                if k == both[k]:
                    end = "f" if made.is_single else ""
                    lines.append(f"{sine}, {cosine} = libm.sincos{end}({given})")
                applied = sine_of(made.formula).format(sin=sine, cos=cosine)
            else:
                applied = f"{module.add(OF_DEVICE.get(made.formula, made.formula))}({given})"
            value = converted(made.template.format(applied, **values), result)
            found = f"{VALUE}{k}"
            if found in used and result in _ROUNDED and not made.is_rounded:
                value = f"libm.{_ROUNDED[result]}({value}, {result}(1.0))"
            types[found] = made.result
            lines.append(f"{found} = {value}")
        return lines

    def _sines_with_cosines(self) -> dict[int, int]:
        """Return steps with a sine or a cosine of a number of which others take the other one.

        Each has the first step that takes one of them.
        """
        steps: dict[Any, list[int]] = {}
        for k, (made, read) in enumerate(self.steps):
            if made.computed.name in _ROUNDED and sine_of(made.formula):
                argument = made.names.index(*arguments_of(made.formula))
                steps.setdefault((read[argument], made.computed), []).append(k)
        return {
            k: found[0]
            for found in steps.values()
            if len({sine_of(self.steps[k][0].formula).strip("-") for k in found}) > 1
            for k in found
        }


def _is_rounded(formula: Formula) -> bool:
    arguments = arguments_of(formula)

    def has(value: Any) -> bool:
        if isinstance(value, ast.IfExp):
            return has(value.body) and has(value.orelse)
        if isinstance(value, ast.BinOp):
            return isinstance(value.op, (ast.Add, ast.Sub, ast.Div))
        return isinstance(value, ast.Name) and value.id in arguments

    return has(returned(formula))


@functools.lru_cache(2048)
def map_kernel(
    computed: Steps, kinds: tuple[str, ...], outputs: tuple[tuple[int, str], ...], rank: int
) -> Any:
    """Return the kernel that computes steps for every element.

    Parameters
    ----------
    computed
        The steps.
    kinds
        Kinds of the arrays that they read.
    outputs
        Which steps are stored, with the kinds of the arrays.
    rank
        Number of axes.
    """
    module = DeviceModule("float32" if computed.is_single else "float64")
    elements = [element(f"a{k}", kind) for k, kind in enumerate(kinds)]
    body = computed.statements(module, elements)
    names = ["count", *(f"d{d}" for d in range(1, rank))]
    for k, (step, kind) in enumerate(outputs):
        names += parameters(f"out{k}", kind)
        body.append(f"{element(f'out{k}', kind)} = {VALUE}{step}")
    for k, kind in enumerate(kinds):
        names += parameters(f"a{k}", kind)
    names += computed.numbers
    if {*kinds, *(kind for _, kind in outputs)} != {CONTIGUOUS}:
        body = ["rest = i", *unravelled(rank), *body]
    module.lines += ["", "", f"def kernel({', '.join(names)}):"]
    module.lines.append("    for i in range(cuda.grid(1), count, cuda.gridsize(1)):")
    module.lines += indented(body, 2)
    return module.kernel("kernel")
