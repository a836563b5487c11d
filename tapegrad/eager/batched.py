"""Batched tensors: what a function sees in place of the items of a batch.

Inside of `vmap`, an argument is a `Batched`: it has the shape of one item, and holds a tensor with
one more axis, the first, for all items. An op of it is one op of the held tensors, given by the
op's batching rule (`Op.batch`). Calls may be nested; each is a `Level`, and an op is batched one
level after the other, the innermost first.

The array of an item does not exist. Code that asks for it (an ``if``, ``float``, a function that
does not know tensors) is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from tapegrad.eager.modes import MODE, ModeContext
from tapegrad.eager.tensor import Tensor, note_shared, wrap
from tapegrad.ops.shape import broadcast_to, is_packed, laid_out, moveaxis
from tapegrad.ops.table.op import memory_order, memory_strides, shape_of

NO_ITEMS = (
    "vmap: the function asks for the array of a batched tensor, which stands for many items: by "
    "float(), numpy(), or a function that does not know tensors. Use tapegrad's functions, or a "
    "loop instead of vmap"
)
NO_CHOICE = (
    "vmap: it looks like the function chooses by the value of a batched tensor (if, while, and, "
    "or, assert), which may differ between the items; use tapegrad.where"
)
ENDED = "vmap: a tensor of a batch is used after the function has returned; return it instead"
NO_BACKWARD = (
    "backward() called inside of vmap, where it would mix the gradients of the items; use "
    "tapegrad.grad or tapegrad.vjp in the function, or call backward() outside"
)
NO_DRAWS = (
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or "
    "'different' randomness flags on vmap or perform the randomness operation out of vmap"
)


class BatchError(RuntimeError):
    """Raised where an item of a batch has no value of its own."""


class Level:
    """A call over a batch.

    Attributes
    ----------
    size
        Number of items.
    depth
        Number of levels around it.
    is_open
        Whether the call is running.
    randomness
        What its items get when random numbers are drawn: ``"different"`` ones, the ``"same"``, or
        an ``"error"``.
    """

    __slots__ = ("_begun", "_states", "depth", "is_open", "randomness", "size")

    def __init__(self, size: int, randomness: str, states: dict[Any, Any] | None) -> None:
        self.size = size
        self.depth = len(MODE.thread.levels)
        self.is_open = True
        self.randomness = randomness
        self._states = states
        self._begun: set[Any] = set()

    def begin_draw(self, source: Any) -> None:
        """Raise if random numbers must not be drawn; make all parts of a batch draw the same."""
        if self.randomness == "error":
            raise RuntimeError(NO_DRAWS)
        if self._states is not None and self.randomness == "same" and source not in self._begun:
            self._begun.add(source)
            if source in self._states:
                source.state = self._states[source]
            else:
                self._states[source] = source.state


class open_level(ModeContext):  # noqa: N801
    """The context of a call over a batch, in which ops of this thread may be batched.

    Parameters
    ----------
    size
        Number of items.
    randomness
        See `Level`.
    states
        The states from which bit generators were first used, for the parts of one batch.
    """

    def __init__(
        self, size: int, randomness: str = "error", states: dict[Any, Any] | None = None
    ) -> None:
        self._level = Level(size, randomness, states)

    def now(self) -> tuple[Level, ...]:
        return MODE.thread.levels

    def enter(self) -> Level:
        MODE.set_levels((*MODE.thread.levels, self._level))
        return self._level

    def leave(self, before: Any) -> None:
        self._level.is_open = False
        MODE.set_levels(before)


class Batched(Tensor):
    """One item of a batch, whichever it is."""

    __slots__ = ("_level", "_value")
    _has_array = False

    _level: Level
    _value: Tensor  # with the axis of the batch first

    @property
    def _a(self) -> np.ndarray:
        raise BatchError(NO_ITEMS if self._level.is_open else ENDED)

    @property
    def _own(self) -> Any:  # type: ignore[override]
        return self._value._own

    @property
    def _meta(self) -> Any:  # type: ignore[override]
        return self._value._meta

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape[1:]

    @property
    def ndim(self) -> int:
        return self._value.ndim - 1

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> np.dtype:
        return self._value.dtype

    @property
    def device(self) -> str:
        return self._value.device

    @property
    def strides(self) -> tuple[int, ...]:
        return self._value.strides[1:]

    @property
    def _is_contiguous(self) -> bool:
        return is_packed(self, -1)

    @property
    def _memory_strides(self) -> tuple[int, ...]:
        return memory_strides(self._value)[1:]

    def _laid_out(self, axes: tuple[int, ...], is_new: bool) -> Tensor:
        return batched(
            laid_out(self._value, (0, *(axis + 1 for axis in axes)), is_new), self._level
        )

    @property
    def itemsize(self) -> int:
        return self._value.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise BatchError(NO_CHOICE)

    def __repr__(self) -> str:
        return f"Batched(size={self._level.size}, value={self._value!r})"

    def __float__(self) -> float:
        raise BatchError(NO_ITEMS if self._level.is_open else ENDED)

    __int__ = __index__ = __complex__ = __float__  # type: ignore[assignment]

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        if not MODE.thread.levels:  # ops do not look for batched tensors then
            raise BatchError(ENDED)
        return Tensor.__array_ufunc__(self, *args, **kwargs)

    def ensure_meta(self) -> Any:
        """Return the attributes of the held tensor (internal)."""
        return self._value.ensure_meta()

    def detach(self) -> Tensor:
        """Return a tensor on the same memory, outside the graph."""
        return batched(self._value.detach(), self._level)

    def clone(self) -> Tensor:
        """Return a copy; the copy is recorded."""
        return batched(apart(self._value.clone()), self._level)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Refuse: it would be about all items at once."""
        raise BatchError(
            "requires_grad_() inside of vmap would be about all items at once; differentiate by "
            "tapegrad.grad, tapegrad.vjp or tapegrad.jvp in the function"
        )

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: gradients of items would be mixed."""
        raise BatchError(NO_BACKWARD)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: hooks and gradients are those of all items at once."""
        raise BatchError(
            "inside of vmap, a tensor stands for the items of a batch, and has neither hooks nor a "
            "node nor a .grad of its own; set them outside"
        )

    def _refuse_shape(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: the held tensor would change."""
        raise BatchError(
            "vmap: the shape of a batched tensor cannot change in place; use the function that "
            "returns a view (transpose, squeeze, expand_dims, ...)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        memo[id(self)] = copied = self.clone()
        return copied

    register_hook = register_post_accumulate_grad_hook = retain_grad = detach_ = _refuse
    resize_ = squeeze_ = swapaxes_ = t_ = transpose_ = unsqueeze_ = expand_dims_ = _refuse_shape
    grad = grad_fn = output_nr = data = retains_grad = property(_refuse, _refuse)


def held(value: Tensor) -> Tensor:
    """Return the tensor that a batched one holds, with the axes of all its levels."""
    while type(value) is Batched:
        value = value._value
    return value


def batched(value: Any, level: Level) -> Batched:
    """Return the items of a tensor, along its first axis, as one tensor."""
    if type(value) is Batched and value._level.depth > level.depth:
        # the innermost level holds the others
        return batched(batched(moveaxis(value._value, 1, 0), level), value._level)
    made = Batched()
    made._level = level
    made._value = value if isinstance(value, Tensor) else note_shared(wrap(np.asarray(value)))
    return made


def apart(value: Any) -> Any:
    """Return new values of all items, which are along the first axis, one item after the other.

    So each of them lies in memory as it does if it is computed alone.
    """
    if not isinstance(value, Tensor) or value._is_contiguous:
        return value
    order = memory_order(value)
    first = next((axis for axis in order if value.shape[axis] > 1), 0)
    return value if first == 0 else laid_out(value, (0, *(axis for axis in order if axis)), False)


def holds_batched(values: Iterable[Any]) -> bool:
    """Whether one of some values is batched, or is a list or tuple with one that is."""
    for value in values:
        kind = type(value)
        if kind is Batched or (kind in (list, tuple) and holds_batched(value)):
            return True
    return False


def innermost(values: Iterable[Any]) -> Level | None:
    """Return the innermost level of some values, None if none is batched."""
    found: Level | None = None
    for value in values:
        kind = type(value)
        level = value._level if kind is Batched else None
        if kind in (list, tuple):
            level = innermost(value)
        if level is not None:
            if not level.is_open:
                raise BatchError(ENDED)
            if found is None or level.depth > found.depth:
                found = level
    return found


def is_at(value: Any, level: Level) -> bool:
    """Whether a value is batched at a level."""
    return type(value) is Batched and value._level is level


def all_lowered(values: Iterable[Any], level: Level) -> tuple[list[Any], list[Any]]:
    """Return several values as `lowered` does."""
    pairs = [lowered(value, level) for value in values]
    return [value for value, _ in pairs], [flag for _, flag in pairs]


def lowered(value: Any, level: Level) -> tuple[Any, Any]:
    """Return a value with the axis of a level, and whether it has it.

    They are lists for a list of values of which one has it; any other list is one array.
    """
    if type(value) in (list, tuple):
        items, flags = all_lowered(value, level)
        return (items, flags) if any(flags) else (value, False)
    return (value._value, True) if is_at(value, level) else (value, False)


def expanded(value: Any, level: Level) -> Any:
    """Return a value with the axis of a level first; it is repeated if it does not have it.

    A value that is batched at levels further inside keeps them.
    """
    if is_at(value, level):
        return value._value
    if type(value) is Batched and value._level.depth > level.depth:
        inner = expanded(value._value, level)  # its second axis is that of the inner level
        return batched(moveaxis(inner, 1, 0), value._level)
    return broadcast_to(value, (level.size, *shape_of(value)))


def in_all_levels(value: Any) -> Any:
    """Return a tensor with the axes of all levels of this thread, the outermost first."""
    for level in reversed(MODE.thread.levels):
        value = expanded(value, level)
    return value


def as_item(value: Any) -> Any:
    """Return the item of a tensor with the axes of all levels: the inverse of `in_all_levels`."""
    for level in MODE.thread.levels:
        value = batched(value, level)
    return value
