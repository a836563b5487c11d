"""Compiled loops over scalar formulas, for functions of elements that NumPy does not have."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.kernels import codegen
from tapegrad.ops.table.op import layout_order
from tapegrad.tape.avals import DTYPE_CODES, FLOAT64

Formula = Any  # a plain Python function of scalars or arrays
_BLOCK = 8192  # elements that are computed at a time


class CompiledMap:
    """The compiled loop over a formula, with NumPy's broadcasting and casting.

    Parameters
    ----------
    formula
        Plain function of scalars.
    function, complex_function
        Functions of arrays for real and complex types without a loop; by default, the loop computes
        with float64 in place of integers, and others are refused.
    """

    def __init__(
        self, formula: Formula, function: Any = None, complex_function: Any = None
    ) -> None:
        self.formula = formula
        self.function = function
        self.complex_function = complex_function
        self._loops: dict[np.dtype, Callable[..., None]] = {}

    def loop(self, dtype: np.dtype) -> Callable[..., None]:
        """Return the loop for a float type, compiled on first use."""
        found = self._loops.get(dtype)
        if found is None:
            address = codegen.map_kernel(self.formula, DTYPE_CODES[dtype])
            count = self.formula.__code__.co_argcount + 2
            found = ctypes.PYFUNCTYPE(None, *[ctypes.c_int64] * count)(address)
            self._loops[dtype] = found
        return found

    def __call__(self, *args: Any) -> Any:
        first = args[0]
        if DeviceArray in map(type, args):
            return DeviceArray.mapped(self.formula, args)
        if len(args) == 1 and type(first) is np.ndarray and first.dtype in self._loops:
            if first.flags.c_contiguous:
                out = np.empty_like(first)
                self._loops[first.dtype](first.size, id(first), id(out))
                return out
        args = tuple(np.asarray(a) if isinstance(a, (list, tuple)) else a for a in args)
        dtype = np.result_type(*args)
        if dtype not in DTYPE_CODES:
            function = self.complex_function if dtype.kind == "c" else self.function
            if function is not None:
                return function(*args)  # the types of results are NumPy's
            if dtype.kind not in "biuf" or dtype.itemsize > 8:
                raise TypeError(
                    f"{self.formula.__name__} is defined for real numbers of at most 64 bits, got "
                    f"{dtype}; convert with astype"
                )
            dtype = FLOAT64 if dtype.itemsize > 2 or dtype.kind != "f" else np.dtype(np.float32)
        arrays = np.broadcast_arrays(*(np.asarray(arg, dtype) for arg in args))
        loop = self.loop(dtype)
        if all(array.flags.c_contiguous for array in arrays):
            out = np.empty(arrays[0].shape, dtype)
            loop(out.size, *map(id, arrays), id(out))
            return out
        out = _result_of(arrays, dtype)
        order = layout_order(out.strides)
        whole, read = out.transpose(order), [array.transpose(order) for array in arrays]
        for part in _blocks(whole.shape):
            given = [np.ascontiguousarray(array[part]) for array in read]
            written = whole[part]
            loop(written.size, *map(id, given), id(written))
        return out


def _result_of(arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Return an array for the result of arrays of one shape, which lies in memory as NumPy's."""
    operands: Any = [*arrays, None]
    flags: Any = [*(["readonly"] for _ in arrays), ["writeonly", "allocate"]]
    return np.nditer(operands, ["zerosize_ok"], flags, [dtype] * len(flags)).operands[-1]


def _blocks(shape: tuple[int, ...]) -> Iterator[Any]:
    """Yield the indices of parts of an array for which copies of arguments stay in the cache."""
    if math.prod(shape) < 2 * _BLOCK:
        yield ...
        return
    length = max(1, _BLOCK * shape[0] // math.prod(shape))
    for start in range(0, shape[0], length):
        yield slice(start, start + length)
