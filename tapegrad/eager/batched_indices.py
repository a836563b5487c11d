"""Indices of batched tensors, batched indices, and in-place work on the items of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.eager.batched import (
    Batched,
    BatchError,
    Level,
    apart,
    batched,
    expanded,
    holds_batched,
    innermost,
    is_at,
)
from tapegrad.eager.item_by_item import call_one_by_one
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops.shape import reshape, transpose
from tapegrad.ops.table.batching import with_rank
from tapegrad.ops.table.op import rank, shape_of


def read_item(source: Any, index: Any) -> Any:
    """Return ``source[index]``, where the index is batched."""
    parts = index if type(index) is tuple else (index,)
    level = innermost([source, *parts])
    assert level is not None
    if any(isinstance(part, Tensor) and part.dtype == bool for part in parts):
        raise BatchError(
            "vmap: the shape of t[mask] would differ between the items of a batch; use "
            "tapegrad.where(mask, t, 0.0)"
        )
    skipped, places = _places(parts, level)
    if not places:
        return call_one_by_one(
            lambda x, *chosen: x[chosen], "t[index]", (source, *parts), {}, level
        )
    found = expanded(source, level)[index_of_places(level.size, skipped, places)]
    if skipped:  # the axes of arrays that are not adjacent come first
        new = max(map(rank, places))
        order = (0, *range(new, new + skipped), *range(1, new), *range(new + skipped, found.ndim))
        found = transpose(found, order)
    return batched(apart(found), level)


def _places(parts: Sequence[Any], level: Level) -> tuple[int, list[Any]]:
    """Return how many axes a batched index leaves out, and the places along those that follow.

    There are no places if it is not made of full slices followed by integers.
    """
    skipped = 0
    while skipped < len(parts) and _is_full(parts[skipped]):
        skipped += 1
    found = []
    for part in parts[skipped:]:
        if type(part) is list:
            part = np.asarray(part)
        if not isinstance(part, (int, np.integer, np.ndarray, Tensor)) or part is True:
            return skipped, []
        place = expanded(part if isinstance(part, Tensor) else wrap(np.asarray(part)), level)
        if place.dtype.kind not in "iu":
            return skipped, []
        found.append(place)
    return skipped, found


def _is_full(part: Any) -> bool:
    return isinstance(part, slice) and (part.start, part.stop, part.step) == (None, None, None)


def index_of_places(size: int, skipped: int, places: Sequence[Any]) -> tuple[Any, ...]:
    """Return the index of the elements of every item of a batch at its own places."""
    widest = max(map(rank, places))
    number = np.arange(size).reshape(-1, *[1] * (widest - 1))
    aligned_places = [with_rank(place, widest - 1) for place in places]
    arrays = [p._a if type(p) is Tensor else p for p in aligned_places]
    return (number, *[slice(None)] * skipped, *arrays)


# -- in place -------------------------------------------------------------------------------------


def target_of(target: Any, value: Any, what: str) -> tuple[Tensor, Level]:
    """Return the tensor that a batched one holds, to be written to, and its level.

    Parameters
    ----------
    target
        The tensor that is written to.
    value
        What is written, or an index.
    what
        Name of the op, for the error.

    Raises
    ------
    BatchError
        If the target does not have the items of the batch that is written.
    """
    level = innermost([target])
    inner = innermost([value])
    if level is None or (inner is not None and inner.depth > level.depth):
        raise BatchError(
            f"vmap: inplace arithmetic ({what}) is not possible because a value that is written "
            "has more elements than the tensor: the value is vmapped over, and the tensor is not. "
            "Use out-of-place operations, or make the tensor from a batched one "
            "(tapegrad.zeros_like(x))"
        )
    return target._value, level


def value_for(target: Any, value: Any, level: Level) -> Any:
    """Return a value to be written to the tensor that a batched target holds.

    Raises
    ------
    ValueError
        If it does not fit the shape of an item: its axes would meet that of the batch.
    """
    shape = shape_of(value)
    extra = len(shape) - target.ndim
    if extra > 0 and shape[:extra] != (1,) * extra:
        raise ValueError(
            f"could not broadcast input array from shape {shape} into shape {target.shape}"
        )
    if is_at(value, level):
        return with_rank(value._value, target.ndim)
    return reshape(value, shape[extra:]) if extra > 0 else value


def mask_of(index: Any, target: Tensor) -> Any:
    """Return an index that is a batched mask of all elements of a target, None for others."""
    parts = index if type(index) is tuple else (index,)
    if len(parts) != 1 or type(parts[0]) is not Batched or parts[0].dtype != bool:
        return None
    return parts[0] if parts[0].shape == target.shape else None


def place_of(index: Any, level: Level) -> Any:
    """Return the index into the held tensor for a batched index, None for one that is not."""
    if not holds_batched((index,)):
        return None
    skipped, places = _places(index if type(index) is tuple else (index,), level)
    if skipped or not places:
        raise BatchError(
            "vmap: item assignment with a batched index supports integers and arrays of integers; "
            "use tapegrad.where, or a mask of the shape of the tensor"
        )
    return index_of_places(level.size, 0, places)
