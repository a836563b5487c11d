"""Owners: the lists behind the records of the tape.

A record consists of integers. Tensors hold its owner, a list that keeps alive everything the record
needs: ``[holder, slot, aval, inputs' owners..., saved values...]``. `holder` is the segment of the
record or, for the few records that have them, its `Notes`, which hold the segment.

The owner of a record with Python rules ends with a frame (`Frame`), which runs them.
"""

from __future__ import annotations

import weakref
from _ctypes import PyObj_FromPtr
from collections.abc import Callable
from typing import Any

from tapegrad.tape.codes import OPS
from tapegrad.tape.deferred_release import keep
from tapegrad.tape.layout import (
    FREED,
    LEAF_CLOCK,
    NARY,
    NUMBERS,
    OP_VALUES,
    OWN_HOLDER,
    OWN_INPUTS,
    OWN_SLOT,
    PYTHON,
    SAVES,
    SEGMENT_BITS,
)
from tapegrad.tape.tape import TAPE, Segment

Owner = list[Any]
Hook = Callable[..., Any]

owner_at: Callable[[int], Owner] = PyObj_FromPtr  # the live list at the address in a record


class _Released:
    """Placeholder in an owner for a released saved value."""

    def __repr__(self) -> str:
        return "<released>"


RELEASED = _Released()


class Notes:
    """Hooks and metadata of a record; few records have them."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.hooks: dict[int, Hook] = {}  # of the output; may replace its gradient
        self.retains: weakref.ref[Any] | None = None  # the tensor that retains its gradient
        self.prehooks: dict[int, Hook] = {}  # of the node, run before ...
        self.posthooks: dict[int, Hook] = {}  # ... and after its vjp
        self.accumulated: dict[int, Hook] = {}  # of a leaf, run after accumulation
        self.metadata: dict[Any, Any] = {}
        self.outputs: dict[int, Notes] = {}  # notes of its outputs, if it has several


# notes of leaves by slot, where a pass finds the leaves with hooks
LEAF_NOTES: dict[int, weakref.ref[Notes]] = {}


class Frame:
    """The Python part of a record whose rules the compiled sweep cannot run."""

    __slots__ = ()
    direct = False  # may run right after the next newer record, without hooks or checks

    def contributions(self, sweep: Any, owner: Owner, g: Any) -> list[tuple[Owner, Any]]:
        """Return owner and cotangent of every wanted input, inside a compiled sweep.

        The cotangent `g` is an array, or None if a Function above left it undefined.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Drop the saved values."""


def segment_of(owner: Owner) -> Segment:
    """Return the segment that holds a record's row."""
    holder = owner[OWN_HOLDER]
    return holder.segment if type(holder) is Notes else holder


def notes_of(owner: Owner) -> Notes | None:
    """Return a record's notes or None."""
    holder = owner[OWN_HOLDER]
    return holder if type(holder) is Notes else None


def ensure_notes(owner: Owner, stop: bool = False) -> Notes:
    """Return a record's notes, created if needed; with `stop`, the sweep stops at the record."""
    holder = owner[OWN_HOLDER]
    if type(holder) is not Notes:
        holder = owner[OWN_HOLDER] = Notes(holder)
        _note_leaf(owner, holder)
    if stop:
        holder.segment.set_flags(owner[OWN_SLOT], PYTHON)
    return holder


def _note_leaf(owner: Owner, notes: Notes) -> None:
    slot = owner[OWN_SLOT]
    if slot >= LEAF_CLOCK:
        LEAF_NOTES[slot] = weakref.ref(notes, lambda _: LEAF_NOTES.pop(slot, None))


def take_notes(owner: Owner, notes: Notes) -> None:
    """Move the notes of an old record to a new one."""
    notes.segment = owner[OWN_HOLDER]
    owner[OWN_HOLDER] = notes
    _note_leaf(owner, notes)
    notes.segment.set_flags(owner[OWN_SLOT], PYTHON)


def record_owner(slot: int) -> Owner | None:
    """Return the owner of a live record, None if its segment was freed."""
    segment = TAPE.segments.get(slot >> SEGMENT_BITS)
    if segment is None:
        return None
    return owner_at(int(segment.rows()["owner"][slot - segment.base]))


def op_and_flags(owner: Owner) -> tuple[int, int]:
    """Return the code of a record's op and the record's flags."""
    words = segment_of(owner).cell(owner[OWN_SLOT], 1)
    return words & 0xFFFFFFFF, words >> 32


def inputs_of(owner: Owner) -> list[Owner | None]:
    """Return the owners of a record's inputs, None for passive ones."""
    op, flags = op_and_flags(owner)
    if flags & NARY:
        return list(owner[OWN_INPUTS + 1]) if len(owner) > OWN_INPUTS else []
    return owner[OWN_INPUTS : OWN_INPUTS + OPS.inputs[op]]


def free(owner: Owner) -> None:
    """Free the saved values of a record, if any."""
    op, flags = op_and_flags(owner)
    if isinstance(owner[-1], Frame) and not flags & SAVES:
        release(owner, op)  # a Function tracks it itself
    elif flags & SAVES or (OPS.saves[op] and not flags & NUMBERS):
        segment_of(owner).set_flags(owner[OWN_SLOT], FREED)
        release(owner, op)


def release(owner: Owner, op: int) -> None:
    """Drop the saved values of a record."""
    if isinstance(owner[-1], Frame):
        owner[-1].release()
        return
    for index in OPS.meta[op, OP_VALUES : OP_VALUES + 4].tolist():
        if index >= 0 and owner[index] is not None:
            keep(owner[index])
            owner[index] = RELEASED
