"""Matrix products, and those of tensors over several axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tapegrad.cuda.array import as_array
from tapegrad.ops import elementwise as ew
from tapegrad.ops import reduction
from tapegrad.ops.complex import conjugated
from tapegrad.ops.shape import (
    astype,
    expand_dims,
    laid_out,
    moveaxis,
    reshape,
    transpose,
    unbroadcast,
)
from tapegrad.ops.table.array_kinds import bilinear
from tapegrad.ops.table.batching import aligned
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import dtype_of, internal, normalize_axes, public, rank, shape_of


def _matmul(x, y):
    """Return the matrix product of arrays; NumPy's own is slow for a batch of vectors."""
    x, y = as_array(x), as_array(y)
    is_alike = type(x) is type(y) is np.ndarray and x.ndim == y.ndim == 3
    if not is_alike or x.shape[-1] != y.shape[-2]:
        return np.matmul(x, y)
    if x.shape[-1] == 1:
        return _outer_products(x, y)
    if x.shape[0] == y.shape[0] > 1:
        if y.strides[0] == 0 and x.strides[0] != 0:  # all items times one matrix
            rows = x.reshape(x.shape[0] * x.shape[1], x.shape[2])
            return np.matmul(rows, y[0]).reshape(*x.shape[:2], y.shape[2])
        if x.strides[0] == 0 and y.strides[0] != 0 and y.shape[-1] == 1:  # one matrix times vectors
            return np.matmul(y[..., 0], x[0].T)[..., None]
    return np.matmul(x, y)


def _outer_products(x, y):
    """Return the products of columns and rows.

    NumPy's loop over a few columns is slow. A matrix product is fast, but not if the matrices have
    one column: large ones get a second, of zeros.
    """
    dtype, (rows, columns) = np.result_type(x, y), (x.shape[1], y.shape[2])
    size = max(x.shape[0], y.shape[0]) * rows * columns
    if min(rows, columns) == 1 or rows * columns < 64 or size < 2560 or dtype.kind != "f":
        return np.multiply(x, y)
    wide, tall = np.zeros((*x.shape[:2], 2), dtype), np.zeros((y.shape[0], 2, columns), dtype)
    wide[..., :1], tall[:, :1] = x, y
    return np.matmul(wide, tall)


@public("matmul", "linalg.matmul", method=True)
@bilinear(_matmul)
def matmul(x, y):
    """Matrix product over the last two axes, broadcast over the others."""


@matmul.vjp("x")
def _(g, x_shape, y):
    if rank(y) == 1:
        return unbroadcast(ew.multiply(expand_dims(g, -1), conjugated(y)), x_shape)
    if len(x_shape) > 1:
        return unbroadcast(product(g, conjugated(y), False, True), x_shape)
    rows = product(expand_dims(g, -2), conjugated(y), False, True)
    return unbroadcast(reshape(rows, (*shape_of(rows)[:-2], x_shape[0])), x_shape)


@matmul.vjp("y")
def _(g, x, y_shape):
    if rank(x) == 1:
        if len(y_shape) == 1:
            return ew.multiply(g, conjugated(x))
        return unbroadcast(ew.multiply(expand_dims(conjugated(x), -1), expand_dims(g, -2)), y_shape)
    if len(y_shape) > 1:
        return unbroadcast(product(conjugated(x), g, True, False), y_shape)
    column = product(conjugated(x), expand_dims(g, -1), True, False)
    return reshape(unbroadcast(column, (*y_shape, 1)), y_shape)


@matmul.batching
def _(x, y, batched):
    if not (rank(x) - batched[0] and rank(y) - batched[1]):
        raise ValueError("matmul: an array without axes is no factor of a matrix product")
    if not batched[1] and rank(y) <= 2:  # a single matrix product
        *lead, length = shape_of(x)
        rows = matmul(reshape(x, (math.prod(lead), length)), y)
        return reshape(rows, (*lead, *shape_of(y)[1:]))
    is_row, is_column = rank(x) - batched[0] == 1, rank(y) - batched[1] == 1
    x = expand_dims(x, -2) if is_row else x
    y = expand_dims(y, -1) if is_column else y
    found = matmul(*aligned((x, y), batched))
    shape = shape_of(found)
    kept = (*(() if is_row else shape[-2:-1]), *(() if is_column else shape[-1:]))
    return reshape(found, (*shape[:-2], *kept)) if is_row or is_column else found


@internal
@bilinear(arrays=2)
def product(x, y, tx, ty):
    """Product of matrices, each optionally transposed first.

    Derivatives of products use it, so that no transpose has to be recorded and swept.
    """
    return _matmul(np.swapaxes(x, -1, -2) if tx else x, np.swapaxes(y, -1, -2) if ty else y)


@product.vjp("x")
def _(g, x_shape, y, tx, ty):
    y = conjugated(y)
    return unbroadcast(product(y, g, ty, True) if tx else product(g, y, False, not ty), x_shape)


@product.vjp("y")
def _(g, x, y_shape, tx, ty):
    x = conjugated(x)
    return unbroadcast(product(g, x, True, tx) if ty else product(x, g, not tx, False), y_shape)


@product.batching
def _(x, y, tx, ty, batched):
    return product(*aligned((x, y), batched), tx, ty)


@public(method=True)
@composite
def dot(x, y):
    """Product over the last axis of x and the last but one of y."""
    if rank(x) == 0 or rank(y) == 0:
        return _scaled(x, y)
    if rank(y) <= 2:
        return matmul(x, y)
    return tensordot(x, y, axes=((rank(x) - 1,), (rank(y) - 2,)))


def _scaled(x: Any, y: Any) -> Any:
    """Return the product with a number; NumPy's of matrices, by BLAS, is in row-major order."""
    found = ew.multiply(x, y)
    is_of_blas = rank(found) < 3 and dtype_of(found).kind in "fc"
    return laid_out(found, (*range(rank(found)),)) if is_of_blas else found


@composite
def inner(x, y):
    """Product over the last axes of both."""
    if rank(x) == 0 or rank(y) == 0:
        return _scaled(x, y)
    return tensordot(x, y, axes=((rank(x) - 1,), (rank(y) - 1,)))


@composite
def vdot(x, y):
    """Sum of products of all elements, with x conjugated."""
    return matmul(reshape(conjugated(x), (-1,)), reshape(y, (-1,)))


@public("vecdot", "linalg.vecdot")
@composite
def vecdot(x, y, axis=-1):
    """Sum of products over one axis, with x conjugated."""
    if axis != -1:  # an axis of each, which may be of different rank
        x, y = (moveaxis(z, axis, -1) for z in (x, y))
    found = reduction.sum(ew.multiply(conjugated(x), y), axis=-1)
    kind = np.result_type(dtype_of(x), dtype_of(y))
    return found if kind.kind not in "biu" else astype(found, kind)  # as np.vecdot, unlike np.sum


@public("outer", "linalg.outer")
@composite
def outer(x, y):
    """All products of elements of two flattened arrays."""
    return ew.multiply(reshape(x, (-1, 1)), reshape(y, (1, -1)))


@composite
def kron(x, y):
    """Kronecker product."""
    ndim = max(rank(x), rank(y))
    wide_x = (1,) * (ndim - rank(x)) + shape_of(x)
    wide_y = (1,) * (ndim - rank(y)) + shape_of(y)
    spaced_x = reshape(x, tuple(n for dim in wide_x for n in (dim, 1)))
    spaced_y = reshape(y, tuple(n for dim in wide_y for n in (1, dim)))
    product = ew.multiply(spaced_x, spaced_y)
    return reshape(product, tuple(a * b for a, b in zip(wide_x, wide_y, strict=True)))


@public("tensordot", "linalg.tensordot")
@composite
def tensordot(x, y, axes=2):
    """Sum of products over several axes."""
    if isinstance(axes, (int, np.integer)):
        count = int(axes)
        axes_x = tuple(range(rank(x) - count, rank(x)))
        axes_y = tuple(range(count))
    else:
        if len(np.atleast_1d(axes[0])) != len(np.atleast_1d(axes[1])):
            raise ValueError(f"tensordot: `axes` {axes!r} must name as many axes of x as of y")
        axes_x = normalize_axes(tuple(np.atleast_1d(axes[0]).tolist()), rank(x))
        axes_y = normalize_axes(tuple(np.atleast_1d(axes[1]).tolist()), rank(y))
    summed_x = [shape_of(x)[a] for a in axes_x]
    if summed_x != [shape_of(y)[a] for a in axes_y]:
        raise ValueError(
            f"tensordot: axes {axes_x} of shape {shape_of(x)} do not match axes {axes_y} of "
            f"shape {shape_of(y)}"
        )
    free_x = [a for a in range(rank(x)) if a not in axes_x]
    free_y = [a for a in range(rank(y)) if a not in axes_y]
    count = math.prod(summed_x)
    out_shape = (*(shape_of(x)[a] for a in free_x), *(shape_of(y)[a] for a in free_y))
    left = reshape(
        transpose(x, (*free_x, *axes_x)), (math.prod(shape_of(x)[a] for a in free_x), count)
    )
    right = reshape(
        transpose(y, (*axes_y, *free_y)), (count, math.prod(shape_of(y)[a] for a in free_y))
    )
    return reshape(matmul(left, right), out_shape)
