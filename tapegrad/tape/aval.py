"""Abstract values: the shape and dtype of an array, interned as a small integer.

Two tensors of one shape and dtype have one aval, so that comparing shapes is comparing integers.
Compiled code finds the numbers behind an aval in a table (`tapegrad.tape.layout`, AVAL_*).
"""

from __future__ import annotations

import threading

import numpy as np

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
DTYPE_CODES = {FLOAT32: DTYPE_F4, FLOAT64: DTYPE_F8}

Shape = tuple[int, ...]


class AvalTable:
    """All avals of the process, by number."""

    def __init__(self) -> None:
        self._ids: dict[tuple[Shape, np.dtype], int] = {}
        self.shapes: list[Shape] = []
        self.dtypes: list[np.dtype] = []
        self._kept: list[np.ndarray] = []
        self._set_words(np.zeros((64, AVAL_WORDS), np.int64))
        self._lock = threading.Lock()

    def _set_words(self, words: np.ndarray) -> None:
        # a running sweep may still read the table before the last growth
        self._kept.append(words)
        self.words = words
        self.address = address_of(words)

    def of(self, array: np.ndarray) -> int:
        """Return the aval of a float array."""
        key = (array.shape, array.dtype)
        found = self._ids.get(key)
        return self._intern(*key) if found is None else found

    def _intern(self, shape: Shape, dtype: np.dtype) -> int:
        if len(shape) > MAX_DIMS:
            raise ValueError(
                f"cannot record an array of {len(shape)} dimensions: the tape holds at most "
                f"{MAX_DIMS}; reshape it"
            )
        code = DTYPE_CODES[dtype]
        with self._lock:
            number = len(self.shapes)
            if number == len(self.words):
                self._set_words(np.concatenate([self.words, np.zeros_like(self.words)]))
            row = self.words[number]
            size = int(np.prod(shape, dtype=np.int64))
            row[AVAL_DTYPE] = code
            row[AVAL_ITEM] = dtype.itemsize
            row[AVAL_SIZE] = size
            row[AVAL_CLASS] = max(0, (size * dtype.itemsize - 1).bit_length() - 6)
            row[AVAL_NDIM] = len(shape)
            row[AVAL_DIMS : AVAL_DIMS + len(shape)] = shape
            self.shapes.append(shape)
            self.dtypes.append(dtype)
            return self._ids.setdefault((shape, dtype), number)

    def empty(self, aval: int) -> np.ndarray:
        """Return a new array of an aval."""
        return np.empty(self.shapes[aval], self.dtypes[aval])


AVALS = AvalTable()
