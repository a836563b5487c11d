"""Probes: functions whose calls a profile times, at no cost while none runs.

Every reference to an op is to one function object, in namespaces, classes and other modules.
Therefore a running profile replaces the *code* of that object, and puts it back afterwards; the
function itself checks nothing. The replacement is a wrapper that calls a copy of the original.

To read the clock twice and keep an event takes as long as a small op. Functions that are called
often and return soon are therefore timed in one of `PERIOD` calls, at random, and such an event
stands for all calls of its period: it has that *weight*. The weights of a function's events add up
to the number of its calls. Functions that may call others with probes are always timed, since their
events would not know which of the others are part of them.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import operator
import random
import statistics
from _thread import get_ident
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

PERIOD = 64
SHORT = 10_000  # ns; longer calls are all timed
TRIAL = 256  # calls until it is decided which of the next ones are timed
_LAST = 256  # events that this is decided by
_KINDS, _BLOCKS = 8, 64  # number of patterns, and of periods of each


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
_WRAPPER = """
def wrapper({parameters}):
    _timed = next("<functions>")
    if _timed is not None:
        return _timed({passed})
    _original = "<original>"
    return _original({passed})
"""
_TIMED = """
def timed({parameters}):
    _append = "<append>"
    _describe = "<describe>"
    _name = "<name>"
    _now = "<now>"
    _original = "<original>"
    _thread = "<thread>"
    _start = _now()
    try:
        _result = _original({passed})
    except BaseException:
        _append(({number}, {weight}, _thread(), _start, _now(), {name}, None))
        raise
    _append(({number}, {weight}, _thread(), _start, _now(), {name}, {detail}))
    return _result
"""


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
        Whether it calls no other function with a probe.
    """

    def __init__(
        self, function: FunctionType, name: str | Namer, category: str, is_leaf: bool
    ) -> None:
        self.is_leaf = is_leaf
        self.function = function
        self.name = name
        self.category = category
        self.number = len(PROBES)
        self._original: CodeType | None = None
        self._values: dict[str, Any] = {}  # of the texts in angle brackets
        self._log: Log = []
        self._every_call = False
        self._begun = 0  # calls of all patterns so far
        self._pattern: Iterator[Any] = iter(())  # what times the next calls, None for most
        self._all: Any = None  # times a call
        self._some: list[Any] = []  # one of each period times its call

    def original(self) -> Callable[..., Any]:
        """Return what the function does while it has the code of a wrapper."""
        assert self._original is not None
        return _with_code(self.function, self._original)

    def start(self, log: Log, describe: Describe | None, every_call: bool) -> None:
        """Log the calls of the function from now on."""
        self._log, self._every_call = log, every_call
        self._begun, self._pattern, self._all, self._some = 0, iter(()), None, []
        self._values = {
            "<append>": log.append,
            "<describe>": describe,
            "<functions>": itertools.chain.from_iterable(iter(self._next_pattern, None)),
            "<name>": self.name,
            "<now>": perf_counter_ns,
            "<thread>": get_ident,
        }
        self._original = self.function.__code__
        self._values["<original>"] = self.original()
        self.function.__code__ = self._code(_WRAPPER)

    def stop(self) -> int:
        """Put the code of the function back; return the number of calls."""
        if self._original is not None:
            self.function.__code__ = self._original
            self._original = None
        self._values, self._all, self._some = {}, None, []
        return self._begun - operator.length_hint(self._pattern)

    def _code(self, template: str, weight: int = 1) -> CodeType:
        """Return code from a template for the place of the function's own."""
        assert self._original is not None
        own = self._original
        is_described = self._values["<describe>"] is not None
        code = _code(
            _parameters(own), template, weight, self.number, callable(self.name), is_described
        )
        return self._filled(code).replace(co_name=own.co_name, co_freevars=own.co_freevars)

    def _filled(self, code: CodeType) -> CodeType:
        """Return code with values for the texts in angle brackets."""
        known = self._values
        consts = (known.get(v, v) if type(v) is str else v for v in code.co_consts)
        return code.replace(co_consts=tuple(consts))

    def _next_pattern(self) -> Iterator[Any]:
        """Return what times the next calls; most functions get here never or once."""
        if self._all is None:
            self._all = _with_code(self.function, self._code(_TIMED))
        if self._every_call or not (self.is_leaf and self._is_short()):
            self._pattern = itertools.repeat(self._all, TRIAL)
        else:
            if not self._some:
                timed = _with_code(self.function, self._code(_TIMED, PERIOD))
                pattern = _SOME[self.number % _KINDS]
                self._some = [timed if is_timed else None for is_timed in pattern]
                assert self._original is not None
                merged = _merged(self._original)
                if merged is not None:  # which saves a call
                    self.function.__code__ = self._filled(merged)
            self._pattern = iter(self._some)
        self._begun += operator.length_hint(self._pattern)
        return self._pattern

    def _is_short(self) -> bool:
        """Whether the last calls were short."""
        events = (Event(*entry) for entry in self._log[-_LAST:]) if self._begun else ()
        times = [event.end - event.start for event in events if event.probe == self.number]
        return len(times) >= 4 and statistics.median(times) < SHORT


class CallProbe(Probe):
    """A probe of calling instances of a class whose `__call__` is not written in Python.

    While a profile runs, the class has a `__call__` that is; see `Probe` for the parameters.
    """

    def __init__(self, cls: type, name: str | Namer, category: str, is_leaf: bool) -> None:
        self._inherited: Callable[..., Any] = cls.__call__

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        assert isinstance(call, FunctionType)
        super().__init__(call, name, category, is_leaf)
        self._cls = cls

    def original(self) -> Callable[..., Any]:
        """Return the compiled `__call__`."""
        return self._inherited

    def start(self, log: Log, describe: Describe | None, every_call: bool) -> None:
        """Log the calls of instances from now on."""
        super().start(log, describe, every_call)
        setattr(self._cls, "__call__", self.function)  # noqa: B010 (mypy knows no such slot)

    def stop(self) -> int:
        """Give the class its own `__call__` back; return the number of calls."""
        if "__call__" in vars(self._cls):
            delattr(self._cls, "__call__")
        return super().stop()


def _patterns() -> list[list[bool]]:
    """Return patterns of calls in which one of each period is timed, a random one."""
    draw = random.Random(0)
    places = [[draw.randrange(PERIOD) for _ in range(_BLOCKS)] for _ in range(_KINDS)]
    return [[k == place for place in some for k in range(PERIOD)] for some in places]


_SOME = _patterns()


def _parameters(code: CodeType) -> tuple[tuple[str, ...], int, int, bool, bool]:
    """Return names, number of positional and of positional-only ones, and whether * and **."""
    count = code.co_argcount + code.co_kwonlyargcount
    has_args = bool(code.co_flags & inspect.CO_VARARGS)
    has_kwargs = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: count + has_args + has_kwargs]
    return names, code.co_argcount, code.co_posonlyargcount, has_args, has_kwargs


@functools.cache
def _code(
    parameters: tuple[tuple[str, ...], int, int, bool, bool],
    template: str,
    weight: int,
    number: int,
    is_named: bool,
    is_described: bool,
) -> CodeType:
    """Return the code of a template; the function's own defaults apply to its parameters."""
    names, count, positional_only, has_args, has_kwargs = parameters
    declared, given = [*names[:count]], [*names[:count]]
    if positional_only:
        declared.insert(positional_only, "/")
    rest = [*names[count:]]
    kwargs = rest.pop() if has_kwargs else None
    if has_args:
        args = f"*{rest.pop()}"
        declared.append(args)
        given.append(args)
    elif rest:
        declared.append("*")
    declared += rest
    if kwargs is not None:
        declared.append(f"**{kwargs}")
    every = "".join(f"{name}, " for name in given)
    source = template.format(
        parameters=", ".join(declared),
        passed=_passed(parameters),
        weight=weight,
        number=number,
        name=f"_name(({every}))" if is_named else "None",
        detail=f"_describe(({every}), _result)" if is_described else "None",
    )
    scope: dict[str, Any] = {}
    exec(compile(source, "<tapegrad probe>", "exec"), scope)
    code: CodeType = next(v for v in scope.values() if type(v) is FunctionType).__code__
    return code


@functools.cache
def _merged(code: CodeType) -> CodeType | None:
    """Return the code of a wrapper and of the original in one, if its source was generated."""
    if not code.co_filename.startswith("<"):
        return None
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    wrapper = ast.parse(_WRAPPER.format(parameters="", passed=_passed(_parameters(code))))
    (function,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name
    )
    body: Any = wrapper.body[0]
    function.body[:0] = body.body[:2]
    tree.body = [function]
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), code.co_filename, "exec"), scope)
    found: CodeType = scope[code.co_name].__code__
    return found


def _passed(parameters: tuple[tuple[str, ...], int, int, bool, bool]) -> str:
    """Return the arguments of a call that passes on the parameters of a function."""
    names, count, _, has_args, has_kwargs = parameters
    rest = [*names[count:]]
    kwargs = [f"**{rest.pop()}"] if has_kwargs else []
    args = [f"*{rest.pop()}"] if has_args else []
    return ", ".join([*names[:count], *args, *(f"{name}={name}" for name in rest), *kwargs])


def _with_code(function: FunctionType, code: CodeType) -> FunctionType:
    """Return a copy of a function with other code."""
    made = FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


PROBES: list[Probe] = []
_STARTED: list[tuple[Log, Describe | None, bool]] = []  # the running profile


def add_probe(
    function: Any, name: str | Namer, category: str = "op", is_leaf: bool = False
) -> None:
    """Let profiles time a function."""
    _add(Probe(function, name, category, is_leaf))


def add_call_probe(
    cls: type, name: str | Namer, category: str = "op", is_leaf: bool = False
) -> None:
    """Let profiles time calls of instances of a class, whose `__call__` is compiled."""
    _add(CallProbe(cls, name, category, is_leaf))


def _add(added: Probe) -> None:
    PROBES.append(added)
    for started in _STARTED:
        added.start(*started)


def probe(name: str | Namer, category: str = "op") -> Callable[[F], F]:
    """Let profiles time the decorated function."""

    def decorate(function: F) -> F:
        add_probe(function, name, category)
        return function

    return decorate


def start(log: Log, describe: Describe | None, every_call: bool) -> None:
    """Log the calls of all functions with probes, also of those that are imported later.

    Parameters
    ----------
    log
        Gets the fields of events.
    describe
        Called with the positional arguments and the result of each timed call, after its end.
    every_call
        Time every call, also of short functions.
    """
    _STARTED.append((log, describe, every_call))
    for each in PROBES:
        each.start(log, describe, every_call)


def stop() -> dict[int, int]:
    """Stop logging; return the number of calls by the number of the probe."""
    _STARTED.clear()
    return {each.number: each.stop() for each in PROBES}
