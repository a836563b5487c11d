"""Values that numba functions were compiled with.

numba compiles globals, variables of outer functions and callees into a function as constants, and
keeps the old values when they change later. A derivative made after such a change would be that of
a different function. So the values that a function names are hashed whenever numba compiles it, and
compared when a derivative is made.
"""

from __future__ import annotations

import builtins
import dis
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any

import numba
import numpy as np
from numba.core import event, ir, types
from numba.core.registry import CPUDispatcher

from tapegrad.transform.cache.fingerprint import MISSING, ROOTS, Fingerprint, is_library
from tapegrad.transform.errors import TransformError

Items = dict[tuple[int, str, str], bytes]

# hashes for each compiled function, by the types that it was compiled for
_compiled: weakref.WeakKeyDictionary[Any, dict[Any, Items]] = weakref.WeakKeyDictionary()
_derivatives: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()


class _Listener(event.Listener):
    """Hashes the values that a function names when numba compiles it."""

    def on_start(self, event: Any) -> None:
        dispatcher, args = event.data.get("dispatcher"), event.data.get("args")
        if not isinstance(dispatcher, CPUDispatcher) or _is_generated(dispatcher):
            return
        try:
            items = Fingerprint(dispatcher, frozen=True).items
        except Exception:  # an object that cannot be hashed must not break numba's compilation
            return
        _compiled.setdefault(dispatcher, {})[tuple(args)] = items
        settle(dispatcher, plain(args), items)

    def on_end(self, event: Any) -> None:
        """Keep the hashes; a failed compilation leaves no code to compare with."""


event.register("numba:compile", _Listener())


def _is_generated(dispatcher: Any) -> bool:
    scope = dispatcher.py_func.__globals__
    return is_library(scope.get("__name__")) or "_about" in scope or "_calls" in scope


def plain(kinds: Any) -> tuple[Any, ...]:
    """Return types without literal values and omitted defaults."""
    return tuple(
        types.unliteral(numba.typeof(k.value) if isinstance(k, types.Omitted) else k) for k in kinds
    )


def enter(root: Any, derivative: Any) -> None:
    """Register a derivative of a function, which is regenerated when the function changes."""
    _derivatives.setdefault(root, weakref.WeakSet()).add(derivative)


def settle(root: Any, kinds: tuple[Any, ...], items: Items) -> None:
    """Forget the derivatives of a function that were made with other values than the current."""
    for derivative in list(_derivatives.get(root, ())):
        if any(known[: len(kinds)] == kinds and made != items for known, made in derivative.made()):
            derivative.forget()


def forget(root: Any) -> None:
    """Forget all derivatives of a function."""
    for derivative in list(_derivatives.get(root, ())):
        derivative.forget()


def below(root: Any) -> list[Any]:
    """Return the user functions called by a compiled function, and itself, callees first."""
    found = Fingerprint(root, frozen=True).dispatchers
    return [d for d in found if isinstance(d, CPUDispatcher) and not _is_generated(d)]


def check(root: Any, kinds: tuple[Any, ...]) -> Items:
    """Return the hashes of a function's names; refuse if numba compiled it with other values.

    Parameters
    ----------
    root
        A compiled function.
    kinds
        Types of its arguments; code for other types is ignored.

    Raises
    ------
    TransformError
        If it, or a function that it calls, was compiled before a value that it names changed.
    """
    now = Fingerprint(root, frozen=True)
    stale, changed = [], None
    for dispatcher in below(root):
        current = now if dispatcher is root else Fingerprint(dispatcher, frozen=True)
        for args, code in dispatcher.overloads.items():
            if dispatcher is root and plain(args) != kinds:
                continue
            known = _compiled.get(dispatcher, {}).get(args)
            found = (
                _first_difference(known, current.items)
                if known is not None
                else _first_rebound(dispatcher.py_func, code.type_annotation)
            )
            if found is not None:
                changed = changed or found
                stale.append(dispatcher)
                break
    for made in now.lasting:
        found = _change_in(made)
        if found is not None:
            raise _lasting_refusal(*found)
    if changed is not None:
        raise _refusal(root, stale, *changed)
    return now.items


def _lasting_refusal(function: str, dotted: str) -> TransformError:
    name = function.partition(".<locals>")[0]
    return TransformError(
        f"{dotted!r}, which {name} uses, was changed after {name} was compiled: numba keeps the "
        "old value in what it compiles for @vectorize, @guvectorize and @overload, and a "
        "derivative would have the new one; pass it as an argument, or define "
        f"{name} after the change"
    )


def _change_in(made: Any) -> tuple[str, str] | None:
    """Return the function and name of a value that changed since a ufunc or such was compiled."""
    current = None
    for args, code in made.overloads.items():
        known = _compiled.get(made, {}).get(args)
        if known is None:
            found = _first_rebound(made.py_func, code.type_annotation)
        else:
            current = current or Fingerprint(made, frozen=True).items
            found = _first_difference(known, current)
        if found is not None:
            return found
    return None


def _refusal(root: Any, stale: list[Any], function: str, dotted: str) -> TransformError:
    again = [root] if hasattr(root, "defvjp") else [*stale, *([root] if root.overloads else [])]
    calls = ", then ".join(f"{d.py_func.__name__}.recompile()" for d in dict.fromkeys(again))
    return TransformError(
        f"{dotted!r}, which {function} uses, was changed after {stale[0].py_func.__name__} was "
        "compiled: numba keeps the old value in it, and a derivative would have the new one; pass "
        f"it as an argument, or call {calls} after the change"
    )


def _first_difference(known: Items, current: Items) -> tuple[str, str] | None:
    """Return the function and name of the first value that differs, callees first."""
    for key in [*known, *current]:
        if known.get(key) != current.get(key):
            return key[1], key[2]
    return None


def _first_rebound(function: Any, annotation: Any) -> tuple[str, str] | None:
    """Return the function and name of a value that differs from that in numba's IR.

    This is for functions that were compiled before this module was imported. Functions that numba
    loaded from its cache have no IR.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    names = set(_names(function.__code__))
    for block in getattr(annotation, "blocks", {}).values():
        for statement in block.find_insts(ir.Assign):
            value = statement.value
            if not isinstance(value, (ir.FreeVar, ir.Global)) or value.name not in names:
                continue  # other names are numba's own, for comprehensions
            if isinstance(value, ir.FreeVar) and value.name in cells:
                current = cells[value.name].cell_contents
            elif isinstance(value, ir.Global):
                current = function.__globals__.get(
                    value.name, getattr(builtins, value.name, MISSING)
                )
            else:
                continue
            if not _is_same(value.value, current):
                return function.__qualname__, value.name
    return None


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names from outside that code reads."""
    yield from (s.argval for s in dis.get_instructions(code) if s.opname in ROOTS)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, (bool, int, float, complex, str, tuple, np.generic)):
        return type(old) is type(new) and repr(old) == repr(new)
    return old is new
