"""The tape: a clock and the records at its ticks.

Every recorded op takes the next *slot* of the clock and appends one record. Records live in
segments of SEGMENT_ROWS rows. A segment is held only by the owners of its records (the tape itself
holds only the one being filled), so it is freed with the last of them. Slots are never reused: the
position on the clock orders the records of all threads, and tells whether a buffer was mutated
before or after a record saved it.

Appending is a list extension: six integers per record are kept in `Segment.pending` until they are
read, and are then converted to rows all at once.
"""

from __future__ import annotations

import struct
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from tapegrad.cuda.array import Array, is_array
from tapegrad.forks import in_forked_process, process_lock
from tapegrad.kernels.structs import address_of
from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.dump import dump
from tapegrad.tape.layout import (
    FREED,
    LEAF_CLOCK,
    NARY,
    OP_INPUTS,
    OWN_SLOT,
    RECORD,
    RECORD_WORDS,
    SEGMENT_BITS,
    SEGMENT_ROWS,
)

LEAF_OP = 0  # the op code of a leaf: row 0 of the op table


_NARY = NARY << 32
_NO_LEAF = (1 << 31) - 1


def reach_of(slot: int, inputs: list[int]) -> int:
    """Return, as one integer, how far back the inputs of an n-ary record reach.

    The high half is the distance to the oldest op, the low half the number of the oldest leaf.
    """
    distance, leaf = 0, _NO_LEAF
    for s in inputs:
        if s >= LEAF_CLOCK:
            if s - LEAF_CLOCK < leaf:
                leaf = s - LEAF_CLOCK
        elif s and slot - s > distance:
            distance = slot - s
    return min(distance, _NO_LEAF) << 32 | leaf


class Segment:
    """SEGMENT_ROWS consecutive rows of the tape.

    Attributes
    ----------
    number
        Position of the segment: its first slot is ``number << SEGMENT_BITS``.
    pop
        Take the next free slot; IndexError when the segment is full.
    extend
        Append the integers of a record to `pending`.
    """

    __slots__ = (
        "__weakref__", "_cells", "_rows", "address", "base", "extend", "number", "pending", "pop",
        "words",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.base = number << SEGMENT_BITS
        free = list(range(self.base + SEGMENT_ROWS - 1, self.base - 1, -1))
        if number == 0:
            free.pop()  # slot 0 means "passive"
        self.pop = free.pop
        self.pending: list[int] = []
        self.extend = self.pending.extend
        self._rows = np.zeros(SEGMENT_ROWS, RECORD)
        self.address = address_of(self._rows)
        self.words = self._rows.view(np.int64).reshape(SEGMENT_ROWS, RECORD_WORDS)
        self._cells = memoryview(self.words.reshape(-1))  # type: ignore[arg-type]

    def cell(self, slot: int, word: int) -> int:
        """Return one word of the record at a slot."""
        cells, at = self._cells, (slot - self.base) * RECORD_WORDS
        if cells[at] != slot:
            self._flush()
        return cells[at + word]

    def rows(self) -> np.ndarray:
        """Return all rows as a structured array; unwritten rows are zero."""
        if self.pending:
            self._flush()
        return self._rows

    def _flush(self) -> None:
        with _lock:
            taken = self.pending[:]
            if not taken:
                return
            packed = struct.pack(f"{len(taken)}q", *taken)
            new = np.frombuffer(packed, np.int64).reshape(-1, RECORD_WORDS)
            # indexed by slot: threads may append out of order
            self.words[new[:, 0] - self.base] = new
            # last, since a reader that finds nothing pending reads the rows without the lock
            del self.pending[: len(taken)]

    def set_flags(self, slot: int, flags: int) -> None:
        """Add flags to the record at a slot."""
        self.rows()["flags"][slot - self.base] |= flags

    def flags(self, slot: int) -> int:
        """Return the flags of the record at a slot."""
        return int(self.rows()["flags"][slot - self.base])


_lock = process_lock()


class Mutations:
    """Mutations of a buffer: the last positions on the clock, and the total number."""

    def __init__(self, buffer: weakref.ref[np.ndarray]) -> None:
        self._buffer = buffer  # its callback removes this when the buffer is freed
        self.slots: deque[int] = deque(maxlen=1024)
        self.count = 0
        self.op = ""  # of the last mutation

    def version_before(self, slot: int) -> int:
        """Return the number of mutations up to a position."""
        return self.count - sum(later > slot for later in self.slots)


class Tape:
    """The record of all computations.

    There is one tape per process, to which all threads append. `tapegrad.current_tape` returns it.
    """

    def __init__(self) -> None:
        self.segments: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
        self.seg = self._new_segment(0)
        self.leaf_seg = self._new_segment(LEAF_CLOCK >> SEGMENT_BITS)
        self.mutations: dict[int, Mutations] = {}
        self.mutation_count = 0
        self.sweeping: dict[int, int] = {}  # running sweeps, each with its thread

    def _new_segment(self, number: int) -> Segment:
        segment = Segment(number)
        self.segments[number] = segment
        return segment

    # -- appending ------------------------------------------------------------------------------

    def advance(self, full: Segment) -> Segment:
        """Return the segment after a full one; another thread may have created it."""
        with _lock:
            if self.seg is full:
                self.seg = self._new_segment(full.number + 1)
                if sys.getrefcount(full) > 4:  # else it has no live records and is freed
                    full.rows()
            return self.seg

    def next_slot(self) -> tuple[Segment, int]:
        """Take a slot of the clock."""
        while True:
            segment = self.seg
            try:
                return segment, segment.pop()
            except IndexError:
                self.advance(segment)

    def append(self, head: int, aval: int, x: int, y: int, tail: Sequence[Any]) -> list[Any]:
        """Append a record and return its owner, which holds `tail` after the aval.

        The fast path of ops inlines this method.
        """
        segment = self.seg
        try:
            slot = segment.pop()
        except IndexError:
            segment, slot = self.next_slot()
        owner = [segment, slot, aval, *tail]
        segment.extend((slot, head, aval, x, y, id(owner)))
        return owner

    def append_wide(
        self, head: int, aval: int, parents: Sequence[list[Any] | None], tail: Sequence[Any]
    ) -> list[Any]:
        """Append a record with any number of inputs; its owner holds these, followed by `tail`."""
        segment = self.seg
        try:
            slot = segment.pop()
        except IndexError:
            segment, slot = self.next_slot()
        inputs = [0 if parent is None else parent[OWN_SLOT] for parent in parents]
        owner = [segment, slot, aval, np.array(inputs, np.int64), list(parents), *tail]
        reach = reach_of(slot, inputs)
        segment.extend((slot, head | _NARY, aval, len(inputs), reach, id(owner)))
        return owner

    def new_leaf(self, aval: int, content: object) -> list[Any]:
        """Append the record of a leaf; return its owner, which holds `content`."""
        with _lock:
            try:
                slot = self.leaf_seg.pop()
            except IndexError:
                self.leaf_seg.rows()
                self.leaf_seg = self._new_segment(self.leaf_seg.number + 1)
                slot = self.leaf_seg.pop()
            segment = self.leaf_seg
        owner = [segment, slot, aval, content]
        segment.extend((slot, LEAF_OP, aval, 0, 0, id(owner)))
        return owner

    def leaf_position(self) -> int:
        """Return a new position on the clock of leaves."""
        return self.new_leaf(0, None)[1]

    def reaches_before(self, position: int, leaf_position: int) -> bool:
        """Whether a record since `position` has an older op or leaf as input."""
        for number in range(position >> SEGMENT_BITS, self.seg.number + 1):
            segment = self.segments.get(number)
            if segment is None:
                continue
            rows = segment.rows()
            rows = rows[rows["slot"] > position]
            nary = (rows["flags"] & NARY) != 0
            reach = rows["y"][nary]
            oldest = rows["slot"][nary] - (reach >> 32)
            if (oldest < position).any() or ((reach & _NO_LEAF) + LEAF_CLOCK < leaf_position).any():
                return True
            rows = rows[~nary]
            inputs = np.concatenate(
                [rows["x"], np.where(OPS.meta[rows["op"], OP_INPUTS] > 1, rows["y"], 0)]
            )
            inputs = inputs[inputs != 0]
            limit = np.where(inputs < LEAF_CLOCK, position, leaf_position)
            if (inputs < limit).any():
                return True
        return False

    # -- mutation --------------------------------------------------------------------------------

    def note_mutation(self, array: np.ndarray, op: str = "") -> int:
        """Note that an op is about to change the memory of an array; return the position.

        An interrupt may arrive anywhere in here, so that an entry has a position from the start.
        """
        buffer = buffer_of(array)
        key = id(buffer)
        _, slot = self.next_slot()
        known = self.mutations.get(key)
        if known is None:
            mutations = self.mutations
            reference = weakref.ref(buffer, lambda _: mutations.pop(key, None))
            known = Mutations(reference)
            known.slots.append(slot)
            mutations[key] = known
        else:
            known.slots.append(slot)
        known.count += 1
        known.op = op
        self.mutation_count += 1
        return slot

    def forget_mutation(self, array: np.ndarray, slot: int) -> None:
        """Forget a mutation that was noted at a position, but did not take place."""
        key = id(buffer_of(array))
        known = self.mutations.get(key)
        if known is not None and slot in known.slots:
            known.count -= 1
            if len(known.slots) > 1:
                known.slots.remove(slot)
            else:
                self.mutations.pop(key, None)

    def position(self) -> int:
        """Return the last position of the clock that was taken."""
        segment = self.seg
        free = segment.pop.__self__  # type: ignore[attr-defined]
        return (free[-1] if free else segment.base + SEGMENT_ROWS) - 1

    def is_written(self, array: np.ndarray, slot: int) -> bool:
        """Whether the memory of an array was written to after a position on the clock."""
        if not self.mutations:
            return False
        known = self.mutations.get(id(buffer_of(array)))
        return known is not None and known.slots[-1] > slot

    def last_mutations(self) -> list[tuple[int, int]]:
        """Return the ids of mutated buffers, each with the slot of its last mutation."""
        while True:
            try:
                return [(key, known.slots[-1]) for key, known in self.mutations.items()]
            except RuntimeError:
                # The garbage collector freed a buffer, or another thread added one. Iterating over
                # a copy does not help: the collector may run inside `copy` and corrupt it.
                continue

    def version(self, array: np.ndarray) -> int:
        """Return how often ops mutated the memory of an array."""
        known = self.mutations.get(id(buffer_of(array)))
        return 0 if known is None else known.count

    # -- sweeps -----------------------------------------------------------------------------------

    def begin_sweep(self, key: int) -> None:
        """Note that a sweep reads the tape until its key is removed from `sweeping`."""
        with _lock:
            self.sweeping[key] = get_ident()

    # -- mark and rewind --------------------------------------------------------------------------

    def mark(self) -> int:
        """Return the present position of the clock, for `rewind`.

        Returns
        -------
        int
            A slot that precedes all later records.
        """
        return self.next_slot()[1]

    def rewind(self, mark: int) -> None:
        """Forget all records since a mark.

        The clock does not go back. Tensors recorded since the mark keep their values but lose their
        history, and a backward pass that reaches one raises RuntimeError. Their saved values are
        freed at once, their rows with their segment. This includes records of other threads.

        Parameters
        ----------
        mark
            A result of `mark`.

        Raises
        ------
        ValueError
            If `mark` is not a past position of this tape.
        RuntimeError
            If a backward pass is running, since it reads these records.
        """
        with _lock:
            if self.sweeping:
                raise RuntimeError("rewind: a backward pass is running; rewind when it has ended")
            end = self.next_slot()[1]
            if not 0 < mark <= end:
                raise ValueError(f"rewind: mark {mark} is not a position on this tape (0..{end})")
            for number, segment in self.segments.copy().items():
                if number >= LEAF_CLOCK >> SEGMENT_BITS or segment.base + SEGMENT_ROWS <= mark:
                    continue
                rows = segment.rows()
                lost = (rows["slot"] >= mark) & ((rows["flags"] & FREED) == 0)
                for owner in _owners_in(segment):
                    if owner[1] >= mark:
                        del owner[3:]
                rows["flags"][lost] |= FREED
                rows["x"][lost] = 0
                rows["y"][lost] = 0

    # -- inspection -------------------------------------------------------------------------------

    def _live(self) -> Iterator[Segment]:
        for number in sorted(self.segments.keys()):
            segment = self.segments.get(number)
            if segment is not None and number < LEAF_CLOCK >> SEGMENT_BITS:
                yield segment

    @property
    def records(self) -> np.ndarray:
        """All records of live segments, oldest first, as a structured array (a copy).

        The fields are those of `tapegrad.tape.layout.RECORD`. Records whose values were freed
        remain until their whole segment is freed.
        """
        rows = [segment.rows() for segment in self._live()]
        found = np.concatenate(rows) if rows else np.zeros(0, RECORD)
        return found[found["slot"] != 0]

    def dump(self, last: int = 50) -> str:
        """Return the last records as text, one line each.

        Parameters
        ----------
        last
            Number of records.
        """
        return dump(self.records[-last:])

    @property
    def nbytes(self) -> int:
        """Size in bytes of the rows of live segments, including leaves."""
        return len(self.segments) * SEGMENT_ROWS * RECORD.itemsize

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"<Tape: {len(self)} records in {len(list(self._live()))} segments>"


def _owners_in(segment: Segment) -> list[list[Any]]:
    """Return the live owners of a segment's records, which are its referrers.

    They refer to it directly or through their notes.
    """
    import gc

    holders = [segment, *(x for x in gc.get_referrers(segment) if hasattr(x, "metadata"))]
    return [
        found
        for found in gc.get_referrers(*holders)
        if type(found) is list
        and found is not holders
        and len(found) > 2
        and any(found[0] is holder for holder in holders)
    ]


def buffer_of(array: Array) -> Array:
    """Return the array that owns the memory of an array (itself, if it is not a view)."""
    # NumPy collapses chains of bases, but not across subclasses such as np.memmap
    while is_array(array.base):
        array = array.base
    return array


TAPE = Tape()
AVALS.are_read = lambda: bool(TAPE.sweeping)


@in_forked_process
def _forget_sweeps() -> None:
    """Forget the sweeps of threads that a forked process does not have."""
    for key, thread in [*TAPE.sweeping.items()]:
        if thread != get_ident():
            del TAPE.sweeping[key]


def current_tape() -> Tape:
    """Return the tape that ops record on.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * x + x
    >>> tape = tg.current_tape()
    >>> tape.records["slot"][-1] > tape.records["slot"][-2]
    np.True_
    """
    return TAPE
