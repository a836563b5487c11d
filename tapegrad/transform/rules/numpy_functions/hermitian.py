"""Eigenvalues and eigenvectors of Hermitian matrices, as real and imaginary parts.

The formulas are those of symmetric matrices with conjugate transposes. Eigenvectors are determined
up to their phases: the tangent of each has no component along itself, and a function that depends
on the phases is refused.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.transform import spectra
from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import (
    Request,
    declare,
    derivative,
    named_function,
    understands,
)
from tapegrad.transform.rules.numpy_functions.decompositions import (
    all_ones,
    inverse_gaps,
    mark_eigenspaces,
    several,
)
from tapegrad.transform.rules.numpy_functions.linear_algebra import product_of
from tapegrad.transform.rules.scalars import product_of_elements

declare("eigh_of_parts", "a", "b", calls=False, chooses=True)


@named_function
@jit
def eigh_of_parts(a, b):
    """Return the eigenvalues of ``a + 1j * b``, and both parts of the eigenvectors.

    Only lower triangles are read.
    """
    n = a.shape[0]
    values, x, y = np.empty((n, 1)), np.empty((n, n)), np.empty((n, n))
    spectra.find_hermitian_eigenvalues(0, (x, y, values, a, b))
    return values[:, 0], x, y


@understands("eigh_of_parts")
def _(call: Request, a: Any, b: Any) -> Any:
    return several(call, "eigh_of_parts", axes=(1, 1), a=a, b=b)


@jit
def check_phases(turning):
    """Refuse a cotangent of eigenvectors that depends on their phases."""
    for i in range(turning.shape[0]):
        if abs(turning[i, i]) > 1e-2:
            raise RuntimeError(
                "eigh: the eigenvectors in the complex case are specified up to multiplication by "
                "e^{i phi}. The specified loss function depends on this phase term, making it "
                "ill-defined."
            )


@jit
def hermitian_cotangents(columns, z_0, z_1, z_2, g_0, g_1, g_2):
    """Return the parts of the cotangent of a matrix."""
    w, x, y = z_0, z_1, z_2
    gaps = inverse_gaps(w, all_ones(w))
    turning = product_of(x.T, g_2) - product_of(y.T, g_1)
    check_phases(turning)
    re = product_of_elements(product_of(x.T, g_1) + product_of(y.T, g_2), gaps)
    im = product_of_elements(turning, gaps)
    for i in range(w.size):
        re[i, i] += g_0[i]
    mark_eigenspaces(re, w, g_0, columns)
    left = product_of(x, re) - product_of(y, im)
    turned = product_of(x, im) + product_of(y, re)
    return (
        product_of(left, x.T) + product_of(turned, y.T),
        product_of(turned, x.T) - product_of(left, y.T),
    )


@derivative
def eigh_of_parts_vjp_a(a_bar, columns, z_0, z_1, z_2, g_0, g_1, g_2):
    re, _ = hermitian_cotangents(columns, z_0, z_1, z_2, g_0, g_1, g_2)
    a_bar += 0.5 * (re + re.T)


@derivative
def eigh_of_parts_vjp_b(b_bar, columns, z_0, z_1, z_2, g_0, g_1, g_2):
    _, im = hermitian_cotangents(columns, z_0, z_1, z_2, g_0, g_1, g_2)
    b_bar += 0.5 * (im - im.T)


@jit
def hermitian_tangents(re, im, w, x, y):
    """Return the tangents of the results from that of the matrix in the basis of eigenvectors."""
    w_dot = np.empty_like(w)
    for i in range(w.size):
        w_dot[i] = re[i, i]
    gaps = inverse_gaps(w, all_ones(w))
    re, im = product_of_elements(re, gaps), product_of_elements(im, gaps)
    return w_dot, product_of(x, re) - product_of(y, im), product_of(x, im) + product_of(y, re)


@derivative
def eigh_of_parts_jvp_a(a, a_dot, z_0, z_1, z_2):
    x, y, symmetric = z_1, z_2, 0.5 * (a_dot + a_dot.T)
    turned, other = product_of(symmetric, x), product_of(symmetric, y)
    re = product_of(x.T, turned) + product_of(y.T, other)
    return hermitian_tangents(re, product_of(x.T, other) - product_of(y.T, turned), z_0, x, y)


@derivative
def eigh_of_parts_jvp_b(b, b_dot, z_0, z_1, z_2):
    x, y, skew = z_1, z_2, 0.5 * (b_dot - b_dot.T)
    turned, other = product_of(skew, x), product_of(skew, y)
    re = product_of(y.T, turned) - product_of(x.T, other)
    return hermitian_tangents(re, product_of(x.T, turned) + product_of(y.T, other), z_0, x, y)
