"""How what a decorator makes of a function is pickled: by the name that it has, or in parts."""

from __future__ import annotations

import contextlib
import operator
import pickle
import sys
from collections.abc import Callable
from typing import Any


def has_name(made: Any) -> bool:
    """Whether a module has a decorated function by the name of the function itself."""
    with contextlib.suppress(AttributeError):
        return operator.attrgetter(made.__qualname__)(sys.modules.get(made.__module__)) is made
    return False


def reduced(made: Any, make: Callable[..., Any], function: Any, *args: Any) -> Any:
    """Return what `__reduce__` returns for what a decorator made of a function.

    Other processes import it where a module has it, as they do with functions. The main program
    cannot be imported everywhere; its functions are pickled by value, since their names stand for
    the decorated ones.

    Parameters
    ----------
    made
        What was made.
    make
        What makes it, of the function and `args`.
    function
        The function.
    """
    if not has_name(made):
        return make, (function, *args)
    if made.__module__ != "__main__":
        return made.__qualname__
    from numba.core import serialize

    return _made, (make, serialize.dumps(function), args)


def _made(make: Callable[..., Any], function: bytes, args: tuple[Any, ...]) -> Any:
    return make(pickle.loads(function), *args)
