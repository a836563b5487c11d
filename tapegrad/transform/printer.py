"""Printing of generated code as Python text."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import TypeGuard

from tapegrad.transform.trees import complete

UNDEFINED = "undefined"  # printed for a value that is undefined on some path
PARALLEL = "numba.prange"  # what parallel loops are over


class Writer:
    """Lines of Python with indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def __call__(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """Append the head of a block and indent the following lines."""
        self(text)
        self.depth += 1

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append a block of the lines written inside; ``pass`` if there are none."""
        self.open(head)
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self("pass")
        self.depth -= 1

    def extend(self, other: Writer) -> None:
        """Append all lines of another writer, indented like the next one here."""
        self.lines += ["    " * self.depth + line for line in other.lines]

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def show(node: ast.expr | ast.stmt | None) -> str:
    """Return the text of an expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        return show_number(node.value)
    return ast.unparse(complete(node)) if node is not None else "None"


def show_number(value: float) -> str:
    """Return a float as Python text."""
    text = repr(value)
    return {"inf": "np.inf", "-inf": "-np.inf", "nan": "np.nan"}.get(text, text)


def is_parallel(node: ast.AST) -> TypeGuard[ast.For]:
    """Whether a node of generated code is a parallel loop."""
    return (
        isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and ast.unparse(node.iter.func) == PARALLEL
    )
