"""Callees: the rule of a call, and its arguments in order."""

from __future__ import annotations

import ast
import enum
import inspect
from collections.abc import Iterable
from typing import Any

import numba
import numpy as np
from numba.core import types

from tapegrad.transform import facts, runtime
from tapegrad.transform.declared import Declared
from tapegrad.transform.eager_calls import call_eager
from tapegrad.transform.errors import TransformError
from tapegrad.transform.frontend.constants import plain
from tapegrad.transform.frontend.source import MISSING
from tapegrad.transform.functions import stop_gradient
from tapegrad.transform.ir import (
    Let,
    Structure,
    constant,
    name,
    reads,
    walk,
)
from tapegrad.transform.kinds import count_arrays, holds_real, is_dispatcher, may_share
from tapegrad.transform.lowering.lowerer import Lowerer
from tapegrad.transform.lowering.same_values import INPLACE_CALLS
from tapegrad.transform.lowering.stand_ins import has_stand_in, stand_in
from tapegrad.transform.lowering.tuples import whole_if_passive
from tapegrad.transform.rules import arrays
from tapegrad.transform.rules.base import Passive, Rule, Step, Unknown, real_names
from tapegrad.transform.rules.calls import Call
from tapegrad.transform.rules.derivative_calls import TransformCall
from tapegrad.transform.rules.eager_calls import EagerCall
from tapegrad.transform.rules.generated_calls import Addition, Keep
from tapegrad.transform.rules.generators import ForwardCode
from tapegrad.transform.rules.partials import op_of
from tapegrad.transform.rules.ruled_calls import Ruled
from tapegrad.transform.syntax import identifier_of, name_of

# what stands for functions of generated code where that code is differentiated
DIFFERENTIABLE = (
    (runtime.take_tape, runtime.take_owned_tape),
    (runtime.row, runtime.owned_row),
    (runtime.pop_elements, runtime.pop_owned_elements),
    (runtime.enlarged, runtime.copied),
)
_KEEPING = (
    *(runtime.push_array, runtime.pop_array),
    *(runtime.push_elements, runtime.pop_owned_elements),
)


def function_of(kind: Any) -> Any:
    """Return the function that a numba type stands for, or None."""
    if isinstance(kind, types.Function):
        return kind.typing_key if has_stand_in(kind.typing_key) else None
    return kind.dispatcher if isinstance(kind, types.Dispatcher) else None


def is_plain(callee: Any, expr: ast.Call) -> bool:
    """Whether a call is that of a user's numba function, which has no rule of its own."""
    return (
        is_dispatcher(callee)
        and not (callee.py_func.__module__ or "").startswith("tapegrad.")
        and op_of(callee, expr) is None
        and getattr(callee, "_tapegrad_transform", None) is None
        and getattr(callee, "rule_vjp", None) is None
    )


def find(lowering: Lowerer, callee: Any, expr: ast.Call, kind: Any) -> Rule | None:
    """Return the rule of a call of a numba function or a transform, None for anything else."""
    if callee is stop_gradient:
        return Stopped()
    if callee is runtime.overlap or getattr(callee, "tapegrad_passive", False):
        return Passive(True)
    if getattr(callee, "tapegrad_constant", False):
        return Step(False)
    if callee in _KEEPING:
        return Keep(lowering, expr)
    if callee in arrays.ADDITIONS:
        return Addition(lowering, callee.py_func.__name__, expr)
    if callee is call_eager:
        return EagerCall(lowering, expr, kind)
    if op_of(callee, expr) is not None:
        return None
    transform = getattr(callee, "_tapegrad_transform", None)
    if transform is None and not is_dispatcher(callee):
        return _through_stand_in(lowering, callee, expr, kind) if has_stand_in(callee) else None
    if getattr(callee, "into", False):
        raise lowering.refuse(
            f"cannot differentiate a call of {callee.py_func.__name__}, which writes a gradient to "
            "arrays that it is given; call tg.grad without out"
        )
    values = bind(lowering, callee)
    kinds = _kinds(lowering, values)
    if not _matters(kinds, kind) or (transform is not None and not any(map(holds_real, kinds))):
        return None
    if transform is not None:
        inner = callee.plain(kinds)
        if inner is not None:
            return Call(lowering, inner, values, kinds)
        for number in callee.changed_arguments(kinds):
            if isinstance(kinds[number], types.BaseTuple):
                raise lowering.refuse(
                    f"{callee.root.py_func.__name__} writes into an array in its argument "
                    f"{number}, a tuple; let it work on a copy of the array to differentiate the "
                    "call of its derivative"
                )
            if not _is_own_copy(lowering, values[number]):
                raise lowering.refuse(
                    f"{callee.py_func.__name__} writes into its argument {number}; pass a copy "
                    "(x.copy()) to differentiate the call"
                )
        if callee.shares_results(kinds):
            raise lowering.refuse(
                f"{callee.base.py_func.__name__} returns (a view of) its argument; return a copy "
                "to differentiate the call of its derivative"
            )
        return TransformCall(lowering, callee, values, kinds)
    if getattr(callee, "rule_vjp", None) is not None:
        return Ruled(lowering, callee, values, kinds)
    return Call(lowering, callee, values, kinds)


def _matters(kinds: Iterable[Any], kind: Any) -> bool:
    """Whether a call may have derivatives, or may make arrays alias.

    Arrays may be written or viewed by the result, and two parts of the result may be one array.
    """
    return any(holds_real(k) or may_share(k) for k in kinds) or count_arrays(kind) > 1


def _through_stand_in(lowering: Lowerer, callee: Any, expr: ast.Call, kind: Any) -> Rule | None:
    """Return the rule of a call of a callee whose source is that of a stand-in."""
    named = {k.arg: k.value for k in expr.keywords}
    assert lowering.call is not None
    given = [_value_of(lowering, argument) for argument in lowering.call.args]
    kinds = [_precise(lowering, value) for value in (*given, *named.values())]
    if not _matters(map(types.unliteral, kinds), kind):
        return None
    try:
        function = stand_in(callee, tuple(kinds), tuple(map(str, named)))
    except TransformError as error:
        return Unknown(real_names([*expr.args, *named.values()], lowering), str(error))
    values = bind(lowering, function)
    return Call(lowering, function, values, _kinds(lowering, values))


def _precise(lowering: Lowerer, value: Any) -> Any:
    """Return the type of a value, a literal type if it is a constant."""
    match value:
        case ast.Constant(bool() | int() | str() as known):
            return types.literal(known)
        case ast.Name(id=text) if isinstance(lowering.type_of(value), types.BaseTuple):
            for let in walk(lowering.function.body):
                match let:
                    case Let(target, ast.Tuple(items)) if target == text:
                        return types.Tuple([_precise(lowering, item) for item in items])
        case Structure():
            return types.Tuple([_precise(lowering, item) for item in value.items])
    return lowering.type_of(value)


def _value_of(lowering: Lowerer, argument: ast.expr) -> Any:
    """Return the current value of an argument."""
    return lowering.value(argument) if isinstance(argument, ast.Name) else argument


def _is_own_copy(lowering: Lowerer, value: Any) -> bool:
    """Whether an argument is a copy that was made for one call."""
    own, statements = name_of(value), list(walk(lowering.function.body))
    for statement in statements:
        match statement:
            case Let(target, ast.Call(ast.Attribute(_, "copy"))) if target == own:
                return sum(reads(s).count(own) for s in statements) == 1
    return False


def of_instance(lowering: Lowerer, base: ast.expr, attribute: str, is_called: bool) -> Rule | None:
    """Return the rule of a method or property of a class instance; None for other attributes.

    Both are calls of functions whose first argument is the instance.
    """
    made = lowering.type_of(base).class_type
    given = [] if attribute in made.jit_static_methods else [lowering.value(base)]
    if is_called:
        methods = {**made.jit_methods, **made.jit_static_methods}
        if attribute not in methods:
            return None
        values = bind(lowering, methods[attribute], given)
        return Call(lowering, methods[attribute], values, _kinds(lowering, values))
    found = made.jit_props.get(attribute, {}).get("get")
    return None if found is None else Call(lowering, found, given, _kinds(lowering, given))


def _kinds(lowering: Lowerer, values: list[Any]) -> tuple[Any, ...]:
    return tuple(lowering.type_of(value) for value in values)


def bind(lowering: Lowerer, callee: Any, first: list[Any] | None = None) -> list[Any]:
    """Return the arguments of the call being lowered, in order and with defaults.

    Those in `first` precede those of the call.
    """
    call = lowering.call
    assert call is not None
    values = [*(first or []), *(_value_of(lowering, argument) for argument in call.args)]
    function = getattr(callee, "py_func", None)
    if function is None:
        return values
    parameters = list(inspect.signature(function).parameters.values())
    named = {k.arg: _value_of(lowering, k.value) for k in call.keywords}
    found = list(values)
    for parameter in parameters[len(values) :]:
        if parameter.name in named:
            found.append(named[parameter.name])
        elif parameter.default is not parameter.empty:
            found.append(_default(lowering, callee, parameter))
    return found


def with_declared_types(lowering: Lowerer, callee: Any, call: ast.Call) -> ast.Call:
    """Return a call with integers converted to the types that the function is compiled for."""
    if not hasattr(callee, "py_func") or call.keywords:
        return call
    declared, count = Declared(callee), len(call.args)
    given = []
    for position, argument in enumerate(call.args):
        kind = lowering.type_of(_value_of(lowering, argument))
        to = declared.conversion(position, count, kind)
        given.append(argument if to is None else lowering.converted(argument, to))
    return ast.Call(call.func, given, [])


def _default(lowering: Lowerer, callee: Any, parameter: inspect.Parameter) -> Any:
    """Return the default of a parameter that a call leaves out."""

    def value_of(value: Any) -> Any:
        number = plain(value)
        if number is not MISSING:
            return constant(number)
        if type(value) is tuple:
            found = Structure(numba.typeof(value), [value_of(item) for item in value])
            return whole_if_passive(lowering, found, lowering.fresh("t"))
        if value is parameter.default and isinstance(value, (enum.Enum, np.generic, complex)):
            origin = ("parameter", lowering.program.origin_of(callee), parameter.name)
            text = f"{identifier_of(callee.py_func)}.{parameter.name}"
            text = lowering.program.static(text, value, origin)
            lowering.statics[text] = value
            return name(text)
        raise lowering.refuse(
            f"cannot differentiate a call that leaves out {parameter.name!r}, whose default is "
            f"of type {type(value).__name__}; pass it"
        )

    return value_of(parameter.default)


class Stopped(Rule):
    """``stop_gradient(x)``, which is a copy if `x` is an array."""

    fresh = True

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        gen.set_dot(let, None)


def may_write(let: Let, statics: dict[str, Any]) -> bool:
    """Whether a call may write an array."""
    match let.expr:
        case ast.Call(ast.Name(id=text)) as call:
            callee = statics.get(text)
            is_op = op_of(callee, call) is not None
            own = not is_op and (hasattr(callee, "py_func") or has_stand_in(callee))
            if own or callee is None or text in INPLACE_CALLS:
                return True
            return callee is np.random.shuffle or writes_argument(callee, call)
        case ast.Call():
            return True
    return False


def written_argument(callee: Any, call: ast.Call) -> ast.expr | None:
    """Return the argument that a NumPy function writes to, None if that is not known."""
    for keyword in call.keywords:
        if keyword.arg == "out":
            return keyword.value
    at = _OUTS.get(callee, len(call.args))
    return call.args[at] if at < len(call.args) else None


def writes_argument(callee: Any, call: ast.Call) -> bool:
    """Whether a call of a NumPy function writes to one of its arguments."""
    names = [keyword.arg for keyword in call.keywords]
    if "out" in names:
        return True
    if isinstance(callee, np.ufunc):
        return len(call.args) > callee.nin
    if callee is np.fill_diagonal or callee is np.nan_to_num:
        return facts.changes(callee.__name__, len(call.args), names)
    return any(callee is function and len(call.args) > at for function, at in _OUTS.items())


# positions of `out`
_OUTS = {
    getattr(np, name): fact.out for name, fact in facts.FUNCTIONS.items() if fact.out is not None
}
