"""Products of matrices on a device, and sums of products, which are products of matrices."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.numeric import codegen, reductions
from tapegrad.cuda.numeric.codegen import CONTIGUOUS, DeviceModule, indented
from tapegrad.cuda.numeric.expressions import passed
from tapegrad.cuda.toolkit import is_simulated

_SIDE = 16  # threads along each side of a block
_LEAST_DEPTH = 128  # terms of a sum that a block computes
_SIMULATED_SIDE = 2
_MOST_IN_BATCH = 65535  # limit of a launch


def matmul(x: DeviceArray, y: DeviceArray) -> DeviceArray:
    """Return NumPy's product of matrices, broadcast over leading axes."""
    if not x.ndim or not y.ndim:
        raise ValueError("matmul: an argument has no axes; multiply by numbers with *")
    row, column = x.ndim == 1, y.ndim == 1
    x = x.viewed(lambda a: a[None]) if row else x
    y = y.viewed(lambda a: a[:, None]) if column else y
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc "
            f"signature (n?,k),(k,m?)->(n?,m?) (size {y.shape[-2]} is different from {x.shape[-1]})"
        )
    dtype = np.result_type(x.dtype, y.dtype)
    if dtype == np.bool_:
        raise TypeError("matmul: there is no kernel for dtype bool; convert with astype")
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    out = DeviceArray.empty((*lead, x.shape[-2], y.shape[-1]), dtype)
    if out.size and x.shape[-1]:
        flat = out.reshape((-1, *out.shape[-2:]))
        wide = [_as_batch(a, lead) for a in (x, y)]
        for first in range(0, flat.shape[0], _MOST_IN_BATCH):
            part = slice(first, first + _MOST_IN_BATCH)
            _launch(*(a[part] for a in wide), flat[part])
    elif out.size:
        out[...] = 0
    found = out[..., 0, :] if row else out
    return found[..., 0] if column else found


def _as_batch(array: DeviceArray, lead: tuple[int, ...]) -> DeviceArray:
    """Return a batch of matrices along one axis; it is copied if one stride does not suffice."""
    if not lead:
        return array.viewed(lambda a: a[None])
    wide = array.viewed(lambda a: np.broadcast_to(a, (*lead, *a.shape[-2:])))
    return wide.viewed(lambda a: a) if len(lead) == 1 else wide.reshape((-1, *array.shape[-2:]))


def _launch(x: DeviceArray, y: DeviceArray, out: DeviceArray) -> None:
    """Compute the products of a batch of matrices."""
    side = _SIMULATED_SIDE if is_simulated() else _SIDE
    count, rows, columns = out.shape
    depth = x.shape[-1]
    tile = _of_thread(rows, side), _of_thread(columns, side)
    across = -(-columns // (side * tile[1]))  # blocks
    tiles = -(-rows // (side * tile[0])) * across
    # few elements of deep sums: each block takes a part of the sums, so that the device is busy
    parts = max(1, min(codegen.most_blocks() // 4 // (tiles * count), depth // _LEAST_DEPTH))
    found = out if parts == 1 else DeviceArray.empty((count, parts, rows, columns), out.dtype)
    shown = found.viewed(lambda a: a[:, None]) if parts == 1 else found
    along = x.strides[-1] <= x.strides[-2], y.strides[-2] < y.strides[-1]
    kernel = _kernel(x.dtype.name, y.dtype.name, out.dtype.name, side, tile, along)
    arguments: list[Any] = [across, rows, columns, depth, -(-depth // parts)]
    for array in (shown, x, y):
        size = array.dtype.itemsize
        arguments += [*passed(array, CONTIGUOUS, ()), *(stride // size for stride in array.strides)]
    kernel.start((tiles, parts, count), (side, side), *arguments)
    if parts > 1:
        out[...] = reductions.reduce(reductions.SUM, found, 1)


def _of_thread(length: int, side: int) -> int:
    """Return how many elements along an axis of the product a thread computes."""
    return 4 if length > 2 * side else 2 if length > side else 1


def einsum(subscripts: str, *operands: DeviceArray) -> DeviceArray:
    """Return NumPy's sum of products, as products of matrices of two operands at a time."""
    inputs, _, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "." in subscripts or "->" not in subscripts:
        raise TypeError(f"einsum: subscripts {subscripts!r} need named axes and '->' on a device")
    letters, total = _reduced(terms[0], operands[0], set(output).union(*terms[1:]))
    for k, (term, operand) in enumerate(zip(terms[1:], operands[1:], strict=True), 2):
        needed = set(output).union(*terms[k:])
        other, array = _reduced(term, operand, needed | {*letters})
        letters, total = _paired(letters, total, other, array, needed)
    letters, total = _reduced(letters, total, set(output))
    order = [letters.index(letter) for letter in output]
    found = total.viewed(lambda a: a.transpose(order))
    return found.copy() if found.base is not None else found


def _reduced(letters: str, x: DeviceArray, needed: set[str]) -> tuple[str, DeviceArray]:
    """Return an operand without repeated axes, summed over those that nothing else has."""
    distinct = "".join(dict.fromkeys(letters))
    if distinct != letters:
        x = x.viewed(lambda a: np.einsum(f"{letters}->{distinct}", a))
    alone = tuple(k for k, letter in enumerate(distinct) if letter not in needed)
    kept = "".join(letter for letter in distinct if letter in needed)
    return kept, reductions.reduce(reductions.SUM, x, alone) if alone else x


def _paired(
    left: str, x: DeviceArray, right: str, y: DeviceArray, needed: set[str]
) -> tuple[str, DeviceArray]:
    """Return the sum of products of two operands as a product of matrices."""
    batch = [c for c in left if c in right and c in needed]
    summed = [c for c in left if c in right and c not in needed]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    sizes = {**dict(zip(left, x.shape, strict=True)), **dict(zip(right, y.shape, strict=True))}
    for letter, size in zip(left, x.shape, strict=True):
        if sizes[letter] != size:
            raise ValueError(f"einsum: axis {letter!r} has the lengths {size} and {sizes[letter]}")

    def matrices(array: DeviceArray, letters: str, *groups: list[str]) -> DeviceArray:
        order = [letters.index(c) for group in groups for c in group]
        shape = tuple(math.prod(sizes[c] for c in group) for group in groups)
        return array.viewed(lambda a: a.transpose(order)).reshape(shape)

    product = matmul(
        matrices(x, left, batch, rows, summed), matrices(y, right, batch, summed, columns)
    )
    letters = [*batch, *rows, *columns]
    return "".join(letters), product.reshape(tuple(sizes[c] for c in letters))


@functools.cache
def _kernel(
    x: str, y: str, out: str, side: int, tile: tuple[int, int], along: tuple[bool, bool]
) -> Any:
    """Return the kernel of products.

    A block computes a tile of a product. It keeps what it needs of the factors in shared memory,
    for some terms of the sums at a time. Each of its threads has several elements of the product,
    `side` apart, so that it reads fewer numbers than it multiplies.

    Parameters
    ----------
    x, y, out
        Types of the elements.
    side
        Number of threads along each side of a block, and of terms at a time.
    tile
        How many rows and columns a thread has.
    along
        Whether neighbouring threads read neighbouring terms of a factor; otherwise they read
        neighbouring rows of the left one, or columns of the right one.
    """
    module = DeviceModule(out)
    names = [f"out{part}" for part in ("", "_at", "_s0", "_sp", "_s1", "_s2")]
    names += [f"{n}{part}" for n in ("x", "y") for part in ("", "_at", "_s0", "_s1", "_s2")]
    high, wide = side * tile[0], side * tile[1]

    def loaded(
        target: str, length: int, is_along: bool, start: str, limit: str, place: str
    ) -> list[str]:
        """Return the statements that fill shared memory, with zeros beyond the factor."""
        place_of = f"e % {side}, e // {side}" if is_along else f"e // {length}, e % {length}"
        lines = []
        for part in range(length // side):
            lines += [
                f"e = thread + {part * side * side}",
                f"k, m = {place_of}",
                f"{target}[k, m] = {out}(0)",
                f"if first + k < end and {start} + m < {limit}:",
                f"    {target}[k, m] = {out}({place})",
            ]
        return lines

    left = loaded(
        "left", high, along[0], "row", "rows",
        "x[x_at + item * x_s0 + (row + m) * x_s1 + (first + k) * x_s2]",
    )  # fmt: skip
    right = loaded(
        "right", wide, along[1], "column", "columns",
        "y[y_at + item * y_s0 + (first + k) * y_s1 + (column + m) * y_s2]",
    )  # fmt: skip
    elements = [(r, c) for r in range(tile[0]) for c in range(tile[1])]
    lines = [
        "item, part = cuda.blockIdx.z, cuda.blockIdx.y",
        "i, j = cuda.threadIdx.y, cuda.threadIdx.x",
        f"thread = i * {side} + j",
        f"row = cuda.blockIdx.x // across * {high}",
        f"column = cuda.blockIdx.x % across * {wide}",
        # one more column than is used: threads that store side by side use different banks
        f"left = cuda.shared.array(({side}, {high + 1}), {out})",
        f"right = cuda.shared.array(({side}, {wide + 1}), {out})",
        *(f"total{r}{c} = {out}(0)" for r, c in elements),
        "end = min(depth, (part + 1) * length)",
        f"for first in range(part * length, end, {side}):",
        *indented([*left, *right]),
        "    cuda.syncthreads()",
        f"    for k in range({side}):",
        *(f"        x{r} = left[k, i + {r * side}]" for r in range(tile[0])),
        *(f"        y{c} = right[k, j + {c * side}]" for c in range(tile[1])),
        *(f"        total{r}{c} += x{r} * y{c}" for r, c in elements),
        "    cuda.syncthreads()",
        "at = out_at + item * out_s0 + part * out_sp",
    ]
    for r, c in elements:
        lines += [
            f"r, c = row + i + {r * side}, column + j + {c * side}",
            "if r < rows and c < columns:",
            f"    out[at + r * out_s1 + c * out_s2] = total{r}{c}",
        ]
    names = ["across", "rows", "columns", "depth", "length", *names]
    module.lines += ["", "", f"def kernel({', '.join(names)}):"]
    module.lines += indented(lines)
    return module.kernel("kernel")
