"""Loops over the items of a batch, for what cannot be computed with all of them at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.eager.batched import BatchError, Level, all_lowered, apart, batched, innermost, is_at
from tapegrad.eager.lines import level_of_user
from tapegrad.ops.shape import stack
from tapegrad.ops.table.batching import one_by_one

_warned: set[str] = set()


def warn_of_loop(name: str) -> None:
    """Warn, once for each op, that it is computed item by item."""
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"vmap: {name} has no batching rule for these arguments and is computed item by item, "
            "at the cost of a loop",
            UserWarning,
            stacklevel=level_of_user(),
        )


def call_one_by_one(
    function: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any], level: Level
) -> Any:
    """Call a function with the items of a batch, one after the other."""
    warn_of_loop(name)
    values, flags = all_lowered([*args, *kwargs.values()], level)
    count = len(args)

    def one(*items: Any) -> Any:
        return function(*items[:count], **dict(zip(kwargs, items[count:], strict=True)))

    one.name = name  # type: ignore[attr-defined]
    return as_items(one_by_one(one, values, flags, {}), level)


def as_items(found: Any, level: Level, is_view: bool = False) -> Any:
    """Return results for all items of a batch, one or a tuple of them, as those of one item."""
    if isinstance(found, tuple):
        return getattr(found, "_make", tuple)([as_items(z, level, is_view) for z in found])
    return batched(found if is_view else apart(found), level)


def or_item_by_item(function: Callable[[Any], Any], given: Any) -> Any:
    """Call a function; if it needs the arrays of batched tensors, call it for the items one by one.

    Parameters
    ----------
    function
        A rule of one argument.
    given
        Its argument: tensors in dicts, lists and tuples. The result is made of these, too.
    """
    try:
        return function(given)
    except BatchError:
        level = innermost(_leaves(given))
        if level is None or not level.size:
            raise
    chosen = level
    found = [
        or_item_by_item(function, _mapped(lambda t: _item(t, k, chosen), given))  # noqa: B023
        for k in range(chosen.size)
    ]
    return _restacked(found, chosen)


def _item(value: Any, k: int, level: Level) -> Any:
    return value._value[k] if is_at(value, level) else value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = [*value.values()]
    if type(value) not in (list, tuple):
        return [value]
    return [leaf for item in value for leaf in _leaves(item)]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(function, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(function, item) for item in value)
    return function(value)


def _restacked(found: list[Any], level: Level) -> Any:
    """Return the results for all items as one; undefined gradients of some of them are zeros."""
    defined = [item for item in found if item is not None]
    if not defined:
        return None
    first = defined[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for item in defined for key in item)
        return {key: _restacked([(item or {}).get(key) for item in found], level) for key in keys}
    if type(first) in (list, tuple):
        columns = zip(*(item or [None] * len(first) for item in found), strict=True)
        return type(first)(_restacked(list(column), level) for column in columns)
    zeros = np.zeros(first.shape, first.dtype)
    return batched(stack([zeros if item is None else item for item in found]), level)
