"""Ops of the table as functions that numba code can call, on numbers and whole arrays."""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np

from tapegrad.eager.numeric import PUBLIC
from tapegrad.kernels import codegen, native
from tapegrad.ops import elementwise, piecewise, special  # noqa: F401 (declare the ops)
from tapegrad.ops.kinds import Elementwise
from tapegrad.ops.op import TABLE
from tapegrad.transform import eager_calls
from tapegrad.transform.eager_calls import call_eager


def known_to_numba(op: Elementwise) -> bool:
    """Whether an op is NumPy's ufunc of the same name, which numba compiles."""
    return isinstance(op.function, np.ufunc) and op.function is getattr(np, op.name, None)


class _Ops(types.ModuleType):
    """The ops by name, for generated code: ``ops.sigmoid(x)``; a module for numba's sake."""

    def __getattr__(self, identifier: str) -> Any:
        if identifier not in TABLE:
            raise AttributeError(f"there is no op {identifier!r}")
        function = compiled(TABLE[identifier])
        setattr(self, identifier, function)
        return function


ops = _Ops("tapegrad_ops")
ops.call_eager = call_eager


@functools.cache
def register() -> None:
    """Let numba compile calls of the package's own functions: ``tapegrad.sigmoid(x)``."""
    from numba.extending import overload

    ops_with_formula = [
        op for op in TABLE.values() if isinstance(op, Elementwise) and op.formula is not None
    ]
    text = "\n\n".join(map(_implementation, ops_with_formula))
    made = native.execute(native.fingerprint(text.encode()), text, "implementations")
    made |= {"ops": ops, "np": np}
    for op in ops_with_formula:
        for function in {op.public, PUBLIC.get(op.name, op.public)}:
            overload(function, strict=False)(made[f"implementation_{op.name}"])
    eager_calls.register()
    overload(stop_gradient)(_stopped)


def _stopped(x: Any) -> Any:
    """Return the implementation for a type; arrays are copied, so that the result is no alias."""
    from numba.core.types import Array

    def copied(x: Any) -> Any:
        return x.copy()

    def same(x: Any) -> Any:
        return x

    return copied if isinstance(x, Array) else same


def stop_gradient(x: Any) -> Any:
    """Return `x` as a constant: it is not differentiated."""
    return x.detach() if hasattr(x, "detach") else x


def _implementation(op: Elementwise) -> str:
    """Return the text of a function that returns the implementation of an op."""
    names = ", ".join(op.arguments)
    return (
        f"def implementation_{op.name}({names}, out=None, where=True):\n"
        f"    def call({names}, out=None, where=True):\n"
        f"        return {'np' if known_to_numba(op) else 'ops'}.{op.name}({names})\n"
        "    return call\n"
    )


@functools.cache
def compiled(op: Elementwise) -> Any:
    """Return an op as a numba ufunc, compiled on demand for each type."""
    import numba

    name, text = source(op)
    key = native.fingerprint(text.encode())
    formula = native.compile_source(key, text, name)
    function = numba.vectorize(formula)
    function.__name__ = op.name
    function.tapegrad_op = op
    return function


def source(op: Elementwise) -> tuple[str, str]:
    """Return the name and the text of a self-contained module that computes an op in float64."""
    module = codegen._Module("float64")
    name = module.add(op.scalar_formula)
    names = ", ".join(op.arguments)
    module.lines += ["", "", f"def op_{op.name}({names}):", f"    return {name}({names})"]
    return f"op_{op.name}", module.text()
