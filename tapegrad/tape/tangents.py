"""Walking over records in forward mode, oldest first.

Compiled code computes the tangents of elementwise records (`tapegrad.tape.compiled.tangents`), and
Python those of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.kernels.structs import address_of
from tapegrad.tape import codes
from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import (
    AVAL_ITEM,
    AVAL_SIZE,
    EVENT_DONE,
    EVENT_KERNEL,
    FREED,
    KIND_MAP,
    LEAF_CLOCK,
    NARY,
    OP_KIND,
    PYTHON,
    S_ARG0,
    S_ARG1,
    S_ARG2,
    S_AVALS,
    S_END_TANGENTS,
    S_EVENT,
    S_KERNELS,
    S_NEXT_TANGENT,
    S_OPS,
    S_TANGENTS,
    SEGMENT_BITS,
    SEGMENT_ROWS,
    TANGENT_AVAL,
    TANGENT_DATA,
    TANGENT_OP,
    TANGENT_OWNER,
    TANGENT_SIMPLE,
    TANGENT_WORDS,
    TANGENT_X,
    TANGENT_Y,
)
from tapegrad.tape.tape import TAPE
from tapegrad.tape.workspace import give_workspace_back, take_workspace

_LARGEST = 1 << 12  # elements of a tangent; larger ones are computed in Python, and freed early
_MOST = 1 << 28  # bytes of all tangents that compiled code computes


class Tangents:
    """Tangents of records by slot, while they are computed.

    Parameters
    ----------
    slots
        Slots of the records between inputs and outputs, in order, with the inputs.
    known
        Tangents of the inputs, by slot: contiguous arrays with the avals of the inputs.
    avals
        Avals of the inputs, by slot.
    """

    def __init__(
        self, slots: np.ndarray, known: dict[int, np.ndarray], avals: dict[int, int]
    ) -> None:
        self.slots = slots
        self.known: dict[int, Any] = {}
        self.table = _table(slots)
        for slot, aval in avals.items():
            row = self.table[np.searchsorted(slots, slot)]
            row[TANGENT_AVAL], row[TANGENT_SIMPLE] = aval, 0
        self._arena = _place(self.table)
        simple = self.table[self.table[:, TANGENT_SIMPLE] != 0]
        self._read = np.zeros(len(slots) + 1, bool)  # by compiled code; the last one stands for -1
        self._read[simple[:, TANGENT_X : TANGENT_Y + 1]] = True
        for slot, array in known.items():
            self[slot] = array

    def __getitem__(self, slot: int) -> Any:
        """Return the tangent of a record, None if it has none."""
        found = self.known.get(slot)
        if found is not None:
            return found
        at = int(np.searchsorted(self.slots, slot))
        if at == len(self.slots) or self.slots[at] != slot:
            return None
        row = self.table[at]
        if not row[TANGENT_SIMPLE] or not row[TANGENT_DATA]:
            return None
        aval = int(row[TANGENT_AVAL])
        start = int(row[TANGENT_DATA]) - address_of(self._arena)
        shape, dtype = AVALS.shapes[aval], AVALS.dtypes[aval]
        nbytes = int(AVALS.words[aval, AVAL_SIZE] * AVALS.words[aval, AVAL_ITEM])
        return self._arena[start : start + nbytes].view(dtype).reshape(shape)

    def __setitem__(self, slot: int, tangent: Any) -> None:
        """Set the tangent of a record that Python computed."""
        if tangent is not None and type(tangent) is not tuple:
            row = self.table[np.searchsorted(self.slots, slot)]
            aval = int(row[TANGENT_AVAL])
            tangent = np.asarray(tangent)
            if AVALS.known(tangent) != aval:
                tangent = np.broadcast_to(tangent, AVALS.shapes[aval])
                tangent = tangent.astype(AVALS.dtypes[aval])
            tangent = np.ascontiguousarray(tangent).reshape(tangent.shape)
            row[TANGENT_DATA], row[TANGENT_SIMPLE] = address_of(tangent), 0
        self.known[slot] = tangent

    def drop(self, slot: int) -> None:
        """Free the tangent of a record, unless compiled code reads it."""
        if not self._read[np.searchsorted(self.slots, slot)]:
            self.known.pop(slot, None)

    def in_python(self) -> list[int]:
        """Return the slots of records whose tangents only Python computes."""
        chosen = (self.table[:, TANGENT_SIMPLE] == 0) & (self.slots < LEAF_CLOCK)
        found: list[int] = self.slots[chosen].tolist()
        return found

    def compute(self, step: Callable[[int], None]) -> None:
        """Compute all tangents; `step` is called with the slot of a record that needs Python."""
        space = take_workspace()
        state = space.state
        state[S_AVALS], state[S_OPS] = AVALS.address, OPS.meta_address
        state[S_KERNELS] = OPS.kernels_address
        state[S_TANGENTS], state[S_NEXT_TANGENT] = address_of(self.table), 0
        state[S_END_TANGENTS] = int(np.searchsorted(self.slots, LEAF_CLOCK))
        push = codes.service("tangents", "push")
        while True:
            push(space.address)
            event = state[S_EVENT]
            if event == EVENT_DONE:
                break
            if event == EVENT_KERNEL:
                OPS.compile(state[S_ARG0], state[S_ARG1], state[S_ARG2])
                state[S_KERNELS] = OPS.kernels_address
                continue
            at = state[S_NEXT_TANGENT]
            self.table[at, TANGENT_SIMPLE] = 0
            slot = int(self.slots[at])
            if slot not in self.known:
                self.table[at, TANGENT_DATA] = 0
                step(slot)
            state[S_NEXT_TANGENT] = at + 1
        give_workspace_back(space)


def _table(slots: np.ndarray) -> np.ndarray:
    """Return the rows of a walk over some records."""
    table = np.zeros((len(slots), TANGENT_WORDS), np.int64)
    table[:, TANGENT_X : TANGENT_Y + 1] = -1
    end = int(np.searchsorted(slots, LEAF_CLOCK))
    numbers = slots[:end] >> SEGMENT_BITS
    if not end:
        return table
    flags, inputs = np.empty(end, np.int64), np.empty((end, 2), np.int64)
    for number in np.unique(numbers).tolist():
        start, stop = np.searchsorted(numbers, (number, number + 1)).tolist()
        rows = TAPE.segments[number].rows()[slots[start:stop] & (SEGMENT_ROWS - 1)]
        part = table[start:stop]
        part[:, TANGENT_OP], part[:, TANGENT_AVAL] = rows["op"], rows["aval"]
        part[:, TANGENT_OWNER] = rows["owner"].astype(np.int64)
        flags[start:stop] = rows["flags"]
        inputs[start:stop, 0], inputs[start:stop, 1] = rows["x"], rows["y"]
    simple = (OPS.meta[table[:end, TANGENT_OP], OP_KIND] == KIND_MAP) & (
        flags & (FREED | PYTHON | NARY) == 0
    )
    places = np.searchsorted(slots, inputs)
    places[places == len(slots)] = 0
    found = slots[places] == inputs
    table[:end, TANGENT_X : TANGENT_Y + 1] = np.where(found, places, -1)
    table[:end, TANGENT_SIMPLE] = simple & (not TAPE.mutations)
    return table


def _place(table: np.ndarray) -> np.ndarray:
    """Give the tangents that compiled code computes their memory, and return it."""
    avals = table[:, TANGENT_AVAL]
    sizes = AVALS.words[avals, AVAL_SIZE]
    alike = avals & 1 == 0  # real numbers
    for word in (TANGENT_X, TANGENT_Y):
        places = table[:, word]
        alike &= (places < 0) | (avals[places] == avals)
    simple = (table[:, TANGENT_SIMPLE] != 0) & alike & (sizes <= _LARGEST)
    nbytes = np.where(simple, -(-sizes * AVALS.words[avals, AVAL_ITEM] // 64) * 64, 0)
    ends = np.cumsum(nbytes)
    simple &= ends <= _MOST
    table[:, TANGENT_SIMPLE] = simple
    total = int(ends[simple][-1]) if simple.any() else 0
    arena = np.empty(total + 64, np.uint8)
    start = address_of(arena)
    start += -start % 64
    table[:, TANGENT_DATA] = np.where(simple, start + ends - nbytes, 0)
    return arena
