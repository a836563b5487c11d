"""`jit`: functions of tensors that are recorded once per kind of arguments, and run compiled."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.core.errors import NumbaError

from tapegrad.autograd.grad_mode import enable_grad
from tapegrad.calls import Transformed, plain
from tapegrad.cuda.array import HOST
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.modes import COMPUTE_ONLY, MODE, RECORD_OP
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.eager.traced import CAPTURED, Node, NotRecordedError, Traced, record
from tapegrad.func import grad, value_and_grad
from tapegrad.ops.op import refuse_masked
from tapegrad.pytrees import Build, settings, tree
from tapegrad.replay.compiled import Compiled, compiled_text
from tapegrad.replay.program import Program, key_of
from tapegrad.replay.writer import Writer
from tapegrad.transform.errors import TransformError

_PLAIN_ACTIONS = (RECORD_OP, COMPUTE_ONLY)


_STATIC = (bool, str, type(None))
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
    np.ufunc,
    np.dtype,
)


_GRADIENTS = (grad, value_and_grad)
_MOST_ITERATIONS = 1000  # of a Python loop, after which it is worth a warning
_MANY = 8  # recordings of a function, after which the next one is worth a warning


def _shown(part: Any) -> str:
    """Return what a part of a key says of an argument."""
    if isinstance(part, tuple) and len(part) > 2 and isinstance(part[1], np.dtype):
        return f"an array of shape {part[0]} and dtype {part[1]}"
    return repr(part[1] if isinstance(part, tuple) and len(part) == 2 else part)


class CacheInfo(NamedTuple):
    """How often a jitted function was called with known kinds of arguments, and with new ones."""

    hits: int
    misses: int
    currsize: int


class JittedFunction:
    """A function of tensors that runs compiled (see `jit`)."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.static_argnums = static_argnums
        self.static_argnames = static_argnames
        self._known: dict[Any, Compiled] = {}
        self._direct: dict[Any, Compiled] = {}  # for arrays and floats alone, by their kinds
        self._hits = self._misses = 0

    def __repr__(self) -> str:
        return f"<jitted {getattr(self.function, '__qualname__', self.function)}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled function; it is recorded and compiled when needed."""
        if not MODE.special and not kwargs:
            compiled = self._direct.get(_kinds(args))
            if compiled is not None:
                self._hits += 1
                value = compiled.value(*args, *compiled.constants)
                return value if compiled.scalar is None else compiled.scalar(value)
        if MODE.special and (MODE.thread.trace is not None or MODE.action() not in _PLAIN_ACTIONS):
            return self.function(*args, **kwargs)
        call = _Call(self, args, kwargs)
        compiled = self._compiled(call)
        if compiled.program is None:
            return call.eager()
        found = call.run(compiled)
        self._note_direct(args, kwargs, compiled)
        return found

    def _note_direct(self, args: Any, kwargs: Any, compiled: Compiled) -> None:
        """Let later calls with such arguments go to compiled code without a look at each."""
        is_plain = not (kwargs or self.static_argnums or compiled.captured)
        if compiled.program is not None and compiled.is_single and is_plain:
            if (kinds := _kinds(args)) is not None:
                self._direct[kinds] = compiled

    def __reduce__(self) -> tuple[Any, ...]:
        return JittedFunction, (self.function, self.static_argnums, self.static_argnames)

    def _compiled(self, call: _Call) -> Compiled:
        found = self._known.get(call.key)
        if found is not None:
            self._hits += 1
            if any(tensor._is_tracked for tensor in found.captured):
                found.run_op_by_op(CAPTURED)
            return found
        self._misses += 1
        found = call.record()
        if len(self._known) == _MANY:
            self._warn_of_many(call)
        self._known[call.key] = found
        return found

    def _warn_of_many(self, call: _Call) -> None:
        before = next(reversed(self._known))
        pairs = zip(before, call.key, strict=False)
        old, new = next((pair for pair in pairs if pair[0] != pair[1]), (before, call.key))
        warnings.warn(
            f"{self!r} is recorded and compiled for the {_MANY + 1}th time: the last time for "
            f"{_shown(new)}, before for {_shown(old)}. Arrays of equal shapes and dtypes, and "
            "numbers that are not static, do not need a new recording",
            stacklevel=4,
        )

    def with_compiled_gradient(
        self, otherwise: Callable[..., Any], argnums: int | Sequence[int]
    ) -> Callable[..., Any]:
        """Return a function that computes the value and gradient for arrays by compiled code.

        Parameters
        ----------
        otherwise
            Computes them for all other arguments.
        argnums
            Positions of the differentiated arguments.
        """
        numbers = [argnums] if isinstance(argnums, int) else [*argnums]
        is_one = isinstance(argnums, int)

        def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
            if not MODE.special and not kwargs:
                known = self._direct.get(_kinds(args))
                direct = None if known is None else known.direct_gradient(numbers, len(args))
                if known is not None and direct is not None:
                    self._hits += 1
                    value, found = direct(*args, *known.constants)
                    found = tuple([np.float64(g) if type(g) is float else g for g in found])
                    return np.float64(value), found[0] if is_one else found
            if MODE.special and (MODE.thread.trace is not None or MODE.action() != RECORD_OP):
                return otherwise(*args, **kwargs)
            call = _Call(self, args, kwargs)
            if call.has_tensors:
                return otherwise(*args, **kwargs)
            compiled = self._compiled(call)
            places = call.places(numbers)
            derivative = None if places is None else compiled.gradient(places)
            if derivative is None:
                return otherwise(*args, **kwargs)
            try:
                value, found = derivative(*call.arrays(), *compiled.constants)
            except (TransformError, NumbaError) as error:
                compiled.run_op_by_op(f"its gradient: {error}")
                return otherwise(*args, **kwargs)
            self._note_direct(args, kwargs, compiled)
            gradients = call.like_arguments(numbers, [*map(_of_output, found)])
            return _of_output(value), gradients[0] if is_one else gradients

        return value_and_gradient

    def inspect(self, *args: Any, **kwargs: Any) -> str:
        """Return what runs for some arguments: the compiled function, or why there is none.

        Parameters
        ----------
        *args, **kwargs
            Arguments of a call.
        """
        call = _Call(self, args, kwargs)
        compiled = self._compiled(call)
        if compiled.program is not None:
            call.run(compiled)  # it may turn out that it cannot be compiled
        if compiled.program is None:
            return f"op by op: {compiled.reason}\n"
        program = compiled.program
        head = (
            f"# {program.recorded} values recorded, {len(program.nodes)} computed, "
            f"{compiled.loops} loop nests\n"
        )
        return head + compiled.text

    def cache_info(self) -> CacheInfo:
        """Return how often recordings were found, and how many there are."""
        return CacheInfo(self._hits, self._misses, len(self._known))

    def clear_cache(self) -> None:
        """Forget all recordings: the function is recorded again when it is called."""
        self._known.clear()
        self._direct.clear()
        self._hits = self._misses = 0


class _Call:
    """The arguments of a call: arrays, and what does not change for a recording."""

    def __init__(
        self, jitted: JittedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.jitted = jitted
        self.leaves: list[Any] = []
        self.parts: list[tuple[Any, int, Build | None]] = []  # of arguments: leaves, or a value
        self.names: list[str] = []
        self.count = len(args)
        key: list[Any] = []
        for number, arg in enumerate(args):
            self._add(arg, number in jitted.static_argnums, key, f"argument {number}")
        for name, arg in kwargs.items():
            self.names.append(name)
            key.append(name)
            self._add(arg, name in jitted.static_argnames, key, f"argument {name!r}")
        self.has_tensors = any(isinstance(leaf, Tensor) for leaf in self.leaves)
        self.key = tuple(key)

    def _add(self, arg: Any, is_static: bool, key: list[Any], what: str) -> None:
        if is_static or type(arg) in _STATIC or isinstance(arg, _FUNCTIONS):
            try:
                hash(arg)
            except TypeError:
                raise TypeError(
                    f"jit: {what} is static and must be hashable, got {type(arg).__name__}; give a "
                    "tuple instead of a list or an array"
                ) from None
            key.append(key_of(arg))
            self.parts.append((arg, 0, None))
            return
        if type(arg) is np.ndarray:
            key.append((arg.shape, arg.dtype, _order(arg)))
            self.leaves.append(arg)
            self.parts.append((None, 1, _only))
            return
        leaves, build = tree(arg, f"jit: {what}")
        key.append(_structure(arg))
        kept = []
        for leaf in leaves:
            kind = type(leaf)
            if isinstance(leaf, Tensor):
                key.append((leaf.shape, leaf.dtype, leaf.device, _order(leaf._a)))
            elif isinstance(leaf, np.ndarray):
                refuse_masked(leaf)
                key.append((leaf.shape, leaf.dtype, _order(leaf)))
            elif kind is float or kind is int or isinstance(leaf, np.generic):
                key.append(kind)
            else:
                raise TypeError(
                    f"jit: {what} has type {kind.__name__}; expected arrays, numbers, and lists, "
                    "tuples and dicts of these: give others as static_argnums or static_argnames"
                )
            kept.append(leaf)
        self.leaves += kept
        self.parts.append((None, len(kept), build))

    def arguments(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with other leaves."""
        made: list[Any] = []
        start = 0
        for value, count, build in self.parts:
            if build is None:
                made.append(value)
            else:
                made.append(build([*leaves[start : start + count]]))
                start += count
        return made[: self.count], dict(zip(self.names, made[self.count :], strict=True))

    def places(self, numbers: Sequence[int]) -> tuple[int, ...] | None:
        """Return the leaves of some positional arguments, None if one has none or is missing."""
        found: list[int] = []
        for number in numbers:
            if not -self.count <= number < self.count:
                return None
            number %= self.count
            start = sum(count for _, count, _ in self.parts[:number])
            if not self.parts[number][1]:
                return None
            found += range(start, start + self.parts[number][1])
        return tuple(found) if len(set(found)) == len(found) else None

    def like_arguments(self, numbers: Sequence[int], leaves: list[Any]) -> tuple[Any, ...]:
        """Return values for the leaves of some arguments in the structure of these."""
        made, start = [], 0
        for number in numbers:
            _, count, build = self.parts[number % self.count]
            assert build is not None
            made.append(build(leaves[start : start + count]))
            start += count
        return tuple(made)

    def eager(self) -> Any:
        """Call the function itself, on tensors; return what a compiled call returns."""
        tensors = [as_tensor(x) if isinstance(x, np.ndarray) else x for x in self.leaves]
        args, kwargs = self.arguments(tensors)
        found = self.jitted.function(*args, **kwargs)
        leaves, build = tree(found, "jit: the result")
        return build([self._shown(leaf) for leaf in leaves])

    def _shown(self, leaf: Any) -> Any:
        """Return a result as a tensor if an argument is one, otherwise as an array or a number."""
        if isinstance(leaf, Tensor):
            return leaf if self.has_tensors or leaf._is_tracked else plain(leaf)
        if self.has_tensors and isinstance(leaf, (np.ndarray, np.generic, float)):
            return wrap(np.asarray(leaf))
        return leaf

    # -- recording ----------------------------------------------------------------------------

    def record(self) -> Compiled:
        """Record the function for arguments of this kind, and compile it."""
        compiled = Compiled()
        try:
            self._record(compiled)
        except NotRecordedError as error:
            compiled.run_op_by_op(str(error))
        return compiled

    def _record(self, compiled: Compiled) -> None:
        if any(isinstance(leaf, Tensor) and leaf.device != HOST for leaf in self.leaves):
            raise NotRecordedError("an argument is on a device")
        with enable_grad(), record() as trace:
            inputs = [_input(leaf) for leaf in self.leaves]
            traced = [*map(trace.tensor, inputs)]
            args, kwargs = self.arguments(traced)
            found = self.jitted.function(*args, **kwargs)
            if trace.failure is not None:
                raise trace.failure
            leaves, compiled.build = tree(found, "jit: the result")
            outputs: list[Node] = []
            for leaf in leaves:
                if type(leaf) is Traced and leaf.is_known():
                    compiled.results.append((None, wrap(leaf._a.copy())))
                elif type(leaf) is Traced:
                    compiled.results.append((len(outputs), None))
                    outputs.append(trace.node_of(leaf))
                elif isinstance(leaf, Tensor) and leaf._is_tracked:
                    raise NotRecordedError("a result is a tensor from outside that requires grad")
                else:
                    compiled.results.append((None, leaf))
        if not outputs:
            raise NotRecordedError("no result depends on the arguments")
        compiled.is_single = type(found) is Traced and not found.is_known()
        program = Program(trace.nodes, inputs, outputs)
        writer = Writer(program)
        if writer.most > _MOST_ITERATIONS:
            warnings.warn(
                f"{self.jitted!r} has {writer.most} equal iterations of a Python loop, which all "
                "are recorded; tapegrad.scan or fori_loop records one",
                stacklevel=6,
            )
        compiled.text, compiled.loops = writer.source(), writer.text.nests
        compiled.constants, compiled.captured = writer.text.constants, trace.captured
        compiled.set_function(compiled_text(compiled.text))
        compiled.program = program
        if compiled.is_single and not outputs[0].shape:
            compiled.scalar = outputs[0].dtype.type

    def arrays(self) -> list[Any]:
        """Return the leaves as compiled code takes them."""
        return [_as_given(leaf) for leaf in self.leaves]

    def run(self, compiled: Compiled) -> Any:
        """Call the compiled function, or run op by op if it cannot be compiled."""
        is_tracked = self.has_tensors and any(_is_tracked(leaf) for leaf in self.leaves)
        function = compiled.function if is_tracked else compiled.value
        args = [*self.arrays(), *compiled.constants]
        try:
            if is_tracked:
                compiled.check_backward(args)
            found = function(*args)
        except TransformError as error:
            compiled.run_op_by_op(str(error))
        except NumbaError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            compiled.run_op_by_op(f"numba: {' '.join(lines[1:3] or lines)}")
        if compiled.program is None:
            return self.eager()
        outputs = compiled.program.outputs
        values = [found] if len(outputs) == 1 else found
        made = []
        for place, constant in compiled.results:
            value = _copied(constant)
            if place is not None:
                value, node = values[place], outputs[place]
                if not node.shape and not isinstance(value, Tensor):
                    value = node.dtype.type(value)
            made.append(self._shown(value))
        return compiled.build(made)


def _kinds(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the kinds of contiguous arrays and floats; None if there are other arguments."""
    found: list[Any] = []
    for arg in args:
        kind = type(arg)
        if kind is np.ndarray and arg.flags.c_contiguous and arg.ndim:
            found.append((arg.shape, arg.dtype))
        elif kind is float:
            found.append(float)
        else:
            return None
    return tuple(found)


def _input(leaf: Any) -> Node:
    """Return the node of an argument."""
    is_number = isinstance(leaf, (int, np.integer))
    return Node("input", np.array(plain(leaf)), (), {"is_number": True} if is_number else {})


def _order(array: Any) -> Any:
    """Return the order of the axes in memory: new arrays have it too, and reshape may copy them."""
    if array.flags.c_contiguous:
        return None
    return tuple(np.argsort([-abs(stride) for stride in array.strides], kind="stable").tolist())


def _only(leaves: list[Any]) -> Any:
    return leaves[0]


def _copied(constant: Any) -> Any:
    """Return a result that is the same in each call, in memory of its own."""
    if isinstance(constant, Tensor):
        return wrap(constant._a.copy())
    return constant.copy() if isinstance(constant, np.ndarray) else constant


def _of_output(value: Any) -> Any:
    return np.float64(value) if type(value) is float else value


def _as_given(leaf: Any) -> Any:
    """Return an argument as compiled code takes it: contiguous, and numbers for 0-d arrays."""
    if _is_tracked(leaf):
        if leaf.ndim == 0:
            return leaf.reshape(1)[0]
        return leaf if leaf._a.flags.c_contiguous else leaf.clone()
    if isinstance(leaf, Tensor):
        leaf = leaf._a
    if isinstance(leaf, np.ndarray):
        return leaf.item() if leaf.ndim == 0 else np.ascontiguousarray(leaf)
    return leaf.item() if isinstance(leaf, np.generic) else leaf


def _is_tracked(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf._is_tracked


def _structure(arg: Any) -> Any:
    """Return what is equal for arguments with leaves at the same places, and equal settings."""
    if isinstance(arg, dict):
        return (dict, *((key, _structure(item)) for key, item in arg.items()))
    if isinstance(arg, (list, tuple)):
        return (type(arg), *map(_structure, arg))
    if isinstance(arg, (Tensor, np.ndarray, np.generic, float, int)):
        return None
    return key_of(settings(arg))


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
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
        recorded, for example by an ``if`` on a tensor.
    TypeError
        When called, if an argument is neither static nor made of arrays and numbers.

    Notes
    -----
    Arrays from outside are copied when the function is recorded; later changes have no effect.
    A function with an op that cannot be compiled, or that changes tensors in place, draws random
    numbers or depends on a tensor from outside that requires grad, runs op by op, as without `jit`.

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
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)

    def made(function: Callable[..., Any]) -> Any:
        if not callable(function):
            raise TypeError(f"jit: expected a function, got {type(function).__name__}")
        if isinstance(function, JittedFunction):
            return function
        if isinstance(function, Transformed):
            transform, (inner, *recipe) = function.__reduce__()
            if transform in _GRADIENTS:  # of the function that is recorded
                return transform(made(inner), *recipe)
        try:
            parameters = [*inspect.signature(function).parameters]
        except (TypeError, ValueError):
            parameters = []
        found = {n + len(parameters) if n < 0 else n for n in numbers}
        by_name = set(names)
        for name in names:
            if name in parameters:
                found.add(parameters.index(name))
        by_name |= {parameters[n] for n in found if n < len(parameters)}
        return JittedFunction(function, tuple(sorted(found)), tuple(sorted(by_name)))

    return made if function is None else made(function)
