"""What compiled code that reads requests consists of: memory, floats, and matrices by address."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from numba import njit

from tapegrad.kernels.intrinsics import c_function, f8_pointer, i8_pointer, load, store
from tapegrad.kernels.llvm.pipeline import Pipeline
from tapegrad.kernels.native import NO_WRAPPERS

jit = njit(**NO_WRAPPERS, error_model="numpy", forceinline=False, pipeline_class=Pipeline)
inlined = njit(**NO_WRAPPERS, error_model="numpy", forceinline=True, pipeline_class=Pipeline)

SIZE = 8  # bytes of a float, and of a word of a request

malloc = c_function("malloc", "address", "size")
free = c_function("free", "nothing", "address")


@inlined
def read(address, k):
    """Return element k of the floats that begin at an address."""
    return load(f8_pointer(address), k)


@inlined
def write(address, k, value):
    """Write element k of the floats that begin at an address."""
    store(f8_pointer(address), k, value)


@inlined
def matrix(request, part, k):
    """Return a matrix of a stack: its address, its extents, and the distances along its axes.

    Parameters
    ----------
    request : int
        The address of the request.
    part : int
        The word at which the stack begins (`tapegrad.transform.requests.matrix_words`).
    k : int
        The number of the matrix.
    """
    words = i8_pointer(request + SIZE * part)
    address = load(words, 0) + k * load(words, 1)
    return address, load(words, 2), load(words, 3), load(words, 4), load(words, 5)
