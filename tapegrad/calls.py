"""One call of a function under a transform, and how its results are arranged."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.engine.history import calls_user_code, history
from tapegrad.eager.batched import as_item, in_all_levels
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.duals import any_dual, carry_tangent, without_history
from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import copy_with_layout
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.shared_memory import exact_copy
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.eager.traced import (
    NotRecordedError,
    RecordingError,
    depend_on_call,
    refuse_traced,
)
from tapegrad.eager.values import standing_for
from tapegrad.kernels.dtypes import cast_of
from tapegrad.pickling import reduced
from tapegrad.pytrees import holds_tensor, path_of, tree
from tapegrad.tape.avals import DIFFERENTIABLE
from tapegrad.tape.layout import LEAF_CLOCK, OWN_SLOT
from tapegrad.tape.owner import Owner
from tapegrad.tape.tape import TAPE

Argnums = int | Sequence[int]


def plain(value: Any) -> Any:
    """Return the array or number in a tensor, and anything else unchanged."""
    return value._a[()] if isinstance(value, Tensor) else value


def as_argnums(argnums: Any, name: str) -> Any:
    """Return positions as Python's integers, in a tuple if there may be several.

    Parameters
    ----------
    argnums
        As they are given to a transform.
    name
        The transform.
    """
    given = argnums.tolist() if isinstance(argnums, np.ndarray) else argnums
    is_one = _is_position(given)
    if not is_one and (not isinstance(given, Sequence) or not all(map(_is_position, given))):
        raise TypeError(
            f"{name}: argnums is the number of an argument or a tuple of different ones, got "
            f"{argnums!r}"
        )
    return int(given) if is_one else tuple(map(int, given))


def _is_position(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_function(f: Any, name: str) -> None:
    """Raise if what a transform is given is not a function."""
    if not callable(f):
        raise TypeError(
            f"{name}: expected a function, got {type(f).__name__}; the transform is given the "
            "function, and what it returns the arguments"
        )


def numbers_of(argnums: Argnums, count: int, name: str) -> tuple[int, ...]:
    """Return the positions of the differentiated arguments among some, after checking them.

    Parameters
    ----------
    argnums
        As they are given to a transform.
    count
        The number of arguments.
    name
        The transform.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for number in numbers:
        if not -count <= number < count:
            raise ValueError(
                f"{name}: argnums {number} is out of range for {count} positional arguments"
            )
    if len({number % count for number in numbers}) != len(numbers):
        raise ValueError(f"{name}: argnums {argnums} names an argument twice")
    return numbers


def check_differentiable(leaf: Any, argument: Any, number: int, name: str) -> None:
    """Raise if there are no derivatives with respect to a leaf of an argument.

    Parameters
    ----------
    leaf
        A tensor, an array, a number, or anything else.
    argument
        The argument that it is a leaf of.
    number
        The number of the argument.
    name
        The transform.
    """
    dtype = as_tensor(leaf).dtype
    if dtype in DIFFERENTIABLE:
        return
    what = f"{name}: argument {number}{path_of(leaf, argument) or ''}"
    if not hasattr(leaf, "dtype") and dtype.kind not in "biufc":
        kind = type(leaf).__name__
        if leaf is argument:
            remedy = "make its class a dataclass, or register it with optree, namespace='tapegrad'"
        else:
            remedy = "take it out of what is differentiated, as an argument of its own"
        raise TypeError(f"{what} is a {kind}, not an array or a number; {remedy}")
    if dtype.kind in "biu":
        remedy = "pass float values or astype(float)"
        if leaf is not argument:
            remedy += ", or take it out of what is differentiated, as an argument of its own"
        raise TypeError(f"{what} has dtype {dtype}; gradients need floating point: {remedy}")
    cast = cast_of(dtype)
    raise TypeError(
        f"{what} has dtype {dtype}, expected float32, float64, complex64 or complex128"
        f"{cast and '; ' + cast}"
    )


class Call:
    """One call of a function with some arguments made differentiable.

    Arrays are copied, since writes to them are not noticed: by the function itself, or before a
    derivative is computed after the transform has returned.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        argnums: Argnums,
        name: str,
        has_aux: bool = False,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.outer = MODE.thread.transform  # the transform that surrounds this call
        self.has_inner = False  # the function calls another transform
        self.failure: RuntimeError | None = None  # raised where a gradient would be lost
        if self.outer is not None:
            self.outer.has_inner = True
        self.is_nested = False
        self.is_plain = not holds_tensor(args) and not (kwargs and holds_tensor(kwargs))
        # items are what they are in the surrounding code where that gives tensors
        items_are_values = self.is_plain or not holds_tensor((args, kwargs or {}), with_views=True)
        self.is_plain &= not MODE.thread.levels
        refuse_traced((args, kwargs or {}), "a derivative is computed inside of the function")
        self.single = isinstance(argnums, int)
        numbers = numbers_of(argnums, len(args), name)
        call_args = list(args)
        self.inputs: list[Tensor] = []
        self._rebuild: list[tuple[int, Callable[[list[Any]], Any]]] = []
        # everything recorded from here on is newer than these
        self._clock = TAPE.next_slot()[1]
        self._outside_leaf = TAPE.leaf_position()
        for number in numbers:
            leaves, build = tree(args[number], f"{name}: argument {number}")
            made = [self._differentiable(leaf, args[number], number) for leaf in leaves]
            call_args[number] = build(made)
            self.inputs += made
            self._rebuild.append((len(made), build))

        def run() -> Any:
            MODE.thread.transform = self
            MODE.thread.items_are_values = items_are_values
            try:
                return f(*call_args, **(kwargs or {}))
            except ValueError as error:
                if self.failure is None or error.__cause__ is not self.failure:
                    raise
                raise self.failure from None  # NumPy raises another error when it gets this one

        result = MODE.with_recording(True, run)
        self.aux: Any = None
        self.result = result
        if has_aux:
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise TypeError(
                    f"{name}: with has_aux, the function returns a pair: what is differentiated, "
                    f"and anything; got {type(result).__name__}"
                )
            self.result, self.aux = result

    def _differentiable(self, value: Any, argument: Any, number: int) -> Tensor:
        tensor = as_tensor(value)
        if tensor.dtype not in DIFFERENTIABLE:
            check_differentiable(value, argument, number, self.name)
        if MODE.thread.levels:  # every item of a batch has an input, and a gradient, of its own
            return standing_for(value, as_item(self._leaf(in_all_levels(tensor))))
        made = tensor if isinstance(value, Tensor) else wrap(exact_copy(tensor._a))
        return standing_for(value, self._leaf(made))

    def _leaf(self, tensor: Tensor) -> Tensor:
        """Return what the function is given for a tensor: a leaf, or a copy with its history."""
        if tensor._own is not None:
            made: Tensor = MODE.with_recording(True, FUNCTIONS["positive"], tensor)
            is_host = type(made) is Tensor and type(made._a) is np.ndarray
            if is_host and made.strides != tensor.strides:  # with gaps, as the tensor has them
                made._a = copy_with_layout(made._a, tensor._a)
            return made
        return carry_tangent(tensor, wrap(tensor._a).requires_grad_())

    def has_made(self, own: Owner) -> bool:
        """Whether a record was made by this call, not by the surrounding code."""
        slot: int = own[OWN_SLOT]
        return slot >= (self._outside_leaf if slot >= LEAF_CLOCK else self._clock)

    def nested(self) -> bool:
        """Whether the result depends on differentiable values from outside the call.

        If so, the derivative must be differentiable too.
        """
        self.is_nested = self._depends_on_outside()
        self.is_plain &= not self.is_nested and not self._has_tangents()
        return self.is_nested

    def _has_tangents(self) -> bool:
        """Whether the result has tangents, which those of the derivatives follow from."""
        if MODE.thread.dual is None:
            return False
        return any_dual([*tree(self.result, f"{self.name}: the result")[0], *self.inputs])

    def _depends_on_outside(self) -> bool:
        if not MODE.recording:
            return False
        if any(not tensor.is_leaf for tensor in self.inputs):
            return True
        leaves = tree(self.result, f"{self.name}: the result")[0]
        owners = [t._own for t in leaves if isinstance(t, Tensor) and t._own is not None]
        if any(not self.has_made(own) for own in owners):
            return True  # the result itself is from outside
        # the tape also holds records of other threads: a hit counts only if the result reaches it
        if not TAPE.reaches_before(self._clock, self._outside_leaf):
            return False
        return any(not self.has_made(own) for own in self._history(owners))

    def _history(self, owners: list[Owner]) -> Iterator[Owner]:
        """Yield records and all that they depend on, back to those from outside of the call."""
        return history(owners, self.has_made)

    def runs_user_code(self, own: Owner) -> bool:
        """Whether the reverse pass of a record calls hooks or rules of the user's."""
        return any(map(calls_user_code, self._history([own])))

    def value(self, tensor: Tensor) -> Any:
        """Return the result of the function, without history if nothing outside needs it."""
        if not self.is_plain:
            return tensor if self.is_nested else without_history(tensor)
        found = plain(tensor)
        # the result must not share memory with an argument
        for given in self.inputs:
            if tensor is given:
                return found.copy()
        return found if tensor._a.base is None else found.copy()

    def auxiliary(self) -> Any:
        """Return the auxiliary result of the function."""
        if not holds_tensor([self.aux]):
            return self.aux
        leaves, build = tree(self.aux, f"{self.name}: the auxiliary result")

        def shown(leaf: Any) -> Any:
            if any_dual((leaf,)):
                return leaf
            own = leaf._own if isinstance(leaf, Tensor) and MODE.recording else None
            if own is not None and any(not self.has_made(o) for o in self._history([own])):
                return leaf  # it depends on something outside of the call
            if self.is_plain:
                return plain(leaf)
            return leaf if own is None else without_history(leaf)

        return build([shown(leaf) for leaf in leaves])

    def like_inputs(self, values: Sequence[Tensor], is_plain: bool | None = None) -> Any:
        """Arrange one value per input like the arguments, as arrays if the call is plain."""
        is_plain = (self.is_plain if is_plain is None else is_plain) and not any_dual(values)
        given = plain if is_plain else lambda value: value
        parts = []
        start = 0
        for count, build in self._rebuild:
            parts.append(build([given(v) for v in values[start : start + count]]))
            start += count
        return parts[0] if self.single else tuple(parts)


_OF_RECORDED = ("cache_info", "clear_cache", "draw", "inspect")  # methods of such functions


class Transformed:
    """A function made by a transform. It can be pickled if the original function can.

    Parameters
    ----------
    call
        The function to run.
    transform, *recipe
        The transform that made it and its arguments; the first is the original function.
    recorded
        Records a call while a function is recorded: a function of the recipe, the arguments and
        those by name. None for what is recorded op by op.
    compiles
        Whether calls for a function that is recorded (`tapegrad.jit`) are recorded as a whole.

    Attributes
    ----------
    recipe
        The transform, and its arguments.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        transform: Callable[..., Any],
        *recipe: Any,
        recorded: Callable[..., Any] | None = None,
        compiles: bool = True,
    ) -> None:
        functools.update_wrapper(self, recipe[0])
        self._call = call
        self.recipe = transform, recipe
        self._recorded = recorded
        self._compiled: Callable[..., Any] | None = None
        if recorded is not None and compiles and hasattr(recipe[0], "compiled_transform"):
            self._compiled = recipe[0].compiled_transform(self._op_by_op, transform, recipe[1:])
        self._plain = self._compiled or call  # with no switch changed in any thread

    def __getattr__(self, name: str) -> Any:
        """Return what says how a function that is recorded runs, or its transform."""
        if name not in _OF_RECORDED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._compiled or self.recipe[1][0], name)

    @property
    def compiled_transform(self) -> Callable[..., Any]:
        """What compiles a transform of this function, if that is one of a recorded function."""
        transform, (function, *recipe) = self.recipe
        of_function: Callable[..., Any] = function.compiled_transform
        return lambda op_by_op, *key: of_function(op_by_op, *key, transform, recipe)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the transformed function."""
        if not MODE.special:
            return self._plain(*args, **kwargs)
        if self._compiled is not None and MODE.is_plain:
            return self._compiled(*args, **kwargs)
        return self._op_by_op(*args, **kwargs)

    def _op_by_op(self, *args: Any, **kwargs: Any) -> Any:
        if MODE.special and MODE.thread.trace is not None and self._recorded is not None:
            return self._called_when_recording(self._recorded, args, kwargs)
        return self._call(*args, **kwargs)

    def _called_when_recording(
        self, recorded: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return recorded(*self.recipe[1], args, kwargs)
        except RecordingError:
            if depend_on_call((args, kwargs)):
                raise
            # op by op, the function may decide by the values of these arguments
            MODE.thread.trace.outermost.failure = None
            raise NotRecordedError("a differentiated function decides by values") from None

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        transform, recipe = self.recipe
        return reduced(self, transform, *recipe)

    def __repr__(self) -> str:
        transform, (function, *_) = self.recipe
        return f"<{transform.__name__} of {getattr(function, '__qualname__', function)}>"
