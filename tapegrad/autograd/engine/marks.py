"""Records between the roots of a pass and some inputs, and when hooked leaves are complete.

Both follow from the marks that `Sweep.request` leaves on the tape without running any rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from tapegrad.tape.layout import (
    LEAF_CLOCK,
    NARY,
    NEEDED,
    OWN_SLOT,
    PASSES,
    REACHED,
    SEGMENT_BITS,
    SEGMENT_ROWS,
)
from tapegrad.tape.owner import LEAF_NOTES, Owner, inputs_of, owner_at
from tapegrad.tape.sweep import Sweep
from tapegrad.tape.tape import TAPE


def _never(*_: Any) -> NoReturn:
    raise AssertionError("marking runs no rules")


def _marked(roots: Sequence[int], requested: Iterable[int], *flags: int) -> list[np.ndarray]:
    """Return, for each of some flags, the slots that have all of its bits, in order."""
    sweep = Sweep(_never, _never, True)
    sweep.request(roots, requested)
    found = [sweep.marked(bits) for bits in flags]
    sweep.finish()
    return found


def slots_between(roots: Sequence[int], slots: Iterable[int]) -> np.ndarray:
    """Return the slots on a path from a root to some slots, with those that are reached."""
    (found,) = _marked(roots, slots, NEEDED | REACHED)
    return found


def marks_between(roots: Sequence[int], slots: Iterable[int]) -> tuple[set[int], set[int]]:
    """Return the records on a path from a root to some slots, with and without these slots."""
    needed, passing = _marked(roots, slots, NEEDED | REACHED, PASSES)
    return set(needed.tolist()), set(passing.tolist())


def completed_leaves(
    roots: Sequence[int], inputs: Sequence[Owner] | None
) -> dict[int, list[Owner]]:
    """Return which hooked leaves are complete before which record is swept.

    A leaf is complete once the oldest record that reads it has been swept: before the next older
    record that the pass sweeps, or at the end of the pass.

    Parameters
    ----------
    roots
        Slots where the pass starts.
    inputs
        Owners of the requested inputs; None for all leaves.

    Returns
    -------
    dict
        Owners of the leaves, in the order in which they were read, by the slot of the record (0 for
        the end).
    """
    hooked = {slot for slot in list(LEAF_NOTES) if _has_hooks(slot)}
    if hooked and inputs is not None:
        hooked &= {own[OWN_SLOT] for own in inputs}
    if not hooked:
        return {}
    passing, swept = _marked(roots, hooked, PASSES, REACHED)
    if inputs is not None:
        (swept,) = _marked(roots, [own[OWN_SLOT] for own in inputs], NEEDED | REACHED)
    found: dict[int, list[Owner]] = {}
    for reader in _readers(passing, np.array(sorted(hooked), np.int64)):
        complete = []
        for own in inputs_of(reader):
            if own is not None and own[OWN_SLOT] in hooked:
                hooked.remove(own[OWN_SLOT])
                complete.append(own)
        if complete:
            at = int(np.searchsorted(swept, reader[OWN_SLOT]))
            found[int(swept[at - 1]) if at else 0] = complete
        if not hooked:
            break
    return found


def _has_hooks(slot: int) -> bool:
    known = LEAF_NOTES.get(slot)  # the garbage collector may remove it meanwhile
    notes = None if known is None else known()
    return notes is not None and bool(
        notes.hooks or notes.prehooks or notes.accumulated or notes.posthooks
    )


def _readers(slots: np.ndarray, leaves: np.ndarray) -> Iterator[Owner]:
    """Yield the owners of records that may read one of some leaves, oldest first."""
    slots = slots[slots < LEAF_CLOCK]
    for number in np.unique(slots >> SEGMENT_BITS).tolist():
        rows = TAPE.segments[number].rows()[
            slots[slots >> SEGMENT_BITS == number] & (SEGMENT_ROWS - 1)
        ]
        several = rows["flags"] & NARY != 0
        reading = several | np.isin(rows["x"], leaves) | np.isin(rows["y"], leaves)
        for address in rows["owner"][reading].tolist():
            yield owner_at(address)
