"""Abstract values: the shape, dtype and device of an array, interned as a small integer.

Tensors with the same shape and dtype on the same device have the same aval, so that comparing them
is comparing integers. Avals of real arrays of the host are even; those of complex arrays, and of
arrays on a device, are odd: compiled code and the fast path do not compute with them as they stand.

Compiled code looks up an aval in a table (`tapegrad.tape.layout`, AVAL_*). It handles only real
numbers: there, a complex array has an additional axis of length 2, which suffices for sums, views
and casts of complex arrays.

A program may see any number of shapes. Whoever uses an aval, such as the owner of a record, holds
the very integer of the table, whose references are counted: one that only the table holds is given
to another shape when there are many.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.cuda.array import HOST, Array, DeviceArray
from tapegrad.forks import process_lock
from tapegrad.kernels import pool
from tapegrad.kernels.dtypes import cast_of
from tapegrad.kernels.structs import address_of
from tapegrad.tape.layout import (
    AVAL_CLASS,
    AVAL_DIMS,
    AVAL_DTYPE,
    AVAL_ITEM,
    AVAL_NDIM,
    AVAL_SIZE,
    AVAL_WORDS,
    DTYPE_F4,
    DTYPE_F8,
    MAX_DIMS,
)

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
COMPLEX64 = np.dtype(np.complex64)
COMPLEX128 = np.dtype(np.complex128)
DTYPE_CODES = {FLOAT32: DTYPE_F4, FLOAT64: DTYPE_F8}  # dtypes of compiled code
# dtype of the real and imaginary parts
PARTS: dict[Any, np.dtype] = {COMPLEX64: FLOAT32, COMPLEX128: FLOAT64}
DIFFERENTIABLE = frozenset([*DTYPE_CODES, *PARTS])


def check_differentiable(name: str, dtype: np.dtype) -> None:
    """Raise if the result of an op has a dtype that cannot be differentiated."""
    if dtype.kind == "O":
        raise TypeError(
            f"{name}: an argument is not an array of numbers; a sparse matrix S goes into "
            "tg.matmul(S, t), or write S.toarray()"
        )
    if dtype not in DIFFERENTIABLE:
        raise TypeError(
            f"{name}: cannot differentiate a result of dtype {dtype}; tapegrad differentiates "
            f"float32, float64, complex64 and complex128: {cast_of(dtype) or 'convert by astype'}, "
            "or detach() the inputs"
        )


KEPT = 4096  # avals that are never forgotten: Python has one object for each small integer
MOST = 16_384  # from so many on, the table is searched for those that nobody uses

Shape = tuple[int, ...]
Kind = tuple[Shape, np.dtype, str]  # shape, dtype and device


class AvalTable:
    """All avals of the process, by number.

    Attributes
    ----------
    ids
        The numbers: by shape and dtype, and for arrays on a device by their device, too.
    large
        The avals of the host for which there is a pool of memory.
    """

    def __init__(self) -> None:
        self.ids: dict[Any, int] = {}
        self.large: set[int] = set()
        self.shapes: list[Shape] = [()] * 64
        self.dtypes: list[np.dtype] = [FLOAT64] * 64
        self.devices: list[str] = [HOST] * 64
        self._next = [0, 1]  # the next even and odd numbers
        self._free: tuple[list[int], list[int]] = ([], [])  # even and odd ones that were forgotten
        self._most = MOST
        self.are_read: Callable[[], bool] = lambda: False  # whether compiled code reads the table
        self._kept: list[np.ndarray] = []
        self._set_words(np.zeros((64, AVAL_WORDS), np.int64))
        self._lock = process_lock()
        self.on_device = False  # whether any is of an array on a device
        self.at_complex: Callable[[], None] = lambda: None  # called for every new complex aval

    def _set_words(self, words: np.ndarray) -> None:
        # a running sweep may still read the previous table
        self._kept.append(words)
        self.words = words
        self.address = address_of(words)

    def of(self, array: Array) -> int:
        """Return the aval of an array of a differentiable dtype."""
        key: Any = (array.shape, array.dtype)
        if type(array) is DeviceArray:
            key = (*key, array.device)
        found = self.ids.get(key)
        return self._intern(*key) if found is None else found

    def known(self, array: Array) -> int | None:
        """Return the aval of an array if it exists already, else None."""
        key: Any = (array.shape, array.dtype)
        return self.ids.get((*key, array.device) if type(array) is DeviceArray else key)

    def of_type(self, shape: Shape, dtype: np.dtype, device: str = HOST) -> int:
        """Return the aval of a shape and a differentiable dtype on a device."""
        key: Any = (shape, dtype) if device == HOST else (shape, dtype, device)
        found = self.ids.get(key)
        return self._intern(*key) if found is None else found

    def _intern(self, shape: Shape, dtype: np.dtype, device: str = HOST) -> int:
        part = PARTS.get(dtype, dtype)
        dims = shape if part is dtype else (*shape, 2)
        if len(dims) > MAX_DIMS:
            raise ValueError(
                f"cannot record an array of {len(shape)} dimensions: the tape holds at most "
                f"{MAX_DIMS - (len(dims) - len(shape))}; reshape it"
            )
        code = DTYPE_CODES[part]
        if part is not dtype:
            self.at_complex()
        with self._lock:
            key: Any = (shape, dtype) if device == HOST else (shape, dtype, device)
            if key in self.ids:
                return self.ids[key]
            is_odd = part is not dtype or device != HOST
            if len(self.ids) >= self._most:
                self._forget()
            free = self._free[is_odd]
            number = free.pop() if free else self._next[is_odd]
            if number >= len(self.words):
                self._set_words(np.concatenate([self.words, np.zeros_like(self.words)]))
                self.shapes += [()] * len(self.shapes)
                self.dtypes += [FLOAT64] * len(self.dtypes)
                self.devices += [HOST] * len(self.devices)
            row = self.words[number]
            row[:] = 0
            size = int(np.prod(dims, dtype=np.int64))
            row[AVAL_DTYPE] = code
            row[AVAL_ITEM] = part.itemsize
            row[AVAL_SIZE] = size
            row[AVAL_CLASS] = max(0, (size * part.itemsize - 1).bit_length() - 6)
            row[AVAL_NDIM] = len(dims)
            row[AVAL_DIMS : AVAL_DIMS + len(dims)] = dims
            self.shapes[number] = shape
            self.dtypes[number] = dtype
            self.devices[number] = device
            self.on_device |= device != HOST
            if device == HOST and size * dtype.itemsize >= pool.LEAST:
                self.large.add(number)
            self._next[is_odd] = max(self._next[is_odd], number + 2)
            self.ids[key] = number
            return number

    def _forget(self) -> None:
        """Forget the avals that nobody uses; the lock is held."""
        if self.are_read():
            return
        for key in [*self.ids]:
            if self._is_unused(self.ids, key):
                free = self._free[self.ids[key] % 2]
                free.append(self.ids.pop(key))
                if self._is_unused(free, -1):
                    self.large.discard(free[-1])
                    self.shapes[free[-1]] = ()
                else:  # another thread has found it meanwhile
                    self.ids[key] = free.pop()
        self._most = max(MOST, 2 * len(self.ids))

    def _is_unused(self, numbers: Any, key: Any) -> bool:
        """Whether nobody but a table, and the set of large ones, holds a number that it has."""
        return numbers[key] >= KEPT and _references(numbers, key) <= _UNUSED + (
            numbers[key] in self.large
        )

    def kind(self, aval: int) -> Kind:
        """Return the shape, dtype and device of an aval."""
        return self.shapes[aval], self.dtypes[aval], self.devices[aval]

    def empty(self, aval: int) -> np.ndarray:
        """Return a new array of the host with an aval."""
        if aval in self.large:
            return pool.pooled(np.empty, self.shapes[aval], self.dtypes[aval])
        return np.empty(self.shapes[aval], self.dtypes[aval])


def _references(numbers: Any, key: Any) -> int:
    number = numbers[key]
    return sys.getrefcount(number)


_UNUSED = _references([int("1000000")], 0)  # of a number that is in a table alone

AVALS = AvalTable()
