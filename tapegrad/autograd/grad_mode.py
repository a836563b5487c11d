"""Context managers and decorators that switch the recording of ops on and off."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from tapegrad.eager.modes import MODE, ModeContext
from tapegrad.eager.traced import NotRecordedError

F = TypeVar("F", bound=Callable[..., Any])


def is_grad_enabled() -> bool:
    """Return whether ops of this thread are recorded (outside inference mode)."""
    _refuse_recording("is_grad_enabled()")
    return MODE.thread.recording


def _refuse_recording(what: str) -> None:
    """Raise in a function that `jit` records: it is called in other modes later."""
    if MODE.thread.trace is not None:
        raise NotRecordedError(f"{what} is about the mode of the caller")


class ModeDecorator(ModeContext):
    """A context manager that also decorates functions, whose body then runs in the context."""

    def __new__(cls, function: Any = None) -> Any:
        """Make the context, or decorate a function directly (``@no_grad``)."""
        made = super().__new__(cls)
        return made(function) if callable(function) else made

    def __call__(self, function: F) -> F:
        """Decorate a function or generator function so that its body runs in this mode."""
        if inspect.isclass(function):
            warnings.warn(
                "Decorating classes is deprecated and will be disabled in future versions. You "
                "should only decorate functions or methods. To preserve the current behavior of "
                "class decoration, you can directly decorate the `__init__` method and nothing "
                "else.",
                FutureWarning,
                stacklevel=2,
            )
            function.__init__ = self(function.__init__)  # type: ignore[method-assign]
            return function
        if inspect.isgeneratorfunction(function):
            return self._wrap_generator(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    def clone(self) -> ModeDecorator:
        """Return another context of the same mode (a context cannot be nested in itself)."""
        return type(self)()

    def _wrap_generator(self, function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with self.clone():
                generator = function(*args, **kwargs)
            step, argument = generator.send, None
            while True:
                try:
                    with self.clone():
                        value = step(argument)
                except StopIteration as stop:
                    return stop.value
                try:
                    argument = yield value
                    step = generator.send
                except GeneratorExit:
                    with self.clone():
                        generator.close()
                    raise
                except BaseException as error:
                    step, argument = generator.throw, error

        return wrapped  # type: ignore[return-value]


class _GradMode(ModeDecorator):
    """A context manager and decorator that sets recording in the current thread."""

    enabled: bool

    def now(self) -> Any:
        return MODE.thread.recording

    def enter(self) -> None:
        MODE.set_recording(self.enabled)

    def leave(self, before: Any) -> None:
        MODE.set_recording(before)


class no_grad(_GradMode):
    """Do not record ops: results do not require gradients.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(1.0, requires_grad=True)
    >>> with tg.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    enabled = False


class enable_grad(_GradMode):
    """Record ops, even inside `no_grad`."""

    enabled = True

    def enter(self) -> None:
        _refuse_recording("enable_grad")
        super().enter()


class set_grad_enabled(_GradMode):
    """Switch recording on or off immediately; as a context manager, until the context ends.

    Parameters
    ----------
    mode
        Whether to record.
    """

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise TypeError(
                "set_grad_enabled(): argument 'enabled' (position 1) must be bool, not "
                f"{type(mode).__name__}"
            )
        if mode:
            _refuse_recording("set_grad_enabled(True)")
        self.enabled = mode
        self._at_first = MODE.set_recording(self.enabled)

    def now(self) -> Any:
        """Return the mode before this object was made."""
        return self._at_first

    def not_entered(self) -> Any:
        """Return the same mode: the switch was made on construction."""
        return self._at_first

    def __call__(self, function: F) -> F:
        MODE.set_recording(self._at_first)  # a decorator does not itself switch the mode
        return super().__call__(function)

    def clone(self) -> ModeDecorator:
        """Return a context of the same mode that switches only when it is entered."""
        return enable_grad() if self.enabled else no_grad()


class inference_mode(_GradMode):
    """Do not record ops, and make tensors that can never be part of a graph.

    A tensor computed inside cannot be saved for a backward pass. Outside, it can neither be
    modified in place nor be made to require gradients, but a clone of it made there can.

    Parameters
    ----------
    mode
        False switches inference mode off inside the context.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> with tg.inference_mode():
    ...     y = x * 2
    >>> y.requires_grad, y.is_inference()
    (False, True)
    """

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode

    def __new__(cls, mode: Any = True) -> Any:
        """Make the context, or decorate a function directly (``@inference_mode``)."""
        return cls()(mode) if callable(mode) else object.__new__(cls)

    def now(self) -> Any:
        return MODE.thread.recording, MODE.thread.inference

    def enter(self) -> None:
        _refuse_recording("inference_mode")
        MODE.set_inference(self.mode)
        MODE.set_recording(not self.mode)

    def leave(self, before: Any) -> None:
        recording, inference = before
        MODE.set_recording(recording)
        MODE.set_inference(inference)

    def clone(self) -> ModeDecorator:
        return type(self)(self.mode)


def is_inference_mode_enabled() -> bool:
    """Return whether this thread is in inference mode."""
    _refuse_recording("is_inference_mode_enabled()")
    return MODE.thread.inference


class _Multithreading(threading.local):
    enabled = True


_MULTITHREADING = _Multithreading()


def is_multithreading_enabled() -> bool:
    """Return what `set_multithreading_enabled` set in this thread, without effect on passes."""
    return _MULTITHREADING.enabled


class set_multithreading_enabled(contextlib.ContextDecorator):
    """Accept PyTorch's switch for multithreaded backward passes, without effect.

    Backward passes are never parallel: they run in the calling thread, or in one that it waits for
    if they are deeply nested.

    Parameters
    ----------
    mode
        What `is_multithreading_enabled` returns from now on in this thread, until the context ends.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> with tg.autograd.set_multithreading_enabled(False):
    ...     (x * x).backward()
    >>> x.grad
    tensor(4.)
    """

    def __init__(self, mode: bool) -> None:
        self.prev = _MULTITHREADING.enabled
        _MULTITHREADING.enabled = self.mode = bool(mode)

    def __enter__(self) -> None:
        """Change nothing: the switch is set when it is made."""

    def __exit__(self, *exc: object) -> None:
        _MULTITHREADING.enabled = self.prev

    def _recreate_cm(self) -> set_multithreading_enabled:
        return self.clone()  # for every call of a decorated function

    def __call__(self, function: Any) -> Any:
        """Decorate a function."""
        _MULTITHREADING.enabled = self.prev
        return super().__call__(function)

    def clone(self) -> set_multithreading_enabled:
        return type(self)(self.mode)
