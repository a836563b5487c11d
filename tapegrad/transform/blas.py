"""Products of floats by BLAS: new arrays, or added to others without an array in between.

Factors may be transposed, or parts of larger matrices. numba would compile its ``np.dot`` for each
layout, which takes up to half a second. Here one function computes all products of all programs
(`tapegrad.transform.blas_code`).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.transform.cache.machine_code import inlined
from tapegrad.transform.requests import WORD, call, matrix_words, share
from tapegrad.transform.tape_memory.large_arrays import zeros

FEW = 128  # multiplications that loops do in less time than a call of BLAS

# A request: how many products there are, whether loops compute short ones, and three matrices
COUNT, IN_LOOPS, OUT, X, Y = 0, 1, 2, 8, 14

share("blas", ["add_products", "add_products_of_copies"])


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
            count, matrices = WORD(1), []
            for name, kind, value in zip("oxy", signature.args, args, strict=True):
                array = context.make_array(kind)(context, builder, value)
                matrices += matrix_words(builder, array, name in turned)
                if kind.ndim == 3:
                    (count, *_) = cgutils.unpack_tuple(builder, array.shape)
            done = call(builder, "add_products", [count, WORD(int(in_loops)), *matrices])
            with builder.if_then(builder.icmp_unsigned("!=", done, WORD(1)), likely=False):
                error = "a product of matrices was not computed, for the reason that was printed"
                context.call_conv.return_user_exc(builder, RuntimeError, (error,))
            return context.get_dummy_value()

        return types.none(out, x, y), codegen

    return add


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
