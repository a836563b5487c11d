"""Derivatives of products and of linear algebra.

Formulas: M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008).
"""

from __future__ import annotations

import numpy as np

from tapegrad.transform.array_specs import declare, derivative, jit

for _kinds in ("11", "12", "21", "22"):
    declare(f"dot_{_kinds}", "x", "y")
declare("outer", "x", "y")


@derivative
def dot_11_pull_x(x_bar, y, g):
    x_bar += g * y


@derivative
def dot_11_pull_y(x, y_bar, g):
    y_bar += g * x


@derivative
def dot_12_pull_x(x_bar, y, g):
    x_bar += matrix_vector(y, g)


@derivative
def dot_12_pull_y(x, y_bar, g):
    add_outer(y_bar, x, g)


@derivative
def dot_21_pull_x(x_bar, y, g):
    add_outer(x_bar, g, y)


@derivative
def dot_21_pull_y(x, y_bar, g):
    y_bar += vector_matrix(g, x)


@derivative
def dot_22_pull_x(x_bar, y, g):
    x_bar += np.dot(np.ascontiguousarray(g), np.ascontiguousarray(y.T))


@derivative
def dot_22_pull_y(x, y_bar, g):
    y_bar += np.dot(np.ascontiguousarray(x.T), np.ascontiguousarray(g))


@derivative
def dot_11_push_x(x_dot, y):
    return np.dot(np.ascontiguousarray(x_dot), np.ascontiguousarray(y))


@derivative
def dot_11_push_y(x, y_dot):
    return np.dot(np.ascontiguousarray(x), np.ascontiguousarray(y_dot))


@derivative
def dot_12_push_x(x_dot, y):
    return np.dot(np.ascontiguousarray(x_dot), np.ascontiguousarray(y))


@derivative
def dot_12_push_y(x, y_dot):
    return np.dot(np.ascontiguousarray(x), np.ascontiguousarray(y_dot))


@derivative
def dot_21_push_x(x_dot, y):
    return np.dot(np.ascontiguousarray(x_dot), np.ascontiguousarray(y))


@derivative
def dot_21_push_y(x, y_dot):
    return np.dot(np.ascontiguousarray(x), np.ascontiguousarray(y_dot))


@derivative
def dot_22_push_x(x_dot, y):
    return np.dot(np.ascontiguousarray(x_dot), np.ascontiguousarray(y))


@derivative
def dot_22_push_y(x, y_dot):
    return np.dot(np.ascontiguousarray(x), np.ascontiguousarray(y_dot))


@jit
def matrix_vector(a, x):
    """Return the product of a matrix and a vector."""
    return np.dot(np.ascontiguousarray(a), np.ascontiguousarray(x))


@jit
def vector_matrix(x, a):
    """Return the product of a vector and a matrix."""
    return np.dot(np.ascontiguousarray(x), np.ascontiguousarray(a))


@jit
def add_outer(bar, x, y):
    """Add the matrix of products of two vectors."""
    for i in range(x.size):
        for j in range(y.size):
            bar[i, j] += x[i] * y[j]


@derivative
def outer_pull_x(x_bar, y, g):
    x_bar += matrix_vector(g, y)


@derivative
def outer_pull_y(x, y_bar, g):
    y_bar += vector_matrix(x, g)


@derivative
def outer_push_x(x_dot, y):
    return np.outer(x_dot, y)


@derivative
def outer_push_y(x, y_dot):
    return np.outer(x, y_dot)


# -- linear algebra -------------------------------------------------------------------------------

declare("solve_1", "a", "b")
declare("solve_2", "a", "b")
declare("inv", "x")
declare("det", "x")
declare("cholesky", "x")


@derivative
def solve_1_pull_a(a, a_bar, z, g):
    add_outer(a_bar, -np.linalg.solve(np.ascontiguousarray(a.T), g), z)


@derivative
def solve_1_pull_b(a, b_bar, g):
    b_bar += np.linalg.solve(np.ascontiguousarray(a.T), g)


@derivative
def solve_1_push_a(a, a_dot, z):
    return -np.linalg.solve(a, matrix_vector(a_dot, z))


@derivative
def solve_1_push_b(a, b_dot):
    return np.linalg.solve(a, b_dot)


@derivative
def solve_2_pull_a(a, a_bar, z, g):
    w = np.linalg.solve(np.ascontiguousarray(a.T), g)
    a_bar -= np.dot(w, np.ascontiguousarray(z.T))


@derivative
def solve_2_pull_b(a, b_bar, g):
    b_bar += np.linalg.solve(np.ascontiguousarray(a.T), g)


@derivative
def solve_2_push_a(a, a_dot, z):
    return -np.linalg.solve(a, np.dot(np.ascontiguousarray(a_dot), np.ascontiguousarray(z)))


@derivative
def solve_2_push_b(a, b_dot):
    return np.linalg.solve(a, b_dot)


@derivative
def inv_pull_x(x_bar, z, g):
    t = np.ascontiguousarray(z.T)
    x_bar -= np.dot(np.dot(t, np.ascontiguousarray(g)), t)


@derivative
def inv_push_x(x_dot, z):
    c = np.ascontiguousarray(z)
    return -np.dot(np.dot(c, np.ascontiguousarray(x_dot)), c)


@jit
def cofactors(x):
    """Return the derivative of the determinant, right for singular matrices as well."""
    n = x.shape[0]
    u, s, vt = np.linalg.svd(x)
    sign = np.linalg.det(u) * np.linalg.det(vt)
    gains = np.empty_like(s)
    for i in range(n):
        product = 1.0
        for j in range(n):
            if j != i:
                product *= s[j]
        gains[i] = sign * product
    return np.dot(u * gains, vt)


@derivative
def det_pull_x(x, x_bar, z, g):
    if z != 0.0:
        x_bar += (g * z) * np.linalg.inv(x).T
    else:
        x_bar += g * cofactors(x)


@derivative
def det_push_x(x, x_dot, z):
    if z != 0.0:
        return z * np.sum(np.linalg.inv(x).T * x_dot)
    return np.sum(cofactors(x) * x_dot)


@jit
def lower_half(x):
    """Return the lower triangle with half of the diagonal."""
    found = np.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(i):
            found[i, j] = x[i, j]
        found[i, i] = 0.5 * x[i, i]
    return found


@derivative
def cholesky_pull_x(x_bar, z, g):
    t = np.ascontiguousarray(z.T)
    p = lower_half(np.dot(t, np.ascontiguousarray(g)))
    inverse = np.linalg.inv(t)
    s = np.dot(np.dot(inverse, p), np.ascontiguousarray(inverse.T))
    x_bar += 0.5 * (s + s.T)


@derivative
def cholesky_push_x(x_dot, z):
    c = np.ascontiguousarray(z)
    inverse = np.linalg.inv(c)
    symmetric = 0.5 * (x_dot + x_dot.T)
    inner = np.dot(np.dot(inverse, symmetric), np.ascontiguousarray(inverse.T))
    return np.dot(c, lower_half(inner))
