"""Running backward passes, and the engine interface for user code."""

from __future__ import annotations

import contextvars
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tapegrad.autograd.engine.marks import marks_between
from tapegrad.autograd.engine.node import check_hook
from tapegrad.eager.frames import maker_of
from tapegrad.eager.modes import MODE
from tapegrad.tape.layout import OWN_SLOT
from tapegrad.tape.owner import Owner

T = TypeVar("T")


# nested passes per thread, far fewer than Python's recursion limit allows
DEPTH = 40


def in_new_thread(function: Callable[[], T]) -> T:
    """Call a function in a new thread with an empty stack, with the state of this thread.

    Parameters
    ----------
    function
        Called without arguments. Its exceptions are raised here.
    """
    switches, passes = MODE.thread.__dict__.copy(), RUNNING.passes
    context = contextvars.copy_context()
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        own = MODE.thread.__dict__
        try:
            MODE.restore(own, switches)
            MODE.set_dual(switches["dual"])
            own["items_are_values"] = switches["items_are_values"]
            RUNNING.passes = passes
            found.append(context.run(function))
        except BaseException as error:
            errors.append(error)
        finally:
            MODE.special.pop(id(own), None)

    thread = threading.Thread(target=run, name="tapegrad backward pass")
    thread.start()
    interrupt: BaseException | None = None
    while thread.is_alive():
        try:
            thread.join()
        except BaseException as error:  # such as KeyboardInterrupt: raise it in the pass, and wait
            interrupt = error
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(type(error))
            )
    if errors:
        raise errors[0]
    if interrupt is not None:  # the pass ended before it was interrupted
        raise interrupt
    return found[0]


class Pass:
    """One backward pass: its roots, its inputs, and the callbacks for its end."""

    __slots__ = ("create_graph", "inputs", "queue", "roots")

    def __init__(
        self, roots: Sequence[tuple[Owner, Any]], inputs: Sequence[Owner] | None, create_graph: bool
    ) -> None:
        self.roots = roots
        self.inputs = inputs
        self.create_graph = create_graph
        self.queue: list[Callable[[], None]] | None = None

    def run(self, function: Callable[[], T]) -> T:
        """Run the pass, then the callbacks that were queued meanwhile."""
        passes = RUNNING.passes
        outer = len(passes)
        try:
            passes.append(self)
            result = function() if outer % DEPTH < DEPTH - 1 else in_new_thread(function)
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
        """Return, for each record, whether this pass computes the gradient of its output."""
        slots = []
        for own in owners:  # for one output of several, whether the op is swept
            maker, _ = maker_of(own)
            assert maker is not None
            slots.append(maker[OWN_SLOT])
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
    """Interface of the engine for user code in a running backward pass."""

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Queue a function to be called when the running backward pass has ended.

        Parameters
        ----------
        callback
            Called without arguments.

        Raises
        ------
        RuntimeError
            If no backward pass runs in this thread.
        """
        check_hook(callback, "queue_callback")
        if not RUNNING.passes:
            raise RuntimeError("Final callbacks can only be installed during backward pass.")
        RUNNING.passes[-1].at_end(callback)


ENGINE = Engine()
