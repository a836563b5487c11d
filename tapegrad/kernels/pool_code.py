"""The functions of the pool of memory (`tapegrad.kernels.pool`), as compiled code.

Any thread may call them: the table is changed by atomic instructions alone. They have the
parameters that NumPy gives to functions of a handler; the context is the table.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes
import sys

from numba import njit

from tapegrad.kernels.intrinsics import (
    add_to,
    c_function,
    exchange,
    i8_pointer,
    load,
    put_if_zero,
)
from tapegrad.kernels.llvm.pipeline import Pipeline
from tapegrad.kernels.native import NO_WRAPPERS
from tapegrad.kernels.pool import LEAST, LIMIT, NEXT, PLACES, WAITING

jit = njit(**NO_WRAPPERS, pipeline_class=Pipeline)

_PAGE = 4096
_LARGE = 1 << 22  # bytes from which large pages are worth it
_LARGE_PAGES = 14  # MADV_HUGEPAGE
_HAS_LARGE_PAGES = sys.platform == "linux"

_malloc = c_function("malloc", "address", "size")
_calloc = c_function("calloc", "address", "size", "size")
_realloc = c_function("realloc", "address", "address", "size")
_free = c_function("free", "nothing", "address")
_memset = c_function("memset", "address", "address", "int", "size")
_madvise = c_function("madvise", "int", "address", "size", "int")
if hasattr(ctypes.CDLL(None), "malloc_usable_size"):
    _size_of = c_function("malloc_usable_size", "size", "address")
else:  # a C library of another kind, for which nothing waits

    @jit
    def _size_of(given):
        """Return 0 for a size that is not known."""
        return 0


@jit
def _take(table, nbytes):
    """Return memory that waits and has this size or slightly more, 0 if there is none."""
    for place in range(PLACES if nbytes >= LEAST else 0):
        if load(table, place) != 0:
            block = exchange(table, place, 0)
            if block != 0:
                size = _size_of((block,))
                fits = nbytes <= size <= nbytes + (nbytes >> 2)
                if fits or not put_if_zero(table, place, block):  # another one waits there now
                    add_to(table, WAITING, -size)
                    if fits:
                        return block
                    _free((block,))
    return 0


@jit
def _drop(table, place):
    """Free the memory that waits in a place, if any."""
    block = exchange(table, place, 0)
    if block != 0:
        add_to(table, WAITING, -_size_of((block,)))
        _free((block,))


@jit
def _fresh(block, nbytes):
    """Ask for large pages for new memory if it is large, as NumPy does."""
    if _HAS_LARGE_PAGES and nbytes >= _LARGE and block != 0:
        begin = (block + _PAGE - 1) & -_PAGE
        _madvise((begin, block + nbytes - begin, _LARGE_PAGES))
    return block


@jit
def allocate(address, nbytes):
    """Return memory, 0 if there is none."""
    block = _take(i8_pointer(address), nbytes)
    return block if block != 0 else _fresh(_malloc((nbytes,)), nbytes)


@jit
def allocate_zeroed(address, count, itemsize):
    """Return zeroed memory, 0 if there is none."""
    nbytes = count * itemsize
    block = _take(i8_pointer(address), nbytes)
    if block != 0:
        return _memset((block, 0, nbytes))
    return _fresh(_calloc((count, itemsize)), nbytes)


@jit
def resize(address, block, nbytes):
    """Return memory of another size with the same contents, 0 if there is none."""
    return _realloc((block, nbytes))


@jit
def release(address, block, nbytes):
    """Let memory wait, instead of what has waited for long if there is too much; or free it."""
    if block == 0:
        return 0
    table, size = i8_pointer(address), _size_of((block,))
    limit = load(table, LIMIT)
    if size < LEAST or size > limit:
        return _free((block,))
    waiting = add_to(table, WAITING, size) + size
    for _ in range(PLACES if waiting > limit else 0):
        _drop(table, add_to(table, NEXT, 1) % PLACES)
        if load(table, WAITING) <= limit:
            break
    for place in range(PLACES):
        if put_if_zero(table, place, block):
            return 0
    place = add_to(table, NEXT, 1) % PLACES
    before = exchange(table, place, block)
    if before != 0:
        add_to(table, WAITING, -_size_of((before,)))
        _free((before,))
    return 0


@jit
def trim(address):
    """Free what exceeds the limit."""
    table = i8_pointer(address)
    for place in range(PLACES):
        if load(table, WAITING) > load(table, LIMIT):
            _drop(table, place)
    return 0


@jit
def release_of_array(elements, size, info):
    """Release memory whose address stands before the elements of an array, and that of the table.

    numba calls it when it deletes an array of generated code.
    """
    words = i8_pointer(elements)
    return release(load(words, -1), load(words, -2), size)
