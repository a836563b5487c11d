"""Linear algebra.

Rules follow M. B. Giles, "An extended collection of matrix derivative results for forward and
reverse mode automatic differentiation" (2008); rules of the decompositions follow S. F. Walter et
al., "On evaluating higher-order derivatives of the QR decomposition" (2012), and J. Townsend,
"Differentiating the singular value decomposition" (2016).
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from tapegrad.ops import elementwise as ew
from tapegrad.ops import reduction
from tapegrad.ops.complex import adjoint, conjugate, conjugated, imag, real
from tapegrad.ops.devices import on_device_of
from tapegrad.ops.eigenspaces import (
    inverse_of,
    of_kernel,
    over_gaps,
    safe_inverse,
    within_eigenspaces,
)
from tapegrad.ops.products import matmul
from tapegrad.ops.shape import (
    concatenate,
    diagonal,
    expand_dims,
    moveaxis,
    reshape,
    trace,
    tril,
    triu,
    unbroadcast,
)
from tapegrad.ops.table.array_kinds import opaque
from tapegrad.ops.table.batching import aligned, flattened
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import copied, internal, is_complex, plain, public, rank, shape_of


def _eye(n: int, like: Any) -> np.ndarray:
    return np.eye(n, dtype=like.dtype)


# -- systems of equations -------------------------------------------------------------------------


@public("inv", "linalg.inv", method=True)
@opaque(np.linalg.inv)
def inv(x):
    """Inverse of square matrices."""


@inv.vjp("x")
def _(g, z):
    return -matmul(adjoint(z), matmul(g, adjoint(z)))


@inv.jvp("x")
def _(t, z):
    return -matmul(z, matmul(t, z))


@public("solve", "linalg.solve")
@opaque(np.linalg.solve)  # NumPy 2 treats b as a vector only if it is 1-d
def solve(a, b):
    """Solution x of a @ x = b; b is one vector (1-d) or matrices."""


@solve.vjp("a")
def _(g, z, a, b_shape):
    if len(b_shape) == 1:
        g, z = expand_dims(g, -1), expand_dims(z, -1)
    return unbroadcast(-matmul(solve(adjoint(a), g), adjoint(z)), shape_of(a))


def _along(t, z, b_shape, solved):
    """Return the solution whose right-hand side is the matrix's tangent times the solution z."""
    if len(b_shape) > 1:
        return solved(matmul(t, z))
    found = solved(matmul(t, expand_dims(z, -1)))  # z is a vector for each matrix
    return reshape(found, shape_of(found)[:-1])


@solve.batching
def _(a, b, batched):
    return _solved_for_batch(solve, a, b, batched)


def _solved_for_batch(op, a, b, batched, *parameters):
    """Solve the systems of a batch; right-hand sides of one matrix are solved together."""
    if rank(a) - batched[0] < 2 or rank(b) == batched[1]:
        raise np.linalg.LinAlgError(
            f"{op.name}: expected a matrix and a vector or matrices, got arrays of "
            f"{rank(a) - batched[0]} and {rank(b) - batched[1]} axes"
        )
    if not batched[0] and rank(a) == 2 and rank(b) <= 3:
        size, *shape = shape_of(b)
        found = op(a, flattened(moveaxis(b, 0, -1)), *parameters)
        return moveaxis(reshape(found, (*shape, size)), -1, 0)
    is_vector = rank(b) - batched[1] == 1
    b = expand_dims(b, -1) if is_vector else b
    found = op(*aligned((a, b), batched), *parameters)
    return reshape(found, shape_of(found)[:-1]) if is_vector else found


@solve.jvp("a")
def _(t, z, a, b_shape):
    return -_along(t, z, b_shape, lambda b: solve(a, b))


@solve.jvp("b")
def _(t, a):
    return solve(a, t)


@solve.vjp("b")
def _(g, a, b_shape):
    if len(b_shape) == 1:
        found = solve(adjoint(a), expand_dims(g, -1))
        return unbroadcast(reshape(found, shape_of(found)[:-1]), b_shape)
    return unbroadcast(solve(adjoint(a), g), b_shape)


def _solve_triangular(a, b, lower, unit_diagonal):
    if a.ndim < 2:  # `tril` would make a matrix of a vector
        raise np.linalg.LinAlgError(
            f"{a.ndim}-dimensional array given. Array must be at least two-dimensional"
        )
    a = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        diagonal = on_device_of(np.eye(a.shape[-1], dtype=bool), a)
        a = np.where(diagonal, np.ones((), a.dtype), a)
    return np.linalg.solve(a, b)


@public("solve_triangular", "linalg.solve_triangular")
@opaque(_solve_triangular, arrays=2)
def solve_triangular(a, b, lower=False, unit_diagonal=False):
    """Solution of a @ x = b for triangular a; the other triangle is not read."""


@solve_triangular.vjp("a")
def _(g, z, a, b_shape, lower, unit_diagonal):
    if len(b_shape) == 1:
        g, z = expand_dims(g, -1), expand_dims(z, -1)
    back = solve_triangular(adjoint(a), g, lower=not lower, unit_diagonal=unit_diagonal)
    full = unbroadcast(-matmul(back, adjoint(z)), shape_of(a))
    if lower:
        return tril(full, -1 if unit_diagonal else 0)
    return triu(full, 1 if unit_diagonal else 0)


@solve_triangular.jvp("a")
def _(t, z, a, b_shape, lower, unit_diagonal):
    skipped = 1 if unit_diagonal else 0
    t = tril(t, -skipped) if lower else triu(t, skipped)
    return -_along(t, z, b_shape, lambda b: solve_triangular(a, b, lower, unit_diagonal))


@solve_triangular.jvp("b")
def _(t, a, lower, unit_diagonal):
    return solve_triangular(a, t, lower, unit_diagonal)


@solve_triangular.batching
def _(a, b, lower, unit_diagonal, batched):
    return _solved_for_batch(solve_triangular, a, b, batched, lower, unit_diagonal)


@solve_triangular.vjp("b")
def _(g, a, b_shape, lower, unit_diagonal):
    if len(b_shape) == 1:
        g = expand_dims(g, -1)
        back = solve_triangular(adjoint(a), g, lower=not lower, unit_diagonal=unit_diagonal)
        return unbroadcast(reshape(back, shape_of(back)[:-1]), b_shape)
    back = solve_triangular(adjoint(a), g, lower=not lower, unit_diagonal=unit_diagonal)
    return unbroadcast(back, b_shape)


@public("det", "linalg.det", method=True)
@opaque(np.linalg.det)
def det(x):
    """Determinant of square matrices."""


@det.vjp("x")
def _(g, x):
    return ew.multiply(expand_dims(expand_dims(g, -1), -1), conjugated(cofactor(x)))


@det.jvp("x")
def _(t, x):
    return reduction.sum(ew.multiply(cofactor(x), t), axis=(-2, -1))


def _without(s, left_out):
    """Return products over the last axis of the singular values that are not left out."""
    for _ in range(left_out.ndim - 1):
        s = s[..., None, :]
    return np.where(left_out, np.ones((), s.dtype), s).prod(-1)


def _cofactor(x):
    """Return det(x) * inv(x).T, by a singular value decomposition, so that x may be singular."""
    u, s, vt = np.linalg.svd(x)
    sign = np.linalg.det(u) * np.linalg.det(vt)
    others = _without(s, np.eye(s.shape[-1], dtype=bool))
    return sign[..., None, None] * np.matmul(u * others[..., None, :], vt).conj()


def _cofactor_slope(x, direction):
    """Return the derivative of the cofactors in a direction.

    In the basis of the singular vectors the matrix is diagonal, and its second-order minors are
    products of all diagonal elements but two.
    """
    u, s, vt = np.linalg.svd(x)
    sign = np.linalg.det(u) * np.linalg.det(vt)
    same = np.eye(s.shape[-1], dtype=bool)
    minors = np.where(same, 0.0, _without(s, same[:, None] | same))
    turned = u.conj().mT @ direction @ vt.conj().mT
    diagonal = np.diagonal(turned, axis1=-2, axis2=-1)
    slope = np.where(same, minors @ diagonal[..., None], -minors * turned.mT)
    return sign[..., None, None] * (u.conj() @ slope @ vt.conj())


@internal
@opaque(_cofactor)
def cofactor(x):
    """Matrix of cofactors, the derivative of the determinant."""


@internal
@opaque(_cofactor_slope)
def cofactor_slope(x, direction):
    """Derivative of the cofactors in a direction."""


def _no_third_derivative(x, direction):
    raise np.linalg.LinAlgError(
        "det: the third derivative at a singular matrix is not supported; differentiate at a "
        "regular matrix"
    )


cofactor_slope.vjp("x")(_no_third_derivative)
cofactor_slope.jvp("x")(_no_third_derivative)


@cofactor_slope.jvp("direction")
def _(t, x):
    return cofactor_slope(x, t)


@cofactor_slope.vjp("direction")
def _(g, x, direction):
    return conjugated(cofactor_slope(x, conjugated(g)))


@cofactor.vjp("x")
def _(g, x):
    if np.any(np.linalg.matrix_rank(plain(x)) < shape_of(x)[-1]):
        return conjugated(cofactor_slope(x, conjugated(g)))
    y = adjoint(inv(x))
    d = expand_dims(expand_dims(conjugated(det(x)), -1), -1)
    total = reduction.sum(ew.multiply(g, y), axis=(-2, -1), keepdims=True)
    return d * (ew.multiply(total, y) - matmul(y, matmul(g.mT, y)))


@cofactor.jvp("x")
def _(t, x):
    # the second derivative of the determinant is symmetric
    return conjugated(cofactor.cotangent("x", conjugated(t), {"x": x}))


@public("slogdet", "linalg.slogdet")
@opaque(np.linalg.slogdet)
def slogdet(x):
    """Sign (or phase) of the determinant and logarithm of its absolute value."""


@slogdet.vjp("x")
def _(g, z, x):
    size = g[1]
    if is_complex(x):
        size = size - 1j * imag(ew.multiply(conjugate(g[0]), z[0]))
    return ew.multiply(expand_dims(expand_dims(size, -1), -1), adjoint(inv(x)))


@slogdet.jvp("x")
def _(t, z, x):
    rate = trace(matmul(inv(x), t), 0, -2, -1)
    turn = imag(rate) * 1j if is_complex(x) else ew.multiply(real(rate), 0.0)
    return ew.multiply(z[0], turn), real(rate) if is_complex(rate) else rate


@public("matrix_power", "linalg.matrix_power")
@composite
def matrix_power(x, n):
    """Integer power of square matrices."""
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"matrix_power: exponent {n!r} must be an integer") from None
    if n < 0:
        x, n = inv(x), -n
    if n == 0:
        return x * 0.0 + _eye(shape_of(x)[-1], x)
    result = None
    while n:
        if n & 1:
            result = x if result is None else matmul(result, x)
        n >>= 1
        if n:
            x = matmul(x, x)
    return copied(result)


# -- decompositions -------------------------------------------------------------------------------


def _half_diagonal(x: Any) -> Any:
    """Return the lower triangle with half the diagonal."""
    n = shape_of(x)[-1]
    return ew.multiply(x, np.tril(np.ones((n, n), x.dtype)) - 0.5 * _eye(n, x))


@public("cholesky", "linalg.cholesky", method=True)
@opaque(np.linalg.cholesky)
def cholesky(x):
    """Lower triangular L with L @ L.T = x, for symmetric positive definite x."""


@cholesky.vjp("x")
def _(g, z):
    middle = _half_diagonal(matmul(adjoint(z), g))
    left = solve_triangular(adjoint(z), middle)
    full = adjoint(solve_triangular(adjoint(z), adjoint(left)))
    return 0.5 * (full + adjoint(full))


@cholesky.jvp("x")
def _(t, z):
    half = solve_triangular(z, 0.5 * (t + adjoint(t)), lower=True)
    return matmul(z, _half_diagonal(adjoint(solve_triangular(z, adjoint(half), lower=True))))


def _real_diagonal(x: Any) -> Any:
    """Return the diagonal matrix of the real parts of a diagonal."""
    return ew.multiply(real(x) if is_complex(x) else x, _eye(shape_of(x)[-1], real(x)))


def _qr(x, mode):
    if mode != "reduced":
        raise ValueError(f"qr: mode {mode!r} is not differentiable; use mode='reduced'")
    return np.linalg.qr(x, mode="reduced")


@public("qr", "linalg.qr")
@opaque(_qr, arrays=1)
def qr(x, mode="reduced"):
    """Orthonormal q and upper triangular r with q @ r = x, for x with no more columns than rows."""


def _refuse_wide(q, r):
    if shape_of(q)[-2] < shape_of(r)[-1]:
        raise np.linalg.LinAlgError(
            "qr: the derivative is defined for matrices at least as high as wide; "
            "decompose the leading columns"
        )


@qr.vjp("x")
def _(g, z):
    q, r = z
    gq, gr = g
    _refuse_wide(q, r)
    m = matmul(r, adjoint(gr)) - matmul(adjoint(gq), q)
    low = tril(m, -1)
    symmetric = low + adjoint(low) + _real_diagonal(m)
    return adjoint(solve_triangular(r, adjoint(gq + matmul(q, symmetric))))


@qr.jvp("x")
def _(t, z):
    q, r = z
    _refuse_wide(q, r)
    ratio = adjoint(solve_triangular(adjoint(r), adjoint(t), lower=True))  # t @ inv(r)
    m = matmul(adjoint(q), ratio)
    low = tril(m, -1)
    upper = triu(m, 1) + adjoint(low) + _real_diagonal(m)
    return ratio - matmul(q, upper), matmul(upper, r)


def refuse_phases(turning: Any, what: str) -> None:
    """Raise if a cotangent of complex vectors depends on the phases of the vectors."""
    diagonal = np.diagonal(plain(turning), axis1=-2, axis2=-1)
    if diagonal.dtype.kind == "c" and not np.allclose(diagonal.imag, 0.0, rtol=1e-2, atol=1e-2):
        raise RuntimeError(
            f"{what} in the complex case are specified up to multiplication by e^{{i phi}}. The "
            "specified loss function depends on this phase term, making it ill-defined."
        )


def _eigh(x, uplo):
    return np.linalg.eigh(x, UPLO=uplo)


@public("eigh", "linalg.eigh")
@opaque(_eigh, arrays=1)
def eigh(x, uplo="L"):
    """Eigenvalues (ascending) and eigenvectors of symmetric matrices.

    The cotangent of x is symmetric. Where eigenvalues coincide, eigenvectors have no derivative: it
    is nan if the cotangents of these vectors could turn them. Cotangents of 0 do not tell vectors
    that are not used from those that are multiplied by 0, as in ``v * log(w) @ v.T`` where w is 1.
    So the derivative is also nan if eigenvalues are exactly equal, they have cotangents that are
    not 0, and one of their vectors is used. All cotangents are 0 for a single element beside the
    diagonal of such a product: its derivative is 0 in reverse mode, and nan in forward mode.
    """


@eigh.vjp("x")
def _(g, z, used):
    w, v = z
    gw, gv = g
    turning = matmul(adjoint(v), gv)
    refuse_phases(turning, "eigh: the eigenvectors")
    gaps = expand_dims(w, -2) - expand_dims(w, -1)
    alike = within_eigenspaces(gw, w, lambda: used.elements(1).any(-2))
    middle = over_gaps(turning, w, gaps, (turning, *alike))
    middle = middle + ew.multiply(expand_dims(gw, -2), _eye(shape_of(w)[-1], w))
    full = matmul(v, matmul(middle, adjoint(v)))
    return 0.5 * (full + adjoint(full))


@eigh.jvp("x")
def _(t, z):
    w, v = z
    middle = matmul(adjoint(v), matmul(0.5 * (t + adjoint(t)), v))
    along = diagonal(middle, 0, -2, -1)
    turned = over_gaps(middle, w, expand_dims(w, -2) - expand_dims(w, -1))
    return real(along) if is_complex(along) else along, matmul(v, turned)


@public("eigvalsh", "linalg.eigvalsh")
@composite
def eigvalsh(x, uplo="L"):
    """Eigenvalues (ascending) of symmetric matrices."""
    return eigh(x, uplo)[0]


def _svd(x):
    return np.linalg.svd(x, full_matrices=False)


@internal
@opaque(_svd)
def thin_svd(x):
    """Thin singular value decomposition u, s, vt (see `svd`)."""


@thin_svd.vjp("x")
def _of_thin_svd(g, z, used):
    u, s, vt = z
    gu, gs, gvt = g
    v, gv = adjoint(vt), adjoint(gvt)
    row, column = expand_dims(s, -2), expand_dims(s, -1)
    gaps = (row - column) * (row + column)
    inverse = safe_inverse(s)
    utgu = matmul(adjoint(u), gu)
    vtgv = matmul(adjoint(v), gv)
    eye = _eye(shape_of(s)[-1], s)
    turning = ew.multiply(utgu - adjoint(utgu), row) + ew.multiply(column, vtgv - adjoint(vtgv))
    alike = within_eigenspaces(gs, s, lambda: used.elements(0).any(-2) | used.elements(2).any(-1))
    middle = over_gaps(turning, s, gaps, (utgu, vtgv, *alike))
    middle = middle + ew.multiply(expand_dims(gs, -2), eye)
    if is_complex(u):  # the phases of u and v are coupled: each takes one half
        refuse_phases(utgu + vtgv, "svd: the singular vectors")
        turn = ew.multiply(imag(utgu) - imag(vtgv), ew.multiply(expand_dims(inverse, -2), eye))
        middle = middle + 0.5j * turn
    found = matmul(u, matmul(middle, vt))
    if shape_of(u)[-2] > shape_of(u)[-1]:
        scaled = ew.multiply(gu, expand_dims(inverse_of(s), -2)) + of_kernel(gu, s)
        found = found + matmul(scaled - matmul(u, matmul(adjoint(u), scaled)), vt)
    if shape_of(v)[-2] > shape_of(v)[-1]:
        scaled = adjoint(ew.multiply(gv, expand_dims(inverse_of(s), -2)) + of_kernel(gv, s))
        found = found + matmul(u, scaled - matmul(matmul(scaled, v), vt))
    return found


@thin_svd.jvp("x")
def _of_thin_svd_forward(t, z):
    u, s, vt = z
    v = adjoint(vt)
    row, column = expand_dims(s, -2), expand_dims(s, -1)
    gaps = (row - column) * (row + column)
    middle = matmul(adjoint(u), matmul(t, v))
    along = diagonal(middle, 0, -2, -1)
    left, right = ew.multiply(middle, row), ew.multiply(column, middle)
    turned_u = over_gaps(left + adjoint(left), s, gaps, (middle, adjoint(middle)))
    turned_v = over_gaps(right + adjoint(right), s, gaps, (middle, adjoint(middle)))
    if is_complex(u):  # the phases are coupled
        turn = 0.5j * imag(along) * safe_inverse(s)
        phases = ew.multiply(expand_dims(turn, -2), _eye(shape_of(s)[-1], s))
        turned_u, turned_v = turned_u + phases, turned_v - phases
    tu, tv = matmul(u, turned_u), matmul(v, turned_v)
    if shape_of(u)[-2] > shape_of(u)[-1]:
        along_v = matmul(t, v)
        scaled = ew.multiply(along_v, expand_dims(inverse_of(s), -2)) + of_kernel(along_v, s)
        tu = tu + scaled - matmul(u, matmul(adjoint(u), scaled))
    if shape_of(v)[-2] > shape_of(v)[-1]:
        along_u = matmul(adjoint(t), u)
        scaled = ew.multiply(along_u, expand_dims(inverse_of(s), -2)) + of_kernel(along_u, s)
        tv = tv + scaled - matmul(v, matmul(vt, scaled))
    return tu, real(along) if is_complex(along) else along, adjoint(tv)


@internal
@opaque(np.linalg.svd)
def full_svd(x):
    """Singular value decomposition with square u and vt (see `svd`)."""


@full_svd.vjp("x")
def _(g, z, used):
    u, s, vt = z
    gu, gs, gvt = g
    count = shape_of(s)[-1]
    if np.any(plain(gu)[..., :, count:]) or np.any(plain(gvt)[..., count:, :]):
        raise np.linalg.LinAlgError(
            "svd: the singular vectors that full_matrices=True adds have no derivative, since any "
            "basis of their space will do; use full_matrices=False, or u[..., :k] and vt[..., :k, "
            ":] with k = min(x.shape[-2:])"
        )
    thin = (u[..., :, :count], s, vt[..., :count, :])
    return _of_thin_svd((gu[..., :, :count], gs, gvt[..., :count, :]), thin, used)


@full_svd.jvp("x")
def _(t, z):
    u, s, vt = z
    count = shape_of(s)[-1]
    tu, ts, tvt = _of_thin_svd_forward(t, (u[..., :, :count], s, vt[..., :count, :]))
    # the additional vectors have no derivative
    more_u = np.full_like(plain(u)[..., :, count:], math.nan)
    more_vt = np.full_like(plain(vt)[..., count:, :], math.nan)
    return concatenate([tu, more_u], -1), ts, concatenate([tvt, more_vt], -2)


@public("svd", "linalg.svd")
@composite
def svd(x, full_matrices=True, compute_uv=True):
    """Singular value decomposition: u, s, vt with u[..., :k] @ diag(s) @ vt[..., :k, :] = x.

    Here k is the number of singular values; ``full_matrices=False`` returns only k vectors. The
    others have no derivative, and nonzero cotangents of them are refused. Where singular values
    coincide, singular vectors have no derivative: it is nan if they have cotangents that could turn
    them within their space. Several singular values of 0 are treated as eigenvalues of 0 are; see
    `eigh`.
    """
    square = shape_of(x)[-1] == shape_of(x)[-2]
    found = full_svd(x) if full_matrices and compute_uv and not square else thin_svd(x)
    return found if compute_uv else found[1]


@public("svdvals", "linalg.svdvals")
@composite
def svdvals(x):
    """Singular values, descending."""
    return thin_svd(x)[1]
