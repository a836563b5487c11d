"""Ops of the table as functions that numba code can call, on numbers and whole arrays."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core.errors import TypingError
from numba.core.types import Array, NoneType, Omitted
from numba.extending import overload

from tapegrad.eager.numeric import NAMESPACES, PUBLIC
from tapegrad.imports import whole_imports
from tapegrad.kernels import codegen, native
from tapegrad.ops import elementwise, piecewise, special  # noqa: F401 (declare the ops)
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.transform import checkpointing, eager_calls
from tapegrad.transform.eager_calls import call_eager


def known_to_numba(op: Elementwise) -> bool:
    """Whether an op is NumPy's ufunc of the same name, which numba compiles."""
    return isinstance(op.function, np.ufunc) and op.function is getattr(np, op.name, None)


class _Ops(types.ModuleType):
    """The ops by name, for generated code: ``ops.sigmoid(x)``; a module for numba's sake."""

    call_eager: Any

    def __init__(self, name: str, convert: Callable[[Any], Any]) -> None:
        super().__init__(name)
        self._convert = convert

    def __getattr__(self, identifier: str) -> Any:
        op = TABLE.get(identifier)
        if not isinstance(op, Elementwise):
            raise AttributeError(f"there is no op {identifier!r}")
        name, text = codegen.scalar_source(op.scalar_formula, of_floats=op.function is None)
        formula = native.compile_source(native.fingerprint(text.encode()), text, name)
        function = self._convert(formula)
        function.tapegrad_op = op
        setattr(self, identifier, function)
        return function


def _ufunc(formula: Any) -> Any:
    return numba.vectorize(fastmath=formula.targetoptions["fastmath"])(formula.py_func)


# on whole arrays, and on numbers: numba takes longer to compile a ufunc
ops = _Ops("tapegrad_ops", _ufunc)
ops.call_eager = call_eager
scalar_ops = _Ops("tapegrad_scalar_ops", lambda formula: formula)


@functools.cache
def register() -> None:
    """Let numba compile calls of the package's own functions: ``tapegrad.sigmoid(x)``."""
    with whole_imports():  # numba would know half of them after an interrupt
        _register()


@functools.cache
def _names() -> dict[types.FunctionType, str]:
    return {
        function: f"{namespace}.{name}" if namespace else name
        for namespace, functions in NAMESPACES.items()
        for name, function in functions.items()
        if isinstance(function, types.FunctionType)
    }


def dotted_name(function: types.FunctionType) -> str:
    """Return the name of a numeric function in the package, "" for other functions."""
    return _names().get(function, "")


def _register() -> None:
    ops_with_formula = [
        op for op in TABLE.values() if isinstance(op, Elementwise) and op.formula is not None
    ]
    text = "\n\n".join(map(_implementation, ops_with_formula))
    made = native.execute(native.fingerprint(text.encode()), text, "implementations")
    made |= {"module_for": _module_for, "np": np, "refuse_options": _refuse_options}
    for op in ops_with_formula:
        for function in {op.public, PUBLIC.get(op.name, op.public)}:
            overload(function, strict=False)(made[f"implementation_{op.name}"])
    eager_calls.register()
    checkpointing.register()
    overload(stop_gradient)(_stopped)


def _stopped(x: Any) -> Any:
    """Return the implementation for a type; arrays are copied, so that the result is no alias."""

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
        f"    refuse_options('{op.name}', out, where)\n"
        f"    module = {'np' if known_to_numba(op) else f'module_for({names})'}\n"
        f"    def call({names}, out=None, where=True):\n"
        f"        return module.{op.name}({names})\n"
        "    return call\n"
    )


def _refuse_options(name: str, *given: Any) -> None:
    """Raise if `out` or `where` is given, which compiled code would ignore."""
    for option, kind in zip(("out", "where"), given, strict=True):
        if not (kind is None or kind is True or isinstance(kind, (NoneType, Omitted))):
            raise TypingError(
                f"tapegrad.{name}: {option!r} is not supported in compiled functions; assign the "
                "result, as in out[:] = ..., or choose with np.where"
            )


def _module_for(*kinds: Any) -> _Ops:
    """Return the module whose functions take arguments of these types."""
    return ops if any(isinstance(kind, Array) for kind in kinds) else scalar_ops
