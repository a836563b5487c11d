"""Removal of arrays that are computed for a value that nobody wants.

The tangent of a gradient does not need the gradient, but compilers keep stores to memory that was
allocated. This works on finished code, which was verified with these stores.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace

from tapegrad.transform.facts import UNFILLED
from tapegrad.transform.generated import Generated
from tapegrad.transform.ir import names_in
from tapegrad.transform.syntax import array_of, callee_of, copied, subtree, text_of

_PAIR = ["value", "dots"]


def without_values(functions: list[Generated]) -> list[Generated]:
    """Return the functions of a module with a pushforward that does not return the value.

    It has the statement ``value, dots = inner(...)``. What the inner function returns as value is
    then 0, unless another function calls it.
    """
    trees = [copied(function.tree) for function in functions]
    uses = Counter(n for tree in trees for n in names_in(tree))
    inner = ""
    for tree in trees:
        inner = _inner(tree) or inner
    found = []
    for tree, function in zip(trees, functions, strict=True):
        last = tree.body[-1]
        assert isinstance(last, ast.Return)
        if tree.name == inner and uses[inner] == 1:
            _remove_value(tree)
        elif _inner(tree):
            assert isinstance(last.value, ast.Tuple)
            last.value = last.value.elts[1]
        found.append(replace(function, tree=tree))
    return found


def _inner(function: ast.FunctionDef) -> str:
    """Return the name of the function that a pushforward calls, "" for other functions."""
    for node in function.body:
        match node:
            case ast.Assign([target, *_], ast.Call(callee)) if names_in(target) == _PAIR:
                return text_of(callee)
    return ""


def _remove_value(function: ast.FunctionDef) -> None:
    """Let a function return 0 in place of its value, and drop arrays that it then only writes."""
    last = function.body[-1]
    assert isinstance(last, ast.Return)
    assert isinstance(last.value, ast.Tuple)
    wanted = set(names_in(last.value.elts[0]))
    last.value.elts[0] = ast.Constant(0.0)
    parameters = {parameter.arg for parameter in function.args.args}
    names = Counter(names_in(function))
    writes = Counter(
        name for n in subtree(function) if isinstance(n, ast.stmt) if (name := _only_writes(n))
    )
    dead = {name for name in wanted - parameters if names[name] == writes[name]}
    _drop(function, dead)


def _only_writes(node: ast.stmt) -> str:
    """Return the array that a statement makes or writes without any other effect, or ""."""
    match node:
        case ast.Assign([ast.Name(id=name), *_], value):
            return name if callee_of(value) in UNFILLED else ""
        case ast.Assign([target, *_]) | ast.AugAssign(target):
            calls = any(isinstance(part, ast.Call) for part in subtree(node))
            return "" if calls else array_of(target)
    return ""


def _drop(node: ast.AST, dead: set[str]) -> None:
    """Drop the statements that only write dead arrays."""
    for name in ("body", "orelse"):
        block = getattr(node, name, None)
        if not isinstance(block, list) or not block:
            continue
        kept = [inner for inner in block if _only_writes(inner) not in dead]
        for inner in kept:
            _drop(inner, dead)
        setattr(node, name, kept or [ast.Pass()])
