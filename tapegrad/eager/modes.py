"""Switches that change what an op does, arranged so that nobody pays for unused ones.

The fast path of every op looks at ``MODE.special``, which is empty while no thread has changed
anything. Only where it is not does an op ask for the *action* of its own thread.

An interrupt (Ctrl-C) comes where a function is called, and before a loop turns; never between the
stores of one block. So a thread is listed in ``special`` before it deviates, which alone costs time
only, its switches are set by stores without calls between them, and they are set back by what is
no Python function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# what an op does: record; compute only; record, after a look at every switch
RECORD_OP, COMPUTE_ONLY, CHECK_SWITCHES = range(3)


class Switches(threading.local):
    """The switches of one thread."""

    def __init__(self) -> None:
        self.action = RECORD_OP
        self.recording = True
        self.inference = False
        self.saved_hooks: tuple[Any, ...] = ()  # pairs of pack and unpack, innermost last
        self.hooks_forbidden: str | None = None  # why saved-tensor hooks must not be used
        self.node: Any = None  # whose rule runs, while anomalies are looked for
        self.depth = 0  # contexts that are open
        self.transform: Any = None  # what differentiates the function that runs


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
        self.special: dict[Any, None] = {}  # threads, by their switches, and what holds for all
        self.thread = Switches()
        self.inference_used: list[None] = []  # not empty once there are tensors of inference mode
        self.complex_used = False
        self.anomaly = False
        self.check_nan = True
        self.mutation_guard: Any = None  # looks after saved values before memory is written

    def action(self) -> int:
        """Return what an op of this thread has to do."""
        action = self.thread.action
        return CHECK_SWITCHES if action == RECORD_OP and self.anomaly else action

    @property
    def recording(self) -> bool:
        """Whether ops of this thread are recorded."""
        if not self.special:
            return True
        thread = self.thread
        return thread.recording and not thread.inference

    def set_recording(self, on: bool) -> bool:
        """Switch recording in this thread; return what it was."""
        before: bool = self._switch("recording", on)
        return before

    def set_inference(self, on: bool) -> bool:
        """Switch inference mode in this thread; return what it was."""
        if on and not self.inference_used:
            self.inference_used.append(None)
        before: bool = self._switch("inference", on)
        return before

    def set_saved_hooks(self, pairs: tuple[Any, ...]) -> None:
        """Choose the hooks that values saved in this thread go through."""
        self._switch("saved_hooks", pairs)

    def _switch(self, name: str, value: Any) -> Any:
        """Set a switch of this thread, and what follows from all of them; return what it was."""
        switches = self.thread.__dict__
        before = switches[name]
        if value is not before:
            key = id(switches)
            self.special[key] = None
            switches[name] = value
            recording = switches["recording"]
            if switches["inference"] or (recording and switches["saved_hooks"]):
                switches["action"] = CHECK_SWITCHES
            else:
                switches["action"] = RECORD_OP if recording else COMPUTE_ONLY
            if switches["action"] == RECORD_OP:
                self.special.pop(key, None)
        return before

    def with_recording(self, on: bool, function: Callable[..., T], *args: Any) -> T:
        """Call a function with recording on or off; all switches are then what they were."""
        switches = self.thread.__dict__
        key, before = id(switches), switches.copy()
        try:
            self.set_recording(on)
            return function(*args)
        finally:  # what `restore` does, which could be interrupted before it has begun
            self.special[key] = None
            switches.update(before)
            if switches["action"] == RECORD_OP:
                self.special.pop(key, None)

    def restore(self, switches: dict[str, Any], before: dict[str, Any]) -> None:
        """Set all switches of a thread to what they were."""
        key = id(switches)
        self.special[key] = None
        switches.update(before)
        if switches["action"] == RECORD_OP:
            self.special.pop(key, None)

    def note_complex(self) -> None:
        """From now on ops have to look whether what they record is complex."""
        self.complex_used = True
        self.special["complex"] = None

    def set_anomaly(self, on: bool, check_nan: bool = True) -> tuple[bool, bool]:
        """Switch anomaly mode, for all threads; return what it was."""
        before = self.anomaly, self.check_nan
        if on:
            self.special["anomaly"] = None
        self.anomaly, self.check_nan = on, check_nan
        if not on:
            self.special.pop("anomaly", None)
        return before


class ModeContext:
    """A context of a thread, whose end is made up for where an interrupt prevented it.

    The interrupt may come when `__exit__` is called, before it has done anything. Then the context
    around this one is left by an exception, and sets back all switches. Where there is none, this
    context does so when it is dropped.
    """

    # for each time that it is open: the switches of the thread, what was before of its own, and all
    _open: tuple[tuple[dict[str, Any], Any, dict[str, Any]], ...] = ()

    def __enter__(self) -> Any:
        switches = MODE.thread.__dict__
        self._open = (*self._open, (switches, self.now(), switches.copy()))
        switches["depth"] += 1
        return self.enter()

    def __exit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
        if not self._open:
            self.leave(self.not_entered())
            return
        switches, own, everything = self._open[-1]
        if kind is not None:
            MODE.restore(switches, everything)
        self.leave(own)
        switches["depth"] = min(switches["depth"], everything["depth"])
        self._open = self._open[:-1]

    def __del__(self) -> None:
        for switches, own, everything in reversed(self._open):
            here = switches is MODE.thread.__dict__
            if here and switches["depth"] > everything["depth"]:  # none around it has ended since
                MODE.restore(switches, everything)
                self.leave(own)

    def now(self) -> Any:
        """Return what `leave` has to know of what was before."""

    def enter(self) -> Any:
        """Switch; return what the context is called."""

    def leave(self, before: Any) -> None:
        """Switch back, also where an interrupt left something as it was."""

    def not_entered(self) -> Any:
        """Return what was before, of a context that is left without being entered."""
        raise RuntimeError(f"{type(self).__name__} is left without being entered")


MODE = Mode()
