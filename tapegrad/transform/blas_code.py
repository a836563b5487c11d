"""The functions that add products of floats (`tapegrad.transform.blas`), as compiled code.

BLAS takes matrices whose rows, or columns, are contiguous, at any distance from each other. The
functions are those through which numba's ``np.dot`` calls the BLAS of SciPy. Of other matrices it
takes copies. Loops do what is short, and what BLAS cannot.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import linalg

from tapegrad.kernels.intrinsics import i8_pointer, load
from tapegrad.transform.blas import COUNT, FEW, IN_LOOPS, OUT, X, Y
from tapegrad.transform.request_code import SIZE, free, inlined, jit, malloc, matrix, read, write
from tapegrad.transform.requests import call_with

_MOST = (1 << 31) - 1  # the largest integer that BLAS takes

_INT, _CHAR, _WORD = ir.IntType(32), ir.IntType(8), ir.IntType(64)
_POINTER = _CHAR.as_pointer()


def _function_of_blas(name: str, pattern: str):
    """Return an intrinsic that calls a function of BLAS for float64; its result is 0.

    Without SciPy it is -1, and nothing is called.

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
        has_blas = _has_blas()

        def codegen(context, builder, signature, args):
            if not has_blas:
                return ir.Constant(_WORD, -1)
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


def _has_blas() -> bool:
    """Whether numba finds the BLAS of SciPy."""
    try:
        linalg.ensure_blas()
    except ImportError:  # SciPy is not installed
        return False
    return True


_gemm = _function_of_blas("numba_xxgemm", "ttiii1pipi1pi")
_gemv = _function_of_blas("numba_xxgemv", "tii1pip1p")


@intrinsic
def _of_copies(typingctx, request):
    """Call `add_products_of_copies`, which is compiled only then."""

    def codegen(context, builder, signature, args):
        return call_with(builder, "add_products_of_copies", args[0])

    return types.int64(types.int64), codegen


@inlined
def _rows_step(rows, columns, down, right):
    """Return how many floats there are from row to row; 0 if BLAS does not take such a matrix."""
    step = columns if rows == 1 else down // SIZE
    is_in_pieces = right != SIZE and columns > 1
    if is_in_pieces or step < columns or rows > _MOST or step > _MOST:
        return 0
    return step if rows == 1 or down % SIZE == 0 else 0


@inlined
def _as_factor(rows, columns, down, right):
    """Return whether a matrix is transposed in memory, and the step of BLAS: 0 if it has none."""
    step = _rows_step(rows, columns, down, right)
    if step:
        return 0, step
    return 1, _rows_step(columns, rows, right, down)


# -- products --------------------------------------------------------------------------------------


@inlined
def _vector_by_blas(out, x, y):
    """Add the product of a matrix and one column; return whether that was possible."""
    to, rows, _, out_step, _ = out
    matrix, _, terms, down, right = x
    vector, _, _, step_of_y, _ = y
    is_turned, step = _as_factor(rows, terms, down, right)
    if step == 0 or out_step != SIZE or step_of_y != SIZE:
        return False
    if is_turned:
        return _gemv((0, rows, terms, matrix, step, vector, to)) == 0
    return _gemv((1, terms, rows, matrix, step, vector, to)) == 0


@inlined
def _by_blas(out, x, y):
    """Add the product of two matrices; return whether that was possible."""
    to, rows, columns, out_down, out_right = out
    left, _, terms, left_down, left_right = x
    right, _, _, right_down, right_right = y
    if columns == 1 and _vector_by_blas(out, x, y):
        return True
    out_turned, out_step = _as_factor(rows, columns, out_down, out_right)
    left_turned, left_step = _as_factor(rows, terms, left_down, left_right)
    right_turned, right_step = _as_factor(terms, columns, right_down, right_right)
    if out_step == 0 or left_step == 0 or right_step == 0:
        return False
    # BLAS counts along columns first: of what lies in rows it sees the transpose
    if out_turned:
        turned = 1 - left_turned, 1 - right_turned
        factors = rows, columns, terms, left, left_step, right, right_step
    else:
        turned = right_turned, left_turned
        factors = columns, rows, terms, right, right_step, left, left_step
    return _gemm(turned + factors + (to, out_step)) == 0


@inlined
def _column_in_loops(out, x, y):
    """Add the product of a matrix and one column."""
    to, rows, _, out_down, _ = out
    left, _, terms, left_down, left_right = x
    right, _, _, right_down, _ = y
    for i in range(rows):
        total = read(to + i * out_down, 0)
        row = left + i * left_down
        for k in range(terms):
            total += read(row + k * left_right, 0) * read(right + k * right_down, 0)
        write(to + i * out_down, 0, total)


@inlined
def _in_loops(out, x, y):
    """Add the product of two matrices."""
    to, rows, columns, out_down, out_right = out
    left, _, terms, left_down, left_right = x
    right, _, _, right_down, right_right = y
    are_rows = out_right == SIZE and right_right == SIZE
    for i in range(rows):
        row = to + i * out_down
        for k in range(terms):
            factor = read(left + i * left_down + k * left_right, 0)
            other = right + k * right_down
            if are_rows:  # LLVM makes vectors of it
                for j in range(columns):
                    write(row, j, read(row, j) + factor * read(other, j))
            else:
                for j in range(columns):
                    place, term = row + j * out_right, read(other + j * right_right, 0)
                    write(place, 0, read(place, 0) + factor * term)


@inlined
def _matrices(request, k):
    """Return the matrices of a product of a request."""
    return matrix(request, OUT, k), matrix(request, X, k), matrix(request, Y, k)


@jit
def add_products(request):
    """Add products of matrices, as a request says (`tapegrad.transform.blas`); return 1."""
    words = i8_pointer(request)
    for k in range(load(words, COUNT)):
        out, x, y = _matrices(request, k)
        are_few = out[1] * out[2] * x[2] <= FEW
        in_loops = are_few and load(words, IN_LOOPS) != 0
        if not in_loops and not _by_blas(out, x, y):
            if not are_few:  # and so for all matrices of a stack
                return _of_copies(request)
            in_loops = True
        if in_loops and out[2] == 1:
            _column_in_loops(out, x, y)
        elif in_loops:
            _in_loops(out, x, y)
    return 1


# -- copies ----------------------------------------------------------------------------------------


@jit
def _copy(to, x):
    """Copy a matrix to memory, row by row; return what the copy is as a matrix."""
    address, rows, columns, down, right = x
    for i in range(rows):
        for j in range(columns):
            write(to, i * columns + j, read(address + i * down + j * right, 0))
    # of one type, as other matrices are
    return to, rows, columns, columns * SIZE, np.int64(SIZE)


@jit
def _copy_back(x, of):
    """Copy to a matrix what `_copy` made of it."""
    address, rows, columns, down, right = x
    for i in range(rows):
        for j in range(columns):
            write(address + i * down + j * right, 0, read(of, i * columns + j))


@jit
def add_products_of_copies(request):
    """Add products of matrices that BLAS does not take, as `add_products` does."""
    for k in range(load(i8_pointer(request), COUNT)):
        out, x, y = _matrices(request, k)
        numbers = out[1] * out[2] + x[1] * x[2] + y[1] * y[2]
        memory = malloc((numbers * SIZE,))
        left = memory + out[1] * out[2] * SIZE
        right = left + x[1] * x[2] * SIZE
        if memory and _by_blas(_copy(memory, out), _copy(left, x), _copy(right, y)):
            _copy_back(out, memory)
        else:
            _in_loops(out, x, y)
        if memory:
            free((memory,))
    return 1
