"""How derivatives of functions of whole arrays are declared.

A `Spec` names the arguments of a function and gives for each what its cotangent gains
(``NAME_pull_ARGUMENT``) and how its tangent passes on (``NAME_push_ARGUMENT``). The names of a
function's own arguments say what it reads: arguments, ``z`` the result, ``g`` its cotangent,
``x_bar`` the cotangent to add to, ``x_dot`` the tangent. Being in the language that is
differentiated, these functions have derivatives themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numba

jit = numba.njit(error_model="numpy", cache=True)


@dataclass
class Spec:
    """A function of arrays with its derivatives."""

    name: str
    arguments: tuple[str, ...]
    cheap: bool = False
    pull: dict[str, Any] = field(default_factory=dict)
    push: dict[str, Any] = field(default_factory=dict)


SPECS: dict[str, Spec] = {}


def declare(name: str, *arguments: str, cheap: bool = False) -> None:
    """Declare a function by the name that its derivatives begin with."""
    SPECS[name] = Spec(name, arguments, cheap)


def derivative(function: Callable[..., Any]) -> Any:
    """Compile a derivative and enter it, by its name, into the spec that it belongs to."""
    compiled = jit(function)
    mode = "pull" if "_pull_" in function.__name__ else "push"
    name, argument = function.__name__.split(f"_{mode}_")
    getattr(SPECS[name], mode)[argument] = compiled
    return compiled
