"""Compiled loops over strided memory, in canonical blocks.

Kernels of the op table process only contiguous runs of elements. All other layouts that NumPy
allows (broadcast, transposed or sliced inputs, reductions) are converted here. A *walk* describes
the layout of one operand over the space of an op. `gather` copies a block of the operand to
contiguous scratch. `accumulate` adds a contiguous block to the operand and sums where several
elements of the space map to one element, which is the only place where unbroadcasting happens.

A walk is WALK_WORDS int64 words: address, item size, 1 if contiguous, number of dimensions, then
dimensions and strides in bytes, outermost first, with size-1 dimensions dropped and adjacent
dimensions merged where the layout allows it.

Imported only to be compiled: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

from tapegrad.kernels.intrinsics import f4_pointer, f8_pointer, i8_pointer, load, store, u1_pointer
from tapegrad.tape.compiled.compiler import jit
from tapegrad.tape.compiled.sweep import add_block
from tapegrad.tape.layout import DTYPE_F8, MAX_DIMS

W_ADDRESS, W_ITEM, W_CONTIGUOUS, W_NDIM, W_DIMS = range(5)
W_STRIDES = W_DIMS + MAX_DIMS
W_INDEX = W_STRIDES + MAX_DIMS


@jit
def walk_start(walk, address, itemsize):
    w = i8_pointer(walk)
    store(w, W_ADDRESS, address)
    store(w, W_ITEM, itemsize)
    store(w, W_NDIM, 0)


@jit
def walk_push(walk, dim, stride):
    """Append an inner dimension, merged with the previous one if the layout allows it."""
    w = i8_pointer(walk)
    if dim == 1:
        return
    n = load(w, W_NDIM)
    if n > 0 and load(w, W_STRIDES + n - 1) == dim * stride:
        store(w, W_DIMS + n - 1, load(w, W_DIMS + n - 1) * dim)
        store(w, W_STRIDES + n - 1, stride)
        return
    store(w, W_DIMS + n, dim)
    store(w, W_STRIDES + n, stride)
    store(w, W_NDIM, n + 1)


@jit
def walk_end(walk):
    w = i8_pointer(walk)
    n = load(w, W_NDIM)
    if n == 0:
        store(w, W_DIMS, 1)
        store(w, W_STRIDES, load(w, W_ITEM))
        store(w, W_NDIM, 1)
        n = 1
    store(w, W_CONTIGUOUS, 1 if n == 1 and load(w, W_STRIDES) == load(w, W_ITEM) else 0)


@jit
def _locate(w, position):
    """Return the byte offset of linear element `position`, and its innermost coordinate.

    The coordinates are stored in the walk for `_advance`.
    """
    d = load(w, W_NDIM) - 1
    rest = position
    offset = 0
    while d >= 0:
        dim = load(w, W_DIMS + d)
        store(w, W_INDEX + d, rest % dim)
        offset += (rest % dim) * load(w, W_STRIDES + d)
        rest //= dim
        d -= 1
    return offset, load(w, W_INDEX + load(w, W_NDIM) - 1)


@jit
def _advance(w, offset):
    """Advance from the start of one innermost run to the start of the next, like an odometer."""
    d = load(w, W_NDIM) - 2
    while d >= 0:
        index = load(w, W_INDEX + d) + 1
        stride = load(w, W_STRIDES + d)
        offset += stride
        if index < load(w, W_DIMS + d):
            store(w, W_INDEX + d, index)
            return offset
        store(w, W_INDEX + d, 0)
        offset -= index * stride
        d -= 1
    return offset


@jit
def _copy_run(dst, src, stride, n):
    if stride == 0:
        value = load(src, 0)
        for i in range(n):
            store(dst, i, value)
    else:
        for i in range(n):
            store(dst, i, load(src, i * stride))


@jit
def _add_run(dst, stride, src, n):
    if stride == 0:
        total = load(dst, 0)
        start = 0
        if n >= 8:  # four partial sums are faster and more accurate than one
            s0, s1, s2, s3 = load(src, 0), load(src, 1), load(src, 2), load(src, 3)
            start = n & ~3
            for i in range(4, start, 4):
                s0 += load(src, i)
                s1 += load(src, i + 1)
                s2 += load(src, i + 2)
                s3 += load(src, i + 3)
            total += (s0 + s1) + (s2 + s3)
        for i in range(start, n):
            total += load(src, i)
        store(dst, 0, total)
    else:
        for i in range(n):
            store(dst, i * stride, load(dst, i * stride) + load(src, i))


@jit
def gather(walk, start, n, dtype, scratch):
    """Return the address of elements ``start:start+n`` of the operand, contiguous and with `dtype`.

    Elements of one byte are booleans and become 0.0 or 1.0.
    """
    w = i8_pointer(walk)
    item = load(w, W_ITEM)
    base = load(w, W_ADDRESS)
    if load(w, W_CONTIGUOUS) == 1 and item > 1:
        return base + start * item
    inner_dim = load(w, W_DIMS + load(w, W_NDIM) - 1)
    stride = load(w, W_STRIDES + load(w, W_NDIM) - 1)
    done = 0
    offset, inner = _locate(w, start)
    while done < n:
        run = min(inner_dim - inner, n - done)
        if item == 1:
            source = u1_pointer(base + offset)
            if dtype == DTYPE_F8:
                _copy_run(f8_pointer(scratch + done * 8), source, stride, run)
            else:
                _copy_run(f4_pointer(scratch + done * 4), source, stride, run)
        elif stride & (item - 1) != 0:  # a field of a structured array
            for i in range(run):
                at = base + offset + i * stride
                if item == 8:
                    store(f8_pointer(scratch + done * 8), i, load(f8_pointer(at), 0))
                else:
                    store(f4_pointer(scratch + done * 4), i, load(f4_pointer(at), 0))
        elif item == 8:
            _copy_run(f8_pointer(scratch + done * 8), f8_pointer(base + offset), stride >> 3, run)
        else:
            _copy_run(f4_pointer(scratch + done * 4), f4_pointer(base + offset), stride >> 2, run)
        done += run
        if done < n:
            offset = _advance(w, offset - inner * stride)
            inner = 0
    return scratch


@jit
def accumulate(walk, start, n, dtype, block):
    """Add a contiguous block to elements ``start:start+n`` of the operand."""
    w = i8_pointer(walk)
    base = load(w, W_ADDRESS)
    item = load(w, W_ITEM)
    if load(w, W_CONTIGUOUS) == 1:
        add_block(base + start * item, block, n, dtype)
        return
    inner_dim = load(w, W_DIMS + load(w, W_NDIM) - 1)
    stride = load(w, W_STRIDES + load(w, W_NDIM) - 1)
    done = 0
    offset, inner = _locate(w, start)
    while done < n:
        run = min(inner_dim - inner, n - done)
        if dtype == DTYPE_F8:
            _add_run(f8_pointer(base + offset), stride >> 3, f8_pointer(block + done * 8), run)
        else:
            _add_run(f4_pointer(base + offset), stride >> 2, f4_pointer(block + done * 4), run)
        done += run
        if done < n:
            offset = _advance(w, offset - inner * stride)
            inner = 0
