"""Memory of large arrays that is used again.

The C library gives the memory of a large array back to the operating system when the array is
deleted, and asks for new pages for the next one: to clear and map them takes longer than many
computations on their elements. Large arrays take their memory from here instead: the results of ops
on tensors (through a handler of NumPy, NEP 49) and arrays of generated code. When one is deleted,
in any thread, its memory waits in a table for the next array of about this size. Arrays that users
make are not affected.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tapegrad.kernels import native
from tapegrad.kernels.limits import checked_limit
from tapegrad.kernels.sources import sources
from tapegrad.kernels.structs import address_of

LEAST = 1 << 17  # bytes of a large array: for these, the C library asks for pages
PLACES = 128
_DEFAULT_LIMIT = 1 << 29

# The addresses of memory that waits; then how many bytes that are, the most that may be, and the
# place whose memory is dropped next if there is too much.
WAITING, LIMIT, NEXT = range(PLACES, PLACES + 3)
table = np.zeros(PLACES + 3, np.int64)
table[LIMIT] = _DEFAULT_LIMIT


class _Handler(ctypes.Structure):
    """``PyDataMem_Handler`` of NumPy, version 1."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        *((name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")),
    )


_SET_HANDLER = 304  # the place of PyDataMem_SetHandler in NumPy's table of functions


# the numbers of the arguments of compiled functions of the pool
_ARGUMENTS = {
    "allocate": 2,
    "allocate_zeroed": 3,
    "resize": 3,
    "release": 3,
    "trim": 1,
    "release_of_array": 3,
}


@functools.cache
def address_of_function(name: str) -> int:
    """Return the address of a function, which is compiled on first use."""
    # arrays may be deleted when the process ends, after the modules of the package
    native.keep_forever()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
    module = "tapegrad.kernels.pool_code"
    return native.compiled(module, name, "int64", _ARGUMENTS[name], _sources())


@functools.cache
def _sources() -> bytes:
    return b"".join(sources("kernels/intrinsics.py", "kernels/pool.py", "kernels/pool_code.py"))


class _Setter(NamedTuple):
    set_handler: Callable[[Any], Any]  # returns the one before
    capsule: Any


@functools.cache
def _setter() -> _Setter:
    """Return how NumPy is told where to take the memory of arrays from."""
    used = map(address_of_function, ("allocate", "allocate_zeroed", "resize", "release"))
    handler = _Handler(b"tapegrad_pool", 1, address_of(table), *used)
    make_capsule = ctypes.pythonapi.PyCapsule_New
    make_capsule.restype = ctypes.py_object
    make_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_in.restype = ctypes.c_void_p
    pointer_in.argtypes = [ctypes.py_object, ctypes.c_char_p]
    of_numpy = pointer_in(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    address = ctypes.c_int64.from_address(of_numpy + 8 * _SET_HANDLER).value
    name = ctypes.create_string_buffer(b"mem_handler")
    capsule = make_capsule(ctypes.addressof(handler), name, None)
    for kept in (handler, name, capsule):  # for the same reason
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return _Setter(ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address), capsule)


def pooled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose arrays take their memory from the pool."""
    setter = _setter()
    before = setter.set_handler(setter.capsule)
    try:
        return function(*args, **kwargs)
    finally:
        setter.set_handler(before)


def pooled_if_large(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, in the pool if an argument is a large array, or a list that holds one."""
    for value in args:
        if type(value) is list or type(value) is tuple:
            is_large = any(type(item) is np.ndarray and item.nbytes >= LEAST for item in value)
        else:
            is_large = type(value) is np.ndarray and value.nbytes >= LEAST
        if is_large:
            return pooled(function, *args, **kwargs)
    return function(*args, **kwargs)


def set_pool_limit(limit: int | None) -> None:
    """Set how much memory of large arrays that were deleted waits for later ones.

    It holds for arrays from 128 KiB on that ops on tensors and compiled derivatives make: for
    these, fresh memory costs more than the arithmetic. What has waited for long is freed first.

    Parameters
    ----------
    limit
        Bytes for the process. 0 keeps nothing; None sets the default, 512 MiB.

    Raises
    ------
    ValueError
        If the limit is negative.
    TypeError
        If it is not an integer.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.set_pool_limit(0)  # where memory is scarce
    >>> tg.set_pool_limit(None)
    """
    table[LIMIT] = _DEFAULT_LIMIT if limit is None else checked_limit("set_pool_limit", limit)
    if table[WAITING]:
        trim = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address_of_function("trim"))
        trim(address_of(table))
