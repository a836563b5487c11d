"""Walking over records in forward mode, oldest first.

Compiled code computes the tangents of elementwise records, reductions and views
(`tapegrad.tape.compiled.tangents`), and Python those of all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from tapegrad.kernels.structs import address_of
from tapegrad.tape import codes
from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import (
    AVAL_ITEM,
    AVAL_SIZE,
    EVENT_ARRAY,
    EVENT_DONE,
    EVENT_HANDLER,
    EVENT_KERNEL,
    FREED,
    KIND_FLAT,
    KIND_MAP,
    KIND_PRODUCTS,
    KIND_REDUCE,
    KIND_VIEW,
    LEAF_CLOCK,
    NARY,
    OP_INPUTS,
    OP_KIND,
    PYTHON,
    S_ARG0,
    S_ARG1,
    S_ARG2,
    S_AVALS,
    S_END_TANGENTS,
    S_EVENT,
    S_HANDLERS,
    S_KERNELS,
    S_NEXT_TANGENT,
    S_OPS,
    S_TANGENTS,
    SEGMENT_BITS,
    SEGMENT_ROWS,
    TANGENT_AVAL,
    TANGENT_COMPILED,
    TANGENT_DATA,
    TANGENT_MASK,
    TANGENT_OP,
    TANGENT_OWNER,
    TANGENT_WORDS,
    TANGENT_X,
    TANGENT_Y,
)
from tapegrad.tape.tape import TAPE
from tapegrad.tape.workspace import give_workspace_back, take_workspace

LARGE = 1 << 12  # elements from which a tangent has memory of its own, which is freed early
_MOST = 1 << 28  # bytes of all smaller ones
_KINDS = np.arange(KIND_PRODUCTS + 1)
_SHARED = np.isin(_KINDS, [KIND_FLAT, KIND_VIEW])  # may be part of the tangent of the input
_COMPILED = _SHARED | np.isin(_KINDS, [KIND_MAP, KIND_REDUCE])


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
    ends
        Slots of the outputs, whose tangents are kept.
    """

    def __init__(
        self,
        slots: np.ndarray,
        known: dict[int, np.ndarray],
        avals: dict[int, int],
        ends: Collection[int],
    ) -> None:
        self.slots = slots
        self.known: dict[int, Any] = {}
        self.table = _table(slots)
        for slot, aval in avals.items():
            row = self.table[np.searchsorted(slots, slot)]
            row[TANGENT_AVAL], row[TANGENT_COMPILED] = aval, 0
        self._arena = _place(self.table)
        self._waiting: list[tuple[int, int]] = []  # a heap: last readers of tangents, and slots
        # the row of the last reader of each tangent; that of the last element stands for none
        self._last = np.zeros(len(slots) + 1, np.int64)
        for word in (TANGENT_X, TANGENT_Y):
            np.maximum.at(self._last, self.table[:, word], np.arange(len(slots)))
        self._last[np.searchsorted(slots, [*ends])] = len(slots)  # read after all others
        self._given = known

    def __getitem__(self, slot: int) -> Any:
        """Return the tangent of a record, None if it has none."""
        found = self.known.get(slot)
        if found is not None:
            return found
        at = int(np.searchsorted(self.slots, slot))
        if at == len(self.slots) or self.slots[at] != slot:
            return None
        row = self.table[at]
        if not row[TANGENT_COMPILED] or not row[TANGENT_DATA]:
            return None
        aval = int(row[TANGENT_AVAL])
        memory, start = self._arena, int(row[TANGENT_DATA]) - address_of(self._arena)
        if not 0 <= start < len(memory):  # part of the tangent of its input
            memory = np.asarray(self[int(self.slots[row[TANGENT_X]])])
            start = int(row[TANGENT_DATA]) - address_of(memory)
            memory = memory.reshape(-1).view(np.uint8)
        nbytes = int(AVALS.words[aval, AVAL_SIZE] * AVALS.words[aval, AVAL_ITEM])
        part = memory[start : start + nbytes]
        return part.view(AVALS.dtypes[aval]).reshape(AVALS.shapes[aval])

    def __setitem__(self, slot: int, tangent: Any) -> None:
        """Set the tangent of a record that Python computed."""
        at = int(np.searchsorted(self.slots, slot))
        if tangent is not None and type(tangent) is not tuple:
            row = self.table[at]
            aval = int(row[TANGENT_AVAL])
            tangent = np.asarray(tangent)
            if AVALS.known(tangent) != aval:
                tangent = np.broadcast_to(tangent, AVALS.shapes[aval])
                tangent = tangent.astype(AVALS.dtypes[aval])
            tangent = np.ascontiguousarray(tangent).reshape(tangent.shape)
            row[TANGENT_DATA], row[TANGENT_COMPILED] = address_of(tangent), 0
        self._keep(at, slot, tangent)

    def _keep(self, at: int, slot: int, tangent: Any) -> None:
        """Keep a tangent until its last reader has read it."""
        self.known[slot] = tangent
        heapq.heappush(self._waiting, (int(self._last[at]), slot))

    def note_reader(self, slot: int, reader: int) -> None:
        """Note that the record `reader`, whose tangent Python computes, reads that of a slot."""
        at, place = np.searchsorted(self.slots, (slot, reader)).tolist()
        if at < len(self.slots) and self.slots[at] == slot:
            self._last[at] = max(self._last[at], place)

    def in_python(self) -> list[int]:
        """Return the slots of records whose tangents only Python computes."""
        chosen = (self.table[:, TANGENT_COMPILED] == 0) & (self.slots < LEAF_CLOCK)
        return self.slots[chosen].tolist()

    def compute(self, step: Callable[[int], None]) -> None:
        """Compute all tangents; `step` is called with the slot of a record that needs Python."""
        kinds = OPS.meta[self.table[:, TANGENT_OP], OP_KIND]
        shared = _SHARED[kinds] & (self.table[:, TANGENT_COMPILED] != 0)
        for at in np.flatnonzero(shared).tolist()[::-1]:  # the memory has the readers of both
            base = self.table[at, TANGENT_X]
            self._last[base] = max(self._last[base], self._last[at])
        for slot, array in self._given.items():
            self[slot] = array
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
            if event == EVENT_HANDLER:
                state[S_HANDLERS + state[S_ARG0]] = codes.handler(state[S_ARG0])
                continue
            at = state[S_NEXT_TANGENT]
            slot = int(self.slots[at])
            while self._waiting and self._waiting[0][0] < at:
                self.known.pop(heapq.heappop(self._waiting)[1])
            if event == EVENT_ARRAY:
                array = AVALS.empty(int(self.table[at, TANGENT_AVAL]))
                self.table[at, TANGENT_DATA] = address_of(array)
                self._keep(at, slot, array)
                continue
            self.table[at, TANGENT_COMPILED] = 0
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
    meta = OPS.meta[table[:end, TANGENT_OP]]
    one_input = meta[:, OP_INPUTS] < 2
    table[:end, TANGENT_MASK] = np.where(one_input, inputs[:, 1], 0)  # of a reduction
    inputs[one_input, 1] = 0
    places = np.searchsorted(slots, inputs)
    places[places == len(slots)] = 0
    found = (slots[places] == inputs) & (flags & NARY == 0)[:, None]
    table[:end, TANGENT_X : TANGENT_Y + 1] = np.where(found, places, -1)
    if not TAPE.mutations:
        ordinary = flags & (FREED | PYTHON | NARY) == 0
        table[:end, TANGENT_COMPILED] = _COMPILED[meta[:, OP_KIND]] & ordinary
    return table


def _place(table: np.ndarray) -> np.ndarray:
    """Give the small tangents that compiled code computes their memory, and return it."""
    avals = table[:, TANGENT_AVAL]
    sizes = AVALS.words[avals, AVAL_SIZE]
    is_real = avals & 1 == 0
    for word in (TANGENT_X, TANGENT_Y):
        places = table[:, word]
        is_real &= (places < 0) | (avals[places] & 1 == 0)
    table[~is_real, TANGENT_COMPILED] = 0
    small = (table[:, TANGENT_COMPILED] != 0) & (sizes < LARGE)
    nbytes = np.where(small, -(-sizes * AVALS.words[avals, AVAL_ITEM] // 64) * 64, 0)
    nbytes[small & (nbytes == 0)] = 64  # an address of its own, though empty
    ends = np.cumsum(nbytes)
    small &= ends <= _MOST
    total = int(ends[small][-1]) if small.any() else 0
    arena = np.empty(total + 64, np.uint8)
    start = address_of(arena)
    start += -start % 64
    table[:, TANGENT_DATA] = np.where(small, start + ends - nbytes, 0)
    return arena
