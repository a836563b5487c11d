"""The arguments of jitted functions: what is recorded, and what recordings are told apart by."""

from __future__ import annotations

import copy
import functools
import operator
import random
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.eager.batched import Batched
from tapegrad.eager.nodes import layout_of
from tapegrad.eager.tensor import Tensor, has_values
from tapegrad.eager.traced import RecordingError
from tapegrad.ops.table.op import refuse_masked
from tapegrad.pytrees import Build, exact_structure, path_of, tree
from tapegrad.random import Generator
from tapegrad.replay.program import key_of

_STATIC = (bool, str, type(None), slice, Generator)
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
    np.ufunc,
    np.dtype,
)


_DRAWING = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)


class Arguments:
    """The arguments of a call: arrays and numbers, and what does not change for a recording.

    Parameters
    ----------
    args, kwargs
        The arguments.
    static_argnums, static_argnames
        Which of them are static.

    Attributes
    ----------
    leaves
        The arrays, tensors and numbers.
    key
        What is equal for arguments that one recording is for.
    has_tensors
        Whether a leaf is a tensor.
    items_are_values
        Whether items of arrays are values in the function (`tapegrad.eager.modes`).
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
    ) -> None:
        self.leaves: list[Any] = []
        self.parts: list[tuple[Any, int, Build | None]] = []  # of arguments: leaves, or a value
        self.names: list[str] = []
        self.count = len(args)
        key: list[Any] = []
        for number, arg in enumerate(args):
            self._add(arg, number in static_argnums, key, f"argument {number}")
        for name, arg in kwargs.items():
            self.names.append(name)
            key.append(name)
            self._add(arg, name in static_argnames, key, f"argument {name!r}")
        self.has_tensors = any(isinstance(leaf, Tensor) for leaf in self.leaves)
        self.items_are_values = not self.has_tensors or all(
            has_values(leaf) for leaf in self.leaves if isinstance(leaf, Tensor)
        )
        key.append(self.items_are_values)
        self.key = tuple(key)

    @functools.cached_property
    def devices(self) -> list[str]:
        """The devices that tensors are on, each once; arrays are copied there."""
        return [*dict.fromkeys(leaf.device for leaf in self.leaves if isinstance(leaf, Tensor))]

    def _add(self, arg: Any, is_static: bool, key: list[Any], what: str) -> None:
        if isinstance(arg, _DRAWING):
            raise TypeError(
                f"jit: {what} is a {type(arg).__name__}, whose numbers would be those of the first "
                "call in every call: give a generator made by tapegrad.random.default_rng"
            )
        if is_static or type(arg) in _STATIC or isinstance(arg, _FUNCTIONS):
            if not _is_hashable(arg):
                raise TypeError(
                    f"jit: {what} is static and must be hashable, got {type(arg).__name__}; give a "
                    "tuple instead of a list or an array"
                )
            key.append(key_of(arg))
            self.parts.append((arg, 0, None))
            return
        if type(arg) is np.ndarray:
            key.append((arg.shape, arg.dtype, layout_of(arg)))
            self.leaves.append(arg)
            self.parts.append((None, 1, _only))
            return
        leaves, build = tree(arg, f"jit: {what}")
        key.append(key_of(exact_structure(arg)))
        kept = []
        for leaf in leaves:
            kind = type(leaf)
            if isinstance(leaf, Tensor):
                order = None if type(leaf) is Batched else layout_of(leaf._a)
                key.append((leaf.shape, leaf.dtype, leaf.device, order))
            elif isinstance(leaf, np.ndarray):
                refuse_masked(leaf)
                key.append((leaf.shape, leaf.dtype, layout_of(leaf)))
            elif kind in (float, int, complex) or isinstance(leaf, np.generic):
                key.append(kind)
            else:
                raise TypeError(
                    f"jit: {what}{path_of(leaf, arg) or ''} has type {kind.__name__}; expected "
                    "arrays, numbers, and lists, tuples and dicts of these: give others as "
                    "static_argnums or static_argnames"
                )
            kept.append(leaf)
        self.leaves += kept
        self.parts.append((None, len(kept), build))

    def with_leaves(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
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

    def check_unchanged(
        self, leaves: Sequence[Any], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        """Raise if a call changed the lists, dicts or dataclasses among its arguments.

        Parameters
        ----------
        leaves
            What the arguments were made with.
        args, kwargs
            The arguments.
        """
        names = [*range(self.count), *map(repr, self.names)]
        start = 0
        for name, arg, (_, count, build) in zip(
            names, (*args, *kwargs.values()), self.parts, strict=True
        ):
            given = [*leaves[start : start + count]]
            start += count
            if build is None or build is _only:
                continue
            found = tree(arg, "")[0]
            is_same = len(found) == count and all(map(operator.is_, found, given))
            if not is_same or key_of(exact_structure(arg)) != key_of(exact_structure(build(given))):
                raise RecordingError(
                    f"jit: the function changes argument {name}, a {type(arg).__name__}, which "
                    "compiled code does not: return what is new, or change a copy"
                )

    def without_leaves(self) -> Arguments:
        """Return arguments of the same structure."""
        made = copy.copy(self)
        made.leaves = []
        return made

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


def _is_hashable(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_hashable, value))
    try:
        hash((value.start, value.stop, value.step) if type(value) is slice else value)
    except TypeError:
        return False
    return True


def _only(leaves: list[Any]) -> Any:
    return leaves[0]
