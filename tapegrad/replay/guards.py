"""Guards: functions that recognise arguments of one kind, and return what compiled code takes.

Most calls of a recorded function are like earlier ones. A guard is generated from the arguments of
a call: it tests in one expression whether others have the same structure, types, shapes and dtypes,
which costs a fraction of a look at arguments of any kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor

Guard = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...] | None]

_NUMBERS = (float, int, complex)
_TYPES = (np.ndarray, Tensor, list, tuple, dict, str, *_NUMBERS)


def guard_of(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: tuple[int, ...],
    static_argnames: tuple[str, ...],
) -> Guard | None:
    """Return the guard of arguments like these, None if some need a closer look.

    These are arrays that are not contiguous, and instances of classes. A guard is for plain modes
    (`MODE.is_plain`). It takes the arguments of a call; it returns the leaves, or None if they are
    other ones.

    Parameters
    ----------
    args, kwargs
        The arguments.
    static_argnums, static_argnames
        Which of them are static.
    """
    made = _Writer()
    for number, arg in enumerate(args):
        if not made.add_argument(f"a{number}", arg, number in static_argnums):
            return None
    for name, arg in kwargs.items():
        if not made.add_argument(f"kwargs[{name!r}]", arg, name in static_argnames):
            return None
    return made.guard(len(args), [*kwargs])


class _Writer:
    """Writes the conditions of a guard, and what it returns."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self._leaves: list[str] = []
        self._constants: list[Any] = []
        self._parts = 0
        self._has_tensors = False
        self._is_recorded = False  # whether the use of a tensor is
        self._tensors: dict[int, str] = {}  # whose arrays are leaves, by the numbers of these

    def guard(self, count: int, names: list[str]) -> Guard:
        """Return the guard of so many arguments by position, and some by name."""
        if self._is_recorded:  # the record need not copy what is the array of a tensor
            for number, name in self._tensors.items():
                self._leaves[number] = name
        constants = [f"c{number}" for number in range(len(self._constants))]
        others = f"[*kwargs] != {names!r}" if names else "kwargs"
        conditions = "\n            and ".join(self._conditions) or "True"
        text = f"""
def guard_with({", ".join(constants)}):
    def guard(args, kwargs):
        if len(args) != {count} or {others}:
            return None
        ({"".join(f"a{number}, " for number in range(count))}) = args
        if ({conditions}):
            return ({"".join(f"{leaf}, " for leaf in self._leaves)})
        return None
    return guard
"""
        found: Guard = _compiled(text)(*self._constants)
        return found

    def add_argument(self, text: str, value: Any, is_static: bool) -> bool:
        """Add an argument; return whether that suffices."""
        kind = type(value)
        if value is None or kind is bool:
            self._conditions.append(f"{text} is {value}")
        elif kind is str or (is_static and kind is int):
            self._conditions.append(f"{self._of(kind, text)} == {value!r}")
        else:
            return not is_static and self._add(text, value)
        return True

    def _add(self, text: str, value: Any) -> bool:
        """Add a pytree of arrays, tensors and numbers; return whether that suffices."""
        kind = type(value)
        if kind is np.ndarray:
            return self._add_array(text, value)
        if kind is Tensor:
            return self._add_tensor(text, value)
        if kind in _NUMBERS:
            self._leaves.append(self._of(kind, text))
            return True
        if isinstance(value, np.generic):
            self._leaves.append(f"{self._of(kind, text)}.item()")
            return True
        if kind is list or kind is tuple:
            name = self._of(kind, text)
            self._conditions.append(f"len({name}) == {len(value)}")
            return all(self._add(f"{name}[{k}]", item) for k, item in enumerate(value))
        if kind is dict and {*map(type, value)} <= {str}:
            name = self._of(kind, text)
            self._conditions.append(f"[*{name}] == {[*value]!r}")
            return all(self._add(f"{name}[{key!r}]", value[key]) for key in sorted(value))
        return False

    def _add_array(self, text: str, array: np.ndarray) -> bool:
        if not array.flags.c_contiguous:
            return False
        name, dtype = self._of(np.ndarray, text), self._constant(array.dtype)
        self._conditions += [
            f"{name}.shape == {self._constant(array.shape)}",
            f"({name}.dtype is {dtype} or {name}.dtype == {dtype})",
            f"{name}.flags.c_contiguous",
        ]
        self._leaves.append(name if array.ndim else f"{name}.item()")
        return True

    def _add_tensor(self, text: str, tensor: Tensor) -> bool:
        name = self._of(Tensor, text)
        if not self._has_tensors:
            self._has_tensors = True  # functions of arrays are the same everywhere
            values = MODE.thread.items_are_values
            self._conditions.append(f"MODE.thread.items_are_values is {values}")
        if type(tensor._a) is not np.ndarray:
            return False
        if tensor._own is not None and MODE.recording:
            self._conditions.append(f"{name}._own is not None and MODE.recording")
            if self._add_array(f"{name}._a", tensor._a):
                self._leaves[-1] = name
                self._is_recorded = True
                return True
            return False
        self._conditions.append(f"({name}._own is None or not MODE.recording)")
        if tensor._meta is not None and tensor._meta.inference:
            self._conditions.append(f"{name}._meta is not None and {name}._meta.inference")
        else:
            self._conditions.append(f"({name}._meta is None or not {name}._meta.inference)")
        if tensor.ndim:
            self._tensors[len(self._leaves)] = name
        return self._add_array(f"{name}._a", tensor._a)

    def _of(self, kind: type, text: str) -> str:
        """Require a type of a value; return a name that the value has from there on."""
        name = text
        if not text.isidentifier():
            self._parts += 1
            name = f"v{self._parts}"
            text = f"{name} := {text}"
        known = kind.__name__ if kind in _TYPES else self._constant(kind)
        self._conditions.append(f"type({text}) is {known}")
        return name

    def _constant(self, value: Any) -> str:
        self._constants.append(value)
        return f"c{len(self._constants) - 1}"


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> Callable[..., Guard]:
    """Return what makes a guard of constants; recordings have few texts."""
    namespace: dict[str, Any] = {"MODE": MODE, **{kind.__name__: kind for kind in _TYPES}}
    exec(compile(text, "<tapegrad guard>", "exec"), namespace)
    found: Callable[..., Guard] = namespace["guard_with"]
    return found
