"""Pytrees: nested containers of arrays, as arguments and results of transforms.

Lists, tuples, named tuples and dicts, instances of dataclasses, and of classes that are registered
with optree in the namespace "tapegrad". Of a dataclass, the fields that hold arrays, floats,
complex numbers or pytrees are its parts; what else it holds (names, options, integers) stays as it
is.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.eager.tensor import Tensor

CONTAINERS = (list, tuple, dict)
NAMESPACE = "tapegrad"
_LEAVES = (Tensor, np.ndarray, np.generic, float, complex)

Build = Callable[[list[Any]], Any]


def tree(value: Any, what: str) -> tuple[list[Any], Build]:
    """Return the leaves of a pytree, and what puts such a tree together again.

    Parameters
    ----------
    value
        The pytree.
    what
        What it is called in errors.

    Raises
    ------
    ImportError
        If it is a container, and optree is not installed.
    """
    if not isinstance(value, CONTAINERS) and value is not None:
        if isinstance(value, _LEAVES) or not _is_inner(value):
            return [value], lambda leaves: leaves[0]
        if not _is_registered(value):
            return _of_dataclass(value, what)
    try:
        import optree
    except ImportError:
        raise ImportError(
            f"{what} is a {type(value).__name__}: nested arguments and results need optree; "
            "install it with: pip install 'tapegrad[pytree]'"
        ) from None
    items, spec = optree.tree_flatten(value, namespace=NAMESPACE)
    if len(items) == 1 and items[0] is value:  # of a class of the user's that is not registered
        return [value], lambda leaves: leaves[0]
    return _joined(items, what, lambda new: optree.tree_unflatten(spec, new))


def _of_dataclass(value: Any, what: str) -> tuple[list[Any], Build]:
    """Return the leaves of an instance of a dataclass."""
    parts_of = _parts(value)

    def build(parts: list[Any]) -> Any:
        made = copy.copy(value)
        for name in [*getattr(made, "__dict__", ())]:
            if isinstance(getattr(type(made), name, None), functools.cached_property):
                del made.__dict__[name]
        for name, part in zip(parts_of, parts, strict=True):
            object.__setattr__(made, name, part)  # the class may be frozen
        return made

    return _joined([*parts_of.values()], what, build)


def _parts(value: Any) -> dict[str, Any]:
    """Return the fields of an instance of a dataclass that are its parts, by name."""
    fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    return {name: part for name, part in fields.items() if _is_part(part)}


def _joined(items: list[Any], what: str, build: Build) -> tuple[list[Any], Build]:
    """Return the leaves of all items, some of which may be pytrees themselves."""
    if not any(_is_inner(item) or isinstance(item, CONTAINERS) for item in items):
        return items, build
    parts = [tree(item, what) for item in items]

    def rebuild(leaves: list[Any]) -> Any:
        made, start = [], 0
        for own, inner in parts:
            made.append(inner(leaves[start : start + len(own)]))
            start += len(own)
        return build(made)

    return [leaf for own, _ in parts for leaf in own], rebuild


def structure(value: Any) -> Any:
    """Return what is equal for pytrees of one structure; lists and tuples count as one."""
    if isinstance(value, dict):
        return {key: structure(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(structure, value))
    if _is_inner(value) and not _is_registered(value):
        return {name: structure(part) for name, part in _parts(value).items()}
    return (type(value), len(tree(value, "")[0])) if _is_inner(value) else value is None


def _is_part(value: Any) -> bool:
    """Whether a field of a dataclass is one of its parts."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "fc"
    return isinstance(value, (*_LEAVES, *CONTAINERS)) or _is_inner(value)


def _is_inner(value: Any) -> bool:
    """Whether something that is no container of Python's is a pytree with parts."""
    if isinstance(value, (*_LEAVES, *CONTAINERS, int, str)) or value is None:
        return False
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_dataclass or _is_registered(value)


def _is_registered(value: Any) -> bool:
    """Whether the class of a value is registered with optree (which is imported then)."""
    optree = sys.modules.get("optree")
    return optree is not None and not optree.tree_is_leaf(value, namespace=NAMESPACE)


def holds_tensor(value: Any) -> bool:
    """Whether a tensor is among some arguments, or in one of them."""
    items = value.values() if isinstance(value, dict) else value
    for item in items:
        kind = type(item)
        if kind is np.ndarray or kind is float:
            continue
        if isinstance(item, Tensor) or (isinstance(item, CONTAINERS) and holds_tensor(item)):
            return True
        if _is_inner(item) and holds_tensor(tree(item, "")[0]):
            return True
    return False
