"""What the batching rules of ops are made of.

A batched argument has the batch as its first axis, and so has the output. What an axis, a shape or
an index says of one item is shifted by one (`Op.batch`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.ops.op import TABLE, Batched, normalize_axes, rank, shape_of, size_of_batch


def with_rank(x: Any, ndim: int) -> Any:
    """Return a batch whose items have a number of axes: those in front have length 1."""
    size, *shape = shape_of(x)
    if len(shape) == ndim:
        return x
    missing = (1,) * (ndim - len(shape))
    return TABLE["reshape"](x, (size, *missing, *shape[max(len(shape) - ndim, 0) :]))


def aligned(args: Sequence[Any], batched: Batched) -> list[Any]:
    """Return arguments whose items broadcast, so that the batches meet."""
    pairs = list(zip(args, batched, strict=True))
    widest = max(rank(arg) - bool(on) for arg, on in pairs)
    return [with_rank(arg, widest) if on else arg for arg, on in pairs]


def flattened(x: Any) -> Any:
    """Return a batch whose items have one axis."""
    size, *shape = shape_of(x)
    return TABLE["reshape"](x, (size, math.prod(shape)))


def one_by_one(op: Any, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]) -> Any:
    """Apply an op to every item by itself, and stack the outputs."""

    def item(arg: Any, is_batched: Any, k: int) -> Any:
        if type(is_batched) is list:
            return [item(*each, k) for each in zip(arg, is_batched, strict=True)]
        return TABLE["getitem"](arg, k) if is_batched else arg

    size = size_of_batch(args, batched)
    if not size:
        raise ValueError(f"{op.name}: there is no item in the batch, whose outputs have no shape")
    found = [
        op(*(item(*each, k) for each in zip(args, batched, strict=True)), **parameters)
        for k in range(size)
    ]
    if type(found[0]) is tuple:
        return tuple(_joined(outputs) for outputs in zip(*found, strict=True))
    return _joined(found)


def _joined(items: Sequence[Any]) -> Any:
    return TABLE["concatenate"]([TABLE["reshape"](x, (1, *shape_of(x))) for x in items], 0)


def shifted_axes(axis: Any, x: Any) -> tuple[int, ...]:
    """Return those axes of a batch that are given axes of its items."""
    return tuple(a + 1 for a in normalize_axes(axis, rank(x) - 1))


def shifted_index(index: Any) -> tuple[Any, ...]:
    """Return the index of a batch that indexes its items."""
    return (slice(None), *(index if type(index) is tuple else (index,)))


def place_of_batch(index: Any) -> int:
    """Return where the axis of the batch is in what a shifted index returns.

    Arrays in an index that are not side by side bring their axes in front of all others.
    """
    parts = index if type(index) is tuple else (index,)
    chosen = {
        k: np.asarray(part)
        for k, part in enumerate(parts)
        if part is not None and part is not Ellipsis and not isinstance(part, slice)
    }
    arrays = [array for array in chosen.values() if array.ndim or array.dtype == bool]
    if not arrays or max(chosen) - min(chosen) < len(chosen):  # numbers count beside arrays only
        return 0
    return max(1 if array.dtype == bool else array.ndim for array in arrays)
