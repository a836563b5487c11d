"""Where the elements of arrays are written, and where they are final."""

from __future__ import annotations

from typing import Any

from tapegrad.transform.codegen.analysis import Arrays, Scopes, written
from tapegrad.transform.ir import Block, FunctionIR, Let, Statement, walk
from tapegrad.transform.kinds import may_share


class Writes:
    """The statements that write to arrays.

    The root of a name is the array that it is a view of, by operations only: names that a loop or a
    branch defines are roots themselves.

    Parameters
    ----------
    function
        The function, lowered.
    arrays
        Its alias classes.
    scopes
        Its blocks.
    """

    def __init__(self, function: FunctionIR, arrays: Arrays, scopes: Scopes) -> None:
        self.arrays, self.scopes = arrays, scopes
        self.by_root: dict[str, list[Statement]] = {}
        for statement in walk(function.body):
            for array in written(statement):
                self.by_root.setdefault(self.root(array), []).append(statement)
        self.roots: dict[str, set[str]] = {}  # by alias class
        for identifier, kind in function.types.items():
            if may_share(kind):
                self.roots.setdefault(arrays.of(identifier), set()).add(self.root(identifier))

    def maker(self, array: str) -> Any:
        """Return the statement that defines a name, None for an argument."""
        return self.scopes.makers.get(array)

    def root(self, array: str) -> str:
        """Return the root of a name."""
        maker = self.maker(array)
        while isinstance(maker, Let) and maker.rule is not None and maker.rule.base is not None:
            array = maker.rule.base
            maker = self.maker(array)
        return array

    def is_new(self, array: str) -> bool:
        """Whether an operation makes an array that shares nothing with other ones."""
        maker = self.maker(array)
        if not isinstance(maker, Let):
            return False
        return not any(array in group for group in self.arrays.joined_by(maker))

    def is_inside(self, array: str) -> bool:
        """Whether a name is defined in the block of its root, or in a block inside."""
        outer, scope = map(self.scopes.scope_of.get, (self.root(array), array))
        while scope is not None and scope is not outer:
            scope = scope.parent
        return scope is not None

    def precede(self, array: str, statement: Statement) -> bool:
        """Whether all writes to a new array come before a statement, each time it is made."""
        block = self.scopes.scope_of[array].block
        place = position(statement, block)
        return all(position(write, block) < place for write in self.by_root.get(array, ()))

    def may_change(self, array: str, statements: Block) -> bool:
        """Whether some statements may write to an array."""
        of = self.arrays.of(array)
        return any(self.arrays.of(n) == of for s in walk(statements) for n in written(s))

    def may_follow(self, array: str, statement: Statement) -> bool:
        """Whether an array may be written after a statement; other names of it that write count."""
        if self.arrays.keeps(array, self.scopes.roots[id(statement)]):
            return False
        root = self.root(array)
        others = self.roots.get(self.arrays.of(array), set()) - {root}
        is_only = others.isdisjoint(self.by_root)
        return not (is_only and self.is_new(root) and self.precede(root, statement))

    def are_over(self, array: str, statement: Statement) -> bool:
        """Whether it is known that an array is not written from a statement onwards."""
        root = self.root(array)
        is_only = self.roots.get(self.arrays.of(array)) == {root}
        return is_only and self.is_new(root) and self.precede(root, statement)


def position(statement: Statement, block: Block) -> int:
    """Return the position of a statement in a block, or of the one around it; -1 if outside."""
    return next((k for k, s in enumerate(block) if any(x is statement for x in walk([s]))), -1)
