"""Elementwise functions that compiled code calls and that are not ops on tensors.

They are declared like the ops of the table (`tapegrad.ops.elementwise`): partials are written with
ops, ``z`` is the result. At a jump, the derivative is that of one side.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from tapegrad.ops.elementwise import absolute, exp2
from tapegrad.ops.piecewise import INFINITY, sign, where
from tapegrad.ops.special import digamma
from tapegrad.ops.table.op import Fact, Rule
from tapegrad.ops.table.partials import taken_apart
from tapegrad.transform import runtime
from tapegrad.transform.rules.effects import has_effect

DEGREES = 57.29577951308232
RADIANS = 0.017453292519943295


class Scalar:
    """An elementwise function that is not an op on tensors.

    Attributes
    ----------
    name, arguments, rules
        As in an op.
    texts
        The names by which generated code calls it, on numbers and on arrays.
    chooses, facts
        As in an elementwise op.
    """

    def __init__(
        self, declaration: Callable[..., Any], texts: tuple[str, str], chooses: bool, facts: Fact
    ) -> None:
        self.name = declaration.__name__
        self.__doc__ = declaration.__doc__
        self.arguments = tuple(inspect.signature(declaration).parameters)
        self.rules: dict[str, Rule] = {}
        self.texts = texts
        self.chooses = chooses
        self.facts = facts

    def partial(self, argument: str) -> Callable[[Rule], Rule]:
        """Declare the partial derivative with respect to an argument (a decorator)."""

        def declare(rule: Rule) -> Rule:
            self.rules[argument] = rule
            return rule

        return declare

    def partials(self, rule: Rule) -> Rule:
        """Declare a tuple of the partials with respect to all arguments (a decorator)."""
        self.rules.update(zip(self.arguments, taken_apart(rule), strict=True))
        return rule


SCALARS: dict[Any, Scalar] = {}  # keyed by the functions that numba code calls


def scalar(
    *functions: Any,
    number: str = "",
    whole: str = "",
    chooses: bool = False,
    facts: Fact = Fact.NONE,
) -> Callable[[Callable[..., Any]], Scalar]:
    """Declare a function (a decorator).

    Parameters
    ----------
    *functions
        The functions that users call.
    number, whole
        The names by which partials call it, if they do, on numbers and on arrays.
    chooses
        Whether an argument is not selected where its partial is 0.
    facts
        Properties that compiled functions have to know.
    """

    def enter(declaration: Callable[..., Any]) -> Scalar:
        made = Scalar(declaration, (number, whole or number), chooses, facts)
        for function in functions:
            SCALARS[function] = made
        return made

    return enter


@numba.vectorize
@has_effect()
def product_of_elements(x, y):
    """Return x * y, 0 where x is 0; see `runtime.product`."""
    return 0.0 if x == 0.0 else (0.0 if abs(x) < runtime.NEGLIGIBLE else x) * y


@numba.vectorize
def nonzero_elements(partial):
    """Return partials, or `INFINITESIMAL` where they are 0; see `runtime.nonzero`."""
    return runtime.INFINITESIMAL if partial == 0.0 else partial


@scalar(
    runtime.product,
    number="runtime.product",
    whole="arrays.product_of_elements",
    facts=Fact.ARITHMETIC | Fact.SINGULAR | Fact.HOLOMORPHIC,
)
def product(x, y):
    """x * y, or 0 where x is 0, whatever y is.

    A cotangent or tangent of 0 passes nothing on, even if the partial is infinite or nan.
    """


product_of_elements.tapegrad_op = product


@product.partials
def _(x, y):
    return y, x


@scalar(
    runtime.nonzero,
    number="runtime.nonzero",
    whole="arrays.nonzero_elements",
    facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC,
)
def nonzero(partial):
    """A partial derivative, marked if it is 0."""


@scalar(runtime.settled, number="runtime.settled", facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC)
def settled(partial, divisor):
    """The partial of a quotient by its divisor, 0 where that does not change the quotient."""


@settled.partial("partial")
def _(partial, divisor):
    return 1.0


@scalar(runtime.moved, number="runtime.moved", facts=Fact.ARITHMETIC | Fact.HOLOMORPHIC)
def moved(tangent, other):
    """A tangent, marked if it is 0 and another one that it follows from is not."""


@moved.partial("tangent")
def _(tangent, other):
    return 1.0


nonzero_elements.tapegrad_op = nonzero


@nonzero.partial("partial")
def _(partial):
    return 1.0


@scalar(np.radians, np.deg2rad, math.radians, facts=Fact.ARITHMETIC)
def radians(x):
    """Degrees in radians."""


@radians.partial("x")
def _():
    return RADIANS


@scalar(np.degrees, np.rad2deg, math.degrees, facts=Fact.ARITHMETIC)
def degrees(x):
    """Radians in degrees."""


@degrees.partial("x")
def _():
    return DEGREES


@scalar(np.copysign, math.copysign, number="np.copysign", facts=Fact.ARITHMETIC)
def copysign(x, y):
    """Magnitude of x with the sign of y; the partials are 0 for x at 0, and for y."""


@copysign.partials
def _(x, y):
    return sign(x) * copysign(1.0, y), 0.0


@scalar(np.ldexp, math.ldexp, number="np.ldexp")
def ldexp(x, n):
    """x * 2**n."""


@ldexp.partial("x")
def _(n):
    return exp2(n)


@scalar(math.gamma, facts=Fact.SINGULAR)
def gamma(x):
    """Gamma function."""


@gamma.partial("x")
def _(z, x):
    return z * digamma(x)


@scalar(chooses=True)
def clip(x, low, high):
    """Clip to [low, high]; on a bound the cotangent goes to x, beyond it to the bound."""


@clip.partials
def _(x, low, high):
    inside = (x >= low) & (x <= high)
    is_low = (x < low) & (low <= high)
    is_high = (x > high) | ((x < low) & (low > high))
    return where(inside, 1.0, 0.0), where(is_low, 1.0, 0.0), where(is_high, 1.0, 0.0)


@scalar(chooses=True)
def finite(x):
    """Return x where it is finite, else a constant."""


@finite.partial("x")
def _(x):
    return where(absolute(x) < INFINITY, 1.0, 0.0)
