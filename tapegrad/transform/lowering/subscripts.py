"""Subscripts that are named tuples of indices."""

from __future__ import annotations

import ast
from typing import Any

from numba.core import types

from tapegrad.transform.ir import Let, constant, name
from tapegrad.transform.rules import base as rules
from tapegrad.transform.rules.generators import Lowerer
from tapegrad.transform.syntax import key_of

# types with a single value
_VALUES = {types.none: None, types.ellipsis: Ellipsis}


def taken_apart(lowering: Lowerer, node: Any, line: int) -> Any:
    """Return a subscript of an array with the name of a tuple replaced by its items.

    An array or a slice among the items decides the rule, so it must be visible. A tuple of integers
    is kept.
    """
    kind = lowering.type_of(node)
    if not isinstance(kind, types.BaseTuple):
        return node
    if all(isinstance(types.unliteral(item), types.Integer) for item in kind):
        return node
    parts: list[ast.expr] = []
    for position, item in enumerate(kind):
        if item in _VALUES:
            parts.append(constant(_VALUES[item]))
            continue
        part = ast.Subscript(node, constant(position), ast.Load())
        key = key_of(part)
        if key not in lowering.known:
            target = lowering.known[key] = lowering.fresh(f"{node.id}_{position}")
            lowering.types[target] = types.unliteral(item)
            lowering.block.append(Let(target, part, line, rules.Passive(True)))
        parts.append(name(lowering.known[key]))
    return ast.Tuple(parts, ast.Load())
