"""The public function of every op, with a short way through for the commonest calls.

For an elementwise op whose inputs are tensors of one shape and dtype (or a Python number), nothing
has to be worked out at the call: which values to save, the output's aval and the owner's shape are
known from the op table. The source of a specialised function is put together here from the table,
once per op at import; everything else goes to `apply_op`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.dispatch import apply_op
from tapegrad.modes import MODE
from tapegrad.ops.kinds import COMPILED_FROM, Elementwise
from tapegrad.ops.op import Op
from tapegrad.tape.aval import AVALS
from tapegrad.tape.tape import TAPE
from tapegrad.tensor import Tensor

_UNARY = """
def {name}(x, out=None, where=True):
    if type(x) is Tensor and out is None and where is True and not MODE.special:
        own = x._own
        a = x._a
        if own is not None:
            aval = own[2]
            z = {forward}
            if type(z) is not ndarray:
                z = asarray(z)
            segment = TAPE.seg
            try:
                slot = segment.pop()
            except IndexError:
                segment, slot = TAPE.next_slot()
            result = Tensor()
            result._a = z
            result._own = owner = [segment, slot, aval, own{saved}]
            segment.extend((slot, {code}, aval, own[1], 0, id(owner)))
            return result
    return apply_elementwise(OP, (x,), out, where)
"""

_BINARY = """
def {name}(x, y, out=None, where=True):
    if type(x) is Tensor and out is None and where is True and not MODE.special:
        own_x = x._own
        if own_x is not None:
            aval = own_x[2]
            a = x._a
            kind = type(y)
            if kind is Tensor:
                own_y = y._own
                if own_y is not None and own_y[2] == aval:
                    b = y._a
                    z = {forward}
                    if type(z) is not ndarray:
                        z = asarray(z)
                    segment = TAPE.seg
                    try:
                        slot = segment.pop()
                    except IndexError:
                        segment, slot = TAPE.next_slot()
                    result = Tensor()
                    result._a = z
                    result._own = owner = [segment, slot, aval, own_x, own_y{saved}]
                    segment.extend((slot, {code}, aval, own_x[1], own_y[1], id(owner)))
                    return result
            elif kind is float or kind is int:
                b = number(y, aval)
                z = {forward}
                if type(z) is not ndarray:
                    z = asarray(z)
                segment = TAPE.seg
                try:
                    slot = segment.pop()
                except IndexError:
                    segment, slot = TAPE.next_slot()
                result = Tensor()
                result._a = z
                result._own = owner = [segment, slot, aval, own_x, None{saved_x}]
                segment.extend((slot, {code}, aval, own_x[1], 0, id(owner)))
                return result
    return apply_elementwise(OP, (x, y), out, where)


def reflected(y, x):
    if (type(x) is float or type(x) is int) and not MODE.special:
        own_y = y._own
        if own_y is not None:
            aval = own_y[2]
            a = number(x, aval)
            b = y._a
            z = {forward}
            if type(z) is not ndarray:
                z = asarray(z)
            segment, slot = TAPE.next_slot()
            result = Tensor()
            result._a = z
            result._own = owner = [segment, slot, aval, None, own_y{saved_y}]
            segment.extend((slot, {code}, aval, 0, own_y[1], id(owner)))
            return result
    return apply_elementwise(OP, (x, y), None, True)
"""

_numbers: dict[tuple[float, Any], np.ndarray] = {}
_NUMBERS_KEPT = 1024


def number(value: float, aval: int) -> np.ndarray:
    """Return a Python number as a 0-d array of an aval's dtype."""
    dtype = AVALS.dtypes[aval]
    found = _numbers.get((value, dtype))
    if found is None:
        found = np.array(value, dtype)
        found.flags.writeable = False
        if value != 0:  # 0.0 and -0.0 are equal keys but not equal numbers
            if len(_numbers) >= _NUMBERS_KEPT:
                _numbers.clear()
            _numbers[value, dtype] = found
    return found


def apply_elementwise(op: Op, args: tuple[Any, ...], out: Any, where: Any) -> Any:
    """Apply an elementwise op with NumPy's `out` and `where`."""
    if out is None and where is True:
        return apply_op(op, args, {})
    from tapegrad.inplace import apply_with_out

    return apply_with_out(op, args, out, where)


def function_of(op: Op) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Return an op's public function, and that with its two arguments swapped, if it has one."""
    if isinstance(op, Elementwise) and op.arguments in (("x",), ("x", "y")):
        if op.differentiable == op.arguments:
            return _specialise(op)

    def function(*args: Any, **kwargs: Any) -> Any:
        return apply_op(op, args, kwargs)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.__doc__
    function.__signature__ = _signature(op)  # type: ignore[attr-defined]
    return function, None


def _signature(op: Op) -> Any:
    import inspect

    return inspect.signature(op.declaration)


def _specialise(op: Elementwise) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    operands = {"x": "a", "y": "b", "z": "z"}

    def saved(*arguments: str) -> str:
        needed = {name for argument in arguments for name in op.reads(argument)}
        return "".join(f", {operands[n] if n in needed else None}" for n in op.saved)

    inputs = "a" if len(op.arguments) == 1 else "a, b"
    forward = f"compute({inputs})"
    if op.function is not None and op.compiled is not None:
        forward = f"compute({inputs}) if a.size < {COMPILED_FROM} else compiled({inputs})"
    source = (_UNARY if len(op.arguments) == 1 else _BINARY).format(
        name=op.name,
        code=op.code,
        forward=forward,
        saved=saved(*op.arguments),
        saved_x=saved("x"),
        saved_y=saved("y") if len(op.arguments) == 2 else "",
    )
    scope: dict[str, Any] = {
        "MODE": MODE,
        "OP": op,
        "TAPE": TAPE,
        "Tensor": Tensor,
        "apply_elementwise": apply_elementwise,
        "asarray": np.asarray,
        "compiled": op.compiled,
        "compute": op.function if op.function is not None else op.compiled,
        "ndarray": np.ndarray,
        "number": number,
    }
    filename = f"<tapegrad eager {op.name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), scope)
    function = scope[op.name]
    function.__doc__ = op.__doc__
    function.__module__ = "tapegrad"
    return function, scope.get("reflected")
