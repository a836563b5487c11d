"""Sorting of arrays on a device, by a network that compares elements in a fixed order.

Batcher's bitonic sort: K. E. Batcher, "Sorting networks and their applications", AFIPS 1968. Equal
elements are compared by their positions, so that the order is stable; nan comes last, as in NumPy.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.numeric import codegen
from tapegrad.cuda.numeric.codegen import CONTIGUOUS, DeviceModule
from tapegrad.cuda.numeric.expressions import passed
from tapegrad.ops.table.op import normalize_axis


def argsort(x: DeviceArray, axis: int | None = -1) -> DeviceArray:
    """Return the positions of the elements in ascending order; equal elements keep their order."""
    if axis is None:
        return argsort(x.reshape(-1), 0)
    axis = normalize_axis(axis, x.ndim)
    last = x.viewed(lambda a: np.moveaxis(a, axis, -1))
    shape, length = last.shape, last.shape[-1]
    keys = last.copy()
    count = math.prod(shape[:-1])
    width = 1 << max(0, length - 1).bit_length()
    order = DeviceArray.empty((count, width), np.dtype(np.int64))
    if keys.size:
        order[...] = np.arange(width)
        kernel = _kernel(x.dtype.name)
        block = 2
        while block <= width:
            step = block // 2
            while step:
                codegen.launch(
                    kernel, count * width // 2, width, length, block, step,
                    *passed(order, CONTIGUOUS, ()), *passed(keys, CONTIGUOUS, ()),
                )  # fmt: skip
                step //= 2
            block *= 2
    found = order[:, :length].reshape(shape)
    return found.viewed(lambda a: np.moveaxis(a, -1, axis))


@functools.cache
def _kernel(dtype: str) -> Any:
    """Return the kernel that compares pairs of positions, and exchanges them if needed.

    Positions from `length` on stand for nothing, and come after all elements.
    """
    module = DeviceModule(dtype)
    module.lines += """

@cuda.jit(device=True)
def comes_before(i, j, x, start, length):
    if i >= length or j >= length:
        return i < j
    a, b = x[start + i], x[start + j]
    if a < b:
        return True
    if b < a:
        return False
    if a == b:
        return i < j
    if (a == a) == (b == b):
        return i < j
    return a == a


def kernel(pairs, width, length, block, step, order, order_at, x, x_at):
    for pair in range(cuda.grid(1), pairs, cuda.gridsize(1)):
        line = pair // (width // 2)
        rest = pair % (width // 2)
        low = rest // step * (2 * step) + rest % step
        at = order_at + line * width + low
        i, j = order[at], order[at + step]
        ascending = low // block % 2 == 0
        if comes_before(j, i, x, x_at + line * length, length) == ascending:
            order[at] = j
            order[at + step] = i
""".splitlines()
    return module.kernel("kernel")
