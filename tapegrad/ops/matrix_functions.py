"""Matrix functions and solvers, with the names of scipy.linalg and numpy.linalg."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.ops.complex import adjoint
from tapegrad.ops.linalg import cholesky, inv, solve, solve_triangular
from tapegrad.ops.shape import concatenate, moveaxis, ravel, reshape
from tapegrad.ops.table.array_kinds import Opaque, opaque
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import array_of, dtype_of, plain, rank, shape_of
from tapegrad.ops.table.scipy_functions import scipy_function

NAMESPACE = "linalg"  # of the functions declared here

# -- functions of matrices ------------------------------------------------------------------------


def _computed(name: str) -> Callable[[Any], Any]:
    def compute(x: Any) -> Any:
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ValueError(f"{name}: expected square matrices, got shape {x.shape}")
        function = scipy_function("linalg", name)
        if not x.size:
            return x.astype(x.dtype if x.dtype.kind in "fc" else float)
        precise = x.astype(np.result_type(x.dtype, float)).reshape(-1, *x.shape[-2:])
        found = np.stack([function(matrix) for matrix in precise]).reshape(x.shape)
        single = x.dtype in (np.float32, np.complex64)
        return (
            found.astype(np.complex64 if found.dtype.kind == "c" else x.dtype) if single else found
        )

    return compute


def _differentiated(function: Opaque, *, on_negative_axis: bool) -> None:
    """Declare the derivatives of a matrix function that has a power series.

    For a block matrix, f([[x, d], [0, x]]) = [[f(x), f'(x) d], [0, f(x)]]. Source: N. J. Higham,
    "Functions of Matrices" (SIAM 2008), equation 3.16. With `on_negative_axis` it is differentiable
    even if an eigenvalue is 0 or a negative number.
    """

    def tangent(t: Any, x: Any) -> Any:
        if not on_negative_axis:
            _refuse_negative(function.name, plain(x))
        n = shape_of(x)[-1]
        # the map is linear in t, but its computation depends on the norm of the block matrix
        scale = np.abs(plain(t)).max(axis=(-2, -1), keepdims=True, initial=0.0)
        scale = np.where((scale > 0.0) & np.isfinite(scale), scale, np.ones((), scale.dtype))
        zeros = np.zeros(shape_of(x), dtype_of(x))
        above = concatenate([x, t / scale], -1)
        block = concatenate([above, concatenate([zeros, x], -1)], -2)
        return function(block)[..., :n, n:] * scale

    function.jvp("x")(tangent)
    function.vjp("x")(lambda g, x: adjoint(tangent(adjoint(g), x)))


def _refuse_negative(name: str, x: Any) -> None:
    eigenvalues = np.linalg.eigvals(x)
    close = 100.0 * np.finfo(x.dtype).eps * np.abs(eigenvalues).max(axis=-1, initial=0.0)
    if np.any((eigenvalues.real <= close[..., None]) & (abs(eigenvalues.imag) <= close[..., None])):
        raise np.linalg.LinAlgError(
            f"{name} has no derivative where an eigenvalue is 0 or a negative number; "
            "detach() the matrix, or differentiate beside it"
        )


@opaque(_computed("expm"))
def expm(x):
    """Exponential of square matrices."""


@opaque(_computed("logm"))
def logm(x):
    """Principal logarithm of square matrices; complex if an eigenvalue is negative."""


@opaque(_computed("sqrtm"))
def sqrtm(x):
    """Principal square root of square matrices; complex if an eigenvalue is negative."""


_differentiated(expm, on_negative_axis=True)
_differentiated(logm, on_negative_axis=False)
_differentiated(sqrtm, on_negative_axis=False)

# -- systems of equations -------------------------------------------------------------------------


@composite
def cho_factor(a, lower=False):
    """Return a triangular factor for `cho_solve`, and whether it is lower triangular.

    As in `cholesky`, only the lower triangle of a is read. The other triangle of the factor is 0.
    """
    factor = cholesky(a)
    return (factor, True) if lower else (adjoint(factor), False)


@composite(of_list=True)
def cho_solve(c_and_lower, b):
    """Return the solution x of a @ x = b, from the pair that `cho_factor` returns for a."""
    if not isinstance(c_and_lower, tuple) or len(c_and_lower) != 2:
        raise TypeError("cho_solve: expected the pair (factor, lower) that cho_factor returns")
    c, lower = c_and_lower
    first, second = (c, adjoint(c)) if lower else (adjoint(c), c)
    return solve_triangular(second, solve_triangular(first, b, lower=True), lower=False)


@composite
def tensorinv(x, ind=2):
    """Inverse of the linear map from the last axes to the first `ind` axes."""
    if ind <= 0:
        raise ValueError(f"tensorinv: ind {ind} must be positive")
    shape = shape_of(x)
    rows = math.prod(shape[:ind])
    return reshape(inv(reshape(x, (rows, -1))), (*shape[ind:], *shape[:ind]))


@composite
def tensorsolve(a, b, axes=None):
    """Return the solution x of tensordot(a, x, x.ndim) = b, with `axes` of a moved to its end."""
    a, b = array_of(a), array_of(b)
    if axes is not None:
        a = moveaxis(a, tuple(axes), tuple(range(-len(tuple(axes)), 0)))
    shape = shape_of(a)[rank(b) :]
    return reshape(solve(reshape(a, (-1, math.prod(shape))), ravel(b)), shape)
