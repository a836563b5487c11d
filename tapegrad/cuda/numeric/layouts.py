"""Layouts of operands: broadcasting, and axes that are one for a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.numeric.codegen import CONTIGUOUS, REPEATED, STRIDED, UNIT

Strides = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The axes over which a kernel runs, and the strides of its arrays, in elements.

    Attributes
    ----------
    dims
        Lengths of the axes.
    strides
        For every array.
    """

    dims: tuple[int, ...]
    strides: tuple[Strides, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    def kind(self, k: int) -> str:
        """Return whether the elements of an array lie in order, or else how on each axis."""
        strides = self.strides[k]
        return CONTIGUOUS if strides == in_order(self.dims) else kind_of_strides(strides)


def kind_of_strides(strides: Strides) -> str:
    """Return which strides are 0 and 1."""
    return "".join({0: REPEATED, 1: UNIT}.get(stride, STRIDED) for stride in strides)


def in_order(dims: Sequence[int]) -> Strides:
    """Return the strides, in elements, of a contiguous array."""
    found, step = [], 1
    for dim in reversed(dims):
        found.append(step)
        step *= dim
    return tuple(reversed(found))


def common(shape: tuple[int, ...], arrays: Sequence[DeviceArray]) -> Layout:
    """Return the layout of arrays that are broadcast to a shape, with as few axes as possible."""
    return collapsed(shape, [broadcast_strides(array, shape) for array in arrays])


def broadcast_strides(array: DeviceArray, shape: tuple[int, ...]) -> Strides:
    """Return the strides of an array in elements, 0 along axes on which it is repeated."""
    size = array.dtype.itemsize
    lead = len(shape) - len(array.shape)
    return (0,) * lead + tuple(
        0 if dim == 1 else stride // size
        for dim, stride in zip(array.shape, array.strides, strict=True)
    )


def collapsed(shape: Sequence[int], strides: Sequence[Strides]) -> Layout:
    """Return the layout with axes of length 1 left out, and with neighbours joined."""
    dims: list[int] = []
    steps: list[list[int]] = []  # by axis, of every array
    for k, dim in enumerate(shape):
        if dim == 1:
            continue
        here = [s[k] for s in strides]
        if dims and all(a == b * dim for a, b in zip(steps[-1], here, strict=True)):
            dims[-1] *= dim
            steps[-1] = here
        else:
            dims.append(dim)
            steps.append(here)
    if not dims:
        dims, steps = [1], [[1] * len(strides)]
    return Layout(tuple(dims), tuple(zip(*steps, strict=True)) if strides else ())
