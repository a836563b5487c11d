"""Extents of arguments that are probably equal, since loops combine their elements.

``u + 0.5 * h * k`` in a loop says so of the extents of ``u`` and ``k``. A version of the function
in which they are known to be equal runs if that is true, another one for arguments that are
broadcast.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tapegrad.transform.ir import Block, Carried, FunctionIR, If, Let, Loop, walk
from tapegrad.transform.kinds import is_array
from tapegrad.transform.lowering.elements import leaves
from tapegrad.transform.lowering.extents import Extents, Key
from tapegrad.transform.lowering.fusion import Fusion

Equal = dict[Key, Key]  # what stands for the extents of arguments


def assumptions(function: FunctionIR) -> Equal:
    """Return what is probably equal, empty if nothing is to be gained.

    Parameters
    ----------
    function
        The function, in normal form with types, before its array expressions become loops.
    """
    found: Equal = {}
    while True:
        search = _Search(function, found)
        if not search.run():
            return found


def conditions(equal: Equal, params: list[str], names: list[str]) -> str:
    """Return the condition that a version is for, with other names of the parameters."""
    named = dict(zip(params, names, strict=True))

    def text(key: Any) -> str:
        fixed = Extents.constant(key)
        return f"{named[key[1]]}.shape[{key[2]}]" if fixed is None else str(fixed)

    return " and ".join(f"{text(key)} == {text(other)}" for key, other in equal.items())


class _Search:
    """Looks for extents that differ as far as is known."""

    def __init__(self, function: FunctionIR, equal: Equal) -> None:
        self.function = function
        self.equal = equal
        self.fusion = Fusion(replace(function, equal=equal))
        self.extents = self.fusion.extents

    def run(self) -> bool:
        """Enter what else may be equal; return whether there is any."""
        before = len(self.equal)
        for let in self.lets(self.function.body):
            for keys in self.compared(let):
                self.enter(keys)
        return len(self.equal) > before

    def lets(self, block: Block) -> Iterator[Let]:
        """Yield the elementwise operations in loops."""
        for statement in block:
            if isinstance(statement, If):
                yield from self.lets(statement.then)
                yield from self.lets(statement.orelse)
            elif isinstance(statement, Loop):
                lets = [s for s in walk(statement.body) if isinstance(s, Let)]
                yield from filter(self.fusion.elements.are_computed, lets)

    def compared(self, let: Let) -> Iterator[set[Key]]:
        """Yield the extents of operands along each axis."""
        types = self.function.types
        arrays = {n for n in leaves([let]) if is_array(types.get(n))}
        ndim = types[let.target].ndim
        for turn in range(ndim):
            axes = [(n, turn - ndim + types[n].ndim) for n in arrays]
            yield {self.first(self.extents.of(n, axis)) for n, axis in axes if axis >= 0}

    def first(self, key: Key) -> Key:
        """Return an extent of what a loop carries before its first iteration."""
        if key[0] == "cut":
            return ("cut", self.first(key[1]), key[2])
        match self.extents.made.get(key[1]) if key[0] == "own" else None:
            case Carried(init=ast.Name(id=init)):
                return self.first(self.extents.of(init, key[2]))
        return key

    def enter(self, keys: set[Key]) -> None:
        """Let extents be equal if they are those of arguments, or constants."""
        while len(keys) > 1 and all(key[0] == "cut" for key in keys):
            if len({key[2] for key in keys}) > 1:
                return
            keys = {key[1] for key in keys}
        constants = {key for key in keys if Extents.constant(key) is not None}
        others = sorted(keys - constants, key=repr)
        if len(keys) < 2 or len(constants) > 1 or not all(map(self.is_given, others)):
            return
        if any(Extents.constant(key) == 1 for key in constants):
            return
        stands, *rest = [*constants, *others]
        self.equal.update(dict.fromkeys(rest, stands))
        for key, other in self.equal.items():  # what others stood for
            self.equal[key] = self.equal.get(other, other)

    def is_given(self, key: Key) -> bool:
        """Whether an extent is that of an argument."""
        return key[0] == "own" and key[1] in self.function.params
