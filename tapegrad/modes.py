"""Per-thread switches that change what an op does, arranged so that nobody pays for unused ones.

The fast path of every op reads one attribute, ``MODE.special``: the number of threads that have
changed anything. Only where it is not 0 does an op look at its own thread's switches.
"""

from __future__ import annotations

import threading


class Switches(threading.local):
    """The switches of one thread."""

    recording = True


class Mode:
    """The switches of the current thread, and how many threads deviate from the defaults."""

    __slots__ = ("_lock", "special", "thread")

    def __init__(self) -> None:
        self.special = 0
        self.thread = Switches()
        self._lock = threading.Lock()

    @property
    def recording(self) -> bool:
        """Whether ops of this thread are recorded."""
        return self.thread.recording if self.special else True

    def set_recording(self, on: bool) -> bool:
        """Switch recording in this thread; return what it was."""
        before = self.thread.recording
        if on is not before:
            with self._lock:
                self.special += -1 if on else 1
            self.thread.recording = on
        return before


MODE = Mode()
