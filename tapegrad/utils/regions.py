"""Checkpointed regions: saved values are dropped, and recomputed when the backward pass needs one.

A region is one call of a function. Whatever its ops save goes through a pack hook, which keeps a
`Place` instead. The first unpack calls the function again, and its saved values, in the same order,
fill the places. The records are those of the first call, so history and hooks are not affected.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from tapegrad.autograd.engine.passes import RUNNING
from tapegrad.autograd.engine.saved_tensors import saved_tensors_hooks
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.forks import object_lock
from tapegrad.tape.tape import TAPE
from tapegrad.utils import generators
from tapegrad.utils.arguments import Arguments, check_unwritten
from tapegrad.utils.fingerprints import fingerprint
from tapegrad.utils.selective import Observing

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
ContextFn = Callable[[], Contexts]

_NAME = "tapegrad.utils.checkpoint"
_TIP = (
    "\n\nTip: To see a more detailed error message, either pass `debug=True` to\n"
    f"`{_NAME}.checkpoint(...)` or wrap the code block\n"
    f"with `with {_NAME}.set_checkpoint_debug_enabled(True):` to\n"
    "enable checkpoint-debug mode globally."
)


class CheckpointError(RuntimeError):
    """Raised if the recomputation of a checkpointed function differs from its first call."""

    __module__ = "tapegrad.utils.checkpoint"  # its public place


class Stop(BaseException):
    """Ends a recomputation when it has all values that are needed.

    It passes handlers of the user's that catch every `Exception`.
    """

    def __init__(self, recomputation: Recomputation) -> None:
        super().__init__()
        self.recomputation = recomputation


class Place:
    """What a record keeps in place of a saved value."""

    __slots__ = ("__weakref__", "slot", "value")

    def __init__(self) -> None:
        self.value: np.ndarray | None = None
        self.slot = 0  # the position on the clock where it was recomputed


class Facts(NamedTuple):
    """What is known of a value that was dropped."""

    shape: tuple[int, ...]
    dtype: np.dtype
    print: int


class Region:
    """One call of a checkpointed function.

    Parameters
    ----------
    function, args, kwargs
        The call.
    context_fn, determinism_check, debug, early_stop, preserve_rng_state
        Those of `checkpoint`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context_fn: ContextFn,
        determinism_check: str,
        debug: bool,
        early_stop: bool,
        preserve_rng_state: bool,
    ) -> None:
        self.function = function
        self.arguments = Arguments(args, kwargs, "checkpoint")
        self.log = _Log() if debug else None
        self.contexts = self.log.contexts() if self.log else context_fn()
        self.is_checked = determinism_check == "default"
        self.stops_early = early_stop
        self.before = generators.states() if preserve_rng_state else None
        self.places: list[weakref.ref[Place]] = []
        self.facts: list[Facts] = []
        self.is_open = True  # while the first call runs
        self.lock = object_lock()  # two threads may sweep the graph

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function for the first time."""
        try:
            with self.contexts[0], saved_tensors_hooks(self.pack, self.unpack):
                return self.function(*args, **kwargs)
        finally:
            self.is_open = False

    # -- hooks of saved values --------------------------------------------------------------------

    def pack(self, tensor: Tensor) -> Place:
        """Return a place for a value that is dropped."""
        array = tensor._a
        place = Place()
        self.places.append(weakref.ref(place))
        mark = fingerprint(array) if self.is_checked else 0
        self.facts.append(Facts(array.shape, array.dtype, mark))
        return place

    def unpack(self, place: Place) -> Tensor:
        """Return a value; the first one that is needed is recomputed with all others."""
        while (array := place.value) is None:  # another pass may end, and drop it again
            with self.lock:
                if place.value is None:
                    self.recompute()
        check_unwritten(array, place.slot)
        if not RUNNING.passes:  # a pass drops its values at its end
            place.value = None
        return wrap(array)

    # -- recomputation ----------------------------------------------------------------------------

    def recompute(self) -> None:
        """Call the function again, and fill the places."""
        again = Recomputation(self)
        try:
            MODE.with_recording(True, MODE.with_dual, None, self._run_again, again)
            again.check()
        except BaseException as error:
            self.drop_values()
            if self.log is not None and isinstance(error, CheckpointError):
                raise CheckpointError(self.log.text()) from error
            raise
        if RUNNING.passes:
            known = weakref.ref(self)  # the values of a region are freed before the pass ends
            RUNNING.passes[-1].at_end(lambda: _drop_values(known))

    def _run_again(self, again: Recomputation) -> None:
        MODE.thread.observer = None
        MODE.set_levels(())  # of batches of cotangents; the first call ran outside of batches
        MODE.set_saved_hooks(((again.pack, lambda tensor: tensor),))
        with generators.restored(self.before), self.contexts[1]:
            try:
                self.arguments.call(self.function)
            except Stop as stop:
                if stop.recomputation is not again:
                    raise

    def drop_values(self) -> None:
        """Drop the recomputed values; they can be recomputed again."""
        for known in self.places:
            if (place := known()) is not None:
                place.value = None


def _drop_values(known: weakref.ref[Region]) -> None:
    region = known()
    if region is not None:
        region.drop_values()


class Recomputation:
    """The saved values of one more call of a function.

    Parameters
    ----------
    region
        The region, whose places are filled.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.count = 0
        self.stops = region.stops_early or region.is_open
        self.needed = len(region.places)
        if self.stops:  # at the last value that a record still needs
            while self.needed and region.places[self.needed - 1]() is None:
                self.needed -= 1
        self.differences: list[tuple[int, Facts, Facts]] = []

    def pack(self, tensor: Tensor) -> Tensor:
        """Put a value into its place, and compare it with what is known of it."""
        region, k = self.region, self.count
        self.count = k + 1
        if k >= len(region.places):
            raise CheckpointError(
                f"{_NAME}: trying to save more tensors during recomputation than during the "
                f"original forward pass.{_TIP}"
            )
        array = tensor._a
        place = region.places[k]()
        if place is not None:
            place.value, place.slot = array, TAPE.next_slot()[1]
        if region.is_checked:
            found = Facts(array.shape, array.dtype, fingerprint(array))
            if found != region.facts[k]:
                self.differences.append((k, region.facts[k], found))
        if self.stops and self.count >= self.needed:
            raise Stop(self)
        return tensor

    def check(self) -> None:
        """Raise if the call differed from the first one."""
        if self.count < self.needed:
            raise CheckpointError(
                f"{_NAME}: A different number of tensors was saved during the original forward and "
                f"recomputation.\nNumber of tensors saved during forward: {self.needed}\n"
                f"Number of tensors saved during recomputation: {self.count}.{_TIP}"
            )
        if not self.differences:
            return
        if any(old[:2] != new[:2] for _, old, new in self.differences):
            lines = [
                f"tensor at position {k}:\nsaved metadata: {_shown(old)}\n"
                f"recomputed metadata: {_shown(new)}\n"
                for k, old, new in self.differences
                if old[:2] != new[:2]
            ]
            raise CheckpointError(
                f"{_NAME}: Recomputed values for the following tensors have different metadata "
                f"than during the forward pass.\n{''.join(lines)}.{_TIP}"
            )
        lines = [f"tensor at position {k}: {_shown(old)}\n" for k, old, _ in self.differences]
        raise CheckpointError(
            f"{_NAME}: Recomputed values for the following tensors are different than during the "
            f"forward pass, so that gradients would be wrong.\n{''.join(lines)}"
            "Something that the function reads has changed since: a tensor or array was modified "
            "in place, a global value was set, or it draws from a random generator whose state is "
            "not preserved. Pass what changes as a copy, and make generators inside of the "
            "function. If the values differ by rounding only, determinism_check='none' accepts "
            f"them.{_TIP}"
        )


def _shown(facts: Facts) -> dict[str, Any]:
    return {"shape": facts.shape, "dtype": facts.dtype}


# -- debugging ------------------------------------------------------------------------------------


class _Log:
    """The ops of the first call and of the recomputation."""

    def __init__(self) -> None:
        self.lines: tuple[list[str], list[str]] = [], []

    def contexts(self) -> Contexts:
        """Return the contexts that log the ops of the two calls."""
        return Observing(self._observer(self.lines[0])), _Again(self)

    def _observer(self, lines: list[str]) -> Callable[..., Any]:
        def observe(op: Any, function: Any, arrays: Any, parameters: Any) -> Any:
            found = function(*arrays, **parameters)
            results = found if isinstance(found, tuple) else (found,)
            given = ", ".join([*map(_kind, arrays), *(f"{n}={v}" for n, v in parameters.items())])
            lines.append(f"{op.name}({given}) -> {', '.join(map(_kind, results))}")
            return found

        return observe

    def text(self) -> str:
        first, again = ("\n".join(f"  {line}" for line in lines) for lines in self.lines)
        return (
            "An error happened while unpacking tensors; dumping logs of latest computation\n"
            f"because you passed `debug=True` to `{_NAME}.checkpoint()`.\n"
            f"Operations executed during the original forward:\n\n{first}\n\n"
            f"Operations executed during recomputation:\n\n{again}\n\n"
            "The recomputation ends with the last value that is needed. Views, and ops of tensors "
            "that do not require grad, may be missing in both lists."
        )


class _Again(Observing):
    """The context that logs a recomputation."""

    def __init__(self, log: _Log) -> None:
        super().__init__(log._observer(log.lines[1]))
        self.log = log

    def enter(self) -> None:
        self.log.lines[1].clear()
        super().enter()


def _kind(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)


def noop_context_fn() -> Contexts:
    """Return two contexts that do nothing."""
    return nullcontext(), nullcontext()
