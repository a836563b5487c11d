"""Making a tape larger, within the limit."""

from __future__ import annotations

import numpy as np

from tapegrad.kernels.intrinsics import larger, smaller
from tapegrad.transform.cache.machine_code import jit, merged, passive
from tapegrad.transform.tape_memory.buffer import (
    FIRST,
    enlarged,
    inherit,
    kept_bytes,
    new_tape,
    note_bytes,
)
from tapegrad.transform.tape_memory.limit import limit
from tapegrad.transform.tape_memory.references import abandon, count_kept

_PART_OF_ROOM = 16  # what a tape may take beyond its need; other workers need some, too


@jit
def grown(tape, needed):
    """Return a tape with its values and at least the needed size."""
    return enlarged(tape, allowed_size(tape, needed))


@merged
def allowed_size(tape, needed):
    """Return the new size of a tape; raise MemoryError if it would exceed the limit."""
    check_limit(tape, needed, kept_bytes(tape))
    kept = kept_bytes(tape)
    own = 8 * needed + kept
    room = (limit() - own - note_bytes(tape, own)) // 8
    size = smaller(size_for(tape, needed), needed + room // _PART_OF_ROOM)
    note_bytes(tape, 8 * size + kept)
    return size


@merged
def size_for(tape, needed):
    """Return the new size of a tape, which is also that of the tape of tangents.

    Memory that is not yet written to is only reserved.
    """
    return larger(larger(needed, tape.size + tape.size // 2), FIRST)


@passive
def check_limit(tape, needed, kept):
    """Raise MemoryError if the tapes of a call exceed the limit, with arrays that they refer to.

    The tape is one of them, and has to have a size.
    """
    own = 8 * needed + kept
    if own + note_bytes(tape, own) > limit():
        count_kept(tape)
        own = 8 * needed + kept_bytes(tape)
        if own + note_bytes(tape, own) > limit():
            abandon(tape)
            raise MemoryError(
                "tapegrad: the values that the reverse pass needs do not fit into memory, or "
                "exceed the limit that tg.set_tape_limit sets; take fewer steps, or loop over "
                "tg.checkpointed(range(n)), which can be nested"
            )


@jit
def copied(tape, size):
    """Return a larger copy of a tape: it stands for `enlarged` where a gradient is differentiated.

    So the tape and that of its tangents are plain arrays there.
    """
    larger = new_tape(size)
    for k in range(tape.size):
        larger[k] = tape[k]
    inherit(larger, tape)
    return larger


@jit
def grown_tangents(tape, needed):
    """Return a larger copy of a tape of tangents, which is a plain array."""
    larger = np.empty(size_for(tape, needed))
    for k in range(tape.size):  # a slice would take seconds to compile
        larger[k] = tape[k]
    return larger
