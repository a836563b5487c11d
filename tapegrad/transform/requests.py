"""Functions that all programs share: compiled once, found by symbols, called with requests.

numba would compile its functions of arrays for each layout, which takes up to two seconds, and LLVM
would repeat the code in each caller. Here one function does something for all programs. It sees a
request: an array of integers, such as addresses, extents, and distances in memory. It is compiled,
or loaded from disk, when it is called first. Machine code, also that on disk, finds it by a symbol.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

from tapegrad.kernels import native
from tapegrad.kernels.sources import sources

WORD = ir.IntType(64)
_PREFIX = "tapegrad_"  # of symbols
_places: dict[str, ctypes.c_int64] = {}  # where machine code finds the addresses of functions


def share(module: str, names: Sequence[str], *others: str) -> None:
    """Let machine code call functions by their names.

    Parameters
    ----------
    module
        The module that calls them. They are in that of its name with ``_code``, which is imported
        only if they are to be compiled.
    names
        The names of the functions: of one integer, the address of a request.
    *others
        Other modules that they are made of.
    """
    for name in names:
        start = functools.partial(_start, module, others, name)
        place = _places[name] = ctypes.c_int64(native.on_first_call(start, 1))
        llvm.add_symbol(_PREFIX + name, ctypes.addressof(place))


def _start(module: str, others: tuple[str, ...], name: str) -> int:
    """Compile or load a function; return its address."""
    texts = _sources(module, *others)
    address = native.compiled(f"tapegrad.transform.{module}_code", name, "int64", 1, texts)
    _places[name].value = address
    return address


@functools.cache
def _sources(module: str, *others: str) -> bytes:
    """Return the texts of all that the functions of a module are made of."""
    names = f"{module}_code", module, *others, "request_code", "requests"
    own = (f"transform/{name}.py" for name in names)
    return b"".join(sources(*own, "kernels/intrinsics.py"))


def call(builder: Any, name: str, words: Sequence[Any]) -> Any:
    """Write a call of a function with a request; it returns 0 if the function cannot be loaded."""
    request = cgutils.alloca_once(builder, ir.ArrayType(WORD, len(words)))
    for place, word in enumerate(words):
        builder.store(word, cgutils.gep_inbounds(builder, request, 0, place))
    return call_with(builder, name, builder.ptrtoint(request, WORD))


def call_with(builder: Any, name: str, request: Any) -> Any:
    """Write a call of a function with the address of a request."""
    kind = ir.FunctionType(WORD, [WORD]).as_pointer()
    return builder.call(builder.load(external(builder, _PREFIX + name, kind)), [request])


def external(builder: Any, symbol: str, kind: Any) -> Any:
    """Return the variable of a symbol in the module that is written."""
    found = builder.module.globals.get(symbol)
    if found is None:
        found = cgutils.add_global_variable(builder.module, kind, symbol)
        found.linkage = "external"
    return found


def matrix_words(builder: Any, array: Any, is_turned: bool = False) -> list[Any]:
    """Return the words of a request for a matrix, a vector, or a stack of matrices.

    They are the address, the distance to the next matrix of a stack, two extents, and the distances
    along the axes; distances are in bytes. Vectors are matrices of one column.
    """
    shape, strides = (cgutils.unpack_tuple(builder, t) for t in (array.shape, array.strides))
    step = strides[0] if len(shape) == 3 else WORD(0)
    extents, distances = shape[-2:], strides[-2:]
    if len(shape) == 1:
        extents, distances = [*shape, WORD(1)], [*strides, WORD(8)]
    if is_turned:
        extents, distances = extents[::-1], distances[::-1]
    return [builder.ptrtoint(array.data, WORD), step, *extents, *distances]
