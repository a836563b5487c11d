"""Elementwise choices and steps: functions that are smooth except for jumps and kinks.

At a tie, equal values share the cotangent equally; at a jump, the derivative is the one-sided value
named in the docstring.
"""

from __future__ import annotations

import math

import numpy as np

from tapegrad.ops.table.array_kinds import opaque
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.kinds import elementwise
from tapegrad.ops.table.op import Fact, copied, internal, plain, public, refuse_complex

INFINITY = math.inf


@elementwise(
    np.where, truths=("condition",), chooses=True, facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC
)
def where(condition, x, y):
    """x where the condition holds, else y; the condition is not differentiable."""
    return x if condition else y


@where.partials
def _(condition):
    return where(condition, 1.0, 0.0), where(condition, 0.0, 1.0)


@elementwise(np.maximum, real=True, chooses=True, facts=Fact.ARITHMETIC)
def maximum(x, y):
    """The larger value, nan if either is; equal values share the cotangent."""
    return x if x >= y or x != x else y


@maximum.partials
def _(x, y):
    shared = where(x == y, 0.5, 0.0)
    return where(x > y, 1.0, shared), where(y > x, 1.0, shared)


@elementwise(np.minimum, real=True, chooses=True, facts=Fact.ARITHMETIC)
def minimum(x, y):
    """The smaller value, nan if either is; equal values share the cotangent."""
    return x if x <= y or x != x else y


@minimum.partials
def _(x, y):
    shared = where(x == y, 0.5, 0.0)
    return where(x < y, 1.0, shared), where(y < x, 1.0, shared)


@elementwise(np.fmax, real=True, chooses=True, facts=Fact.ARITHMETIC)
def fmax(x, y):
    """The larger value that is not nan; equal values share the cotangent."""
    return x if x >= y or y != y else y


@fmax.partials
def _(x, y):
    shared = where(x == y, 0.5, 0.0)
    is_y = (y > x) | ((x != x) & (y == y))
    return where((x > y) | (y != y), 1.0, shared), where(is_y, 1.0, shared)


@elementwise(np.fmin, real=True, chooses=True, facts=Fact.ARITHMETIC)
def fmin(x, y):
    """The smaller value that is not nan; equal values share the cotangent."""
    return x if x <= y or y != y else y


@fmin.partials
def _(x, y):
    shared = where(x == y, 0.5, 0.0)
    is_y = (y < x) | ((x != x) & (y == y))
    return where((x < y) | (y != y), 1.0, shared), where(is_y, 1.0, shared)


@internal
@elementwise(np.maximum, real=True, chooses=True, facts=Fact.ARITHMETIC)
def at_least(x, y):
    """`maximum` of x and a bound y; on the bound, x alone gets the cotangent."""
    return x if x >= y or x != x else y


@at_least.partials
def _(x, y):
    return where(x >= y, 1.0, 0.0), where(x < y, 1.0, 0.0)


@internal
@elementwise(np.minimum, real=True, chooses=True, facts=Fact.ARITHMETIC)
def at_most(x, y):
    """`minimum` of x and a bound y; on the bound, x alone gets the cotangent."""
    return x if x <= y or x != x else y


@at_most.partials
def _(x, y):
    return where(x <= y, 1.0, 0.0), where(x > y, 1.0, 0.0)


@internal
@elementwise(real=True, chooses=True, facts=Fact.ARITHMETIC)
def larger_of_ties(x, y, ties):
    """`maximum` of x, which so many elements are equal to, and of y: all share the cotangent.

    Applied to one element after the other, it is the derivative of the largest of them.
    """
    return x if x >= y or x != x else y


@larger_of_ties.partial("x")
def _(x, y, ties):
    is_y = (y > x) | ((y != y) & (x == x))
    is_tie = (x == y) | ((x != x) & (y != y))
    return where(is_y, 0.0, where(is_tie, ties / (ties + 1.0), 1.0))


@larger_of_ties.partial("y")
def _(x, y, ties):
    is_x = (x > y) | ((x != x) & (y == y))
    is_tie = (x == y) | ((x != x) & (y != y))
    return where(is_x, 0.0, where(is_tie, 1.0 / (ties + 1.0), 1.0))


@internal
@elementwise(real=True, chooses=True, facts=Fact.ARITHMETIC)
def ties_of_larger(x, y, ties):
    """How many elements are equal to the larger of x, which so many are equal to, and of y."""
    if x == y or (x != x and y != y):
        return ties + 1.0
    return ties if x > y or x != x else 1.0


@ties_of_larger.partial("x")
@ties_of_larger.partial("y")
def _():
    return 0.0


@elementwise(np.sign, chooses=True, facts=Fact.ARITHMETIC)
def sign(x):
    """-1, 0 or 1; the derivative is 0 everywhere."""
    return x if x != x else (1.0 if x > 0.0 else (-1.0 if x < 0.0 else 0.0))


@elementwise(np.floor, chooses=True, facts=Fact.ARITHMETIC)
def floor(x):
    """Largest integer not above x; the derivative is 0 everywhere."""
    return np.floor(x)


@elementwise(np.ceil, chooses=True, facts=Fact.ARITHMETIC)
def ceil(x):
    """Smallest integer not below x; the derivative is 0 everywhere."""
    return np.ceil(x)


@elementwise(np.rint, chooses=True, domains={"x": (0.55, 0.9)}, facts=Fact.ARITHMETIC)
def rint(x):
    """Nearest integer, halves to even; the derivative is 0 everywhere."""
    return np.rint(x)


@public("trunc", "fix")
@elementwise(np.trunc, chooses=True, facts=Fact.ARITHMETIC)
def trunc(x):
    """x without its fraction; the derivative is 0 everywhere."""
    return np.trunc(x)


@sign.partial("x")
@floor.partial("x")
@ceil.partial("x")
@rint.partial("x")
@trunc.partial("x")
def _():
    return 0.0


@elementwise(
    np.floor_divide,
    chooses=True,
    domains={"x": (0.85, 0.95), "y": (0.33, 0.4)},
    facts=Fact.ARITHMETIC,
)
def floor_divide(x, y):
    """Largest integer not above x / y; the derivatives are 0 everywhere."""
    return np.floor(x / y)


@floor_divide.partials
def _():
    return 0.0, 0.0


@public("mod", "remainder")
@elementwise(
    np.mod, domains={"x": (-0.95, -0.85), "y": (0.33, 0.4)}, facts=Fact.ARITHMETIC | Fact.SINGULAR
)
def mod(x, y):
    """x - y * floor(x / y); at a jump, the derivative is that on the right.

    For infinite y, the remainder is x or, if the signs differ, y.
    """
    return x - y * np.floor(x / y)


@mod.partials
def _(z, x, y):
    infinite = ((y == INFINITY) | (y == -INFINITY)) & (z == z)
    quotient = rint(where(infinite, 0.0, x - z) / y)  # consistent with this remainder
    return 1.0, where(infinite, where(z == y, 1.0, 0.0), -quotient)


@composite
def divmod(x, y):
    """Quotient rounded down, and remainder."""
    return floor_divide(x, y), mod(x, y)


@elementwise(
    np.fmod, domains={"x": (-0.95, -0.85), "y": (0.33, 0.4)}, facts=Fact.ARITHMETIC | Fact.SINGULAR
)
def fmod(x, y):
    """x - y * trunc(x / y); at a jump, the derivative is that on the side away from 0."""
    return math.fmod(x, y)


@fmod.partials
def _(z, x, y):
    quotient = rint((x - z) / y)  # consistent with this remainder
    return 1.0, -quotient


def _relu(x):
    return np.maximum(x, np.zeros((), x.dtype) if isinstance(x, np.ndarray) else 0.0)


@elementwise(_relu, real=True, chooses=True, facts=Fact.ARITHMETIC)
def relu(x):
    """max(x, 0); the derivative at 0 is 0."""
    return x if x > 0.0 or x != x else 0.0


@relu.partial("x")
def _(z):
    return where(z > 0.0, 1.0, 0.0)


@internal
@opaque(np.round, arrays=1)
def rounded(x, decimals=0):
    """Round to a number of decimals; the derivative is 0 everywhere."""


@rounded.vjp("x")
def _(g):
    return where(False, g, 0.0)


@rounded.jvp("x")
def _(t):
    return where(False, t, 0.0)


@public("round", "around", method=True)
@composite
def round(x, decimals=0):
    """Round to a number of decimals; the derivative is 0 everywhere."""
    return rounded(x, decimals)


@public(method=True)
@composite
def clip(x, min=None, max=None, *, a_min=None, a_max=None):
    """Limit to [min, max]; x gets the cotangent on a bound, the bound gets it beyond.

    NumPy's older names of the bounds, `a_min` and `a_max`, are accepted.
    """
    if a_min is not None or a_max is not None:
        if min is not None or max is not None:
            raise TypeError("clip: give the bounds as min and max, or as a_min and a_max, not both")
        min, max = a_min, a_max
    if min is not None:
        x = at_least(x, min)
    if max is not None:
        x = at_most(x, max)
    return copied(x) if min is None and max is None else x


@composite(batching="elementwise")
def copysign(x, y):
    """Magnitude of x with the sign of y; derivatives are 0 at x = 0 and with respect to y."""
    refuse_complex("copysign", x, y)
    x = where(True, x, np.zeros((), _float_type(x, y)))
    values = plain(x)
    signs = np.copysign(1.0, plain(y)).astype(values.dtype)
    return where(values == 0.0, 0.0 * signs, x * (np.sign(values) * signs))


def _float_type(*values):
    """Return the common float dtype of numbers, arrays and tensors."""
    dtype = np.result_type(*(plain(v) if hasattr(v, "dtype") else v for v in values))
    return dtype if dtype.kind == "f" else np.dtype(float)


@composite(batching="elementwise")
def heaviside(x, y):
    """0 below 0, 1 above, y at 0; the derivative with respect to x is 0 everywhere."""
    refuse_complex("heaviside", x, y)
    values = plain(x)
    step = np.where(np.isnan(values), values, values > 0.0).astype(_float_type(x, y))
    return where(values == 0.0, y, step)
