"""Functions that compiled programs call: what reads integers only, or has no derivative."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from tapegrad.transform.function import njit


@njit
def checked_index(index, extent):
    """Return an index of an axis, counted from its start."""
    if index < -extent or index >= extent:
        raise IndexError("an index is out of bounds for its axis")
    return index + extent if index < 0 else index


@njit
def checked_indices(indices, extent):
    """Return the indices of an axis, counted from its start."""
    found = np.empty_like(indices)
    flat, given = found.reshape(-1), indices.reshape(-1)
    for k in range(given.size):
        flat[k] = checked_index(given[k], extent)
    return found


@njit
def largest(x):
    """Return the largest element of a vector, -inf if there is none; nan is left out.

    Eight elements at a time: comparisons of one chain would wait for each other.
    """
    a = b = c = d = e = f = g = h = -np.inf
    whole = x.size - x.size % 8
    for k in range(0, whole, 8):
        a = max(a, x[k])
        b = max(b, x[k + 1])
        c = max(c, x[k + 2])
        d = max(d, x[k + 3])
        e = max(e, x[k + 4])
        f = max(f, x[k + 5])
        g = max(g, x[k + 6])
        h = max(h, x[k + 7])
    for k in range(whole, x.size):
        a = max(a, x[k])
    return max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)))
