"""Calls of compiled functions with tensors: one record on the tape for the whole function."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba._dispatcher import compute_fingerprint
from numba.core import types

from tapegrad.autograd.function import Function
from tapegrad.eager.creation import tensor
from tapegrad.eager.frames import (
    TUPLE_AVAL,
    RuleFrame,
    Wanted,
    append_record,
    fit_array,
    parents_of,
    select,
)
from tapegrad.eager.item_by_item import warn_of_loop
from tapegrad.eager.modes import MODE, RECORD_OP
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.saved_values import restore, save
from tapegrad.eager.shared_memory import copied
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.eager.traced import is_recording
from tapegrad.eager.traced_callbacks import called_back
from tapegrad.kernels.pool import LEAST
from tapegrad.tape.avals import AVALS, DIFFERENTIABLE, DTYPE_CODES
from tapegrad.tape.codes import OPS, PythonOp
from tapegrad.tape.layout import (
    KIND_PRODUCTS,
    OWN_AVAL,
    OWN_FACTORS,
    OWN_INPUTS,
    OWN_SLOT,
    TRAIT_SAVES,
)
from tapegrad.tape.owner import Owner
from tapegrad.tape.sweep import Contributions
from tapegrad.tape.tape import TAPE
from tapegrad.transform import derivatives
from tapegrad.transform.argument_copies import copied_argument, is_mutable
from tapegrad.transform.base import Derivative, Recording, effects, has_tensors, remembered
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import leaf_names
from tapegrad.transform.kept import kept_with_function
from tapegrad.transform.kinds import holds_hidden_arrays, holds_instance
from tapegrad.transform.printer import show
from tapegrad.transform.protocols import Returns
from tapegrad.utils.fingerprints import fingerprint

_REAL = (float, np.floating, complex, np.complexfloating, np.ndarray)


def record(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a compiled function with tensors among its arguments.

    Zero-dimensional tensors are passed as numbers. Results are tensors.
    """
    if kwargs:
        bound = inspect.signature(function.py_func).bind(*args, **kwargs)
        bound.apply_defaults()
        args = bound.args
    if is_recording(args):
        call = functools.partial(record, function)
        return called_back(f"the compiled function {function.py_func.__name__}", call, args)
    is_plain = not MODE.special or MODE.action() == RECORD_OP
    numbers, plain = [], []
    for k, a in enumerate(args):
        if type(a) is Tensor:
            array = a._a
            if a._own is not None and array.dtype in DTYPE_CODES:
                numbers.append(k)
            elif array.dtype.kind == "c":
                is_plain = False
            a = array if array.shape else array[()]
        elif isinstance(a, Tensor):  # of many items
            is_plain = False
        elif isinstance(a, tuple) and has_tensors(a):
            raise TypeError(
                f"{function.py_func.__name__}: got a tuple of tensors; pass the tensors as "
                "arguments of their own, or one tensor"
            )
        plain.append(a)
    if is_plain and numbers:
        active = tuple(numbers)
        facts = _facts_of(function, tuple(plain), active)
        if facts.gradient is not None:
            if facts.changed:
                _check_changed(function, facts, active)
                pairs = enumerate(args)
                args = tuple(copied_argument(a) if k in facts.changed else a for k, a in pairs)
            return _record_number(function, facts, args, plain, active)
        if facts.is_swept and not facts.changed:
            return _record_results(function, facts, args, plain, active)
    recorded = Call(function)
    return recorded.arranged(Recorded.apply(recorded, *args))


class CallFrame(RuleFrame):
    """The Python part of the record of a call: its rules are the compiled derivatives."""

    __slots__ = ("active_", "arguments", "changed", "function", "outputs", "rule")
    _has_jvp = True
    direct = True

    def __init__(
        self,
        function: Any,
        facts: Facts,
        args: tuple[Any, ...],
        active: tuple[int, ...],
        outputs: list[Any] | None = None,
    ) -> None:
        self.function = function
        self.changed = facts.changed
        self.rule = facts.rule
        self.active_ = active
        self.arguments = [save(a) if isinstance(a, Tensor) else copied(a) for a in args]
        self.outputs = outputs  # the shape and the type of each, if the result is a tuple

    @property
    def op_name(self) -> str:  # type: ignore[override]
        return str(self.function.py_func.__name__)

    def active(self) -> list[bool]:
        return [True] * len(self.active_)

    def release(self) -> None:
        self.arguments = []

    def given(self, owner: Owner) -> list[Any]:
        """Return the arguments of the call."""
        slot = owner[OWN_SLOT]
        return [
            copied_argument(a) if k in self.changed else restore(a, slot)
            for k, a in enumerate(self.arguments)
        ]

    def complete(self, g: Any) -> list[Any]:
        """Return the cotangent of every output, zeros for undefined ones."""
        if self.outputs is None:
            return [g]
        return [g[k] if k in g else np.zeros(*output) for k, output in enumerate(self.outputs)]

    def contributions(self, sweep: Any, owner: Owner, g: Any) -> Contributions:
        cotangents = g if self.outputs is None else sweep.tuples.pop(owner[OWN_SLOT])
        args = [*map(_plain, self.given(owner)), *map(_number, self.complete(cotangents))]
        parents = [parent for parent in parents_of(owner) if parent is not None]
        needed = [sweep.is_needed(parent[OWN_SLOT]) for parent in parents]
        if all(needed):
            gradients = self.rule(*args)
        else:
            numbers = tuple(itertools.compress(self.active_, needed))
            parents = [*itertools.compress(parents, needed)]
            gradients = self.pullback(numbers)(*args)
        what = f"{self.op_name} returned an invalid gradient"
        return [
            (parent, fit_array(gradient, parent[OWN_AVAL], what))
            for parent, gradient in zip(parents, gradients, strict=True)
        ]

    def pullback(self, numbers: tuple[int, ...]) -> Any:
        """Return the derivative from the arguments and cotangents to some gradients."""
        count = 1 if self.outputs is None else len(self.outputs)
        return derivatives.pullback(self.function, numbers, count, Returns.GRADIENTS)

    def cotangents(
        self, owner: Owner, parents: list[Owner | None], g: Any, wanted: Wanted
    ) -> list[Any]:
        pairs = zip(self.active_, parents, strict=False)  # short lists of parents end with None
        numbers = tuple(k for k, parent in pairs if parent is not None and wanted(parent))
        rule = self.pullback(numbers)
        gradients = rule(*self.given(owner), *map(_cloned, self.complete(g)))
        found = dict(zip(numbers, gradients, strict=True))
        return [found.get(k) for k in self.active_]

    def tangents(self, owner: Owner, given: list[Tensor | None]) -> list[Any]:
        """Return the tangents of all outputs for those of the inputs, None for zeros."""
        args = self.given(owner)
        dots = [
            wrap(np.zeros(args[k].shape, args[k].dtype)) if t is None else t.clone()
            for k, t in zip(self.active_, given, strict=False)
        ]
        return _leaves(derivatives.pushforward(self.function, self.active_)(*args, *dots)[1])


def _cloned(value: Any) -> Any:
    """Return a copy of a tensor, which compiled code may write to: others may have its memory."""
    return value.clone() if isinstance(value, Tensor) else value


def _number(array: Any) -> Any:
    """Return an array as compiled code takes it: a number if it has no axes."""
    return array if array.shape else array[()]


# -- scalar results: the gradient is computed with the value ---------------------------------------

COMPILED = OPS.register(PythonOp("compiled"))
OPS.describe(COMPILED, KIND_PRODUCTS, 2, (OWN_FACTORS,), traits=TRAIT_SAVES)


def _record_number(
    function: Any,
    facts: Facts,
    args: tuple[Any, ...],
    values: Sequence[Any],
    active: tuple[int, ...],
) -> Tensor:
    """Compute a number and its gradient, and record both: the sweep only has to multiply.

    The arguments that the call may change are copies.
    """
    value, gradients = facts.gradient(*values)
    parents, factors = [], []
    for k, gradient in zip(active, gradients, strict=True):
        given = args[k]._a
        if type(gradient) is not np.ndarray or gradient.dtype is not given.dtype:
            gradient = np.array(gradient, given.dtype)
        factors.append(gradient if gradient.flags.c_contiguous else gradient.copy())
        parents.append(args[k]._own)
    array = np.array(value)
    frame = NumberFrame(function, facts, args, active)
    return wrap(array, TAPE.append_wide(COMPILED, AVALS.of(array), parents, (factors, frame)))


class NumberFrame(CallFrame):
    """The Python part of such a record, for hooks and for differentiating the gradient.

    Only the latter needs the arguments. To copy large arrays would take longer than many functions,
    so they are kept as they are, with fingerprints.
    """

    __slots__ = ("fingerprints",)
    direct = False  # the sweep runs the record without it

    def __init__(
        self, function: Any, facts: Facts, args: tuple[Any, ...], active: tuple[int, ...]
    ) -> None:
        large = {k: a for k, a in enumerate(args) if type(a) is np.ndarray and a.nbytes >= LEAST}
        small = tuple(None if k in large else a for k, a in enumerate(args)) if large else args
        super().__init__(function, facts, small, active)
        self.fingerprints = {k: fingerprint(a) for k, a in large.items()}
        for k, a in large.items():
            self.arguments[k] = a

    def given(self, owner: Owner) -> list[Any]:
        args = super().given(owner)
        for k, before in self.fingerprints.items():
            if fingerprint(args[k]) != before:
                raise RuntimeError(
                    f"{self.op_name}: argument {k}, an array, was written to after the call, so "
                    "that the derivative of its gradient would be wrong; call it with a copy, or "
                    "with a tensor (tg.tensor(array))"
                )
        return args

    def contributions(self, sweep: Any, owner: Owner, g: Any) -> Contributions:
        return [
            (parent, np.asarray(g * factor, factor.dtype))
            for parent, factor in zip(owner[OWN_INPUTS + 1], owner[OWN_FACTORS], strict=True)
            if sweep.is_needed(parent[OWN_SLOT])
        ]


# -- arrays, and several results -------------------------------------------------------------------

CALLED = OPS.register(PythonOp("called"))


def _record_results(
    function: Any,
    facts: Facts,
    args: tuple[Any, ...],
    values: Sequence[Any],
    active: tuple[int, ...],
) -> Any:
    """Compute arrays and numbers, and record the call."""
    result = function(*values)
    parents = [args[k]._own for k in active]
    frame = CallFrame(function, facts, args, active)
    if not isinstance(result, tuple):
        array = _new_array(result, facts)
        return wrap(array, append_record(CALLED, AVALS.of(array), parents, frame, True))
    is_flat = type(result) is tuple and not any(isinstance(value, tuple) for value in result)
    values = result if is_flat else _leaves(result)
    arrays = [_new_array(value, facts) for value in values]
    frame.outputs = [(array.shape, array.dtype) for array in arrays]
    own = append_record(CALLED, TUPLE_AVAL, parents, frame, True)
    outputs = [wrap(array, select(own, k)) for k, array in enumerate(arrays)]
    return tuple(outputs) if is_flat else _arranged(_without_values(result), iter(outputs))


def _new_array(value: Any, facts: Facts) -> np.ndarray:
    """Return a result as an array that shares no memory with anything else.

    Memory that numba allocated has a base that counts references; that of a global has none.
    """
    if facts.shares or type(value) is not np.ndarray or value.base is None:
        return np.array(value, order="C")
    return value if value.flags.c_contiguous else value.copy()


# -- in modes, and results of other types: a Function ----------------------------------------------


class Call:
    """A call of a compiled function, whose results may be nested: a Function's outputs are not."""

    __slots__ = ("function", "like")

    def __init__(self, function: Any) -> None:
        self.function = function
        self.like: Any = None  # the result, for its structure

    def flat(self, result: Any) -> Any:
        """Note the structure of a result; return the result without it."""
        self.like = _without_values(result)
        return tuple(_leaves(result)) if isinstance(result, tuple) else result

    def arranged(self, outputs: Any) -> Any:
        """Return the outputs of the Function in the structure of the result."""
        return _arranged(self.like, iter(outputs)) if isinstance(self.like, tuple) else outputs


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _without_values(value: Any) -> Any:
    if isinstance(value, tuple):
        items = map(_without_values, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return None


def _arranged(like: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(like, tuple):
        items = [_arranged(item, leaves) for item in like]
        return type(like)(*items) if hasattr(like, "_fields") else tuple(items)
    return next(leaves)


class Recorded(Function):
    """A compiled function as an op with the compiled derivative as its rule."""

    @staticmethod
    def forward(ctx: Any, call: Call, *args: Any) -> Any:
        """Compute the values."""
        function = call.function
        values = [_plain(a) for a in args]
        positions = tuple(
            k for k, a in enumerate(args) if isinstance(a, Tensor) and a.dtype in DIFFERENTIABLE
        )
        facts = _facts_of(function, tuple(values), positions)
        _check_changed(function, facts, positions)
        ctx.function, ctx.positions, ctx.changed = function, positions, facts.changed
        ctx.constants = [
            None if k in positions else copied_argument(v) if k in facts.changed else copied(v)
            for k, v in enumerate(values)
        ]
        saved = [args[k] for k in positions]
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        found = call.flat(function(*values))
        ctx.real = [
            isinstance(v, _REAL) and np.asarray(v).dtype.kind in "fc" for v in _leaves(found)
        ]
        return _tensors(found)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Compute the cotangents of the tensors; they are recorded as well if requested."""
        args = _arguments(ctx)
        needed = tuple(k for k in ctx.positions if ctx.needs_input_grad[k + 1])
        given = [_cloned(g) for g, is_real in zip(cotangents, ctx.real, strict=True) if is_real]
        rule = derivatives.pullback(ctx.function, needed, len(given), Returns.GRADIENTS)
        found = rule(*args, *given)
        result: list[Any] = [None] * (len(args) + 1)
        for position, cotangent in zip(needed, found, strict=True):
            result[position + 1] = cotangent
        return tuple(result)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        """Compute the tangents of the results; they are recorded as well if requested."""
        given = [_cloned(tangents[k]) for k in ctx.positions]
        rule = derivatives.pushforward(ctx.function, ctx.positions)
        found = _leaves(rule(*_arguments(ctx), *given)[1])
        return tuple(t if real else None for t, real in zip(found, ctx.real, strict=True))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Call the function for every item: compiled code takes one at a time."""
        call, *given = args
        warn_of_loop(call.function.py_func.__name__)
        pairs = list(zip(given, in_dims[1:], strict=True))
        found = [
            call.flat(record(call.function, *[a if d is None else a[k] for a, d in pairs]))
            for k in range(info.batch_size)
        ]
        if not isinstance(found[0], tuple):
            return FUNCTIONS["stack"](found), 0
        return tuple(FUNCTIONS["stack"](list(column)) for column in zip(*found, strict=True)), 0


def _arguments(ctx: Any) -> list[Any]:
    """Return the arguments of a recorded call, for its derivatives."""
    args = [copied_argument(v) if k in ctx.changed else v for k, v in enumerate(ctx.constants)]
    for position, saved in zip(ctx.positions, ctx.saved_tensors, strict=True):
        args[position] = saved
    return args


def _plain(value: Any) -> Any:
    """Return the value passed to compiled code for an argument."""
    return _number(value._a) if isinstance(value, Tensor) else value


def _tensors(value: Any) -> Any:
    """Return a result with tensors for its numbers and arrays."""
    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    if isinstance(value, _REAL):
        return tensor(np.asarray(value))
    return value


@dataclass(frozen=True)
class Facts:
    """What recording has to know of a function for some types of arguments."""

    changed: frozenset[int]  # arguments that it writes to, or may write to
    receiving: frozenset[int]  # those that it writes values that depend on tensors to
    gradient: Any  # value and gradient, if its result is one real number
    is_swept: bool  # whether its results are real numbers and arrays, or tuples of them
    rule: Any  # the gradients for cotangents of all results
    results: tuple[Any, ...]  # their types
    shares: bool  # whether arrays of the result may be parts of arguments or of each other


@kept_with_function
def _known(function: Any) -> dict[Any, Facts]:
    """Return what is known of a function, by positions and what numba tells types from."""
    return {}


def _facts_of(function: Any, values: tuple[Any, ...], positions: tuple[int, ...]) -> Facts:
    """Return the facts for some arguments; asking for their numba types would cost 10 µs each."""
    try:
        key = positions, compute_fingerprint(values)
    except NotImplementedError:  # for strings and functions, for example
        return _facts(function, _kinds_of(function, values), positions)
    known = _known(function)
    found = known.get(key)
    if found is None:
        found = known[key] = _facts(function, _kinds_of(function, values), positions)
    return found


def _kinds_of(function: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    function.check_dtypes(values)
    return tuple(map(numba.typeof, values))


@kept_with_function
def _facts(function: Any, kinds: tuple[Any, ...], positions: tuple[int, ...]) -> Facts:
    instance = effects(function, kinds)
    by_number = [leaf_names(value) for value in instance.params]
    parts = instance.leaves()
    written = {parts[k] for k in instance.overwrites}
    given = [n for k in positions if k < len(by_number) for n in by_number[k]]
    varied = instance.varied(given)
    changed = {k for k, names in enumerate(by_number) if written.intersection(names)}
    receiving = {k for k in changed if any(n in written and varied(n) for n in by_number[k])}
    result = instance.function.result
    is_number = (
        not isinstance(function, Derivative)
        and isinstance(result, ast.Name)
        and isinstance(instance.function.types[result.id], types.Float)
    )
    leaves = [instance.function.types.get(show(leaf)) for leaf in instance.result_leaves()]
    results = [kind.dtype if isinstance(kind, types.Array) else kind for kind in leaves]
    is_real = bool(results) and all(isinstance(kind, types.Float) for kind in results)
    made = functools.partial(derivatives.pullback, function, positions)
    return Facts(
        frozenset(changed | {k for k, kind in enumerate(kinds) if is_mutable(kind)}),
        frozenset(receiving),
        made(0, Returns.VALUE | Returns.GRADIENTS) if is_number else None,
        is_real and not isinstance(function, Derivative),
        made(len(results), Returns.GRADIENTS) if is_real else None,
        tuple(leaves),
        bool(instance.shared) or any(holds_hidden_arrays(k) or holds_instance(k) for k in kinds),
    )


def check(function: Any, args: tuple[Any, ...]) -> None:
    """Raise an error now if the derivative of a call with tensors cannot be generated.

    Otherwise the backward pass would raise it.
    """
    plain = [_plain(a) for a in args]
    tensors = tuple(k for k, a in enumerate(args) if isinstance(a, Tensor) and a._is_tracked)
    kinds = _kinds_of(function, plain)
    facts = _facts(function, kinds, tensors)
    if tensors and facts.gradient is None and facts.rule is not None:
        facts.rule.implementation((*kinds, *facts.results))


remembered += [_facts.cache_clear, _known.cache_clear]


def _check_changed(function: Any, facts: Facts, positions: tuple[int, ...]) -> None:
    """Refuse a function that writes to a tensor, or stores a value that depends on one."""
    name = function.py_func.__name__
    for position in sorted(facts.changed):
        if position in positions:
            raise TransformError(
                f"{name} writes into argument {position}, which is a tensor; let it work on a copy "
                "(x.copy()) and return the result"
            )
    for position in sorted(facts.receiving):
        raise TransformError(
            f"{name} writes what depends on a tensor into argument {position}, a NumPy array, "
            "where its derivative would be lost; let it make the array itself and return it"
        )


Recording.record = staticmethod(record)
