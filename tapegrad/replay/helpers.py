"""Functions that compiled programs call: what reads integers only, or has no derivative."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from tapegrad.transform.cache.machine_code import constant
from tapegrad.transform.extremes import largest_number
from tapegrad.transform.function import njit

_INTEGERS_END, _SMALLEST = 2.0**63, -(2**63)


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
def places(mask):
    """Return the indices of the elements that are true, along each axis."""
    found = np.empty((mask.ndim, np.count_nonzero(mask)), np.int64)
    count = 0
    for index, is_true in np.ndenumerate(mask):
        if is_true:
            for axis in range(mask.ndim):
                found[axis, count] = index[axis]
            count += 1
    return found


@njit
def running_places(x, extent, is_largest):
    """Return where the extremes of rows of `extent` elements are, up to each element.

    The first of equal elements is taken, and nan before all others.
    """
    found = np.empty(x.size, np.int64)
    place = 0
    for k in range(x.size):
        if (
            k % extent == 0
            or (x[k] > x[place] if is_largest else x[k] < x[place])
            or (np.isnan(x[k]) and not np.isnan(x[place]))
        ):
            place = k
        found[k] = place
    return found


@njit
def bins(numbers, least):
    """Return how many bins there are for some numbers, `least` or more."""
    most = least - 1
    for number in numbers:
        if number < 0:
            raise ValueError("'list' argument must have no negative elements")
        most = max(most, number)
    return most + 1


@constant
def as_integer(x):
    """Return a number cut off after the point; of what has no such integer, NumPy's."""
    return int(x) if abs(x) < _INTEGERS_END else _SMALLEST


largest = constant(largest_number)
