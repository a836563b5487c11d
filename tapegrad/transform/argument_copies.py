"""Copies of arguments that the user can write to: arrays, and what numba's containers hold.

A record of a call keeps its arguments for the backward pass. Nobody tells it of writes to them, and
the function may write to them itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import typed
from numba.core import cgutils, types
from numba.experimental import structref
from numba.experimental.jitclass.base import imp_dtor
from numba.extending import intrinsic

_KINDS = types.ListType, types.DictType, types.ClassInstanceType, types.StructRef


def is_mutable(kind: Any) -> bool:
    """Whether values of a numba type, other than arrays, can be written to or hold such values."""
    if isinstance(kind, types.BaseTuple):
        return any(map(is_mutable, kind))
    return isinstance(kind, (*_KINDS, types.List, types.Set, types.Record))


def copied_argument(value: Any) -> Any:
    """Return a copy of an argument of a compiled function, whose parts are copies as well.

    Parameters
    ----------
    value
        A number, an array, a list, a tuple, an instance of a class of numba, ... What nobody can
        write to is returned as it is.
    """
    if isinstance(value, (list, tuple)):
        items = map(copied_argument, value)
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, (np.ndarray, np.void, set)):
        return value.copy()
    kind = getattr(value, "_numba_type_", None)
    return _copier(kind)(value) if isinstance(kind, _KINDS) else value


@functools.lru_cache(maxsize=64)
def _copier(kind: Any) -> Any:
    """Return the compiled function that copies values of a numba type."""
    return _Copiers().of(kind)


class _Copiers:
    """Functions that copy values, by their numba types."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"typed": typed, "blank": _blank, "new": structref.new}
        self.made: dict[Any, str] = {}
        self.numbers = itertools.count()

    def of(self, kind: Any) -> Any:
        return self.scope[self.name(kind)]

    def name(self, kind: Any) -> str:
        """Return the name of the function for a type with parts, which is made at first."""
        if kind not in self.made:
            self.made[kind] = name = f"copy_{next(self.numbers)}"
            text = f"def {name}(value):\n" + "".join(f"    {line}\n" for line in self.body(kind))
            exec(text, self.scope)
            self.scope[name] = numba.njit(kind(kind))(self.scope[name])
        return self.made[kind]

    def constant(self, value: Any) -> str:
        name = f"given_{next(self.numbers)}"
        self.scope[name] = value
        return name

    def body(self, kind: Any) -> list[str]:
        """Return the lines that copy ``value``."""
        if isinstance(kind, types.Optional):
            return ["if value is None:", "    return None", f"return {self.copy(kind.type)}"]
        if isinstance(kind, types.ListType):
            empty = f"typed.List.empty_list({self.constant(kind.item_type)})"
            loop = ["for item in value:", f"    made.append({self.copy(kind.item_type, 'item')})"]
        elif isinstance(kind, types.DictType):
            given = f"{self.constant(kind.key_type)}, {self.constant(kind.value_type)}"
            empty = f"typed.Dict.empty({given})"
            item = self.copy(kind.value_type, "value[key]")
            loop = ["for key in value:", f"    made[key] = {item}"]
        else:
            is_class = isinstance(kind, types.ClassInstanceType)
            fields = kind.struct if is_class else kind.field_dict
            empty = "blank(value)" if is_class else f"new({self.constant(kind)})"
            loop = [f"made.{f} = {self.copy(item, f'value.{f}')}" for f, item in fields.items()]
        return [f"made = {empty}", *loop, "return made"]

    def copy(self, kind: Any, value: str = "value") -> str:
        """Return the text of a copy of a value."""
        if isinstance(kind, types.Array):
            return f"{value}.copy()"
        if isinstance(kind, types.BaseTuple):
            items = "".join(f"{self.copy(item, f'{value}[{k}]')}, " for k, item in enumerate(kind))
            is_named = isinstance(kind, types.BaseNamedTuple)
            return f"{self.constant(kind.instance_class)}({items})" if is_named else f"({items})"
        is_optional = isinstance(kind, types.Optional) and isinstance(kind.type, _KINDS)
        has_parts = is_optional or isinstance(kind, _KINDS)
        return f"{self.name(kind)}({value})" if has_parts else value


@intrinsic
def _blank(typingctx: Any, value: Any) -> tuple[Any, Callable[..., Any]] | None:
    """Return an instance of the class of another one, whose attributes are not set."""
    if not isinstance(value, types.ClassInstanceType):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_data_type(value.get_data_type())
        size = ir.Constant(ir.IntType(64), context.get_abi_sizeof(kind))
        free = imp_dtor(context, builder.module, value)
        owner = context.nrt.meminfo_alloc_dtor(builder, size, free)
        data = builder.bitcast(context.nrt.meminfo_data(builder, owner), kind.as_pointer())
        builder.store(cgutils.get_null_value(kind), data)  # what is freed when it is set
        made = context.make_helper(builder, value)
        made.meminfo, made.data = owner, data
        return made._getvalue()

    return value(value), codegen
