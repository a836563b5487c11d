"""The segments of the tape, as compiled code walks over them.

The state of a sweep has the address of a table with a row for each segment that is in use, and the
row that is swept now (`tapegrad.tape.layout`, words SEG_*).

Imported only to be compiled: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

from tapegrad.kernels.intrinsics import i8_pointer, load, store, store_words
from tapegrad.tape.compiled.compiler import jit

from tapegrad.tape.layout import (  # isort: skip
    EVENT_SEGMENT, SEGMENT_BITS, SEG_BYTES, SEG_COUNT, SEG_HIGH, SEG_LEAF, SEG_LOW, SEG_NUMBER,
    SEG_TOP, S_CURRENT, S_CURSOR, S_EVENT, S_LAST, S_NSEGMENTS, S_PENDING, S_SEGMENTS,
)  # fmt: skip


@jit
def find_segment(st, slot):
    """Return the address of the segment-table row of `slot`, or 0 after an event."""
    number = slot >> SEGMENT_BITS
    table = load(st, S_SEGMENTS)
    seg = table + load(st, S_LAST)
    if load(i8_pointer(seg), SEG_NUMBER) == number:
        return seg
    end = table + load(st, S_NSEGMENTS) * SEG_BYTES
    seg = table
    while seg < end:
        if load(i8_pointer(seg), SEG_NUMBER) == number:
            store(st, S_LAST, seg - table)
            return seg
        seg += SEG_BYTES
    store_words(st, S_EVENT, EVENT_SEGMENT, number, 0, 0)
    return 0


@jit
def next_segment(st):
    """Select the newest segment with waiting rows; return False if there is none."""
    table = load(st, S_SEGMENTS)
    best = -1
    best_number = -1
    for k in range(load(st, S_NSEGMENTS)):
        s = i8_pointer(table + k * SEG_BYTES)
        if load(s, SEG_COUNT) > 0 and load(s, SEG_NUMBER) > best_number:
            best = k
            best_number = load(s, SEG_NUMBER)
    store(st, S_CURRENT, best)
    if best < 0:
        return False
    store(st, S_CURSOR, load(i8_pointer(table + best * SEG_BYTES), SEG_TOP))
    return True


@jit
def count(st, seg, index):
    """Note that a row of this segment is waiting to be swept."""
    s = i8_pointer(seg)
    store(s, SEG_TOP, max(load(s, SEG_TOP), index))
    store(s, SEG_LOW, min(load(s, SEG_LOW), index))
    store(s, SEG_HIGH, max(load(s, SEG_HIGH), index))
    if load(s, SEG_LEAF) == 0:
        store(s, SEG_COUNT, load(s, SEG_COUNT) + 1)
        store(st, S_PENDING, load(st, S_PENDING) + 1)
