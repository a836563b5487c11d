"""The source of a user's function: its tree, where it stands, and what its names mean."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import textwrap
import types
from typing import Any

from tapegrad.transform.errors import TransformError

MISSING = object()


class Source:
    """What a plain Python function was compiled from.

    Attributes
    ----------
    function
        The Python function.
    tree
        Its definition; line numbers are those of its file.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.name = function.__name__
        self.filename = function.__code__.co_filename
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            raise TransformError(
                f"the source of {self.name} cannot be read, and its derivative is made from it; "
                "define it in a file (or a notebook cell)"
            ) from None
        try:
            module = ast.parse(textwrap.dedent("".join(lines)))
        except SyntaxError:
            module = ast.Module([], [])
        tree = module.body[0] if module.body else None
        if not isinstance(tree, ast.FunctionDef):
            raise TransformError(
                f"{self.name} is not a function defined by `def`; write it as one, in lines of its "
                "own"
            )
        ast.increment_lineno(tree, first - 1)
        self.tree = tree
        closure = inspect.getclosurevars(function)
        self._closure = closure.nonlocals
        self._globals = function.__globals__

    def text_of(self, line: int) -> str:
        """Return a line of the file."""
        return linecache.getline(self.filename, line).strip()

    def lookup(self, identifier: str) -> Any:
        """Return what a name of the function's surroundings stands for, or MISSING."""
        for scope in (self._closure, self._globals):
            if identifier in scope:
                return scope[identifier]
        return getattr(builtins, identifier, MISSING)

    def refuse(self, what: str, node: Any) -> TransformError:
        """Return the error for a construct at a node (or line)."""
        line = node if isinstance(node, int) else getattr(node, "lineno", self.tree.lineno)
        return TransformError(what, self, line)
