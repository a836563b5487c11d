"""Printing of generated code as Python text."""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterator
from typing import Any, TypeGuard

UNDEFINED = "undefined"  # printed for a value that is undefined on some path
PARALLEL = "numba.prange"  # what parallel loops are over
# the fields of statements that hold targets, and the expressions whose parts are targets
_TARGETS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Assign: ("targets",), ast.AugAssign: ("target",), ast.AnnAssign: ("target",),
    ast.For: ("target",), ast.comprehension: ("target",), ast.NamedExpr: ("target",),
}  # fmt: skip
_PATTERNS = (ast.Tuple, ast.List, ast.Starred)


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


def complete(node: Any, context: type[ast.expr_context] = ast.Load) -> Any:
    """Return a copy of generated code, as Python's parser makes it of the text of the code.

    A name with dots becomes the attribute of a module. The sign of a negative constant becomes an
    operation, which prints with parentheses; infinities and nan become attributes of NumPy. What is
    assigned is marked as a target. No node is in two places.
    """
    kind = type(node)
    if kind is ast.Name:
        return qualified(node.id, context)
    if kind is ast.Constant:
        return _readable_number(node)
    made = kind(lineno=0) if isinstance(node, ast.stmt) else kind()
    targets = _TARGETS.get(kind, ())
    passed = context if kind in _PATTERNS else ast.Load
    for field in node._fields:
        part = getattr(node, field, None)
        own = ast.Store if field in targets else passed
        if isinstance(part, ast.expr_context):
            part = context()
        elif isinstance(part, ast.AST):
            part = complete(part, own)
        elif isinstance(part, list):
            part = [complete(item, own) if isinstance(item, ast.AST) else item for item in part]
        setattr(made, field, part)
    return made


def qualified(text: str, context: type[ast.expr_context] = ast.Load) -> ast.expr:
    """Return a name, or the attribute of a module that a name with dots stands for."""
    first, *others = text.split(".")
    assert all(map(str.isidentifier, (first, *others))), text
    found: ast.expr = ast.Name(first, ast.Load() if others else context())
    for attribute in others:
        found = ast.Attribute(found, attribute, ast.Load())
    return found


def _readable_number(node: ast.Constant) -> ast.expr:
    value = node.value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != value:
            return qualified("np.nan")
        if math.copysign(1.0, value) < 0:
            return ast.UnaryOp(ast.USub(), _readable_number(ast.Constant(-value)))
        if math.isinf(value):
            return qualified("np.inf")
    if isinstance(value, complex):  # the sum of its parts
        return ast.parse(ast.unparse(node), mode="eval").body
    return ast.Constant(value)


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
