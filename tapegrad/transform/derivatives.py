"""Derivatives of numba functions, as numba functions.

They are called from Python and from compiled code like any other numba function.
"""

from __future__ import annotations

import inspect
from typing import Any

import numba
from numba.core import types

from tapegrad.kernels import native
from tapegrad.transform.base import Derivative
from tapegrad.transform.declared import Declared
from tapegrad.transform.errors import SingleDirectionError, TransformError, python_list
from tapegrad.transform.kept import kept_with_function
from tapegrad.transform.kinds import (
    count_arrays,
    holds_complex,
    holds_hidden_arrays,
    holds_real,
    is_array,
    is_complex,
    is_real,
)
from tapegrad.transform.protocols import Claim, Instance, Program, Returns
from tapegrad.transform.syntax import identifier_of, unlike


def differentiable(program: Program, base: Any, kinds: tuple[Any, ...], wrap: bool) -> Instance:
    """Return the instance to differentiate for a base: of its function, or the generated one.

    If the rule for calls of the base applies, this is a function that calls it: for functions with
    rules of their own and, with `wrap`, for derivatives.
    """
    if getattr(base, "into", False):
        raise TransformError(
            f"cannot differentiate {base.py_func.__name__}, which writes a gradient to arrays that "
            "it is given; differentiate tg.grad without out"
        )
    changed = base.changed_arguments(kinds) if isinstance(base, Derivative) else frozenset()
    if getattr(base, "rule_vjp", None) is not None:
        instance = program.instance(_caller(base), kinds)
    elif not isinstance(base, Derivative):
        instance = program.instance(base, kinds)
    elif wrap and base.plain(kinds) is None:
        instance = program.instance(_caller(base, tuple(sorted(changed))), kinds)
    else:
        instance = program.instance(base.implementation(kinds), kinds)
    program.analyse(is_reverse=wrap)
    return instance


def source_of(base: Any, kinds: tuple[Any, ...], wrap: bool) -> Any:
    """Return the function whose source says what a base computes, None if there is none."""
    if getattr(base, "rule_vjp", None) is not None or getattr(base, "rule_jvp", None) is not None:
        return None
    if not isinstance(base, Derivative):
        return base
    return None if wrap and base.plain(kinds) is None else base.implementation(kinds)


@kept_with_function
def _caller(base: Any, copied: tuple[int, ...] = ()) -> Any:
    """Return a numba function that calls another one, so that the rule of the call is used."""
    parameters = list(inspect.signature(base.py_func).parameters)
    names = ", ".join(parameters)
    given = ", ".join(f"{n}.copy()" if k in copied else n for k, n in enumerate(parameters))
    called = unlike("derivative", set(parameters))
    name = identifier_of(base.py_func)
    text = f"def {name}({names}):\n    return {called}({given})\n"
    key = native.fingerprint(text.encode(), repr(id(base)).encode())
    function = native.compile_source(key, text, name)
    function.__globals__[called] = function.__globals__["_calls"] = base
    return numba.njit(function)


def check_numbers(
    base: Any, numbers: tuple[int, ...], kinds: tuple[Any, ...], instance: Instance
) -> None:
    """Refuse to differentiate with respect to an argument that is not real."""
    for number in numbers:
        if not holds_real(kinds[number]):
            name = instance.function.params[number]
            if isinstance(kinds[number], types.List):
                raise TransformError(
                    f"argument {number} ({name}) of {base.py_func.__name__} {python_list(name)}"
                )
            raise TransformError(
                f"argument {number} ({name}) of {base.py_func.__name__} has type {kinds[number]}; "
                "derivatives are by floats and complex numbers, and arrays of them: pass a float, "
                "or astype(float)"
            )


class Pullback(Derivative):
    """Gradient, optionally with the value, optionally for given cotangents of the value.

    `seeds` is the number of cotangents, of the real parts of the value, that are arguments. With
    `into`, the last argument has the arrays that the gradient is written to.
    """

    assumes = True

    def __init__(
        self, base: Any, numbers: tuple[int, ...], seeds: int, returns: Returns, into: bool = False
    ) -> None:
        self.numbers = numbers
        self.seeds = seeds
        self.returns = returns
        self.into = into
        names = tuple(f"g_{k}" for k in range(seeds))
        super().__init__(
            base, "pullback" if seeds else "gradient", (*names, "out") if into else names
        )

    def spec(self) -> tuple[Any, ...]:
        return (self.numbers, self.seeds, self.returns, self.into)

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        own = kinds[: len(kinds) - self.given]
        instance = differentiable(program, self.base, own, wrap=True)
        check_numbers(self.base, self.numbers, own, instance)
        if not self.seeds and self.numbers:
            self._check_result(instance)
        if self.into:
            self._check_buffers(instance, kinds[-1])
            return program.pullback(instance, self.numbers, 0, self.returns, self.extra_names()[-1])
        for result, seed in zip(instance.results(), kinds[len(own) :], strict=False):
            if holds_complex(seed) and not is_complex(instance.function.types[result]):
                raise TransformError(
                    f"a cotangent of {instance.function.name} is of type {seed}; it has the type "
                    f"of the result, here {instance.function.types[result]}"
                )
        return program.pullback(instance, self.numbers, self.seeds, self.returns)

    def claim(self, kinds: tuple[Any, ...]) -> Claim | None:
        function = source_of(self.base, kinds[: len(kinds) - self.given], wrap=True)
        has_value = Returns.VALUE in self.returns
        if function is None or self.into or self.returns == Returns.VALUE:
            return None
        return Claim(function, self.numbers, True, has_value, self.seeds)

    def converted(self, number: int, text: str, kind: Any, own: list[Any]) -> tuple[str, Any]:
        if self.into:  # what is written to is not converted
            return text, kind
        return super().converted(number, text, kind, own)

    def checked(self, args: tuple[Any, ...]) -> tuple[Derivative, tuple[Any, ...]]:
        if self.into:
            return pullback(self.base, self.numbers, self.seeds, self.returns), args[:-1]
        return self, args

    def _check_buffers(self, instance: Instance, given: Any) -> None:
        """Refuse buffers that do not have the types of the gradient."""
        wanted = [instance.kinds[number] for number in self.numbers]
        name = self.extra_names()[-1]
        pairs = [(name, wanted[0], given)]
        if Returns.GRADIENTS in self.returns:
            if not isinstance(given, types.BaseTuple) or len(given) != len(wanted):
                raise TransformError(
                    f"{name} is of type {given}; it is a tuple with an array for each of the "
                    f"{len(wanted)} arguments that argnums names, and None for a number"
                )
            pairs = [
                (f"{name}[{k}]", *pair) for k, pair in enumerate(zip(wanted, given, strict=True))
            ]
        for text, kind, found in pairs:
            if not _takes_gradient(kind, found):
                wanted_kind = _gradient_kind(kind)
                raise TransformError(
                    f"{text} is of type {found}; it has to be an array that can be written to, or "
                    f"a tuple of arrays, with the types of the gradient, here {wanted_kind}"
                )
        for number, kind in enumerate(instance.kinds):
            if holds_hidden_arrays(kind):
                raise TransformError(
                    f"out is refused, because argument {number} of {instance.function.name} is of "
                    f"type {kind}, whose arrays cannot be compared with {name}; call tg.grad "
                    "without out"
                )
        if not any(map(count_arrays, wanted)):
            raise TransformError(
                f"{name} is for gradients by arrays, and {instance.function.name} is "
                "differentiated with respect to numbers; call tg.grad without out"
            )

    def _check_result(self, instance: Instance) -> None:
        function = instance.function
        results = instance.results()
        if len(results) != 1 or is_array(function.types[results[0]]):
            what = (
                "nothing that is real"
                if not results
                else ("several numbers" if len(results) > 1 else "an array")
            )
            raise TransformError(
                f"grad needs a scalar result, and {function.name} returns {what}; use "
                "tg.jacobian or tg.jvp",
                function.source,
                function.source.tree.lineno,
            )
        if is_complex(function.types[results[0]]):
            raise TransformError(
                f"grad needs a real result, and {function.name} returns a complex number; "
                "return its real part, imaginary part or absolute value, or use tg.jvp",
                function.source,
                function.source.tree.lineno,
            )


class Pushforward(Derivative):
    """Value and tangent for tangents of some arguments (a Jacobian-vector product).

    Without `has_value` it returns the tangent only, and does not compute arrays that are only part
    of the value. With several `directions`, it takes as many tangents of each of these arguments,
    and returns a tuple of tangents.
    """

    def __init__(
        self, base: Any, numbers: tuple[int, ...], has_value: bool = True, directions: int = 1
    ) -> None:
        self.numbers = numbers
        self.has_value = has_value
        self.directions = directions
        names = list(inspect.signature(base.py_func).parameters)
        extra = [f"{names[k]}_dot" for k in numbers]
        if directions > 1:
            extra = [f"{name}_{k}" for name in extra for k in range(directions)]
        super().__init__(base, "pushforward", tuple(extra))

    def spec(self) -> tuple[Any, ...]:
        return (self.numbers, self.has_value, self.directions)

    def takes_directions(self, kinds: tuple[Any, ...]) -> bool:
        """Whether there is code for several directions, for the types of the base's arguments."""
        tangents = [types.Array(kinds[k].dtype, kinds[k].ndim, "C") for k in self.numbers]
        given = (*kinds, *(tangent for tangent in tangents for _ in range(self.directions)))
        if self._bound(given).kinds != given:  # something is converted
            return False
        try:
            self.implementation(given)
        except SingleDirectionError:
            return False
        return True

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        own = kinds[: len(kinds) - self.given]
        instance = differentiable(program, self.base, own, wrap=False)
        check_numbers(self.base, self.numbers, own, instance)
        names = self.extra_names()[:: self.directions]
        tangents = kinds[len(own) :: self.directions]
        for number, tangent, name in zip(self.numbers, tangents, names, strict=True):
            if not is_tangent(own[number], tangent):
                raise TransformError(
                    f"{name} is of type {tangent}; a tangent has the type of its argument, here "
                    f"{own[number]}"
                )
        return program.pushforward(instance, self.numbers)

    def converted(self, number: int, text: str, kind: Any, own: list[Any]) -> tuple[str, Any]:
        text, kind = super().converted(number, text, kind, own)
        like = own[self.numbers[number // self.directions]]
        if isinstance(kind, types.Float) and isinstance(like, types.Float) and kind != like:
            if Declared(self.root).is_closed:  # then the argument may have been converted, too
                return f"np.{like}({text})", like
        return _with_layout(text, kind, like)

    def claim(self, kinds: tuple[Any, ...]) -> Claim | None:
        function = source_of(self.base, kinds[: len(kinds) - self.given], wrap=False)
        if function is None or self.directions > 1:
            return None
        return Claim(function, self.numbers, False, self.has_value, self.given)

    def finish(self, program: Program, entry: str) -> None:
        if not self.has_value:
            program.drop_values()
        if self.directions > 1:
            program.take_directions(entry, len(self.numbers), self.directions)

    def plain(self, kinds: tuple[Any, ...]) -> Any:
        if self.directions > 1:
            return None
        own = kinds[: len(kinds) - self.given]
        base: Any = self.base
        if isinstance(base, Derivative) and base.plain(own) is None:
            return None
        return self.implementation(kinds)


def _with_layout(text: str, kind: Any, like: Any) -> tuple[str, Any]:
    """Return the text and the type of a tangent with the layout of its argument.

    Views of the argument and of its tangent are the same expressions, which copy for some layouts.
    """
    if not isinstance(kind, types.Array) or not isinstance(like, types.Array):
        return text, kind
    if kind.layout == like.layout or kind.ndim != like.ndim or not kind.ndim:
        return text, kind
    made = {"C": "np.ascontiguousarray({})", "F": "np.asfortranarray({})", "A": "{}[..., ::1]"}
    return made[like.layout].format(text), types.Array(kind.dtype, kind.ndim, like.layout)


def _gradient_kind(kind: Any) -> Any:
    """Return the type of the gradient with respect to an argument.

    It has the layout that ``np.zeros_like`` has: views of the argument and of its gradient are the
    same expressions, which are copies for other layouts.
    """
    if isinstance(kind, types.Array):
        return types.Array(kind.dtype, kind.ndim, "F" if kind.layout == "F" else "C")
    return kind


def _takes_gradient(kind: Any, buffer: Any) -> bool:
    """Whether the gradient with respect to an argument can be written to a buffer."""
    if isinstance(kind, types.Array):
        return isinstance(buffer, types.Array) and buffer == _gradient_kind(kind)
    if isinstance(kind, types.BaseTuple):
        return (
            isinstance(buffer, types.BaseTuple)
            and len(kind) == len(buffer)
            and all(map(_takes_gradient, kind, buffer))
        )
    return True  # it is not used


def is_tangent(kind: Any, tangent: Any) -> bool:
    """Whether a type is valid for tangents of another."""
    if isinstance(kind, types.Array):
        return (
            isinstance(tangent, types.Array)
            and tangent.ndim == kind.ndim
            and isinstance(tangent.dtype, type(kind.dtype) if is_real(kind) else types.Float)
        )
    if isinstance(kind, types.BaseTuple):
        return (
            isinstance(tangent, types.BaseTuple)
            and len(kind) == len(tangent)
            and all(map(is_tangent, kind, tangent))
        )
    if isinstance(tangent, types.Complex):
        return is_complex(kind)
    return isinstance(tangent, (types.Float, types.Integer))


# -- each derivative once -------------------------------------------------------------------------


def pullback(
    base: Any, numbers: tuple[int, ...], seeds: int, returns: Returns, into: bool = False
) -> Pullback:
    """Return the gradient of a function with respect to some arguments."""
    return once(Pullback, base, numbers, seeds, returns, into)


def pushforward(
    base: Any, numbers: tuple[int, ...], has_value: bool = True, directions: int = 1
) -> Pushforward:
    """Return the value and tangent of a function for tangents of some arguments."""
    return once(Pushforward, base, numbers, has_value, directions)


def once(kind: Any, base: Any, *args: Any) -> Any:
    """Return a derivative, always the same one."""
    return _made(base, kind, *args)


@kept_with_function
def _made(base: Any, kind: Any, *args: Any) -> Any:
    return kind(base, *args)


Pullback.once = staticmethod(pullback)
Pushforward.once = staticmethod(pushforward)
Derivative.jvp = pushforward
