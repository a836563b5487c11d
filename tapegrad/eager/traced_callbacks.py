"""Python functions that a recorded function calls: each call of it calls them again.

This is for what has no compiled form: a `Function`, random numbers, a compiled function of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tapegrad.cuda.array import HOST
from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import Node
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.eager.traced import NotRecordedError, RecordingError, Traced, not_recording, stopped


class _Place(NamedTuple):
    """Stands for a value, by its number, in nested lists, tuples and dicts."""

    number: int


class Callback:
    """A call that is made again in each call of the recorded function.

    Parameters
    ----------
    name
        What is called, for errors.
    function
        Takes the arguments.
    args
        The arguments, with places for those that differ.

    Attributes
    ----------
    result
        What was returned when it was recorded, with places for tensors, arrays and numbers.
    kinds
        The shapes and dtypes of these.
    """

    def __init__(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.name = name
        self.function = function
        self.args = args
        self.result: Any = None
        self.kinds: list[tuple[tuple[int, ...], np.dtype]] = []

    def __call__(self, values: list[Any]) -> list[Tensor]:
        """Call the function; return tensors for the places in its result."""
        leaves: list[Tensor] = []
        result = emptied(self.function(*filled(self.args, values)), leaves)
        kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
        if kinds != self.kinds or not _are_equal(result, self.result):
            raise RuntimeError(
                f"jit: {self.name} returned {_shown(kinds)}; when it was recorded, it returned "
                f"{_shown(self.kinds)}. Only values may differ between calls"
            )
        return leaves


def called_back(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    example: Callable[..., Any] | None = None,
) -> Any:
    """Record the call of a function; return what stands for its result.

    Parameters
    ----------
    name
        What is called, for errors.
    function
        The function.
    args
        Its arguments: tensors, nested lists, tuples and dicts of these, and anything else.
    example
        Called in place of the function while it is recorded.
    """
    trace = MODE.thread.trace
    if MODE.thread.levels:
        raise NotRecordedError(f"{name} is called with batches")
    traced: list[Any] = []
    callback = Callback(name, function, emptied(args, traced, Traced))
    nodes = [*map(trace.node_of, traced)]
    given = [wrap(node.example.copy()) for node in nodes]
    try:
        with not_recording():
            found = MODE.with_recording(False, example or function, *filled(callback.args, given))
    except RecordingError:
        raise NotRecordedError(f"{name} reads a traced tensor that is no argument") from None
    for tensor, node in zip(given, nodes, strict=True):
        if not np.array_equal(tensor._a, node.example, equal_nan=tensor.dtype.kind in "fc"):
            raise NotRecordedError(f"{name} changes its arguments")
    leaves: list[Tensor] = []
    callback.result = emptied(found, leaves)
    callback.kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
    block = trace.add(Node("callback", (), tuple(nodes), {"call": callback}))
    is_shared = any(np.may_share_memory(z._a, x._a) for z in leaves for x in given)
    made = []
    for number, leaf in enumerate(leaves):
        part = trace.add(Node("item", leaf._a, (block,), {"number": number}))
        tensor = trace.tensor(part)
        tensor._is_shared = is_shared
        made.append(tensor if MODE.recording else stopped(tensor))
    if is_shared:
        for value in traced:
            value.share()
    return filled(callback.result, made)


def emptied(value: Any, leaves: list[Any], kind: type = object) -> Any:
    """Return a value with places for tensors, arrays and numbers, which are added to a list.

    Parameters
    ----------
    value
        The value.
    leaves
        The list; what is added is a tensor.
    kind
        What else they must be.
    """
    if type(value) in (list, tuple):
        return type(value)([emptied(item, leaves, kind) for item in value])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(emptied(item, leaves, kind) for item in value))
    if type(value) is dict:
        return {name: emptied(item, leaves, kind) for name, item in value.items()}
    is_leaf = isinstance(value, (Tensor, np.ndarray, np.generic, float, int, complex))
    if not is_leaf or not isinstance(value, kind):
        if kind is object and not isinstance(value, (str, bytes, type(None))):
            raise NotRecordedError(f"a called function returns a {type(value).__name__}")
        if isinstance(value, np.ndarray):  # it may be a work array
            return value.copy()
        return value
    leaf = value if isinstance(value, Tensor) else wrap(np.asarray(value))
    if leaf.device != HOST:
        raise NotRecordedError("a called function returns a tensor on a device")
    leaves.append(leaf)
    return _Place(len(leaves) - 1)


def filled(value: Any, leaves: list[Any]) -> Any:
    """Return a value with leaves at their places."""
    if type(value) is _Place:
        return leaves[value.number]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(filled(item, leaves) for item in value))
    if type(value) in (list, tuple):
        return type(value)([filled(item, leaves) for item in value])
    if type(value) is dict:
        return {name: filled(item, leaves) for name, item in value.items()}
    return value


def _are_equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(_are_equal(one[k], other[k]) for k in one)
    return one is other or bool(one == other)


def _shown(kinds: list[tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in kinds) or "no tensors"
