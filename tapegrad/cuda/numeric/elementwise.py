"""Functions of numbers, applied to every element of arrays on a device."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, check_dtype
from tapegrad.cuda.numeric.codegen import Formula, arguments_of
from tapegrad.cuda.numeric.expressions import Expression, bind, operand, write
from tapegrad.ops.kinds import Elementwise
from tapegrad.ops.op import TABLE, Fact, dtype_of

_WEAK = (int, float, complex)  # Python numbers take the dtype of arrays
_FLOAT64 = np.dtype(np.float64)
_OF_FLOATS = ("isfinite", "isinf", "isnan", "signbit")  # what they compute is not for booleans


@dataclass(frozen=True)
class Function:
    """A function of numbers.

    Attributes
    ----------
    name
        For messages.
    formula
        The function of scalars that a kernel applies.
    ufunc
        The function of NumPy that has its types; None if it computes in floating point.
    is_exact
        Whether the formula holds for integers too.
    truths
        Arguments of which only the truth value is used.
    """

    name: str
    formula: Formula
    ufunc: Any
    is_exact: bool
    truths: tuple[str, ...] = ()


def on_device(value: Any, dtype: Any = None) -> DeviceArray:
    """Return an array of the device, or a copy of a constant there."""
    if isinstance(value, DeviceArray):
        return value if dtype is None or value.dtype == dtype else value.astype(dtype)
    return DeviceArray.from_host(np.asarray(value, dtype))


def apply(function: Function, values: Sequence[Any], out: DeviceArray | None = None) -> DeviceArray:
    """Return a function of the elements of arrays and numbers, with NumPy's broadcasting and types.

    Parameters
    ----------
    function
        What is applied.
    values
        Arrays of the device, numbers, and arrays of the host, which are copied.
    out
        Where the result is written; a new array by default.
    """
    names = arguments_of(function.formula)
    values = [
        on_device(v, np.bool_) if n in function.truths and isinstance(v, DeviceArray) else v
        for n, v in zip(names, values, strict=True)
    ]
    computed, result = _types(function, values)
    formula = _formula_for(function, computed, values)
    if out is not None and not np.can_cast(result, out.dtype, "same_kind"):
        raise TypeError(
            f"{function.name}: cannot cast the result from {result!r} to {out.dtype!r} with "
            "casting rule 'same_kind'"
        )
    return run(formula, "{}", values, computed, result, out)


def _formula_for(function: Function, computed: np.dtype, values: Sequence[Any]) -> Formula:
    """Return the formula of a function for numbers of a type, or raise if it has none."""
    name = function.name
    if computed.kind in "fb" and (computed.kind == "f" or function.is_exact):
        return function.formula
    if computed.kind == "c" and name in _COMPLEX:
        return _COMPLEX[name] or function.formula
    if computed.kind in "iu" and name == "power":
        exponent = values[1]
        if isinstance(exponent, (int, np.integer)):
            if exponent < 0:
                raise ValueError("Integers to negative integer powers are not allowed.")
            return _whole_power
    elif computed.kind in "iu" and function.is_exact and name not in _OF_REALS:
        return _WHOLE.get(name, function.formula)
    raise TypeError(
        f"{name}: there is no kernel for dtype {computed}; convert with astype, or use cpu()"
    )


def run(
    formula: Formula,
    template: str,
    values: Sequence[Any],
    computed: np.dtype,
    result: np.dtype,
    out: DeviceArray | None = None,
    names: Sequence[str] | None = None,
) -> DeviceArray:
    """Return the values of a formula, which are computed when they are needed, or write them.

    See `tapegrad.cuda.numeric.codegen.Step` for the formula and its template.
    """
    values = [on_device(v) if isinstance(v, _CONSTANTS) and np.ndim(v) else v for v in values]
    shape = np.broadcast_shapes(*(v.shape for v in values if isinstance(v, DeviceArray)))
    if out is not None and np.broadcast_shapes(shape, out.shape) != out.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {out.shape} doesn't match the "
            f"broadcast shape {shape}"
        )
    if 0 in (shape if out is None else out.shape):
        return DeviceArray.empty(shape, result) if out is None else out
    operands = [operand(v) if isinstance(v, DeviceArray) else _number(v, computed) for v in values]
    names = names or arguments_of(formula)
    if out is None:
        expression = Expression(formula, template, names, operands, computed, shape, result)
        return bind(expression, DeviceArray.without_memory(shape, result))
    write(Expression(formula, template, names, operands, computed, out.shape, out.dtype), out)
    return out


def same(x: Any) -> Any:
    """Return a number."""
    return x


def constant(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
    """Return an array with all elements equal, which are computed where they are needed."""
    if 0 in shape:
        return DeviceArray.empty(shape, dtype)
    number = np.asarray(value, dtype)[()]  # raises what NumPy raises
    expression = Expression(same, "{}", ("x",), [number], dtype, shape, dtype)
    return bind(expression, DeviceArray.without_memory(shape, dtype))


def _number(value: Any, dtype: np.dtype) -> Any:
    """Return a number in the type of a kernel."""
    if type(value) is int and dtype.kind in "iu":
        return dtype.type(value)  # raises OverflowError, as NumPy does
    return np.asarray(value).astype(dtype).reshape(())[()]


def _types(function: Function, values: Sequence[Any]) -> tuple[np.dtype, np.dtype]:
    """Return the type in which a function computes, and that of its result."""
    names = arguments_of(function.formula)
    given = [
        type(v) if type(v) in _WEAK else dtype_of(v)
        for name, v in zip(names, values, strict=True)
        if name not in function.truths
    ]
    if isinstance(function.ufunc, np.ufunc):
        *loop, result = function.ufunc.resolve_dtypes((*given, None))
        computed = np.result_type(*loop)
        if computed == np.bool_ and function.name in _OF_FLOATS:
            computed = np.dtype(np.int8)
        if result == np.bool_ and computed.kind in "iu":  # any number can be compared
            numbers = [v for v in values if type(v) is int]
            limits = np.iinfo(computed)
            if any(not limits.min <= v <= limits.max for v in numbers) and computed != np.uint64:
                computed = np.dtype(np.int64)
    else:
        of_arrays = [kind for kind in given if isinstance(kind, np.dtype)]
        computed = np.result_type(
            *of_arrays, *(kind(1) for kind in given if isinstance(kind, type))
        )
        if function.ufunc is None and computed.kind in "biu":
            computed = _FLOAT64
        result = computed
    check_dtype(computed)
    check_dtype(result)
    return computed, result


def _conjugate(x: Any) -> Any:
    return x.conjugate()


def _whole_quotient(x: Any, y: Any) -> Any:
    return x // y if y != 0 else y


def _whole_remainder(x: Any, y: Any) -> Any:
    return x % y if y != 0 else y


def _whole_power(x: Any, y: Any) -> Any:
    found = x * 0 + 1
    while y > 0:
        if y % 2 == 1:
            found = found * x
        x = x * x
        y = y // 2
    return found


# formulas of functions for integers, where they are not those for all numbers, ...
_WHOLE = {"floor_divide": _whole_quotient, "mod": _whole_remainder}
_WHOLE |= dict.fromkeys(("floor", "ceil", "trunc", "rint", "conjugate"), same)
_OF_REALS = ("divide", "reciprocal", "sqrt", "fmod")  # ... those without one, ...
# ... and functions for complex numbers
_OF_COMPLEX = ("add", "subtract", "multiply", "divide", "negative", "positive", "square")
_OF_COMPLEX += ("reciprocal", "where", "equal", "not_equal", "absolute", "isnan")
_COMPLEX: dict[str, Any] = dict.fromkeys(_OF_COMPLEX)
_COMPLEX["conjugate"] = _conjugate


# -- which functions there are --------------------------------------------------------------------


def _formulas() -> dict[str, Formula]:
    """Return functions without derivatives, by NumPy's names."""

    def equal(x: Any, y: Any) -> Any:
        return x == y

    def not_equal(x: Any, y: Any) -> Any:
        return x != y

    def less(x: Any, y: Any) -> Any:
        return x < y

    def less_equal(x: Any, y: Any) -> Any:
        return x <= y

    def greater(x: Any, y: Any) -> Any:
        return x > y

    def greater_equal(x: Any, y: Any) -> Any:
        return x >= y

    def logical_and(x: Any, y: Any) -> Any:
        return (x != 0) & (y != 0)

    def logical_or(x: Any, y: Any) -> Any:
        return (x != 0) | (y != 0)

    def logical_xor(x: Any, y: Any) -> Any:
        return (x != 0) != (y != 0)

    def logical_not(x: Any) -> Any:
        return x == 0

    def bitwise_and(x: Any, y: Any) -> Any:
        return x & y

    def bitwise_or(x: Any, y: Any) -> Any:
        return x | y

    def bitwise_xor(x: Any, y: Any) -> Any:
        return x ^ y

    def isnan(x: Any) -> Any:
        return x != x

    def isfinite(x: Any) -> Any:
        return x - x == 0

    def copysign(x: Any, y: Any) -> Any:
        return math.copysign(x, y)

    def signbit(x: Any) -> Any:
        return math.copysign(1.0, x) < 0

    def isinf(x: Any) -> Any:
        return (x == x) & (x - x != 0)

    return {name: value for name, value in locals().items() if callable(value)}


def _invert_bool(x: Any) -> Any:
    return x == 0


def _invert(x: Any) -> Any:
    return ~x


@functools.cache
def functions() -> dict[Any, Function]:
    """Return the functions of numbers by NumPy's function; those without one by their op."""
    found: dict[Any, Function] = {
        getattr(np, name): Function(name, formula, getattr(np, name), True)
        for name, formula in _formulas().items()
    }
    for name, op in TABLE.items():
        if isinstance(op, Elementwise):
            known = Function(
                name, op.scalar_formula, op.function, Fact.ARITHMETIC in op.facts, op.truths
            )
            found.setdefault(op if op.function is None else op.function, known)
            found[op] = found[op.formula] = known
    return found


def inverted(x: DeviceArray) -> DeviceArray:
    """Return ``~x``."""
    formula = _invert_bool if x.dtype == np.bool_ else _invert
    return run(formula, "{}", [x], x.dtype, x.dtype)


def mapped(formula: Formula, values: Sequence[Any]) -> DeviceArray:
    """Return the values of a formula that computes in floating point."""
    name = formula.__name__.strip("_")
    return apply(functions().get(formula) or Function(name, formula, None, False), values)


def times_partial(
    g: DeviceArray, rule: Formula, read: dict[str, Any], chooses: bool
) -> DeviceArray | None:
    """Return the product of a cotangent and a partial in one kernel; None if there is none for it.

    Parameters
    ----------
    g
        The cotangent.
    rule
        The partial, a function of scalars.
    read
        The values that it reads.
    chooses
        Whether the product is 0 where the partial is 0.
    """
    values = [g, *read.values()]
    if any(not isinstance(value, (DeviceArray, *_NUMBERS)) for value in values):
        return None
    if any(dtype_of(value).kind == "c" for value in values):
        return None
    template = "chosen({g}, {})" if chooses else "{g} * {}"
    return run(rule, template, values, g.dtype, g.dtype, names=("g", *read))


_CONSTANTS = (np.ndarray, list, tuple)
_NUMBERS = (bool, int, float, np.ndarray, np.generic)
