"""Declared types of a numba function: its signatures, and the types of its variables."""

from __future__ import annotations

import ast
from typing import Any

import numba
import numpy as np
from numba.core import types

from tapegrad.transform.ir import FunctionIR, Let, name, unused


class Declared:
    """The declared types of a function.

    Calls convert their arguments. This is supported for numbers, if there is one signature:
    integers become any declared numbers, and floats become floats.
    """

    def __init__(self, dispatcher: Any) -> None:
        # a function with explicit signatures accepts only these, and converts its arguments
        self.is_closed = not getattr(dispatcher, "_can_compile", True)
        self.signatures = list(getattr(dispatcher, "nopython_signatures", ()))
        # numba adds an entry with a numbered name for every value of a variable
        given = getattr(dispatcher, "locals", None) or {}
        self.variables = {text: kind for text, kind in given.items() if "." not in text}

    def conversion(self, position: int, count: int, kind: Any) -> Any:
        """Return the type that a number is converted to as an argument, None if it is not."""
        if not self.is_closed or len(self.signatures) != 1 or len(self.signatures[0].args) != count:
            return None
        declared = self.signatures[0].args[position]
        return declared if kind != declared and _converts(kind, declared) else None

    def apply(self, function: FunctionIR, kinds: tuple[Any, ...], result: Any) -> None:
        """Convert a number that is returned; refuse other conversions.

        Parameters
        ----------
        function
            The normal form, which is changed.
        kinds, result
            Types of the arguments, and the inferred type of the result.
        """
        source = function.source
        line = source.tree.lineno
        # rounding floats to the declared precision does not change derivatives
        whole = [
            text
            for text, kind in self.variables.items()
            if not isinstance(kind, types.Float)
            and any(_type_of(value, function) != kind for value in function.named.get(text, ()))
        ]
        if whole:
            raise source.refuse(
                f"cannot differentiate a function with declared types of variables "
                f"({', '.join(whole)}); leave out locals=, and convert: k = np.int64(k)",
                line,
            )
        if not self.is_closed:
            return
        signature = self._signature(kinds)
        if signature is None:
            shown = " or ".join(str(signature.args) for signature in self.signatures)
            raise source.refuse(
                f"{source.name} is compiled for arguments of the types {shown}, and converts what "
                f"it is given, here {kinds}; convert before the call",
                line,
            )
        declared = signature.return_type
        if _holds_the_same(result, declared):
            return
        if _converts(result, declared):
            text, target = f"np.{declared}", unused("declared", function.types)
            function.statics[text] = getattr(np, str(declared))
            call = ast.Call(name(text), [function.result], [])
            function.body.append(Let(target, call, line))
            function.types[target] = declared
            function.result = name(target)
            return
        raise source.refuse(
            f"{source.name} is declared to return {declared}, and computes {result}; "
            "convert what it returns, or leave out the signature",
            line,
        )

    def _signature(self, kinds: tuple[Any, ...]) -> Any:
        """Return the signature for arguments of some types, None if there is none."""
        for signature in self.signatures:
            if len(signature.args) == len(kinds):
                if all(map(_holds_the_same, kinds, signature.args)):
                    return signature
        return None


def _type_of(value: ast.expr, function: FunctionIR) -> Any:
    """Return the type of a value of a variable, None if unknown."""
    match value:
        case ast.Constant(number):
            return types.unliteral(numba.typeof(number))
        case ast.Name(id=name):
            return function.types.get(name)
    return None


def _converts(kind: Any, declared: Any) -> bool:
    """Whether numbers of a type are converted to a declared one in generated code, too."""
    if isinstance(kind, (types.Integer, types.Boolean)):
        return isinstance(declared, types.Number)
    return isinstance(kind, types.Float) and isinstance(declared, types.Float)


def _holds_the_same(kind: Any, declared: Any) -> bool:
    """Whether two types differ at most in array layout."""
    kind, declared = types.unliteral(kind), types.unliteral(declared)
    if isinstance(kind, types.Array) and isinstance(declared, types.Array):
        return bool(kind.dtype == declared.dtype and kind.ndim == declared.ndim)
    if isinstance(kind, types.BaseTuple) and isinstance(declared, types.BaseTuple):
        return len(kind) == len(declared) and all(map(_holds_the_same, kind, declared))
    return bool(kind == declared)
