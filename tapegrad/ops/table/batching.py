"""Building blocks of the batching rules of ops.

The first axis of a batched argument is the batch, and so is that of the output. An axis, shape or
index of an item is shifted by one axis (`Op.batch`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.ops.table.op import (
    TABLE,
    Batched,
    array_of,
    memory_order,
    normalize_axes,
    rank,
    shape_of,
    size_of_batch,
)


def with_rank(x: Any, ndim: int) -> Any:
    """Return a batch whose items have `ndim` axes, by changing leading axes of length 1."""
    size, *shape = shape_of(x)
    if len(shape) == ndim:
        return x
    missing = (1,) * (ndim - len(shape))
    return TABLE["reshape"](x, (size, *missing, *shape[max(len(shape) - ndim, 0) :]))


def aligned(args: Sequence[Any], batched: Batched) -> list[Any]:
    """Return arguments with aligned batch axes, so that the items broadcast."""
    pairs = list(zip(args, batched, strict=True))
    widest = max(rank(arg) - bool(on) for arg, on in pairs)
    return [with_rank(arg, widest) if on else arg for arg, on in pairs]


def flattened(x: Any) -> Any:
    """Return a batch with flattened items."""
    size, *shape = shape_of(x)
    return TABLE["reshape"](x, (size, math.prod(shape)))


def one_by_one(op: Any, args: Sequence[Any], batched: Batched, parameters: dict[str, Any]) -> Any:
    """Apply an op to every item separately, and stack the outputs."""

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
        return tuple(_joined(op, outputs) for outputs in zip(*found, strict=True))
    return _joined(op, found)


def _joined(op: Any, items: Sequence[Any]) -> Any:
    shapes = {shape_of(x): None for x in items}
    if len(shapes) > 1:
        raise ValueError(
            f"vmap: {op.name} has results of different shapes for the items of the batch: "
            f"{' and '.join(map(str, [*shapes][:2]))}; call it outside of vmap, or use "
            "tapegrad.where(mask, x, 0.0) in place of what chooses elements"
        )
    # each of them lies in memory as it did before
    order = memory_order(array_of(items[0]))
    rows = [TABLE["transpose"](x, order) for x in items]
    joined = TABLE["concatenate"]([TABLE["reshape"](x, (1, *shape_of(x))) for x in rows], 0)
    return TABLE["transpose"](joined, (0, *(1 + np.argsort(order)).tolist()))


def shifted_axes(axis: Any, x: Any) -> tuple[int, ...]:
    """Return the axes of a batch that correspond to axes of its items."""
    return tuple(a + 1 for a in normalize_axes(axis, rank(x) - 1))


def shifted_index(index: Any) -> tuple[Any, ...]:
    """Return the index into a batch that indexes its items."""
    return (slice(None), *(index if type(index) is tuple else (index,)))


def place_of_batch(index: Any) -> int:
    """Return the position of the batch axis in the result of a shifted index.

    If the arrays in an index are not adjacent, their axes come first in the result.
    """
    parts = index if type(index) is tuple else (index,)
    chosen = {
        k: np.asarray(part)
        for k, part in enumerate(parts)
        if part is not None and part is not Ellipsis and not isinstance(part, slice)
    }
    arrays = [array for array in chosen.values() if array.ndim or array.dtype == bool]
    if not arrays or max(chosen) - min(chosen) < len(chosen):  # integers count only beside arrays
        return 0
    return max(1 if array.dtype == bool else array.ndim for array in arrays)
