"""The functions that decompose matrices of floats (`tapegrad.transform.lapack`), as compiled code.

LAPACK takes matrices column by column; what it changes are copies anyway. The factors of a matrix
of n rows have n * n + n places: the columns of the lower triangle, whose diagonal is 1, and of the
upper one, then the rows with which each row was exchanged. They are nan if the matrix is not
finite.

Sources of the loops: G. H. Golub, C. F. Van Loan, "Matrix Computations", algorithms 3.1.1, 3.1.2,
3.4.1 and 4.2.1.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from tapegrad.kernels.intrinsics import i4_pointer, i8_pointer, load, store
from tapegrad.transform import lapack_calls
from tapegrad.transform.lapack import (
    COUNT,
    DONE,
    KIND,
    NOT_DEFINITE,
    OUT,
    SINGULAR,
    TURNED,
    UNIT,
    UPPER,
    WITHOUT_MEMORY,
    X,
    Y,
)
from tapegrad.transform.lapack_calls import (
    LOWER,
    NO,
    RIGHT,
    TRANSPOSED,
    copy_matrix,
    function_of_scipy,
    has_scipy,
)
from tapegrad.transform.request_code import SIZE, free, inlined, jit, malloc, matrix, read, write

_FEW = 10  # rows up to which loops take less time than LAPACK
_UPPER = lapack_calls.UPPER

_getrf = function_of_scipy("dgetrf", "iipip?")
_getrs = function_of_scipy("dgetrs", "ciipippi?")
_potrf = function_of_scipy("dpotrf", "cipi?")
_trsm = function_of_scipy("dtrsm", "ccccii1pipi")
_trsv = function_of_scipy("dtrsv", "cccipipi")


@inlined
def _fill(x, value):
    """Set all elements of a matrix."""
    address, rows, columns, down, right = x
    for i in range(rows):
        for j in range(columns):
            write(address + i * down + j * right, 0, value)


@inlined
def _subtract(x, row, other, factor):
    """Subtract from a row of a matrix another one, times a factor."""
    address, _, columns, down, right = x
    for j in range(columns):
        place = address + row * down + j * right
        write(place, 0, read(place, 0) - factor * read(address + other * down + j * right, 0))


@inlined
def _divide(x, row, pivot):
    """Divide a row of a matrix."""
    address, _, columns, down, right = x
    for j in range(columns):
        place = address + row * down + j * right
        write(place, 0, read(place, 0) / pivot)


@inlined
def _exchange(x, row, other):
    """Exchange two rows of a matrix."""
    address, _, columns, down, right = x
    for j in range(columns):
        one, two = address + row * down + j * right, address + other * down + j * right
        value = read(one, 0)
        write(one, 0, read(two, 0))
        write(two, 0, value)


@inlined
def _mark_undefined(out, y):
    """Write nan to the solutions for right-hand sides that are not finite."""
    address, rows, columns, down, right = y
    for j in range(columns):
        is_finite = True
        for i in range(rows):
            is_finite = is_finite and np.isfinite(read(address + i * down + j * right, 0))
        if not is_finite:
            for i in range(rows):
                write(out[0] + i * out[3] + j * out[4], 0, np.nan)


# -- factors and solutions -------------------------------------------------------------------------


@inlined
def _factor_in_loops(to, n):
    """Replace the columns of a matrix by its factors."""
    for k in range(n):
        column, row = to + k * n * SIZE, k
        for i in range(k + 1, n):
            if abs(read(column, i)) > abs(read(column, row)):
                row = i
        write(to, n * n + k, row)
        pivot = read(column, row)
        if pivot == 0.0:
            continue
        if row != k:
            _exchange((to, n, n, np.int64(SIZE), n * SIZE), k, row)
        for i in range(k + 1, n):
            write(column, i, read(column, i) / pivot)
        for j in range(k + 1, n):
            other = to + j * n * SIZE
            factor = read(other, k)
            for i in range(k + 1, n):
                write(other, i, read(other, i) - factor * read(column, i))


@inlined
def _factor_by_lapack(to, n):
    """Do the same by LAPACK; return whether there was memory for it."""
    rows = malloc((n * 4,))
    if not rows:
        return False
    _getrf((n, n, to, n, rows))
    for k in range(n):
        write(to, n * n + k, load(i4_pointer(rows), k) - 1)
    free((rows,))
    return True


@jit
def factor(request):
    """Write the factors of square matrices X to OUT."""
    for k in range(load(i8_pointer(request), COUNT)):
        to = matrix(request, OUT, k)[0]
        x = matrix(request, X, k)
        n = x[1]
        if not copy_matrix(to, np.int64(SIZE), n * SIZE, x):
            for i in range(n * n + n):
                write(to, i, np.nan)
        elif n <= _FEW or not has_scipy():
            _factor_in_loops(to, n)
        elif not _factor_by_lapack(to, n):
            return WITHOUT_MEMORY
    return DONE


@inlined
def _is_singular(factors, n):
    """Whether there is a zero on the diagonal of the upper triangle."""
    found = False
    for i in range(n):
        found = found or read(factors, i * n + i) == 0.0
    return found


@inlined
def _solve_in_loops(out, factors, n):
    """Replace right-hand sides by solutions."""
    for k in range(n):
        row = np.int64(read(factors, n * n + k))
        if row != k:
            _exchange(out, k, row)
    for k in range(n):
        for i in range(k + 1, n):
            _subtract(out, i, k, read(factors, k * n + i))
    for k in range(n - 1, -1, -1):
        _divide(out, k, read(factors, k * n + k))
        for i in range(k):
            _subtract(out, i, k, read(factors, k * n + i))


@inlined
def _solve_turned_in_loops(out, factors, n):
    """Replace right-hand sides by the solutions for the transpose of the matrix."""
    for k in range(n):
        for i in range(k):
            _subtract(out, k, i, read(factors, k * n + i))
        _divide(out, k, read(factors, k * n + k))
    for k in range(n - 1, -1, -1):
        for i in range(k + 1, n):
            _subtract(out, k, i, read(factors, k * n + i))
    for k in range(n - 1, -1, -1):
        row = np.int64(read(factors, n * n + k))
        if row != k:
            _exchange(out, k, row)


@inlined
def _solve_by_lapack(out, factors, n, is_turned):
    """Do the same by LAPACK, on a copy by columns if the solutions are in another order.

    Return whether there was memory for it.
    """
    to, _, columns, down, right = out
    is_in_order = down == SIZE and (right == n * SIZE or columns == 1)
    memory = malloc((n * SIZE + (0 if is_in_order else n * columns * SIZE),))
    if not memory:
        return False
    place = to if is_in_order else memory + n * SIZE
    if not is_in_order:
        copy_matrix(place, np.int64(SIZE), n * SIZE, out)
    for k in range(n):
        store(i4_pointer(memory), k, np.int64(read(factors, n * n + k)) + 1)
    kind = TRANSPOSED if is_turned else NO
    _getrs((kind, n, columns, factors, n, memory, place, n))
    if not is_in_order:
        copy_matrix(to, down, right, (place, n, columns, np.int64(SIZE), n * SIZE))
    free((memory,))
    return True


@jit
def solve(request):
    """Write the solutions for matrices with factors X, and right-hand sides Y, to OUT."""
    words = i8_pointer(request)
    is_turned = load(words, KIND) & TURNED != 0
    for k in range(load(words, COUNT)):
        out, factors, y = (
            matrix(request, OUT, k),
            matrix(request, X, k)[0],
            matrix(request, Y, k),
        )
        n = out[1]
        if n and np.isnan(read(factors, 0)):
            _fill(out, np.nan)
            continue
        if _is_singular(factors, n):
            return SINGULAR
        copy_matrix(out[0], out[3], out[4], y)
        if n > _FEW and has_scipy():
            if not _solve_by_lapack(out, factors, n, is_turned):
                return WITHOUT_MEMORY
        elif is_turned:
            _solve_turned_in_loops(out, factors, n)
        else:
            _solve_in_loops(out, factors, n)
        _mark_undefined(out, y)
    return DONE


# -- positive definite matrices --------------------------------------------------------------------


@inlined
def _factor_definite_in_loops(to, n):
    """Replace the lower triangle of a matrix by its factor; return whether there is one."""
    for i in range(n):
        row = to + i * n * SIZE
        for j in range(i + 1):
            other = to + j * n * SIZE
            total = read(row, j)
            for k in range(j):
                total -= read(row, k) * read(other, k)
            if j < i:
                write(row, j, total / read(other, j))
            elif total > 0.0 and total < np.inf:
                write(row, j, np.sqrt(total))
            else:
                return False
    return True


@jit
def factor_definite(request):
    """Write the lower triangles, whose products with their transposes are X, to OUT, in rows."""
    for k in range(load(i8_pointer(request), COUNT)):
        to = matrix(request, OUT, k)[0]
        address, n, _, down, right = matrix(request, X, k)
        is_finite = True
        for i in range(n):
            for j in range(n):
                value = read(address + i * down + j * right, 0) if j <= i else 0.0
                is_finite = is_finite and np.isfinite(value)
                write(to, i * n + j, value)
        if not is_finite:
            for i in range(n):
                for j in range(i + 1):
                    write(to, i * n + j, np.nan)
        elif n <= _FEW or not has_scipy():
            if not _factor_definite_in_loops(to, n):
                return NOT_DEFINITE
        elif _potrf((_UPPER, n, to, n)) != 0:  # rows are the columns of the transpose
            return NOT_DEFINITE
    return DONE


# -- triangles -------------------------------------------------------------------------------------


@inlined
def _substitute(out, x, is_lower, is_unit):
    """Replace right-hand sides by the solutions for a triangle."""
    address, n, _, down, right = x
    for turn in range(n):
        k = turn if is_lower else n - 1 - turn
        if not is_unit:
            _divide(out, k, read(address + k * down + k * right, 0))
        first, last = (k + 1, n) if is_lower else (0, k)
        for i in range(first, last):
            _subtract(out, i, k, read(address + i * down + k * right, 0))


@inlined
def _substitute_by_blas(out, x, is_lower, is_unit):
    """Do the same by BLAS, which sees the transposes of what is in rows.

    Return whether there was memory for it.
    """
    to, n, columns, down, right = out
    address, _, _, x_down, x_right = x
    is_in_order = right == SIZE and down == columns * SIZE
    is_in_columns = x_down == SIZE and x_right >= n * SIZE
    is_in_rows = x_right == SIZE and x_down >= n * SIZE
    unit = _UPPER if is_unit else NO
    if columns == 1 and (is_in_columns or is_in_rows):
        triangle = LOWER if is_lower == is_in_columns else _UPPER
        turned = NO if is_in_columns else TRANSPOSED
        step = x_right // SIZE if is_in_columns else x_down // SIZE
        _trsv((triangle, turned, unit, n, address, step, to, down // SIZE))
        return True
    numbers = (0 if is_in_order else n * columns) + (0 if is_in_columns or is_in_rows else n * n)
    memory = malloc((numbers * SIZE,)) if numbers else 0
    if numbers and not memory:
        return False
    place, matrix = to, address
    if not is_in_order:
        place = memory
        copy_matrix(place, columns * SIZE, np.int64(SIZE), out)
    if not (is_in_columns or is_in_rows):
        matrix = memory + (numbers - n * n) * SIZE
        copy_matrix(matrix, n * SIZE, np.int64(SIZE), x)
        x_down = n * SIZE
    step = x_right // SIZE if is_in_columns else x_down // SIZE
    # B in rows is B^T in columns, and A X = B is X^T A^T = B^T
    triangle = LOWER if is_lower == is_in_columns else _UPPER
    turned = TRANSPOSED if is_in_columns else NO
    _trsm((RIGHT, triangle, turned, unit, columns, n, matrix, step, place, columns))
    if not is_in_order:
        copy_matrix(to, down, right, (place, n, columns, columns * SIZE, np.int64(SIZE)))
    if numbers:
        free((memory,))
    return True


@inlined
def _examine_diagonal(x):
    """Return whether the numbers on a diagonal are finite, and whether one of them is 0."""
    address, n, _, down, right = x
    is_finite, has_zero = True, False
    for i in range(n):
        value = read(address + i * (down + right), 0)
        is_finite = is_finite and np.isfinite(value)
        has_zero = has_zero or value == 0.0
    return is_finite, has_zero


@inlined
def _is_finite(x, is_lower, is_unit):
    """Whether the numbers of a triangle are finite."""
    address, n, _, down, right = x
    for i in range(n):
        first, last = (0, i + 1) if is_lower else (i, n)
        for j in range(first, last):
            is_read = i != j or not is_unit
            if is_read and not np.isfinite(read(address + i * down + j * right, 0)):
                return False
    return True


@inlined
def _are_usual(x):
    """Whether the numbers of a matrix are finite, and none of them is 0."""
    address, rows, columns, down, right = x
    for i in range(rows):
        for j in range(columns):
            value = read(address + i * down + j * right, 0)
            if value == 0.0 or not np.isfinite(value):
                return False
    return True


@jit
def solve_triangle(request):
    """Write the solutions for a triangle of X, and right-hand sides Y, to OUT."""
    words = i8_pointer(request)
    kind = load(words, KIND)
    is_turned, is_unit = kind & TURNED != 0, kind & UNIT != 0
    is_lower = (kind & UPPER == 0) != is_turned
    for k in range(load(words, COUNT)):
        out, y = matrix(request, OUT, k), matrix(request, Y, k)
        address, n, _, down, right = matrix(request, X, k)
        x = (address, n, n, right, down) if is_turned else (address, n, n, down, right)
        is_finite, has_zero = _examine_diagonal(x)
        if has_zero and not is_unit:
            return SINGULAR
        copy_matrix(out[0], out[3], out[4], y)
        if n <= _FEW or not has_scipy():
            _substitute(out, x, is_lower, is_unit)
        elif not _substitute_by_blas(out, x, is_lower, is_unit):
            return WITHOUT_MEMORY
        # what is not finite beside the diagonal is so in a solution, or is not read for a 0 in it
        is_finite = (is_finite or is_unit) and _are_usual(out)
        if not is_finite and not _is_finite(x, is_lower, is_unit):
            _fill(out, np.nan)
        _mark_undefined(out, y)
    return DONE
