"""Sparsity of the Jacobians of ops: which elements of an argument may affect which of the output.

A pattern is an integer array of two rows: positions in the flattened output, and in the flattened
argument. The outputs of an op with several are numbered one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.ops.table.op import shape_of


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Return the positions of the elements of an array."""
    return np.arange(np.prod(shape, dtype=np.intp)).reshape(shape)


def aligned(shape: tuple[int, ...], rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the pattern whose rows and columns broadcast to a shape."""
    return np.stack([np.broadcast_to(each, shape).ravel() for each in (rows, columns)])


def dense(rows: int, columns: int) -> np.ndarray:
    """Return the pattern of a Jacobian without zeros."""
    return np.indices((rows, columns)).reshape(2, -1)


def shown(x: np.ndarray, view: np.ndarray) -> np.ndarray:
    """Return the pattern of a view of an array."""
    position = np.array(view.__array_interface__["data"][0] - x.__array_interface__["data"][0])
    for length, stride in zip(view.shape, view.strides, strict=True):
        position = position[..., np.newaxis] + stride * np.arange(length)
    # a complex element may consist of two real ones
    position = position[..., np.newaxis] + np.arange(0, view.itemsize, x.itemsize)
    rows = numbered(view.shape)[..., np.newaxis]
    return aligned(position.shape, rows, position // x.itemsize)


def of_broadcasting(args: Sequence[Any], number: int) -> np.ndarray:
    """Return the pattern of a function of scalars, with respect to one of its arguments."""
    shape = np.broadcast_shapes(*map(shape_of, args))
    return aligned(shape, numbered(shape), numbered(shape_of(args[number])))


def of_units(
    op: Any, number: int, args: Sequence[Any], rest: float, parameters: dict[str, Any]
) -> np.ndarray:
    """Return the pattern of an op that is linear in one argument, from its values for unit arrays.

    Parameters
    ----------
    op, number
        The op, and the position of the argument.
    args, parameters
        Those of the call.
    rest
        What the elements of all other arrays are.
    """
    if not isinstance(args[number], list):
        return _of_units(op, args, [k == number for k in range(len(args))], rest, parameters)
    patterns, start = [], 0
    for chosen, item in enumerate(args[number]):
        batched: list[Any] = [False] * len(args)
        batched[number] = [k == chosen for k in range(len(args[number]))]
        rows, columns = _of_units(op, args, batched, rest, parameters)
        patterns.append(np.stack([rows, columns + start]))
        start += np.size(item)
    return np.concatenate(patterns, axis=1)


def _of_units(
    op: Any, args: Sequence[Any], batched: Sequence[Any], rest: float, parameters: dict[str, Any]
) -> np.ndarray:
    """Return the pattern with respect to the array that is batched."""

    def given(value: Any, is_chosen: Any) -> Any:
        if isinstance(value, list):
            return list(map(given, value, is_chosen))
        value = np.asarray(value)
        if not is_chosen:
            return np.full_like(value, rest)
        return np.eye(value.size, dtype=value.dtype).reshape(value.size, *value.shape)

    found = op.batch(list(map(given, args, batched)), batched, parameters)
    columns, rows = np.nonzero(np.reshape(found, (shape_of(found)[0], -1)))
    return np.stack([rows, columns])
