"""Systems of equations whose matrix is a triangle: the other one is not read."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tapegrad.transform.blas import dot_22
from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import declare, derivative, named_function
from tapegrad.transform.rules.numpy_functions.finite_matrices import is_finite
from tapegrad.transform.rules.numpy_functions.linear_algebra import product_of

declare("lower_solution", "a", "b", linear=("b",), value="lower_solution(a, b)")
declare("upper_solution", "a", "b", linear=("b",), value="upper_solution(a, b)")

_BLOCK = 64  # rows that loops substitute; BLAS puts what is known into the next ones


@jit
def check_triangle(a, b):
    """Raise if a matrix and right-hand sides are no system with one solution."""
    if a.shape[0] != a.shape[1] or a.shape[0] != b.shape[0]:
        raise np.linalg.LinAlgError("Incompatible array sizes: a must be square, b have its rows.")
    for i in range(a.shape[0]):
        if a[i, i] == 0.0:
            raise np.linalg.LinAlgError("Matrix is singular to machine precision.")


@jit
def subtract_known(found, a, first, row, k):
    """Subtract from a row the solutions of another row, times its coefficient."""
    factor = a[first + row, first + k]
    for j in range(found.shape[1]):
        found[first + row, j] -= factor * found[first + k, j]


@jit
def subtract_product(found, first, size, a, rows):
    """Subtract a product from some rows; copies are in the order that BLAS reads fastest."""
    product = dot_22(np.ascontiguousarray(a), rows)
    for i in range(size):
        for j in range(found.shape[1]):
            found[first + i, j] -= product[i, j]


@jit
def mark_undefined(found, b):
    """Write nan to the solutions for right-hand sides that are not finite, as LAPACK does."""
    for j in range(b.shape[1]):
        if not is_finite(b[:, j]):
            for i in range(b.shape[0]):
                found[i, j] = np.nan


@named_function
@jit
def lower_solution(a, b):
    """Return the solutions of a system with the lower triangle of a matrix.

    If that is not finite, all are nan.
    """
    n, columns = b.shape
    check_triangle(a, b)
    found = np.empty((n, columns))
    found[:, :] = b
    if not is_finite(np.tril(a)):
        found[:, :] = np.nan
        return found
    for first in range(0, n, _BLOCK):
        size = min(_BLOCK, n - first)
        if first > 0:
            subtract_product(found, first, size, a[first : first + size, :first], found[:first])
        for row in range(size):
            for k in range(row):
                subtract_known(found, a, first, row, k)
            pivot = a[first + row, first + row]
            for j in range(columns):
                found[first + row, j] /= pivot
    mark_undefined(found, b)
    return found


@named_function
@jit
def upper_solution(a, b):
    """Return the solutions of a system with the upper triangle of a matrix; see `lower_solution`.

    In the other order, rows and columns are those of a lower triangle.
    """
    turned = np.ascontiguousarray(a[::-1, ::-1])
    return np.ascontiguousarray(lower_solution(turned, np.ascontiguousarray(b[::-1]))[::-1])


@derivative
def lower_solution_vjp_a(a, a_bar, z, g):
    w = upper_solution(np.ascontiguousarray(a.T), g)
    product = np.dot(w, np.ascontiguousarray(z.T))
    for i in range(a.shape[0]):
        for k in range(i + 1):
            a_bar[i, k] -= product[i, k]


@derivative
def lower_solution_vjp_b(a, b_bar, g):
    b_bar += upper_solution(np.ascontiguousarray(a.T), g)


@derivative
def lower_solution_jvp_a(a, a_dot, z):
    return -lower_solution(a, product_of(np.tril(a_dot), z))


@derivative
def upper_solution_vjp_a(a, a_bar, z, g):
    w = lower_solution(np.ascontiguousarray(a.T), g)
    product = np.dot(w, np.ascontiguousarray(z.T))
    for i in range(a.shape[0]):
        for k in range(i, a.shape[0]):
            a_bar[i, k] -= product[i, k]


@derivative
def upper_solution_vjp_b(a, b_bar, g):
    b_bar += lower_solution(np.ascontiguousarray(a.T), g)


@derivative
def upper_solution_jvp_a(a, a_dot, z):
    return -upper_solution(a, product_of(np.triu(a_dot), z))
