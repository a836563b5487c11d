"""Products with sparse matrices of SciPy, which are constants."""

from __future__ import annotations

from tapegrad.ops.array_kinds import linear


@linear(arrays=1)
def sparse_product(x, matrix):
    """Product of a sparse matrix and a vector or matrix."""
    return matrix @ x


@sparse_product.transpose("x")
def _(g, matrix):
    return sparse_product(g, matrix.conj().T)
