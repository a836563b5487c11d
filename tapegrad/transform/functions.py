"""Ops of the table as functions that numba code can call, on numbers and whole arrays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tapegrad.kernels import codegen, native
from tapegrad.ops.kinds import Elementwise

# NumPy's functions that numba compiles, for numbers as for arrays
_NUMPY = [
    "sin",
    "cos",
    "tan",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "arccosh",
    "arctanh",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "cbrt",
    "square",
    "reciprocal",
    "sign",
    "floor",
    "ceil",
    "rint",
    "trunc",
    "hypot",
    "arctan2",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "logaddexp",
    "logaddexp2",
    "mod",
    "fmod",
    "floor_divide",
    "add",
    "subtract",
    "multiply",
    "divide",
    "power",
    "negative",
    "absolute",
    "positive",
]


def known_to_numba(op: Elementwise) -> bool:
    """Whether numba compiles NumPy's function of that name."""
    return op.name in _NUMPY and isinstance(op.function, np.ufunc)


class _Ops:
    """The ops by name, for generated code: ``ops.sigmoid(x)``."""

    def __getattr__(self, identifier: str) -> Any:
        from tapegrad.ops.op import TABLE

        if identifier not in TABLE:
            raise AttributeError(f"there is no op {identifier!r}")
        function = compiled(TABLE[identifier])
        setattr(self, identifier, function)
        return function


ops = _Ops()


@functools.cache
def compiled(op: Elementwise) -> Any:
    """Return an op as a numba ufunc, compiled for the types that it meets."""
    import numba

    name, text = source(op)
    key = native.fingerprint(text.encode())
    formula = native.compile_source(key, text, name)
    function = numba.vectorize(formula)
    function.__name__ = op.name
    return function


def source(op: Elementwise) -> tuple[str, str]:
    """Return the name and the text of a closed module that computes an op in float64."""
    module = codegen._Module("float64")
    name = module.add(op.formula)
    names = ", ".join(op.arguments)
    module.lines += ["", "", f"def op_{op.name}({names}):", f"    return {name}({names})"]
    return f"op_{op.name}", module.text()
