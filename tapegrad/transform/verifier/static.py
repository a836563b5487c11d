"""Facts about the names of functions from their text, for walks through them."""

from __future__ import annotations

import ast
from typing import Any

from tapegrad.transform.nodes import is_number
from tapegrad.transform.verifier.code import assigned, module_call, name_of, names_in, noted
from tapegrad.transform.verifier.cotangents import TAPE


class Static:
    """Facts about the names of some functions from their text.

    Attributes
    ----------
    zeros
        Arrays whose cotangents are new or given, although the arrays may be views of others.
    copies
        Pairs of names where the first is assigned from the second.
    needed
        Names of future positions on the tape.
    differentiated
        User functions that have a reverse half in the module.
    flat
        Names of what has no derivative by its type.
    """

    def __init__(self, checked: Any, differentiated: set[str]) -> None:
        codes, cotangents = checked.codes, checked.cotangents
        self.differentiated = differentiated
        self.arrays: set[str] = checked.memory.arrays
        self.flat = {name for code in codes for name in code.flat}
        self.zeros: set[str] = set()
        self.copies: set[tuple[str, str]] = set()
        self.needed: set[str] = set()
        self.primal = {n for code in codes for n in code.locals} - cotangents.names
        for code in codes:
            given = {cotangents.values[p] for p in code.parameters if p in cotangents.values}
            self.zeros |= given - set(code.parameters)  # parts of arguments have separate arrays
            for name, value in code.pairs:
                match value:
                    case ast.Name(id=source):
                        self.copies.add((name, source))
                    case ast.BinOp(ast.Name("top")):
                        self.needed.add(name)
                    case ast.Call() if module_call(value)[1] in ("zeros", "zeros_like"):
                        if name in cotangents.names:
                            self.zeros.add(cotangents.value_of(name))
        every = {n.id for code in codes for s in code.statements for n in names_in(s)}
        self.outside = {n for n in every if cotangents.of(n)} - self.primal
        self.primal |= self.outside
        self._copied: dict[str, set[str]] = {}

    def is_copy(self, name: str, other: str) -> bool:
        """Whether a name may be a copy of another one, possibly through several assignments."""
        found = self._copied.get(name)
        if found is None:
            found, todo = set(), [name]
            while todo:
                one = todo.pop()
                more = {b for a, b in self.copies if a == one} - found
                found |= more
                todo += more
            self._copied[name] = found
        return other in found


@noted
def names_of_loop(node: ast.For | ast.While) -> set[str]:
    """Return the names that a loop assigns (cached)."""
    return assigned(node.body)


@noted
def counters(node: ast.For | ast.While) -> set[str]:
    """Return the names that count the iterations of a loop (cached)."""
    return {
        name
        for s in node.body
        if isinstance(s, ast.AugAssign) and is_number(s.value, 1)
        if (name := name_of(s.target)) and name not in TAPE
    }
