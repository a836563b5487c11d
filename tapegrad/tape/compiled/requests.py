"""Compiled services for the sweep, each a function of the address of its state.

`mark` finds the records between the roots and the requested inputs, so that the sweep computes only
needed adjoints. `release` drops the saved values of swept records. `read_cycles` reads the clock
that times records.

Imported only to be compiled: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

from tapegrad.kernels.intrinsics import call_kernel, cycle_counter, i8_pointer, load, store
from tapegrad.tape.compiled.compiler import jit
from tapegrad.tape.compiled.segments import count, find_segment, next_segment

from tapegrad.tape.layout import (  # isort: skip
    ARRAY_DATA, EVENT_DONE, LIST_ITEMS, MASK_32, NARY, NEEDED, OP_INPUTS, OP_VALUES, OP_WORDS,
    OWN_INPUTS, PASSES, REACHED, ROW_BYTES, ROW_OP, ROW_OWNER, ROW_X, ROW_Y, SEGMENT_ROWS,
    SEG_BYTES, SEG_COUNT, SEG_HIGH, SEG_LEAF, SEG_LOW, SEG_NUMBER, SEG_ROWS, SEG_TOP,
    SEG_WINDOW, S_CURRENT, S_CURSOR, S_DECREF, S_EVENT, S_INCREF, S_NONE, S_NSEGMENTS, S_NSWEPT,
    S_OPS, S_PENDING, S_RELEASED, S_SEGMENTS, S_SWEPT,
)  # fmt: skip


@jit
def entry_of(seg, slot):
    return load(i8_pointer(seg), SEG_WINDOW) + (slot & (SEGMENT_ROWS - 1)) * 16


@jit
def reach(st, slot):
    """Mark a slot as reachable from a root; return False after an event."""
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
    """Reach the inputs of a record (False after an event), or return whether one is needed."""
    r = i8_pointer(row)
    head = load(r, ROW_OP)
    flags = head >> 32
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
            store(st, S_CURSOR, cursor - 1)
        store(s, SEG_TOP, -1)
        store(st, S_CURRENT, -1)
    # forward, oldest segment first; all segments are in the table, so there are no events
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
                    store(e, 1, load(e, 1) | NEEDED | PASSES)


def release(address):
    """Drop the saved values of the swept records in the list.

    A value is replaced before its reference is dropped, since that may run arbitrary code.
    """
    st = i8_pointer(address)
    none = load(st, S_NONE)
    released = load(st, S_RELEASED)
    zero = 0
    for n in range(load(st, S_NSWEPT)):
        pair = i8_pointer(load(st, S_SWEPT) + 16 * n)
        items = i8_pointer(load(i8_pointer(load(pair, 0)), LIST_ITEMS >> 3))
        meta = i8_pointer(load(st, S_OPS) + load(pair, 1) * OP_WORDS * 8)
        for k in range(4):
            index = load(meta, OP_VALUES + k)
            if index >= 0:
                old = load(items, index)
                if old != none and old != released:
                    call_kernel(load(st, S_INCREF), released, zero, zero, zero, zero, zero, zero)
                    store(items, index, released)
                    call_kernel(load(st, S_DECREF), old, zero, zero, zero, zero, zero, zero)
    store(st, S_NSWEPT, 0)


def read_cycles(address):
    """Store the cycle counter at an address."""
    store(i8_pointer(address), 0, cycle_counter())
