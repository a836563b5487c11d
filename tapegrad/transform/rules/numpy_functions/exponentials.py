"""The exponential of matrices.

Source of the algorithm: N. J. Higham, "The scaling and squaring method for the matrix exponential
revisited", SIAM J. Matrix Anal. Appl. 26 (2005), algorithm 2.3, with the approximant of degree 13
alone. For the block matrix [[a, e], [0, a]], the upper right block of the exponential is the
derivative at a in the direction e. Source: N. J. Higham, "Functions of Matrices" (SIAM 2008),
equation 3.16.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import declare, derivative, named_function
from tapegrad.transform.rules.numpy_functions.factors import factored_solution, lu_factors
from tapegrad.transform.rules.numpy_functions.stacks import stacked_product
from tapegrad.transform.tape_memory.large_arrays import empty, zeros

declare("expm_of_floats", "a", value="expm_of_floats(a)")

_COEFFICIENTS = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_MOST = 5.371920351148152  # norm of what is not scaled


@named_function
@jit
def expm_of_floats(a):
    """Return the exponential of a matrix."""
    n = a.shape[0]
    norm = 0.0
    for j in range(n):
        total = 0.0
        for i in range(n):
            total += abs(a[i, j])
        norm = total if total > norm or total != total else norm
    if not np.isfinite(norm):
        return np.full((n, n), np.nan)
    squarings = max(0, int(np.ceil(np.log2(norm / _MOST)))) if norm > _MOST else 0
    scaled = empty((1, n, n))
    for i in range(n):
        for j in range(n):
            scaled[0, i, j] = a[i, j] * 0.5**squarings
    found = _approximant(scaled)
    for _ in range(squarings):
        found = stacked_product(found, found)
    return found.reshape((n, n))


@jit
def _approximant(x):
    """Return the quotient of two polynomials of a matrix that is near its exponential."""
    b = _COEFFICIENTS
    n = x.shape[1]
    second = stacked_product(x, x)
    fourth = stacked_product(second, second)
    sixth = stacked_product(second, fourth)
    odd, even = empty((1, n, n)), empty((1, n, n))
    for i in range(n):
        for j in range(n):
            p, q, r = second[0, i, j], fourth[0, i, j], sixth[0, i, j]
            odd[0, i, j] = b[13] * r + b[11] * q + b[9] * p
            even[0, i, j] = b[12] * r + b[10] * q + b[8] * p
    odd, even = stacked_product(sixth, odd), stacked_product(sixth, even)
    for i in range(n):
        for j in range(n):
            p, q, r = second[0, i, j], fourth[0, i, j], sixth[0, i, j]
            odd[0, i, j] += b[7] * r + b[5] * q + b[3] * p
            even[0, i, j] += b[6] * r + b[4] * q + b[2] * p
        odd[0, i, i] += b[1]
        even[0, i, i] += b[0]
    odd = stacked_product(x, odd)
    above, below = empty((1, n, n)), empty((1, n, n))
    for i in range(n):
        for j in range(n):
            above[0, i, j] = even[0, i, j] + odd[0, i, j]
            below[0, i, j] = even[0, i, j] - odd[0, i, j]
    return factored_solution(below, lu_factors(below), above)


@jit
def derivative_of_expm(a, e):
    """Return the derivative of the exponential of a matrix in a direction.

    What is computed is that of a direction with elements of up to 1: how many times the block
    matrix is halved depends on its norm.
    """
    n = a.shape[0]
    scale = 0.0
    for i in range(n):
        for j in range(n):
            if abs(e[i, j]) > scale:
                scale = abs(e[i, j])
    if scale == 0.0 or scale == np.inf:
        scale = 1.0
    block = zeros((2 * n, 2 * n))
    for i in range(n):
        for j in range(n):
            block[i, j] = a[i, j]
            block[n + i, n + j] = a[i, j]
            block[i, n + j] = e[i, j] / scale
    found = expm_of_floats(block)
    out = empty((n, n))
    for i in range(n):
        for j in range(n):
            out[i, j] = found[i, n + j] * scale
    return out


@derivative
def expm_of_floats_vjp_a(a, a_bar, g):
    a_bar += derivative_of_expm(a.T, g)


@derivative
def expm_of_floats_jvp_a(a, a_dot):
    return derivative_of_expm(a, a_dot)
