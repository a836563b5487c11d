"""User-defined rules, with checks of their arguments and results.

A rule is called through a function that checks its results: the types when it is compiled, the
shapes of arrays in every call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError
from numba.extending import overload

from tapegrad.kernels import native
from tapegrad.transform.errors import TransformError
from tapegrad.transform.kinds import holds_real, is_array, is_complex, is_dispatcher, is_real
from tapegrad.transform.syntax import identifier_of


def reverse_rule(function: Any, rule: Any) -> Any:
    """Return the reverse rule of a function, for the derivatives of its callers.

    Parameters
    ----------
    function
        The compiled function.
    rule
        Takes the arguments, the result and the cotangent of the result; returns a tuple with a
        cotangent for each argument.

    Raises
    ------
    TypeError
        If it takes a different number of arguments.
    """
    names = _parameters(function)
    given = _unused(names, "result", "cotangent")
    return _checked(function, rule, "defvjp", [*names, *given], given=names, extra=[])


def forward_rule(function: Any, rule: Any) -> Any:
    """Return the forward rule of a function, which also takes the result, as the last argument.

    Parameters
    ----------
    function
        The compiled function.
    rule
        Takes the arguments and a tangent for each of them; returns the tangent of the result.

    Raises
    ------
    TypeError
        If it takes a different number of arguments.
    """
    names = _parameters(function)
    tangents = _unused(names, *(f"{name}_dot" for name in names))
    result = _unused([*names, *tangents], "result")
    return _checked(function, rule, "defjvp", [*names, *tangents], given=result, extra=result)


def forward_from_reverse(function: Any) -> Any:
    """Return the forward rule that follows from the reverse rule of a function with a real result.

    The tangent is the product of the cotangents, for the cotangent 1, with the tangents.
    """
    names = [f"x_{k}" for k in range(len(_parameters(function)))]
    tangents = [f"{name}_dot" for name in names]
    given = zip(names, tangents, strict=True)
    terms = [f"paired({n}, found[{k}], {t})" for k, (n, t) in enumerate(given)]
    return _derived(
        function,
        f"{identifier_of(function.py_func)}_jvp",
        [*names, *tangents, "result"],
        [
            f"found = rule({', '.join([*names, 'result', '1.0'])})",
            f"return {' + '.join(terms) or '0.0'}",
        ],
        function.rule_vjp,
        lambda kind: (
            None
            if is_real(kind) and not is_array(kind) and not is_complex(kind)
            else f"{function.__name__} has a reverse rule only, and returns {_words(kind)}: what a "
            "tangent becomes follows from it for a real number. Declare the forward rule as well "
            f"({function.__name__}.defjvp)"
        ),
    )


def reverse_from_forward(function: Any) -> Any:
    """Return the reverse rule that follows from the forward rule of a function of numbers.

    The cotangent of an argument is the product of that of the result with its tangent, for the
    tangent 1 of the argument and 0 of the others.
    """
    names = [f"x_{k}" for k in range(len(_parameters(function)))]

    def along(number: int, unit: str) -> str:
        tangents = [f"{unit}({n})" if k == number else f"zero({n})" for k, n in enumerate(names)]
        moved = f"rule({', '.join([*names, *tangents, 'result'])})"
        return f"paired(result, cotangent, {moved})"

    parts = [f"joined({n}, {along(k, 'one')}, {along(k, 'i')})" for k, n in enumerate(names)]
    return _derived(
        function,
        f"{identifier_of(function.py_func)}_vjp",
        [*names, "result", "cotangent"],
        [f"return ({', '.join(parts)},)"],
        function.rule_jvp,
        lambda kind: (
            None
            if not holds_real(kind) or isinstance(kind, types.Number)
            else f"{function.__name__} has a forward rule only, and takes {_words(kind)}: the "
            "cotangents follow from it for arguments that are numbers. Declare the reverse rule as "
            f"well ({function.__name__}.defvjp)"
        ),
    )


def _derived(
    function: Any,
    name: str,
    parameters: list[str],
    body: list[str],
    rule: Any,
    refusal: Callable[[Any], str | None],
) -> Any:
    """Return the rule of one mode that follows from that of the other one.

    `refusal` returns why it does not, given the type of the result (for forward mode) or of an
    argument, or None.
    """
    text = f"def {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in body)
    key = native.fingerprint(text.encode(), repr(id(rule)).encode())
    made = native.compile_source(key, text, name)
    made.__globals__.update(rule=rule, paired=paired, joined=joined, zero=zero, one=one, i=i)
    compiled = numba.njit(made)
    compiled.refusal = refusal
    return compiled


def paired(like: Any, cotangent: Any, tangent: Any) -> Any:
    """Return the real product of a cotangent and a tangent of a value like `like`."""
    if isinstance(like, tuple):
        return sum(map(paired, like, cotangent, tangent))
    if np.asarray(like).dtype.kind not in "fc":
        return 0.0
    return float(np.sum(np.real(np.conj(cotangent) * tangent)))


@overload(paired, strict=False)
def _paired(like: Any, cotangent: Any, tangent: Any) -> Any:
    if isinstance(like, types.BaseTuple):
        terms = [f"paired(like[{k}], cotangent[{k}], tangent[{k}])" for k in range(len(like))]
        text = "def paired_items(like, cotangent, tangent):\n"
        text += f"    return {' + '.join(terms) or '0.0'}\n"
        made = native.compile_source(native.fingerprint(text.encode()), text, "paired_items")
        made.__globals__["paired"] = paired
        return made
    if not holds_real(like) or (is_array(like) and not is_array(cotangent)):  # 0 for an array
        return lambda like, cotangent, tangent: 0.0
    if not is_complex(like):
        if is_array(like):
            return lambda like, cotangent, tangent: np.sum(cotangent * tangent)
        return lambda like, cotangent, tangent: cotangent * tangent
    if is_array(like):
        return lambda like, cotangent, tangent: np.sum((np.conj(cotangent) * tangent).real)
    return lambda like, cotangent, tangent: (np.conj(cotangent) * tangent).real


def joined(like: Any, along_one: Any, along_i: Any) -> Any:
    """Return the cotangent of a number, given the changes of the result along 1 and i."""
    if isinstance(like, complex):
        return complex(along_one, along_i)
    return along_one if isinstance(like, float) else 0.0


@overload(joined, strict=False)
def _joined(like: Any, along_one: Any, along_i: Any) -> Any:
    if is_complex(like):
        return lambda like, along_one, along_i: complex(along_one, along_i)
    if is_real(like):
        return lambda like, along_one, along_i: along_one
    return lambda like, along_one, along_i: 0.0


def zero(like: Any) -> Any:
    """Return the tangent 0 of a number."""
    return 0.0


@overload(zero, strict=False)
def _zero(like: Any) -> Any:
    return (lambda like: 0j) if is_complex(like) else (lambda like: 0.0)


def one(like: Any) -> Any:
    """Return the tangent 1 of a number."""
    return 1.0


@overload(one, strict=False)
def _one(like: Any) -> Any:
    return (lambda like: 1.0 + 0j) if is_complex(like) else (lambda like: 1.0)


def i(like: Any) -> Any:
    """Return the tangent i of a complex number; that of a real one is not used."""
    return 1j if isinstance(like, complex) else 0.0


@overload(i, strict=False)
def _i(like: Any) -> Any:
    return (lambda like: 1j) if is_complex(like) else (lambda like: 0.0)


_function: Any
for _function in (zero, one, i):
    _function.tapegrad_constant = True
for _function in (paired, joined):  # where second derivatives need the derivatives of a rule
    _function.tapegrad_implemented = True


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function.py_func).parameters)


def _unused(names: list[str], *wanted: str) -> list[str]:
    found = list(wanted)
    while any(name in names for name in found):
        found = [f"{name}_" for name in found]
    return found


def _checked(
    function: Any, rule: Any, kind: str, taken: list[str], given: list[str], extra: list[str]
) -> Any:
    """Return a function that calls a rule and checks its result.

    The rule takes the arguments `taken`; the new function also takes `extra`. The results belong to
    the arguments `given`.
    """
    declared = rule if is_dispatcher(rule) else numba.njit(rule)
    label = f"{declared.py_func.__name__} ({kind} of {function.py_func.__name__})"
    parameters = inspect.signature(declared.py_func).parameters.values()
    counted = all(p.kind is not p.VAR_POSITIONAL for p in parameters)
    if counted and len(parameters) != len(taken):
        wanted = (
            "the arguments of the function, its result and the cotangent of the result"
            if kind == "defvjp"
            else "the arguments of the function and a tangent for each of them"
        )
        raise TypeError(
            f"{label} takes {len(parameters)} arguments; such a rule takes {wanted}, here "
            f"{len(taken)}"
        )
    like = f"({', '.join(given)},)" if kind == "defvjp" else given[0]
    name = identifier_of(declared.py_func)
    attempt, called, compare, found = _unused(
        [*taken, *extra], "attempt", "declared", "compare", "found"
    )
    text = (
        f"def {name}({', '.join([*taken, *extra])}):\n"
        f"    {attempt}(({', '.join(taken)},))\n"
        f"    {found} = {called}({', '.join(taken)})\n"
        f"    {compare}({found}, {like})\n"
        f"    return {found}\n"
    )
    key = native.fingerprint(text.encode(), repr(id(declared)).encode())
    made = native.compile_source(key, text, name)
    made.__globals__[called] = declared
    made.__globals__[attempt] = _attempt(label, declared)
    made.__globals__[compare] = _comparison(label, kind, given)
    compiled = numba.njit(made)
    compiled.declared = declared
    return compiled


def _passive(function: Any) -> Any:
    """Mark a function that is not differentiated."""
    function.tapegrad_passive = True
    return function


def _attempt(label: str, declared: Any) -> Any:
    """Return a function for compiled code that refuses a rule that numba does not compile."""

    @_passive
    def attempt(given: Any) -> None:
        """Compile the rule for some arguments."""

    def implementation(given: Any) -> Any:
        try:
            declared.get_call_template(tuple(given), {})
        except (AttributeError, NumbaError) as error:
            shown = ", ".join(map(str, given))
            said = [line.strip() for line in str(error).splitlines() if line.strip()]
            said = said[1:2] or said  # without the line that says that it failed
            what = f"numba does not compile it for ({shown}): {' '.join(said)}"
            raise _wrong(label, what) from None
        return lambda given: None

    overload(attempt, strict=False)(implementation)
    return attempt


def _comparison(label: str, kind: str, names: list[str]) -> Any:
    """Return a function for compiled code that refuses invalid results of a rule."""

    @_passive
    def compare(found: Any, like: Any) -> None:
        """Compare the result of a rule with the values that it belongs to."""

    def implementation(found: Any, like: Any) -> Any:
        found, like = types.unliteral(found), types.unliteral(like)
        lines = ["def comparison(found, like):"]
        if kind == "defjvp":
            tests = _tests(found, like, "", "the tangent of the result", False)
        elif not isinstance(found, types.BaseTuple):
            what = (
                f"it returns {_words(found)}; a reverse rule returns a tuple with a cotangent for "
                f"each argument ({', '.join(names)})"
            )
            raise _wrong(label, what)
        elif len(found) != len(like):
            what = (
                f"it returns {len(found)} cotangent{'s' * (len(found) != 1)} for {len(like)} "
                f"argument{'s' * (len(like) != 1)} ({', '.join(names)})"
            )
            raise _wrong(label, what)
        else:
            tests = (
                test
                for k, name in enumerate(names)
                for test in _tests(
                    found[k], like[k], f"[{k}]", f"the cotangent of argument {k} ({name})", True
                )
            )
        try:
            for condition, what in tests:
                lines += [
                    f"    if {condition}:",
                    f"        raise ValueError({_start(label) + what!r})",
                ]
        except _TypesDifferError as error:
            raise _wrong(label, str(error)) from None
        lines.append("    return None")
        text = "\n".join(lines) + "\n"
        return native.compile_source(native.fingerprint(text.encode()), text, "comparison")

    overload(compare, strict=False)(implementation)
    return compare


class _TypesDifferError(Exception):
    """The result of a rule has an invalid type."""


def _wrong(label: str, what: str) -> TransformError:
    return TransformError(_start(label) + what)


def _start(label: str) -> str:
    return f"the rule {label} is wrong: "


def _tests(found: Any, like: Any, path: str, what: str, zero: bool) -> Iterator[tuple[str, str]]:
    """Yield conditions that must not hold when the rule is called, with their error messages.

    `found` and `like` are the types of the returned value, described by `what`, and of the value
    that it belongs to; `path` are the subscripts that select it. If `zero`, the number 0 may stand
    for an array of zeros.
    """
    found, like = types.unliteral(found), types.unliteral(like)
    number = isinstance(found, (types.Float, types.Integer, types.Complex))
    if not holds_real(like):
        return
    if isinstance(like, types.BaseTuple):
        if not isinstance(found, types.BaseTuple) or len(found) != len(like):
            raise _TypesDifferError(f"{what} is {_words(found)}, not a tuple of {len(like)}")
        for k, (one, other) in enumerate(zip(found, like, strict=True)):
            yield from _tests(one, other, f"{path}[{k}]", f"item {k} of {what}", zero)
    elif is_array(like):
        if number and zero:
            yield f"found{path} != 0", f"it gives a number as {what}, which is an array"
        elif (
            not isinstance(found, types.Array)
            or found.ndim != like.ndim
            or not isinstance(found.dtype, types.Complex if is_complex(like) else types.Float)
        ):
            raise _TypesDifferError(f"{what} is {_words(found)}; it must be {_words(like)}")
        else:
            yield (
                f"found{path}.shape != like{path}.shape",
                f"it gives {what} another shape than that has",
            )
    elif not number or (isinstance(found, types.Complex) and not is_complex(like)):
        raise _TypesDifferError(f"{what} is {_words(found)}; it must be a number")


def _words(kind: Any) -> str:
    if isinstance(kind, types.Array):
        return f"an array of {kind.dtype} with {kind.ndim} dimension{'s' * (kind.ndim != 1)}"
    if isinstance(kind, types.BaseTuple):
        return f"a tuple of {len(kind)}"
    if isinstance(kind, types.Number):
        return f"a number ({kind})"
    return str(kind)
