"""Products with SciPy's sparse matrices, which are constants."""

from __future__ import annotations

from tapegrad.ops.shape import moveaxis, reshape
from tapegrad.ops.table.array_kinds import linear
from tapegrad.ops.table.batching import flattened
from tapegrad.ops.table.op import internal, shape_of


@internal
@linear(arrays=1)
def sparse_product(x, matrix):
    """Product of a sparse matrix and a vector or matrix."""
    return matrix @ x


@sparse_product.transpose("x")
def _(g, matrix):
    return sparse_product(g, matrix.conj().T)


@sparse_product.batching
def _(x, matrix):
    size, *shape = shape_of(x)
    columns = flattened(moveaxis(x, 0, -1))
    found = reshape(sparse_product(columns, matrix), (matrix.shape[0], *shape[1:], size))
    return moveaxis(found, -1, 0)
