"""Linear algebra of matrices that may be small, and may hold inf or nan.

If they do, the result is nan, as in NumPy; numba's functions raise an error. Small matrices are
eliminated in loops, in a fraction of the time that a call of LAPACK takes.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import named_function

_SMALL = 6  # rows up to which loops are faster


@jit
def is_finite(x):
    """Whether all elements of an array of one or two axes are finite."""
    if x.ndim == 1:
        for i in range(x.size):
            if not np.isfinite(x[i]):
                return False
    else:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                if not np.isfinite(x[i, j]):
                    return False
    return True


@jit
def pivoted(a, k):
    """Exchange rows for the largest pivot in a column; return its row.

    Source: Gaussian elimination with partial pivoting (G. H. Golub, C. F. Van Loan, "Matrix
    Computations", algorithm 3.4.1).
    """
    row = k
    for i in range(k + 1, a.shape[0]):
        if abs(a[i, k]) > abs(a[row, k]):
            row = i
    if row != k:
        for j in range(a.shape[1]):
            a[k, j], a[row, j] = a[row, j], a[k, j]
    return row


@jit
def eliminate(a, b):
    """Replace the columns of b by the solutions of systems of equations; a is overwritten."""
    n, columns = b.shape
    for k in range(n):
        row = pivoted(a, k)
        if a[k, k] == 0.0:
            raise np.linalg.LinAlgError("Matrix is singular to machine precision.")
        if row != k:
            for j in range(columns):
                b[k, j], b[row, j] = b[row, j], b[k, j]
        for i in range(k + 1, n):
            factor = a[i, k] / a[k, k]
            for j in range(k + 1, n):
                a[i, j] -= factor * a[k, j]
            for j in range(columns):
                b[i, j] -= factor * b[k, j]
    for j in range(columns):
        for i in range(n - 1, -1, -1):
            for k in range(i + 1, n):
                b[i, j] -= a[i, k] * b[k, j]
            b[i, j] /= a[i, i]


@named_function
@jit
def inverse(a):
    """Return the inverse of a matrix."""
    if not is_finite(a):
        return np.asfortranarray(np.full_like(a, np.nan))  # as LAPACK leaves it
    if a.shape[0] == a.shape[1] and a.shape[0] <= _SMALL:
        found = np.asfortranarray(np.eye(a.shape[0]).astype(a.dtype))
        eliminate(a.copy(), found)
        return found
    return np.linalg.inv(a)


@named_function
@jit
def determinant(a):
    """Return the determinant of a matrix."""
    if not is_finite(a):
        return np.nan
    if a.shape[0] != a.shape[1] or a.shape[0] > _SMALL:
        return np.linalg.det(a)
    left, found = a.copy(), 1.0
    for k in range(a.shape[0]):
        if pivoted(left, k) != k:
            found = -found
        found *= left[k, k]
        if found == 0.0:
            break
        for i in range(k + 1, a.shape[0]):
            factor = left[i, k] / left[k, k]
            for j in range(k + 1, a.shape[0]):
                left[i, j] -= factor * left[k, j]
    return found


@named_function
@jit
def solve_vector(a, b):
    """Return the solution of a system of linear equations."""
    if not is_finite(a) or not is_finite(b):
        return np.full_like(b, np.nan)
    if a.shape[0] == a.shape[1] == b.size and b.size <= _SMALL:
        found = b.copy()
        eliminate(a.copy(), found.reshape((b.size, 1)))
        return found
    return np.linalg.solve(a, b)


@named_function
@jit
def solve_matrix(a, b):
    """Return the solutions of systems of linear equations with one matrix."""
    if not is_finite(a) or not is_finite(b):
        return np.asfortranarray(np.full_like(b, np.nan))
    if a.shape[0] == a.shape[1] == b.shape[0] and b.shape[0] <= _SMALL:
        found = np.asfortranarray(b.copy())
        eliminate(a.copy(), found)
        return found
    return np.linalg.solve(a, b)
