"""Convolutions of recorded programs: both derivatives are convolutions or correlations again."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from tapegrad.kernels.intrinsics import index
from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import declare, derivative, named_function

declare("full_convolution", "a", "v", linear=("a", "v"), value="full_convolution(a, v)")
declare("valid_correlation", "a", "v", linear=("a", "v"), value="valid_correlation(a, v)")

_BLOCK = 1024  # elements to which all terms are added while they are in the fastest cache


@named_function
@jit
def full_convolution(a, v):
    """Return all elements of the convolution of two vectors."""
    long, short = (a, v) if a.size >= v.size else (v, a)
    found = np.zeros(a.size + v.size - 1)
    for first in range(0, found.size, _BLOCK):
        stop = min(first + _BLOCK, found.size)
        for k in range(short.size):
            factor = short[k]
            for i in range(max(first, k), min(stop, long.size + k)):
                found[index(i)] += factor * long[index(i - k)]
    return found


@named_function
@jit
def valid_correlation(a, v):
    """Return the sums of products of v with as many elements of a, at each shift."""
    size = a.size - v.size + 1
    found = np.zeros(size)
    if size <= v.size:  # the products are longer than the result
        for i in range(size):
            found[i] = np.dot(a[i : i + v.size], v)
        return found
    for first in range(0, size, _BLOCK):
        stop = min(first + _BLOCK, size)
        for k in range(v.size):
            factor = v[k]
            for i in range(first, stop):
                found[index(i)] += factor * a[index(i + k)]
    return found


@derivative
def full_convolution_vjp_a(a_bar, v, g):
    a_bar += valid_correlation(g, v)


@derivative
def full_convolution_vjp_v(a, v_bar, g):
    v_bar += valid_correlation(g, a)


@derivative
def valid_correlation_vjp_a(a_bar, v, g):
    a_bar += full_convolution(g, v)


@derivative
def valid_correlation_vjp_v(a, v_bar, g):
    v_bar += valid_correlation(a, g)
