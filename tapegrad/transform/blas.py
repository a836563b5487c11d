"""Products that BLAS adds to arrays: without a copy of a factor, or an array for the result.

Factors may be transposed, or parts of larger matrices: BLAS takes the distance between rows or
columns. The functions are those through which numba's ``np.dot`` calls the BLAS of SciPy.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.transform.cache.machine_code import inlined, jit

_FEW = 1000  # multiplications that loops do in less time than a call
_SIZE = 8  # bytes of a float

_INT, _CHAR, _WORD = ir.IntType(32), ir.IntType(8), ir.IntType(64)
_POINTER = _CHAR.as_pointer()


def _function_of_blas(name: str, pattern: str):
    """Return an intrinsic that calls a function of BLAS for float64.

    Parameters
    ----------
    name
        The name that numba gives it.
    pattern
        Its parameters after the kind of numbers: ``t`` (whether a factor is transposed), ``i`` (an
        integer), ``p`` (an address), ``1`` (the factors of the product and of what it is added to).
    """
    kinds = {"t": _CHAR, "i": _WORD, "p": _POINTER, "1": _POINTER}
    taken = [letter for letter in pattern if letter != "1"]

    @intrinsic
    def call(typingctx, given):
        def codegen(context, builder, signature, args):
            values = iter(cgutils.unpack_tuple(builder, args[0], len(taken)))
            one = cgutils.alloca_once_value(builder, ir.Constant(ir.DoubleType(), 1.0))
            found = [ir.Constant(_CHAR, ord("d"))]
            for letter in pattern:
                if letter == "1":
                    found.append(builder.bitcast(one, _POINTER))
                elif letter == "p":
                    found.append(builder.inttoptr(next(values), _POINTER))
                elif letter == "t":
                    letters = (ir.Constant(_CHAR, ord(text)) for text in "tn")
                    is_turned = builder.trunc(next(values), ir.IntType(1))
                    found.append(builder.select(is_turned, *letters))
                else:
                    found.append(next(values))
            kind = ir.FunctionType(_INT, [_CHAR, *(kinds[letter] for letter in pattern)])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.sext(builder.call(function, found), _WORD)

        return types.int64(types.UniTuple(types.int64, len(taken))), codegen

    return call


_gemm = _function_of_blas("numba_xxgemm", "ttiii1pipi1pi")
_gemv = _function_of_blas("numba_xxgemv", "tii1pip1p")


@intrinsic
def _place(typingctx, x):
    """Return the address of an array, its extents, and the distances in memory along its axes."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.ptrtoint(array.data, _WORD)
        extents, strides = (cgutils.unpack_tuple(builder, t) for t in (array.shape, array.strides))
        return context.make_tuple(builder, signature.return_type, [address, *extents, *strides])

    return types.UniTuple(types.int64, 1 + 2 * x.ndim)(x), codegen


@inlined
def _rows_step(rows, columns, down, right):
    """Return how many floats there are from row to row, 0 if rows are not in one piece."""
    if right != _SIZE and columns > 1:
        return 0
    if rows == 1:
        return columns
    return down // _SIZE if down % _SIZE == 0 and down // _SIZE >= columns else 0


@jit
def _as_factor(rows, columns, down, right):
    """Return whether a matrix is transposed in memory, and the step of BLAS: 0 if it has none."""
    step = _rows_step(rows, columns, down, right)
    if step:
        return 0, step
    return 1, _rows_step(columns, rows, right, down)


@jit
def _added(out, x, y):
    """Add the product of two matrices; return whether that was possible."""
    to, rows, columns, out_down, out_right = out
    left, _, terms, left_down, left_right = x
    right, _, _, right_down, right_right = y
    out_step = _rows_step(rows, columns, out_down, out_right)
    left_turned, left_step = _as_factor(rows, terms, left_down, left_right)
    right_turned, right_step = _as_factor(terms, columns, right_down, right_right)
    if out_step == 0 or left_step == 0 or right_step == 0:
        return False
    # BLAS counts along columns first: what it sees are the transposes, and their product
    given = (right_turned, left_turned, columns, rows, terms, right, right_step, left, left_step)
    return _gemm((*given, to, out_step)) == 0


@jit
def _added_to_vector(out, x, y):
    """Add the product of a matrix and a vector in memory; return whether that was possible."""
    to, _, out_step = out
    vector, _, y_step = y
    matrix, rows, columns, down, right = x
    is_turned, step = _as_factor(rows, columns, down, right)
    if step == 0 or out_step != _SIZE or y_step != _SIZE:
        return False
    if is_turned:
        return _gemv((np.int64(0), rows, columns, matrix, step, vector, to)) == 0
    return _gemv((np.int64(1), columns, rows, matrix, step, vector, to)) == 0


@inlined
def add_product(out, x, y):
    """Add the product of two matrices of floats to a matrix."""
    rows, columns = out.shape
    if rows * columns * y.shape[0] > _FEW and _added(_place(out), _place(x), _place(y)):
        return
    for i in range(rows):
        for k in range(y.shape[0]):
            for j in range(columns):
                out[i, j] += x[i, k] * y[k, j]


@inlined
def add_matrix_vector(out, x, y):
    """Add the product of a matrix and a vector of floats to a vector."""
    if x.size > _FEW and _added_to_vector(_place(out), _place(x), _place(y)):
        return
    for i in range(out.size):
        total = out[i]
        for k in range(y.size):
            total += x[i, k] * y[k]
        out[i] = total


@inlined
def add_products_nt(out, x, y):
    """Add the products with the transposes of the second matrices."""
    for k in range(out.shape[0]):
        add_product(out[k], x[k], y[k].T)


@inlined
def add_products_tn(out, x, y):
    """Add the products of the transposes of the first matrices."""
    for k in range(out.shape[0]):
        add_product(out[k], x[k].T, y[k])
