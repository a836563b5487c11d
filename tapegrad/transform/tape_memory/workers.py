"""What the workers of a parallel loop share: stretches of its iterations, and their tapes."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typed_passes import _reload_parfors
from numba.extending import intrinsic

from tapegrad.transform.cache.machine_code import jit, passive
from tapegrad.transform.tape_memory.buffer import (
    FIRST,
    POINTER,
    TAPE,
    WORD,
    Block,
    array_of,
    block_of,
    made,
    number,
    owner_of,
)
from tapegrad.transform.tape_memory.growth import grown

_PER_WORKER = 4  # stretches of one worker in each half of the iterations, if there are enough
_LEAST = 16  # iterations in each of them, then


@intrinsic
def thread_count(typingctx):
    """Return how many threads numba may use.

    `numba.get_num_threads` refers to an address of this process: code that calls it cannot be
    cached.
    """

    def codegen(context, builder, signature, args):
        _reload_parfors()  # starts the threads, which makes the function known
        context.active_code_library._reload_init.add(_reload_parfors)  # also from the cache
        kind = ir.FunctionType(ir.IntType(64), [])
        function = cgutils.get_or_insert_function(builder.module, kind, "get_num_threads")
        return builder.call(function, [])

    return types.int64(), codegen


@jit
def workers_for(count):
    """Return how many workers share a number of iterations."""
    return max(1, min(thread_count(), count))


@passive
def blocks_of(count, workers):
    """Return the number of stretches, of each of the two halves, that workers share equally."""
    if workers == 1:
        return 1
    many = _PER_WORKER * workers
    return many if count >= 2 * many * _LEAST else workers


@passive
def share_of(number, worker, workers):
    """Return a stretch of a worker: they are dealt out from the first worker to the last and back.

    So the shares are equal if iterations take longer and longer.
    """
    return number * workers + (worker if number % 2 == 0 else workers - 1 - worker)


@passive
def stretch(part, parts, count):
    """Return the first iteration of a part of all, and that of the next part."""
    return count * part // parts, count * (part + 1) // parts


@jit
def copies_of(array, workers):
    """Return an array of zeros with the shape of another one for each worker but the first."""
    return np.zeros((workers - 1, *array.shape), array.dtype)


@intrinsic
def address_of(typingctx, tape):
    """Return the address of the block of a tape: what a parallel loop is given has no parent."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(owner_of(context, builder, signature.args[0], args[0]), WORD)

    return types.int64(tape), codegen


@intrinsic
def tape_at(typingctx, address):
    """Return the tape with a block at an address."""

    def codegen(context, builder, signature, args):
        return array_of(context, builder, builder.inttoptr(args[0], POINTER))

    return TAPE(types.int64), codegen


@intrinsic
def next_tape(typingctx, tape):
    """Return the tape that belongs to a tape, a new one if there is none."""

    def codegen(context, builder, signature, args):
        block = block_of(context, builder, signature.args[0], args[0])
        with builder.if_then(builder.icmp_unsigned("==", block.get("next"), number(0))):
            meminfo = made(context, builder, number(FIRST))
            first = owner_of(context, builder, signature.args[0], args[0])
            caller = block.get("caller")
            is_first = builder.icmp_unsigned("==", caller, number(0))
            caller = builder.select(is_first, builder.ptrtoint(first, WORD), caller)
            Block(context, builder, meminfo).set("caller", caller)
            block.set("next", builder.ptrtoint(meminfo, WORD))
        return array_of(context, builder, builder.inttoptr(block.get("next"), POINTER))

    return TAPE(tape), codegen


@intrinsic
def used(typingctx, tape):
    """Return how much of the tape of a worker is used."""

    def codegen(context, builder, signature, args):
        return block_of(context, builder, signature.args[0], args[0]).get("top")

    return types.int64(tape), codegen


@intrinsic
def set_used(typingctx, tape, top):
    """Note how much of the tape of a worker is used; one that is empty again may shrink."""

    def codegen(context, builder, signature, args):
        block = block_of(context, builder, signature.args[0], args[0])
        block.set("top", args[1])
        with builder.if_then(builder.icmp_unsigned("==", args[1], number(0))):
            block.shrink()
            block.mark()
        return context.get_dummy_value()

    return types.none(tape, types.int64), codegen


@passive
def tape_of(address, worker):
    """Return the tape of a worker. They form a chain, which starts with the tape of the caller."""
    found = next_tape(tape_at(address))
    for _ in range(worker):
        found = next_tape(found)
    return found


@passive
def push_workers(tape, top, workers):
    """Push the number of workers, and how much of the tape of each of them is used."""
    needed = top + workers + 1
    if needed > tape.size:
        tape = grown(tape, needed)
    for worker in range(workers):
        tape[top + worker] = used(tape_of(address_of(tape), worker))
    tape[needed - 1] = workers
    return tape, needed


@passive
def pop_workers(tape, top):
    """Pop the number of workers, and how much of the tape of each of them is used."""
    workers = int(tape[top - 1])
    top -= workers + 1
    for worker in range(workers):
        set_used(tape_of(address_of(tape), worker), int(tape[top + worker]))
    return workers, top
