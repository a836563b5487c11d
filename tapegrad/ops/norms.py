"""Norms of vectors and matrices."""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from tapegrad.ops import elementwise as ew
from tapegrad.ops import reduction
from tapegrad.ops.linalg import svdvals
from tapegrad.ops.piecewise import where
from tapegrad.ops.shape import expand_dims, moveaxis
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import (
    dtype_of,
    is_differentiated,
    normalize_axes,
    plain,
    public,
    rank,
    shape_of,
)


def _largest(sizes, axis, keepdims=False):
    """Return the largest of sizes along axes: 0 if there are none, as in NumPy."""
    shape = shape_of(sizes)
    is_empty = any(shape[a] == 0 for a in normalize_axes(axis, len(shape)))
    combine = reduction.sum if is_empty else reduction.max
    return combine(sizes, axis=axis, keepdims=keepdims)


@public("vector_norm", "linalg.vector_norm")
@composite
def vector_norm(x, axis=None, keepdims=False, ord=2):
    """Norm of vectors along axes.

    The derivative is 0 where the norm is 0, and for elements that are 0, even if ord < 1.
    """
    if axis is not None:
        normalize_axis_tuple(axis, rank(x))  # sums also take the axis 0 of an array without axes
    if isinstance(ord, str):
        raise ValueError(f"vector_norm: ord {ord!r} is for matrices; give two axes")
    size = ew.absolute(x)
    if not is_differentiated(ord):  # else always use powers
        if ord == 2:
            return reduction.euclidean_norm(x, axis=axis, keepdims=keepdims)
        if ord == math.inf:
            return _largest(size, axis, keepdims)
        if ord == -math.inf:
            return reduction.min(size, axis=axis, keepdims=keepdims)
        if ord == 1:
            return reduction.sum(size, axis=axis, keepdims=keepdims)
        if ord == 0:
            kind = dtype_of(size).type if dtype_of(size).kind == "f" else np.float64
            return reduction.sum(where(x != 0, kind(1), kind(0)), axis=axis, keepdims=keepdims)
    elif not math.isfinite(plain(ord)) or plain(ord) == 0.0:
        raise ValueError(
            f"vector_norm: there is no derivative with respect to ord {plain(ord)}; detach() it"
        )
    if plain(ord) < 1 or is_differentiated(ord):
        # the powers and their logarithms have an infinite slope at 0
        absent = plain(size) == 0.0
        powers = ew.power(where(absent, 1.0, size), ord)
        powers = where(absent, 0.0 if plain(ord) > 0 else math.inf, powers)
    else:
        powers = ew.power(size, ord)
    total = reduction.sum(powers, axis=axis, keepdims=keepdims)
    # 0 ** (1 / ord) is not differentiated at 0
    zero = total == (0.0 if plain(ord) > 0 else math.inf)
    return where(zero, 0.0, ew.power(where(zero, 1.0, total), 1.0 / ord))


@public("matrix_norm", "linalg.matrix_norm")
@composite
def matrix_norm(x, ord="fro", axis=(-2, -1), keepdims=False):
    """Norm of matrices: fro, nuc, ±1, ±2, ±inf."""
    if is_differentiated(ord):
        raise TypeError("matrix_norm: there is no derivative with respect to `ord`; detach() it")
    row, column = normalize_axes(axis, rank(x))
    if ord == "fro":
        return vector_norm(x, axis=(row, column), keepdims=keepdims)
    x = moveaxis(x, (row, column), (-2, -1))
    if ord in (2, -2, "nuc"):
        combine = reduction.sum if ord == "nuc" else _largest if ord == 2 else reduction.min
        found = combine(svdvals(x), axis=-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = reduction.sum(ew.absolute(x), axis=-2 if abs(ord) == 1 else -1)
        found = (_largest if ord > 0 else reduction.min)(sums, axis=-1)
    else:
        raise ValueError(f"matrix_norm: ord {ord!r} is not one of fro, nuc, ±1, ±2, ±inf")
    if keepdims:
        for a in sorted((row, column)):
            found = expand_dims(found, a)
    return found


@public("norm", "linalg.norm", method=True)
@composite
def norm(x, ord=None, axis=None, keepdims=False):
    """Norm of vectors or matrices, as in numpy.linalg.norm."""
    if axis is None and ord is None:
        return vector_norm(x, keepdims=keepdims)
    if axis is None:
        if rank(x) not in (1, 2):
            raise ValueError(f"norm: with `ord`, expected 1 or 2 dimensions, got {rank(x)}")
        axis = tuple(range(rank(x)))
    axes = normalize_axis_tuple(axis, rank(x))
    if len(axes) not in (1, 2):
        raise ValueError(f"norm: expected one axis or two, got {len(axes)}")
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    return matrix_norm(x, "fro" if ord is None else ord, axes, keepdims)
