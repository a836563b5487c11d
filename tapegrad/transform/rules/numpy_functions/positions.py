"""Positions of elements that index arrays select, and cotangents at these positions.

Positions count elements in row-major order. They are computed from the index, so a store to a few
elements of a large array costs no more than these elements.
"""

from __future__ import annotations

import operator

import numpy as np
from numba.core import cgutils, types
from numba.extending import (
    intrinsic,
    make_attribute_wrapper,
    models,
    overload,
    register_model,
)

from tapegrad.transform.cache.machine_code import jit
from tapegrad.transform.rules.array_specs import addition


class Places:
    """The positions of the elements of an array with a given shape; an index selects some."""

    def __init__(self, shape):
        self.shape = shape

    def __getitem__(self, index):
        return np.arange(np.prod(self.shape, dtype=np.int64)).reshape(self.shape)[index]


def places(x):
    """Return the positions of all elements of an array."""
    return Places(x.shape)


class PlacesType(types.Type):
    """The type of `Places` with a number of axes."""

    def __init__(self, ndim):
        self.ndim = ndim
        super().__init__(f"places({ndim})")


@register_model(PlacesType)
class PlacesModel(models.StructModel):
    """Its data: the shape."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("shape", types.UniTuple(types.intp, kind.ndim))])


make_attribute_wrapper(PlacesType, "shape", "shape")


@intrinsic
def _with_shape(typingctx, shape):
    kind = PlacesType(len(shape))

    def codegen(context, builder, signature, args):
        found = cgutils.create_struct_proxy(kind)(context, builder)
        found.shape = args[0]
        return found._getvalue()

    return kind(shape), codegen


@overload(places)
def _places(x):
    return lambda x: _with_shape(x.shape)


@overload(operator.getitem)
def _selected(x, index):
    if isinstance(x, PlacesType):
        return _by_axes if _is_by_axes(index) else _by_numba
    return None


def _is_by_axes(index):
    """Whether the axes of the selected elements are those of the array, without integers."""
    items = index if isinstance(index, types.BaseTuple) else (index,)
    kinds = [types.unliteral(item) for item in items]
    numbers = [isinstance(kind, types.Integer) for kind in kinds]
    slices = [isinstance(kind, types.SliceType) for kind in kinds]
    arrays = [isinstance(kind, types.Array) and kind.ndim == 1 for kind in kinds]
    return (
        sum(arrays) == 1
        and sum(numbers) + sum(slices) + 1 == len(kinds)
        # NumPy may move the axis of an index array if there are integers and slices
        and not (any(numbers) and any(slices))
    )


def _by_numba(x, index):
    size = 1
    for extent in x.shape:
        size *= extent
    return np.arange(size).reshape(x.shape)[index]


def _by_axes(x, index):
    return _outer(np.int64(0), x.shape, _as_tuple(index))


def _as_tuple(index):
    return index if isinstance(index, tuple) else (index,)


@overload(_as_tuple)
def _tuple_of(index):
    if isinstance(index, types.BaseTuple):
        return lambda index: index
    return lambda index: (index,)


def _outer(found, shape, index):
    """Return positions, given those with respect to the axes before, the extents and indices."""


@overload(_outer)
def _outer_of(found, shape, index):
    if len(shape) == 0:
        return lambda found, shape, index: found
    if len(index) == 0:
        return lambda found, shape, index: _outer(found, shape, (slice(None),))

    def outer(found, shape, index):
        along = _along(index[0], shape[0])
        return _outer(_combined(found, shape[0], along), shape[1:], index[1:])

    return outer


def _combined(found, extent, along):
    """Return the positions for each of the positions so far and each index along an axis."""


@overload(_combined)
def _combined_of(found, extent, along):
    if isinstance(found, types.Array) and isinstance(along, types.Array):
        return lambda found, extent, along: (found.reshape(found.size, 1) * extent + along).reshape(
            (*found.shape, along.size)
        )
    return lambda found, extent, along: found * extent + along


def _along(index, extent):
    """Return the indices from 0 that an index along an axis stands for."""


@overload(_along)
def _along_of(index, extent):
    if isinstance(index, types.SliceType):
        return lambda index, extent: np.arange(extent)[index]
    if isinstance(index, types.Array) and isinstance(index.dtype, types.Boolean):
        return lambda index, extent: np.nonzero(index)[0]
    if isinstance(index, types.Array):
        return _all_from_start
    return lambda index, extent: _from_start(index, extent)


def _all_from_start(index, extent):
    found = np.empty(index.size, np.int64)
    for k in range(index.size):
        found[k] = _from_start(index[k], extent)
    return found


@jit
def _from_start(index, extent):
    place = np.int64(index)
    return place + extent if place < 0 else place


@addition
def scatter(bar, chosen, g):
    """Add the cotangents of selected elements, given their positions."""
    where = chosen.ravel()
    values = g.ravel()
    if bar.ndim == 1:
        for k in range(where.size):
            bar[where[k]] += values[k]
        return
    for k in range(where.size):
        bar.flat[where[k]] += values[k]


@jit
def taken(bar, chosen, clear):
    """Return the cotangents of values that were stored at selected positions.

    If several values went to one position, the last one receives its cotangent. With `clear`, the
    store replaced the old elements, so their cotangents are set to 0.
    """
    where = chosen.ravel()
    found = np.zeros(where.size, bar.dtype)
    if bar.ndim == 1:
        for k in range(where.size - 1, -1, -1):
            found[k] = bar[where[k]]
            bar[where[k]] = 0.0
        if not clear:
            for k in range(where.size):
                bar[where[k]] += found[k]
        return found.reshape(chosen.shape)
    for k in range(where.size - 1, -1, -1):
        found[k] = bar.flat[where[k]]
        bar.flat[where[k]] = 0.0
    if not clear:
        for k in range(where.size):
            bar.flat[where[k]] += found[k]
    return found.reshape(chosen.shape)
