"""What derivatives take from their functions: signatures, as empty functions, and options."""

from __future__ import annotations

import inspect
from typing import Any

from tapegrad.transform.syntax import identifier

_OPTIONS = ("error_model", "boundscheck", "nogil")


def stub(function: Any, label: str, extra: tuple[str, ...]) -> Any:
    """Return a function with the signature of a derivative, for numba to bind arguments to.

    If any argument has a default, the extra ones get None; missing arguments are detected later.
    """
    parameters = list(inspect.signature(function).parameters.values())
    names = [parameter.name for parameter in parameters]
    defaults = [p.default for p in parameters if p.default is not p.empty]
    while any(other in names for other in extra):
        extra = tuple(f"{other}_" for other in extra)
    own = identifier(f"{function.__code__.co_name}_{label}", "function")
    text = f"def {own}({', '.join([*names, *extra])}):\n    return None\n"
    scope: dict[str, Any] = {}
    exec(text, scope)
    made = scope[own]
    made.__defaults__ = (*defaults, *[None] * len(extra)) if defaults else None
    made.__name__ = made.__qualname__ = f"{function.__name__}_{label}"
    made.__doc__ = function.__doc__
    made.__module__ = function.__module__
    return made


def inherited_options(base: Any) -> dict[str, Any]:
    """Return the compiler options that a derivative inherits."""
    given = {name: base.targetoptions.get(name) for name in _OPTIONS}
    return {name: value for name, value in given.items() if value is not None}
