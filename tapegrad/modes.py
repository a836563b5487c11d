"""Switches that change what an op does, arranged so that nobody pays for unused ones.

The fast path of every op looks at one list, ``MODE.special``, which is empty while no thread has
changed anything. Only where it is not does an op ask which *way* its own thread has chosen.
"""

from __future__ import annotations

import threading
from typing import Any

PLAIN, QUIET, CAREFUL = range(3)  # record; compute only; record, and look at every switch


class Switches(threading.local):
    """The switches of one thread."""

    def __init__(self) -> None:
        self.way = PLAIN
        self.recording = True
        self.inference = False
        self.saved_hooks: tuple[Any, ...] = ()  # pairs of pack and unpack, innermost last
        self.hooks_forbidden: str | None = None  # why saved-tensor hooks must not be used
        self.node: Any = None  # whose rule runs, while anomalies are looked for


class Mode:
    """The switches of the current thread, and those that all threads share."""

    __slots__ = (
        "anomaly",
        "check_nan",
        "complex_used",
        "inference_used",
        "mutation_guard",
        "special",
        "thread",
    )

    def __init__(self) -> None:
        self.special: list[None] = []  # one item for every deviation: its length is an atomic count
        self.thread = Switches()
        self.inference_used: list[None] = []  # not empty once there are tensors of inference mode
        self.complex_used = False
        self.anomaly = False
        self.check_nan = True
        self.mutation_guard: Any = None  # looks after saved values before memory is written

    def way(self) -> int:
        """Return what an op of this thread has to do."""
        way = self.thread.way
        return CAREFUL if way == PLAIN and self.anomaly else way

    @property
    def recording(self) -> bool:
        """Whether ops of this thread are recorded."""
        if not self.special:
            return True
        thread = self.thread
        return thread.recording and not thread.inference

    def set_recording(self, on: bool) -> bool:
        """Switch recording in this thread; return what it was."""
        before = self.thread.recording
        if on is not before:
            self.thread.recording = on
            self._count(before, on)  # not to record is the deviation
        return before

    def set_inference(self, on: bool) -> bool:
        """Switch inference mode in this thread; return what it was."""
        before: bool = self.thread.inference
        self.thread.inference = on
        if on and not self.inference_used:
            self.inference_used.append(None)
        self._count(on, before)
        return before

    def note_complex(self) -> None:
        """From now on ops have to look whether what they record is complex."""
        if not self.complex_used:
            self.complex_used = True
            self.special.append(None)

    def set_saved_hooks(self, pairs: tuple[Any, ...]) -> None:
        """Choose the hooks that values saved in this thread go through."""
        before, self.thread.saved_hooks = self.thread.saved_hooks, pairs
        self._count(bool(pairs), bool(before))

    def set_anomaly(self, on: bool, check_nan: bool = True) -> tuple[bool, bool]:
        """Switch anomaly mode, for all threads; return what it was."""
        before = self.anomaly, self.check_nan
        self.anomaly, self.check_nan = on, check_nan
        self._count(on, before[0])
        return before

    def _count(self, on: bool, before: bool) -> None:
        """Count a deviation that begins or ends, and work out this thread's way."""
        if on and not before:
            self.special.append(None)
        elif before and not on:
            self.special.pop()
        switches = self.thread.__dict__  # one look-up of the thread instead of one for each switch
        recording = switches["recording"]
        if switches["inference"] or (recording and switches["saved_hooks"]):
            switches["way"] = CAREFUL
        else:
            switches["way"] = PLAIN if recording else QUIET


MODE = Mode()
