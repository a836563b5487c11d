"""Printing of generated code as Python text."""

from __future__ import annotations

import ast
import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any, TypeGuard

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
    return ast.unparse(_printable(node)) if node is not None else "None"


def show_function(node: ast.FunctionDef) -> str:
    """Return the text of a function."""
    return ast.unparse(_printable(node)) + "\n"


def _printable(node: Any) -> Any:
    """Return a node whose numbers print as Python reads them; what does not change is shared.

    The sign of a negative constant becomes an operation, which prints with parentheses. Infinities
    and nan become names.
    """
    kind = type(node)
    if kind is ast.Name:
        return node
    if kind is ast.Constant:
        return _printable_number(node)
    if kind is list:
        items = [_printable(item) if isinstance(item, ast.AST) else item for item in node]
        is_same = all(made is item for made, item in zip(items, node, strict=True))
        return node if is_same else items
    changes = {}
    for field in node._fields:
        part = getattr(node, field, None)
        if isinstance(part, (ast.AST, list)):
            made = _printable(part)
            if made is not part:
                changes[field] = made
    if not changes:
        return node
    changed = copy.copy(node)
    for field, part in changes.items():
        setattr(changed, field, part)
    return changed


def _printable_number(node: ast.Constant) -> ast.expr:
    value = node.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != value:
            return ast.Name("np.nan", ast.Load())
        if math.copysign(1.0, value) < 0:
            return ast.UnaryOp(ast.USub(), _printable_number(ast.Constant(-value)))
        if math.isinf(value):
            return ast.Name("np.inf", ast.Load())
    return node


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
