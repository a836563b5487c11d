"""Products of stacked matrices, with rules that are products of stacked matrices again.

The letters of a name tell which factors are transposed: ``product_tn(x, y)`` is the product of the
transposes in `x` with the matrices in `y`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from tapegrad.transform.function import njit


@njit
def product_nn(x, y):
    """Return the products of the matrices of two stacks."""
    out = np.empty((x.shape[0], x.shape[1], y.shape[2]))
    for k in range(x.shape[0]):
        np.dot(x[k], y[k], out[k])
    return out


@njit
def product_nt(x, y):
    """Return the products with the transposes of the second matrices."""
    out = np.empty((x.shape[0], x.shape[1], y.shape[1]))
    for k in range(x.shape[0]):
        np.dot(x[k], y[k].T, out[k])
    return out


@njit
def product_tn(x, y):
    """Return the products of the transposes of the first matrices."""
    out = np.empty((x.shape[0], x.shape[2], y.shape[2]))
    for k in range(x.shape[0]):
        np.dot(x[k].T, y[k], out[k])
    return out


@product_nn.defvjp
def _nn_vjp(x, y, z, g):
    return product_nt(g, y), product_tn(x, g)


@product_nt.defvjp
def _nt_vjp(x, y, z, g):
    return product_nn(g, y), product_tn(g, x)


@product_tn.defvjp
def _tn_vjp(x, y, z, g):
    return product_nt(y, g), product_nn(x, g)


@product_nn.defjvp
def _nn_jvp(x, y, x_dot, y_dot):
    return product_nn(x_dot, y) + product_nn(x, y_dot)


@product_nt.defjvp
def _nt_jvp(x, y, x_dot, y_dot):
    return product_nt(x_dot, y) + product_nt(x, y_dot)


@product_tn.defjvp
def _tn_jvp(x, y, x_dot, y_dot):
    return product_tn(x_dot, y) + product_tn(x, y_dot)
