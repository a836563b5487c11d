"""Reading and writing elements of arrays on a device at indices that are arrays.

Integers, slices, None and Ellipsis give views. Of what remains, the arrays, the offsets of the
elements are computed, on the device if the indices are there; a kernel copies or adds the elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, is_array
from tapegrad.cuda.determinism import are_deterministic_algorithms_enabled
from tapegrad.cuda.numeric import codegen, sorting
from tapegrad.cuda.numeric.codegen import (
    CONTIGUOUS,
    DeviceModule,
    indented,
    quotient,
    unravelled,
)
from tapegrad.cuda.numeric.expressions import from_first, passed

_POSITIONS = np.dtype(np.int64)


def is_basic(index: Any) -> bool:
    """Whether an index gives a view."""
    return all(map(_is_basic, index if type(index) is tuple else (index,)))


def _is_basic(part: Any) -> bool:
    if part is None or part is Ellipsis or type(part) is slice:
        return True
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


class Places:
    """The elements of an array at an index that has arrays.

    Attributes
    ----------
    source
        A view of the array whose first axes are those that the arrays index.
    positions
        Offsets of the elements, or of the rows of the other axes, in elements.
    axis
        Where the axes of the index are in the result.
    may_repeat
        Whether an element may be there several times.
    """

    def __init__(self, x: DeviceArray, index: Any) -> None:
        parts = _full(x, index)
        arrays = [part for part in parts if is_array(part)]
        spaced = tuple(slice(None) if is_array(p) else p for p in parts)
        view = x.viewed(lambda a: a[spaced])
        kept = [p for p in parts if not isinstance(p, (int, np.integer))]
        axes = [k for k, p in enumerate(kept) if is_array(p)]
        self.axis = axes[0] if _adjacent(parts) else 0
        others = [k for k in range(view.ndim) if k not in axes]
        self.source = view.viewed(lambda a: a.transpose((*axes, *others)))
        self.rest = self.source.shape[len(axes) :]
        self.positions, self.may_repeat = _positions(self.source, arrays)

    @property
    def steps(self) -> list[int]:
        """Strides of the axes that are not indexed, in elements."""
        size = self.source.itemsize
        return [s // size for s in self.source.strides[self.source.ndim - len(self.rest) :]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the elements, with the axes of the index first."""
        return (*self.positions.shape, *self.rest)

    def in_order(self, found: DeviceArray) -> DeviceArray:
        """Return elements with the axes of the index where NumPy has them."""
        return self._moved(found, list(range(self.positions.ndim)), self.axis)

    def index_first(self, values: DeviceArray) -> DeviceArray:
        """Return values for all elements with the axes of the index first."""
        shape = self.in_order(_stand_in(self.shape)).shape
        while values.ndim > len(shape) and values.shape[0] == 1:  # as NumPy assigns
            values = values[0]
        wide = values.viewed(lambda a: np.broadcast_to(a, shape))
        count = self.positions.ndim
        if not self.axis:
            return wide
        source = tuple(range(self.axis, self.axis + count))
        return wide.viewed(lambda a: np.moveaxis(a, source, tuple(range(count))))

    @staticmethod
    def _moved(array: Any, axes: list[int], to: int) -> Any:
        if not to or not axes:
            return array
        target = [to + k for k in range(len(axes))]
        if isinstance(array, np.ndarray):
            return np.moveaxis(array, axes, target)
        return array.viewed(lambda a: np.moveaxis(a, axes, target))


def _stand_in(shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(np.zeros(()), shape)


def _full(x: DeviceArray, index: Any) -> list[Any]:
    """Return an index with a part for every axis, and arrays of integers in place of masks."""
    parts = [_part(part) for part in (index if type(index) is tuple else (index,))]
    used = 0
    for part in parts:
        if part is not None and part is not Ellipsis:
            used += part.ndim if getattr(part, "dtype", None) == np.bool_ else 1
    if used > x.ndim:
        raise IndexError(
            f"too many indices for array: array is {x.ndim}-dimensional, but {used} were indexed"
        )
    missing = [slice(None)] * (x.ndim - used)
    places = [k for k, part in enumerate(parts) if part is Ellipsis]
    if len(places) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = places[0] if places else len(parts)
    found: list[Any] = []
    axis = 0
    for part in (*parts[:at], *missing, *parts[at + 1 :]):
        if getattr(part, "dtype", None) != np.bool_:
            found.append(part)
            axis += part is not None
            continue
        if x.shape[axis : axis + part.ndim] != part.shape:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}: it has shape "
                f"{part.shape}, the array {x.shape}"
            )
        found += part.nonzero()
        axis += part.ndim
    return found


def _part(part: Any) -> Any:
    """Return a part of an index: what gives views unchanged, and anything else as an array.

    Masks are on the host, since how many elements they choose has to be known.
    """
    if _is_basic(part):
        return part
    array = part if is_array(part) else np.asarray(part)
    if isinstance(array, np.ndarray) and not array.size and array.dtype.kind == "f":
        array = array.astype(np.intp)  # an empty list
    if array.dtype == np.bool_:
        if not array.ndim:
            raise IndexError(
                "tensors on a device have no index that is True or False; write "
                "tg.where(condition, x, y), or choose with an if"
            )
        return array.to_host() if isinstance(array, DeviceArray) else array
    if array.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return array


def _adjacent(parts: Sequence[Any]) -> bool:
    """Whether no slice or None stands between the arrays (and integers) of an index."""
    advanced = [isinstance(p, (int, np.integer)) or is_array(p) for p in parts]
    first, last = advanced.index(True), len(advanced) - advanced[::-1].index(True)
    return all(advanced[first:last])


def _positions(source: DeviceArray, arrays: Sequence[Any]) -> tuple[DeviceArray, bool]:
    """Return the offsets of the elements at indices of the first axes, after checking these.

    The second result tells whether an element may be there several times.
    """
    total: Any = None
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    on_device = any(isinstance(array, DeviceArray) for array in arrays)
    for axis, array in enumerate(arrays):
        length = source.shape[axis]
        array = array.astype(_POSITIONS)
        if array.size:
            low, high = int(array.min()), int(array.max())
            if low < -length or high >= length:
                wrong = low if low < -length else high
                raise IndexError(
                    f"index {wrong} is out of bounds for axis {axis} with size {length}"
                )
            if low < 0:
                array = np.where(array < 0, array + length, array)
        step = array * (source.strides[axis] // source.itemsize)
        if on_device and not isinstance(step, DeviceArray):
            step = DeviceArray.from_host(step)
        total = step if total is None else total + step
    may_repeat = True
    if not isinstance(total, DeviceArray):
        may_repeat = total.shape != shape or np.unique(total).size < total.size
        total = DeviceArray.from_host(np.asarray(total))
    wide = total.viewed(lambda a: np.broadcast_to(a, shape))
    return wide if wide.is_contiguous else wide.copy(), may_repeat


@functools.lru_cache(1024)
def _kernel(action: str, source: str, values: str, rank: int) -> Any:
    """Return the kernel that copies or adds elements.

    Parameters
    ----------
    action
        ``"get"``, ``"put"`` or ``"add"``.
    source, values
        Types of the elements.
    rank
        Number of axes that are not indexed.
    """
    module = DeviceModule(source)
    dims = [f"d{k}" for k in range(rank)]
    steps = [f"s{k}" for k in range(rank)]
    other = "out" if action == "get" else "values"
    names = ["count", "inner", *dims[1:], "x", "x_at", *steps, "positions", other, f"{other}_at"]
    value = codegen.at(other, "i")
    given = codegen.converted(value, source)
    moved = {
        "get": f"{value} = x[at]",
        "put": f"x[at] = {given}",
        "add": f"cuda.atomic.add(x, at, {given})",
    }
    lines = [f"k = {quotient('i', 'inner')}", *_position("positions[k]", rank), moved[action]]
    module.lines += ["", "", f"def kernel({', '.join(names)}):"]
    module.lines.append("    for i in range(cuda.grid(1), count, cuda.gridsize(1)):")
    module.lines += indented(lines, 2)
    return module.kernel("kernel")


def _position(of_index: str, rank: int) -> list[str]:
    """Return the statements that compute where element `i` is, the one with index `k`.

    `rank` is the number of axes that are not indexed.
    """
    steps = codegen.products(codegen.STRIDED * rank, "s")
    lines = ["rest = i - k * inner", *unravelled(rank)] if rank else []
    return [*lines, f"at = uint64({' + '.join(['x_at', of_index, *steps])})"]


def _run(action: str, places: Places, values: DeviceArray) -> None:
    """Copy or add elements between an array and contiguous values."""
    if not values.size:
        return
    rest = places.rest
    kernel = _kernel(action, places.source.dtype.name, values.dtype.name, len(rest))
    codegen.launch(
        kernel,
        values.size,
        max(1, math.prod(rest)),
        *rest[1:],
        *passed(places.source, CONTIGUOUS, ()),
        *places.steps,
        from_first(places.positions),
        *passed(values, CONTIGUOUS, ()),
    )


def gather(x: DeviceArray, index: Any) -> DeviceArray:
    """Return a copy of the elements at an index that has arrays."""
    places = Places(x, index)
    found = DeviceArray.empty(places.shape, x.dtype)
    _run("get", places, found)
    return places.in_order(found)


def put(x: DeviceArray, index: Any, value: DeviceArray) -> None:
    """Write values at an index that has arrays; the last of several for one element wins."""
    _write("put", x, index, value)


def add_at(x: DeviceArray, index: Any, value: DeviceArray) -> None:
    """Add values at an index; those for one element add up.

    Their order may differ from run to run, unless deterministic algorithms are used.
    """
    if x.dtype.name not in ("int32", "int64", "uint32", "uint64", "float32", "float64"):
        raise TypeError(f"add.at: there is no kernel for dtype {x.dtype}; convert with astype")
    if is_basic(index):
        view = x[index]
        view += value
        return
    _write("add", x, index, value)


@functools.lru_cache(256)
def _ordered_kernel(action: str, source: str, values: str, rank: int) -> Any:
    """Return the kernel that puts or adds values in the order of an index.

    Positions are sorted: one of equal ones stands for all of them, the first for a sum and the last
    for the value that stays.
    """
    module = DeviceModule(source)
    names = ["count", "inner", *(f"d{k}" for k in range(1, rank)), "x", "x_at"]
    names += [*(f"s{k}" for k in range(rank)), "positions", "order", "size", "values", "values_at"]
    first = "k == 0 or positions[order[k - 1]] != place"
    last = "k == size - 1 or positions[order[k + 1]] != place"
    value = codegen.converted("values[values_at + order[k] * inner + i % inner]", source)
    summed = [
        "total = x[at]",
        "while k < size and positions[order[k]] == place:",
        f"    total += {value}",
        "    k += 1",
        "x[at] = total",
    ]
    lines = [
        f"k = {quotient('i', 'inner')}",
        "place = positions[order[k]]",
        f"if {first if action == 'add' else last}:",
        *indented(_position("place", rank)),
        *indented([f"x[at] = {value}"] if action == "put" else summed),
    ]
    module.lines += ["", "", f"def kernel({', '.join(names)}):"]
    module.lines.append("    for i in range(cuda.grid(1), count, cuda.gridsize(1)):")
    module.lines += indented(lines, 2)
    return module.kernel("kernel")


def _run_in_order(action: str, places: Places, values: DeviceArray) -> None:
    """Put or add contiguous values, those for one element in the order of the index."""
    if not values.size:
        return
    source, rest = places.source, places.rest
    positions = places.positions.reshape(-1)
    order = sorting.argsort(positions).copy()
    kernel = _ordered_kernel(action, source.dtype.name, values.dtype.name, len(rest))
    codegen.launch(
        kernel,
        values.size,
        max(1, math.prod(rest)),
        *rest[1:],
        *passed(source, CONTIGUOUS, ()),
        *places.steps,
        from_first(positions),
        from_first(order),
        positions.size,
        *passed(values, CONTIGUOUS, ()),
    )


def _write(action: str, x: DeviceArray, index: Any, value: DeviceArray) -> None:
    places = Places(x, index)
    x.memory.settle()
    shown = places.index_first(value)
    same = value.memory is x.memory
    packed = shown.copy() if same or not shown.is_contiguous else shown
    in_order = are_deterministic_algorithms_enabled() if action == "add" else value.size > 1
    if places.may_repeat and in_order:
        _run_in_order(action, places, packed)
    else:
        _run(action, places, packed)
