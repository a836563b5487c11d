"""Copies of what a record saves of the user's arrays.

NumPy does not tell us of writes, so an array that the user can write to is copied where a record
saves it. Tensors on the user's memory (views of an array, `as_tensor` of it) are marked, and copied
likewise. Writes to the memory of all other tensors are counted (`tapegrad.tape.tape`).

Large arrays of data are often used again and again: records that save equal values of one array
share a copy.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.eager.nodes import copy_with_layout
from tapegrad.eager.tensor import Tensor, is_shared
from tapegrad.kernels.pool import LEAST, pooled
from tapegrad.kernels.structs import address_of

# types of operands of which NumPy makes a new array
IMMUTABLE = frozenset([bool, int, float, np.float64, np.float32, DeviceArray])
_BLOCK = 1 << 18  # bytes that are compared at once, so that they stay in the cache

# the last copy of a large array, by its address and layout, as long as a record has it
_copies: weakref.WeakValueDictionary[Any, np.ndarray] = weakref.WeakValueDictionary()


def unshared(value: Any, array: Any) -> Any:
    """Return the array of an operand as a record may save it: a copy if the user can write to it.

    Parameters
    ----------
    value
        The operand: a tensor without history, an array, or what NumPy makes an array of.
    array
        Its array.
    """
    if type(value) is np.ndarray and array.nbytes < LEAST:  # the usual case
        return array.copy()
    if isinstance(value, Tensor) and not is_shared(value):
        return array
    return copied(array)


def exact_copy(array: Any) -> Any:
    """Return a copy of an array whose elements lie in memory as those of the array."""
    if type(array) is DeviceArray:
        return array.copy()
    if array.nbytes < LEAST and array.flags.c_contiguous:  # the usual case
        return array.copy()
    return pooled(array.copy, "K") if array.flags.forc else copy_with_layout(array, array)


def copied(value: Any) -> Any:
    """Return a copy of an array, or the array itself if nobody can write to it.

    The items of lists and tuples are copied; other values are returned unchanged.
    """
    if isinstance(value, (list, tuple)):
        items, kind = map(copied, value), type(value)
        return kind(*items) if hasattr(value, "_fields") else kind(items)
    if not isinstance(value, np.ndarray):
        return value
    array = np.asarray(value)
    if array.nbytes < LEAST:
        return array.copy()
    if _is_constant(array):
        return array
    key = address_of(array), array.shape, array.strides, array.dtype
    found = _copies.get(key)
    if found is None or not _are_equal(found, array):
        found = _copies[key] = pooled(array.copy, "K")
    return found


def copied_matrix(matrix: Any) -> Any:
    """Return a copy of a sparse matrix of SciPy; large arrays are shared as those of `copied`."""
    arrays = {name: value for name, value in vars(matrix).items() if type(value) is np.ndarray}
    if "indptr" not in arrays:  # a format for making matrices
        return matrix.copy()
    found = copy.copy(matrix)
    for name, array in arrays.items():
        setattr(found, name, copied(array))
    return found


def _is_constant(array: np.ndarray) -> bool:
    """Whether an array is read-only, and so is all that it is a view of."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    if owner is None:
        return True
    try:
        return memoryview(owner).readonly
    except TypeError:
        return False


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays of one shape and dtype have the same bits."""
    if one.dtype.kind == "c":
        return _are_equal(one.real, other.real) and _are_equal(one.imag, other.imag)
    bits = np.dtype(f"i{one.dtype.itemsize}")
    one, other = one.view(bits), other.view(bits)
    rows = max(1, _BLOCK * len(one) // one.nbytes)
    return all((one[k : k + rows] == other[k : k + rows]).all() for k in range(0, len(one), rows))
