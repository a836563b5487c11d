"""Functions of complex numbers that generated code calls."""

from __future__ import annotations

import numpy as np

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import declare, derivative, partial
from tapegrad.transform.rules.effects import has_effect
from tapegrad.transform.runtime import INFINITESIMAL, NEGLIGIBLE

declare("complex_det", "a", calls=False, holomorphic=True)
declare(
    *("complex_vdot", "x", "y"),
    calls=False,
    holomorphic=True,
    linear=("x", "y"),
    value="np.vdot(np.ascontiguousarray(x), np.ascontiguousarray(y))",
)


@jit
@has_effect()
def complex_inverse(z):
    """Return ``1 / z``, or nan for 0 instead of an error."""
    return 1.0 / z if z != 0.0 else complex(np.nan, np.nan)


@jit
@has_effect()
def complex_product(x, y):
    """Return ``x * y`` as `runtime.product` does; at least one factor is complex."""
    if x == 0.0:
        return 0j
    return x * y if abs(x) >= NEGLIGIBLE else 0.0 * y


@jit
@has_effect()
def complex_nonzero(partial):
    """Return a partial as `runtime.nonzero` does."""
    return partial if partial != 0.0 else complex(INFINITESIMAL, 0.0)


@jit
@has_effect()
def direction(z):
    """Return the unit complex number in the direction of z, or 0 for 0."""
    size = abs(z)
    return z / size if size != 0.0 else 0j


@jit
def directions(z):
    """Return the directions of complex numbers."""
    size = np.abs(z)
    return z / np.where(size == 0.0, 1.0, size)


@jit
@has_effect()
def turn(z):
    """Return the gradient of the angle of a complex number, as a complex number."""
    size = abs(z)  # its square may overflow or underflow
    return 1j * (z / size) / size if size != 0.0 else 0j


@jit
def turns(z):
    """Return the gradients of the angles of complex numbers, as complex numbers."""
    size = np.abs(z)
    size = np.where(size == 0.0, 1.0, size)
    return 1j * (z / size) / size


@partial
def complex_det_partial_a(a, z):
    """Return the derivative of the determinant z of a complex matrix.

    If z is small compared with the product of the norms of the rows (Hadamard's bound), the inverse
    is not accurate, and the derivative is computed from minors.
    """
    size = a.shape[0]
    bound = 1.0
    for i in range(size):
        bound *= np.sqrt(np.sum(np.abs(a[i]) ** 2))
    if abs(z) > 1e-3 * bound:
        return z * np.linalg.inv(a).T
    found = np.ones_like(a)
    minor = np.empty((size - 1, size - 1), a.dtype)
    for i in range(size):
        for j in range(size):
            for k in range(size - 1):
                for m in range(size - 1):
                    minor[k, m] = a[k + (k >= i), m + (m >= j)]
            if size > 1:
                found[i, j] = (1.0 - 2.0 * ((i + j) % 2)) * np.linalg.det(minor)
    return found


@derivative
def complex_vdot_vjp_x(x_bar, y, g):
    # the operands of vjps are conjugated
    x_bar += np.conj(g * y)


@derivative
def complex_vdot_vjp_y(x, y_bar, g):
    y_bar += g * np.conj(x)
