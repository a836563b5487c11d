"""Two compiled services beside the sweep, each a function of the address of its state.

`mark` finds the records between the roots and the requested inputs, so that the sweep computes only
what is needed; `contribute` adds an array that Python computed to an adjoint.

Imported only to be compiled: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

from tapegrad.kernels.intrinsics import i8_pointer, load, store, store_words
from tapegrad.tape.driver import (
    MASK_32,
    ROW_AVAL,
    ROW_BYTES,
    ROW_OP,
    ROW_OWNER,
    ROW_X,
    ROW_Y,
    add_block,
    count,
    find_segment,
    jit,
    next_segment,
    prepare,
)
from tapegrad.tape.handlers import copy_bytes, nbytes_of, take_fresh
from tapegrad.tape.layout import *


@jit
def entry_of(seg, slot):
    return load(i8_pointer(seg), SEG_WINDOW) + (slot & (SEGMENT_ROWS - 1)) * 16


@jit
def reach(st, slot):
    """Note that a slot lies below a root. False after an event."""
    seg = find_segment(st, slot)
    if seg == 0:
        return False
    e = i8_pointer(entry_of(seg, slot))
    if (load(e, 1) & REACHED) == 0:
        store(e, 1, load(e, 1) | REACHED)
        count(st, seg, slot & (SEGMENT_ROWS - 1))
    return True


@jit
def is_needed(st, slot):
    if slot == 0:
        return False
    seg = find_segment(st, slot)
    return seg != 0 and (load(i8_pointer(entry_of(seg, slot)), 1) & NEEDED) != 0


@jit
def visit_inputs(st, row, reaching):
    """Reach the inputs of a record (False after an event), or ask whether one is needed."""
    r = i8_pointer(row)
    head = load(r, ROW_OP)
    flags = head >> 32
    if (flags & FREED) != 0:
        return True  # what is below may be gone: let the sweep come here and say so
    if (flags & NARY) != 0:
        items = i8_pointer(load(i8_pointer(load(r, ROW_OWNER)), LIST_ITEMS >> 3))
        slots = i8_pointer(load(i8_pointer(load(items, OWN_INPUTS)), ARRAY_DATA >> 3))
        for k in range(load(r, ROW_X)):
            slot = load(slots, k)
            if slot != 0:
                if reaching:
                    if not reach(st, slot):
                        return False
                elif is_needed(st, slot):
                    return True
        return reaching
    x = load(r, ROW_X)
    y = 0
    if load(i8_pointer(load(st, S_OPS)), (head & MASK_32) * OP_WORDS + OP_INPUTS) > 1:
        y = load(r, ROW_Y)
    if reaching:
        if x != 0 and not reach(st, x):
            return False
        return y == 0 or reach(st, y)
    return is_needed(st, x) or is_needed(st, y)


def mark(address):
    """Mark every record on a path from a root (REACHED) to a requested input as NEEDED."""
    st = i8_pointer(address)
    store(st, S_EVENT, EVENT_DONE)
    while True:
        if load(st, S_CURRENT) < 0 and not next_segment(st):
            break
        seg = load(st, S_SEGMENTS) + load(st, S_CURRENT) * SEG_BYTES
        s = i8_pointer(seg)
        while load(s, SEG_COUNT) > 0:
            cursor = load(st, S_CURSOR)
            e = i8_pointer(load(s, SEG_WINDOW) + cursor * 16)
            if (load(e, 1) & REACHED) != 0:
                if not visit_inputs(st, load(s, SEG_ROWS) + cursor * ROW_BYTES, True):
                    return
                store(s, SEG_COUNT, load(s, SEG_COUNT) - 1)
                store(st, S_PENDING, load(st, S_PENDING) - 1)
                store(st, S_NREACHED, load(st, S_NREACHED) + 1)
            store(st, S_CURSOR, cursor - 1)
        store(s, SEG_TOP, -1)
        store(st, S_CURRENT, -1)
    # upwards, oldest segment first: all of them are in the table, so nothing stops this pass
    last = -1
    while True:
        table = load(st, S_SEGMENTS)
        best = 0
        number = 1 << 62
        for k in range(load(st, S_NSEGMENTS)):
            s = i8_pointer(table + k * SEG_BYTES)
            candidate = load(s, SEG_NUMBER)
            if load(s, SEG_LEAF) == 0 and candidate > last and candidate < number:
                best = k
                number = candidate
        if number == 1 << 62:
            break
        last = number
        s = i8_pointer(table + best * SEG_BYTES)
        for index in range(load(s, SEG_LOW), load(s, SEG_HIGH) + 1):
            e = i8_pointer(load(s, SEG_WINDOW) + index * 16)
            if (load(e, 1) & REACHED) != 0:
                if visit_inputs(st, load(s, SEG_ROWS) + index * ROW_BYTES, False):
                    store(e, 1, load(e, 1) | NEEDED)
                    store(st, S_NNEEDED, load(st, S_NNEEDED) + 1)


def contribute(address):
    """Add the array with header ARG1 to the adjoint of slot ARG0.

    A first contribution is adopted as it is, with the flags in ARG2; then the event's ARG0 is 1
    and Python keeps the array alive.
    """
    st = i8_pointer(address)
    slot = load(st, S_ARG0)
    header = i8_pointer(load(st, S_ARG1))
    flags = load(st, S_ARG2)
    seg = find_segment(st, slot)
    if seg == 0:
        return
    e = i8_pointer(entry_of(seg, slot))
    state = load(e, 1)
    if load(st, S_NEED_MODE) == 1 and (state & NEEDED) == 0:
        store_words(st, S_EVENT, EVENT_DONE, 0, 0, 0)
        return
    index = slot & (SEGMENT_ROWS - 1)
    aval = load(i8_pointer(load(i8_pointer(seg), SEG_ROWS) + index * ROW_BYTES), ROW_AVAL)
    info = load(st, S_AVALS) + aval * AVAL_BYTES
    data = load(header, ARRAY_DATA >> 3)
    if (state & TOUCHED) == 0 and load(e, 0) == 0:
        store(e, 0, data)
        store(e, 1, state | TOUCHED | FOREIGN | flags | (aval << AVAL_SHIFT))
        count(st, seg, index)
        store_words(st, S_EVENT, EVENT_DONE, 1, 0, 0)
        return
    if prepare(st, slot) == 0:
        return
    if take_fresh(load(i8_pointer(seg), SEG_WINDOW) + index * 16):
        copy_bytes(load(e, 0), data, nbytes_of(info))
    else:
        i = i8_pointer(info)
        add_block(load(e, 0), data, load(i, AVAL_SIZE), load(i, AVAL_DTYPE))
    store_words(st, S_EVENT, EVENT_DONE, 0, 0, 0)
