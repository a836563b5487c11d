"""Probes: functions whose calls a profile times, at no cost while none runs.

Every reference to an op is to one function object, in namespaces, classes and other modules.
Therefore a running profile replaces the *code* of that object, and puts it back afterwards; the
function itself checks nothing. The new code times a call of a copy of the original.

To read the clock twice and keep an event takes as long as a small op. Functions that are called
often and return soon are therefore timed in one of `PERIOD` calls, at random. Such an event stands
for all calls since the one before it: that is its *weight*. The weights of a function's events add
up to the number of its calls. A function is always timed if it may call others with probes, since
its time without theirs would be lost, and if its events have several names.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import random
import statistics
import textwrap
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

PERIOD = 64
SHORT = 10_000  # ns; longer calls are all timed
TRIAL = 32  # timed calls after which it is decided whether the next ones are
_FEW, _LAST = 8, 512  # events that this is decided by, among the last ones
_PERIODS = 64  # in a pattern, which is then repeated


class Event(NamedTuple):
    """A timed call, as it is logged when it ends (before the call that it was part of)."""

    probe: int  # its number
    weight: int  # calls that it stands for
    thread: int
    start: int  # ns, on the clock of `time.perf_counter_ns`
    end: int
    name: str | None  # if it differs from call to call
    detail: Any  # what `describe` returned


Log = list[tuple[Any, ...]]  # the fields of events
Namer = Callable[[tuple[Any, ...]], str | None]
Describe = Callable[[tuple[Any, ...], Any], Any]

# These have to work with the globals and the free variables of the original, of which they know
# nothing. What they need is put among their constants, in place of the texts in angle brackets.
_TIMED = """
def timed({parameters}):
    _append = "<append>"
    _decide = "<decide>"
    _describe = "<describe>"
    _name = "<name>"
    _now = "<now>"
    _original = "<original>"
    _thread = "<thread>"
    _weight = "<weight>"
    _start = _now()
    try:
        _result = _original({passed})
    except BaseException:
        _append(({number}, _weight, _thread(), _start, _now(), {name}, None))
        raise
    _end = _now()
    _append(({number}, _weight, _thread(), _start, _end, {name}, {detail}))
    if {ends}:
        _decide({skips})
    return _result
"""
_SAMPLED = """
def sampled({parameters}):
    _timed = next("<functions>")
    if _timed is not None:
        return _timed({passed})
    _original = "<original>"
    return _original({passed})
"""
NEVER = "False"
COUNTED_DOWN = 'next("<countdown>", None) is None'
WAS_LONG = f"_end - _start > {SHORT}"


class Probe:
    """A function that can be timed.

    Parameters
    ----------
    function
        A Python function.
    name
        The name of its events, or a function from its positional arguments to the name; if that
        returns None, the call is no event.
    category
        The kind of its events.
    is_leaf
        Whether it calls no other function with a probe, so that not all calls have to be timed.
    describe
        What is kept of its calls in place of what the profile keeps.
    """

    def __init__(
        self,
        function: FunctionType,
        name: str | Namer,
        category: str,
        is_leaf: bool,
        describe: Describe | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.category = category
        self.number = len(PROBES)
        self._may_skip = is_leaf and not callable(name)
        self._describe = describe
        self._skips = False
        self._lock = threading.Lock()
        self._original: CodeType | None = None
        self._values: dict[str, Any] = {}  # of the texts in angle brackets
        self._log: Log = []
        self._functions: Iterator[Any] = iter(())  # what the next calls are timed by, mostly None
        self._weights: dict[Any, int] = {}  # of these functions

    def original(self) -> Callable[..., Any]:
        """Return what the function does while it has other code."""
        assert self._original is not None
        return _with_code(self.function, self._original)

    def start(self, log: Log, describe: Describe | None, every_call: bool) -> None:
        """Log the calls of the function from now on."""
        if describe is not None and self._describe is not None:
            describe = self._describe
        self._log = log
        self._original = self.function.__code__
        self._values = {
            "<append>": log.append,
            "<decide>": self._decide,
            "<describe>": describe,
            "<name>": self.name,
            "<now>": perf_counter_ns,
            "<original>": self.original(),
            "<thread>": get_ident,
        }
        self._time_all(NEVER if every_call or not self._may_skip else COUNTED_DOWN)

    def stop(self) -> int:
        """Put the code of the function back; return the number of calls after the last event."""
        original, self._original = self._original, None
        if original is not None:
            self.function.__code__ = original
        missing = 0
        for steps, timed in enumerate(self._functions, 1):
            if timed is not None:
                missing = self._weights[timed] - steps
                break
        self._values, self._weights, self._log, self._functions = {}, {}, [], iter(())
        return missing

    def _time_all(self, ends: str) -> None:
        self._skips = False
        self._values["<countdown>"] = iter(range(TRIAL))
        self.function.__code__ = self._code(_TIMED, ends, 1)

    def _time_some(self) -> None:
        """Time a random one of each period of calls."""
        if not self._weights:  # else it goes on where it was
            weights: dict[Any, int] = {}
            pattern: list[Any] = []
            for weight in _WEIGHTS[self.number % len(_WEIGHTS)]:
                timed = _with_code(self.function, self._code(_TIMED, WAS_LONG, weight))
                weights[timed] = weight
                pattern += [None] * (weight - 1)
                pattern.append(timed)
            self._functions = self._values["<functions>"] = itertools.cycle(pattern)
            self._weights = weights  # last: an interrupt leaves nothing half done
        assert self._original is not None
        merged = _merged(self._original)
        code = self._code(_SAMPLED) if merged is None else self._filled(merged)
        self._skips = True
        self.function.__code__ = code

    def _decide(self, skips: bool) -> None:
        """Decide which of the next calls are timed; `skips` says what the caller did."""
        try:
            if self._original is None or skips is not self._skips or not self._lock.acquire(False):
                return  # another thread has decided, or the profile has ended
            try:
                if not skips and self._is_short():
                    self._time_some()
                else:
                    self._time_all(COUNTED_DOWN)
            finally:
                self._lock.release()
        except Exception:  # such as a RecursionError: the call that was timed does not fail
            return

    def _is_short(self) -> bool:
        events = map(Event._make, itertools.islice(reversed(self._log), _LAST))
        own = (event for event in events if event.probe == self.number)
        times = [event.end - event.start for event in itertools.islice(own, _FEW)]
        return len(times) == _FEW and statistics.median(times) < SHORT

    def _code(self, template: str, ends: str = NEVER, weight: int = 1) -> CodeType:
        """Return code from a template for the place of the function's own."""
        own = self._original
        assert own is not None
        is_described = self._values["<describe>"] is not None
        code = _code(
            _parameters(own), own.co_freevars, template, ends, self.number, callable(self.name),
            is_described,
        )  # fmt: skip
        return self._filled(code, weight).replace(co_name=own.co_name)

    def _filled(self, code: CodeType, weight: int = 1) -> CodeType:
        """Return code with values for the texts in angle brackets."""
        known = {**self._values, "<weight>": weight}
        consts = (known.get(v, v) if type(v) is str else v for v in code.co_consts)
        return code.replace(co_consts=tuple(consts))


class CallProbe(Probe):
    """A probe of calling instances of a class whose `__call__` is not written in Python.

    While a profile runs, the class has a `__call__` that is. All calls are timed.
    """

    def __init__(self, cls: type, name: Namer, category: str) -> None:
        self._inherited: Callable[..., Any] = cls.__call__

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        assert isinstance(call, FunctionType)
        super().__init__(call, name, category, False)
        self._cls = cls

    def original(self) -> Callable[..., Any]:
        """Return the compiled `__call__`."""
        return self._inherited

    def start(self, log: Log, describe: Describe | None, every_call: bool) -> None:
        """Log the calls of instances from now on."""
        super().start(log, describe, every_call)
        setattr(self._cls, "__call__", self.function)  # noqa: B010 (mypy knows no such slot)

    def stop(self) -> int:
        """Give the class its own `__call__` back."""
        if "__call__" in vars(self._cls):
            delattr(self._cls, "__call__")
        self.function.__code__ = _calling(self._inherited)  # for those who are just calling it
        self._original = None
        return super().stop()


def _calling(function: Callable[..., Any]) -> CodeType:
    """Return the code of a function that calls another one."""
    source = 'def call(*args, **kwargs):\n    f = "<f>"\n    return f(*args, **kwargs)\n'
    scope: dict[str, Any] = {}
    exec(compile(source, "<tapegrad probe>", "exec"), scope)
    code: CodeType = scope["call"].__code__
    return code.replace(
        co_consts=tuple(function if value == "<f>" else value for value in code.co_consts)
    )


def _weights() -> list[list[int]]:
    """Return distances between timed calls, of which a random one is timed in each period."""
    draw = random.Random(0)
    found = []
    for _ in range(8):
        places = [k * PERIOD + draw.randrange(PERIOD) for k in range(_PERIODS)]
        found.append([b - a for a, b in itertools.pairwise([-1, *places])])
    return found


_WEIGHTS = _weights()
Parameters = tuple[tuple[str, ...], int, int, bool, bool]


def _parameters(code: CodeType) -> Parameters:
    """Return names, number of positional and of positional-only ones, and whether * and **."""
    count = code.co_argcount + code.co_kwonlyargcount
    has_args = bool(code.co_flags & inspect.CO_VARARGS)
    has_kwargs = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: count + has_args + has_kwargs]
    return names, code.co_argcount, code.co_posonlyargcount, has_args, has_kwargs


def _arguments(parameters: Parameters) -> tuple[list[str], list[str], list[str]]:
    """Return texts that declare parameters, pass them on, and make a tuple of their values."""
    names, count, positional_only, has_args, has_kwargs = parameters
    positional, rest = [*names[:count]], [*names[count:]]
    kwargs = [rest.pop()] if has_kwargs else []
    args = [f"*{rest.pop()}"] if has_args else []
    declared = [*positional]
    if positional_only:
        declared.insert(positional_only, "/")
    declared += args or (["*"] if rest else [])
    declared += [*rest, *(f"**{name}" for name in kwargs)]
    passed = [*positional, *args, *(f"{name}={name}" for name in rest)]
    passed += [f"**{name}" for name in kwargs]
    return declared, passed, [*positional, *args, *rest, *(f"*{k}.values()" for k in kwargs)]


@functools.cache
def _code(
    parameters: Parameters,
    free: tuple[str, ...],
    template: str,
    ends: str,
    number: int,
    is_named: bool,
    is_described: bool,
) -> CodeType:
    """Return the code of a template; the function's own defaults apply to its parameters.

    It has the free variables of the function, though it does not use them: Python reads them when
    it shows the local variables of an error.
    """
    declared, passed, values = _arguments(parameters)
    every = f"({''.join(f'{value}, ' for value in values)})"
    source = template.format(
        parameters=", ".join(declared),
        passed=", ".join(passed),
        ends=ends,
        skips=ends == WAS_LONG,
        number=number,
        name=f"_name({every})" if is_named else "None",
        detail=f"_describe({every}, _result)" if is_described else "None",
    )
    if free:
        source = textwrap.indent(f"{source}    {', '.join(free)}\n", "    ")
        source = f"def outer({', '.join(free)}):\n{source}"
    code: Any = compile(source, "<tapegrad probe>", "exec")
    for _ in range(1 + bool(free)):
        code = next(value for value in code.co_consts if type(value) is CodeType)
    assert code.co_freevars == free
    return code


@functools.cache
def _merged(code: CodeType) -> CodeType | None:
    """Return `_SAMPLED` and the original in one, which saves a call, if its source is generated."""
    if not code.co_filename.startswith("<"):
        return None
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    _, passed, _ = _arguments(_parameters(code))
    sampled: Any = ast.parse(_SAMPLED.format(parameters="", passed=", ".join(passed))).body[0]
    (function,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.lineno == code.co_firstlineno
    )
    function.body[:0] = sampled.body[:2]
    tree.body = [function]
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), code.co_filename, "exec"), scope)
    return scope[function.name].__code__


def _with_code(function: FunctionType, code: CodeType) -> FunctionType:
    """Return a copy of a function with other code."""
    made = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


PROBES: list[Probe] = []
_STARTED: list[tuple[Log, Describe | None, bool]] = []  # the running profile


def add_probe(
    function: Any,
    name: str | Namer,
    category: str = "op",
    is_leaf: bool = False,
    describe: Describe | None = None,
) -> None:
    """Let profiles time a function; see `Probe`."""
    _add(Probe(function, name, category, is_leaf, describe))


def add_call_probe(cls: type, name: Namer, category: str) -> None:
    """Let profiles time calls of instances of a class; see `CallProbe`."""
    _add(CallProbe(cls, name, category))


def _add(added: Probe) -> None:
    PROBES.append(added)
    for started in _STARTED:
        added.start(*started)


def probe(
    name: str | Namer, category: str = "op", describe: Describe | None = None
) -> Callable[[F], F]:
    """Let profiles time the decorated function; see `Probe`."""

    def decorate(function: F) -> F:
        add_probe(function, name, category, describe=describe)
        return function

    return decorate


def start(log: Log, describe: Describe | None, every_call: bool) -> None:
    """Log the calls of all functions with probes, also of those that are imported later.

    Parameters
    ----------
    log
        Gets the fields of events.
    describe
        Called with the arguments and the result of each timed call, after its end.
    every_call
        Time every call, also of short functions.
    """
    _STARTED.append((log, describe, every_call))
    for each in PROBES:
        each.start(log, describe, every_call)


def stop() -> dict[int, int]:
    """Stop logging; return the number of calls after the last event, by the number of the probe.

    It may be called again after an interrupt.
    """
    _STARTED.clear()
    return {each.number: each.stop() for each in PROBES}
