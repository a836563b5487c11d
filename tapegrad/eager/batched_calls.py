"""Calls with batched tensors: of ops, composite functions and functions without derivatives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.eager.batched import (
    Batched,
    BatchError,
    Level,
    all_lowered,
    apart,
    holds_batched,
    innermost,
    is_at,
)
from tapegrad.eager.batched_indices import read_item, value_for
from tapegrad.eager.item_by_item import as_items, call_one_by_one, warn_of_loop
from tapegrad.eager.modes import MODE
from tapegrad.ops.indexing import gather
from tapegrad.ops.table.batching import aligned, flattened, shifted_axes
from tapegrad.ops.table.composite import Composite
from tapegrad.ops.table.kinds import View
from tapegrad.ops.table.op import Op
from tapegrad.tape.layout import KIND_CAST


def apply(op: Op, bound: dict[str, Any]) -> Any:
    """Apply an op of which an argument or parameter is batched."""
    args = [bound[name] for name in op.arguments]
    parameters = {name: bound[name] for name in op.parameters}
    level = innermost([*args, *parameters.values()])
    assert level is not None
    given, flags = all_lowered(args, level)
    if holds_batched(parameters.values()):
        return _with_parameters(op, args, parameters, level)
    if getattr(op, "of_list", False) and type(given[0]) is list:
        # new axes lie among those of the operands
        given[0] = [apart(x) if flag else x for x, flag in zip(given[0], flags[0], strict=True)]
    if op.is_looped:
        warn_of_loop(op.name)
    levels = MODE.thread.levels
    try:  # what is held is batched at levels further outside only
        MODE.set_levels(levels[: level.depth])
        found = op.batch(given, flags, parameters)
    finally:
        MODE.set_levels(levels)
    return as_items(found, level, isinstance(op, View) and op.sweep_kind != KIND_CAST)


def _with_parameters(op: Op, args: list[Any], parameters: dict[str, Any], level: Level) -> Any:
    """Apply an op of which a parameter, such as an index, is batched."""
    if op is gather:
        return read_item(args[0], parameters["index"])
    return call_one_by_one(op.public, op.name, args, parameters, level)


# -- composite functions --------------------------------------------------------------------------


def apply_composite(
    composite: Composite, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Call a composite function of which an argument is batched.

    Most need nothing but batched ops. One that decides by the values of its argument, such as a
    sort, is called with all items as it declares, or with the items one by one.
    """
    try:
        return composite.function(*args, **kwargs)
    except BatchError:
        level = innermost([*args, *kwargs.values()])
        if level is None:
            raise
    if composite.batching == "elementwise" and not kwargs:
        return as_items(function(*aligned(*all_lowered(args, level))), level)
    if composite.batching == "axis":
        given = inspect.signature(composite.function).bind(*args, **kwargs)
        given.apply_defaults()
        (first, x), *others = given.arguments.items()
        axis, keepdims = given.arguments["axis"], given.arguments.get("keepdims", False)
        is_alone = is_at(x, level) and innermost([value for _, value in others]) is not level
        if is_alone and (not keepdims if axis is None else x.ndim):
            held = flattened(x._value) if axis is None else x._value
            shifted = 1 if axis is None else _like(axis, shifted_axes(axis, held))
            given.arguments |= {first: held, "axis": shifted}
            return as_items(function(*given.args, **given.kwargs), level)
    return call_one_by_one(function, composite.name, args, kwargs, level)


def _like(axis: Any, axes: tuple[int, ...]) -> Any:
    """Return axes in the form in which they were given, several or one number."""
    return axes if isinstance(axis, (tuple, list)) else axes[0]


# -- functions without derivatives ----------------------------------------------------------------


@functools.cache
def _parameters(compute: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(compute).parameters)


def apply_passive(
    name: str, compute: Any, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call a function without derivatives of which an argument is batched."""
    level = innermost([*args, *kwargs.values()])
    assert level is not None
    if isinstance(compute, np.ufunc) or compute is np.isclose:
        return as_items(function(*aligned(*all_lowered(args, level)), **kwargs), level)
    if compute is np.searchsorted:
        points, searched, *options = args
        if not any(is_at(value, level) for value in (points, *options, *kwargs.values())):
            return as_items(function(points, searched._value, *options, **kwargs), level)
        return call_one_by_one(function, name, args, kwargs, level)
    parameters = _parameters(compute)
    if "axis" not in parameters or not is_at(args[0], level):
        raise BatchError(
            f"vmap: {name} of a batched tensor is not supported; compare element by element, and "
            "choose with tapegrad.where"
        )
    x = args[0]._value
    ndim = x.ndim - 1
    axis = args[1] if len(args) > 1 else kwargs.get("axis", parameters["axis"].default)
    if axis is not None and not ndim:  # an axis that items do not have
        return call_one_by_one(function, name, args, kwargs, level)
    kwargs.pop("axis", None)
    if axis is not None:
        found = function(x, axis=_like(axis, shifted_axes(axis, x)), **kwargs)
    else:
        keepdims = kwargs.pop("keepdims", False)
        found = function(flattened(x), axis=1, **kwargs)
        if keepdims:
            found = found.reshape(x.shape[0], *[1] * ndim)
    return as_items(found, level)


def made_like(make: Callable[..., Any], like: Batched, args: Any, kwargs: Any) -> Any:
    """Call a function such as ``zeros_like`` with a batched tensor."""
    if make.__name__ == "full_like":  # refuse what does not fit an item
        value_for(like, args[0] if args else kwargs.get("fill_value", 0.0), like._level)
    if kwargs.get("shape") is not None:
        kwargs["shape"] = (like._level.size, *np.atleast_1d(kwargs["shape"]))
    return as_items(make(like._value, *args, **kwargs), like._level)
