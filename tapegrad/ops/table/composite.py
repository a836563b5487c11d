"""Functions composed of ops, which have all their derivatives from these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

from tapegrad.ops.table.op import TABLE, Op, default_names

Formula = Any  # a plain Python function of arrays


class Composite:
    """A function composed of other ops, which needs no rule of its own.

    Attributes
    ----------
    of_list
        Whether its first argument may be a list of arrays.
    lists
        Names of other arguments that are lists of arrays, not arrays.
    nested
        Whether lists in that list are lists of arrays themselves, not arrays.
    gives_views
        Whether it returns several views of its argument.
    batching
        How it is applied to a batch if its ops need the values of an item: ``"axis"`` if it is
        along the axis `axis` of its first argument, None being the flattened argument;
        ``"elementwise"``; ``""`` for the items one by one.
    names, is_method
        As for an `Op`.
    """

    kind = "composite"
    is_method = False

    def __init__(
        self,
        function: Formula,
        *,
        of_list: bool = False,
        lists: tuple[str, ...] = (),
        nested: bool = False,
        gives_views: bool = False,
        batching: str = "",
    ) -> None:
        self.function = function
        self.of_list = of_list
        self.lists = lists
        self.nested = nested
        self.gives_views = gives_views
        self.batching = batching
        self.name = function.__name__
        self.names = default_names(function)
        functools.update_wrapper(self, function)
        COMPOSITES[self.name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


COMPOSITES: dict[str, Composite] = {}


def declarations() -> dict[str, Op | Composite]:
    """Return all declared functions by name."""
    return {**TABLE, **COMPOSITES}


@overload
def composite(function: Formula) -> Composite: ...


@overload
def composite(**options: Any) -> Callable[[Formula], Composite]: ...


def composite(
    function: Formula = None, **options: Any
) -> Composite | Callable[[Formula], Composite]:
    """Declare a function composed of other ops (a decorator); the options are in `Composite`."""
    if function is None:
        return lambda given: Composite(given, **options)
    return Composite(function, **options)
