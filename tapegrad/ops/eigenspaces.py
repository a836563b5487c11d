"""Quotients by gaps of eigenvalues, where these may coincide.

Vectors of equal eigenvalues are any basis of the eigenspace, so that they have no derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.ops.piecewise import where
from tapegrad.ops.shape import expand_dims
from tapegrad.ops.table.array_kinds import opaque
from tapegrad.ops.table.op import internal, plain, shape_of


def safe_inverse(values: Any) -> Any:
    """Return 1 / values, or 0 for 0."""
    same = values == 0.0
    return where(same, 0.0, 1.0 / where(same, 1.0, values))


def _undefined(x):
    return np.where(x == 0.0, np.zeros((), x.dtype), np.full((), math.nan, x.dtype))


@internal
@opaque(_undefined)
def undefined(x):
    """The product with a factor that is not known: nan, but 0 for 0."""


@undefined.vjp("x")
def _(g):
    return undefined(g)


@undefined.jvp("x")
def _(t):
    return undefined(t)


def _rounding_of(w: Any) -> Any:
    """Return what eigenvalues may differ by due to rounding, with an axis of length 1."""
    sizes = np.abs(plain(w))
    largest = np.max(sizes, axis=-1, keepdims=True, initial=0.0)
    return 4.0 * sizes.shape[-1] * np.finfo(sizes.dtype).eps * largest


def over_gaps(x: Any, w: Any, gaps: Any, reads: Sequence[Any] = ()) -> Any:
    """Return x / gaps for all pairs of eigenvalues w, and 0 on the diagonal.

    Where eigenvalues coincide, but for rounding, their vectors are any basis of the eigenspace, and
    a quotient is the limit of 0 / 0, which depends on what is not known here. It is nan, unless
    what it depends on is 0: `x`, or all of `reads`.
    """
    size = shape_of(w)[-1]
    row, column = expand_dims(plain(w), -2), expand_dims(plain(w), -1)
    near = expand_dims(_rounding_of(w), -1)
    same = (np.abs(row - column) <= near) | np.eye(size, dtype=bool)
    found = where(same, 0.0, x / where(same, 1.0, gaps))
    apart = same & ~np.eye(size, dtype=bool)
    for read in reads or [x]:
        found = found + undefined(where(apart, read, 0.0))
    return found


def within_eigenspaces(gw: Any, w: Any, used: Callable[[], np.ndarray]) -> Sequence[Any]:
    """Return the cotangents of both eigenvalues of pairs of equal ones, 0 for other pairs.

    What passes between the vectors of an eigenspace is the limit of a quotient, and a function that
    is 0 at its eigenvalue, as the logarithm at 1, gives cotangents of 0 to these vectors. Then only
    those of the eigenvalues show that something may pass: see `over_gaps`. They do not concern
    pairs of vectors that are not used at all.

    Parameters
    ----------
    gw, w
        The cotangents of the eigenvalues, and the eigenvalues.
    used
        Returns which vectors are used. It is called if any eigenvalues are equal.
    """
    row, column = expand_dims(plain(w), -2), expand_dims(plain(w), -1)
    equal = (row == column) & ~np.eye(shape_of(w)[-1], dtype=bool)
    if not equal.any():
        return ()
    is_used = used()
    equal &= np.expand_dims(is_used, -2) | np.expand_dims(is_used, -1)
    return where(equal, expand_dims(gw, -2), 0.0), where(equal, expand_dims(gw, -1), 0.0)


def inverse_of(s: Any) -> Any:
    """Return 1 / s for singular values, 0 where they are 0 but for rounding."""
    return safe_inverse(where(plain(s) <= _rounding_of(s), 0.0, s))


def of_kernel(x: Any, s: Any) -> Any:
    """Return nan in columns with the singular value 0, whose vectors are not determined."""
    return undefined(where(expand_dims(plain(s) <= _rounding_of(s), -2), x, 0.0))
