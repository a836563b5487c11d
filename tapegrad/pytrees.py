"""Pytrees: nested containers of arrays, as arguments and results of transforms.

A pytree is a list, tuple, named tuple, dict, dataclass instance, or an instance of a class that is
registered with optree in the namespace "tapegrad". The parts of a dataclass instance are the fields
that hold arrays, floats, complex numbers or pytrees; other fields (names, options, integers) are
left unchanged.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.eager.tensor import Tensor, has_values

CONTAINERS = (list, tuple, dict)
NAMESPACE = "tapegrad"
_LEAVES = (Tensor, np.ndarray, np.generic, float, complex)

Build = Callable[[list[Any]], Any]


def tree(value: Any, what: str) -> tuple[list[Any], Build]:
    """Return the leaves of a pytree and a function that rebuilds it from leaves.

    Parameters
    ----------
    value
        The pytree.
    what
        Its name in error messages.

    Raises
    ------
    ImportError
        If it is a container and optree is not installed.
    """
    if isinstance(value, collections.OrderedDict):
        return _of_ordered_dict(value, what)
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
    items, spec = optree.tree_flatten(value, _is_ordered_dict, namespace=NAMESPACE)
    if len(items) == 1 and items[0] is value:  # of a user class that is not registered
        return [value], lambda leaves: leaves[0]
    return _joined(items, what, lambda new: optree.tree_unflatten(spec, new))


def _is_ordered_dict(value: Any) -> bool:
    return isinstance(value, collections.OrderedDict)


def _of_ordered_dict(value: Any, what: str) -> tuple[list[Any], Build]:
    """Return the leaves of an ordered dict in the order in which other dicts have theirs.

    So those with equal keys have equal structures, as dicts have.
    """
    keys, kind = [*value], type(value)
    leaves, inner = tree(dict(value), what)

    def build(new: list[Any]) -> Any:
        made = inner(new)
        return kind((key, made[key]) for key in keys)

    return leaves, build


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
    """Return the fields of a dataclass instance that are its parts, by name."""
    fields = {f: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    return {f.name: part for f, part in fields.items() if _is_part(part, f.type)}


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


def path_of(leaf: Any, value: Any) -> str | None:
    """Return where a leaf is in a pytree, such as ``['a'][0]``; None if it is not found."""
    if value is leaf:
        return ""
    if isinstance(value, dict):
        items = [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        labels = [f".{n}" for n in names] if names else [f"[{k}]" for k in range(len(value))]
        items = [*zip(labels, value, strict=True)]
    elif _is_inner(value) and not _is_registered(value):
        items = [(f".{name}", part) for name, part in _parts(value).items()]
    else:
        return None
    for label, item in items:
        inner = path_of(leaf, item)
        if inner is not None:
            return label + inner
    return None


def structure(value: Any) -> Any:
    """Return a value equal for pytrees of equal structure; lists and tuples count as equal."""
    if isinstance(value, dict):
        return {key: structure(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(structure, value))
    if _is_inner(value) and not _is_registered(value):
        return {name: structure(part) for name, part in _parts(value).items()}
    return (type(value), len(tree(value, "")[0])) if _is_inner(value) else value is None


def settings_of(value: Any) -> Any:
    """Return what is equal for pytrees whose instances of dataclasses have equal settings."""
    if isinstance(value, dict):
        return {key: settings_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(settings_of, value))
    if not _is_inner(value) or _is_registered(value):
        return None
    parts = {name: settings_of(part) for name, part in _parts(value).items()}
    return type(value), parts, {n: _comparable(v) for n, v in _settings(value).items()}


def _comparable(setting: Any) -> Any:
    if isinstance(setting, np.ndarray):
        return setting.shape, setting.dtype.str, setting.tobytes()
    return id(setting) if isinstance(setting, Tensor) else (type(setting), setting)


def arranged(like: Any, value: Any) -> Any:
    """Return a pytree in the lists, tuples and dicts of another one of equal structure."""
    if isinstance(value, dict):
        found = copy.copy(like)  # whatever the type of dict is made of
        found.update((key, arranged(like[key], value[key])) for key in like)
        return found
    if isinstance(value, (list, tuple)):
        parts = [arranged(one, part) for one, part in zip(like, value, strict=True)]
        return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
    return value


def exact_structure(value: Any) -> Any:
    """Return what is equal for pytrees that differ in their leaves alone, types included."""
    if isinstance(value, dict):
        made_by = value.default_factory if isinstance(value, collections.defaultdict) else None
        items = ((key, exact_structure(item)) for key, item in value.items())
        return (type(value), made_by, *items)
    if isinstance(value, (list, tuple)):
        return (type(value), *map(exact_structure, value))
    if isinstance(value, (*_LEAVES, int)):
        return None
    if _is_registered(value):
        optree = sys.modules["optree"]
        return optree.tree_structure(value, namespace=NAMESPACE)
    if not dataclasses.is_dataclass(value):
        return type(value)
    parts = ((name, exact_structure(part)) for name, part in _parts(value).items())
    return (type(value), *parts, *_settings(value).items())


def _settings(value: Any) -> dict[str, Any]:
    """Return what an instance of a dataclass has besides its parts, by name.

    Attributes that are no fields belong to it, but for what is computed from the others.
    """
    parts, kind = _parts(value), type(value)
    fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    named = fields | getattr(value, "__dict__", {})
    return {
        name: setting
        for name, setting in named.items()
        if name not in parts
        and not isinstance(getattr(kind, name, None), functools.cached_property)
    }


def _is_part(value: Any, annotation: Any) -> bool:
    """Whether a field of a dataclass is one of its parts.

    An integer is a setting, unless the class says that the field is for real numbers.
    """
    if type(value) is int:
        name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        return name in ("float", "complex")
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "fc"
    return isinstance(value, (*_LEAVES, *CONTAINERS)) or _is_inner(value)


def _is_inner(value: Any) -> bool:
    """Whether a value other than a built-in container is a pytree with parts."""
    if isinstance(value, (*_LEAVES, *CONTAINERS, int, str)) or value is None:
        return False
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_dataclass or _is_registered(value)


def _is_registered(value: Any) -> bool:
    """Whether the class of a value is registered with optree, which is then already imported."""
    optree = sys.modules.get("optree")
    return optree is not None and not optree.tree_is_leaf(value, namespace=NAMESPACE)


def holds_tensor(value: Any, with_views: bool = False) -> bool:
    """Whether some arguments are tensors or contain one; or one whose items are views."""
    items = value.values() if isinstance(value, dict) else value
    for item in items:
        kind = type(item)
        if kind is np.ndarray or kind is float:
            continue
        if isinstance(item, Tensor):
            if not with_views or not has_values(item):
                return True
        elif isinstance(item, CONTAINERS):
            if holds_tensor(item, with_views):
                return True
        elif _is_inner(item) and holds_tensor(tree(item, "")[0], with_views):
            return True
    return False
