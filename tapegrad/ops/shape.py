"""Ops that rearrange elements: views, casts, and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.ops.kinds import cast, flat, view
from tapegrad.ops.op import shape_of

# -- primitives -----------------------------------------------------------------------------------


@cast
def astype(x, dtype):
    """Convert to another dtype; between float types it is differentiable."""
    return np.asarray(x).astype(dtype)


@astype.transposes
def _(g, shape, dtype):
    return g


@flat
def reshape(x, shape):
    """Give the elements, in row-major order, another shape."""
    return np.reshape(x, shape)


@reshape.transposes
def _(g, shape, **parameters):
    return reshape(g, shape)


@view
def transpose(x, axes=None):
    """Permute the axes (reverse them by default)."""
    return np.transpose(x, axes)


@transpose.transposes
def _(g, shape, axes):
    return transpose(
        g,
        None if axes is None else tuple(int(a) for a in np.argsort([a % len(shape) for a in axes])),
    )


@view
def broadcast_to(x, shape):
    """Repeat along new and size-1 axes, as a read-only view."""
    return np.broadcast_to(x, shape)


@broadcast_to.transposes
def _(g, shape, **parameters):
    return unbroadcast(g, shape)


def unbroadcast(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum what broadcasting repeated, so that the result has `shape`."""
    from tapegrad.ops.reduction import sum as total

    wide = shape_of(g)
    if wide == shape:
        return g
    lead = len(wide) - len(shape)
    axes = tuple(range(lead)) + tuple(
        lead + k for k, dim in enumerate(shape) if dim == 1 and wide[lead + k] != 1
    )
    return reshape(total(g, axis=axes), shape) if axes else reshape(g, shape)
