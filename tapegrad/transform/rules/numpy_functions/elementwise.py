"""Rules of elementwise NumPy functions that are not ufuncs."""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform.rules.array_specs import Request, understands
from tapegrad.transform.rules.base import Rule, Step
from tapegrad.transform.rules.numpy_functions.makers import Fixed
from tapegrad.transform.rules.scalars import clip, finite


@understands("clip")
def _(call: Request, a: Any, a_min: Any, a_max: Any) -> Any:
    if a_min is None:
        return call.elementary("at_most", a, a_max)
    if a_max is None:
        return call.elementary("at_least", a, a_min)
    return call.elementary(clip, a, a_min, a_max)


@understands("nan_to_num")
def _(call: Request, x: Any, copy: Any, nan: Any) -> Any:
    # with copy=False it changes its argument
    return call.elementary(finite, x) if copy is None and nan is None else None


@understands("conj", "conjugate")
def _(call: Request, x: Any) -> Any:
    return call.linear(x)


@understands("round", "around")
def _(call: Request, a: Any, decimals: Any) -> Any:
    return to_decimals(Fixed() if call.is_whole else Step(False), [a, decimals])


def to_decimals(rule: Rule, arguments: list[ast.expr | None]) -> Rule:
    """Return the rule of a rounding, which notes what is rounded if that leaves decimals."""
    number, decimals = (*arguments, None)[:2]
    places: Any = decimals.value if isinstance(decimals, ast.Constant) else 1
    is_whole = decimals is None or places is None or places <= 0
    if isinstance(number, ast.Name) and not is_whole:
        rule.rounds = number.id
    return rule
