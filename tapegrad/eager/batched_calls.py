"""Calls with batched tensors: of ops, composite functions and functions without derivatives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.eager.batched import (
    Batched,
    BatchError,
    Level,
    batched,
    holds_batched,
    innermost,
    is_at,
    lowered,
)
from tapegrad.eager.batched_indices import read_item
from tapegrad.eager.item_by_item import as_items, call_one_by_one, warn_of_loop
from tapegrad.eager.modes import MODE
from tapegrad.ops.batching import aligned, flattened
from tapegrad.ops.op import TABLE, Op


def apply(op: Op, bound: dict[str, Any]) -> Any:
    """Apply an op of which an argument or parameter is batched."""
    args = [bound[name] for name in op.arguments]
    parameters = {name: bound[name] for name in op.parameters}
    level = innermost([*args, *parameters.values()])
    assert level is not None
    given, flags = lowered(args, level)
    if holds_batched(parameters.values()):
        return _with_parameters(op, args, parameters, level)
    if op.is_looped:
        warn_of_loop(op.name)
    levels = MODE.thread.levels
    MODE.set_levels(levels[: level.depth])  # what is held is batched at levels further outside only
    try:
        found = op.batch(given, flags, parameters)
    finally:
        MODE.set_levels(levels)
    return as_items(found, level)


def _with_parameters(op: Op, args: list[Any], parameters: dict[str, Any], level: Level) -> Any:
    """Apply an op of which a parameter, such as an index, is batched."""
    if op.name == "gather":
        return read_item(args[0], parameters["index"])
    return call_one_by_one(op.public, op.name, args, parameters, level)


# -- composite functions --------------------------------------------------------------------------


def apply_composite(
    body: Callable[..., Any], function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Call a composite function of which an argument is batched.

    Most need nothing but batched ops. One that decides by the values of its argument, such as a
    sort, is called with all items and the axis behind theirs, or with the items one by one.
    """
    try:
        return body(*args, **kwargs)
    except BatchError:
        level = innermost([*args, *kwargs.values()])
        if level is None:
            raise
    given = inspect.signature(body).bind(*args, **kwargs)
    given.apply_defaults()
    (first, x), *others = given.arguments.items()
    is_alone = is_at(x, level) and innermost([v for _, v in others]) is not level
    if is_alone and "axis" in given.arguments:
        axis, keepdims = given.arguments["axis"], given.arguments.get("keepdims", False)
        if axis is not None:
            axes = tuple(a % x.ndim + 1 for a in (axis if isinstance(axis, tuple) else (axis,)))
            given.arguments["axis"] = axes if isinstance(axis, tuple) else axes[0]
        if axis is not None or not keepdims:
            flat = flattened(x._value) if axis is None else x._value
            given.arguments |= {first: flat, "axis": given.arguments["axis"] or 1}
            return as_items(function(*given.args, **given.kwargs), level)
    return call_one_by_one(function, body.__name__, args, kwargs, level)


# -- functions without derivatives ----------------------------------------------------------------

_OVER_AXES = {"all": None, "any": None, "argmax": None, "argmin": None, "argsort": -1,
              "count_nonzero": None}  # fmt: skip


def apply_passive(
    name: str, compute: Any, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call a function without derivatives of which an argument is batched."""
    level = innermost([*args, *kwargs.values()])
    assert level is not None
    given, flags = lowered(list(args), level)
    if isinstance(compute, np.ufunc) or name == "isclose":
        return batched(function(*aligned(given, flags), **kwargs), level)
    if name not in _OVER_AXES or not flags[0]:
        raise BatchError(
            f"vmap: {name} of a batched tensor is not supported: its result is not a tensor of one "
            "shape for all items"
        )
    x = given[0]
    axis = given[1] if len(given) > 1 else kwargs.pop("axis", _OVER_AXES[name])
    keepdims = kwargs.get("keepdims", False)
    if axis is None:
        x = TABLE["reshape"].public(x, (x.shape[0], -1, *[1] * (x.ndim - 2 if keepdims else 0)))
        axis = 0 if name.startswith("arg") else tuple(range(x.ndim - 1))
    axes = axis if isinstance(axis, tuple) else (axis,)
    moved = tuple(a % (x.ndim - 1) + 1 for a in axes)
    shifted_axis = moved if isinstance(axis, tuple) else moved[0]
    return batched(function(x, axis=shifted_axis, **kwargs), level)


def made_like(make: Callable[..., Any], like: Batched, args: Any, kwargs: Any) -> Any:
    """Call a function such as ``zeros_like`` with a batched tensor."""
    if kwargs.get("shape") is not None:
        kwargs["shape"] = (like._level.size, *np.atleast_1d(kwargs["shape"]))
    return batched(make(like._value, *args, **kwargs), like._level)
