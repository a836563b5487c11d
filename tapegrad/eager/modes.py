"""Switches that change what an op does, at no cost while they are unused.

The fast path of every op checks ``MODE.special``, which is empty while no switch of any thread is
changed. Only if it is not empty does an op look up the *action* of its own thread.

An interrupt (Ctrl-C) arrives at a function call or a loop iteration, never between the stores of
one block. A thread is therefore listed in ``special`` before its switches change (being listed only
costs time), the switches are set by consecutive stores, and they are restored by functions that are
not written in Python.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from tapegrad.forks import in_forked_process

T = TypeVar("T")

# actions of an op: record; compute only; check every switch, then record; make an inference tensor;
# compute tangents, and record
RECORD_OP, COMPUTE_ONLY, CHECK_SWITCHES, MAKE_INFERENCE, ADD_TANGENTS = range(5)


class Switches(threading.local):
    """The switches of one thread."""

    def __init__(self) -> None:
        self.action = RECORD_OP
        self.recording = True
        self.inference = False
        self.saved_hooks: tuple[Any, ...] = ()  # pairs of pack and unpack hooks, innermost last
        self.hooks_forbidden: str | None = None  # error message if saved-tensor hooks are forbidden
        self.node: Any = None  # node whose rule is running, in anomaly mode
        self.depth = 0  # number of open contexts
        self.transform: Any = None  # the innermost running transform
        self.levels: tuple[Any, ...] = ()  # of running calls over batches, innermost last
        self.draws_forbidden = False  # drawing random numbers is an error
        self.trace: Any = None  # of the function that is being recorded for `tapegrad.jit`
        self.dual: Any = None  # the open level of forward mode
        # items of arrays and results without axes are values, as NumPy's numbers are, which writes
        # do not change: in functions that transforms and `jit` call for arrays
        self.items_are_values = False
        self.observer: Any = None  # called to compute ops while saved-tensor hooks are active


class Mode:
    """The switches of the current thread and those shared by all threads."""

    __slots__ = ("anomaly", "check_nan", "inference_used", "mutation_guard", "special", "thread")

    def __init__(self) -> None:
        self.special: dict[Any, None] = {}  # ids of threads' switches, names of shared ones
        self.thread = Switches()
        self.inference_used: list[None] = []  # not empty once inference mode was used
        self.anomaly = False
        self.check_nan = True
        self.mutation_guard: Any = None  # copies saved values before their memory is written

    def action(self) -> int:
        """Return the action of ops in this thread."""
        action = self.thread.action
        return CHECK_SWITCHES if action == RECORD_OP and self.anomaly else action

    @property
    def recording(self) -> bool:
        """Whether ops of this thread are recorded."""
        if not self.special:
            return True
        thread = self.thread
        return thread.recording and not thread.inference

    @property
    def is_plain(self) -> bool:
        """Whether ops of this thread are computed, and at most recorded on the tape."""
        if not self.special:
            return True
        return self.thread.trace is None and self.action() in (RECORD_OP, COMPUTE_ONLY)

    def set_recording(self, on: bool) -> bool:
        """Switch recording in this thread; return the previous state."""
        return self._switch("recording", on)

    def set_inference(self, on: bool) -> bool:
        """Switch inference mode in this thread; return the previous state."""
        if on and not self.inference_used:
            self.inference_used.append(None)
        return self._switch("inference", on)

    def set_saved_hooks(self, pairs: tuple[Any, ...]) -> None:
        """Set the hooks for values saved in this thread."""
        self._switch("saved_hooks", pairs)

    def set_levels(self, levels: tuple[Any, ...]) -> None:
        """Set the levels of batches of this thread."""
        self._switch("levels", levels)

    def set_trace(self, trace: Any) -> Any:
        """Set the function that is being recorded, or None; return the previous one."""
        return self._switch("trace", trace)

    def set_dual(self, level: Any) -> Any:
        """Set the level of forward mode of this thread, or None; return the previous one."""
        return self._switch("dual", level)

    def _switch(self, name: str, value: Any) -> Any:
        """Set a switch of this thread and update its action; return the previous value."""
        switches = self.thread.__dict__
        before = switches[name]
        if value is not before:
            key = id(switches)
            self.special[key] = None
            switches[name] = value
            switches["action"] = _action_of(switches)
            if switches["action"] == RECORD_OP:
                self.special.pop(key, None)
        return before

    def with_recording(self, on: bool, function: Callable[..., T], *args: Any) -> T:
        """Call a function with recording on or off; restore all switches afterwards.

        Nothing can be recorded in inference mode, which is left for the call if `on` is set.
        """
        if on and self.thread.inference:
            return self._with("inference", False, self._with, "recording", on, function, *args)
        return self._with("recording", on, function, *args)

    def with_dual(self, level: Any, function: Callable[..., T], *args: Any) -> T:
        """Call a function at a level of forward mode, or at none; restore all switches."""
        return self._with("dual", level, function, *args)

    def with_levels(self, levels: tuple[Any, ...], function: Callable[..., T], *args: Any) -> T:
        """Call a function at some levels of batches; restore all switches."""
        return self._with("levels", levels, function, *args)

    def with_items(self, are_values: bool, function: Callable[..., T]) -> Callable[..., T]:
        """Return a function to which items of arrays are values or not (`items_are_values`)."""

        def called(*args: Any, **kwargs: Any) -> T:
            return self._with("items_are_values", are_values, lambda: function(*args, **kwargs))

        return called

    def without_draws(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in which drawing random numbers is an error; restore all switches."""
        return self._with("draws_forbidden", True, function, *args)

    def _with(self, name: str, value: Any, function: Callable[..., T], *args: Any) -> T:
        """Call a function with a switch changed; restore all switches afterwards."""
        switches = self.thread.__dict__
        key, before = id(switches), switches.copy()
        try:
            self._switch(name, value)
            return function(*args)
        finally:  # inlined `restore`, whose call could be interrupted
            self.special[key] = None
            if name != "dual" and switches["dual"] is not before["dual"]:
                before["dual"] = switches["dual"]  # opened or closed meanwhile
                before["action"] = _action_of(before)
            switches.update(before)
            if switches["action"] == RECORD_OP:
                self.special.pop(key, None)

    def restore(self, switches: dict[str, Any], before: dict[str, Any]) -> None:
        """Restore the switches of a thread that contexts change.

        The level of forward mode ends itself, and what items are is a matter of calls.
        """
        key = id(switches)
        self.special[key] = None
        if before["levels"]:  # a batch may have ended since
            before = {**before, "levels": tuple(v for v in before["levels"] if v.is_open)}
        kept = ("dual", "items_are_values")
        before = {**before, **{name: switches[name] for name in kept}}
        switches.update(before)
        switches["action"] = _action_of(switches)
        if switches["action"] == RECORD_OP:
            self.special.pop(key, None)

    def note_complex(self) -> None:
        """Make ops check from now on whether they record complex numbers."""
        self.special["complex"] = None

    def note_inference_leaf(self, leaf: Any) -> None:
        """Make ops check, while an inference tensor that requires grad lives, for such tensors."""
        key = id(leaf)
        self.special[key] = None
        weakref.finalize(leaf, self.special.pop, key, None)

    def set_anomaly(self, on: bool, check_nan: bool = True) -> tuple[bool, bool]:
        """Switch anomaly mode for all threads; return the previous state."""
        before = self.anomaly, self.check_nan
        if on:
            self.special["anomaly"] = None
        self.anomaly, self.check_nan = on, check_nan
        if not on:
            self.special.pop("anomaly", None)
        return before


def _action_of(switches: dict[str, Any]) -> int:
    """Return the action that follows from the switches of a thread."""
    recording = switches["recording"]
    if switches["levels"] or switches["trace"] is not None or switches["draws_forbidden"]:
        return CHECK_SWITCHES
    if switches["dual"] is not None:
        is_special = switches["inference"] or switches["saved_hooks"]
        return CHECK_SWITCHES if is_special else ADD_TANGENTS
    if switches["inference"]:
        return MAKE_INFERENCE
    if recording and switches["saved_hooks"]:
        return CHECK_SWITCHES
    return RECORD_OP if recording else COMPUTE_ONLY


class ModeContext:
    """A context of a thread that is ended even if an interrupt prevents its `__exit__`.

    An interrupt may arrive when `__exit__` is called, before it has done anything. The surrounding
    context is then left by an exception and restores all switches. Without a surrounding context,
    this one restores them when it is deleted.
    """

    # per entry: the switches of the thread, the result of `now`, and a copy of all switches
    _open: tuple[tuple[dict[str, Any], Any, dict[str, Any]], ...] = ()

    def __enter__(self) -> Any:
        switches = MODE.thread.__dict__
        self._open = (*self._open, (switches, self.now(), switches.copy()))
        switches["depth"] += 1
        try:
            return self.enter()
        except BaseException as error:  # refused, or interrupted
            self.__exit__(type(error), error)
            raise

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
            if here and switches["depth"] > everything["depth"]:  # no outer context ended since
                MODE.restore(switches, everything)
                self.leave(own)

    def now(self) -> Any:
        """Return the present state, which `leave` restores."""

    def enter(self) -> Any:
        """Switch; return the target of ``with ... as``."""

    def leave(self, before: Any) -> None:
        """Switch back, even if an interrupt left the switch incomplete."""

    def not_entered(self) -> Any:
        """Return the previous state for a context that is left without being entered."""
        raise RuntimeError(f"{type(self).__name__} is left without being entered")


MODE = Mode()


@in_forked_process
def _forget_threads() -> None:
    """Forget the switches of threads that a forked process does not have."""
    own = id(MODE.thread.__dict__)
    for key in [*MODE.special]:
        if isinstance(key, int) and key != own:
            del MODE.special[key]
