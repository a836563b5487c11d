"""Reductions of arrays on a device.

The elements of each result are cut into chunks. If they lie side by side, the threads of a block
share a chunk: each combines every n-th element, and the block combines what its threads found, in a
fixed order. Otherwise a thread takes a chunk of its own, so that neighbouring threads read
neighbouring elements. A second pass combines the chunks. No result depends on the order in which
threads run.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, contiguous
from tapegrad.cuda.numeric import codegen
from tapegrad.cuda.numeric.codegen import OF_DEVICE, DeviceModule, Formula, converted
from tapegrad.cuda.numeric.elementwise import passed
from tapegrad.cuda.numeric.layouts import collapsed
from tapegrad.ops.op import normalize_axes

_SMALLEST_CHUNK = 512  # elements


@dataclass(frozen=True)
class Reduction:
    """A way to combine numbers.

    Attributes
    ----------
    name
        For messages.
    combine
        Combines two numbers.
    ufunc
        NumPy's function that has its types.
    prepare
        Applied to every element first; None: nothing.
    initial
        The result for no elements; None if there is none.
    """

    name: str
    combine: Formula
    ufunc: Any
    prepare: Formula | None
    initial: float | None


def _add(x: Any, y: Any) -> Any:
    return x + y


def _multiply(x: Any, y: Any) -> Any:
    return x * y


def _maximum(x: Any, y: Any) -> Any:
    return x if x >= y or x != x else y


def _minimum(x: Any, y: Any) -> Any:
    return x if x <= y or x != x else y


def _or(x: Any, y: Any) -> Any:
    return x | y


def _and(x: Any, y: Any) -> Any:
    return x & y


def _is_true(x: Any) -> Any:
    return x != 0


def _one_if_true(x: Any) -> Any:
    return 1 if x != 0 else 0


SUM = Reduction("sum", _add, np.add, None, 0.0)
PRODUCT = Reduction("prod", _multiply, np.multiply, None, 1.0)
MAXIMUM = Reduction("max", _maximum, np.maximum, None, None)
MINIMUM = Reduction("min", _minimum, np.minimum, None, None)
ANY = Reduction("any", _or, np.logical_or, _is_true, 0.0)
ALL = Reduction("all", _and, np.logical_and, _is_true, 1.0)
COUNT = Reduction("count_nonzero", _add, np.add, _one_if_true, 0.0)
OF_UFUNC = {r.ufunc: r for r in (SUM, PRODUCT, MAXIMUM, MINIMUM, ANY, ALL)}


def reduce(
    reduction: Reduction,
    x: DeviceArray,
    axis: Any = None,
    keepdims: bool = False,
    of: Formula | None = None,
    beside: DeviceArray | None = None,
) -> DeviceArray:
    """Reduce an array over axes (all, if `axis` is None).

    Parameters
    ----------
    reduction
        How numbers are combined.
    x
        The array.
    axis, keepdims
        As for NumPy's functions.
    of
        Function of an element, and of the number `beside` it, whose values are reduced.
    beside
        An array with the elements of a result with `keepdims`.
    """
    axes = normalize_axes(axis, x.ndim)
    shape = tuple(dim for k, dim in enumerate(x.shape) if k not in axes)
    shown = tuple(1 if k in axes else dim for k, dim in enumerate(x.shape)) if keepdims else shape
    dtype = _result_type(reduction, x.dtype)
    out = DeviceArray.empty(shown, dtype)
    if not out.size:
        return out
    count = math.prod(x.shape[k] for k in axes)
    if not count:
        if reduction.initial is None:
            raise ValueError(
                f"zero-size array to reduction operation {reduction.name} which has no identity"
            )
        out[...] = reduction.initial
        return out
    size = x.dtype.itemsize
    kept = [k for k in range(x.ndim) if k not in axes]
    rows = collapsed(shape, [tuple(x.strides[k] // size for k in kept)])
    columns = collapsed([x.shape[k] for k in axes], [tuple(x.strides[k] // size for k in axes)])
    row_steps, column_steps = rows.strides[0], columns.strides[0]
    side_by_side = rows.size == 1 or abs(column_steps[-1]) <= abs(row_steps[-1])
    chunks = _chunks(rows.size, count, side_by_side)
    partial = out if chunks == 1 else DeviceArray.empty((rows.size, chunks), dtype)
    prepare = reduction.prepare if of is None else of
    _launch(reduction, prepare, x, rows, columns, count, chunks, side_by_side, partial, beside)
    if chunks > 1:
        flat_rows = collapsed((rows.size,), [(chunks,)])
        flat_columns = collapsed((chunks,), [(1,)])
        _launch(reduction, None, partial, flat_rows, flat_columns, chunks, 1, True, out)
    return out


def sum_of(
    x: DeviceArray, formula: Formula, beside: DeviceArray, axis: Any, counts: bool = False
) -> DeviceArray:
    """Return sums of a function of elements and of the number beside them, with axes kept.

    Parameters
    ----------
    x
        The array.
    formula
        The function of two numbers.
    beside
        An array with the elements of the result.
    axis
        The axes that are summed over.
    counts
        Whether the function is a condition, and the sums are numbers of elements.
    """
    return reduce(COUNT if counts else SUM, x, axis, True, formula, beside)


def _launch(
    reduction: Reduction, prepare: Formula | None, x: DeviceArray, rows: Any, columns: Any,
    count: int, chunks: int, side_by_side: bool, out: DeviceArray,
    beside: DeviceArray | None = None,
) -> None:  # fmt: skip
    """Reduce rows, each in chunks, into a contiguous array of rows and chunks."""
    kernel = _kernel(
        reduction.combine, prepare, x.dtype.name, out.dtype.name,
        len(rows.dims), len(columns.dims), side_by_side, codegen.threads(), beside is not None,
    )  # fmt: skip
    tasks = rows.size * chunks
    blocks = min(tasks, codegen.most_blocks()) if side_by_side else None
    given = passed(x, codegen.CONTIGUOUS, ())
    result = passed(out, codegen.CONTIGUOUS, ())
    if beside is not None:
        given += passed(contiguous(beside), codegen.CONTIGUOUS, ())
    steps = (*rows.strides[0], *columns.strides[0])
    codegen.launch(
        kernel, tasks, count, chunks, *rows.dims[1:], *columns.dims[1:], *result, *given, *steps,
        blocks=blocks,
    )  # fmt: skip


def _chunks(rows: int, count: int, side_by_side: bool) -> int:
    """Return into how many chunks the elements of a result are cut, so that the device is busy."""
    wanted = codegen.most_blocks() * (1 if side_by_side else codegen.threads())
    return max(1, min(wanted // rows, count // _SMALLEST_CHUNK))


def _result_type(reduction: Reduction, dtype: np.dtype) -> np.dtype:
    if reduction is COUNT:
        return np.dtype(np.int64)
    return reduction.ufunc.reduce(np.ones(1, dtype)).dtype


@functools.lru_cache(1024)
def _kernel(
    combine: Formula, prepare: Formula | None, given: str, result: str,
    row_rank: int, column_rank: int, side_by_side: bool, threads: int, has_beside: bool,
) -> Any:  # fmt: skip
    """Return the kernel that reduces chunks of rows.

    A task is a chunk of a row. It combines elements `begin` to `end` of the row, of which each
    thread takes every `step`-th.
    """
    module = DeviceModule(result)
    combined = module.add(OF_DEVICE.get(combine, combine))
    names = [*(f"r{d}" for d in range(1, row_rank)), *(f"c{d}" for d in range(1, column_rank))]
    names += ["out", "out_at", "x", "x_at", *(["beside", "beside_at"] if has_beside else [])]
    names += [*(f"row_s{d}" for d in range(row_rank))]
    names += [*(f"column_s{d}" for d in range(column_rank))]

    def place(index: str, size: str, step: str, rank: int, indent: str, total: str) -> list[str]:
        lines = [f"{indent}rest = {index}"]
        for d in range(rank - 1, 0, -1):
            lines += [f"{indent}{total} += rest % {size}{d} * {step}{d}"]
            lines += [f"{indent}rest //= {size}{d}"]
        return [*lines, f"{indent}{total} += rest * {step}0"]

    load = "x[at]"
    if prepare is not None:
        load += ", beside[beside_at + row]" if has_beside else ""
        load = f"{module.add(prepare)}({load})"
    load = converted(load, result)
    lines = ["", "", f"def kernel(tasks, count, chunks, {', '.join(names)}):"]
    if side_by_side:
        kind = "boolean" if result == "bool" else result
        lines += [f"    shared = cuda.shared.array({threads}, {kind})"]
        lines += ["    thread = cuda.threadIdx.x"]
        lines += ["    for task in range(cuda.blockIdx.x, tasks, cuda.gridDim.x):"]
        first, step = "begin + thread", str(threads)
    else:
        lines += ["    for task in range(cuda.grid(1), tasks, cuda.gridsize(1)):"]
        first, step = "begin", "1"
    lines += ["        row, chunk = task // chunks, task % chunks"]
    if not side_by_side:  # neighbouring threads take neighbouring rows
        lines[-1] = "        row, chunk = task % (tasks // chunks), task // (tasks // chunks)"
    lines += [
        "        begin = chunk * count // chunks",
        "        end = (chunk + 1) * count // chunks",
    ]
    lines += ["        start = x_at"]
    lines += place("row", "r", "row_s", row_rank, " " * 8, "start")
    lines += [f"        first = {first}"]
    lines += ["        if first < end:", "            at = start"]
    lines += place("first", "c", "column_s", column_rank, " " * 12, "at")
    lines += [f"            total = {load}"]
    lines += [
        f"            for i in range(first + {step}, end, {step}):",
        "                at = start",
    ]
    lines += place("i", "c", "column_s", column_rank, " " * 16, "at")
    lines += [f"                total = {combined}(total, {load})"]
    if not side_by_side:
        lines += ["            out[out_at + row * chunks + chunk] = total"]
    else:
        lines += ["            shared[thread] = total", "        cuda.syncthreads()"]
        lines += [f"        active = min(end - begin, {threads})"]
        lines += ["        while active > 1:"]
        lines += ["            half = (active + 1) // 2"]
        lines += ["            if thread < active - half:"]
        lines += [
            f"                shared[thread] = {combined}(shared[thread], shared[thread + half])"
        ]
        lines += ["            cuda.syncthreads()", "            active = half"]
        lines += ["        if thread == 0:", "            out[out_at + task] = shared[0]"]
        lines += ["        cuda.syncthreads()"]
    module.lines += lines
    return module.kernel("kernel")
