"""Values from outside a function: their types, and the parts of tuples."""

from __future__ import annotations

import ast
from typing import Any

import numba
from numba.core import types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target

from tapegrad.transform.frontend.constants import is_followed, plain
from tapegrad.transform.frontend.source import MISSING
from tapegrad.transform.ir import Let, Structure, constant, name
from tapegrad.transform.kinds import holds_real, is_array
from tapegrad.transform.rules import base as rules
from tapegrad.transform.rules.generators import Lowerer


def type_of_constant(lowering: Lowerer, text: str) -> Any:
    """Return the type of a name from outside the function; ``types.none`` for other names."""
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
    lowering: Lowerer, base: ast.expr, value: tuple[Any, ...], kind: Any
) -> Structure:
    """Return the parts of a tuple; parts that are not numbers get names."""
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
