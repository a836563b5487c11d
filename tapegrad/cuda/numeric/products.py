"""Products of matrices on a device.

Threads of a block compute a square of the product. They load squares of both operands into shared
memory, so that each element is read from the device's memory once for the whole block.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.numeric import reductions
from tapegrad.cuda.numeric.codegen import CONTIGUOUS, DeviceModule
from tapegrad.cuda.numeric.expressions import passed
from tapegrad.cuda.toolkit import is_simulated

_SIDE = 16  # threads along each side of a block
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
    """Launch the kernel for a batch of matrices."""
    side = _SIMULATED_SIDE if is_simulated() else _SIDE
    kernel = _kernel(x.dtype.name, y.dtype.name, out.dtype.name, side)
    count, rows, columns = out.shape
    arguments: list[Any] = [rows, columns, x.shape[-1]]
    for array in (out, x, y):
        size = array.dtype.itemsize
        arguments += [*passed(array, CONTIGUOUS, ()), *(stride // size for stride in array.strides)]
    grid = (-(-columns // side), -(-rows // side), count)
    kernel.start(grid, (side, side), *arguments)


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
def _kernel(x: str, y: str, out: str, side: int) -> Any:
    module = DeviceModule(out)
    names = [f"{n}{part}" for n in ("out", "x", "y") for part in ("", "_at", "_s0", "_s1", "_s2")]
    module.lines += f"""

def kernel(rows, columns, depth, {", ".join(names)}):
    item = cuda.blockIdx.z
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    row, column = cuda.blockIdx.y * {side} + i, cuda.blockIdx.x * {side} + j
    left = cuda.shared.array(({side}, {side}), {out})
    right = cuda.shared.array(({side}, {side}), {out})
    total = {out}(0)
    for first in range(0, depth, {side}):
        left[i, j] = {out}(0)
        right[i, j] = {out}(0)
        if row < rows and first + j < depth:
            left[i, j] = {out}(x[x_at + item * x_s0 + row * x_s1 + (first + j) * x_s2])
        if first + i < depth and column < columns:
            right[i, j] = {out}(y[y_at + item * y_s0 + (first + i) * y_s1 + column * y_s2])
        cuda.syncthreads()
        for k in range({side}):
            total += left[i, k] * right[k, j]
        cuda.syncthreads()
    if row < rows and column < columns:
        out[out_at + item * out_s0 + row * out_s1 + column * out_s2] = total
""".splitlines()
    return module.kernel("kernel")
