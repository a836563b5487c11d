"""How much memory the arrays take that a tape refers to, each counted once.

They are counted only when a tape comes near its limit, so this is compiled when it is first called.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from tapegrad.kernels.intrinsics import c_function, i8_pointer, load, store

_calloc = c_function("calloc", "address", "size", "size")
_free = c_function("free", "nothing", "address")


def kept_by(address, last):
    """Return the bytes of the arrays, 0 if there is no memory for counting them.

    Of several references to one array, all but the last count 0 from now on.

    Parameters
    ----------
    address
        The address of the words of the tape.
    last
        The place of its last reference: the words of one are the owner of an array, the place after
        the reference before, and bytes.
    """
    tape = i8_pointer(address)
    count, place = 0, last
    while place >= 0:
        count += 1
        place = load(tape, place + 1) - 1
    size = 1
    while size < 2 * count:
        size *= 2
    block = _calloc((size, 8))
    if block == 0:
        return 0
    seen, total, place = i8_pointer(block), 0, last  # owners, by a hash
    while place >= 0:
        owner = load(tape, place)
        at = (owner >> 4) & (size - 1)
        while load(seen, at) != 0 and load(seen, at) != owner:
            at = (at + 1) & (size - 1)
        if load(seen, at) == owner:
            store(tape, place + 2, 0)
        else:
            store(seen, at, owner)
            total += load(tape, place + 2)
        place = load(tape, place + 1) - 1
    _free((block,))
    return total
