"""The source of a user's function: its syntax tree, location and names."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import linecache
import re
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tapegrad.transform.deferred import runtime
from tapegrad.transform.errors import TransformError
from tapegrad.transform.syntax import callee_of, lines_of, nodes_in

MISSING = object()
MATTERS = "runtime.matters"
_STARTED = time.time()  # older files have not been edited since they were read


class Source:
    """The source that a plain Python function was compiled from.

    Attributes
    ----------
    function
        The Python function.
    tree
        Its definition; line numbers are those of its file.
    name
        Its name in messages; in code it is that of the definition.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.name = function.__name__
        self.filename = function.__code__.co_filename
        first = function.__code__.co_firstlineno
        try:
            lines = lines_of(function)
        except (OSError, TypeError):
            raise TransformError(
                f"the source of {self.name} cannot be read, and its derivative is made from it; "
                "define it in a file (or a notebook cell)"
            ) from None
        if not _is_current(function.__code__):
            raise TransformError(
                f"the source of {self.name} is not what it was compiled from: {self.filename} was "
                "changed after the function was defined; define it again (reload its module)"
            )
        if function.__code__.co_name == "<lambda>":
            tree = _lambda(function)
            if self.name == "<lambda>":
                self.name = f"lambda_in_line_{first}"
        else:
            tree = _definition(lines, first)
        if tree is None:
            raise TransformError(
                f"{self.name} is not a function defined by `def`; write it as one, in lines of its "
                "own"
            )
        self.tree = _with_private_names(tree, function.__code__)
        if function.__globals__.get("runtime") is runtime:
            self.tree = _Unconditional().visit(self.tree)

    def text_of(self, line: int) -> str:
        """Return a line of the file."""
        return linecache.getline(self.filename, line).strip()

    def lookup(self, identifier: str) -> Any:
        """Return the value of a name from outside the function, or MISSING."""
        return outside_value(self.function, identifier)

    def refuse(self, what: str, node: Any) -> TransformError:
        """Return the error for a construct at a node or line."""
        line = node if isinstance(node, int) else getattr(node, "lineno", self.tree.lineno)
        return TransformError(what, self, line)


def outside_value(function: types.FunctionType, identifier: str) -> Any:
    """Return the value of a name from outside a function, or MISSING."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name == identifier:
            return cell.cell_contents
    if identifier in function.__globals__:
        return function.__globals__[identifier]
    return getattr(builtins, identifier, MISSING)


class _Unconditional(ast.NodeTransformer):
    """Removes the tests in generated code of whether cotangents are 0.

    What they skip adds nothing to a gradient, but the tangent of a cotangent that is 0 adds to that
    of the gradient.
    """

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        return node.body if all(callee_of(test) == MATTERS for test in tests) else node


def _definition(lines: list[str], first: int) -> ast.FunctionDef | None:
    """Return the function definition in some lines, None if there is none."""
    is_indented = lines[0][:1].isspace()
    text = "".join(
        ["if True:\n" * is_indented, *lines]
    )  # lines of strings may have any indentation
    try:
        module = ast.parse(text)
    except SyntaxError:
        return None
    found: list[Any] = module.body
    (tree,) = found[0].body if is_indented else found
    if not isinstance(tree, ast.FunctionDef):
        return None
    ast.increment_lineno(tree, first - 1 - is_indented)
    return tree


def _lambda(function: types.FunctionType) -> ast.FunctionDef | None:
    """Return the definition of a lambda, None if several start on its line."""
    code = function.__code__
    try:
        module = ast.parse("".join(linecache.getlines(code.co_filename, function.__globals__)))
    except SyntaxError:
        return None
    lambdas = nodes_in(module, ast.Lambda)
    found = [node for node in lambdas if node.lineno == code.co_firstlineno]
    if len(found) != 1:
        return None
    body = ast.copy_location(ast.Return(found[0].body), found[0].body)
    name = f"lambda_in_line_{code.co_firstlineno}"
    tree = ast.FunctionDef(name, found[0].args, [body], [], None)
    return ast.fix_missing_locations(ast.copy_location(tree, found[0]))


def _with_private_names(tree: ast.FunctionDef, code: types.CodeType) -> ast.FunctionDef:
    """Return the definition of a method with private names such as ``self.__x`` mangled."""
    attributes = list(nodes_in(tree, ast.Attribute))
    private = {node.attr for node in attributes if re.fullmatch(r"__\w*(?<!__)", node.attr)}
    meant = {
        plain: name
        for plain in private
        for name in code.co_names
        if re.fullmatch(f"_\\w+{plain}", name)
    }
    for node in attributes:
        node.attr = meant.get(node.attr, node.attr)
    return tree


def _is_current(code: types.CodeType) -> bool:
    """Whether code was compiled from the current content of its file.

    Files may be edited while a process runs, and then another function may be read.
    """
    with contextlib.suppress(OSError):
        if Path(code.co_filename).stat().st_mtime <= _STARTED:
            return True
    if any(name.startswith("@py") for name in code.co_varnames):
        return True  # pytest rewrites assert statements
    text = "".join(linecache.getlines(code.co_filename))
    # sources are found by line, and another function may be on that line now
    where = (code.co_name, code.co_firstlineno)
    return any(
        _same(inner, code)
        for inner in _compiled(text)
        if (inner.co_name, inner.co_firstlineno) == where
    )


@functools.lru_cache(maxsize=16)
def _compiled(text: str) -> list[types.CodeType]:
    """Return the code of all functions in a file."""
    try:
        return list(_codes(compile(text, "<file>", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return []


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield all code objects inside another."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _same(one: types.CodeType, two: types.CodeType) -> bool:
    """Whether two code objects are equal apart from their location."""
    parts = ("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    return (
        all(getattr(one, part) == getattr(two, part) for part in parts)
        and len(one.co_consts) == len(two.co_consts)
        and all(map(_same_constant, one.co_consts, two.co_consts))
    )


def _same_constant(one: Any, two: Any) -> bool:
    if isinstance(one, types.CodeType) and isinstance(two, types.CodeType):
        return _same(one, two)
    if isinstance(one, frozenset):
        return type(one) is type(two) and one == two
    return type(one) is type(two) and repr(one) == repr(two)
