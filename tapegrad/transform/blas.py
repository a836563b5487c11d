"""Products of floats by BLAS: new arrays, or added to others without an array in between.

Factors may be transposed, or parts of larger matrices. numba would compile its ``np.dot`` for each
layout, which takes up to half a second, and LLVM would repeat the code in each caller. Here one
function computes all products of all programs (`tapegrad.transform.blas_code`). It sees a request:
addresses, extents, and distances in memory. Machine code, also that on disk, finds it by a symbol.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.kernels import native
from tapegrad.kernels.sources import sources
from tapegrad.transform.cache.machine_code import inlined
from tapegrad.transform.tape_memory.large_arrays import zeros

FEW = 128  # multiplications that loops do in less time than a call of BLAS

# A request: how many products there are, whether loops compute short ones, and three matrices. Each
# of these is an address, the distance to the next one of a stack, two extents, and the distances
# along the axes; distances are in bytes. Vectors are matrices of one column.
COUNT, IN_LOOPS, OUT, X, Y = 0, 1, 2, 8, 14

_PREFIX = "tapegrad_"  # of symbols
_WORD = ir.IntType(64)
_ONE = _WORD(1)


@functools.cache
def _sources() -> bytes:
    places = "transform/blas.py", "transform/blas_code.py", "kernels/intrinsics.py"
    return b"".join(sources(*places))


def _start(name: str) -> int:
    """Compile or load a function; return its address."""
    module = "tapegrad.transform.blas_code"
    address = native.compiled(module, name, "int64", 1, _sources())
    _functions[name].value = address
    return address


def starting(name: str, start: Callable[[], int]) -> ctypes.c_int64:
    """Return where machine code finds a function: one that starts it until it is called."""
    place = ctypes.c_int64(native.on_first_call(start, 1))
    llvm.add_symbol(_PREFIX + name, ctypes.addressof(place))
    return place


_functions = {
    name: starting(name, functools.partial(_start, name))
    for name in ("add_products", "add_products_of_copies")
}


def _adder(in_loops: bool = True, turned: str = ""):
    """Return an intrinsic that adds the product of its second and third argument to the first one.

    These are matrices, stacks of matrices, or a vector, a matrix, and a vector.

    Parameters
    ----------
    in_loops
        Whether loops compute short products. Otherwise BLAS does, as it does for ``np.dot``: the
        result is the same to the last bit, but for matrices of one row or column.
    turned
        The factors of which it takes the transposes.
    """

    @intrinsic
    def add(typingctx, out, x, y):
        def codegen(context, builder, signature, args):
            count, matrices = _ONE, []
            for name, kind, value in zip("oxy", signature.args, args, strict=True):
                array = context.make_array(kind)(context, builder, value)
                matrices += matrix_words(builder, array, name in turned)
                if kind.ndim == 3:
                    (count, *_) = cgutils.unpack_tuple(builder, array.shape)
            words = [count, _WORD(int(in_loops)), *matrices]
            request = cgutils.alloca_once(builder, ir.ArrayType(_WORD, len(words)))
            for place, word in enumerate(words):
                builder.store(word, cgutils.gep_inbounds(builder, request, 0, place))
            done = call(builder, "add_products", builder.ptrtoint(request, _WORD))
            with builder.if_then(builder.icmp_unsigned("!=", done, _ONE), likely=False):
                error = "a product of matrices was not computed, for the reason that was printed"
                context.call_conv.return_user_exc(builder, RuntimeError, (error,))
            return context.get_dummy_value()

        return types.none(out, x, y), codegen

    return add


def matrix_words(builder: Any, array: Any, is_turned: bool) -> list[Any]:
    """Return the words of a request for an array: a matrix, a vector, or a stack of matrices."""
    shape, strides = (cgutils.unpack_tuple(builder, t) for t in (array.shape, array.strides))
    step = strides[0] if len(shape) == 3 else _WORD(0)
    extents, distances = shape[-2:], strides[-2:]
    if len(shape) == 1:
        extents, distances = [*shape, _ONE], [*strides, _WORD(8)]
    if is_turned:
        extents, distances = extents[::-1], distances[::-1]
    return [builder.ptrtoint(array.data, _WORD), step, *extents, *distances]


def call(builder: Any, name: str, request: Any) -> Any:
    """Write a call of a function; it returns 1, but 0 if the function cannot be loaded."""
    kind = ir.FunctionType(_WORD, [_WORD]).as_pointer()
    place = builder.module.globals.get(_PREFIX + name)
    if place is None:
        place = cgutils.add_global_variable(builder.module, kind, _PREFIX + name)
        place.linkage = "external"
    return builder.call(builder.load(place), [request])


add_product = _adder()
add_product_nt = _adder(turned="y")  # with the transposes of the second factors
add_product_tn = _adder(turned="x")
_put_product, _put_product_tn = _adder(in_loops=False), _adder(in_loops=False, turned="x")


@inlined
def dot_22(x, y):
    """Return the product of two matrices of floats."""
    if x.shape[1] != y.shape[0]:
        raise ValueError("incompatible array sizes for np.dot(a, b) (matrix * matrix)")
    out = zeros((x.shape[0], y.shape[1]))
    _put_product(out, x, y)
    return out


@inlined
def dot_21(x, y):
    """Return the product of a matrix and a vector of floats."""
    if x.shape[1] != y.size:
        raise ValueError("incompatible array sizes for np.dot(a, b) (matrix * vector)")
    out = zeros((x.shape[0],))
    _put_product(out, x, y)
    return out


@inlined
def dot_12(x, y):
    """Return the product of a vector and a matrix of floats."""
    if x.size != y.shape[0]:
        raise ValueError("incompatible array sizes for np.dot(a, b) (vector * matrix)")
    out = zeros((y.shape[1],))
    _put_product_tn(out, y, x)
    return out
