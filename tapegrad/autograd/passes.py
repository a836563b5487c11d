"""The backward passes that are running, and what a program may ask of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tapegrad.autograd.engine import marks_between
from tapegrad.modes import MODE
from tapegrad.tape.layout import OWN_SLOT
from tapegrad.tape.owner import Owner

T = TypeVar("T")


class Pass:
    """One backward pass: from where to where, and what is called at its end."""

    __slots__ = ("create_graph", "inputs", "queue", "roots")

    def __init__(
        self,
        roots: Sequence[tuple[Owner, Any]],
        inputs: Sequence[Owner] | None,
        create_graph: bool,
    ) -> None:
        self.roots = roots
        self.inputs = inputs
        self.create_graph = create_graph
        self.queue: list[Callable[[], None]] | None = None

    def run(self, function: Callable[[], T]) -> T:
        """Call what does the pass, and then what was queued meanwhile."""
        passes = RUNNING.passes
        outer = len(passes)
        try:
            passes.append(self)
            result = function()
            if self.queue:
                MODE.with_recording(self.create_graph, self._run_queue)
            return result
        finally:
            del passes[outer:]

    def _run_queue(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call a function when the pass has ended."""
        if self.queue is None:
            self.queue = []
        self.queue.append(callback)

    def computes(self, owners: Sequence[Owner]) -> list[bool]:
        """Return for each record whether this pass computes the gradient of its output."""
        slots = [own[OWN_SLOT] for own in owners]
        roots = [own[OWN_SLOT] for own, _ in self.roots]
        found, _ = marks_between(roots, slots)
        if self.inputs is not None:
            found &= marks_between(roots, [own[OWN_SLOT] for own in self.inputs])[0]
        return [slot in found for slot in slots]


class _Running(threading.local):
    """The backward passes running in this thread, innermost last."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []


RUNNING = _Running()


class Engine:
    """What a program may ask of the engine while a backward pass runs."""

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Call a function when the running backward pass has ended.

        Parameters
        ----------
        callback
            Called without arguments.

        Raises
        ------
        RuntimeError
            If no backward pass runs in this thread.
        """
        if not RUNNING.passes:
            raise RuntimeError("Final callbacks can only be installed during backward pass.")
        RUNNING.passes[-1].at_end(callback)


ENGINE = Engine()
