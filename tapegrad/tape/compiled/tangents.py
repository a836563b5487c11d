"""Tangents of elementwise records, compiled.

`push` walks over the rows of a table (`tapegrad.tape.layout`, TANGENT_*), oldest record first. The
tangent of a record is the sum of the products of its partials and the tangents of its inputs. The
kernels are those of the reverse sweep, which multiply a cotangent by a partial. At a row that
needs Python, it returns; the next call continues there.

Imported only to be compiled: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

from tapegrad.kernels.intrinsics import (
    i4_pointer,
    i8_pointer,
    load,
    store,
    store_words,
)
from tapegrad.tape.compiled.sweep import add_products, fill_block, is_plain, jit
from tapegrad.tape.layout import *


@jit
def tangent_of(table, row, j):
    """Return the address of the tangent of input `j` of a row, 0 if it has none."""
    at = load(i8_pointer(row), TANGENT_X + j)
    if at < 0:
        return 0
    return load(i8_pointer(table + at * TANGENT_BYTES), TANGENT_DATA)


@jit
def read_operands(st, items, meta, info):
    """Find the saved values of a record; return False if they are not plain."""
    for k in range(4):
        index = load(meta, OP_VALUES + k)
        header = 0
        if index >= 0:
            header = load(i8_pointer(items), index)
            if header == load(st, S_RELEASED):
                return False
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
                return False
        store(st, S_DATA + k, data)
        store(st, S_STEPS + k, step)
    return True


@jit
def push_row(st, table, row):
    """Compute the tangent of a row; return False if it needs Python."""
    r = i8_pointer(row)
    tx = tangent_of(table, row, 0)
    ty = tangent_of(table, row, 1)
    if tx == 0 and ty == 0:
        store(r, TANGENT_DATA, 0)
        return True
    op = load(r, TANGENT_OP)
    info = load(st, S_AVALS) + load(r, TANGENT_AVAL) * AVAL_BYTES
    dtype = load(i8_pointer(info), AVAL_DTYPE)
    kernels = i8_pointer(load(st, S_KERNELS))
    first = (op * 2 + dtype) * KERNEL_INPUTS
    if tx != 0 and load(kernels, first) == 0:
        store_words(st, S_EVENT, EVENT_KERNEL, op, dtype, 0)
        return False
    if ty != 0 and load(kernels, first + 1) == 0:
        store_words(st, S_EVENT, EVENT_KERNEL, op, dtype, 1)
        return False
    items = load(i8_pointer(load(r, TANGENT_OWNER)), LIST_ITEMS >> 3)
    meta = i8_pointer(load(st, S_OPS) + op * OP_WORDS * 8)
    if not read_operands(st, items, meta, info):
        store(st, S_EVENT, EVENT_PYTHON)
        return False
    out = load(r, TANGENT_DATA)
    store(st, S_STEPS + 4, 1)
    if tx != 0:
        add_products(st, load(kernels, first), info, tx, out, True)
    if ty != 0:
        add_products(st, load(kernels, first + 1), info, ty, out, tx == 0)
    return True


def push(address):
    """Continue a walk with the state at `address` until it is done or needs Python."""
    st = i8_pointer(address)
    table = load(st, S_TANGENTS)
    at = load(st, S_NEXT_TANGENT)
    end = load(st, S_END_TANGENTS)
    store(st, S_EVENT, EVENT_DONE)
    while at < end:
        row = table + at * TANGENT_BYTES
        if load(i8_pointer(row), TANGENT_SIMPLE) == 0:
            store(st, S_EVENT, EVENT_PYTHON)
            break
        if not push_row(st, table, row):
            break
        at += 1
    store(st, S_NEXT_TANGENT, at)
