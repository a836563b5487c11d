"""Polynomials given by coefficients, highest power first, with NumPy's names."""

from __future__ import annotations

import numpy as np

from tapegrad.ops import elementwise as ew
from tapegrad.ops import reduction
from tapegrad.ops.complex import conjugate
from tapegrad.ops.products import matmul
from tapegrad.ops.shape import expand_dims
from tapegrad.ops.systems import lstsq
from tapegrad.ops.table.array_kinds import opaque
from tapegrad.ops.table.composite import composite
from tapegrad.ops.table.op import array_of, dtype_of, rank, shape_of


@composite
def polyval(p, x):
    """Value at x of the polynomial with coefficients p."""
    x = array_of(x)
    found = 0.0 * x
    for k in range(shape_of(p)[0]):
        found = found * x + p[k]
    return found


@composite
def vander(x, N=None, increasing=False):  # noqa: N803 (NumPy's name)
    """Matrix of powers of numbers, the highest power first (or last)."""
    if rank(x) != 1:
        raise ValueError(f"vander: expected one dimension, got {rank(x)}")
    powers = np.arange(shape_of(x)[0] if N is None else N)
    return ew.power(expand_dims(x, -1), powers if increasing else powers[::-1])


@composite
def polyfit(x, y, deg, rcond=None, w=None):
    """Coefficients of the polynomial of a degree that is the least-squares fit to points."""
    x, y = array_of(x) + 0.0, array_of(y) + 0.0
    if rank(x) != 1 or rank(y) not in (1, 2) or shape_of(x)[0] != shape_of(y)[0] or deg < 0:
        raise ValueError(
            f"polyfit: got x of shape {shape_of(x)}, y of shape {shape_of(y)}, degree {deg}; "
            "expected as many values as points, and a degree of 0 or more"
        )
    if not shape_of(x)[0]:
        raise ValueError("polyfit: there are no points")
    powers = vander(x, deg + 1)
    if w is not None:
        if shape_of(w) != shape_of(x):
            raise ValueError(
                f"polyfit: w has shape {shape_of(w)}, expected that of x, {shape_of(x)}"
            )
        weights = expand_dims(array_of(w) + 0.0, -1)
        powers, y = powers * weights, y * (weights if rank(y) == 2 else weights[:, 0])
    scale = ew.sqrt(reduction.sum(powers * powers, axis=0))
    if rcond is None:
        rcond = shape_of(x)[0] * np.finfo(dtype_of(x)).eps
    found = lstsq(powers / scale, y, rcond)[0]
    return found / (expand_dims(scale, -1) if rank(y) == 2 else scale)


@opaque(np.roots, stacks=False)
def roots(p):
    """Roots of the polynomial with coefficients p.

    At a multiple root, the derivative is infinite or nan.
    """


@roots.vjp("p")
def _(g, z, p):
    n = shape_of(p)[0]
    if n < 2:
        return np.zeros(n, dtype_of(p))
    slope = polyval(p[:-1] * np.arange(n - 1.0, 0.0, -1.0), z)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -matmul(g / conjugate(slope), conjugate(vander(z, n)))


@roots.jvp("p")
def _(t, z, p):
    n = shape_of(p)[0]
    if n < 2:
        return np.zeros(0, dtype_of(z))
    slope = polyval(p[:-1] * np.arange(n - 1.0, 0.0, -1.0), z)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -matmul(vander(z, n), t) / slope
