"""Names that mean the same in every generated module."""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

import numba
import numpy as np

from tapegrad.transform import deferred
from tapegrad.transform.functions import ops, scalar_ops


def namespace(statics: dict[str, Any]) -> dict[str, Any]:
    """Return the initial namespace of a generated module."""
    return {
        "np": np,
        "math": math,
        "numba": numba,
        "operator": operator,
        "runtime": deferred.runtime,
        "arrays": deferred.arrays,
        "ops": ops,
        "scalar_ops": scalar_ops,
        "vector_math": deferred.vector_math,
        **statics,
    }


def known_as(text: str, value: Any) -> str | None:
    """Return the dotted name of an object in every generated module, None if it has none.

    Parameters
    ----------
    text
        The name that a function has for it.
    value
        The object.
    """
    texts = [text]
    if own := getattr(value, "__name__", ""):  # it may have been imported by name
        texts += [f"{module}.{own}" for module in ("math", "np", "np.linalg")]
    return next((found for found in texts if _meaning(found) is value), None)


def _meaning(text: str) -> Any:
    """Return what a dotted name means in every generated module, None if it has no meaning."""
    first, *rest = text.split(".")
    found = namespace({}).get(first, getattr(builtins, first, None))
    for attribute in rest:
        found = getattr(found, attribute, None)
    return found
