"""Imports that are done when something is first needed, and then as a whole.

An exception in the middle of an import leaves modules that are known to others, and numba's tables,
half filled: everything that needs them fails until the process ends. So the handlers of signals,
such as that of Ctrl-C, run after such an import, and no process is forked meanwhile. After any
other exception the import begins anew.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tapegrad.forks import undivided


def whole_imports(*modules: str) -> AbstractContextManager[None]:
    """Return a context in which imports are done as a whole.

    Parameters
    ----------
    *modules
        Those that are imported: if all of them are there, there is nothing to do.
    """
    return nullcontext() if modules and all(map(_is_there, modules)) else _whole()


def _is_there(name: str) -> bool:
    found = sys.modules.get(name)
    return found is not None and not getattr(found.__spec__, "_initializing", False)


@contextmanager
def _whole() -> Iterator[None]:
    with undivided(), _late_signals(), _undone():
        yield


@contextmanager
def _undone() -> Iterator[None]:
    """Forget the modules that were imported if one of them cannot be, as without memory.

    A package would be missing whose modules are there, and what these expect of it.
    """
    before = {*sys.modules}
    try:
        yield
    except BaseException:
        packages = ("tapegrad",) if "numba" in before else ("tapegrad", "numba")
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] in packages:
                del sys.modules[name]
        raise


class _Late:
    """The handler of a signal while it has to wait."""

    def __init__(self, handler: Callable[[int, Any], Any]) -> None:
        self.handler = handler
        self.is_waiting = True
        self.has_come = False

    def __call__(self, number: int, frame: Any) -> Any:
        """Note the signal; if an interrupt has left this handler in place, handle it."""
        if not self.is_waiting:
            return self.handler(number, frame)
        self.has_come = True
        return None


@contextmanager
def _late_signals() -> Iterator[None]:
    """Let handlers of signals run at the end, in the order of the numbers of the signals."""
    late: dict[int, _Late] = {}
    try:
        if threading.current_thread() is threading.main_thread():  # no other one runs handlers
            for number in map(int, signal.valid_signals()):
                found = signal.getsignal(number)
                if callable(found) and not isinstance(found, signal.Handlers | _Late):
                    late[number] = _Late(found)
                    signal.signal(number, late[number])
        yield
    finally:
        for waiting in late.values():
            waiting.is_waiting = False
        for number, waiting in late.items():
            handler = waiting.handler
            if signal.getsignal(number) is waiting:
                signal.signal(number, handler)
        _raise([number for number, waiting in late.items() if waiting.has_come])


def _raise(numbers: list[int]) -> None:
    """Raise signals, all of them even if the handler of one raises an exception."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _raise(numbers[1:])
