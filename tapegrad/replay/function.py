"""`jit`: functions of tensors that are recorded once per kind of arguments, and run compiled."""

from __future__ import annotations

import functools
import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.core.errors import NumbaError

from tapegrad.calls import Transformed
from tapegrad.cuda.array import HOST
from tapegrad.eager.batched import BatchError, batched, innermost, is_at, lowered
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.lines import level_of_user
from tapegrad.eager.modes import MODE
from tapegrad.eager.traced import RecordingError
from tapegrad.func import grad, value_and_grad, vmap
from tapegrad.pickling import reduced
from tapegrad.pytrees import holds_tensor, tree
from tapegrad.replay.arguments import Arguments
from tapegrad.replay.compiled import as_given, as_tensors, is_tracked
from tapegrad.replay.direct import DirectCall
from tapegrad.replay.drawing import drawn
from tapegrad.replay.errors import OpByOpWarning
from tapegrad.replay.forms import OtherShapeError
from tapegrad.replay.guards import guard_of
from tapegrad.replay.plan import Plan
from tapegrad.replay.program import key_of
from tapegrad.replay.recorded import Recorded
from tapegrad.transform.eager_calls import Kind, Kinds, typing_of
from tapegrad.transform.errors import TransformError

_GRADIENTS = (grad, value_and_grad)
_MANY = 8  # recordings of a function, after which the next one is worth a warning
_MANY_CALLS = 64  # kinds of arguments that go to compiled code directly


def _shown(part: Any) -> str:
    """Return what a part of a key says of an argument."""
    if isinstance(part, tuple) and len(part) > 2 and isinstance(part[1], np.dtype):
        return f"an array of shape {part[0]} and dtype {part[1]}"
    return repr(part[1] if isinstance(part, tuple) and len(part) == 2 else part)


class CacheInfo(NamedTuple):
    """How often a jitted function was called with known kinds of arguments, and with new ones.

    `op_by_op` is how many of the recordings, `currsize` in all, are not all compiled.
    """

    hits: int
    misses: int
    currsize: int
    op_by_op: int


class JittedFunction:
    """A function of tensors that runs compiled (see `jit`)."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        is_strict: bool = False,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.is_strict = is_strict
        self._has_warned = False  # of what runs op by op
        self.static_argnums = static_argnums
        self.static_argnames = static_argnames
        self._known: dict[Any, Recorded] = {}
        self._direct: list[DirectCall] = []  # the latest first
        self._of_batches: dict[Any, _OfItems] = {}
        self._transforms: dict[Any, _TransformOfJitted] = {}
        self._hits = self._misses = 0

    def __repr__(self) -> str:
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return f"<jitted {getattr(function, '__qualname__', function)}>"

    @functools.cached_property
    def tapegrad_overloaded(self) -> Any:
        """What lets compiled functions call this one."""
        return typing_of(self, self.function, self._known_result)

    @property
    def _numba_type_(self) -> Any:
        return self.tapegrad_overloaded.numba_type

    def _known_result(self, kinds: Kinds) -> Kind | None:
        """Return the dtype and dimensions of the result for those of arguments, if recorded."""
        found = {recorded.result_of.get(kinds) for recorded in self._known.values()} - {None}
        return found.pop() if len(found) == 1 else None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function; it is recorded and compiled when needed."""
        if MODE.special and not MODE.is_plain:
            if MODE.thread.levels and MODE.thread.trace is None and MODE.thread.dual is None:
                return self._of_items(args, kwargs)
            return self.function(*args, **kwargs)
        for call in self._direct:
            if (leaves := call.guard(args, kwargs)) is not None:
                self._hits += 1
                return call.value(leaves)
        arguments = self._arguments(args, kwargs)
        recorded = self._recorded(arguments)
        self._note_slow(recorded)
        found = recorded.run(arguments)
        self._note_slow(recorded)
        self._note_direct(args, kwargs, arguments)
        return found

    def _note_slow(self, recorded: Recorded) -> None:
        """Warn of what runs op by op, or refuse it.

        Raises
        ------
        RecordingError
            If that is not allowed.
        """
        region = recorded.region
        if region is not None and not region.in_python:
            return
        if not self.is_strict and self._has_warned:
            return
        slow = recorded.slow
        if slow and self.is_strict:
            raise RecordingError(f"jit: {self!r} {slow}. With strict=True, that is refused")
        if slow:
            self._has_warned = True
            warnings.warn(f"jit: {self!r} {slow}", OpByOpWarning, stacklevel=level_of_user())

    def _note_direct(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments
    ) -> DirectCall | None:
        """Let later calls with such arguments go to compiled code; return what takes them there."""
        recorded = self._known[arguments.key]
        region = recorded.region
        if region is None or recorded.captured() or len(self._direct) == _MANY_CALLS:
            return None
        if region.decides_by_values:  # it may turn out that the function runs op by op
            return None
        guard = guard_of(args, kwargs, self.static_argnums, self.static_argnames)
        if guard is None:
            return None
        call = DirectCall(recorded, region, arguments, guard)
        self._direct = [call, *self._direct]  # other threads may be looking
        return call

    def _of_items(self, args: Any, kwargs: Any) -> Any:
        """Call a recording of the function for all items of the innermost batch."""
        arguments = self._arguments(args, kwargs)
        level = innermost(arguments.leaves)
        if level is None or level.randomness == "same":  # which is about parts of one batch
            return self.function(*args, **kwargs)
        values, flags = lowered(arguments.leaves, level)
        key = arguments.key, tuple(flags), level.randomness
        if key not in self._of_batches:
            axes = tuple(0 if flag else None for flag in flags)
            self._of_batches[key] = _OfItems(self, arguments, axes, level.randomness)
        over = self._of_batches[key]
        outer = tuple(other for other in MODE.thread.levels if other.depth < level.depth)
        try:
            found = MODE.with_levels(outer, over.jitted, *values)
        except BatchError:  # it reads a batched tensor that is no argument
            return self.function(*args, **kwargs)
        leaves, build = tree(found, "jit: the result")
        return build(
            [
                batched(leaf, level) if is_own else as_tensor(leaf)[0]
                for leaf, is_own in zip(leaves, over.is_own, strict=True)
            ]
        )

    def __reduce__(self) -> Any:
        options = self.static_argnums, self.static_argnames, self.is_strict
        return reduced(self, JittedFunction, self.function, *options)

    def _arguments(self, args: Any, kwargs: Any) -> Arguments:
        return Arguments(args, kwargs, self.static_argnums, self.static_argnames)

    def _recorded(self, arguments: Arguments) -> Recorded:
        found = self._known.get(arguments.key)
        if found is not None and found.fits():
            self._hits += 1
            return found
        self._misses += 1
        found = Recorded(self.function, repr(self), arguments)
        if len(self._known) == _MANY and arguments.key not in self._known:
            self._warn_of_many(arguments)
        self._known[arguments.key] = found
        return found

    def _warn_of_many(self, arguments: Arguments) -> None:
        before = next(reversed(self._known))
        pairs = zip(before, arguments.key, strict=False)
        old, new = next((pair for pair in pairs if pair[0] != pair[1]), (before, arguments.key))
        warnings.warn(
            f"{self!r} is recorded and compiled for the {_MANY + 1}th time: the last time for "
            f"{_shown(new)}, before for {_shown(old)}. Arrays of equal shapes and dtypes, and "
            "numbers that are not static, do not need a new recording",
            stacklevel=level_of_user(),
        )

    def with_compiled_gradient(
        self, otherwise: Callable[..., Any], argnums: int | Sequence[int], with_value: bool
    ) -> Callable[..., Any]:
        """Return a function that computes the value and gradient by compiled code.

        Parameters
        ----------
        otherwise
            Computes them for all other arguments.
        argnums
            Positions of the differentiated arguments.
        with_value
            Whether the value is used; on a device, it is None otherwise.
        """
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        is_one = isinstance(argnums, int)
        chosen = argnums if isinstance(argnums, int) else numbers

        def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
            if MODE.special and not MODE.is_plain:
                return otherwise(*args, **kwargs)
            for call in self._direct:
                if (leaves := call.guard(args, kwargs)) is not None:
                    if (gradient := call.gradients.get(chosen)) is None:
                        break
                    self._hits += 1
                    return gradient(leaves)
            else:
                call = None
            arguments = self._arguments(args, kwargs)
            is_on_device = arguments.devices not in ([], [HOST])
            if arguments.has_tensors and not is_on_device:
                if any(map(is_tracked, arguments.leaves)):
                    return otherwise(*args, **kwargs)
            recorded = self._recorded(arguments)
            self._note_slow(recorded)
            places = arguments.places(numbers)
            if is_on_device:
                made = None
                if places is not None:
                    made = recorded.device_gradient(arguments, places, with_value)
                if made is None:
                    return otherwise(*args, **kwargs)
                gradients = arguments.like_arguments(numbers, made[1:])
                return made[0], gradients[0] if is_one else gradients
            region = recorded.region
            if region is None or places is None or not recorded.is_single:
                return otherwise(*args, **kwargs)
            derivative = region.gradient(places)
            if derivative is None:
                return otherwise(*args, **kwargs)
            try:
                value, found = derivative(*map(as_given, arguments.leaves), *region.constants)
            except (TransformError, NumbaError, OtherShapeError) as error:
                recorded.run_op_by_op(f"its gradient: {error}")
                self._note_slow(recorded)
                return otherwise(*args, **kwargs)
            if (call := call or self._note_direct(args, kwargs, arguments)) is not None:
                call.add_gradient(derivative, places, chosen)
            value, found = region.as_results(value, found, places)
            if arguments.has_tensors:
                value, found = as_tensors(value, found)
            gradients = arguments.like_arguments(numbers, found)
            return value, gradients[0] if is_one else gradients

        return value_and_gradient

    def compiled_transform(
        self, op_by_op: Callable[..., Any], *transforms: Any
    ) -> _TransformOfJitted:
        """Return a function that computes a transform of this one by compiled code.

        Parameters
        ----------
        op_by_op
            Computes it from tensors, and for arguments that are tensors with a history.
        *transforms
            The transform and its other arguments, and those around it: equal ones share recordings.
        """
        key = key_of(transforms)
        if key not in self._transforms:
            statics = self.static_argnums, self.static_argnames
            made = _TransformOfJitted(op_by_op, *statics, self.is_strict)
            functools.update_wrapper(made, self, updated=())
            self._transforms[key] = made
        return self._transforms[key]

    def inspect(self, *args: Any, **kwargs: Any) -> str:
        """Return what runs for some arguments: the compiled function, or why there is none.

        Parameters
        ----------
        *args, **kwargs
            Arguments of a call.
        """
        return self._tried(args, kwargs).text()

    def draw(self, *args: Any, **kwargs: Any) -> Any:
        """Draw the recorded values, those that one loop computes in a frame.

        Parameters
        ----------
        *args, **kwargs
            Arguments of a call.

        Returns
        -------
        graphviz.Digraph
            Displayed in notebooks; ``render(path)`` writes a file.

        Raises
        ------
        ImportError
            If graphviz is not installed.
        ValueError
            If nothing is compiled, or there is too much to draw.
        """
        recorded = self._tried(args, kwargs)
        if recorded.plan is None:
            raise ValueError(f"draw: {self!r} runs op by op: {recorded.reason}")
        if not isinstance(recorded.plan, Plan):
            raise ValueError("draw: loops are drawn, and on a device there are none; give arrays")
        return drawn(recorded.plan)

    def _tried(self, args: Any, kwargs: Any) -> Recorded:
        """Return a recording, after a call: it may turn out that it cannot be compiled."""
        arguments = self._arguments(args, kwargs)
        recorded = self._recorded(arguments)
        if recorded.plan is not None:
            recorded.run(arguments)
        return recorded

    def cache_info(self) -> CacheInfo:
        """Return how often recordings were found, and how many there are."""
        slow = sum(bool(recorded.slow) for recorded in self._known.values())
        return CacheInfo(self._hits, self._misses, len(self._known), slow)

    def clear_cache(self) -> None:
        """Forget all recordings: the function is recorded again when it is called."""
        self._known.clear()
        self._direct = []
        self._of_batches.clear()
        for jitted in self._transforms.values():
            jitted.clear_cache()
        self._hits = self._misses = 0


class _TransformOfJitted(JittedFunction):
    """A transform, of which calls with tensors that have a history run op by op."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if holds_tensor((args, kwargs)):
            arguments = self._arguments(args, kwargs)
            if arguments.devices != [HOST] or any(map(is_tracked, arguments.leaves)):
                return self.function(*args, **kwargs)
        return super().__call__(*args, **kwargs)


class _OfItems:
    """A jitted function of the items of a batch, for arguments of one kind.

    Attributes
    ----------
    jitted
        Takes the leaves of the arguments, with an axis of items.
    is_own
        Whether the items have results of their own, for each leaf of the result.
    """

    def __init__(
        self,
        single: JittedFunction,
        arguments: Arguments,
        axes: tuple[int | None, ...],
        randomness: str,
    ) -> None:
        self.is_own: list[bool] = []
        function = single.function

        def flat(*leaves: Any) -> Any:
            args, kwargs = arguments.with_leaves(leaves)
            levels = MODE.thread.levels  # none in a loop over the items
            found = function(*args, **kwargs)
            results, _ = tree(found, "jit: the result")
            self.is_own = [not levels or is_at(leaf, levels[-1]) for leaf in results]
            return found

        over = vmap(functools.wraps(function)(flat), axes, 0, randomness)
        self.jitted = JittedFunction(over, (), (), single.is_strict)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _positions(given: Any) -> list[int]:
    """Return `static_argnums` as a list."""
    try:
        return [*map(operator.index, [given] if hasattr(given, "__index__") else given)]
    except TypeError:
        raise TypeError(
            f"jit: static_argnums is the number of an argument or several of them, got {given!r}; "
            "names are given as static_argnames"
        ) from None


def _check_positions(numbers: list[int], parameters: list[str], has_others: bool) -> None:
    """Raise if there is no argument at a position."""
    count = len(parameters)
    for number in numbers:
        if not -count <= number < count and not (has_others and number >= 0):
            raise ValueError(
                f"jit: static_argnums {number} is out of range for the positional arguments of the "
                f"function, which are {parameters}"
            )


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    strict: bool = False,
) -> Any:
    """Compile a function of tensors: it is recorded once, and runs as compiled loops.

    The first call with arguments of new shapes, dtypes or static values runs the function on
    tensors without values, records its ops, and compiles them. Later calls run compiled code only.

    Parameters
    ----------
    function
        Function of arrays, tensors, numbers, and nested lists, tuples and dicts of these. It must
        have no other effect than its result, and must not depend on values other than by ops.
    static_argnums, static_argnames
        Positions and names of arguments that are constants: hashable, with a recording for each
        value. Strings, booleans, None and functions are static anyway.
    strict
        Whether to refuse what would run op by op. By default, an `OpByOpWarning` names it, once for
        the function; functions that are Python by nature (a `Function`, random numbers) are not
        meant.

    Returns
    -------
    callable
        It returns tensors if an argument is a tensor, otherwise arrays and numbers. Its method
        ``inspect(...)`` shows what runs for some arguments; ``cache_info()`` and ``clear_cache()``
        are about the recordings.

    Raises
    ------
    RecordingError
        When called for the first time, if the function depends on values in a way that cannot be
        recorded, for example by an ``if`` on a tensor; with `strict`, if something is not compiled.
    TypeError
        When called, if an argument is neither static nor made of arrays and numbers.

    Notes
    -----
    Arrays from outside, and tensors that do not require grad, are copied when the function is
    recorded; later changes have no effect. Tensors that require grad are read in each call, and
    gradients flow to them. What has no compiled form (a `Function`, random numbers, complex
    numbers) is computed in Python, between compiled parts. A function that writes to its arguments,
    or whose shapes depend on values, runs op by op, as without `jit`.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> @tg.jit
    ... def loss(w, x, y):
    ...     return tg.mean((tg.tanh(x @ w) - y) ** 2)
    >>> w, x, y = np.array([0.5, -1.0]), np.eye(2), np.zeros(2)
    >>> loss(w, x, y).round(4)
    np.float64(0.3968)
    >>> tg.grad(loss)(w, x, y).round(4)
    array([ 0.3634, -0.3199])
    """
    numbers = _positions(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    def made(function: Callable[..., Any]) -> Any:
        if not callable(function):
            raise TypeError(f"jit: expected a function, got {type(function).__name__}")
        if isinstance(function, JittedFunction):
            if not numbers and not names and not strict:
                return function
            more = made(function.function)
            return JittedFunction(
                function.function,
                tuple(sorted({*more.static_argnums, *function.static_argnums})),
                tuple(sorted({*more.static_argnames, *function.static_argnames})),
                strict or function.is_strict,
            )
        if isinstance(function, Transformed):
            transform, (inner, *recipe) = function.recipe
            if transform in _GRADIENTS:  # of the function that is recorded
                return transform(made(inner), *recipe)
        try:
            known = [*inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):
            known = []
        parameters = [parameter.name for parameter in known if parameter.kind in _POSITIONAL]
        all_names = [parameter.name for parameter in known]
        takes_others = any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in known)
        if known and not takes_others and (unknown := set(names).difference(all_names)):
            raise ValueError(
                f"jit: static_argnames {sorted(unknown)} are no arguments of the function, which "
                f"are {all_names}"
            )
        has_others = any(p.kind == p.VAR_POSITIONAL for p in known)
        if known:
            _check_positions(numbers, parameters, has_others)
        found = {n + len(parameters) if n < 0 else n for n in numbers}
        by_name = set(names)
        for name in names:
            if name in parameters:
                found.add(parameters.index(name))
        by_name |= {parameters[n] for n in found if n < len(parameters)}
        return JittedFunction(function, tuple(sorted(found)), tuple(sorted(by_name)), strict)

    return made if function is None else made(function)
