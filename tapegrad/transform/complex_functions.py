"""Functions of complex numbers that generated code calls."""

from __future__ import annotations

import numpy as np

from tapegrad.transform.array_specs import jit


@jit
def complex_inverse(z):
    """Return ``1 / z``, nan for 0, without an error."""
    return 1.0 / z if z != 0.0 else complex(np.nan, np.nan)


@jit
def complex_product(x, y):
    """Return ``x * y``, 0 where x is 0, for numbers of which one is complex."""
    return x * y if x != 0.0 else 0j


@jit
def direction(z):
    """Return the direction of a complex number, of size 1; 0 for 0."""
    size = abs(z)
    return z / size if size != 0.0 else 0j


@jit
def directions(z):
    """Return the directions of complex numbers."""
    size = np.abs(z)
    return z / np.where(size == 0.0, 1.0, size)


@jit
def turn(z):
    """Return the direction in which the angle of a complex number grows, by its growth."""
    square = z.real * z.real + z.imag * z.imag
    return 1j * z / square if square != 0.0 else 0j


@jit
def turns(z):
    """Return the directions in which the angles of complex numbers grow, by their growth."""
    square = z.real * z.real + z.imag * z.imag
    return 1j * z / np.where(square == 0.0, 1.0, square)
