"""Calls that go to compiled code with no look at what was recorded.

Most calls of a recorded function are like earlier ones. What compiled code takes, and a key that is
equal for arguments that it takes in the same way, are found in one pass over the arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.replay.arguments import Arguments
from tapegrad.replay.compiled import Region, as_tensors, is_tracked
from tapegrad.replay.recorded import Recorded

_STATIC = (bool, str, type(None))
_NUMBERS = (float, int, complex)
_TRACKED = "tracked"  # a tensor whose use is recorded
_INFERENCE = "inference"  # a tensor that cannot be saved for a backward pass


class DirectCall:
    """Compiled code for calls with arguments of some kinds.

    Parameters
    ----------
    recorded
        What was recorded for them.
    region
        What computes it.
    arguments
        Some such arguments; their arrays are not kept.
    """

    def __init__(self, recorded: Recorded, region: Region, arguments: Arguments) -> None:
        self._recorded = recorded
        self._region = region
        self._arguments = arguments.without_leaves()
        self._has_tensors = arguments.has_tensors
        self._is_tracked = any(map(is_tracked, arguments.leaves))
        self._is_value = recorded.is_single and not recorded.shares
        self._gradients: dict[Any, Any] = {}

    @classmethod
    def of(cls, recorded: Recorded, arguments: Arguments) -> DirectCall | None:
        """Return it for what was recorded, None if more than one call of compiled code is due."""
        region = recorded.region
        if region is None or recorded.captured:
            return None
        return cls(recorded, region, arguments)

    def value(self, leaves: Sequence[Any]) -> Any:
        """Return the results."""
        region = self._region
        if self._is_tracked:
            return self._recorded.finished(region(leaves), True)
        found = region.value(*leaves, *region.constants)
        if not self._is_value:
            return self._recorded.finished(region.typed(found), self._has_tensors)
        if region.scalar is not None:
            found = region.scalar(found)
        return wrap(np.asarray(found)) if self._has_tensors else found

    def value_and_gradient(
        self, leaves: Sequence[Any], numbers: tuple[int, ...]
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """Return the one result and its gradients, None if they were not computed before.

        Parameters
        ----------
        leaves
            Of the arguments.
        numbers
            The positions of the differentiated arguments.
        """
        known = self._gradients.get(numbers)
        if known is None:
            return None
        derivative, places, is_plain, are_leaves = known
        value, found = derivative(*leaves, *self._region.constants)
        if is_plain:
            return self._region.scalar(value), found
        value, found = self._region.as_results(value, found, places)
        if self._has_tensors:
            value, found = as_tensors(value, found)
        return value, tuple(found) if are_leaves else self._arguments.like_arguments(numbers, found)

    def add_gradient(
        self, derivative: Any, places: tuple[int, ...], numbers: tuple[int, ...]
    ) -> None:
        """Note what computed gradients by some arguments, and by which leaves."""
        tokens = [object() for _ in places]
        found = self._arguments.like_arguments(numbers, tokens)
        are_leaves = len(found) == len(tokens) and all(map(operator.is_, found, tokens))
        # one array for each argument, as compiled code returns them
        is_plain = are_leaves and not self._has_tensors and self._region.are_arrays(places)
        self._gradients[numbers] = derivative, places, is_plain, are_leaves


def key_and_leaves(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: tuple[int, ...],
    static_argnames: tuple[str, ...],
) -> tuple[tuple[Any, ...] | None, list[Any]]:
    """Return what tells arguments from others, and what compiled code takes for them.

    Arguments with equal keys have equal keys as `Arguments`, too. The key is None if some need a
    closer look: arrays that are not contiguous, and instances of classes. It is for plain modes
    (`MODE.is_plain`).

    Parameters
    ----------
    args, kwargs
        The arguments.
    static_argnums, static_argnames
        Which of them are static.
    """
    key: list[Any] = []
    leaves: list[Any] = []
    if static_argnums or static_argnames:
        for number, arg in enumerate(args):
            add = _add_static if number in static_argnums else _add
            if not add(arg, key, leaves):
                return None, []
    else:
        for arg in args:
            if type(arg) is np.ndarray and arg.flags.c_contiguous and arg.ndim:
                key.append((arg.shape, arg.dtype))
                leaves.append(arg)
            elif not _add(arg, key, leaves):
                return None, []
    for name, arg in kwargs.items():
        key.append(name)
        add = _add_static if name in static_argnames else _add
        if not add(arg, key, leaves):
            return None, []
    return tuple(key), leaves


def _add(value: Any, key: list[Any], leaves: list[Any], is_argument: bool = True) -> bool:
    """Add a value to a key, and its leaves to others; return whether that suffices."""
    kind = type(value)
    if kind is Tensor:
        array = value._a
        if value._own is not None and MODE.recording:
            if type(array) is not np.ndarray or not array.flags.c_contiguous:
                return False
            key.append((_TRACKED, array.shape, array.dtype))
            leaves.append(value)
            return True
        meta = value._meta
        key.append(Tensor if meta is None or not meta.inference else _INFERENCE)
        value = array
        kind = type(value)
    if kind is np.ndarray:
        if not value.flags.c_contiguous:
            return False
        key.append((value.shape, value.dtype))
        leaves.append(value if value.ndim else value.item())
    elif kind in _NUMBERS:
        key.append(kind)
        leaves.append(value)
    elif kind is list or kind is tuple:
        key.append((kind, len(value)))
        for item in value:
            if not _add(item, key, leaves, False):
                return False
    elif kind is dict:
        names = tuple(value)
        if not {*map(type, names)} <= {str}:
            return False
        key.append((dict, names))
        for name in sorted(names):
            if not _add(value[name], key, leaves, False):
                return False
    elif isinstance(value, np.generic):
        key.append(kind)
        leaves.append(value.item())
    elif kind in _STATIC and is_argument:
        return _add_static(value, key, leaves)
    else:
        return False
    return True


def _add_static(value: Any, key: list[Any], leaves: list[Any]) -> bool:
    if type(value) not in (*_STATIC, int):
        return False
    key.append((type(value), value))
    return True
