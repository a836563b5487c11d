"""Rows of the tape are kept in the array of a gradient that replaces them.

A reverse loop that reads an element of a row and sets the same element of a gradient, which nothing
has used before, needs memory for one of them only::

    row = runtime.row(tape, top, trips)
    for i in range(n):                      for i in range(n):
        row[i] = v                              x_bar[i] = v
    ...                                     ...
    row = runtime.row(tape, top, trips)
    for i in range(n):                      for i in range(n):
        v = row[i]                              v = x_bar[i]
        x_bar[i] = v_bar * v                    x_bar[i] = v_bar * v
"""

from __future__ import annotations

import ast

from numba.core import types

from tapegrad.transform.generated import Facts
from tapegrad.transform.ir import names_in
from tapegrad.transform.optimize.extents import Extents
from tapegrad.transform.optimize.function import Function
from tapegrad.transform.optimize.making import is_plain_array
from tapegrad.transform.optimize.unread_zeros import Index, Nest, index_of, nest_of
from tapegrad.transform.syntax import arguments_of, binding, nodes_in, subtree


def keep_rows_in_gradients(function: Function) -> bool:
    """Keep rows in gradients where that is possible; return whether there are any."""
    return _Sharing(function.tree, function.facts).run()


class _Sharing:
    """The pass over one function."""

    def __init__(self, tree: ast.FunctionDef, facts: Facts) -> None:
        self.body = tree.body
        self.facts = facts
        self.extents = Extents(tree, facts)
        self.uses: dict[str, list[ast.Name]] = {}
        for node in nodes_in(tree, ast.Name):
            self.uses.setdefault(node.id, []).append(node)

    def run(self) -> bool:
        """Run the pass; return whether anything changes."""
        found = False
        for place, node in enumerate(self.body):
            if (bound := binding(node)) is not None:
                name, value = bound
                shape = self.extents.of_empty(value)
                if len(shape) == 1 and self.is_vector(name):
                    found |= self.share(name, place, shape[0])
        return found

    def is_vector(self, name: str) -> bool:
        kind = self.facts.kind(name)
        return is_plain_array(kind) and kind.ndim == 1 and kind.dtype == types.float64

    def share(self, array: str, place: int, extent: ast.expr) -> bool:
        """Keep a row in an array that a loop sets before anything else uses it.

        Return whether there is one.
        """
        for later in range(place + 1, len(self.body)):
            uses = names_in(self.body[later]).count(array)
            if uses:
                nest = nest_of(self.body[later])
                if nest is None or uses > 1:
                    return False
                if self.extents.known(nest.extents) != self.extents.known([extent]):
                    return False
                return self.share_with(array, place, later, nest)
        return False

    def share_with(self, array: str, place: int, later: int, nest: Nest) -> bool:
        """Keep one of the rows that a loop reads before it sets the array."""
        stores = [k for k, inner in enumerate(nest.body) if _stored(inner, array) == nest.targets]
        for inner in nest.body[: stores[0] if stores else 0]:
            match inner:
                case ast.Assign(_, ast.Subscript(ast.Name(id=row)) as element) if (
                    index_of(element, row) == nest.targets
                    and names_in(self.body[later]).count(row) == 1
                    and self.replace(row, array, (place, later), nest.extents)
                ):
                    return True
        return False

    def replace(
        self, row: str, array: str, places: tuple[int, int], extents: list[ast.expr]
    ) -> bool:
        """Replace a row of the tape by an array if it is used in no other way.

        Parameters
        ----------
        row, array
            Their names.
        places
            The places of what makes the array, and of the loop.
        extents
            The extent of the array.
        """
        makers = []
        for at, node in enumerate(self.body):
            match binding(node):
                case name, value if name == row:
                    makers.append((at, value))
        if len(makers) != 2 or not places[0] < makers[0][0] < makers[1][0] < places[1]:
            return False
        for _, value in makers:
            given = arguments_of(value, "runtime.row")
            if given is None or self.extents.known([given[2]]) != self.extents.known(extents):
                return False
        between = self.body[makers[0][0] + 1 : makers[1][0]]
        stored = sum(_stores(node, row) for node in between)
        used = sum(names_in(node).count(row) for node in between)
        if stored != used or len(self.uses[row]) != 3 + used:
            return False
        for at, _ in makers:
            self.body[at] = ast.copy_location(ast.Pass(), self.body[at])
        for use in self.uses.pop(row):
            use.id = array
            self.uses.setdefault(array, []).append(use)
        return True


def _stores(node: ast.AST, row: str) -> int:
    """Return how often a node sets an element of a row."""
    return sum(_stored(part, row) is not None for part in subtree(node))


def _stored(node: ast.AST, array: str) -> Index | None:
    """Return the indices of the element of an array that a statement sets, None for others."""
    return index_of(node.targets[0], array) if isinstance(node, ast.Assign) else None
