"""Names of one value: of arrays that loops and branches pass on, or that are changed in place."""

from __future__ import annotations

import ast
import operator
from typing import Any

from numba.core.registry import cpu_target

from tapegrad.transform.frontend.normalize import INPLACE, OPERATORS
from tapegrad.transform.ir import Atom, Block, If, Let, Loop, Statement, walk
from tapegrad.transform.kinds import is_array
from tapegrad.transform.syntax import name_of

# calls that change their first argument if it is an array, and return it, such as x += y
INPLACE_CALLS = {f"operator.{INPLACE[text]}": kind() for kind, text in OPERATORS.items()}


def kind_of_operation(operation: ast.operator, kinds: tuple[Any, ...]) -> Any:
    """Return the type that numba has for an operation on arrays, from those of the operands."""
    inplace = INPLACE[OPERATORS[type(operation)]]
    function = getattr(operator, f"__{inplace[1:]}__")
    return cpu_target.typing_context.resolve_function_type(function, kinds, {}).return_type


class SameValues:
    """Finds names that are copies of another name, and removes them from a function.

    Parameters
    ----------
    types
        The numba type of every name.
    """

    def __init__(self, types: dict[str, Any]) -> None:
        self.types = types
        self.same: dict[str, Atom] = {}

    def final(self, atom: Atom) -> Atom:
        """Return the name or constant that an atom is finally replaced by."""
        while (text := name_of(atom)) in self.same:
            atom = self.same[text]
        return atom

    def find(self, block: Block) -> None:
        """Find all copies; remove phis and loop-carried entries that merge a value with itself."""
        found = True
        while found:
            found = False
            for statement in walk(block):
                found |= self._look(statement)

    def _look(self, statement: Statement) -> bool:
        """Look at a statement; return whether a copy was found."""
        if isinstance(statement, Let):
            return self._changed_in_place(statement)
        if isinstance(statement, Loop):
            return self._carried(statement)
        return isinstance(statement, If) and self._chosen(statement)

    def _changed_in_place(self, let: Let) -> bool:
        if let.target in self.same or not is_array(self.types.get(let.target)):
            return False
        match let.expr:
            case ast.Call(ast.Name(id=callee), [changed, *_]) if callee in INPLACE_CALLS:
                self.same[let.target] = self.final(changed)
                return True
        return False

    def _carried(self, loop: Loop) -> bool:
        changed = False
        for entry in list(loop.carried):
            if entry.next is None or not isinstance(entry.init, ast.Name):
                continue
            if name_of(self.final(entry.next)) == entry.phi:
                self.same[entry.phi] = self.same[entry.out] = self.final(entry.init)
                loop.carried.remove(entry)
                changed = True
        return changed

    def _chosen(self, choice: If) -> bool:
        changed = False
        for phi in list(choice.phis):
            if phi.then is None or phi.orelse is None:
                continue
            one, two = self.final(phi.then), self.final(phi.orelse)
            if isinstance(one, ast.Name) and one.id == name_of(two):
                self.same[phi.target] = one
                choice.phis.remove(phi)
                changed = True
        return changed
