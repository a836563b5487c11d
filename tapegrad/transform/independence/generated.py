"""Functions of a generated module, as they are read again."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field
from typing import Any

from tapegrad.transform.independence.uses import Facts


@dataclass
class Generated:
    """A function of a generated module.

    Attributes
    ----------
    text
        Its source.
    made_from
        The compiled function that it was made from, whose options it inherits.
    facts
        What is known of its names.
    fused
        The indices of loops whose iterations are forward and reverse code, and leave the tape as
        it was.
    is_half
        Whether other loops are forward or reverse code only.
    unit
        What forward and reverse code of the same loops have in common.
    lines
        The lines of the user's loops, by their indices.
    source
        The user's function.
    options
        Its own compiler options.
    """

    text: str
    made_from: Any
    facts: Facts = field(default_factory=lambda: Facts({}))
    fused: set[str] = field(default_factory=set)
    is_half: bool = False
    unit: Any = None
    lines: dict[str, int] = field(default_factory=dict)
    source: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text).body[0]
        assert isinstance(self.tree, ast.FunctionDef)
        self.name = self.tree.name


def copy_with(
    tree: ast.FunctionDef,
    replaced: dict[int, list[ast.stmt]],
    before: dict[int, list[ast.stmt]] | None = None,
) -> ast.FunctionDef:
    """Return a copy of a function with statements in place of loops, and before loops.

    Both are given by the ids of the loops.
    """

    def block(body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for node in body:
            found += (before or {}).get(id(node), [])
            if id(node) in replaced:
                found += replaced[id(node)]
                continue
            made = copy.copy(node)
            for name in ("body", "orelse"):
                if getattr(made, name, None):
                    setattr(made, name, block(getattr(made, name)))
            found.append(made)
        return found

    made = copy.copy(tree)
    made.body = block(tree.body)
    return copy.deepcopy(made)
