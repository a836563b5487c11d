"""What to say where numba finds no types: the argument or the function that it is about."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from tapegrad.transform.errors import TransformError, python_list
from tapegrad.transform.ir import FunctionIR
from tapegrad.transform.syntax import name_of, subtree, text_of

# functions that numba does not compile, and what to write in compiled functions
_WAYS_OUT = {
    "math.cbrt": "np.cbrt(x)",
    "math.dist": "np.sqrt(np.sum((p - q) ** 2)) of arrays",
    "math.fmod": "np.fmod(x, y)",
    "math.fsum": "a sum in a loop, or np.sum of an array",
    "math.isclose": "abs(x - y) <= tolerance",
    "math.modf": "np.trunc(x) and x - np.trunc(x)",
    "math.prod": "a product in a loop, or np.prod of an array",
    "math.remainder": "x - y * np.round(x / y)",
    "np.modf": "np.trunc(x) and x - np.trunc(x)",
}
_OF_NUMBERS = ("real", "imag", "conjugate")
_ATTRIBUTE = re.compile(
    r"Unknown attribute '(\w+)' of type (?:float|int|uint|complex)\d+$", re.MULTILINE
)
_NO_CALL = re.compile(
    r"No implementation of function Function\(<\S+ '?(\w+)[^\n]*\n\s*>>> ([^\n]+)"
)
_UNTYPED = re.compile(r"Untyped global name '(\w+)': Cannot determine Numba type of")


def refuse_untyped(
    function: FunctionIR, arguments: tuple[Any, ...], said: str, named: Callable[[str], str]
) -> None:
    """Raise if an error of numba is about an argument of a wrong kind, or an unknown function.

    Parameters
    ----------
    function
        The function in normal form.
    arguments
        The types of its arguments.
    said
        The text of the error.
    named
        Returns the name in the source of a value from outside of it.
    """
    source = function.source
    unknown = _UNTYPED.search(said)
    if unknown is not None:
        text = named(unknown[1])
        way_out = _WAYS_OUT.get(text, "what it does (docs/njit.md)")
        raise source.refuse(
            f"numba does not compile {text}, which {source.name} uses; write {way_out}",
            next((node for node in subtree(source.tree) if _is(node, text)), source.tree),
        )
    for number, (name, kind) in enumerate(zip(function.params, arguments, strict=False)):
        what = f"argument {number} ({name}) of {source.name}"
        if kind is types.pyobject:
            raise TransformError(
                f"{what} is of a type that numba does not know; pass numbers, arrays of float32, "
                "float64, complex64, complex128, integers or booleans, and tuples of these"
            )
        if isinstance(kind, types.List) and str(kind) in said:
            raise TransformError(f"{what} {python_list(name)}")
        use = _use_as_array(source.tree, name) if isinstance(kind, types.Number) else None
        if use is not None:
            raise source.refuse(
                f"{what} is used as an array, {text_of(use)}, and got a number of type {kind}; "
                "pass an array",
                use,
            )
    for missing in _NO_CALL.finditer(said):
        call = next((node for node in subtree(source.tree) if _calls(node, missing[1])), None)
        if call is not None:
            raise source.refuse(
                f"numba does not compile {missing[2]}, which {source.name} calls; pass values of "
                "types that it takes, or write what it does (docs/njit.md)",
                call,
            )
    attribute = _ATTRIBUTE.search(said)
    numbers = [
        f"{number} ({name})"
        for number, (name, kind) in enumerate(zip(function.params, arguments, strict=False))
        if isinstance(kind, types.Number)
    ]
    if attribute is not None and numbers and hasattr(np.ndarray, attribute[1]):
        raise TransformError(
            f"{source.name} takes .{attribute[1]} of a number, which arrays have; it got numbers "
            f"as argument {', '.join(numbers)}: pass an array"
        )


def _calls(node: ast.AST, name: str) -> bool:
    """Whether a node is the call of a function of this name, of whatever module."""
    return isinstance(node, ast.Call) and text_of(node.func).rpartition(".")[2] == name


def _is(node: ast.AST, text: str) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and text_of(node) == text


def _use_as_array(tree: Any, name: str) -> Any:
    """Return an expression that takes an argument for an array, or None."""

    def is_argument(node: Any) -> bool:
        return name_of(node) == name

    for node in subtree(tree):
        match node:
            case ast.Attribute(value, attr) if is_argument(value) and attr not in _OF_NUMBERS:
                return node
            case ast.Subscript(value) if is_argument(value):
                return node
            case ast.Call(ast.Name(id="len" | "enumerate" | "zip"), args):
                if any(map(is_argument, args)):
                    return node
            case ast.BinOp(left, ast.MatMult(), right) if is_argument(left) or is_argument(right):
                return node
            case ast.For(_, over) | ast.comprehension(_, over) if is_argument(over):
                return over
    return None
