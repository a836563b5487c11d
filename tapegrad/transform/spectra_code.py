"""The functions that find eigenvalues and singular values (`tapegrad.transform.spectra`), compiled.

LAPACK takes matrices column by column; what it changes are copies.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from tapegrad.kernels.intrinsics import i8_pointer, load
from tapegrad.transform.lapack import (
    COUNT,
    DONE,
    NO_SINGULAR_VALUES,
    NOT_CONVERGED,
    OUT,
    WITHOUT_MEMORY,
    WITHOUT_SCIPY,
    W,
    X,
    Y,
    Z,
)
from tapegrad.transform.lapack_calls import (
    LOWER,
    SOME,
    VECTORS,
    copy_matrix,
    function_of_scipy,
    has_scipy,
)
from tapegrad.transform.request_code import SIZE, free, jit, malloc, matrix, read, write

_BLOCK = 64  # columns that LAPACK works on together

_gesdd = function_of_scipy("dgesdd", "ciipippipipip?")
_geqrf = function_of_scipy("dgeqrf", "iipippi?")
_orgqr = function_of_scipy("dorgqr", "iiipippi?")
_syevd = function_of_scipy("dsyevd", "ccipippipi?")
_zheevd = function_of_scipy("zheevd", "ccipippipipi?")


# -- eigenvalues -----------------------------------------------------------------------------------


@jit
def find_eigenvalues(request):
    """Write the eigenvectors of the symmetric matrices Y to OUT, and their eigenvalues to X."""
    for k in range(load(i8_pointer(request), COUNT)):
        to, n, _, down, right = matrix(request, OUT, k)
        values, y = matrix(request, X, k)[0], matrix(request, Y, k)
        if not has_scipy():
            return WITHOUT_SCIPY
        if n == 0:
            continue
        numbers = 1 + 6 * n + 2 * n * n  # that LAPACK works with, of floats and of integers
        integers = 3 + 5 * n
        memory = malloc(((n * n + numbers + integers) * SIZE,))
        if not memory:
            return WITHOUT_MEMORY
        floats = memory + n * n * SIZE
        is_finite = copy_matrix(memory, np.int64(SIZE), n * SIZE, y)
        said = 1
        if is_finite:
            given = n, memory, n, values, floats, numbers, floats + numbers * SIZE, integers
            said = _syevd((VECTORS, LOWER, *given))
            copy_matrix(to, down, right, (memory, n, n, np.int64(SIZE), n * SIZE))
        free((memory,))
        if said != 0:
            return NOT_CONVERGED
    return DONE


@jit
def find_hermitian_eigenvalues(request):
    """Write the parts of the eigenvectors of Z + iW to OUT and X, and the eigenvalues to Y."""
    for k in range(load(i8_pointer(request), COUNT)):
        real, imaginary = matrix(request, OUT, k), matrix(request, X, k)
        values, a, b = matrix(request, Y, k)[0], matrix(request, Z, k), matrix(request, W, k)
        n = real[1]
        if not has_scipy():
            return WITHOUT_SCIPY
        if n == 0:
            continue
        numbers, floats, integers = 2 * n + n * n, 1 + 5 * n + 2 * n * n, 3 + 5 * n
        memory = malloc(((2 * n * n + 2 * numbers + floats + integers) * SIZE,))
        if not memory:
            return WITHOUT_MEMORY
        work = memory + 2 * n * n * SIZE
        others = work + 2 * numbers * SIZE
        down, right = np.int64(2 * SIZE), 2 * n * SIZE
        is_finite = copy_matrix(memory, down, right, a)
        is_finite = copy_matrix(memory + SIZE, down, right, b) and is_finite
        said = 1
        if is_finite:
            given = values, work, numbers, others, floats, others + floats * SIZE, integers
            said = _zheevd((VECTORS, LOWER, n, memory, n, *given))
            copy_matrix(real[0], real[3], real[4], (memory, n, n, down, right))
            in_memory = memory + SIZE, n, n, down, right
            copy_matrix(imaginary[0], imaginary[3], imaginary[4], in_memory)
        free((memory,))
        if said != 0:
            return NOT_CONVERGED
    return DONE


# -- singular values, and orthogonal factors -------------------------------------------------------


@jit
def find_singular_values(request):
    """Write the singular vectors of the matrices Z to OUT and X, and their singular values to Y."""
    for number in range(load(i8_pointer(request), COUNT)):
        left, right = matrix(request, OUT, number), matrix(request, X, number)
        values, given = matrix(request, Y, number)[0], matrix(request, Z, number)
        rows, columns, count = given[1], given[2], left[2]
        if not has_scipy():
            return WITHOUT_SCIPY
        sizes = rows * columns, rows * count, count * columns
        floats = 4 * count * count + 7 * count + _BLOCK * (rows + columns)
        memory = malloc(((sizes[0] + sizes[1] + sizes[2] + floats + 4 * count) * SIZE,))
        if not memory:
            return WITHOUT_MEMORY
        u = memory + sizes[0] * SIZE
        vt = u + sizes[1] * SIZE
        work = vt + sizes[2] * SIZE
        said = 1
        if copy_matrix(memory, np.int64(SIZE), rows * SIZE, given):
            found = values, u, rows, vt, count, work, floats, work + floats * SIZE
            said = _gesdd((SOME, rows, columns, memory, rows, *found))
            copy_matrix(left[0], left[3], left[4], (u, rows, count, np.int64(SIZE), rows * SIZE))
            copy_matrix(
                right[0], right[3], right[4], (vt, count, columns, np.int64(SIZE), count * SIZE)
            )
        free((memory,))
        if said != 0:
            return NO_SINGULAR_VALUES
    return DONE


@jit
def factor_orthogonal(request):
    """Write the orthogonal factors of the matrices Y to OUT, and the triangular ones to X."""
    for number in range(load(i8_pointer(request), COUNT)):
        q, r, given = (
            matrix(request, OUT, number),
            matrix(request, X, number),
            matrix(request, Y, number),
        )
        rows, columns, count = given[1], given[2], q[2]
        if not has_scipy():
            return WITHOUT_SCIPY
        floats = _BLOCK * max(columns, 1)
        memory = malloc(((rows * columns + count + floats) * SIZE,))
        if not memory:
            return WITHOUT_MEMORY
        scales = memory + rows * columns * SIZE
        work = scales + count * SIZE
        down, right = np.int64(SIZE), rows * SIZE
        copy_matrix(memory, down, right, given)
        _geqrf((rows, columns, memory, rows, scales, work, floats))
        for i in range(count):
            for j in range(columns):
                value = read(memory + i * down + j * right, 0) if i <= j else 0.0
                write(r[0] + i * r[3] + j * r[4], 0, value)
        _orgqr((rows, count, count, memory, rows, scales, work, floats))
        copy_matrix(q[0], q[3], q[4], (memory, rows, count, down, right))
        free((memory,))
    return DONE
