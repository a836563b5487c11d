"""Names whose values have different types on different paths."""

from __future__ import annotations

import ast
from typing import Any

from numba import types

from tapegrad.transform.ir import Atom, Block, always_raises, constant, name
from tapegrad.transform.kinds import holds_real, is_array
from tapegrad.transform.lowering.lowerer import Lowerer

ZEROS = {types.float64: 0.0, types.complex128: 0j, types.boolean: False, types.int64: 0}


def check_merge(lowering: Lowerer, kind: Any, *values: Any) -> None:
    """Refuse a name of a type without derivative whose value has one on some path.

    Parameters
    ----------
    lowering
        Knows the types of values.
    kind
        The type of the name.
    *values
        The values of the name on each path, None if undefined.
    """
    if not holds_real(kind) and any(map(holds_real, lowering.types_of(*values))):
        raise lowering.refuse(
            f"cannot differentiate a variable of type {kind}, which has other types on some paths; "
            "give it one type"
        )


def check_same(lowering: Lowerer, found: set[Any]) -> None:
    """Refuse a name of several types if it is not certain which of them numba considers."""
    if len({(t.dtype, t.ndim) if is_array(t) else t for t in found}) > 1:
        shown = ", ".join(sorted(map(str, found)))
        raise lowering.refuse(
            "cannot differentiate a variable whose type depends on a condition that numba decides "
            f"in advance in some places only ({shown}); give it one type"
        )


def converted_at_end(lowering: Lowerer, block: Block, value: Atom, kind: Any) -> Atom:
    """Return the value that a block assigns to a name, converted to the type of the name.

    If numba removed the other blocks as dead, it would use the type of this value.
    """
    own = lowering.type_of(value)
    # numba converts a value with a derivative
    passive = (types.Integer, types.Boolean)
    if isinstance(value, ast.Constant):
        passive = (types.Number, types.Boolean)
    if own == kind or not isinstance(kind, types.Number) or not isinstance(own, passive):
        return value
    if always_raises(block):
        return value
    if isinstance(value, ast.Constant) and kind in ZEROS:
        number: Any = value.value
        return constant(type(ZEROS[kind])(number))
    block.append(let := lowering.conversion(value, kind, lowering.fresh("t")))
    return name(let.target)
