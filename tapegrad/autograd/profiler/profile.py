"""`profile` and `record_function`."""

from __future__ import annotations

import functools
import inspect
import os
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from tapegrad import probes
from tapegrad.autograd.profiler import exports, pictures
from tapegrad.autograd.profiler.averages import EventList, FunctionEventAvg
from tapegrad.autograd.profiler.events import RANGE, describer, tree_of_events
from tapegrad.tape import timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

F = TypeVar("F", bound=Callable[..., Any])
_running: list[profile] = []


class profile:
    """A context in which calls of ops are counted and timed, in all threads.

    Forward, it sees the functions of this package on tensors, calls of `Function` and of compiled
    functions, and what is compiled; backward, every record of every pass, also of passes in
    compiled code. Without a running profile, ops cost what they always do.

    Of ops that are called often and take less than 10 µs, one of 64 calls is timed, chosen at
    random; its time stands for all of them. Numbers of calls are exact. So a profile costs little
    even where ops take less time than reading the clock. If few calls of such an op take much
    longer than the others, use `every_call`.

    Parameters
    ----------
    enabled
        False for a context that does nothing.
    record_shapes
        Time every call, and keep the shapes of arguments; see `key_averages`.
    profile_memory
        Count the bytes of the arrays that ops and the backward pass make.
    with_stack
        Time every call, and keep the lines that called ops, also for the records of the backward
        pass.
    every_call
        Time every call of every op, for a complete trace.

    Raises
    ------
    RuntimeError
        If another profile is running, or this one has been used.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> with tg.autograd.profiler.profile() as prof:
    ...     with tg.autograd.profiler.record_function("loss"):
    ...         loss = tg.sum(tg.sin(x) * tg.sin(x))
    ...     loss.backward()
    >>> {row.key: row.count for row in prof.key_averages() if row.category != "compile"}
    {'loss': 1, 'sin': 2, 'multiply': 1, 'sum': 1, 'backward': 1, 'SumBackward': 1, \
'MultiplyBackward': 1, 'SinBackward': 2}
    >>> print(prof.key_averages().table(sort_by="cpu_time_total", row_limit=3))  # doctest: +SKIP
    """

    def __init__(
        self,
        enabled: bool = True,
        *,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        every_call: bool = False,
    ) -> None:
        self.enabled = enabled
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.every_call = every_call or record_shapes or with_stack
        self._entered = False
        self._log: probes.Log = []
        self._sweeps = timing.SweepLog()
        self._missing: dict[int, int] | None = None  # see `probes.stop`
        self._events: EventList | None = None

    def __enter__(self) -> profile:
        if not self.enabled:
            return self
        if self._entered:
            raise RuntimeError("Profiler context manager is not reentrant")
        if _running:
            raise RuntimeError("Another profiler is running; leave its context first")
        try:
            self._entered = True
            _running.append(self)
            describe = describer(self.record_shapes, self.profile_memory, self.with_stack)
            self._sweeps.start()
            probes.start(self._log, describe, self.every_call)
        except BaseException:  # an interrupt
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        interrupt = None
        while self in _running:
            try:
                missing = probes.stop()
                self._sweeps.stop()
                self._missing = missing if self._missing is None else self._missing
                _running.remove(self)
            except KeyboardInterrupt as error:  # once more: all functions get their code back
                interrupt = error
        if interrupt is not None:
            raise interrupt

    @property
    def function_events(self) -> EventList:
        """All events in the order of their starts: a list of `FunctionEvent`."""
        if self.enabled and self._missing is None:
            raise RuntimeError("Profiler didn't finish running")
        if self._events is None:
            names = ("record_shapes", "profile_memory", "with_stack")
            found = tree_of_events(self._log, self._missing or {}, self._sweeps.sweeps)
            self._events = EventList(found, [name for name in names if getattr(self, name)])
            self._log, self._sweeps = [], timing.SweepLog()
        return self._events

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all events, in µs."""
        return self.function_events.self_cpu_time_total

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0
    ) -> EventList:
        """Return the sums over events of one name.

        Parameters
        ----------
        group_by_input_shape
            Keep calls with other shapes apart; needs ``record_shapes``.
        group_by_stack_n
            Keep calls from other lines apart: the number of innermost lines that are compared.
            Needs ``with_stack``.

        Returns
        -------
        EventList
            Of `FunctionEventAvg`.
        """
        return self.function_events.key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> FunctionEventAvg:
        """Return the sums over all events."""
        return self.function_events.total_average()

    def table(self, sort_by: str | None = None, **options: Any) -> str:
        """Return the table of all events; see `EventList.table`.

        It has a row for each call; for a row for each op, use ``key_averages().table()``.
        """
        return self.function_events.table(sort_by, **options)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a file that chrome://tracing and https://ui.perfetto.dev display."""
        exports.write_chrome_trace(self.function_events, path)

    def export_stacks(
        self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total"
    ) -> None:
        """Write nested names with their times, for programs that draw flame graphs."""
        if metric != "self_cpu_time_total":
            raise ValueError(f"metric: expected 'self_cpu_time_total', got {metric!r}")
        exports.write_stacks(self.function_events, path)

    def bar_chart(
        self,
        path: str | os.PathLike[str] | None = None,
        sort_by: str = "self_cpu_time_total",
        row_limit: int = 20,
    ) -> Figure:
        """Draw a bar for each op; needs matplotlib.

        Parameters
        ----------
        path
            The picture to write; its ending says which format.
        sort_by, row_limit
            What bars show, and how many there are; see `EventList.table`.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return pictures.bar_chart(self.key_averages(), sort_by, row_limit, path)

    def flame_graph(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw what took how long inside of what; needs matplotlib.

        Events of one name in one place are one box, which is as wide as they took long together.

        Parameters
        ----------
        path
            The picture to write; its ending says which format.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return pictures.flame_graph(self.function_events, path)

    def __str__(self) -> str:
        if self.enabled and self._missing is None:
            return "<unfinished profile>"
        return str(self.function_events.table())

    __repr__ = __str__


class record_function:
    """A context, or a decorator, that names a range of a profile.

    Parameters
    ----------
    name
        The name.
    args
        A text that is added to the name.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.autograd.profiler.record_function("step")
    ... def step(x):
    ...     return x * 2.0
    >>> with tg.autograd.profiler.profile() as prof:
    ...     y = step(tg.tensor(1.0))
    >>> [event.path() for event in prof.function_events]
    [('step',), ('step', 'multiply')]
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"record_function: name is a {type(name).__name__}, not a str")
        self.name = name if args is None else f"{name}({args})"
        self._starts: dict[int, list[int]] = {}  # by thread

    def __enter__(self) -> record_function:
        self._starts.setdefault(get_ident(), []).append(perf_counter_ns())
        return self

    def __exit__(self, *_: Any) -> None:
        start = self._starts[get_ident()].pop()
        for running in _running:
            event = (RANGE, 1, get_ident(), start, perf_counter_ns(), self.name, None)
            running._log.append(event)

    def __call__(self, function: F) -> F:
        """Name the calls of a function."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f"record_function: {function.__name__} is a generator or a coroutine, whose call "
                "returns at once; use record_function as a context inside of it"
            )

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]
