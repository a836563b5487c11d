"""Functions of numbers, applied to every element of arrays on a device."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, check_dtype
from tapegrad.cuda.numeric.codegen import Formula
from tapegrad.cuda.numeric.expressions import Expression, bind, write
from tapegrad.cuda.numeric.steps import Action, action
from tapegrad.kernels.codegen import arguments_of
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE, Fact, dtype_of

_WEAK = (int, float, complex)  # Python numbers take the dtype of arrays
_FLOAT64 = np.dtype(np.float64)
_OF_FLOATS = ("isfinite", "isinf", "isnan", "signbit")  # what they compute is not for booleans


@dataclass(frozen=True, eq=False)
class Function:
    """A function of numbers; there is one object for each.

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
    if function.truths:
        values = [
            on_device(v, np.bool_) if n in function.truths and isinstance(v, DeviceArray) else v
            for n, v in zip(arguments_of(function.formula), values, strict=True)
        ]
    made = _action_for(function, values)
    if out is not None:
        if not np.can_cast(made.result, out.dtype, "same_kind"):
            raise TypeError(
                f"{function.name}: cannot cast the result from {made.result!r} to {out.dtype!r} "
                "with casting rule 'same_kind'"
            )
        made = action(made.formula, made.template, made.names, made.computed, out.dtype)
    return run(made, values, out)


_known: dict[Any, Action] = {}  # of functions, by the types of what they are called with


def _action_for(function: Function, values: Sequence[Any]) -> Action:
    """Return what a kernel does for a function of some values."""
    kinds = (function, *[type(v) if type(v) in _WEAK else dtype_of(v) for v in values])
    found = _known.get(kinds)
    if found is None:
        computed, result = _types(function, values)
        found = action(_formula_for(function, computed, values), "{}", None, computed, result)
        if computed.kind == "f":  # those for integers depend on the values
            _known[kinds] = found
    return found


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


def run(made: Action, values: Sequence[Any], out: DeviceArray | None = None) -> DeviceArray:
    """Return what an action gives for arrays and numbers, or write it to an array."""
    shape: tuple[int, ...] | None = None
    operands = []
    for value in values:
        if isinstance(value, _CONSTANTS) and np.ndim(value):
            value = on_device(value)
        if type(value) is not DeviceArray:
            operands.append(_number(value, made.computed))
            continue
        expression = value.expression
        operands.append(value if expression is None else expression)
        if shape is None:
            shape = value.shape
        elif value.shape != shape:
            shape = np.broadcast_shapes(shape, value.shape)
    shape = shape or ()
    if out is None:
        if 0 in shape:
            return DeviceArray.empty(shape, made.result)
        array = DeviceArray.without_memory(shape, made.result)
        return bind(Expression(made, operands, shape), array)
    if np.broadcast_shapes(shape, out.shape) != out.shape:
        raise ValueError(
            f"non-broadcastable output operand with shape {out.shape} doesn't match the "
            f"broadcast shape {shape}"
        )
    if out.size:
        write(Expression(made, operands, out.shape), out)
    return out


def same(x: Any) -> Any:
    """Return a number."""
    return x


def constant(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
    """Return an array with all elements equal, which are computed where they are needed."""
    if 0 in shape:
        return DeviceArray.empty(shape, dtype)
    number = np.asarray(value, dtype)[()]  # raises what NumPy raises
    expression = Expression(copying(dtype, dtype), [number], shape)
    return bind(expression, DeviceArray.without_memory(shape, dtype))


def copying(computed: np.dtype, result: np.dtype) -> Action:
    """Return what a kernel does to copy numbers, converted to two types."""
    return action(same, "{}", None, computed, result)


def _number(value: Any, dtype: np.dtype) -> Any:
    """Return a number in the type of a kernel."""
    if type(value) is float and dtype == _FLOAT64:
        return np.float64(value)
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
    return run(action(formula, "{}", None, x.dtype, x.dtype), [x])


@functools.cache
def _of_formula(formula: Formula) -> Function:
    return functions().get(formula) or Function(formula.__name__.strip("_"), formula, None, False)


def mapped(formula: Formula, values: Sequence[Any]) -> DeviceArray:
    """Return the values of a formula that computes in floating point."""
    return apply(_of_formula(formula), values)


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
    for value in values:
        if not isinstance(value, _OPERANDS) or dtype_of(value).kind == "c":
            return None
    template = "chosen({g}, {})" if chooses else "{g} * {}"
    return run(action(rule, template, ("g", *read), g.dtype, g.dtype), values)


_CONSTANTS = (np.ndarray, list, tuple)
_OPERANDS = (DeviceArray, bool, int, float, np.ndarray, np.generic)
