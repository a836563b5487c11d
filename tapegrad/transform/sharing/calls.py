"""What calls in code do with arrays, by the names that generated code calls functions by."""

from __future__ import annotations

import ast
import functools

import numpy as np

from tapegrad.transform import facts
from tapegrad.transform.rules.array_specs import FUNCTIONS
from tapegrad.transform.rules.effects import EFFECTS, OF_RUNTIME, Effect
from tapegrad.transform.syntax import PURE, text_of

VIEWS = facts.VIEWS | {"owned_row", "row"}  # of arrays, and of the tape
TAPE = frozenset(["tape", "top"])


@functools.cache
def reading() -> frozenset[str]:
    """Return the functions of NumPy that only read their arguments, besides its ufuncs.

    Those that have a rule are among them, which are known when all rules are imported.
    """
    others = ("all", "any", "argmax", "argmin", "argsort", "searchsorted", "where")
    of_shapes = facts.OF_SHAPES - {"empty", "ones", "zeros"}
    return of_shapes.union(FUNCTIONS.keys() - VIEWS, others)


def inputs_of(call: ast.Call) -> int | None:
    """Return how many arguments, which come first, a call of a function of NumPy only reads.

    Returns
    -------
    int or None
        None if what the function does is not known, or it gets an output by name.
    """
    module, _, name = text_of(call.func).rpartition(".")
    function = getattr(np, name, None)
    names = [keyword.arg for keyword in call.keywords]
    if module != "np" or "out" in names or facts.changes(name, len(call.args), names):
        return None
    if (count := facts.output(name)) is not None:
        return count
    if isinstance(function, np.ufunc):
        return function.nin
    is_type = isinstance(function, type) and issubclass(function, np.generic)
    is_known = is_type or name in facts.FUNCTIONS or name in reading()
    return len(call.args) if is_known else None


def changes_nothing(call: ast.Call) -> bool:
    """Whether it is known that a call changes no array, and nothing else but the tape."""
    module, _, name = text_of(call.func).rpartition(".")
    if module == "np":
        inputs = inputs_of(call)
        return inputs is not None and len(call.args) <= inputs
    if module == "runtime":
        return name not in OF_RUNTIME
    return name in PURE if not module else module in ("math", "cmath", "np.linalg", "scalar_ops")


def effect_of(function: str) -> Effect | None:
    """Return what a function does that generated code calls by a text, None if it is no rule's."""
    module, _, name = function.rpartition(".")
    return {"arrays": EFFECTS, "runtime": OF_RUNTIME}.get(module, {}).get(name)
