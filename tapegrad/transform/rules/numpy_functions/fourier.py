"""Fourier transforms of pairs: the last axis has real and imaginary parts."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.fourier import (
    transform,
    transform_back,
    transform_even,
    transform_odd,
    transform_to_real,
)
from tapegrad.transform.rules.array_specs import declare, derivative, named_function
from tapegrad.transform.tape_memory.large_arrays import empty

declare("fourier_of_pairs", "z", linear=("z",), value="fourier_of_pairs(z)")
declare("fourier_adjoint_of_pairs", "z", linear=("z",), value="fourier_adjoint_of_pairs(z)")
declare("half_fourier_to_pairs", "x", linear=("x",), value="half_fourier_to_pairs(x)")
declare("real_fourier_of_pairs", "z", "n", linear=("z",), value="real_fourier_of_pairs(z, n)")


@named_function
@jit
def fourier_of_pairs(z):
    """Return the sums of ``z[j] exp(-2 pi i j k / n)`` along the axis before the last one."""
    z = np.ascontiguousarray(z)
    out, n = empty(z.shape), z.shape[-2]
    transform(out, z, z.size // (2 * n), n, n)
    return out


@derivative
def fourier_of_pairs_vjp_z(z_bar, g):
    z_bar += fourier_adjoint_of_pairs(g)


@named_function
@jit
def fourier_adjoint_of_pairs(z):
    """Return the sums of ``z[j] exp(2 pi i j k / n)`` along the axis before the last one."""
    z = np.ascontiguousarray(z)
    out, n = empty(z.shape), z.shape[-2]
    transform_back(out, z, z.size // (2 * n), n, n)
    return out


@derivative
def fourier_adjoint_of_pairs_vjp_z(z_bar, g):
    z_bar += fourier_of_pairs(g)


@named_function
@jit
def half_fourier_to_pairs(x):
    """Return the transform of real numbers along the last axis, for frequencies up to n / 2."""
    x = np.ascontiguousarray(x)
    n = x.shape[-1]
    count = n // 2 + 1
    out = empty(x.shape[:-1] + (count, 2))  # noqa: RUF005 (numba)
    if n % 2:
        transform_odd(out, x, x.size // n, n, count)
    else:
        transform_even(out, x, x.size // n, n, count)
    return out


@derivative
def half_fourier_to_pairs_vjp_x(x_bar, g):
    n = x_bar.shape[-1]
    x_bar += real_fourier_of_pairs(_scaled(g, n, 0.5), n)


@named_function
@jit
def real_fourier_of_pairs(z, n):
    """Return the n real numbers that `half_fourier_to_pairs` transforms, times n."""
    z = np.ascontiguousarray(z)
    count = z.shape[-2]
    out = empty(z.shape[:-2] + (n,))  # noqa: RUF005 (numba)
    transform_to_real(out, z, z.size // (2 * count), count, n)
    return out


@derivative
def real_fourier_of_pairs_vjp_z(z_bar, n, g):
    z_bar += _scaled(half_fourier_to_pairs(g), n, 2.0)


@jit
def _scaled(z, n, factor):
    """Return pairs of which those that stand for two frequencies are multiplied by a factor."""
    out = z * factor
    out[..., 0, :] = z[..., 0, :]
    if n % 2 == 0:
        out[..., -1, :] = z[..., -1, :]
    return out
