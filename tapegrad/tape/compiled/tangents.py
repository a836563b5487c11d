"""Tangents of elementwise records, reductions and views, compiled.

`push` walks over the rows of a table (`tapegrad.tape.layout`, TANGENT_*), oldest record first. The
tangent of a record is the sum of the products of its partials and the tangents of its inputs; a
reduction adds up the elements of these products. The kernels are those of the reverse sweep, which
multiply a cotangent by a partial. At a row that needs Python, it returns; the next call continues
there.

Contiguous operands of one shape are handled here, all others by `strided_tangent`, which is
compiled on first use.

Imported only to be compiled: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

from tapegrad.kernels.intrinsics import (
    call_kernel,
    i4_pointer,
    i8_pointer,
    load,
    store,
    store_words,
)
from tapegrad.tape.compiled.compiler import jit
from tapegrad.tape.compiled.contributions import (
    clear_bytes,
    gather_operands,
    nbytes_of,
    walk_aval,
    walk_operands,
)
from tapegrad.tape.compiled.strided import (
    W_CONTIGUOUS,
    accumulate,
    gather,
    walk_end,
    walk_push,
    walk_start,
)
from tapegrad.tape.compiled.sweep import add_block, add_products, fill_block, is_plain

from tapegrad.tape.layout import (  # isort: skip
    ARRAY_DATA, ARRAY_DTYPE, ARRAY_NDIM, AVAL_BYTES, AVAL_DIMS, AVAL_DTYPE, AVAL_ITEM,
    AVAL_NDIM, AVAL_SIZE, BLOCK_ELEMENTS, EVENT_ARRAY, EVENT_DONE, EVENT_HANDLER, EVENT_KERNEL,
    EVENT_PYTHON, HANDLER_TANGENT, KERNEL_INPUTS, KIND_FLAT, KIND_MAP, KIND_REDUCE, KIND_VIEW,
    LIST_ITEMS, OP_KIND, OP_LAYOUT, OP_VALUES, OP_WORDS, SPREAD, S_ADDRESS, S_AVALS, S_BLOCKS,
    S_BOOL, S_DATA, S_END_TANGENTS, S_EVENT, S_GATHERED, S_HANDLERS, S_HEADERS, S_KERNELS,
    S_NEXT_TANGENT, S_NONE, S_OPS, S_RELEASED, S_STEPS, S_TANGENTS, S_WALKS, TANGENT_AVAL,
    TANGENT_BYTES, TANGENT_COMPILED, TANGENT_DATA, TANGENT_MASK, TANGENT_OP, TANGENT_OWNER,
    TANGENT_X, WALK_WORDS,
)  # fmt: skip

MISSING, PLAIN, OTHER = 0, 1, 2  # what the saved values of a record are


@jit
def tangent_of(table, row, j):
    """Return the address of the tangent of input `j` of a row, 0 if it has none."""
    at = load(i8_pointer(row), TANGENT_X + j)
    if at < 0:
        return 0
    return load(i8_pointer(table + at * TANGENT_BYTES), TANGENT_DATA)


@jit
def aval_of_input(table, row, j):
    at = load(i8_pointer(row), TANGENT_X + j)
    return load(i8_pointer(table + at * TANGENT_BYTES), TANGENT_AVAL)


@jit
def read_operands(st, items, meta, info):
    """Find the saved values of a record: none missing, and all plain, or not."""
    found = PLAIN
    for k in range(4):
        index = load(meta, OP_VALUES + k)
        header = 0
        if index >= 0:
            header = load(i8_pointer(items), index)
            if header == load(st, S_RELEASED):
                return MISSING
            if header == load(st, S_NONE):
                header = 0
        data = 0
        step = 0
        if header != 0:
            data = load(i8_pointer(header), ARRAY_DATA >> 3)
            if is_plain(header, info, load(st, S_BOOL)):
                step = 1
            elif (
                load(i8_pointer(header), ARRAY_DTYPE >> 3) != load(st, S_BOOL)
                and load(i4_pointer(header), ARRAY_NDIM >> 2) == 0
            ):
                data = fill_block(st, data, SPREAD + k, info)
            else:
                found = OTHER
        store(st, S_HEADERS + k, header)
        store(st, S_DATA + k, data)
        store(st, S_STEPS + k, step)
    return found


@jit
def has_kernel(st, op, dtype, j):
    """Whether the kernel for input `j` is compiled; emit an event if not."""
    if load(i8_pointer(load(st, S_KERNELS)), (op * 2 + dtype) * KERNEL_INPUTS + j) != 0:
        return True
    store_words(st, S_EVENT, EVENT_KERNEL, op, dtype, j)
    return False


@jit
def has_handler(st, number):
    """Whether a handler is compiled; emit an event if not."""
    if load(st, S_HANDLERS + number) != 0:
        return True
    store_words(st, S_EVENT, EVENT_HANDLER, number, 0, 0)
    return False


@jit
def push_map(st, table, row, kind, op, tx, ty):
    """Compute the tangent of an elementwise record or a reduction; return False after an event."""
    r = i8_pointer(row)
    aval = load(r, TANGENT_AVAL)
    info = load(st, S_AVALS) + aval * AVAL_BYTES
    dtype = load(i8_pointer(info), AVAL_DTYPE)
    if tx != 0 and not has_kernel(st, op, dtype, 0):
        return False
    if ty != 0 and not has_kernel(st, op, dtype, 1):
        return False
    items = load(i8_pointer(load(r, TANGENT_OWNER)), LIST_ITEMS >> 3)
    meta = i8_pointer(load(st, S_OPS) + op * OP_WORDS * 8)
    operands = read_operands(st, items, meta, info)
    if operands == MISSING:
        store(st, S_EVENT, EVENT_PYTHON)
        return False
    kernels = i8_pointer(load(st, S_KERNELS))
    first = (op * 2 + dtype) * KERNEL_INPUTS
    kernel_x = load(kernels, first)
    kernel_y = load(kernels, first + 1)
    plain = operands == PLAIN and kind == KIND_MAP
    if tx != 0:
        plain = plain and aval_of_input(table, row, 0) == aval
    if ty != 0:
        plain = plain and aval_of_input(table, row, 1) == aval
    if not plain:
        if not has_handler(st, HANDLER_TANGENT):
            return False
        handler = load(st, S_HANDLERS + HANDLER_TANGENT)
        call_kernel(handler, load(st, S_ADDRESS), table, row, kernel_x, kernel_y, tx, ty)
        return True
    out = load(r, TANGENT_DATA)
    store(st, S_STEPS + 4, 1)
    if tx != 0:
        add_products(st, kernel_x, info, tx, out, True)
    if ty != 0:
        add_products(st, kernel_y, info, ty, out, tx == 0)
    return True


def strided_tangent(state, table, row, kernel_x, kernel_y, tx, ty):
    """Compute the tangent of a record block by block, over its output or a reduction's input."""
    st = i8_pointer(state)
    r = i8_pointer(row)
    avals = load(st, S_AVALS)
    out = load(r, TANGENT_DATA)
    out_info = avals + load(r, TANGENT_AVAL) * AVAL_BYTES
    itemsize = load(i8_pointer(out_info), AVAL_ITEM)
    dtype = load(i8_pointer(out_info), AVAL_DTYPE)
    meta = i8_pointer(load(st, S_OPS) + load(r, TANGENT_OP) * OP_WORDS * 8)
    reduces = load(meta, OP_KIND) == KIND_REDUCE
    space = out_info
    axes = 0
    if reduces:
        space = avals + aval_of_input(table, row, 0) * AVAL_BYTES
        axes = load(r, TANGENT_MASK)
    n = load(i8_pointer(space), AVAL_SIZE)
    walks = load(st, S_WALKS)
    walk_bytes = WALK_WORDS * 8
    walk_operands(st, walks, itemsize, space, axes)
    x_walk = walks + 4 * walk_bytes
    last_walk = walks + 5 * walk_bytes  # of the second tangent, or of a reduction's output
    if tx != 0:
        walk_aval(x_walk, tx, avals + aval_of_input(table, row, 0) * AVAL_BYTES, space, 0)
    if ty != 0:
        walk_aval(last_walk, ty, avals + aval_of_input(table, row, 1) * AVAL_BYTES, space, 0)
    if reduces:
        walk_aval(last_walk, out, out_info, space, axes)
        clear_bytes(out, nbytes_of(out_info))
    blocks = load(st, S_BLOCKS)
    block_bytes = 8 * BLOCK_ELEMENTS
    product = blocks + 5 * block_bytes
    start = 0
    while start < n:
        m = min(BLOCK_ELEMENTS, n - start)
        gather_operands(st, walks, start, m, dtype, blocks)
        z, a0 = load(st, S_GATHERED), load(st, S_GATHERED + 1)
        a1, a2 = load(st, S_GATHERED + 2), load(st, S_GATHERED + 3)
        scratch = blocks + 4 * block_bytes
        at = out + start * itemsize
        if reduces:
            t = gather(x_walk, start, m, dtype, scratch)
            call_kernel(kernel_x, m, t, z, a0, a1, a2, product)
            accumulate(last_walk, start, m, dtype, product)
        else:
            if tx != 0:
                t = gather(x_walk, start, m, dtype, scratch)
                call_kernel(kernel_x, m, t, z, a0, a1, a2, at)
            if ty != 0:
                t = gather(last_walk, start, m, dtype, scratch)
                if tx != 0:
                    call_kernel(kernel_y, m, t, z, a0, a1, a2, product)
                    add_block(at, product, m, dtype)
                else:
                    call_kernel(kernel_y, m, t, z, a0, a1, a2, at)
        start += m


@jit
def push_view(st, row, kind, op, tx):
    """Give a view its part of a tangent, a copy unless it is contiguous; False after an event."""
    r = i8_pointer(row)
    if kind == KIND_FLAT:
        store(r, TANGENT_DATA, tx)
        return True
    i = i8_pointer(load(st, S_AVALS) + load(r, TANGENT_AVAL) * AVAL_BYTES)
    item = load(i, AVAL_ITEM)
    items = load(i8_pointer(load(r, TANGENT_OWNER)), LIST_ITEMS >> 3)
    meta = i8_pointer(load(st, S_OPS) + op * OP_WORDS * 8)
    layout = load(i8_pointer(items), load(meta, OP_LAYOUT))
    numbers = i8_pointer(load(i8_pointer(layout), ARRAY_DATA >> 3))
    walk = load(st, S_WALKS)
    start = tx + load(numbers, 0) * item
    walk_start(walk, start, item)
    for d in range(load(i, AVAL_NDIM)):
        walk_push(walk, load(i, AVAL_DIMS + d), load(numbers, 1 + d) * item)
    walk_end(walk)
    if load(i8_pointer(walk), W_CONTIGUOUS) == 1:
        store(r, TANGENT_DATA, start)
        return True
    if load(r, TANGENT_DATA) == 0:
        store(st, S_EVENT, EVENT_ARRAY)
        return False
    gather(walk, 0, load(i, AVAL_SIZE), load(i, AVAL_DTYPE), load(r, TANGENT_DATA))
    return True


@jit
def push_row(st, table, row):
    """Compute the tangent of a row; return False after an event."""
    r = i8_pointer(row)
    tx = tangent_of(table, row, 0)
    ty = tangent_of(table, row, 1)
    if tx == 0 and ty == 0:
        store(r, TANGENT_DATA, 0)
        return True
    op = load(r, TANGENT_OP)
    kind = load(i8_pointer(load(st, S_OPS) + op * OP_WORDS * 8), OP_KIND)
    if kind == KIND_FLAT or kind == KIND_VIEW:
        return push_view(st, row, kind, op, tx)
    if load(r, TANGENT_DATA) == 0:
        store(st, S_EVENT, EVENT_ARRAY)
        return False
    return push_map(st, table, row, kind, op, tx, ty)


def push(address):
    """Continue a walk with the state at `address` until it is done or needs Python."""
    st = i8_pointer(address)
    table = load(st, S_TANGENTS)
    at = load(st, S_NEXT_TANGENT)
    end = load(st, S_END_TANGENTS)
    store(st, S_EVENT, EVENT_DONE)
    while at < end:
        row = table + at * TANGENT_BYTES
        if load(i8_pointer(row), TANGENT_COMPILED) == 0:
            store(st, S_EVENT, EVENT_PYTHON)
            break
        if not push_row(st, table, row):
            break
        at += 1
    store(st, S_NEXT_TANGENT, at)
