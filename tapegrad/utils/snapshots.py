"""Stored states of a loop, in memory and, beyond a number of bytes, on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import numpy as np


class Spilled:
    """The arrays of one state in a temporary file, which is deleted with this object."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._kinds = [(a.shape, a.dtype) for a in arrays]
        # the file has no name in its folder, or is deleted when it is closed: nothing is left
        # behind even if the process is killed
        self._file = tempfile.TemporaryFile(prefix="tapegrad-")  # noqa: SIM115
        for array in arrays:
            self._file.write(np.ascontiguousarray(array).data)
        self._file.flush()

    def load(self) -> list[np.ndarray]:
        """Return the arrays, as maps of the file."""
        found, offset = [], 0
        for shape, dtype in self._kinds:
            size = int(np.prod(shape, dtype=np.int64))
            if size:
                whole = np.memmap(self._file, dtype, "r", offset, (size,))
                found.append(np.asarray(whole).reshape(shape))
            else:
                found.append(np.empty(shape, dtype))
            offset += size * dtype.itemsize
        return found

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


class Store:
    """The number of bytes that stored states may take in memory, and how many they take.

    Parameters
    ----------
    budget
        The number of bytes; None if there is no limit.
    """

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self.used = 0

    def put(self, arrays: list[np.ndarray]) -> list[np.ndarray] | Spilled:
        """Return the arrays, or their copies on disk."""
        size = sum(a.nbytes for a in arrays)
        if self.budget is not None and self.used + size > self.budget:
            return Spilled(arrays)
        self.used += size
        return arrays

    def drop(self, stored: list[np.ndarray] | Spilled) -> None:
        """Note that a stored state is no longer needed."""
        if not isinstance(stored, Spilled):
            self.used -= sum(a.nbytes for a in stored)


def loaded(stored: list[np.ndarray] | Spilled) -> list[np.ndarray]:
    """Return the arrays of a stored state."""
    return stored.load() if isinstance(stored, Spilled) else stored
