"""Linear algebra of matrices that may hold inf or nan: the result is nan then, as in NumPy.

numba's functions raise an error for them.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import named_function


@jit
def is_finite(x):
    """Whether all elements of an array are finite."""
    return np.isfinite(x).all()


@named_function
@jit
def inverse(a):
    """Return the inverse of a matrix."""
    if not is_finite(a):
        return np.asfortranarray(np.full_like(a, np.nan))  # as LAPACK leaves it
    return np.linalg.inv(a)


@named_function
@jit
def determinant(a):
    """Return the determinant of a matrix."""
    if not is_finite(a):
        return np.nan
    return np.linalg.det(a)


@named_function
@jit
def solve_vector(a, b):
    """Return the solution of a system of linear equations."""
    if not is_finite(a) or not is_finite(b):
        return np.full_like(b, np.nan)
    return np.linalg.solve(a, b)


@named_function
@jit
def solve_matrix(a, b):
    """Return the solutions of systems of linear equations with one matrix."""
    if not is_finite(a) or not is_finite(b):
        return np.asfortranarray(np.full_like(b, np.nan))
    return np.linalg.solve(a, b)
