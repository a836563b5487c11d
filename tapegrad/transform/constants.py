"""Constants: values from outside of a function that are no functions."""

from __future__ import annotations

import ast
import ctypes
import enum
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

from tapegrad.transform import rules
from tapegrad.transform.ir import Let, Structure, constant, name
from tapegrad.transform.kinds import holds_real, is_array
from tapegrad.transform.source import MISSING

_POINTERS = (ctypes._CFuncPtr,)


def plain(value: Any) -> Any:
    """Return a value as one that stands in the text of a function, or MISSING."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return MISSING  # a member has another type than its value
    if isinstance(value, (int, float, str)):
        return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
    # numbers of other types compute otherwise: uint64 and int64 are a float64, int8 may wrap
    return value.item() if isinstance(value, (np.int64, np.bool_)) else MISSING


def member_like(kind: Any, statics: dict[str, Any]) -> str | None:
    """Return what names a member of an enumeration of whole numbers; None if nothing does."""
    if not isinstance(kind, types.EnumMember) or not isinstance(kind.dtype, types.Integer):
        return None
    return next((text for text, v in statics.items() if type(v) is kind.instance_class), None)


def is_plain_tuple(value: Any) -> bool:
    """Whether a value is a tuple of what stands in the text of a function."""
    if not isinstance(value, tuple) or hasattr(value, "_fields"):
        return False
    return all(is_plain_tuple(item) or plain(item) is not MISSING for item in value)


def is_followed(value: Any) -> bool:
    """Whether what is done to a value is looked at, like what is done to arrays."""
    return isinstance(value, (np.ndarray, *_POINTERS)) or hasattr(value, "py_func")


def type_of_constant(lowering: Any, text: str) -> Any:
    """Return the type of what a name stands for outside of the function; none for other names."""
    if text not in lowering.statics:
        return types.none
    value = lowering.statics[text]
    if is_followed(value):
        return numba.typeof(value)
    try:
        return types.unliteral(cpu_target.typing_context.resolve_value_type(value))
    except (ValueError, NumbaError):
        what = f"cannot differentiate the use of {text}: numba has no type for it"
        raise lowering.refuse(what) from None


def parts_of_constant(
    lowering: Any, base: ast.expr, value: tuple[Any, ...], kind: Any
) -> Structure:
    """Return the parts of a tuple; what is no number gets a name."""
    items: list[Any] = []
    for position, (item, item_kind) in enumerate(zip(value, kind, strict=True)):
        part = ast.Subscript(base, constant(position), ast.Load())
        number = plain(item)
        if isinstance(item, tuple) and holds_real(item_kind):
            items.append(parts_of_constant(lowering, part, item, item_kind))
        elif number is not MISSING:
            items.append(constant(number))
        else:
            target = lowering.fresh("t")
            lowering.types[target] = item_kind
            rule = rules.Held(True) if is_array(item_kind) else rules.Passive(True)
            lowering.block.append(Let(target, part, lowering.line, rule))
            items.append(name(target))
    return Structure(kind, items)
