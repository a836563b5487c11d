"""Products, and functions of linear algebra with one result.

Formulas: M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008); of the pseudoinverse: G. H. Golub and V. Pereyra, "The differentiation of
pseudo-inverses and nonlinear least squares problems whose variables separate" (1973).
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tapegrad.transform.cache.machine_code import inlined, jit
from tapegrad.transform.rules.array_specs import (
    Request,
    declare,
    derivative,
    partial,
    ruled,
    shared,
    short_derivative,
    understands,
)
from tapegrad.transform.rules.generators import Lowerer
from tapegrad.transform.rules.numpy_functions.additions import add_to
from tapegrad.transform.rules.numpy_functions.finite_matrices import (
    inverse,
    solve_matrix,
    solve_vector,
)

_RANKS = ("11", "12", "21", "22")
for _ranks in _RANKS:
    declare(
        *(f"dot_{_ranks}", "x", "y"),
        calls=False,
        holomorphic=True,
        linear=("x", "y"),
        value="np.dot(np.ascontiguousarray(x), np.ascontiguousarray(y))",
    )
declare("outer", "x", "y", calls=False, holomorphic=True, linear=("x", "y"))
declare("cross", "a", "b", holomorphic=True, linear=("a", "b"))
for _ranks in ("1", "2"):
    declare(
        *(f"kron_{_ranks}", "a", "b"),
        calls=False,
        holomorphic=True,
        linear=("a", "b"),
        value="np.kron(a, b)",
    )


@understands("dot", "matmul", "vdot")
def _(call: Request, a: Any, b: Any) -> Any:
    return _product(call, a, b)


def _product(call: Request, x: Any, y: Any) -> Any:
    ranks = f"{call.ndim(x)}{call.ndim(y)}"
    if "0" in ranks and call.text == "dot":
        return call.elementary("multiply", x, y)
    if call.text == "vdot" and (call.is_complex(x) or call.is_complex(y)):
        return call.whole("complex_vdot", x=x, y=y)
    return call.whole(f"dot_{ranks}", x=x, y=y) if ranks in _RANKS else None


def product(lowering: Lowerer, expr: ast.BinOp, kind: Any) -> Any:
    """Return the rule of ``x @ y``."""
    return _product(
        Request(lowering, "matmul", ast.Call(expr, [], []), kind), expr.left, expr.right
    )


@understands("outer")
def _(call: Request, a: Any, b: Any) -> Any:
    return call.whole("outer", x=a, y=b) if call.ndim(a) == call.ndim(b) == 1 else None


@understands("kron")
def _(call: Request, a: Any, b: Any) -> Any:
    ranks = call.ndim(a), call.ndim(b)
    return call.whole(f"kron_{ranks[0]}") if ranks in ((1, 1), (2, 2)) else None


@derivative
def dot_11_vjp_x(x_bar, y, g):
    x_bar += g * y


@derivative
def dot_11_vjp_y(x, y_bar, g):
    y_bar += g * x


@short_derivative
def dot_12_vjp_x(x_bar, y, g):
    add_product_21(x_bar, y, g)


@short_derivative
def dot_12_vjp_y(x, y_bar, g):
    add_outer(y_bar, x, g)


@short_derivative
def dot_21_vjp_x(x_bar, y, g):
    add_outer(x_bar, g, y)


@short_derivative
def dot_21_vjp_y(x, y_bar, g):
    add_product_12(y_bar, g, x)


@derivative
def dot_22_vjp_x(x_bar, y, g):
    add_product_22(x_bar, g, y.T)


@derivative
def dot_22_vjp_y(x, y_bar, g):
    add_product_22(y_bar, x.T, g)


@jit
def product_of(x, y):
    """Return the product of two matrices, or of a matrix and a vector."""
    return np.dot(np.ascontiguousarray(x), np.ascontiguousarray(y))


_FEW = 4096  # multiplications that loops do in less time than a call of BLAS with a new array


@jit
def add_large_product(bar, x, y):
    """Add the product of a matrix and a vector, or of a vector and a matrix, by BLAS."""
    found = product_of(x, y)
    for i in range(found.size):
        bar[i] += found[i]


@inlined
def add_product_21(bar, x, y):
    """Add the product of a matrix and a vector."""
    rows, columns = x.shape
    if rows * columns > _FEW:
        add_large_product(bar, x, y)
        return
    for i in range(rows):
        total = bar[i]
        for k in range(columns):
            total += x[i, k] * y[k]
        bar[i] = total


@inlined
def add_product_12(bar, x, y):
    """Add the product of a vector and a matrix."""
    if y.size > _FEW:
        add_large_product(bar, x, y)
        return
    for k in range(x.size):  # along the rows of the matrix
        for j in range(bar.size):
            bar[j] += x[k] * y[k, j]


@jit
def add_product_22(bar, x, y):
    """Add the product of two matrices."""
    rows, columns = x.shape[0], y.shape[1]
    if rows * columns * y.shape[0] > _FEW:
        found = product_of(x, y)
        for i in range(rows):
            for j in range(columns):
                bar[i, j] += found[i, j]
        return
    for i in range(rows):
        for k in range(y.shape[0]):
            for j in range(columns):
                bar[i, j] += x[i, k] * y[k, j]


@inlined
def add_outer(bar, x, y):
    """Add the matrix of products of two vectors."""
    for i in range(x.size):
        for j in range(y.size):
            bar[i, j] += x[i] * y[j]


@derivative
def outer_vjp_x(x_bar, y, g):
    add_product_21(x_bar, g, y.astype(g.dtype))


@derivative
def outer_vjp_y(x, y_bar, g):
    add_product_12(y_bar, x.astype(g.dtype), g)


@derivative
def cross_vjp_a(a_bar, b, g):
    add_to(a_bar, np.cross(b, g))


@derivative
def cross_vjp_b(a, b_bar, g):
    add_to(b_bar, np.cross(g, a))


@derivative
def kron_1_vjp_a(a_bar, b, g):
    for i in range(a_bar.size):
        for k in range(b.size):
            a_bar[i] += g[i * b.size + k] * b[k]


@derivative
def kron_1_vjp_b(a, b_bar, g):
    for i in range(a.size):
        for k in range(b_bar.size):
            b_bar[k] += g[i * b_bar.size + k] * a[i]


@derivative
def kron_2_vjp_a(a_bar, b, g):
    rows, columns = b.shape
    for i in range(a_bar.shape[0]):
        for j in range(a_bar.shape[1]):
            for k in range(rows):
                for m in range(columns):
                    a_bar[i, j] += g[i * rows + k, j * columns + m] * b[k, m]


@derivative
def kron_2_vjp_b(a, b_bar, g):
    rows, columns = b_bar.shape
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            for k in range(rows):
                for m in range(columns):
                    b_bar[k, m] += g[i * rows + k, j * columns + m] * a[i, j]


# -- linear algebra -------------------------------------------------------------------------------

for _rank in ("1", "2"):
    declare(
        *(f"solve_{_rank}", "a", "b"),
        calls=False,
        holomorphic=True,
        linear=("b",),
        value="np.linalg.solve(a, b)",
    )
declare("inv", "a", holomorphic=True)
declare("det", "a", calls=False)
declare("cholesky", "a", chooses=True)
declare("pinv", "a")
declare("eigvalsh", "a", chooses=True)


@understands("det")
def _(call: Request, a: Any) -> Any:
    return call.whole("complex_det" if call.is_complex(a) else "det", a=a)


@understands("solve")
def _(call: Request, a: Any, b: Any) -> Any:
    return call.whole(f"solve_{call.ndim(b)}", a=a, b=b)


@shared
def solve_1_shared(a, g):
    return solve_vector(np.ascontiguousarray(a.T), g)


@derivative
def solve_1_vjp_a(a_bar, z, w):
    add_outer(a_bar, -w, z)


@derivative
def solve_1_vjp_b(b_bar, w):
    b_bar += w


@derivative
def solve_1_jvp_a(a, a_dot, z):
    return -solve_vector(a, product_of(a_dot, z))


@shared
def solve_2_shared(a, g):
    return solve_matrix(np.ascontiguousarray(a.T), g)


@derivative
def solve_2_vjp_a(a_bar, z, w):
    a_bar -= np.dot(np.ascontiguousarray(w), np.ascontiguousarray(z.T))


@derivative
def solve_2_vjp_b(b_bar, w):
    b_bar += w


@derivative
def solve_2_jvp_a(a, a_dot, z):
    return -solve_matrix(a, product_of(a_dot, z))


@derivative
def inv_vjp_a(a_bar, z, g):
    t = np.ascontiguousarray(z.T)
    a_bar -= np.dot(np.dot(t, np.ascontiguousarray(g)), t)


@derivative
def inv_jvp_a(a_dot, z):
    c = np.ascontiguousarray(z)
    return -np.dot(np.dot(c, np.ascontiguousarray(a_dot)), c)


@jit
def products_without(s, i, j):
    """Return the product of all elements but i and j."""
    product = 1.0
    for k in range(s.size):
        if k != i and k != j:
            product *= s[k]
    return product


@jit
def cofactors(a):
    """Return the derivative of the determinant, valid for singular matrices as well."""
    u, s, vt = np.linalg.svd(a)
    sign = np.linalg.det(u) * np.linalg.det(vt)
    scaled = np.empty_like(u)
    for j in range(s.size):
        gain = sign * products_without(s, j, j)
        for i in range(s.size):
            scaled[i, j] = u[i, j] * gain
    return np.dot(scaled, vt)


@jit
def cofactors_tangent(a, a_dot):
    """Return the tangent of the cofactors: minors of second order, in the basis of the SVD."""
    u, s, vt = np.linalg.svd(a)
    sign = np.linalg.det(u) * np.linalg.det(vt)
    f = product_of(product_of(u.T, a_dot), vt.T)
    middle = np.zeros_like(f)
    for i in range(s.size):
        for j in range(s.size):
            if i != j:
                minor = sign * products_without(s, i, j)
                middle[i, i] += minor * f[j, j]
                middle[i, j] -= minor * f[j, i]
    return product_of(product_of(u, middle), vt)


@jit
def cofactors_pull(a, z, g):
    """Return the cotangent of a matrix from that of its cofactors: a Hessian is symmetric."""
    return (cofactors_tangent(a, g),)


@jit
def cofactors_push(a, a_dot, z):
    """Return the tangent of the cofactors z."""
    return cofactors_tangent(a, a_dot)


@jit
def beyond(a, a_dot, a_dot_2, a_dot_dot, z):
    """Return nan: third derivatives at singular matrices are not implemented."""
    return np.full_like(a, np.nan)


ruled(cofactors, cofactors_pull, cofactors_push)
ruled(cofactors_tangent, cofactors_tangent, beyond)


@jit
def is_regular(a, z):
    """Whether a determinant z is large enough for the inverse to be accurate.

    It is compared with Hadamard's bound, the product of the norms of the rows.
    """
    bound = 1.0
    for i in range(a.shape[0]):
        square = 0.0
        for j in range(a.shape[1]):
            square += a[i, j] * a[i, j]
        bound *= np.sqrt(square)
    return abs(z) > 1e-3 * bound


@partial
def det_partial_a(a, z):
    if z != z:
        return np.full_like(a, np.nan)
    if is_regular(a, z):
        found = np.ascontiguousarray(np.linalg.inv(a).T)
        found *= z  # in the precision of the matrix, whatever that of the number
        return found
    return cofactors(a)


@jit
def pinv_cotangent(a, p, g):
    """Return the cotangent of a matrix from that of its pseudoinverse p."""
    pt = np.ascontiguousarray(p.T)
    gt = np.ascontiguousarray(g.T)
    found = -product_of(np.dot(pt, np.ascontiguousarray(g)), pt)
    first = product_of(product_of(gt, p), pt)
    found += first - product_of(a, product_of(p, first))
    second = product_of(product_of(pt, p), gt)
    found += second - product_of(product_of(second, p), a)
    return found


@derivative
def pinv_vjp_a(a, a_bar, z, g):
    a_bar += pinv_cotangent(a, z, g)


@jit
def pinv_tangent(a, a_dot, z):
    """Return the tangent of the pseudoinverse z of a matrix."""
    zt = np.ascontiguousarray(z.T)
    turned = np.ascontiguousarray(a_dot.T)
    found = -product_of(product_of(z, a_dot), z)
    first = product_of(product_of(z, zt), turned)
    found += first - product_of(product_of(first, a), z)
    second = product_of(turned, product_of(zt, z))
    found += second - product_of(z, product_of(a, second))
    return found


@derivative
def pinv_jvp_a(a, a_dot, z):
    return pinv_tangent(a, a_dot, z)


@derivative
def eigvalsh_vjp_a(a, a_bar, g):
    _, v = np.linalg.eigh(a)
    scaled = np.empty_like(v)
    for i in range(g.size):
        for j in range(g.size):
            scaled[i, j] = v[i, j] * g[j]
    a_bar += product_of(scaled, v.T)


@derivative
def eigvalsh_jvp_a(a, a_dot):
    _, v = np.linalg.eigh(a)
    turned = product_of(a_dot + a_dot.T, v)
    found = np.empty(v.shape[0], v.dtype)
    for j in range(v.shape[0]):
        found[j] = 0.5 * np.sum(v[:, j] * turned[:, j])
    return found


@jit
def symmetric_part(x):
    """Return the mean of a matrix and its transpose, in the same precision."""
    found = np.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            found[i, j] = 0.5 * (x[i, j] + x[j, i])
    return found


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
def cholesky_vjp_a(a_bar, z, g):
    t = np.ascontiguousarray(z.T)
    p = lower_half(np.dot(t, np.ascontiguousarray(g)))
    t_inverse = inverse(t)
    s = np.dot(np.dot(t_inverse, p), np.ascontiguousarray(t_inverse.T))
    a_bar += 0.5 * (s + s.T)


@derivative
def cholesky_jvp_a(a_dot, z):
    c = np.ascontiguousarray(z)
    c_inverse = inverse(c)
    inner = np.dot(np.dot(c_inverse, symmetric_part(a_dot)), np.ascontiguousarray(c_inverse.T))
    return np.dot(c, lower_half(inner))


# the same functions, but for numbers that are not finite (`finite_matrices`)
declare("solve_vector", "a", "b", like="solve_1", holomorphic=True)
declare("solve_matrix", "a", "b", like="solve_2", holomorphic=True)
declare("inverse", "a", like="inv", holomorphic=True)
declare("determinant", "a", like="det")
