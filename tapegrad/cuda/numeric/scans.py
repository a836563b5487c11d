"""Cumulative sums, products and extrema of arrays on a device.

A line of elements is cut into chunks. Each thread goes through a chunk; the totals of the
chunks are accumulated in the same way, and combined with the elements of the chunks that follow.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.numeric import codegen
from tapegrad.cuda.numeric.codegen import CONTIGUOUS, DeviceModule, Formula
from tapegrad.cuda.numeric.expressions import passed
from tapegrad.cuda.numeric.reductions import MAXIMUM, MINIMUM, PRODUCT, SUM, Reduction
from tapegrad.ops.table.op import normalize_axis

_CHUNK = 256  # elements that a thread goes through, if there are few lines
OF_UFUNC = {r.ufunc: r for r in (SUM, PRODUCT, MAXIMUM, MINIMUM)}


def accumulate(reduction: Reduction, x: DeviceArray, axis: int | None = 0) -> DeviceArray:
    """Return what NumPy's ``accumulate`` returns, along an axis or of the flattened array."""
    if axis is None:
        return accumulate(reduction, x.reshape(-1), 0)
    axis = normalize_axis(axis, x.ndim)
    dtype = reduction.ufunc.accumulate(np.ones(1, x.dtype)).dtype
    last = x.viewed(lambda a: np.moveaxis(a, axis, -1))
    lines = last.astype(dtype).reshape((math.prod(last.shape[:-1]), last.shape[-1]))
    _accumulate_lines(reduction, lines)
    shape = last.shape
    return lines.reshape(shape).viewed(lambda a: np.moveaxis(a, -1, axis))


def _accumulate_lines(reduction: Reduction, lines: DeviceArray) -> None:
    """Accumulate along the rows of a contiguous matrix, in place."""
    count, length = lines.shape
    if not lines.size:
        return
    wanted = codegen.most_blocks() * codegen.threads()
    chunks = max(1, min(wanted // count, -(-length // _CHUNK)))
    size = -(-length // chunks)
    chunks = -(-length // size)
    totals = DeviceArray.empty((count, chunks), lines.dtype)
    kernel = _kernel(reduction.combine, lines.dtype.name)
    codegen.launch(
        kernel, count * chunks, length, size, chunks,
        *passed(lines, CONTIGUOUS, ()), *passed(totals, CONTIGUOUS, ()),
    )  # fmt: skip
    if chunks > 1:
        _accumulate_lines(reduction, totals)
        kernel = _combining_kernel(reduction.combine, lines.dtype.name)
        codegen.launch(
            kernel, lines.size, length, size, chunks,
            *passed(lines, CONTIGUOUS, ()), *passed(totals, CONTIGUOUS, ()),
        )  # fmt: skip


@functools.cache
def _kernel(combine: Formula, dtype: str) -> Any:
    """Return the kernel in which each thread accumulates a chunk, and stores its total."""
    module = DeviceModule(dtype)
    combined = module.add(combine)
    module.lines += f"""

def kernel(tasks, length, size, chunks, x, x_at, totals, totals_at):
    for task in range(cuda.grid(1), tasks, cuda.gridsize(1)):
        begin = task % chunks * size
        end = min(begin + size, length)
        at = x_at + task // chunks * length
        total = x[at + begin]
        for i in range(begin + 1, end):
            total = {combined}(total, x[at + i])
            x[at + i] = total
        totals[totals_at + task] = total
""".splitlines()
    return module.kernel("kernel")


@functools.cache
def _combining_kernel(combine: Formula, dtype: str) -> Any:
    """Return the kernel that combines every element with the total of the chunks before it."""
    module = DeviceModule(dtype)
    combined = module.add(combine)
    module.lines += f"""

def kernel(count, length, size, chunks, x, x_at, totals, totals_at):
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        chunk = i % length // size
        if chunk > 0:
            before = totals[totals_at + i // length * chunks + chunk - 1]
            x[x_at + i] = {combined}(before, x[x_at + i])
""".splitlines()
    return module.kernel("kernel")
