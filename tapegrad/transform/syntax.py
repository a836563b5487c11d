"""The source of functions, the nodes of its syntax tree, and identifiers."""

from __future__ import annotations

import ast
import inspect
import keyword
import linecache
import unicodedata
from collections.abc import Container, Hashable, Iterator
from types import FunctionType
from typing import Any, TypeGuard

PURE = frozenset(
    [
        *("abs", "all", "any", "bool", "chr", "complex", "divmod", "float", "hash", "int"),
        *("isinstance", "len", "max", "min", "ord", "pow", "range", "round", "str", "sum"),
    ]
)
"""Python's functions that numba takes, and that only compute a value from their arguments."""
_LEAVES = frozenset([ast.Name, ast.Constant])  # have no parts but a context


def lines_of(function: FunctionType) -> list[str]:
    """Return the lines of a function, its decorators first.

    They are those of its code; `inspect` looks for the function that it was decorated to look like.

    Raises
    ------
    OSError
        If there is no source.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)[code.co_firstlineno - 1 :]
    if not lines:
        raise OSError(f"there is no source of {code.co_filename}")
    return inspect.getblock(lines)


def identifier_of(function: FunctionType) -> str:
    """Return the identifier that stands for a function in generated code.

    Its ``__name__`` may be any text.
    """
    return identifier(function.__code__.co_name, "function")


def identifier(text: str, other: str) -> str:
    """Return a text if it is an identifier as Python reads it, else another one."""
    is_one = text.isidentifier() and not keyword.iskeyword(text)
    return text if is_one and unicodedata.is_normalized("NFKC", text) else other


def text_of(node: ast.AST) -> str:
    """Return the text of a node, as `ast.unparse` does.

    Names, attributes of names and integers, which most nodes are, take it much less time.
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
        return f"{text_of(node.value)}.{node.attr}"
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return repr(node.value)
    return ast.unparse(node)


def callee_of(node: ast.AST | None) -> str:
    """Return the name of the function that a node calls, with its module; "" for other nodes."""
    if not isinstance(node, ast.Call):
        return ""
    parts, found = [], node.func
    while isinstance(found, ast.Attribute):
        parts.append(found.attr)
        found = found.value
    return ".".join([found.id, *reversed(parts)]) if isinstance(found, ast.Name) else ""


def key_of(node: Any) -> Hashable:
    """Return a value that is equal for equal code."""
    kind = type(node)
    if kind is ast.Name:
        return node.id
    if kind is ast.Constant:
        return type(node.value), node.value
    if kind is list or kind is tuple:
        return tuple(map(key_of, node))
    if isinstance(node, ast.expr_context):
        return None
    if isinstance(node, ast.AST):
        return (kind, *(key_of(getattr(node, field, None)) for field in node._fields))
    return node


def subtree(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes inside, like `ast.walk`, which takes four times as long.

    The contexts of names (``ast.Load`` and others) are left out.

    Parameters
    ----------
    tree
        The node. Its parts may be changed after they were yielded.
    """
    found = [tree]
    push = found.append
    for node in found:
        if type(node) not in _LEAVES:
            parts = node.__dict__
            for field in node._fields:
                part = parts.get(field)
                if isinstance(part, ast.AST):
                    push(part)
                elif type(part) is list:
                    for item in part:
                        if isinstance(item, ast.AST):
                            push(item)
        yield node


def unlike(name: str, others: Container[str]) -> str:
    """Return a variant of a name that is not in `others`."""
    while name in others:
        name += "_"
    return name


def is_loop(node: ast.AST | None) -> TypeGuard[ast.For | ast.While]:
    """Whether a node is a loop."""
    return isinstance(node, (ast.For, ast.While))


def binding(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return the name that a statement assigns a value, and the value; None for other nodes."""
    match node:
        case ast.Assign([ast.Name(id=name), *_], value):
            return name, value
    return None


def array_of(node: ast.AST) -> str:
    """Return the name of the array that an element or a part is of, "" for other nodes."""
    match node:
        case ast.Subscript(ast.Name(id=array)):
            return array
    return ""


def blocks_of(node: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a statement."""
    return [getattr(node, field) for field in ("body", "orelse") if getattr(node, field, None)]


def blocks_in(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield a block and all blocks inside, each before those in it.

    A block may be changed after it was yielded.
    """
    yield body
    for node in body:
        for block in blocks_of(node):
            yield from blocks_in(block)


def may_leave(node: ast.AST) -> bool:
    """Whether a statement may leave the block that it is in, before the end of the block."""
    return any(isinstance(n, (ast.Break, ast.Continue, ast.Return)) for n in subtree(node))


def leaves(node: ast.expr) -> list[ast.expr]:
    """Return the items of a tuple, with nested tuples flattened."""
    if isinstance(node, ast.Tuple):
        return [leaf for item in node.elts for leaf in leaves(item)]
    return [node]


def paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return the pairs of targets and values of an assignment."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        if len(target.elts) == len(value.elts):
            found = zip(target.elts, value.elts, strict=True)
            return [pair for one, two in found for pair in paired(one, two)]
    return [(target, value)]
