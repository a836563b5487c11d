"""Pseudo-inverses, least squares, chains of products, and eigenvalues of general matrices."""

from __future__ import annotations

import math

import numpy as np

from tapegrad.ops import elementwise as ew
from tapegrad.ops import reduction
from tapegrad.ops.complex import adjoint, conjugate, real
from tapegrad.ops.eigenspaces import over_gaps
from tapegrad.ops.linalg import inv, refuse_phases, solve, svdvals
from tapegrad.ops.norms import norm
from tapegrad.ops.piecewise import where
from tapegrad.ops.products import matmul
from tapegrad.ops.shape import diagonal, expand_dims
from tapegrad.ops.table.array_kinds import opaque
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import array_of, dtype_of, plain, public, rank, shape_of

# -- least squares --------------------------------------------------------------------------------


def _pinv(x, rcond, hermitian, rtol):
    if rtol is not None:
        if rcond is not None:
            raise ValueError("pinv: got both rcond and rtol, which are two names of one limit")
        rcond = rtol
    given = {} if rcond is None else {"rcond": rcond}  # as CuPy's function takes it, ...
    if hermitian:  # ... which does not have this
        given["hermitian"] = True
    return np.linalg.pinv(x, **given)


@public("pinv", "linalg.pinv")
@opaque(_pinv, arrays=1)
def pinv(x, rcond=None, hermitian=False, *, rtol=None):
    """Pseudo-inverse of matrices, differentiable where the rank is constant.

    Source: G. H. Golub, V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least
    squares problems whose variables separate", SIAM J. Numer. Anal. 10 (1973), equation 4.12.
    """


@pinv.vjp("x")
def _(g, z, x, rcond, hermitian, rtol):
    _refuse_truncation(plain(x), rcond if rtol is None else rtol)
    zh, gh = adjoint(z), adjoint(g)
    found = -matmul(zh, matmul(g, zh))
    left = matmul(gh, matmul(z, zh))
    right = matmul(matmul(zh, z), gh)
    found = found + left - matmul(x, matmul(z, left))
    return found + right - matmul(matmul(right, z), x)


@pinv.jvp("x")
def _(t, z, x, rcond, hermitian, rtol):
    _refuse_truncation(plain(x), rcond if rtol is None else rtol)
    zh, th = adjoint(z), adjoint(t)
    found = -matmul(z, matmul(t, z))
    left = matmul(z, matmul(zh, th))
    right = matmul(th, matmul(zh, z))
    return found + left - matmul(matmul(left, x), z) + right - matmul(z, matmul(x, right))


def _refuse_truncation(x, limit):
    """Raise if a limit cuts off singular values that are not round-off."""
    noise = 10.0 * max(x.shape[-2:]) * np.finfo(x.dtype).eps
    if limit is None or np.all(np.asarray(limit) <= noise):
        return
    s = np.linalg.svd(x, compute_uv=False)
    largest = s.max(axis=-1, keepdims=True, initial=0.0)
    if np.any((s <= np.asarray(limit)[..., None] * largest) & (s > noise * largest)):
        raise np.linalg.LinAlgError(
            "pinv, lstsq, polyfit: there is no derivative where the limit leaves out singular "
            "values that are not 0; write the solution with svd, or take a smaller rcond (rtol)"
        )


@public("lstsq", "linalg.lstsq")
@composite
def lstsq(a, b, rcond=None):
    """Least-squares solution x of a @ x = b, sums of squared residuals, rank, singular values.

    As in numpy.linalg.lstsq, x is the solution of least norm, and the sums are empty if the rank is
    less than the number of unknowns or there are no more equations than unknowns.
    """
    a, b = (x if dtype_of(x).kind in "fc" else plain(x) * 1.0 for x in map(array_of, (a, b)))
    rows, columns = shape_of(a)
    smallest = np.finfo(dtype_of(a)).eps
    if rcond is None:
        rcond = smallest * max(rows, columns)
    elif rcond < 0.0:
        rcond = smallest
    x = matmul(pinv(a, rcond), b)
    s = svdvals(a)
    count = int(np.count_nonzero(plain(s) > rcond * np.max(plain(s)))) if min(rows, columns) else 0
    if count == columns < rows:
        rest = ew.absolute(b - matmul(a, x))
        residuals = reduction.sum(rest * rest, axis=0, keepdims=rank(b) == 1)
    else:
        residuals = np.empty(0, plain(x).real.dtype)
    return x, residuals, count, s


@public("linalg.cond")
@composite
def cond(x, p=None):
    """Condition number of matrices, in a norm of numpy.linalg.norm."""
    if p in (None, 2, -2):
        s = svdvals(x)
        none = plain(s)[..., 0] == 0.0  # as in NumPy
        one, two = (s[..., -1], s[..., 0]) if p == -2 else (s[..., 0], s[..., -1])
        with np.errstate(divide="ignore"):
            return where(none, math.inf, one / where(none, 1.0, two))
    axes = (-2, -1)
    singular = np.isinf(np.linalg.cond(plain(x), p))
    if np.any(singular):
        x = where(singular[..., None, None], np.eye(shape_of(x)[-1], dtype=dtype_of(x)), x)
    found = norm(x, p, axes) * norm(inv(x), p, axes)
    return where(singular, math.inf, found) if np.any(singular) else found


# -- chains of products ---------------------------------------------------------------------------


@public("multi_dot", "linalg.multi_dot")
@composite(of_list=True)
def multi_dot(arrays):
    """Product of two or more matrices, in the order that needs the fewest multiplications.

    The first and the last may be vectors. Source: T. H. Cormen, C. E. Leiserson, R. L. Rivest,
    C. Stein, "Introduction to Algorithms", section 15.2.
    """
    factors = [array_of(x) for x in arrays]
    if len(factors) < 2:
        raise ValueError("multi_dot: expected at least two arrays")
    for k, x in enumerate(factors):
        if rank(x) != 2 and not (rank(x) == 1 and k in (0, len(factors) - 1)):
            raise ValueError(
                f"multi_dot: array {k} has {rank(x)} axes; each has two, the first and the last "
                "one or two"
            )
    shapes = [shape_of(x) for x in factors]
    sizes = [shapes[0][0] if len(shapes[0]) == 2 else 1, *(shape[-1] for shape in shapes)]
    if len(shapes[-1]) == 1:
        sizes[-2:] = [shapes[-1][0], 1]
    cost: dict[tuple[int, int], tuple[int, int]] = {}
    for length in range(1, len(factors)):
        for i in range(len(factors) - length):
            j = i + length
            cost[i, j] = min(
                (
                    cost.get((i, k), (0, 0))[0]
                    + cost.get((k + 1, j), (0, 0))[0]
                    + sizes[i] * sizes[k + 1] * sizes[j + 1],
                    k,
                )
                for k in range(i, j)
            )

    def product(i, j):
        if i == j:
            return factors[i]
        _, k = cost[i, j]
        return matmul(product(i, k), product(k + 1, j))

    return product(0, len(factors) - 1)


# -- eigenvalues ----------------------------------------------------------------------------------


@public("eig", "linalg.eig")
@opaque(np.linalg.eig)
def eig(x):
    """Eigenvalues w and eigenvectors v (columns of length 1) of square matrices.

    Where eigenvalues coincide, eigenvectors have no derivative: it is nan if they have cotangents
    that could turn them within their space. Losses that depend on the phases of eigenvectors are
    refused. Source: C. Boeddeker, P. Hanebrink, L. Drude, J. Heymann, R. Haeb-Umbach, "On the
    computation of complex-valued gradients with application to statistically optimum beamforming",
    arXiv 1701.00392, section 4.4.
    """


@eig.vjp("x")
def _(g, z):
    w, v = z
    gw, gv = g
    vh = adjoint(v)
    inner = matmul(vh, gv)
    along = diagonal(inner, 0, -2, -1)
    if dtype_of(v).kind == "c":
        refuse_phases(inner, "eig: the eigenvectors")
    lengths = matmul(vh, v)
    middle = inner - ew.multiply(lengths, expand_dims(real(along), -2))
    gaps = expand_dims(w, -2) - expand_dims(w, -1)
    middle = over_gaps(middle, w, conjugate(gaps))
    middle = middle + ew.multiply(expand_dims(gw, -2), np.eye(shape_of(w)[-1]))
    return solve(vh, matmul(middle, vh))


@eig.jvp("x")
def _(t, z):
    w, v = z
    middle = solve(v, matmul(t, v))
    gaps = expand_dims(w, -2) - expand_dims(w, -1)
    turned = matmul(v, over_gaps(middle, w, gaps))
    along = reduction.sum(real(ew.multiply(conjugate(v), turned)), axis=-2, keepdims=True)
    return diagonal(middle, 0, -2, -1), turned - ew.multiply(v, along)


@public("eigvals", "linalg.eigvals")
@composite
def eigvals(x):
    """Eigenvalues of square matrices, in no particular order."""
    return eig(x)[0]


# -- products of vectors and matrices -------------------------------------------------------------


@composite
def matvec(x1, x2):
    """Product of matrices and vectors, over the last axes."""
    return matmul(x1, expand_dims(array_of(x2), -1))[..., 0]


@composite
def vecmat(x1, x2):
    """Product of vectors (conjugated) and matrices, over the last axes."""
    return matmul(conjugate(expand_dims(array_of(x1), -2)), x2)[..., 0, :]
