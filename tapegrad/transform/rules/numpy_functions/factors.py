"""Functions of stacks of matrices of floats by their factors, which derivatives use again.

A matrix is decomposed once, by `lu_factors`, for everything that is computed of it: solutions, the
inverse, the determinant, and their derivatives. The factors count as constants; derivatives pass to
the matrix. What is not finite makes nan, as in NumPy.

Formulas: M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tapegrad.transform import lapack
from tapegrad.transform.cache.machine_code import constant, jit
from tapegrad.transform.lapack import TURNED, UNIT, UPPER
from tapegrad.transform.rules.array_specs import declare, derivative, named_function, shared
from tapegrad.transform.rules.numpy_functions.stacks import (
    stacked_product,
    stacked_product_t,
    stacked_t_product,
)

_SOLUTIONS = ("factored_solution", "factored_solution_t")
for _name in _SOLUTIONS:
    declare(
        _name, "a", "factors", "b", linear=("b",), steps=("factors",),
        value=f"{_name}(a, factors, b)",
    )  # fmt: skip
declare("factored_inverse", "a", "factors", steps=("factors",))
declare("factored_logarithm", "a", "factors", steps=("factors",))
declare("triangle_solution", "a", "b", "kind", linear=("b",), value="triangle_solution(a, b, kind)")
declare("stacked_cholesky", "a", chooses=True)


@constant
def lu_factors(a):
    """Return the factors of the matrices of a stack (`tapegrad.transform.lapack_code`)."""
    count, n, _ = a.shape
    found = np.empty((count, n + 1, n))
    lapack.factor(0, (found, a))
    return found


@constant
def factored_sign(factors):
    """Return the signs of the determinants of matrices."""
    count, _, n = factors.shape
    found = np.ones(count)
    for k in range(count):
        for i in range(n):
            pivot = factors[k, i, i]
            if factors[k, n, i] != i:
                found[k] = -found[k]
            found[k] *= np.sign(pivot)
    return found


@jit
def transposes(x):
    """Return the transposes of the matrices of a stack, in memory of their own."""
    count, rows, columns = x.shape
    found = np.empty((count, columns, rows))
    for k in range(count):
        for i in range(rows):
            for j in range(columns):
                found[k, j, i] = x[k, i, j]
    return found


# -- solutions -------------------------------------------------------------------------------------


@named_function
@jit
def factored_solution(a, factors, b):
    """Return the solutions of the systems of equations with some matrices."""
    found = np.empty(b.shape)
    lapack.solve(0, (found, factors, b))
    return found


@named_function
@jit
def factored_solution_t(a, factors, b):
    """Return the solutions of the systems of equations with the transposes of some matrices."""
    found = np.empty(b.shape)
    lapack.solve(TURNED, (found, factors, b))
    return found


@shared
def factored_solution_shared(a, factors, g):
    return factored_solution_t(a, factors, g)


@derivative
def factored_solution_vjp_a(a_bar, z, w):
    a_bar -= stacked_product_t(w, z)


@derivative
def factored_solution_vjp_b(b_bar, w):
    b_bar += w


@derivative
def factored_solution_jvp_a(a, factors, a_dot, z):
    return -factored_solution(a, factors, stacked_product(a_dot, z))


@shared
def factored_solution_t_shared(a, factors, g):
    return factored_solution(a, factors, g)


@derivative
def factored_solution_t_vjp_a(a_bar, z, w):
    a_bar -= stacked_product_t(z, w)


@derivative
def factored_solution_t_vjp_b(b_bar, w):
    b_bar += w


@derivative
def factored_solution_t_jvp_a(a, factors, a_dot, z):
    return -factored_solution_t(a, factors, stacked_t_product(a_dot, z))


# -- inverses and determinants ---------------------------------------------------------------------


@named_function
@jit
def factored_inverse(a, factors):
    """Return the inverses of some matrices."""
    count, _, n = factors.shape
    ones = np.zeros((count, n, n))
    for k in range(count):
        for i in range(n):
            ones[k, i, i] = 1.0
    found = np.empty((count, n, n))
    lapack.solve(0, (found, factors, ones))
    return found


@derivative
def factored_inverse_vjp_a(a_bar, z, g):
    a_bar -= stacked_product_t(stacked_t_product(z, g), z)


@derivative
def factored_inverse_jvp_a(a_dot, z):
    return -stacked_product(stacked_product(z, a_dot), z)


@named_function
@jit
def factored_logarithm(a, factors):
    """Return the logarithms of the absolute values of the determinants of some matrices."""
    count, _, n = factors.shape
    found = np.zeros(count)
    for k in range(count):
        for i in range(n):
            found[k] += np.log(np.abs(factors[k, i, i]))
    return found


@derivative
def factored_logarithm_vjp_a(a, factors, a_bar, g):
    inverse = factored_inverse(a, factors)
    for k in range(g.size):
        for i in range(inverse.shape[1]):
            for j in range(inverse.shape[1]):
                a_bar[k, i, j] += g[k] * inverse[k, j, i]


@derivative
def factored_logarithm_jvp_a(a, factors, a_dot):
    inverse = factored_inverse(a, factors)
    found = np.zeros(a.shape[0])
    for k in range(found.size):
        for i in range(inverse.shape[1]):
            for j in range(inverse.shape[1]):
                found[k] += inverse[k, j, i] * a_dot[k, i, j]
    return found


# -- triangles -------------------------------------------------------------------------------------


@named_function
@jit
def triangle_solution(a, b, kind):
    """Return the solutions of systems with triangles of some matrices: the rest is not read.

    `kind` says which triangle, and whether it is transposed (`tapegrad.transform.lapack`).
    """
    found = np.empty(b.shape)
    lapack.solve_triangle(kind, (found, a, b))
    return found


@jit
def add_triangle(out, x, kind, sign):
    """Add the elements of the triangles of a kind of some matrices, times a sign."""
    count, n, _ = x.shape
    inside = 1 if kind & UNIT != 0 else 0  # of the diagonal
    for k in range(count):
        for i in range(n):
            if kind & UPPER != 0:
                for j in range(i + inside, n):
                    out[k, i, j] += sign * x[k, i, j]
            else:
                for j in range(i + 1 - inside):
                    out[k, i, j] += sign * x[k, i, j]


@shared
def triangle_solution_shared(a, kind, g):
    return triangle_solution(a, g, kind ^ TURNED)


@derivative
def triangle_solution_vjp_a(a_bar, kind, z, w):
    if kind & TURNED != 0:
        add_triangle(a_bar, stacked_product_t(z, w), kind, -1.0)
    else:
        add_triangle(a_bar, stacked_product_t(w, z), kind, -1.0)


@derivative
def triangle_solution_vjp_b(b_bar, w):
    b_bar += w


@derivative
def triangle_solution_jvp_a(a, a_dot, kind, z):
    moved = np.zeros(a.shape)
    add_triangle(moved, a_dot, kind, 1.0)
    if kind & TURNED != 0:
        return -triangle_solution(a, stacked_t_product(moved, z), kind)
    return -triangle_solution(a, stacked_product(moved, z), kind)


# -- positive definite matrices --------------------------------------------------------------------


@named_function
@jit
def stacked_cholesky(a):
    """Return the lower triangles whose products with their transposes are some matrices."""
    found = np.empty(a.shape)
    lapack.factor_definite(0, (found, a))
    return found


@jit
def halved_triangles(x):
    """Return lower triangles with half of the diagonal."""
    count, n, _ = x.shape
    found = np.zeros(x.shape)
    for k in range(count):
        for i in range(n):
            for j in range(i):
                found[k, i, j] = x[k, i, j]
            found[k, i, i] = 0.5 * x[k, i, i]
    return found


@derivative
def stacked_cholesky_vjp_a(a_bar, z, g):
    middle = halved_triangles(stacked_t_product(z, g))
    half = triangle_solution(z, middle, TURNED)
    full = triangle_solution(z, transposes(half), TURNED)
    count, n, _ = a_bar.shape
    for k in range(count):
        for i in range(n):
            for j in range(n):
                a_bar[k, i, j] += 0.5 * (full[k, i, j] + full[k, j, i])


@derivative
def stacked_cholesky_jvp_a(a_dot, z):
    symmetric = 0.5 * (a_dot + transposes(a_dot))
    half = triangle_solution(z, symmetric, 0)
    full = triangle_solution(z, transposes(half), 0)
    return stacked_product(z, halved_triangles(full))
