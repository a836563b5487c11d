"""What derivatives take from their functions: signatures, as empty functions, and options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_OPTIONS = ("error_model", "boundscheck", "nogil")


def stub(function: Callable[..., Any], name: str, extra: tuple[str, ...]) -> Any:
    """Return a function with the signature of a derivative, for numba to bind arguments to.

    If any argument has a default, the extra ones get None; missing arguments are detected later.
    """
    parameters = list(inspect.signature(function).parameters.values())
    names = [parameter.name for parameter in parameters]
    defaults = {f"d_{p.name}": p.default for p in parameters if p.default is not p.empty}
    shown = [f"{p.name}=d_{p.name}" if f"d_{p.name}" in defaults else p.name for p in parameters]
    if not name.isidentifier():
        name = "function"  # of a lambda
    while any(other in names for other in extra):
        extra = tuple(f"{other}_" for other in extra)
    ending = [f"{other}=None" if defaults else other for other in extra]
    text = f"def {name}({', '.join([*shown, *ending])}):\n    return None\n"
    scope: dict[str, Any] = dict(defaults)
    exec(text, scope)
    made = scope[name]
    made.__doc__ = function.__doc__
    made.__module__ = function.__module__
    return made


def inherited_options(base: Any) -> dict[str, Any]:
    """Return the compiler options that a derivative inherits."""
    given = {name: base.targetoptions.get(name) for name in _OPTIONS}
    return {name: value for name, value in given.items() if value is not None}
