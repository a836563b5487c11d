"""The slopes of functions that are random: their partials in the op table."""

from __future__ import annotations

import functools

from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE, Fact
from tapegrad.transform.equivalence.field import (
    RUN,
    ZERO,
    Number,
    UnfollowedError,
    inverse,
    number,
)
from tapegrad.transform.equivalence.meanings import interpreted
from tapegrad.transform.verifier.linear import PRIME

_run = functools.cache(interpreted)
_OPS = {"%": "mod"}
_FLAT = frozenset(["//", "ceil", "fix", "floor", "int", "rint", "round", "trunc"])


def slope(name: str, given: list[Number], found: Number) -> Number:
    """Return the slope of a random function.

    Parameters
    ----------
    name
        Its name.
    given
        Its arguments, with slopes.
    found
        Its value.
    """
    with RUN.without_slopes():
        values = [Number(*argument.residues, argument.known) for argument in given]
        steps = [Number(x.value // PRIME, x.rest // PRIME) for x in given]
        terms = (_partial(name, k, values, found) * step for k, step in enumerate(steps) if step)
        return sum(terms, ZERO)


def _partial(name: str, place: int, values: list[Number], found: Number) -> Number:
    """Return the derivative with respect to an argument."""
    if name in _FLAT:
        return ZERO
    if name == "sqrt":
        return inverse(found + found)
    op = TABLE.get(_OPS.get(name, name))
    if isinstance(op, Elementwise):
        argument = op.arguments[place]
        if argument in op.truths:
            return ZERO
        is_complex = any(value.rest for value in values)
        if argument in op.rules and (Fact.HOLOMORPHIC in op.facts or not is_complex):
            known = {**dict(zip(op.arguments, values, strict=True)), "z": found}
            rule = op.rules[argument]
            count = rule.__code__.co_argcount
            reads = rule.__code__.co_varnames[:count]
            return number(_run(rule)(*(known[read] for read in reads)))
    raise UnfollowedError(f"the slope of {name}")
