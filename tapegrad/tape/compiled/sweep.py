"""The compiled reverse sweep.

`sweep` is a function of the address of a sweep's state (`tapegrad.tape.layout`, words S_*). It runs
over the records below the roots, newest first, and adds the contributions of each record with an
adjoint to the adjoints of its inputs. If it needs something that only Python can provide (memory,
code that is not yet compiled, another segment of the tape, a user's rule), it writes an event to
the state and returns; the next call continues there. No work is done twice: a record first
*prepares* every input that it will write to, which may cause an event, and only then writes.

The most common case, contiguous operands of one shape, is handled here. The others are separate
functions (`tapegrad.tape.compiled.contributions`), called by address and compiled on first use, so
that a program compiles only what it uses.

Imported only to be compiled: see `tapegrad.kernels.native`.
"""

from __future__ import annotations

from tapegrad.kernels.intrinsics import (
    call_kernel,
    cycle_counter,
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
from tapegrad.tape.compiled.segments import count, find_segment, next_segment

from tapegrad.tape.layout import (  # isort: skip
    ADOPTED, ARRAY_DATA, ARRAY_DIMS, ARRAY_DTYPE, ARRAY_NDIM, ARRAY_STRIDES, AVAL_BYTES, AVAL_CLASS,
    AVAL_DIMS, AVAL_DTYPE, AVAL_ITEM, AVAL_NDIM, AVAL_SHIFT, AVAL_SIZE, BLOCK_ELEMENTS, BORROWED,
    CAPTURE, CONTRIBUTION_WORDS, DTYPE_F8, EVENT_ARRAY, EVENT_CAPTURE, EVENT_DONE, EVENT_FREED,
    EVENT_HANDLER, EVENT_KERNEL, EVENT_LARGE, EVENT_MEMORY, EVENT_MUTATED, EVENT_PYTHON,
    EVENT_SWEPT, EVENT_TIMES, FOREIGN, FREED, FRESH, HANDLER_CHECK, HANDLER_STRIDED, KERNEL_INPUTS,
    KIND_MAP, KIND_PRODUCTS, KIND_PYTHON, KIND_REDUCE, LARGE_WORK, LIST_ITEMS, MASK_32, NEEDED,
    NO_MASK, NUMBERS, OP_INPUTS, OP_KIND, OP_LAYOUT, OP_TRAITS, OP_VALUES, OP_WORDS, PASSES, PYTHON,
    REACHED, ROW_AVAL, ROW_BYTES, ROW_OP, ROW_OWNER, ROW_X, ROW_Y, SAVES, SEGMENT_BITS,
    SEGMENT_ROWS, SEG_BYTES, SEG_COUNT, SEG_LEAF, SEG_NUMBER, SEG_ROWS, SEG_TOP, SEG_WINDOW, SPREAD,
    SWEPT_CAPACITY, S_ADDRESS, S_AVALS, S_BLOCKS, S_BOOL, S_BUMP, S_BUMP_END, S_CLOCK, S_CLOCK_ID,
    S_CONTRIBUTION, S_CONTRIBUTIONS, S_CURRENT, S_CURSOR, S_DATA, S_EVENT, S_FINISH, S_FREE,
    S_HANDLERS, S_HEADERS, S_HOOKED, S_KERNELS, S_NCONTRIBUTIONS, S_NEED_MODE, S_NMUTATED, S_NONE,
    S_NSWEPT, S_NTIMES, S_OPS, S_PENDING, S_RELEASED, S_RETAIN, S_SEGMENTS, S_STEPS, S_SWEPT,
    S_TIMES, S_WORK, TIMES_CAPACITY, TIME_OP, TIME_SECONDS, TIME_SLOT, TIME_WORDS, TOUCHED,
    TRAIT_PASSES_X, TRAIT_PASSES_Y, TRAIT_SAVES,
)  # fmt: skip


@jit
def prepare(st, slot):
    """Ensure that a slot has an adjoint that can be added to.

    Return the address of its window entry, 0 after an event, or -1 if the adjoint is not needed. It
    may be called repeatedly for a slot.
    """
    seg = find_segment(st, slot)
    if seg == 0:
        return 0
    s = i8_pointer(seg)
    index = slot & (SEGMENT_ROWS - 1)
    entry = load(s, SEG_WINDOW) + index * 16
    e = i8_pointer(entry)
    state = load(e, 1)
    if load(st, S_NEED_MODE) == 1 and (state & NEEDED) == 0:
        return -1
    if (state & TOUCHED) != 0 and load(e, 0) != 0:
        if (state & BORROWED) == 0:
            return entry
        # the memory is shared: add to a copy
        store_words(st, S_EVENT, EVENT_ARRAY, slot, (state >> AVAL_SHIFT) & MASK_32, 1)
        return 0
    r = i8_pointer(load(s, SEG_ROWS) + index * ROW_BYTES)
    aval = load(r, ROW_AVAL)
    if load(e, 0) == 0:
        head = load(r, ROW_OP)
        ops = i8_pointer(load(st, S_OPS))
        # adjoints that Python reads use Python arrays: leaves, rules, hooks, captured adjoints
        if (
            ((head >> 32) & PYTHON) != 0
            or load(s, SEG_LEAF) == 1
            or (state & CAPTURE) != 0
            or load(ops, (head & MASK_32) * OP_WORDS) == KIND_PYTHON
        ):
            store_words(st, S_EVENT, EVENT_ARRAY, slot, aval, 0)
            return 0
        info = i8_pointer(load(st, S_AVALS) + aval * AVAL_BYTES)
        size_class = S_FREE + load(info, AVAL_CLASS)
        address = load(st, size_class)
        if address != 0:
            store(st, size_class, load(i8_pointer(address), 0))
        else:
            address = load(st, S_BUMP)
            end = address + (64 << load(info, AVAL_CLASS))
            if end > load(st, S_BUMP_END):
                store_words(st, S_EVENT, EVENT_MEMORY, end - address, 0, 0)
                return 0
            store(st, S_BUMP, end)
        store(e, 0, address)
    store(e, 1, state | TOUCHED | FRESH | (aval << AVAL_SHIFT))
    if (state & TOUCHED) == 0:
        count(st, seg, index)
    return entry


@jit
def is_plain(header, info, bool_dtype):
    """Whether a saved array is contiguous and has the shape of an aval."""
    i = i8_pointer(info)
    h = i8_pointer(header)
    d = load(i4_pointer(header), ARRAY_NDIM >> 2) - 1
    if d + 1 != load(i, AVAL_NDIM) or load(h, ARRAY_DTYPE >> 3) == bool_dtype:
        return False
    dims = i8_pointer(load(h, ARRAY_DIMS >> 3))
    strides = i8_pointer(load(h, ARRAY_STRIDES >> 3))
    expected = load(i, AVAL_ITEM)
    while d >= 0:
        dim = load(dims, d)
        if dim != load(i, AVAL_DIMS + d) or (dim != 1 and load(strides, d) != expected):
            return False
        expected *= dim
        d -= 1
    return True


@jit
def add_block(dst, src, n, dtype):
    """Perform ``dst[:n] += src[:n]`` on contiguous memory."""
    if dtype == DTYPE_F8:
        d8 = f8_pointer(dst)
        s8 = f8_pointer(src)
        for i in range(n):
            store(d8, i, load(d8, i) + load(s8, i))
    else:
        d4 = f4_pointer(dst)
        s4 = f4_pointer(src)
        for i in range(n):
            store(d4, i, load(d4, i) + load(s4, i))


@jit
def fill_block(st, address, k, info):
    """Fill block `k` of scratch with one number; return its address."""
    i = i8_pointer(info)
    block = load(st, S_BLOCKS) + k * BLOCK_ELEMENTS * 8
    n = min(load(i, AVAL_SIZE), BLOCK_ELEMENTS)
    if load(i, AVAL_DTYPE) == DTYPE_F8:
        for m in range(n):
            store(f8_pointer(block), m, load(f8_pointer(address), 0))
    else:
        for m in range(n):
            store(f4_pointer(block), m, load(f4_pointer(address), 0))
    return block


@jit
def fill_plain(st, entry, kernel, info, g):
    """Add one contribution if every operand is a number or contiguous, all of one shape."""
    e = i8_pointer(entry)
    fresh = (load(e, 1) & FRESH) != 0
    store(e, 1, load(e, 1) & ~FRESH)
    add_products(st, kernel, info, g, load(e, 0), fresh)


@jit
def add_products(st, kernel, info, g, out, fresh):
    """Add the products of g and a partial to an output, or store them if they are the first."""
    z, a0 = load(st, S_DATA), load(st, S_DATA + 1)
    a1, a2 = load(st, S_DATA + 2), load(st, S_DATA + 3)
    i = i8_pointer(info)
    itemsize = load(i, AVAL_ITEM)
    n = load(i, AVAL_SIZE)
    block = load(st, S_BLOCKS)
    while n > 0:
        m = min(BLOCK_ELEMENTS, n)
        if fresh:
            call_kernel(kernel, m, g, z, a0, a1, a2, out)
        else:
            call_kernel(kernel, m, g, z, a0, a1, a2, block)
            add_block(out, block, m, load(i, AVAL_DTYPE))
        n -= m
        at = m * itemsize
        g += at * load(st, S_STEPS + 4)
        out += at
        z += at * load(st, S_STEPS)
        a0 += at * load(st, S_STEPS + 1)
        a1 += at * load(st, S_STEPS + 2)
        a2 += at * load(st, S_STEPS + 3)


@jit
def is_compiled(st, entry, op, j, info, space, plain):
    """Whether all code for the contribution to input `j` is compiled; emit an event if not."""
    dtype = load(i8_pointer(info), AVAL_DTYPE)
    if load(i8_pointer(load(st, S_KERNELS)), (op * 2 + dtype) * KERNEL_INPUTS + j) == 0:
        store_words(st, S_EVENT, EVENT_KERNEL, op, dtype, j)
        return False
    target = (load(i8_pointer(entry), 1) >> AVAL_SHIFT) & MASK_32
    if not (plain and target == space) and load(st, S_HANDLERS + HANDLER_STRIDED) == 0:
        store_words(st, S_EVENT, EVENT_HANDLER, HANDLER_STRIDED, 0, 0)
        return False
    return True


@jit
def fill(st, entry, op, j, info, space, plain, g, mask):
    """Add the contribution to input `j` with the plain loop or the strided handler."""
    dtype = load(i8_pointer(info), AVAL_DTYPE)
    kernel = load(i8_pointer(load(st, S_KERNELS)), (op * 2 + dtype) * KERNEL_INPUTS + j)
    target = (load(i8_pointer(entry), 1) >> AVAL_SHIFT) & MASK_32
    space_info = load(st, S_AVALS) + space * AVAL_BYTES
    if plain and target == space:
        fill_plain(st, entry, kernel, space_info, g)
        return
    handler = load(st, S_HANDLERS + HANDLER_STRIDED)
    call_kernel(handler, load(st, S_ADDRESS), entry, kernel, space_info, info, mask, g)


@jit
def retire(st, entry, row):
    """Finish a swept record: recycle its adjoint, and note its saved values for release."""
    swept = is_swept(st, entry)
    recycle(st, entry)
    if load(st, S_RETAIN) == 1 or not swept:
        return
    r = i8_pointer(row)
    head = load(r, ROW_OP)
    op = head & MASK_32
    flags = head >> 32
    saves = load(i8_pointer(load(st, S_OPS)), op * OP_WORDS + OP_TRAITS) & TRAIT_SAVES
    if (saves != 0 and (flags & NUMBERS) == 0) or (flags & SAVES) != 0:
        store(r, ROW_OP, head | (FREED << 32))
        k = load(st, S_NSWEPT)
        pairs = i8_pointer(load(st, S_SWEPT))
        store(pairs, 2 * k, load(r, ROW_OWNER))
        store(pairs, 2 * k + 1, op)
        store(st, S_NSWEPT, k + 1)


@jit
def recycle(st, entry):
    """Free the memory of an adjoint, and reset its entry to untouched, but reached."""
    e = i8_pointer(entry)
    state = load(e, 1)
    if (state & FOREIGN) == 0:
        info = i8_pointer(load(st, S_AVALS) + ((state >> AVAL_SHIFT) & MASK_32) * AVAL_BYTES)
        size_class = S_FREE + load(info, AVAL_CLASS)
        store(i8_pointer(load(e, 0)), 0, load(st, size_class))
        store(st, size_class, load(e, 0))
    store(e, 0, 0)
    store(e, 1, REACHED)


@jit
def is_swept(st, entry):
    """Whether the record's contributions are needed, not only its own adjoint."""
    return load(st, S_NEED_MODE) == 0 or (load(i8_pointer(entry), 1) & PASSES) != 0


@jit
def sweep_record(st, slot, entry, row):
    """Sweep one record; return True when done, False after an event."""
    r = i8_pointer(row)
    head = load(r, ROW_OP)
    op = head & MASK_32
    flags = head >> 32
    meta = i8_pointer(load(st, S_OPS) + op * OP_WORDS * 8)
    kind = load(meta, OP_KIND)
    e = i8_pointer(entry)
    state = load(e, 1)
    if (state & CAPTURE) != 0:
        store_words(st, S_EVENT, EVENT_CAPTURE, slot, 0, 0)
        return False
    if not is_swept(st, entry):
        return True
    if (flags & FREED) != 0:
        store_words(st, S_EVENT, EVENT_FREED, slot, op, 0)
        return False
    owner = load(r, ROW_OWNER)
    if (
        kind == KIND_PYTHON
        or load(e, 0) == 0
        or ((flags & PYTHON) != 0 and load(st, S_HOOKED) != slot)
    ):
        store_words(st, S_EVENT, EVENT_PYTHON, slot, owner, 0)
        return False
    aval = load(r, ROW_AVAL)
    info = load(st, S_AVALS) + aval * AVAL_BYTES
    g = load(e, 0)
    items = load(i8_pointer(owner), LIST_ITEMS >> 3)
    if kind == KIND_PRODUCTS:
        handler = load(st, S_HANDLERS + kind)
        if handler == 0:
            store_words(st, S_EVENT, EVENT_HANDLER, kind, 0, 0)
            return False
        store(st, S_EVENT, EVENT_DONE)
        inputs = load(r, ROW_X)
        call_kernel(handler, load(st, S_ADDRESS), items, inputs, g, info, slot, op)
        return load(st, S_EVENT) == EVENT_DONE
    # -- the inputs it writes to
    x = load(r, ROW_X)
    y = load(r, ROW_Y)
    mask = NO_MASK
    if load(meta, OP_INPUTS) < 2:
        if kind == KIND_REDUCE:
            mask = y
        y = 0
    entry_x = -1
    entry_y = -1
    if x != 0:
        entry_x = prepare(st, x)
        if entry_x == 0:
            return False
    if y != 0:
        entry_y = prepare(st, y)
        if entry_y == 0:
            return False
    # -- transfer the memory of a cotangent that passes unchanged to an input without adjoint
    handed = 0
    traits = load(meta, OP_TRAITS)
    if (traits & (TRAIT_PASSES_X | TRAIT_PASSES_Y)) != 0 and (state & FOREIGN) == 0:
        if (traits & TRAIT_PASSES_X) != 0 and can_take(st, entry_x, aval, kind):
            handed = entry_x
        elif (traits & TRAIT_PASSES_Y) != 0 and can_take(st, entry_y, aval, kind):
            handed = entry_y
        if entry_x == entry_y:
            handed = 0
    # -- saved values, over the op's space: that of the output, or of a reduction's input
    space = aval
    if kind == KIND_REDUCE and entry_x != -1:
        space = (load(i8_pointer(entry_x), 1) >> AVAL_SHIFT) & MASK_32
    space_info = load(st, S_AVALS) + space * AVAL_BYTES
    plain = kind == KIND_MAP
    store(st, S_STEPS + 4, 1)
    if kind == KIND_REDUCE and load(i8_pointer(info), AVAL_SIZE) == 1:
        plain = True  # one cotangent is shared by all elements
        store(st, S_STEPS + 4, 0)
    for k in range(4):
        header = 0
        data = 0
        step = 0
        index = load(meta, OP_VALUES + k)
        if index >= 0:
            header = load(i8_pointer(items), index)
            if header == load(st, S_RELEASED):  # just now, by a sweep of another thread
                store_words(st, S_EVENT, EVENT_FREED, slot, op, 0)
                return False
            if header == load(st, S_NONE):
                header = 0
        if header != 0:
            data = load(i8_pointer(header), ARRAY_DATA >> 3)
            if is_plain(header, space_info, load(st, S_BOOL)):
                step = 1
            elif (
                plain
                and load(i8_pointer(header), ARRAY_DTYPE >> 3) != load(st, S_BOOL)
                and (
                    load(i4_pointer(header), ARRAY_NDIM >> 2) == 0
                    or (k != 1 and kind == KIND_REDUCE)
                )
            ):
                data = fill_block(
                    st, data, SPREAD + k, space_info
                )  # a number, such as the 2.0 in ``2.0 * x``
            else:
                plain = False
        store(st, S_HEADERS + k, header)
        store(st, S_DATA + k, data)
        store(st, S_STEPS + k, step)
    if load(st, S_NMUTATED) > 0:
        zero = 0
        store(st, S_EVENT, EVENT_DONE)
        call_kernel(
            load(st, S_HANDLERS + HANDLER_CHECK),
            load(st, S_ADDRESS),
            slot,
            op,
            zero,
            zero,
            zero,
            zero,
        )
        if load(st, S_EVENT) == EVENT_MUTATED:
            return False
    if kind > KIND_REDUCE:
        if load(st, S_HANDLERS + kind) == 0:
            store_words(st, S_EVENT, EVENT_HANDLER, kind, 0, 0)
            return False
        if entry_x != -1:
            call_kernel(
                load(st, S_HANDLERS + kind),
                load(st, S_ADDRESS),
                entry_x,
                info,
                g,
                load(i8_pointer(items), max(load(meta, OP_LAYOUT), 0)),
                x,
                y,
            )
    else:
        if entry_x != -1 and not is_compiled(st, entry_x, op, 0, info, space, plain):
            return False
        if entry_y != -1 and not is_compiled(st, entry_y, op, 1, info, space, plain):
            return False
        if plain and load(st, S_STEPS + 4) == 0:
            g = fill_block(st, g, SPREAD + 4, space_info)
        if entry_x != -1 and entry_x != handed:
            fill(st, entry_x, op, 0, info, space, plain, g, mask)
        if entry_y != -1 and entry_y != handed:
            fill(st, entry_y, op, 1, info, space, plain, g, mask)
        if handed != 0:
            # swap both memories: the record's is recycled when it retires
            h = i8_pointer(handed)
            store(e, 0, load(h, 0))
            store(h, 0, g)
            store(h, 1, load(h, 1) & ~FRESH)
    if load(st, S_WORK) >= 0:
        store(st, S_WORK, load(st, S_WORK) + load(i8_pointer(space_info), AVAL_SIZE))
    return True


@jit
def can_take(st, entry, aval, kind):
    """Whether a prepared input can take over the memory of a cotangent with some aval."""
    if entry == -1 or kind != KIND_MAP:
        return False
    state = load(i8_pointer(entry), 1)
    same = ((state >> AVAL_SHIFT) & MASK_32) == aval
    return same and (state & FRESH) != 0 and (state & FOREIGN) == 0


@jit
def copy_bytes(dst, src, nbytes):
    d = u1_pointer(dst)
    s = u1_pointer(src)
    for i in range(nbytes):
        store(d, i, load(s, i))


@jit
def add_contribution(st, entry):
    """Add an array computed by Python to an adjoint; return False after an event.

    The first contribution becomes the adjoint itself; Python keeps the array alive.
    """
    words = i8_pointer(entry)
    slot = load(words, 0)
    seg = find_segment(st, slot)
    if seg == 0:
        return False
    index = slot & (SEGMENT_ROWS - 1)
    entry = load(i8_pointer(seg), SEG_WINDOW) + index * 16
    e = i8_pointer(entry)
    state = load(e, 1)
    if load(st, S_NEED_MODE) == 1 and (state & NEEDED) == 0:
        return True
    aval = load(i8_pointer(load(i8_pointer(seg), SEG_ROWS) + index * ROW_BYTES), ROW_AVAL)
    data = load(i8_pointer(load(words, 1)), ARRAY_DATA >> 3)
    if load(e, 0) == 0:
        store(e, 0, data)
        store(e, 1, state | TOUCHED | FOREIGN | BORROWED | (aval << AVAL_SHIFT))
        if (state & TOUCHED) == 0:
            count(st, seg, index)
        store(words, 2, ADOPTED)
        return True
    if prepare(st, slot) == 0:
        return False
    i = i8_pointer(load(st, S_AVALS) + aval * AVAL_BYTES)
    if (load(e, 1) & FRESH) != 0:
        store(e, 1, load(e, 1) & ~FRESH)
        copy_bytes(load(e, 0), data, load(i, AVAL_ITEM) * load(i, AVAL_SIZE))
    else:
        add_block(load(e, 0), data, load(i, AVAL_SIZE), load(i, AVAL_DTYPE))
    return True


@jit
def add_contributions(st):
    """Add all arrays computed by Python; return False after an event."""
    while load(st, S_CONTRIBUTION) < load(st, S_NCONTRIBUTIONS):
        entry = load(st, S_CONTRIBUTION) * CONTRIBUTION_WORDS * 8
        if not add_contribution(st, load(st, S_CONTRIBUTIONS) + entry):
            return False
        store(st, S_CONTRIBUTION, load(st, S_CONTRIBUTION) + 1)
    return True


@jit
def note_time(st, slot, row):
    """Note that a record is done, while a profile runs; return False after an event."""
    n = load(st, S_NTIMES)
    at = load(st, S_TIMES) + n * TIME_WORDS * 8
    time = i8_pointer(at)
    store(time, TIME_SLOT, slot)
    store(time, TIME_OP, load(i8_pointer(row), ROW_OP) & MASK_32)
    clock = load(st, S_CLOCK)
    if clock == 0:
        store(time, TIME_SECONDS, cycle_counter())
    else:
        seconds = at + TIME_SECONDS * 8
        unused = 0
        call_kernel(clock, load(st, S_CLOCK_ID), seconds, unused, unused, unused, unused, unused)
    store(st, S_NTIMES, n + 1)
    if n + 1 < TIMES_CAPACITY:
        return True
    store_words(st, S_EVENT, EVENT_TIMES, 0, 0, 0)
    return False


def sweep(address):
    """Continue the sweep with the state at `address` until it is done or needs Python."""
    st = i8_pointer(address)
    store(st, S_EVENT, EVENT_DONE)
    if not add_contributions(st):
        return
    finish = load(st, S_FINISH)  # Python has processed the record under the cursor
    store(st, S_FINISH, 0)
    while load(st, S_PENDING) > 0:
        if load(st, S_CURRENT) < 0 and not next_segment(st):
            break
        seg = load(st, S_SEGMENTS) + load(st, S_CURRENT) * SEG_BYTES
        s = i8_pointer(seg)
        base = load(s, SEG_NUMBER) << SEGMENT_BITS
        cursor = load(st, S_CURSOR)
        while load(s, SEG_COUNT) > 0:
            entry = load(s, SEG_WINDOW) + cursor * 16
            if (load(i8_pointer(entry), 1) & TOUCHED) != 0:
                row = load(s, SEG_ROWS) + cursor * ROW_BYTES
                if load(st, S_NSWEPT) == SWEPT_CAPACITY or load(st, S_WORK) > LARGE_WORK:
                    event = EVENT_LARGE
                    if load(st, S_NSWEPT) == SWEPT_CAPACITY:
                        event = EVENT_SWEPT
                    store(st, S_EVENT, event)
                    store(st, S_FINISH, finish)
                    store(st, S_CURSOR, cursor)
                    return
                if finish == 0 and not sweep_record(st, base + cursor, entry, row):
                    store(st, S_CURSOR, cursor)
                    return
                finish = 0
                retire(st, entry, row)
                store(s, SEG_COUNT, load(s, SEG_COUNT) - 1)
                store(st, S_PENDING, load(st, S_PENDING) - 1)
                if load(st, S_TIMES) != 0 and not note_time(st, base + cursor, row):
                    store(st, S_CURSOR, cursor - 1)
                    return
            cursor -= 1
        store(s, SEG_TOP, -1)
        store(st, S_CURRENT, -1)
