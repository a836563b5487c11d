"""What is known of functions, kept as long as these live."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet


def kept_with_function(compute: Callable[..., Any]) -> Any:
    """Compute something of a function once for some further arguments.

    The result may hold the function. It is in the function's dictionary, not in a table, so that
    both are deleted when nobody else has the function.
    """
    name = f"_tapegrad_{compute.__module__}.{compute.__qualname__}"
    functions: WeakSet[Any] = WeakSet()

    @functools.wraps(compute)
    def found(function: Any, *args: Any) -> Any:
        known = function.__dict__.get(name)
        if known is None:
            known = function.__dict__[name] = {}
            functions.add(function)
        if args not in known:
            known[args] = compute(function, *args)
        return known[args]

    def cache_clear() -> None:
        for function in [*functions]:
            function.__dict__.pop(name, None)
        functions.clear()

    kept: Any = found
    kept.cache_clear = cache_clear
    return kept
