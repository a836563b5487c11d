"""The largest and smallest elements of arrays, several chains of comparisons at a time.

Comparisons of one chain wait for each other, which takes numba's functions twice as long.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np import arrayobj

from tapegrad.kernels.intrinsics import larger, smaller
from tapegrad.transform.cache.machine_code import inlined, jit

_BLOCK = 2048  # elements that are looked at twice, the second time in the fastest cache


def largest_number(x):
    """Return the largest element of a vector, -inf if there is none; nan is left out."""
    a = b = c = d = e = f = g = h = -np.inf
    whole = x.size - x.size % 8
    for k in range(0, whole, 8):
        a = larger(x[k], a)
        b = larger(x[k + 1], b)
        c = larger(x[k + 2], c)
        d = larger(x[k + 3], d)
        e = larger(x[k + 4], e)
        f = larger(x[k + 5], f)
        g = larger(x[k + 6], g)
        h = larger(x[k + 7], h)
    for k in range(whole, x.size):
        a = larger(x[k], a)
    return larger(larger(larger(a, b), larger(c, d)), larger(larger(e, f), larger(g, h)))


def smallest_number(x):
    """Return the smallest element of a vector, inf if there is none; nan is left out."""
    a = b = c = d = e = f = g = h = np.inf
    whole = x.size - x.size % 8
    for k in range(0, whole, 8):
        a = smaller(x[k], a)
        b = smaller(x[k + 1], b)
        c = smaller(x[k + 2], c)
        d = smaller(x[k + 3], d)
        e = smaller(x[k + 4], e)
        f = smaller(x[k + 5], f)
        g = smaller(x[k + 6], g)
        h = smaller(x[k + 7], h)
    for k in range(whole, x.size):
        a = smaller(x[k], a)
    return smaller(smaller(smaller(a, b), smaller(c, d)), smaller(smaller(e, f), smaller(g, h)))


_largest, _smallest = inlined(largest_number), inlined(smallest_number)


@inlined
def _has_nan(x):
    """Whether an element of a vector is nan."""
    found = 0
    for k in range(x.size):
        found += x[k] != x[k]
    return found > 0


@intrinsic
def flat_view(typingctx, x):
    """Return the elements of a contiguous array as a vector: quicker to compile than `reshape`."""
    kind = types.Array(x.dtype, 1, "C")

    def codegen(context, builder, signature, args):
        given = arrayobj.make_array(signature.args[0])(context, builder, args[0])
        array = arrayobj.make_array(kind)(context, builder)
        arrayobj.populate_array(
            array,
            data=given.data,
            shape=cgutils.pack_array(builder, [given.nitems]),
            strides=cgutils.pack_array(builder, [given.itemsize]),
            itemsize=given.itemsize,
            meminfo=given.meminfo,
            parent=given.parent,
        )
        return impl_ret_borrowed(context, builder, kind, array._getvalue())

    return kind(x), codegen


@jit
def maximum(x):
    """Return what ``np.max`` does for a contiguous array of floats."""
    flat = flat_view(x)
    if flat.size == 0:
        raise ValueError("zero-size array to reduction operation maximum which has no identity")
    found = -np.inf
    for begin in range(0, flat.size, _BLOCK):
        block = flat[begin : smaller(begin + _BLOCK, flat.size)]
        if _has_nan(block):
            return np.nan
        found = larger(found, _largest(block))
    return found


@jit
def minimum(x):
    """Return what ``np.min`` does for a contiguous array of floats."""
    flat = flat_view(x)
    if flat.size == 0:
        raise ValueError("zero-size array to reduction operation minimum which has no identity")
    found = np.inf
    for begin in range(0, flat.size, _BLOCK):
        block = flat[begin : smaller(begin + _BLOCK, flat.size)]
        if _has_nan(block):
            return np.nan
        found = smaller(found, _smallest(block))
    return found
