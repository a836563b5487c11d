"""Decompositions and systems of equations of floats by LAPACK, of matrices and of stacks of them.

numba would compile its ``np.linalg.solve`` for each layout, which takes two seconds, and a stack
would be a loop of calls that allocate. Here one function each does it for all programs
(`tapegrad.transform.lapack_code`). They find the functions of SciPy's LAPACK in a table. Matrices
of few rows are decomposed in loops, in a fraction of the time of a call of LAPACK; without SciPy,
all of them are.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import contextlib
import ctypes

import llvmlite.binding as llvm
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from tapegrad.transform.requests import WORD, call, matrix_words, share

# A request: how many matrices there are, what is asked for, and up to five matrices of a stack
COUNT, KIND, OUT, X, Y, Z, W = 0, 1, 2, 8, 14, 20, 26

# what is asked for: any of these
TURNED = 1  # the transpose of the matrix
UPPER = 2  # the upper triangle, not the lower one
UNIT = 4  # a triangle whose diagonal is 1

NOT_CALLED, DONE, SINGULAR, NOT_DEFINITE, NOT_CONVERGED, WITHOUT_SCIPY, WITHOUT_MEMORY = range(7)
NO_SINGULAR_VALUES = 7
_ERRORS = {
    NOT_CALLED: (RuntimeError, "a matrix was not decomposed, for the reason that was printed"),
    SINGULAR: (np.linalg.LinAlgError, "Matrix is singular to machine precision."),
    NOT_DEFINITE: (np.linalg.LinAlgError, "Matrix is not positive definite."),
    NOT_CONVERGED: (np.linalg.LinAlgError, "Eigenvalues did not converge"),
    NO_SINGULAR_VALUES: (np.linalg.LinAlgError, "SVD did not converge"),
    WITHOUT_SCIPY: (
        ImportError,
        "eigh, svd, qr, pinv and lstsq in compiled code need SciPy: pip install scipy",
    ),
    WITHOUT_MEMORY: (MemoryError, "no memory is left for what LAPACK works with"),
}

# the functions of SciPy's LAPACK and BLAS
NAMES = {
    **dict.fromkeys(("dgetrf", "dgetrs", "dpotrf", "dsyevd"), "cython_lapack"),
    **dict.fromkeys(("dgesdd", "dgeqrf", "dorgqr", "zheevd"), "cython_lapack"),
    **dict.fromkeys(("dtrsm", "dtrsv"), "cython_blas"),
}
SYMBOL = "tapegrad_lapack"
table = (ctypes.c_int64 * len(NAMES))()
llvm.add_symbol(SYMBOL, ctypes.addressof(table))


def _find() -> None:
    """Fill the table; without SciPy, its entries stay 0."""
    for k, (name, module) in enumerate(NAMES.items()):
        with contextlib.suppress(ImportError):
            table[k] = get_cython_function_address(f"scipy.linalg.{module}", name)


_find()

share("lapack", ["factor", "solve", "factor_definite", "solve_triangle"], "lapack_calls")


def calling(name: str):
    """Return an intrinsic that calls a function with matrices, or with stacks of as many.

    Its first argument says what is asked for. The first of the matrices is written. It raises the
    error that the function has found.
    """

    @intrinsic
    def run(typingctx, kind, arrays):
        def codegen(context, builder, signature, args):
            count, matrices = WORD(1), []
            values = cgutils.unpack_tuple(builder, args[1], len(signature.args[1]))
            for type_, value in zip(signature.args[1], values, strict=True):
                array = context.make_array(type_)(context, builder, value)
                matrices += matrix_words(builder, array)
                if type_.ndim == 3:
                    (count, *_) = cgutils.unpack_tuple(builder, array.shape)
            found = call(builder, name, [count, args[0], *matrices])
            with builder.if_then(builder.icmp_unsigned("!=", found, WORD(DONE)), likely=False):
                for code, (error, text) in _ERRORS.items():
                    with builder.if_then(builder.icmp_unsigned("==", found, WORD(code))):
                        context.call_conv.return_user_exc(builder, error, (text,))
            return context.get_dummy_value()

        return types.none(types.int64, arrays), codegen

    return run


factor = calling("factor")  # (factors, a)
solve = calling("solve")  # (out, factors, b)
factor_definite = calling("factor_definite")  # (out, a)
solve_triangle = calling("solve_triangle")  # (out, a, b)
