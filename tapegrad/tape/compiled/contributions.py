"""Handlers for the less common kinds of contributions.

Every handler takes the state of the sweep, the window entry to write to, and up to five more words.
`tapegrad.tape.compiled.sweep` calls it by address, so it is compiled only on first use.

Imported only to be compiled: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

from tapegrad.kernels.intrinsics import (
    call_kernel,
    f4_pointer,
    f8_pointer,
    i4_pointer,
    i8_pointer,
    load,
    store,
    store_words,
    u1_pointer,
)
from tapegrad.tape.compiled.compiler import jit
from tapegrad.tape.compiled.strided import (
    W_CONTIGUOUS,
    W_STRIDES,
    accumulate,
    gather,
    walk_end,
    walk_push,
    walk_start,
)
from tapegrad.tape.compiled.sweep import add_block, copy_bytes, prepare

from tapegrad.tape.layout import (  # isort: skip
    ARRAY_BASE, ARRAY_DATA, ARRAY_DIMS, ARRAY_DTYPE, ARRAY_NDIM, ARRAY_STRIDES, AVAL_BYTES,
    AVAL_DIMS, AVAL_DTYPE, AVAL_ITEM, AVAL_NDIM, AVAL_SHIFT, AVAL_SIZE, BLOCK_ELEMENTS,
    DTYPE_F8, EVENT_FREED, EVENT_MUTATED, FRESH, LIST_ITEMS, MASK_32, NO_MASK, OBJECT_TYPE,
    OWN_FACTORS, OWN_INPUTS, S_AVALS, S_BLOCKS, S_BOOL, S_EVENT, S_GATHERED, S_HEADERS,
    S_MUTATED, S_NMUTATED, S_RELEASED, S_WALKS, WALK_WORDS,
)  # fmt: skip


@jit
def target_info(st, entry):
    return load(st, S_AVALS) + ((load(i8_pointer(entry), 1) >> AVAL_SHIFT) & MASK_32) * AVAL_BYTES


@jit
def nbytes_of(info):
    return load(i8_pointer(info), AVAL_ITEM) * load(i8_pointer(info), AVAL_SIZE)


@jit
def take_fresh(entry):
    """Whether the next contribution overwrites; clears that flag."""
    e = i8_pointer(entry)
    state = load(e, 1)
    store(e, 1, state & ~FRESH)
    return (state & FRESH) != 0


@jit
def clear_bytes(dst, nbytes):
    d = u1_pointer(dst)
    for i in range(nbytes):
        store(d, i, 0)


# -- walks over operands --------------------------------------------------------------------------


@jit
def walk_over(walk, address, itemsize, nd, dims, strides, own_strides, space, mask):
    """Set up the walk of an operand over the space of an op (an aval).

    Dimensions are aligned at the right, and size 1 is broadcast. The operand lacks the axes of a
    reduction (`mask`), unless they were kept. Without `own_strides` the operand is contiguous.
    """
    walk_start(walk, address, itemsize)
    space_nd = load(i8_pointer(space), AVAL_NDIM)
    space_dims = i8_pointer(space + 8 * AVAL_DIMS)
    found = i8_pointer(walk + W_STRIDES * 8)
    reduced = mask != 0 and nd != space_nd
    contiguous = itemsize
    od = nd - 1
    d = space_nd - 1
    while d >= 0:
        stride = 0
        if od >= 0 and not (reduced and ((mask >> d) & 1) == 1):
            dim = load(i8_pointer(dims), od)
            if dim != 1:
                stride = load(i8_pointer(strides), od) if own_strides else contiguous
            contiguous *= dim
            od -= 1
        store(found, d, stride)
        d -= 1
    # merged strides overwrite `found` from the front, never ahead of the read position
    for k in range(space_nd):
        walk_push(walk, load(space_dims, k), load(found, k))
    walk_end(walk)


@jit
def walk_array(walk, header, itemsize, space, mask):
    """Set up the walk of a saved array, given its NumPy header."""
    h = i8_pointer(header)
    nd = load(i4_pointer(header), ARRAY_NDIM >> 2) + 0
    dims = load(h, ARRAY_DIMS >> 3)
    strides = load(h, ARRAY_STRIDES >> 3)
    walk_over(walk, load(h, ARRAY_DATA >> 3), itemsize, nd, dims, strides, True, space, mask)


@jit
def walk_aval(walk, address, info, space, mask):
    """Set up the walk of contiguous memory with some aval."""
    i = i8_pointer(info)
    walk_over(
        walk,
        address,
        load(i, AVAL_ITEM),
        load(i, AVAL_NDIM),
        info + 8 * AVAL_DIMS,
        0,
        False,
        space,
        mask,
    )


@jit
def walk_operands(st, walks, itemsize, space, mask):
    """Set up the walks of the saved values of a record."""
    for k in range(4):
        header = load(st, S_HEADERS + k)
        if header != 0:
            item = itemsize
            if load(i8_pointer(header), ARRAY_DTYPE >> 3) == load(st, S_BOOL):
                item = 1
            walk_array(walks + k * WALK_WORDS * 8, header, item, space, mask)


@jit
def gather_operands(st, walks, start, m, dtype, blocks):
    """Gather a block of each saved value.

    They are kept apart from S_DATA, which the contribution to the other input may read.
    """
    for k in range(4):
        if load(st, S_HEADERS + k) != 0:
            scratch = blocks + 8 * BLOCK_ELEMENTS * k
            found = gather(walks + k * WALK_WORDS * 8, start, m, dtype, scratch)
            store(st, S_GATHERED + k, found)


# -- handlers ------------------------------------------------------------------------------------


def strided(state, entry, kernel, space, g_info, mask, g):
    """Add the contribution of a kernel block by block over the space of an op (an aval)."""
    st = i8_pointer(state)
    out = load(i8_pointer(entry), 0)
    out_info = target_info(st, entry)
    itemsize = load(i8_pointer(out_info), AVAL_ITEM)
    dtype = load(i8_pointer(out_info), AVAL_DTYPE)
    n = load(i8_pointer(space), AVAL_SIZE)
    axes = 0 if mask == NO_MASK else mask
    walks = load(st, S_WALKS)
    blocks = load(st, S_BLOCKS)
    walk_bytes = WALK_WORDS * 8
    walk_aval(walks, g, g_info, space, axes)
    walk_operands(st, walks + walk_bytes, itemsize, space, axes)
    out_walk = walks + 5 * walk_bytes
    walk_aval(out_walk, out, out_info, space, 0)
    fresh = take_fresh(entry)
    direct = (
        fresh
        and load(i8_pointer(out_walk), W_CONTIGUOUS) == 1
        and load(i8_pointer(out_info), AVAL_SIZE) == n
    )
    if fresh and not direct:
        clear_bytes(out, nbytes_of(out_info))
    start = 0
    while start < n:
        m = min(BLOCK_ELEMENTS, n - start)
        block = blocks + 8 * BLOCK_ELEMENTS * 5
        g_block = gather(walks, start, m, dtype, blocks)
        gather_operands(st, walks + walk_bytes, start, m, dtype, blocks + 8 * BLOCK_ELEMENTS)
        z, a0 = load(st, S_GATHERED), load(st, S_GATHERED + 1)
        a1, a2 = load(st, S_GATHERED + 2), load(st, S_GATHERED + 3)
        if direct:
            call_kernel(kernel, m, g_block, z, a0, a1, a2, out + start * itemsize)
        else:
            call_kernel(kernel, m, g_block, z, a0, a1, a2, block)
            accumulate(out_walk, start, m, dtype, block)
        start += m


@jit
def flat(state, entry, info, g, layout, x, y):
    """Add contiguous memory with the same number of elements."""
    i = i8_pointer(info)
    if take_fresh(entry):
        copy_bytes(load(i8_pointer(entry), 0), g, nbytes_of(info))
    else:
        add_block(load(i8_pointer(entry), 0), g, load(i, AVAL_SIZE), load(i, AVAL_DTYPE))


def view(state, entry, info, g, layout, x, y):
    """Add to the elements of the input that the view selects."""
    st = i8_pointer(state)
    out = load(i8_pointer(entry), 0)
    if take_fresh(entry):
        clear_bytes(out, nbytes_of(target_info(st, entry)))
    walk = load(st, S_WALKS)
    i = i8_pointer(info)
    item = load(i, AVAL_ITEM)
    numbers = i8_pointer(load(i8_pointer(layout), ARRAY_DATA >> 3))
    walk_start(walk, out + load(numbers, 0) * item, item)
    for d in range(load(i, AVAL_NDIM)):
        walk_push(walk, load(i, AVAL_DIMS + d), load(numbers, 1 + d) * item)
    walk_end(walk)
    if load(i, AVAL_SIZE) > 0:
        accumulate(walk, 0, load(i, AVAL_SIZE), load(i, AVAL_DTYPE), g)


def cast(state, entry, info, g, layout, x, y):
    """Add with a change of dtype between float types, or between real and complex numbers.

    A complex element is a pair of reals; an imaginary part without counterpart is ignored.
    """
    st = i8_pointer(state)
    out = load(i8_pointer(entry), 0)
    own = i8_pointer(info)
    i = i8_pointer(target_info(st, entry))
    n = min(load(i, AVAL_SIZE), load(own, AVAL_SIZE))
    step_out = 2 if load(i, AVAL_SIZE) > n else 1
    step_g = 2 if load(own, AVAL_SIZE) > n else 1
    if take_fresh(entry):
        clear_bytes(out, nbytes_of(target_info(st, entry)))
    f8_out = load(i, AVAL_DTYPE) == DTYPE_F8
    f8_g = load(own, AVAL_DTYPE) == DTYPE_F8
    for k in range(n):
        value = load(f8_pointer(g), k * step_g) if f8_g else load(f4_pointer(g), k * step_g)
        at = k * step_out
        if f8_out:
            store(f8_pointer(out), at, load(f8_pointer(out), at) + value)
        else:
            store(f4_pointer(out), at, load(f4_pointer(out), at) + value)


def check(state, slot, op, a, b, c, d):
    """Emit an event if a saved array was mutated later than the record."""
    st = i8_pointer(state)
    table = i8_pointer(load(st, S_MUTATED))
    for k in range(4):
        header = load(st, S_HEADERS + k)
        if header != 0:
            base = load(i8_pointer(header), ARRAY_BASE >> 3)
            below = base  # a base array may itself be a view of an array of another class
            array_type = load(i8_pointer(header), OBJECT_TYPE >> 3)
            if base != 0 and load(i8_pointer(base), OBJECT_TYPE >> 3) == array_type:
                below = load(i8_pointer(base), ARRAY_BASE >> 3)
            for m in range(load(st, S_NMUTATED)):
                buffer = load(table, 2 * m)
                hit = buffer == base or buffer == header or buffer == below
                if hit and load(table, 2 * m + 1) > slot:
                    store_words(st, S_EVENT, EVENT_MUTATED, slot, op, load(table, 2 * m + 1))
                    return


# -- products with saved factors ------------------------------------------------------------------


@jit
def add_product(entry, info, factor, scale):
    """Add a number times a contiguous array with the input's shape and dtype."""
    i = i8_pointer(info)
    out = load(i8_pointer(entry), 0)
    fresh = take_fresh(entry)
    n = load(i, AVAL_SIZE)
    if load(i, AVAL_DTYPE) == DTYPE_F8:
        d8, s8 = f8_pointer(out), f8_pointer(factor)
        for k in range(n):
            store(d8, k, scale * load(s8, k) + (0.0 if fresh else load(d8, k)))
    else:
        d4, s4 = f4_pointer(out), f4_pointer(factor)
        for k in range(n):
            store(d4, k, scale * load(s4, k) + (0.0 if fresh else load(d4, k)))


def products(address, items, count, g, info, slot, op):
    """Sweep a scalar record whose partials were computed with it, as one factor per input."""
    st = i8_pointer(address)
    words = i8_pointer(items)
    if load(words, OWN_FACTORS) == load(st, S_RELEASED):  # just now, by a sweep of another thread
        store_words(st, S_EVENT, EVENT_FREED, slot, op, 0)
        return
    slots = i8_pointer(load(i8_pointer(load(words, OWN_INPUTS)), ARRAY_DATA >> 3))
    for k in range(count):
        if prepare(st, load(slots, k)) == 0:
            return
    factors = i8_pointer(load(i8_pointer(load(words, OWN_FACTORS)), LIST_ITEMS >> 3))
    if load(i8_pointer(info), AVAL_DTYPE) == DTYPE_F8:
        scale = load(f8_pointer(g), 0)
    else:
        scale = load(f4_pointer(g), 0) + 0.0
    for k in range(count):
        entry = prepare(st, load(slots, k))
        if entry > 0:
            factor = load(i8_pointer(load(factors, k)), ARRAY_DATA >> 3)
            add_product(entry, target_info(st, entry), factor, scale)
