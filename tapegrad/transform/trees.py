"""Copies of trees of generated code, and trees from templates.

A template is code with names for its parts::

    quoted("first + low * step", first=start, low=1, step=step)

It is parsed once, and each tree is a copy of it with the parts in place of their names. A part is
an expression, the name of a value, a number, or a list: of statements for a statement that is the
name of the part, of arguments or items for ``*part``.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tapegrad.transform.syntax import key_of, name_of

# the fields of statements that hold targets, and the expressions whose parts are targets
_TARGETS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Assign: ("targets",), ast.AugAssign: ("target",), ast.AnnAssign: ("target",),
    ast.For: ("target",), ast.comprehension: ("target",), ast.NamedExpr: ("target",),
    ast.Delete: ("targets",), ast.withitem: ("optional_vars",),
}  # fmt: skip
_PATTERNS = (ast.Tuple, ast.List, ast.Starred)
NO_PARTS: Mapping[str, Any] = {}

Part = ast.expr | str | int | float | Sequence[ast.expr | str] | Sequence[ast.stmt]


def complete(
    node: Any,
    context: type[ast.expr_context] = ast.Load,
    parts: Mapping[str, Any] = NO_PARTS,
) -> Any:
    """Return a copy of generated code, as Python's parser makes it of the text of the code.

    A name with dots becomes the attribute of a module. The sign of a negative constant becomes an
    operation, which prints with parentheses; infinities and nan become attributes of NumPy. What is
    assigned is marked as a target. No node is in two places.

    Parameters
    ----------
    node
        The code.
    context
        How an expression is used.
    parts
        What takes the places of names.
    """
    kind = type(node)
    if kind is ast.Name:
        if node.id in parts:
            return complete(_expression(parts[node.id]), context)
        return qualified(node.id, context)
    if kind is ast.Constant:
        return _readable_number(node)
    made = kind(lineno=0) if isinstance(node, ast.stmt) else kind()
    targets = _TARGETS.get(kind, ())
    passed = context if kind in _PATTERNS else ast.Load
    for field in node._fields:
        part = getattr(node, field, None)
        own = passed
        if field in targets:
            own = ast.Del if kind is ast.Delete else ast.Store
        if isinstance(part, ast.expr_context):
            part = context()
        elif isinstance(part, ast.AST):
            part = complete(part, own, parts)
        elif isinstance(part, list):
            part = _completed(part, own, parts)
        setattr(made, field, part)
    return made


def qualified(text: str, context: type[ast.expr_context] = ast.Load) -> ast.expr:
    """Return a name, or the attribute of a module that a name with dots stands for."""
    first, *others = text.split(".")
    assert all(map(str.isidentifier, (first, *others))), text
    if not others:
        return ast.Name(first, context())
    found: ast.expr = ast.Name(first, ast.Load())
    for attribute in others:
        found = ast.Attribute(found, attribute, ast.Load())
    return found


def qualified_call(function: str, *arguments: ast.expr) -> ast.Call:
    """Return the call of a function, whose name may have dots."""
    return ast.Call(qualified(function), list(arguments), [])


def quoted(template: str, **parts: Part) -> ast.expr:
    """Return the expression of a template.

    Parameters
    ----------
    template
        Its text.
    **parts
        What takes the places of names in it.
    """
    (statement,) = _template(template)
    assert isinstance(statement, ast.Expr)
    found = complete(statement.value, parts=parts)
    assert isinstance(found, ast.expr)
    return found


def quoted_block(template: str, **parts: Part) -> list[ast.stmt]:
    """Return the statements of a template.

    Parameters
    ----------
    template
        Its text.
    **parts
        What takes the places of names in it.
    """
    return _completed(_template(template), ast.Load, parts)


def is_code(node: ast.AST, template: str, **parts: Part) -> bool:
    """Whether an expression or statement is that of a template.

    Parameters
    ----------
    node
        The expression or statement.
    template
        The text of what it is compared with.
    **parts
        What takes the places of names in it.
    """
    (wanted,) = quoted_block(template, **parts)
    if isinstance(wanted, ast.Expr) and not isinstance(node, ast.Expr):
        return key_of(node) == key_of(wanted.value)
    return key_of(node) == key_of(wanted)


@functools.cache
def _template(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _completed(
    items: list[Any], context: type[ast.expr_context], parts: Mapping[str, Any]
) -> list[Any]:
    """Return copies of statements or expressions, with those of lists in place of their names."""
    found: list[Any] = []
    for item in items:
        name = name_of(item.value) if isinstance(item, (ast.Expr, ast.Starred)) else ""
        value = parts.get(name)
        if isinstance(value, (list, tuple)):
            is_block = isinstance(item, ast.Expr)
            found += [complete(v if is_block else _expression(v), context) for v in value]
        else:
            found.append(complete(item, context, parts) if isinstance(item, ast.AST) else item)
    return found


def _expression(part: Any) -> ast.expr:
    if isinstance(part, ast.expr):
        return part
    return qualified(part) if isinstance(part, str) else ast.Constant(part)


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
