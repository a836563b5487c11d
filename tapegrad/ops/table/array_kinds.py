"""The kinds of ops whose rules are Python functions of whole arrays.

=============  =============================  ==========================================
kind           the declaration gives          derived
=============  =============================  ==========================================
pointwise      Python function, partials      both products with the partials
linear         NumPy function, transposes     tangents: the op of the tangents
bilinear       NumPy function, vjps           tangents: the op of one tangent at a time
opaque         NumPy function, vjps, jvps     batches: stacks along leading axes
=============  =============================  ==========================================

Batches of linear and bilinear ops are computed item by item if no rule is declared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.ops.table import sparsity
from tapegrad.ops.table.batching import one_by_one
from tapegrad.ops.table.kinds import Broadcasting
from tapegrad.ops.table.op import (
    TABLE,
    Batched,
    Op,
    Out,
    Rule,
    call_rule,
    in_shape,
    shape_of,
    size_of_batch,
    stacked,
)
from tapegrad.ops.table.partials import taken_apart

Formula = Any  # a plain Python function of arrays


class ArrayOp(Op):
    """An op whose rules are Python functions of whole arrays."""

    def __init__(
        self,
        declaration: Formula,
        arrays: int | None = None,
        function: Any = None,
        of_list: bool = False,
    ) -> None:
        super().__init__(declaration, arrays)
        self.function = declaration if function is None else function
        self.of_list = of_list  # whether its first argument is a list of arrays

    @property
    def is_looped(self) -> bool:  # type: ignore[override]
        return self.batch_rule is None

    def needs(self, argument: str) -> set[str]:
        return super().needs(argument) | self.parameters.keys()

    def batch_by_kind(
        self, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]
    ) -> Any:
        return one_by_one(self, args, batched, parameters)

    def declared(self, rules: dict[str, Rule], argument: str) -> Callable[[Rule], Rule]:
        """Return a decorator that registers the rule of an argument."""

        def declare(rule: Rule) -> Rule:
            rules[argument] = rule
            return rule

        return declare


class Pointwise(Broadcasting, ArrayOp):
    """A function of scalars, applied to every element; its partials are functions of arrays."""

    kind = "pointwise"
    is_looped = False

    def partial(self, argument: str) -> Callable[[Rule], Rule]:
        """Declare the partial derivative with respect to an argument (a decorator)."""
        return self.declared(self.rules, argument)

    def partials(self, rule: Rule) -> Rule:
        """Declare the partial derivatives with respect to all arguments, a tuple (a decorator)."""
        self.rules.update(zip(self.arguments, taken_apart(rule), strict=True))
        return rule

    def cotangent(self, argument: str, g: Any, values: dict[str, Any]) -> Any:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return TABLE["multiply"](g, call_rule(self.rules[argument], values))

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        terms = [self.cotangent(name, t, values) for name, t in tangents.items()]
        return in_shape(functools.reduce(TABLE["add"], terms), out[0])


class Linear(ArrayOp):
    """A function that is linear in all its arguments jointly."""

    kind = "linear"

    def transpose(self, argument: str) -> Callable[[Rule], Rule]:
        """Declare the cotangent of an argument as a function of `g` (a decorator)."""
        return self.declared(self.rules, argument)

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        shape, dtype = out
        args: list[Any] = []
        for name in self.arguments:
            t = tangents.get(name)
            if isinstance(t, list):
                shapes = values[f"{name}_shape"]
                t = [np.zeros(s, dtype) if u is None else u for s, u in zip(shapes, t, strict=True)]
            elif t is None:  # the first argument of several has the shape of the output
                t = np.zeros(() if args else shape, dtype)
            args.append(t)
        return self(*args, **{name: values[name] for name in self.parameters})

    def sparsity(
        self, argument: str, args: Sequence[Any], parameters: dict[str, Any]
    ) -> np.ndarray:
        return sparsity.of_units(self, self.arguments.index(argument), args, 0.0, parameters)


class Bilinear(ArrayOp):
    """A function that is linear in each argument, or in each item of its list argument."""

    kind = "bilinear"

    def vjp(self, argument: str) -> Callable[[Rule], Rule]:
        """Declare the cotangent of an argument as a function of `g` (a decorator)."""
        return self.declared(self.rules, argument)

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        parameters = {name: values[name] for name in self.parameters}
        terms = []
        for name, t in tangents.items():
            if not self.of_list:
                args = [t if n == name else values[n] for n in self.arguments]
                terms.append(self(*args, **parameters))
                continue
            for k, item in enumerate(t):
                if item is not None:
                    items = [item if j == k else value for j, value in enumerate(values[name])]
                    terms.append(self(items, **parameters))
        return functools.reduce(TABLE["add"], terms)

    def sparsity(
        self, argument: str, args: Sequence[Any], parameters: dict[str, Any]
    ) -> np.ndarray:
        return sparsity.of_units(self, self.arguments.index(argument), args, 1.0, parameters)


class Opaque(ArrayOp):
    """An op whose vjp and jvp are both declared."""

    kind = "opaque"

    def __init__(
        self, declaration: Formula, arrays: int | None, function: Any, stacks: bool
    ) -> None:
        super().__init__(declaration, arrays, function)
        self.stacks = stacks
        self.jvps: dict[str, Rule] = {}

    @property
    def is_looped(self) -> bool:  # type: ignore[override]
        return self.batch_rule is None and not self.stacks

    def jvp(self, argument: str) -> Callable[[Rule], Rule]:
        """Declare the output's tangent as a function of an argument's tangent `t` (a decorator).

        The argument's vjp must read all other values that the rule reads.
        """
        return self.declared(self.jvps, argument)

    def tangent(self, tangents: dict[str, Any], values: dict[str, Any], out: Out) -> Any:
        terms = [call_rule(self.jvps[name], {**values, "t": t}) for name, t in tangents.items()]
        return functools.reduce(TABLE["add"], terms)

    def vjp(self, argument: str) -> Callable[[Rule], Rule]:
        """Declare the cotangent of an argument as a function of `g` (a decorator)."""
        return self.declared(self.rules, argument)

    def batch_by_kind(
        self, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]
    ) -> Any:
        if not self.stacks:
            return super().batch_by_kind(args, batched, parameters)
        shapes = [shape_of(arg)[int(on) :] for arg, on in zip(args, batched, strict=True)]
        if any(
            len(shape) < 2 for shape in shapes
        ):  # a batch of vectors is no matrix: let one raise
            self.function(*map(np.ones, shapes), **parameters)
        return self(*stacked(args, batched, size_of_batch(args, batched)), **parameters)

    def sparsity(
        self, argument: str, args: Sequence[Any], parameters: dict[str, Any]
    ) -> np.ndarray:
        out = self(*args, **parameters)
        rows = sum(np.size(z) for z in (out if isinstance(out, tuple) else (out,)))
        return sparsity.dense(rows, np.size(args[self.arguments.index(argument)]))


def pointwise(function: Any, *, arrays: int | None = None) -> Callable[[Formula], Pointwise]:
    """Declare an op by its partials, functions of arrays (a decorator); see `opaque`."""
    return lambda declaration: Pointwise(declaration, arrays, function)


def linear(
    function: Any = None, *, arrays: int | None = None, of_list: bool = False
) -> Callable[[Formula], Linear]:
    """Declare a linear op by the transposes of its arguments (a decorator); see `opaque`.

    With `of_list` the first argument is a list of arrays.
    """
    return lambda declaration: Linear(declaration, arrays, function, of_list)


def bilinear(
    function: Any = None, *, arrays: int | None = None, of_list: bool = False
) -> Callable[[Formula], Bilinear]:
    """Declare an op that is linear in each argument by its vjps (a decorator); see `linear`."""
    return lambda declaration: Bilinear(declaration, arrays, function, of_list)


def opaque(
    function: Any = None, *, arrays: int | None = None, stacks: bool = True
) -> Callable[[Formula], Opaque]:
    """Declare an op with its own vjps and jvps (a decorator).

    Parameters
    ----------
    function
        Function that computes it, if not the declaration itself.
    arrays
        Number of leading arguments that are arrays; default: those without a default value.
    stacks
        Whether it accepts stacks of its arguments, along new leading axes of all of them.
    """
    return lambda declaration: Opaque(declaration, arrays, function, stacks)
