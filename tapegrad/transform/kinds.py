"""Predicates on numba types: which values have derivatives, and which are arrays.

Floats, complex numbers and arrays of these are called real here; integers and booleans are not.
"""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from numba.core import types


def is_array(kind: Any) -> bool:
    """Whether a numba type is an array."""
    return isinstance(kind, types.Array)


def is_single_array(kind: Any) -> bool:
    """Whether a numba type is an array of float32 or of complex numbers of these."""
    return is_array(kind) and kind.dtype in (types.float32, types.complex64)


def is_real(kind: Any) -> bool:
    """Whether a numba type is a float or complex number, or an array of these."""
    return isinstance(kind.dtype if is_array(kind) else kind, (types.Float, types.Complex))


def is_complex(kind: Any) -> bool:
    """Whether a numba type is a complex number, or an array of complex numbers."""
    return isinstance(kind.dtype if is_array(kind) else kind, types.Complex)


def holds_complex(kind: Any) -> bool:
    """Whether a numba type is or holds complex numbers (None: it does not)."""
    if isinstance(kind, types.BaseTuple):
        return any(map(holds_complex, kind))
    return kind is not None and is_complex(kind)


def result_kind(function: Any, kinds: tuple[Any, ...]) -> Any:
    """Return the type of the result of a compiled function."""
    function.compile(kinds)
    return function.overloads[kinds].signature.return_type


def zero_of(kind: Any) -> ast.Constant:
    """Return a zero of a number type."""
    return ast.Constant(0j if is_complex(kind) else 0.0)


def holds_real(kind: Any) -> bool:
    """Whether a numba type is or holds floats or complex numbers (None: it does not)."""
    if isinstance(kind, types.BaseTuple):
        return any(map(holds_real, kind))
    return kind is not None and is_real(kind)


def count_arrays(kind: Any) -> int:
    """Return how many arrays a numba type holds, 1 if it is one."""
    if isinstance(kind, types.BaseTuple):
        return sum(map(count_arrays, kind))
    return int(is_array(kind))


def holds_array(kind: Any) -> bool:
    """Whether a numba type is or holds an array."""
    return count_arrays(kind) > 0


def is_instance(kind: Any) -> bool:
    """Whether a numba type is that of class instances, which hold values by name."""
    return isinstance(kind, (types.ClassInstanceType, types.StructRef))


def holds_instance(kind: Any) -> bool:
    """Whether a numba type is or holds an instance of a class."""
    if isinstance(kind, types.BaseTuple):
        return any(map(holds_instance, kind))
    return is_instance(kind)


def is_container(kind: Any) -> bool:
    """Whether values of a numba type hold arrays that are not tracked.

    Arrays in plain tuples are tracked, since tuples are unpacked.
    """
    if isinstance(kind, types.BaseTuple):
        return any(map(is_container, kind))
    if isinstance(kind, (types.List, types.ListType)):
        return may_share(kind.dtype)
    if isinstance(kind, types.DictType):
        return may_share(kind.value_type)
    return is_instance(kind) or isinstance(kind.dtype if is_array(kind) else kind, types.Record)


def holds_hidden_arrays(kind: Any, is_argument: bool = True) -> bool:
    """Whether values of a numba type hold arrays that generated code cannot name.

    It can name those that a class instance holds which is an argument itself.
    """
    if isinstance(kind, types.BaseTuple):
        return any(holds_hidden_arrays(item, False) for item in kind)
    if isinstance(kind, types.ClassInstanceType) and is_argument:
        return any(may_share(item) and not is_array(item) for item in kind.struct.values())
    return is_container(kind)


def copy_kind(kind: Any) -> Any:
    """Return the numba type of a copy of an array."""
    return kind.copy(layout="F" if kind.layout == "F" else "C", readonly=False)


def may_share(kind: Any) -> bool:
    """Whether two values of a numba type may share elements."""
    return kind is not None and (holds_array(kind) or is_container(kind))


def shape_checks(given: str, like: str, kind: Any) -> list[str]:
    """Return the lines that refuse a tangent or cotangent with a wrong shape."""
    if isinstance(kind, types.BaseTuple):
        parts = enumerate(kind)
        return [c for k, item in parts for c in shape_checks(f"{given}[{k}]", f"{like}[{k}]", item)]
    if not is_array(kind) or not is_real(kind) or not kind.ndim:
        return []
    tests = [f"{given}.shape[{k}] != {like}.shape[{k}]" for k in range(kind.ndim)]
    text = f"{given} must have the shape of {like}; their shapes are"
    return [
        f"if {' or '.join(tests)}:",
        f"    raise ValueError({text!r}, {given}.shape, {like}.shape)",
    ]


def is_dispatcher(value: Any) -> bool:
    """Whether a value is a compiled numba function."""
    function = getattr(value, "py_func", None)
    return isinstance(function, FunctionType) and hasattr(value, "targetoptions")
