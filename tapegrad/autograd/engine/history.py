"""Walking over records: what a value depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from tapegrad.autograd.engine.context import FunctionCtx
from tapegrad.autograd.engine.marks import marks_between
from tapegrad.tape.avals import AVALS
from tapegrad.tape.layout import LEAF_CLOCK, OWN_AVAL, OWN_SLOT
from tapegrad.tape.owner import Owner, inputs_of, notes_of, record_owner


def history(owners: Iterable[Owner], goes_on: Callable[[Owner], bool]) -> Iterator[Owner]:
    """Yield records and all that they depend on.

    Parameters
    ----------
    owners
        The records to start from.
    goes_on
        Whether to go on to the inputs of a record.
    """
    waiting, seen = list(owners), set()
    while waiting:
        own = waiting.pop()
        slot = own[OWN_SLOT]
        if slot in seen:
            continue
        seen.add(slot)
        yield own
        if slot < LEAF_CLOCK and goes_on(own):
            waiting += [parent for parent in inputs_of(own) if parent is not None]


def calls_user_code(own: Owner) -> bool:
    """Whether the reverse pass of a record calls its hooks or rules of the user's."""
    notes = notes_of(own)
    if isinstance(own[-1], FunctionCtx):
        return True
    return notes is not None and bool(
        notes.hooks or notes.prehooks or notes.posthooks or notes.outputs or notes.retains
    )


def size_of(own: Owner) -> int:
    """Return the number of elements of a record's output."""
    return math.prod(AVALS.shapes[own[OWN_AVAL]])


# Costs in microseconds: a compiled sweep, each of its records, and a record of a pass on tensors.
_SWEEP, _SWEPT, _ON_TENSORS = 34.0, 0.06, 22.0
_BATCH_LIMIT = 1 << 20  # elements of one record, from which larger batches do not pay off


def size_of_batches(
    owners: list[Owner], inputs: list[Owner], count: int, create_graph: bool
) -> int:
    """Return for how many directions at once a pass should run.

    Parameters
    ----------
    owners
        The records that the passes start from.
    inputs
        The records where they end.
    count
        Number of directions (cotangents or tangents).
    create_graph
        Whether the passes are recorded.

    Returns
    -------
    int
        1 if passes one by one are faster, or call functions of the user, which are written for one
        direction.
    """
    largest = 1
    ends = {own[OWN_SLOT] for own in inputs}
    needed, _ = marks_between([own[OWN_SLOT] for own in owners], ends)
    for records, slot in enumerate(needed, 1):
        own = record_owner(slot)
        assert own is not None
        if calls_user_code(own):
            return 1
        largest = max(largest, size_of(own))
        one_by_one = count * (_SWEEP + _SWEPT * records)
        if not create_graph and records * _ON_TENSORS > one_by_one:
            return 1
    return max(min(count, _BATCH_LIMIT // max(largest, 1)), 1)
