"""Derivatives of numba functions, as numba functions.

They are called from Python and from compiled code like any other numba function.
"""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any

import numba
from numba.core import types

from tapegrad.kernels import native
from tapegrad.transform.base import Derivative, written_arguments
from tapegrad.transform.codegen.dead_arrays import without_values
from tapegrad.transform.codegen.instance import Instance
from tapegrad.transform.codegen.program import Program
from tapegrad.transform.codegen.pullback import write_pullback
from tapegrad.transform.codegen.pushforward import write_pushforward
from tapegrad.transform.errors import TransformError
from tapegrad.transform.kinds import (
    count_arrays,
    holds_complex,
    holds_hidden_arrays,
    holds_real,
    is_array,
    is_complex,
    is_real,
    result_kind,
    shape_checks,
)


def differentiable(program: Program, base: Any, kinds: tuple[Any, ...], wrap: bool) -> Instance:
    """Return the instance to differentiate for a base: of its function, or the generated one.

    If the rule for calls of the base applies, this is a function that calls it: with `wrap` for
    derivatives and custom vjps, otherwise for custom jvps.
    """
    if getattr(base, "into", False):
        raise TransformError(
            f"cannot differentiate {base.py_func.__name__}, which writes a gradient to arrays that "
            "it is given; differentiate tg.grad without out"
        )
    changed = base.changed_arguments(kinds) if isinstance(base, Derivative) else frozenset()
    ruled = getattr(base, "rule_vjp" if wrap else "rule_jvp", None)
    if ruled is not None:
        instance = program.instance(_caller(base), kinds)
    elif not isinstance(base, Derivative):
        instance = program.instance(base, kinds)
    elif wrap and base.plain(kinds) is None:
        instance = program.instance(_caller(base, tuple(sorted(changed))), kinds)
    else:
        instance = program.instance(base.implementation(kinds), kinds)
    program.analyse(is_reverse=wrap)
    return instance


@functools.cache
def _caller(base: Any, copied: tuple[int, ...] = ()) -> Any:
    """Return a numba function that calls another one, so that the rule of the call is used."""
    parameters = list(inspect.signature(base.py_func).parameters)
    names = ", ".join(parameters)
    given = ", ".join(f"{n}.copy()" if k in copied else n for k, n in enumerate(parameters))
    called = _unlike("derivative", set(parameters))
    text = f"def {base.py_func.__name__}({names}):\n    return {called}({given})\n"
    key = native.fingerprint(text.encode(), repr(id(base)).encode())
    function = native.compile_source(key, text, base.py_func.__name__)
    function.__globals__[called] = function.__globals__["_calls"] = base
    return numba.njit(function)


def check_numbers(
    base: Any, numbers: tuple[int, ...], kinds: tuple[Any, ...], instance: Instance
) -> None:
    """Refuse to differentiate with respect to an argument that is not real."""
    for number in numbers:
        if not holds_real(kinds[number]):
            name = instance.function.params[number]
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

    def __init__(
        self, base: Any, numbers: tuple[int, ...], seeds: int, returns: str, into: bool = False
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
        if not self.seeds:
            self._check_result(instance)
        if self.into:
            self._check_buffers(instance, kinds[-1])
            return write_pullback(
                program, instance, list(self.numbers), 0, self.returns, self.extra_names()[-1]
            )
        for result, seed in zip(instance.results(), kinds[len(own) :], strict=False):
            if holds_complex(seed) and not is_complex(instance.function.types[result]):
                raise TransformError(
                    f"a cotangent of {instance.function.name} is of type {seed}; it has the type "
                    f"of the result, here {instance.function.types[result]}"
                )
        return write_pullback(program, instance, list(self.numbers), self.seeds, self.returns)

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
        if self.returns.endswith("gradients"):
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
    of the value.
    """

    def __init__(self, base: Any, numbers: tuple[int, ...], has_value: bool = True) -> None:
        self.numbers = numbers
        self.has_value = has_value
        names = list(inspect.signature(base.py_func).parameters)
        super().__init__(base, "pushforward", tuple(f"{names[k]}_dot" for k in numbers))

    def spec(self) -> tuple[Any, ...]:
        return (self.numbers, self.has_value)

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        own = kinds[: len(kinds) - len(self.numbers)]
        instance = differentiable(program, self.base, own, wrap=False)
        check_numbers(self.base, self.numbers, own, instance)
        names = list(inspect.signature(self.py_func).parameters)[len(own) :]
        for number, tangent, name in zip(self.numbers, kinds[len(own) :], names, strict=True):
            if not _is_tangent(own[number], tangent):
                raise TransformError(
                    f"{name} is of type {tangent}; a tangent has the type of its argument, here "
                    f"{own[number]}"
                )
        return write_pushforward(program, instance, list(self.numbers))

    def converted(self, number: int, text: str, kind: Any, own: list[Any]) -> tuple[str, Any]:
        text, kind = super().converted(number, text, kind, own)
        return _with_layout(text, kind, own[self.numbers[number]])

    def finish(self, functions: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        return functions if self.has_value else without_values(functions)

    def plain(self, kinds: tuple[Any, ...]) -> Any:
        own = kinds[: len(kinds) - len(self.numbers)]
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


def _is_tangent(kind: Any, tangent: Any) -> bool:
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
            and all(map(_is_tangent, kind, tangent))
        )
    if isinstance(tangent, types.Complex):
        return is_complex(kind)
    return isinstance(tangent, (types.Float, types.Integer))


class Composed(Derivative):
    """A function of other derivatives, generated as text.

    It does not write to its array arguments: its parts get copies.
    """

    def text(self, name: str, names: list[str], kinds: tuple[Any, ...]) -> str:
        """Return the source of the function, for the names and types of its arguments."""
        raise NotImplementedError

    def parts(self) -> dict[str, Derivative]:
        """Return the derivatives that it calls, by the names of its attributes."""
        raise NotImplementedError

    def changed_arguments(self, kinds: tuple[Any, ...]) -> frozenset[int]:
        written = written_arguments(self, kinds)
        return frozenset(number for number in written if not is_array(kinds[number]))

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        for attribute, part in self.parts().items():
            program.statics[attribute] = part
            program.origins[attribute] = ("root", None, attribute)
        entry = program.fresh(self.py_func.__name__)
        names = list(inspect.signature(self.py_func).parameters)
        text = self.text(entry, names, kinds)
        own = {*_assigned(text), *self.parts(), "np", "range"}
        if own.intersection(names):  # the user's arguments have names that are used here
            names = [_unlike(name, {*own, *names}) if name in own else name for name in names]
            text = self.text(entry, names, kinds)
        program.write(text, self.base)
        return entry

    def passed(self, names: list[str], kinds: tuple[Any, ...]) -> list[str]:
        """Return the text passed to a part for each argument; arrays that it changes are copied."""
        changed = written_arguments(self.base, kinds)
        return [
            f"{name}.copy()" if number in changed and is_array(kind) else name
            for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ]


def _assigned(text: str) -> set[str]:
    """Return the names that the text of a function assigns."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _unlike(name: str, others: set[str]) -> str:
    """Return a variant of a name that is not in `others`."""
    while name in others:
        name += "_"
    return name


class HessianProduct(Composed):
    """The Hessian of a function times a vector."""

    def __init__(self, base: Any, number: int) -> None:
        self.number = number
        gradient = pullback(base, (number,), 0, "gradient")
        self.tangent_of_gradient = pushforward(gradient, (number,), False)
        super().__init__(base, "hvp", ("vector",))

    def spec(self) -> tuple[Any, ...]:
        return (self.number,)

    def parts(self) -> dict[str, Derivative]:
        return {"tangent_of_gradient": self.tangent_of_gradient}

    def text(self, name: str, names: list[str], kinds: tuple[Any, ...]) -> str:
        number, given = kinds[self.number], kinds[-1]
        if not _is_tangent(number, given):
            raise TransformError(
                f"{names[-1]} is of type {given}; it has the type of its argument, here {number}"
            )
        checks = shape_checks(names[-1], names[self.number], number)
        arguments = [*self.passed(names[:-1], kinds[:-1]), names[-1]]
        lines = [
            f"def {name}({', '.join(names)}):",
            *(f"    {line}" for line in checks),
            f"    return tangent_of_gradient({', '.join(arguments)})",
        ]
        return "\n".join(lines) + "\n"


_FLAT = "{}.copy().reshape(-1)"  # of an array of any layout


class Jacobian(Composed):
    """The matrix of all derivatives, by columns or by rows, whichever are fewer."""

    def __init__(self, base: Any, numbers: tuple[int, ...], single: bool) -> None:
        self.numbers = numbers
        self.single = single
        # derivatives are differentiated in forward mode; for gradients, columns equal rows
        self.columns_only = isinstance(base, Derivative)
        for number in numbers:
            setattr(self, f"column_{number}", pushforward(base, (number,), False))
            if not self.columns_only:
                setattr(self, f"row_{number}", pullback(base, (number,), 1, "gradient"))
        super().__init__(base, "jacobian")
        self.primal = base

    def spec(self) -> tuple[Any, ...]:
        return (self.numbers, self.single)

    def parts(self) -> dict[str, Derivative]:
        found = {"primal": self.base}
        for number in self.numbers:
            found[f"column_{number}"] = getattr(self, f"column_{number}")
            if not self.columns_only:
                found[f"row_{number}"] = getattr(self, f"row_{number}")
        return found

    def text(self, name: str, names: list[str], kinds: tuple[Any, ...]) -> str:
        if any(holds_complex(kinds[number]) for number in self.numbers):
            raise TransformError(
                "the Jacobian is by real numbers; write the function with real and imaginary parts "
                "as two arguments, or use tg.jvp"
            )
        for number in self.numbers:
            if isinstance(kinds[number], types.BaseTuple) or not holds_real(kinds[number]):
                raise TransformError(
                    f"the Jacobian is by a float or an array of floats; argument {number} "
                    f"({names[number]}) has type {kinds[number]}"
                )
        base = self.base
        result = result_kind(base, kinds)
        if holds_complex(result):
            raise TransformError(
                f"the Jacobian is of real numbers; {base.py_func.__name__} returns {result}: "
                "return real and imaginary parts, or use tg.jvp"
            )
        if isinstance(result, types.BaseTuple) or not holds_real(result):
            raise TransformError(
                "the Jacobian is of a float or an array of floats; "
                f"{base.py_func.__name__} returns {result}"
            )
        given = self.passed(names, kinds)
        lines = [f"def {name}({', '.join(names)}):", f"    value = primal({', '.join(given)})"]
        found = []
        for number in self.numbers:
            x, kind = names[number], kinds[number]
            if not is_array(kind):
                lines.append(f"    column = column_{number}({', '.join(given)}, 1.0)")
                lines.append(f"    found_{number} = column")
            elif not is_array(result) and not self.columns_only:
                lines.append(f"    row = row_{number}({', '.join(given)}, 1.0)")
                lines.append(f"    found_{number} = row")
            elif not is_array(result):
                lines += [
                    f"    found = np.zeros({x}.size)",
                    f"    tangent = np.zeros({x}.size, {x}.dtype)",
                    f"    tangents = tangent.reshape({x}.shape)",
                    f"    for k in range({x}.size):",
                    "        tangent[k] = 1.0",
                    f"        found[k] = column_{number}({', '.join(given)}, tangents)",
                    "        tangent[k] = 0.0",
                    f"    found_{number} = found.reshape({x}.shape)",
                ]
            else:
                shape = f"value.shape + {x}.shape"
                lines.append(f"    found = np.empty((value.size, {x}.size), value.dtype)")
                columns = [
                    f"tangent = np.zeros({x}.size, {x}.dtype)",
                    f"tangents = tangent.reshape({x}.shape)",
                    f"for k in range({x}.size):",
                    "    tangent[k] = 1.0",
                    f"    column = column_{number}({', '.join(given)}, tangents)",
                    f"    found[:, k] = {'column' if result.ndim == 1 else _FLAT.format('column')}",
                    "    tangent[k] = 0.0",
                ]
                rows = [
                    "g = np.zeros(value.size, value.dtype)",
                    "gs = g.reshape(value.shape)",
                    "for k in range(value.size):",
                    "    g[k] = 1.0",
                    f"    row = row_{number}({', '.join(given)}, gs)",
                    f"    found[k, :] = {'row' if kind.ndim == 1 else _FLAT.format('row')}",
                    "    g[k] = 0.0",
                ]
                if self.columns_only:
                    lines += [f"    {line}" for line in columns]
                else:
                    lines.append(f"    if {x}.size <= value.size:")
                    lines += [f"        {line}" for line in columns]
                    lines.append("    else:")
                    lines += [f"        {line}" for line in rows]
                lines.append(f"    found_{number} = found.reshape({shape})")
            found.append(f"found_{number}")
        ending = found[0] if self.single else f"({', '.join(found)},)"
        lines.append(f"    return {ending}")
        return "\n".join(lines) + "\n"


# -- each derivative once -------------------------------------------------------------------------


def pullback(
    base: Any, numbers: tuple[int, ...], seeds: int, returns: str, into: bool = False
) -> Pullback:
    """Return the gradient of a function with respect to some arguments."""
    return _once(Pullback, base, numbers, seeds, returns, into)


def pushforward(base: Any, numbers: tuple[int, ...], has_value: bool = True) -> Pushforward:
    """Return the value and tangent of a function for tangents of some arguments."""
    return _once(Pushforward, base, numbers, has_value)


def hessian_product(base: Any, number: int) -> HessianProduct:
    """Return the Hessian of a function times a vector."""
    return _once(HessianProduct, base, number)


def jacobian(base: Any, numbers: tuple[int, ...], single: bool) -> Jacobian:
    """Return the Jacobian of a function."""
    return _once(Jacobian, base, numbers, single)


@functools.cache
def _once(kind: Any, *args: Any) -> Any:
    """Return a derivative, always the same one."""
    return kind(*args)


Pullback.once = staticmethod(pullback)
Pushforward.once = staticmethod(pushforward)
HessianProduct.once = staticmethod(hessian_product)
Jacobian.once = staticmethod(jacobian)
Derivative.jvp = pushforward
