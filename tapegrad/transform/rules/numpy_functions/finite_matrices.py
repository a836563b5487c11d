"""Linear algebra of one matrix that may hold inf or nan.

Then the result is nan, as in NumPy; numba's functions raise an error. Matrices of doubles are
decomposed by the functions of all programs (`tapegrad.transform.lapack`), others by numba's.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
from numba.core import types
from numba.extending import overload

from tapegrad.transform import lapack
from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import named_function


def _are_doubles(*kinds):
    return all(kind.dtype == types.float64 for kind in kinds)


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
def factors_of(a):
    """Return the factors of a square matrix of doubles (`tapegrad.transform.lapack_code`)."""
    if a.shape[0] != a.shape[1]:
        raise np.linalg.LinAlgError("Last 2 dimensions of the array must be square.")
    found = np.empty((a.shape[0] + 1, a.shape[0]))
    lapack.factor(0, (found, a))
    return found


def _solution(a, b):
    """Return the solutions of a system of equations; compiled code has another function."""
    return np.linalg.solve(a, b)


@overload(_solution)
def _(a, b):
    def by_factors(a, b):
        if a.shape[0] != b.shape[0]:
            raise np.linalg.LinAlgError(
                "Incompatible array sizes, system is not dimensionally valid."
            )
        found = np.empty(b.shape)
        lapack.solve(0, (found, factors_of(a), b))
        return found

    def by_numba(a, b):
        if not is_finite(a) or not is_finite(b):
            return np.full_like(b, np.nan)
        return np.ascontiguousarray(np.linalg.solve(a, b))

    return by_factors if _are_doubles(a, b) else by_numba


def _determinant(a):
    """Return the determinant of a matrix; compiled code has another function."""
    return np.linalg.det(a)


@overload(_determinant)
def _(a):
    def by_factors(a):
        factors, found = factors_of(a), 1.0
        n = a.shape[0]
        for k in range(n):
            found *= factors[k, k]
            if factors[n, k] != k:
                found = -found
        return found

    def by_numba(a):
        return np.linalg.det(a) if is_finite(a) else np.nan

    return by_factors if _are_doubles(a) else by_numba


@named_function
@jit
def inverse(a):
    """Return the inverse of a matrix."""
    return _solution(a, np.eye(a.shape[0]).astype(a.dtype))


@named_function
@jit
def determinant(a):
    """Return the determinant of a matrix."""
    return _determinant(a)


@named_function
@jit
def solve_vector(a, b):
    """Return the solution of a system of linear equations."""
    return _solution(a, b)


@named_function
@jit
def solve_matrix(a, b):
    """Return the solutions of systems of linear equations with one matrix."""
    return _solution(a, b)
