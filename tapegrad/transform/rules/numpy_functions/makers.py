"""Functions that make arrays: from a shape, from numbers, and copies."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform import nodes
from tapegrad.transform.ir import Let, name
from tapegrad.transform.kinds import is_array
from tapegrad.transform.rules.array_specs import Request, declare, derivative, understands
from tapegrad.transform.rules.base import Alloc, Linear, Passive, Rule, real_names
from tapegrad.transform.rules.generators import ForwardCode, Lowerer, ReverseCode
from tapegrad.transform.rules.shown import ShownApart

declare("full", "shape", "fill_value", calls=False, holomorphic=True)
declare(
    *("full_like", "a", "fill_value"),
    steps=("a",),
    calls=False,
    holomorphic=True,
    like="full",
)
declare("linspace", "start", "stop", "num")
declare("arange", "start", "stop", "step", steps=("stop",), calls=False)
declare("diag", "v", chooses=True, holomorphic=True, linear=("v",))


class Fixed(Rule):
    """A new array with zero derivative; values written into it later may have one."""

    fresh = True
    cheap = False

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        gen.set_dot(let, None)


class Found(Passive):
    """A new array of integers or booleans computed from reals."""

    fresh = True


class Literal(Rule):
    """``np.array([a, b])``, and ``np.array(a)`` for a number."""

    fresh = True

    def __init__(self, items: list[tuple[tuple[int, ...], ast.expr]], lowering: Lowerer) -> None:
        self.items = items
        self.types = lowering.types
        self._inputs = real_names([item for _, item in items], lowering)

    def zeros(self, let: Let) -> ast.expr:
        if not self.items or self.types[let.target].dtype != types.float64:
            return super().zeros(let)
        extents: list[ast.expr] = [ast.Constant(1 + place) for place in self.items[-1][0]]
        shape = extents[0] if len(extents) == 1 else ast.Tuple(extents, ast.Load())
        return ast.Call(name("np.zeros"), [shape], [])

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        for position, item in self.items:
            if isinstance(item, ast.Name) and gen.is_active(item.id):
                g = nodes.item(gen.shadow(let.target), _place(position))
                gen.add(item.id, g, ast.Constant(1.0))

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        gen.set_handle(let.target, self.zeros(let))
        for position, item in self.items:
            if isinstance(item, ast.Name) and gen.is_active(item.id):
                place = nodes.item(name(gen.dot(let.target)), _place(position))
                gen.builder.assign(place, name(gen.dot(item.id)))


def _place(position: tuple[int, ...]) -> ast.expr:
    """Return the index of an element."""
    numbers = [ast.Constant(k) for k in position]
    return numbers[0] if len(numbers) == 1 else nodes.tuple_of(numbers)


@understands("empty", "zeros", "ones")
def _(call: Request, shape: Any, dtype: Any) -> Any:
    positional = len(call.expr.args) > 1
    return Alloc([shape, dtype] if positional else [shape])


@understands("empty_like", "zeros_like", "ones_like")
def _(call: Request, a: Any, dtype: Any) -> Any:
    if not isinstance(a, ast.Name) or not call.is_whole:
        return None
    return Alloc([], None if dtype is not None else a.id)


@understands("full")
def _(call: Request, shape: Any, fill_value: Any, dtype: Any) -> Any:
    return call.whole("full", shape=shape, fill_value=fill_value)


@understands("full_like")
def _(call: Request, a: Any, fill_value: Any, dtype: Any) -> Any:
    return call.whole("full_like", a=a, fill_value=fill_value)


@derivative
def full_vjp_fill_value(g):
    return np.sum(g)


@derivative
def full_jvp_fill_value(z, fill_value_dot):
    return np.full_like(z, fill_value_dot)


@understands("arange")
def _(call: Request, start: Any, stop: Any, step: Any, dtype: Any) -> Any:
    if stop is None:  # the first argument is the end
        return Fixed() if step is None else call.whole("arange", step=step)
    return call.whole("arange", start=start, stop=stop, step=step)


@derivative
def arange_vjp_start(g):
    return np.sum(g)


@derivative
def arange_jvp_start(z, start_dot):
    return np.full(z.size, start_dot)


@derivative
def arange_vjp_step(g):
    total = 0.0
    for k in range(g.size):
        total += k * g[k]
    return total


@derivative
def arange_jvp_step(z, step_dot):
    return step_dot * np.arange(z.size)


@derivative
def linspace_vjp_start(g):
    n = g.size
    found = 0.0
    for k in range(n):
        found += g[k] * (1.0 - k / (n - 1.0) if n > 1 else 1.0)
    return found


@derivative
def linspace_vjp_stop(g):
    n = g.size
    found = 0.0
    for k in range(n):
        found += g[k] * (k / (n - 1.0) if n > 1 else 0.0)
    return found


@derivative
def linspace_jvp_start(start_dot, z):
    return np.linspace(start_dot, 0.0, z.size)


@derivative
def linspace_jvp_stop(stop_dot, z):
    return np.linspace(0.0, stop_dot, z.size)


@derivative
def diag_vjp_v(v_bar, g):
    if v_bar.ndim == 1:
        for k in range(v_bar.size):
            v_bar[k] += g[k, k]
    else:
        for k in range(g.size):
            v_bar[k, k] += g[k]


# -- copies ----------------------------------------------------------------------------------------


@understands("array", "asarray")
def _(call: Request, a: Any, dtype: Any) -> Any:
    if isinstance(a, (ast.List, ast.Tuple)):
        items = _items(a, ())
        if any(call.ndim(item) for _, item in items):
            return None
        return Literal(items, call.lowering)
    if not is_array(call.type(a)):
        if not isinstance(call.type(a), (types.Number, types.Boolean)):
            return None
        return Literal([((), a)], call.lowering)  # an array without axes
    same = call.text == "asarray" and call.type(a).dtype == call.kind.dtype
    return call.view(a) if same else call.linear(a)


def _items(
    node: ast.List | ast.Tuple, position: tuple[int, ...]
) -> list[tuple[tuple[int, ...], ast.expr]]:
    found: list[tuple[tuple[int, ...], ast.expr]] = []
    for k, item in enumerate(node.elts):
        place = (*position, k)
        deeper = isinstance(item, (ast.List, ast.Tuple))
        found += _items(item, place) if deeper else [(place, item)]
    return found


@understands("copy")
def _(call: Request, a: Any) -> Any:
    return call.linear(a) if is_array(call.type(a)) else None


class Contiguous(ShownApart, Linear):
    """An array in another layout: the argument itself if that turns out to have it, or a copy.

    Nobody knows which before the call (``a[::k]``), so its shadow is an array of its own.
    """

    instead = "it shows an array that is contiguous when it is called: use .copy() instead"

    def __init__(self, array: ast.Name, function: str, lowering: Lowerer) -> None:
        super().__init__(array, True, lowering)
        self.shown = [array.id]
        self.made_by = f"np.{function}"


@understands("ascontiguousarray")
def _(call: Request, a: Any) -> Any:
    if not call.ndim(a):
        return None
    if call.type(a).layout == "C":
        return call.view(a)
    if call.type(a).layout == "A":
        return Contiguous(a, call.text, call.lowering)
    return call.written_as("runtime.in_c_order(a)", a, call.linear(a))


@understands("asfortranarray")
def _(call: Request, a: Any) -> Any:
    if not call.ndim(a):
        return None
    kind = call.type(a)
    if kind.layout == "F" or (kind.layout == "C" and kind.ndim == 1):
        return call.view(a)
    if kind.layout == "A":
        return Contiguous(a, call.text, call.lowering)
    return call.written_as("runtime.in_fortran_order(a)", a, call.linear(a))
