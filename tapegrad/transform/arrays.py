"""Functions of whole arrays: those that generated code calls, and which rule a call has."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from tapegrad.transform.array_specs import SPECS, jit
from tapegrad.transform.linear_algebra import *
from tapegrad.transform.reductions import *


def as_array(g, bar):
    """Return a cotangent as an array; a number is that of all elements of another array."""


@overload(as_array)
def _as_array(g, bar):
    if isinstance(g, types.Array):
        return lambda g, bar: g
    return lambda g, bar: np.full_like(bar, g)


@jit
def add_to(bar, given):
    """Add a cotangent (an array or number) to one of an input that was broadcast."""
    g = as_array(given, bar)
    if g.ndim == bar.ndim:
        if g.shape == bar.shape:
            bar += g
            return
    extra = g.ndim - bar.ndim
    total = np.zeros(bar.size, bar.dtype)
    for index in np.ndindex(g.shape):
        flat = 0
        for axis in range(bar.ndim):
            size = bar.shape[axis]
            flat = flat * size + (index[axis + extra] if size > 1 else 0)
        total[flat] += g[index]
    bar += total.reshape(bar.shape)


@jit
def add_1_to_1(bar, g):
    """Add a vector."""
    step = 0 if bar.size == 1 else 1
    for i in range(g.size):
        bar[i * step] += g[i]


@jit
def add_2_to_1(bar, g):
    """Add a matrix to what was repeated in its rows."""
    step = 0 if bar.size == 1 else 1
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            bar[j * step] += g[i, j]


@jit
def add_2_to_2(bar, g):
    """Add a matrix."""
    down = 0 if bar.shape[0] == 1 else 1
    right = 0 if bar.shape[1] == 1 else 1
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            bar[i * down, j * right] += g[i, j]


@jit
def add_3_to_3(bar, g):
    """Add an array of three dimensions."""
    first = 0 if bar.shape[0] == 1 else 1
    second = 0 if bar.shape[1] == 1 else 1
    third = 0 if bar.shape[2] == 1 else 1
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            for k in range(g.shape[2]):
                bar[i * first, j * second, k * third] += g[i, j, k]


@jit
def assign_1(x, y):
    """Give a vector the elements of another."""
    for i in range(x.size):
        x[i] = y[i]


@jit
def assign_2(x, y):
    """Give a matrix the elements of another."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = y[i, j]


@jit
def places(x):
    """Return the position of every element in row-major order, in an array of the same shape."""
    return np.arange(x.size).reshape(x.shape)


@jit
def scatter(bar, chosen, g):
    """Add the cotangents of chosen elements, given their positions."""
    total = np.zeros(bar.size, bar.dtype)
    where = chosen.copy().reshape(-1)
    values = g.copy().reshape(-1)
    for k in range(where.size):
        total[where[k]] += values[k]
    bar += total.reshape(bar.shape)


@jit
def numbered(x):
    """Return the numbers from 1 of the elements of an array, in its shape."""
    return np.arange(1, x.size + 1).reshape(x.shape)


@jit
def unnumbered(x):
    """Return zeros in the shape of an array, for elements that do not count."""
    return np.zeros(x.shape, np.int64)


@jit
def scatter_numbered(bar, numbers, g):
    """Add cotangents to the elements that have some numbers; 0 is none of them."""
    total = np.zeros(bar.size, bar.dtype)
    where = numbers.copy().reshape(-1)
    values = g.copy().reshape(-1)
    for k in range(where.size):
        if where[k] > 0:
            total[where[k] - 1] += values[k]
    bar += total.reshape(bar.shape)


# linear in what they add, which is their last argument
ADDITIONS = (add_to, add_1_to_1, add_2_to_1, add_2_to_2, add_3_to_3, scatter, scatter_numbered)


# -- which spec -----------------------------------------------------------------------------------

_ALIASES = {"amax": "max", "amin": "min", "vdot": "dot"}


def find(
    lowering: Any, text: str, arguments: list[ast.expr], keywords: list[ast.keyword], kind: Any
) -> Any:
    """Return the rule of a function of arrays by its NumPy name, or None."""
    from tapegrad.transform.lower import is_array
    from tapegrad.transform.rules import Whole

    text = _ALIASES.get(text, text)
    named = {k.arg: k.value for k in keywords}
    if text in ("dot", "matmul") and len(arguments) == 2:
        return product(lowering, *arguments)
    if text == "sum" and (len(arguments) > 1 or "axis" in named):
        text = "sum_axis"
        if lowering.type_of(arguments[0]).ndim == 1:  # there is one axis only
            return Whole(SPECS["sum"], {"x": arguments[0]}, is_array(kind), lowering)
    if text == "solve" and len(arguments) == 2:
        text = f"solve_{lowering.type_of(arguments[1]).ndim}"
    spec = SPECS.get(text)
    if spec is None or len(arguments) > len(spec.arguments):
        return None
    operands = dict(zip(spec.arguments, arguments, strict=False))
    for key, value in named.items():
        if key not in spec.arguments:
            return None
        operands[key] = value
    if text == "cumsum" and lowering.type_of(arguments[0]).ndim != 1:
        return None
    if text == "linspace" and "num" not in operands:
        operands["num"] = ast.Constant(50)
    return Whole(spec, operands, is_array(kind), lowering)


def product(lowering: Any, x: ast.expr, y: ast.expr) -> Any:
    """Return the rule of a matrix product."""
    from tapegrad.transform.rules import Whole

    ndims = (lowering.type_of(x).ndim, lowering.type_of(y).ndim)
    spec = SPECS[f"dot_{ndims[0]}{ndims[1]}"]
    return Whole(spec, {"x": x, "y": y}, ndims != (1, 1), lowering)


def flatten(lowering: Any, base: ast.Name) -> Any:
    """Return the rule of ``flatten``."""
    from tapegrad.transform.rules import Whole

    return Whole(SPECS["flatten"], {"x": base}, True, lowering)
