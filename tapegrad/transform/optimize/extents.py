"""The extents of the arrays of a function, as texts that can be compared."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tapegrad.transform.generated import Facts
from tapegrad.transform.kinds import is_array
from tapegrad.transform.syntax import subtree, text_of

Index = tuple[str, ...]  # the texts of extents, or of the indices of an element


class Extents:
    """What the names of a function say of extents.

    Parameters
    ----------
    tree
        The function.
    facts
        What is known of its names.

    Attributes
    ----------
    once
        The names that one statement assigns.
    """

    def __init__(self, tree: ast.FunctionDef, facts: Facts) -> None:
        self.facts = facts
        names = [n for n in subtree(tree) if isinstance(n, ast.Name)]
        count = Counter(n.id for n in names if isinstance(n.ctx, ast.Store))
        self.once = {n for n in count if count[n] == 1}
        given = {parameter.arg for parameter in tree.args.args}
        self._fixed = (self.once - given) | (given - count.keys())  # they have one value
        self._names = dict(self._named(tree))

    def _named(self, tree: ast.FunctionDef) -> Iterator[tuple[str, str]]:
        """Yield names that are extents of arrays, and what they are: ``x.shape[0]``."""
        values: dict[str, str] = {}
        for node in subtree(tree):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
                if target.id in self._fixed:
                    values[target.id] = text_of(node.value)
        for name in values:
            text = values[name].removeprefix("max(").removesuffix(", 0)")  # of a loop
            base, bracket, index = values.get(text, text).partition("[")
            shape = values.get(base, base)
            if bracket and index[:-1].isdigit() and shape.removesuffix(".shape") in self._fixed:
                yield name, f"{shape}[{index}"

    def known(self, texts: Index) -> Index:
        """Return extents with what they are in place of names."""
        return tuple(self._known(self._names.get(text, text)) for text in texts)

    def _known(self, text: str) -> str:
        """Return what the function that this one was made from says of an extent."""
        name, is_of_array, axis = text.removesuffix("]").partition(".shape[")
        if self.facts.extents is None or name not in self._fixed:
            return text
        if is_of_array:
            key = self.facts.extents.of(name, int(axis)) if name in self.facts.kinds else None
        else:
            key = self.facts.extents.of_number(ast.Name(name, ast.Load()))
        return text if key is None else repr(key)

    def of_zeros(self, call: ast.expr) -> Index:
        """Return the extents of the zeros that a call makes; none if it makes no zeros."""
        return self._of(call, "np.zeros")

    def of_empty(self, call: ast.expr) -> Index:
        """Return the extents of the array without values that a call makes, if it makes one."""
        return self._of(call, "np.empty")

    def _of(self, call: ast.expr, maker: str) -> Index:
        if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords:
            return ()
        (given,) = call.args
        name = text_of(call.func)
        if name == maker:
            extents = given.elts if isinstance(given, ast.Tuple) else [given]
            return tuple(map(text_of, extents))
        if name == f"{maker}_like" and isinstance(given, ast.Name) and given.id in self._fixed:
            kind = self.facts.kind(given.id)
            if is_array(kind):
                return tuple(f"{given.id}.shape[{axis}]" for axis in range(kind.ndim))
        return ()
