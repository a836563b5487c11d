"""The source of functions, the nodes of its syntax tree, and identifiers."""

from __future__ import annotations

import ast
import inspect
import keyword
import linecache
import unicodedata
from collections.abc import Container, Hashable, Iterable, Iterator
from types import FunctionType
from typing import Any, TypeGuard, TypeVar

PURE = frozenset(
    [
        *("abs", "all", "any", "bool", "chr", "complex", "divmod", "float", "hash", "int"),
        *("isinstance", "len", "max", "min", "ord", "pow", "range", "round", "str", "sum"),
    ]
)
"""Python's functions that numba takes, and that only compute a value from their arguments."""
_LEAVES = frozenset([ast.Name, ast.Constant])  # have no parts but a context
_Node = TypeVar("_Node", bound=ast.AST)


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
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(ast.Name() | ast.Attribute() as base, attribute):
            return f"{text_of(base)}.{attribute}"
        case ast.Constant(value) if type(value) is int:
            return repr(value)
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
        value = node.value  # 0.0 is not -0.0, nor 1 True
        return type(value), repr(value) if isinstance(value, (float, complex)) else value
    if kind is list or kind is tuple:
        return tuple(map(key_of, node))
    if isinstance(node, ast.expr_context):
        return None
    if isinstance(node, ast.AST):
        return (kind, *(key_of(getattr(node, field, None)) for field in node._fields))
    return node


def is_zero(node: ast.AST) -> bool:
    """Whether an expression is the constant 0.0."""
    return isinstance(node, ast.Constant) and repr(node.value) == "0.0"


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


def copied(tree: _Node) -> _Node:
    """Return a copy of a tree, like `copy.deepcopy`, which takes five times as long."""
    kind = type(tree)
    made = kind.__new__(kind)
    own = made.__dict__
    for field, part in tree.__dict__.items():
        if type(part) is list:
            own[field] = [copied(item) if isinstance(item, ast.AST) else item for item in part]
        elif isinstance(part, ast.AST) and not isinstance(part, ast.expr_context):
            own[field] = copied(part)
        else:
            own[field] = part
    return made


def nodes_in(tree: ast.AST, *kinds: type[_Node]) -> Iterator[_Node]:
    """Yield the nodes of some kinds in a tree, the tree itself among them, as `subtree` does."""
    for node in subtree(tree):
        if isinstance(node, kinds):
            yield node


def has(tree: ast.AST, *kinds: type[ast.AST]) -> bool:
    """Whether there are nodes of some kinds in a tree, or it is one."""
    return any(isinstance(node, kinds) for node in subtree(tree))


def unlike(name: str, others: Container[str]) -> str:
    """Return a variant of a name that is not in `others`."""
    while name in others:
        name += "_"
    return name


def is_loop(node: ast.AST | None) -> TypeGuard[ast.For | ast.While]:
    """Whether a node is a loop."""
    return isinstance(node, (ast.For, ast.While))


def name_of(node: ast.AST | None) -> str:
    """Return the name that an expression is, "" for others."""
    return node.id if isinstance(node, ast.Name) else ""


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


def arguments_of(node: ast.AST | None, function: str) -> list[ast.expr] | None:
    """Return the arguments of the call of a function, None for other nodes."""
    return node.args if isinstance(node, ast.Call) and callee_of(node) == function else None


def items_of(node: ast.expr) -> list[ast.expr]:
    """Return the items of a tuple; of another expression, itself."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def has_starred(items: Iterable[ast.expr]) -> bool:
    """Whether one of several items is unpacked, as by ``f(*x)``."""
    return any(isinstance(item, ast.Starred) for item in items)


def may_leave(node: ast.AST) -> bool:
    """Whether a statement may leave the block that it is in, before the end of the block."""
    return has(node, ast.Break, ast.Continue, ast.Return)


def leaves(node: ast.expr) -> list[ast.expr]:
    """Return the items of a tuple, with nested tuples flattened."""
    if isinstance(node, ast.Tuple):
        return [leaf for item in node.elts for leaf in leaves(item)]
    return [node]


def paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return the pairs of targets and values of an assignment."""
    match target, value:
        case ast.Tuple(targets), ast.Tuple(values) if len(targets) == len(values):
            found = zip(targets, values, strict=True)
            return [pair for one, two in found for pair in paired(one, two)]
    return [(target, value)]
