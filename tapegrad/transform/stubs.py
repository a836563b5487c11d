"""Functions without content, which give derivatives their signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def stub(function: Callable[..., Any], name: str, extra: tuple[str, ...]) -> Any:
    """Return a function with the signature of a derivative, for numba to bind arguments to."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if extra:
        parameters = [p.replace(default=inspect.Parameter.empty) for p in parameters]
    names = [parameter.name for parameter in parameters]
    defaults = {f"d_{p.name}": p.default for p in parameters if p.default is not p.empty}
    shown = [f"{p.name}=d_{p.name}" if f"d_{p.name}" in defaults else p.name for p in parameters]
    if not name.isidentifier():
        name = "function"  # of a lambda, which is refused when it is differentiated
    while any(other in names for other in extra):
        extra = tuple(f"{other}_" for other in extra)
    text = f"def {name}({', '.join([*shown, *extra])}):\n    return None\n"
    scope: dict[str, Any] = dict(defaults)
    exec(text, scope)
    made = scope[name]
    made.__doc__ = function.__doc__
    made.__module__ = function.__module__
    return made
