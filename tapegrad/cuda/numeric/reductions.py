"""Reductions of arrays on a device.

The elements of each result are cut into chunks. If they lie side by side, a team of threads shares
a chunk: each combines every n-th element, and the team combines what its threads found, in a fixed
order. Otherwise a thread takes a chunk of its own, so that neighbouring threads read neighbouring
elements. A second pass combines the chunks. No result depends on the order in which threads run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, contiguous
from tapegrad.cuda.numeric import codegen
from tapegrad.cuda.numeric.codegen import (
    OF_DEVICE,
    REPEATED,
    DeviceModule,
    Formula,
    at,
    converted,
    indented,
    products,
    quotient,
    strided,
    unravelled,
)
from tapegrad.cuda.numeric.expressions import Program, passed, read_once
from tapegrad.cuda.numeric.layouts import (
    Layout,
    broadcast_strides,
    collapsed,
    kind_of_strides,
)
from tapegrad.cuda.numeric.steps import Steps
from tapegrad.ops.table.op import normalize_axes

_SMALLEST_CHUNK = 512  # elements
_MOST_ELEMENTS = 16  # of a thread, where more threads could share a chunk
_AT_ONCE = 4  # elements that a thread asks for before it combines them, ...
_MOST_STEPS_AT_ONCE = 16  # ... if it computes each in so few steps


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
    program = read_once(x, bool(dtype == np.float32))
    rows, columns = _layouts(axes, x, program.arrays)
    side_by_side = rows.size == 1 or abs(columns.strides[0][-1]) <= abs(rows.strides[0][-1])
    chunks = _chunks(rows.size, count, side_by_side)
    partial = out if chunks == 1 else DeviceArray.empty((rows.size, chunks), dtype)
    prepare = reduction.prepare if of is None else of
    _launch(
        reduction, prepare, program, rows, columns, count, chunks, side_by_side, partial, beside
    )
    if chunks > 1:
        rows, columns = _layouts((1,), partial, [partial])
        _launch(reduction, None, Program([], [partial]), rows, columns, chunks, 1, True, out)
    return out


def _layouts(
    axes: tuple[int, ...], x: DeviceArray, arrays: Sequence[DeviceArray]
) -> tuple[Layout, Layout]:
    """Return the axes that stay, and those that are reduced, with the strides of `x` and arrays."""
    size = x.dtype.itemsize
    steps = [tuple(stride // size for stride in x.strides)]
    steps += [broadcast_strides(array, x.shape) for array in arrays]
    kept = [k for k in range(x.ndim) if k not in axes]
    found = [
        collapsed([x.shape[k] for k in chosen], [tuple(s[k] for k in chosen) for s in steps])
        for chosen in (kept, axes)
    ]
    return found[0], found[1]


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
    reduction: Reduction, prepare: Formula | None, program: Program, rows: Layout, columns: Layout,
    count: int, chunks: int, side_by_side: bool, out: DeviceArray,
    beside: DeviceArray | None = None,
) -> None:  # fmt: skip
    """Reduce rows, each in chunks, into a contiguous array of rows and chunks."""
    steps = [*zip(rows.strides[1:], columns.strides[1:], strict=True)]  # of arrays
    distinct = list(dict.fromkeys(steps))
    kinds = tuple((kind_of_strides(row), kind_of_strides(column)) for row, column in distinct)
    tasks = rows.size * chunks
    team = _team(tasks, -(-count // chunks)) if side_by_side else 1
    kernel = _kernel(
        reduction.combine, prepare, program.steps, tuple(map(distinct.index, steps)), kinds,
        out.dtype.name, team if side_by_side else None, codegen.threads(), beside is not None,
    )  # fmt: skip
    teams = codegen.threads() // team  # of a block
    blocks = min(-(-tasks // teams), codegen.most_blocks()) if side_by_side else None
    given = passed(out, codegen.CONTIGUOUS, ())
    for array in (*program.arrays, *([] if beside is None else [contiguous(beside)])):
        given += passed(array, codegen.CONTIGUOUS, ())
    for both, kind in zip(distinct, kinds, strict=True):
        given += [strides[d] for strides, k in zip(both, kind, strict=True) for d in strided(k)]
    codegen.launch(
        kernel, tasks, count, chunks, *rows.dims[1:], *columns.dims[1:], *given, *program.numbers,
        blocks=blocks,
    )  # fmt: skip


def _chunks(rows: int, count: int, side_by_side: bool) -> int:
    """Return into how many chunks the elements of a result are cut, so that the device is busy."""
    wanted = codegen.most_blocks() * (1 if side_by_side else codegen.threads())
    return max(1, min(wanted // rows, count // _SMALLEST_CHUNK))


def _team(tasks: int, count: int) -> int:
    """Return how many threads share a chunk of some elements.

    A block is one team, unless that leaves threads without an element, or there are so many chunks
    that the device is busy with fewer threads for each.
    """
    team = codegen.threads()
    enough = codegen.most_blocks() * codegen.threads()
    while team > 1 and (
        count < team or (tasks * team // 2 >= enough and count <= _MOST_ELEMENTS * team // 2)
    ):
        team //= 2
    return team


def _result_type(reduction: Reduction, dtype: np.dtype) -> np.dtype:
    if reduction is COUNT:
        return np.dtype(np.int64)
    return reduction.ufunc.reduce(np.ones(1, dtype)).dtype


@functools.lru_cache(1024)
def _kernel(
    combine: Formula, prepare: Formula | None, computed: Steps, places: tuple[int, ...],
    kinds: tuple[tuple[str, str], ...], result: str, team: int | None, threads: int,
    has_beside: bool,
) -> Any:  # fmt: skip
    """Return the kernel that reduces chunks of rows.

    A task is a chunk of a row: elements `begin` to `end`. The threads of a `team` share it, each
    taking every n-th element; None: a thread has a task of its own, and neighbouring threads take
    neighbouring rows. Arrays with the same strides have the same of the `places`, which have
    `kinds` of rows and of columns. What a row has once is read before its elements.
    """
    module = DeviceModule(result)
    combined = module.add(OF_DEVICE.get(combine, combine))
    distinct = range(len(kinds))
    row_rank, column_rank = map(len, kinds[0])
    repeats = [set(column) == {REPEATED} for _, column in kinds]
    elements = [f"x{k}" if repeats[p] else at(f"a{k}", f"at{p}") for k, p in enumerate(places)]
    load = computed.statements(module, elements)
    once = [f"x{k} = {at(f'a{k}', f'start{p}')}" for k, p in enumerate(places) if repeats[p]]
    value = load[-1].partition(" = ")[0]
    load = [line for k, line in enumerate(load) if k >= len(places) or not repeats[places[k]]]
    if prepare is not None:
        value = f"{module.add(prepare)}({value}{', next_to' if has_beside else ''})"
    if has_beside:
        once.append(f"next_to = {at('beside', 'row')}")
    value = converted(value, result)
    names = [*(f"r{d}" for d in range(1, row_rank)), *(f"c{d}" for d in range(1, column_rank))]
    arrays = ["out", *(f"a{k}" for k in range(len(places))), *(["beside"] if has_beside else [])]
    names += [name for array in arrays for name in (array, f"{array}_at")]
    for p, both in enumerate(kinds):
        for axis, kind in zip(("row", "column"), both, strict=True):
            names += [f"{axis}{p}_s{d}" for d in strided(kind)]
    names += computed.numbers

    def place(index: str, axis: int, found: dict[str, list[str]]) -> list[str]:
        """Set positions to sums of some terms and of those of an index of rows or columns."""
        name, dim = ("row", "column")[axis], "rc"[axis]
        lines = [f"rest = {index}", *unravelled(len(kinds[0][axis]), dim=dim)]
        for p, (target, terms) in enumerate(found.items()):
            terms += products(kinds[p][axis], f"{name}{p}_s")
            lines.append(f"{target} = {' + '.join(terms) or '0'}")
        return lines

    def read(index: str, target: str) -> list[str]:
        lines = place(index, 1, {f"at{p}": [f"start{p}"] for p in distinct})
        return [*lines, *load, f"{target} = {value}"]

    def combining(values: Sequence[str]) -> str:
        if len(values) == 1:
            return values[0]
        half = len(values) // 2
        return f"{combined}({combining(values[:half])}, {combining(values[half:])})"

    at_once = _AT_ONCE if len(computed.steps) <= _MOST_STEPS_AT_ONCE else 1
    first, step = ("begin", 1) if team is None else (f"begin + thread % {team}", team)
    found = [f"value{k}" for k in range(at_once)]
    together = [
        f"while i + {(at_once - 1) * step} < end:",
        *(line for k, name in enumerate(found) for line in indented(read(f"i + {k * step}", name))),
        f"    total = {combined}(total, {combining(found)})",
        f"    i += {at_once * step}",
    ]
    if team is None:  # neighbouring threads take neighbouring rows
        chosen = [
            f"rows = {quotient('tasks', 'chunks')}",
            f"chunk = {quotient('task', 'rows')}",
            "row = task - chunk * rows",
        ]
    else:
        chosen = [f"row = {quotient('task', 'chunks')}", "chunk = task - row * chunks"]
    task = [
        *chosen,
        f"begin = {quotient('chunk * count', 'chunks')}",
        f"end = {quotient('(chunk + 1) * count', 'chunks')}",
        *place("row", 0, {f"start{p}": [] for p in distinct}),
        f"first = {first}",
        "if first < end:",
        *indented([*once, *read("first", "total")]),
        f"    i = first + {step}",
        *(indented(together) if at_once > 1 else []),
        "    while i < end:",
        *indented(read("i", "value0"), 2),
        f"        total = {combined}(total, value0)",
        f"        i += {step}",
    ]
    if team is None:
        lines = [
            "for task in range(cuda.grid(1), tasks, cuda.gridsize(1)):",
            *indented(task),
            "    out[out_at + row * chunks + chunk] = total",
        ]
    else:
        kind = "boolean" if result == "bool" else result
        teams = threads // team
        lines = [
            f"shared = cuda.shared.array({threads}, {kind})",
            "thread = cuda.threadIdx.x",
            # all threads of a block come to the same barriers, also those without a task
            f"for of_block in range(cuda.blockIdx.x * {teams}, tasks, cuda.gridDim.x * {teams}):",
            f"    task = of_block + thread // {team}",
            "    active = 0",
            "    if task < tasks:",
            *indented(task, 2),
            "            shared[thread] = total",
            f"        active = min(end - begin, {team})",
            "    cuda.syncthreads()",
            f"    width = {team}",
            "    while width > 1:",
            "        half = (width + 1) // 2",
            f"        other = thread % {team} + half",
            "        if other < width and other < active:",
            f"            shared[thread] = {combined}(shared[thread], shared[thread + half])",
            "        cuda.syncthreads()",
            "        width = half",
            f"    if thread % {team} == 0 and task < tasks:",
            "        out[out_at + task] = shared[thread]",
            "    cuda.syncthreads()",
        ]
    module.lines += ["", "", f"def kernel(tasks, count, chunks, {', '.join(names)}):"]
    module.lines += indented(lines)
    return module.kernel("kernel")
