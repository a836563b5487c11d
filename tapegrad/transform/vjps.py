"""Cotangents of the arguments of derivatives: reverse mode applied to derivatives.

They are composed of forward and reverse derivatives, so no reverse code is ever reversed. Below, f
is the root function, and D_u the derivative in direction u.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from numba.core import types

from tapegrad.transform.base import Derivative
from tapegrad.transform.composed import Composed, HessianProduct, Jacobian
from tapegrad.transform.derivatives import (
    Pullback,
    Pushforward,
    pullback,
    pushforward,
)
from tapegrad.transform.ir import class_text
from tapegrad.transform.kept import kept_with_function
from tapegrad.transform.kinds import holds_real, is_array, is_real, result_kind
from tapegrad.transform.protocols import Program, Returns


class Vjp(Composed):
    """Cotangents of some arguments of a derivative.

    It takes the arguments of the derivative and a cotangent in the structure of its result, and
    returns a tuple with the cotangents of the arguments at `positions`.
    """

    def __init__(self, derivative: Any, positions: tuple[int, ...]) -> None:
        self.positions = positions
        # the arguments of the differentiated function, which precede those that the derivative adds
        self.count = len(inspect.signature(derivative.base.py_func).parameters)
        self.own = tuple(k for k in positions if k < self.count)
        self.added = tuple(k for k in positions if k >= self.count)
        self.used: dict[str, Derivative] = {}
        super().__init__(derivative, "vjp", ("cotangent",))

    def spec(self) -> tuple[Any, ...]:
        return (self.positions,)

    def use(self, name: str, part: Derivative) -> None:
        """Register a derivative to call, under a name that also becomes an attribute."""
        setattr(self, name, part)
        self.used[name] = part

    def parts(self) -> dict[str, Derivative]:
        return self.used

    def generate(self, program: Program, kinds: tuple[Any, ...]) -> str:
        for kind in kinds:
            for found in _classes(kind):
                program.static(class_text(found), found, None)
        return super().generate(program, kinds)

    def text(self, name: str, names: list[str], kinds: tuple[Any, ...]) -> str:
        *names, g = names
        given = self.passed(names, kinds[:-1])
        lines = [f"def {name}({', '.join([*names, g])}):", *self.body(names, given, g, kinds)]
        return "\n    ".join(lines) + "\n"

    def body(self, names: list[str], given: list[str], g: str, kinds: tuple[Any, ...]) -> list[str]:
        """Return the lines of the function.

        Parameters
        ----------
        names, given
            The arguments of the derivative, and the texts that are passed on for them.
        g
            The cotangent.
        kinds
            The types of all arguments.
        """
        raise NotImplementedError


class VjpOfGradient(Vjp):
    """Cotangents for a gradient, by the symmetry of the Hessian.

    For the gradient of ``sum(g * f(x))`` with the cotangent ``u``: the cotangent of ``x`` is the
    second derivative times ``u``, which is the tangent of the gradient in direction ``u``; the
    cotangent of ``g`` is the tangent of ``f`` in direction ``u``.
    """

    def __init__(self, gradient: Pullback, positions: tuple[int, ...]) -> None:
        super().__init__(gradient, positions)
        if self.own:
            own = pullback(gradient.base, self.own, gradient.seeds, Returns.GRADIENTS)
            self.use("jvp_of_gradient", pushforward(own, gradient.numbers))
        if self.added:
            self.use("jvp_of_value", pushforward(gradient.base, gradient.numbers))

    def body(self, names: list[str], given: list[str], g: str, kinds: tuple[Any, ...]) -> list[str]:
        gradient = self.base
        with_value = Returns.VALUE in gradient.returns
        tangents = [f"{g}[1]" if with_value else g]
        if Returns.GRADIENTS in gradient.returns:
            tangents = [f"{tangents[0]}[{k}]" for k in range(len(gradient.numbers))]
        lines = []
        if self.own:
            arguments = ", ".join([*given, *tangents])
            lines.append(f"gradients, vjp = jvp_of_gradient({arguments})")
        if self.added:
            arguments = ", ".join([*given[: self.count], *tangents])
            lines.append(f"value, tangent = jvp_of_value({arguments})")
        items = []
        for place, position in enumerate(self.own):
            found = f"vjp[{place}]"
            if with_value:
                found = _sum_text(kinds[position], f"gradients[{place}]", f"{g}[0]", found)
            items.append(found)
        items += [self._part(k - self.count, kinds[: self.count]) for k in self.added]
        return [*lines, f"return ({', '.join(items)},)"]

    def _part(self, number: int, kinds: tuple[Any, ...]) -> str:
        """Return the text of a real part of the tangent of the value."""
        result = result_kind(self.base.base, kinds)
        return _leaves(result, "tangent")[number][0]


class VjpOfPushforward(Vjp):
    """Cotangents for the value and tangent of a function or derivative h.

    With the cotangent c of ``h(x)`` and d of ``h'(x) v``: let ``q(x, d)`` be the cotangent of x for
    the cotangent d of ``h(x)``. It is linear in d. So the cotangent of v is ``q(x, d)``, and that
    of x is ``q(x, c) + D_v q(x, d)``: the tangent of q in direction (v, c).
    """

    def __init__(self, tangent: Pushforward, positions: tuple[int, ...]) -> None:
        super().__init__(tangent, positions)
        numbers = tangent.numbers
        self.moved = tuple(numbers[k - self.count] for k in self.added)
        self.all = tuple(sorted({*self.own, *self.moved}))
        inner = tangent.base.vjp(self.all)
        if self.own:
            self.use("jvp_of_inner", pushforward(inner, (*numbers, self.count)))
        else:
            self.use("inner", inner)

    def body(self, names: list[str], given: list[str], g: str, kinds: tuple[Any, ...]) -> list[str]:
        arguments = [*given[: self.count], f"{g}[1]"]
        if self.own:
            arguments += [*names[self.count :], f"{g}[0]"]
            line = f"found, tangent = jvp_of_inner({', '.join(arguments)})"
        else:
            line = f"found = inner({', '.join(arguments)})"
        items = [f"tangent[{self.all.index(k)}]" for k in self.own]
        items += [f"found[{self.all.index(k)}]" for k in self.moved]
        return [line, f"return ({', '.join(items)},)"]


class VjpOfProduct(Vjp):
    """Cotangents for a Hessian times a vector v.

    With the cotangent w they are the gradients of ``D_v D_w f``: with respect to v, the Hessian
    times w; with respect to an argument, the tangent of the tangent of its gradient.
    """

    def __init__(self, product: HessianProduct, positions: tuple[int, ...]) -> None:
        super().__init__(product, positions)
        number = product.number
        self.all = tuple(sorted({*self.own, *((number,) if self.added else ())}))
        found = pushforward(pullback(product.base, self.all, 0, Returns.GRADIENTS), (number,))
        self.use("product", pushforward(found, (number,)) if self.own else found)

    def body(self, names: list[str], given: list[str], g: str, kinds: tuple[Any, ...]) -> list[str]:
        if self.own:
            lines = [
                f"values, tangents = product({', '.join([*given, g])})",
                "first, second = tangents",
            ]
        else:
            lines = [f"values, first = product({', '.join([*given[:-1], g])})"]
        items = [f"second[{self.all.index(k)}]" for k in self.own]
        items += [f"first[{self.all.index(self.base.number)}]" for _ in self.added]
        return [*lines, f"return ({', '.join(items)},)"]


class VjpOfJacobian(Vjp):
    """Cotangents for a Jacobian: summed over its columns or rows, whichever are fewer.

    With the cotangent G: a row of the Jacobian is a gradient, whose cotangent is a row of G. A
    column is a tangent, which is differentiated in reverse mode with a column of G.
    """

    def __init__(self, jacobian: Jacobian, positions: tuple[int, ...]) -> None:
        super().__init__(jacobian, positions)
        base = jacobian.base
        for number in jacobian.numbers:
            if jacobian.columns_only:
                self.use(f"column_{number}", pushforward(base.vjp(positions), (number,)))
                continue
            column = pushforward(base, (number,))
            self.use(f"column_{number}", pullback(column, positions, 2, Returns.GRADIENTS))
            row = pullback(base, (number,), 1, Returns.GRADIENT)
            self.use(f"row_{number}", row.vjp(positions))

    def body(self, names: list[str], given: list[str], g: str, kinds: tuple[Any, ...]) -> list[str]:
        result = result_kind(self.base.base, kinds[: self.count])
        sums = [
            [(f"sum_{k}_{place}", leaf) for place, leaf in enumerate(_leaves(kinds[k], names[k]))]
            for k in self.positions
        ]
        lines = [
            f"{total} = {f'np.zeros_like({text})' if is_array(kind) else '0.0'}"
            for row in sums
            for total, (text, kind) in row
        ]

        def added(found: str) -> list[str]:
            """Return the lines that accumulate the cotangents of all arguments."""
            return [
                f"found = {found}",
                *(
                    f"{total} += found[{item}]{text.removeprefix(names[k])}"
                    for item, (k, row) in enumerate(zip(self.positions, sums, strict=True))
                    for total, (text, _) in row
                ),
            ]

        for item, number in enumerate(self.base.numbers):
            own = g if self.base.single else f"{g}[{item}]"
            lines += self._products(added, number, names, given, own, kinds, result)
        items = [
            _rebuilt(kinds[k], [total for total, _ in row])
            for k, row in zip(self.positions, sums, strict=True)
        ]
        return [*lines, f"return ({', '.join(items)},)"]

    def _products(
        self,
        added: Any,
        number: int,
        names: list[str],
        given: list[str],
        g: str,
        kinds: tuple[Any, ...],
        result: Any,
    ) -> Iterator[str]:
        """Yield the lines for the derivatives with respect to one argument."""
        x, kind, arguments = names[number], kinds[number], ", ".join(given)

        def column(direction: str, part: str) -> list[str]:
            if self.base.columns_only:
                return added(f"column_{number}({arguments}, {part}, {direction})[1]")
            zero = f"np.zeros_like({part})" if is_array(result) else "0.0"
            return added(f"column_{number}({arguments}, {direction}, {zero}, {part})")

        if not is_array(kind):
            yield from column("1.0", g)
            return
        unit = [
            f"unit = np.zeros({x}.size, {x}.dtype)",
            "unit[k] = 1.0",
            f"direction = unit.reshape({x}.shape)",
        ]
        if not is_array(result):
            if not self.base.columns_only:
                yield from added(f"row_{number}({arguments}, 1.0, {g})")
                return
            yield f"parts = {g}.copy().reshape(-1)"
            yield f"for k in range({x}.size):"
            yield from (f"    {line}" for line in (*unit, *column("direction", "parts[k]")))
            return
        lengths = [f"{g}.shape[{k}]" for k in range(result.ndim)]
        yield f"rows = {' * '.join(lengths)}"
        yield f"parts = {g}.copy().reshape((rows, {x}.size))"
        shape = f"({', '.join(lengths)},)"
        part = f"part = parts[:, k].copy().reshape({shape})"
        columns = [
            f"for k in range({x}.size):",
            *(f"    {line}" for line in (*unit, part, *column("direction", "part"))),
        ]
        if self.base.columns_only:
            yield from columns
            return
        found = f"row_{number}({arguments}, unit.reshape({shape}), part)"
        rows = [
            "for k in range(rows):",
            "    unit = np.zeros(rows, parts.dtype)",
            "    unit[k] = 1.0",
            f"    part = parts[k].copy().reshape({x}.shape)",
            *(f"    {line}" for line in added(found)),
        ]
        yield f"if {x}.size <= rows:"
        yield from (f"    {line}" for line in columns)
        yield "else:"
        yield from (f"    {line}" for line in rows)


# -- text of values with a structure --------------------------------------------------------------


def _sum_text(kind: Any, x: str, factor: str, y: str) -> str:
    """Return the text of ``x * factor + y`` for values of a type."""
    if isinstance(kind, types.BaseTuple):
        items = [_sum_text(k, f"{x}[{n}]", factor, f"{y}[{n}]") for n, k in enumerate(kind)]
        return _built(kind, items)
    return f"{x} * {factor} + {y}" if holds_real(kind) else y


def _built(kind: Any, items: list[str]) -> str:
    """Return the text of a tuple or named tuple of a type."""
    made = class_text(kind.instance_class) if hasattr(kind, "instance_class") else ""
    return f"{made}({', '.join(items)}{'' if made else ','})"


def _leaves(kind: Any, text: str) -> list[tuple[str, Any]]:
    """Return the texts and types of the real parts of a value."""
    if isinstance(kind, types.BaseTuple):
        return [found for k, item in enumerate(kind) for found in _leaves(item, f"{text}[{k}]")]
    return [(text, kind)] if is_real(kind) else []


def _rebuilt(kind: Any, parts: list[str]) -> str:
    """Return the text of a value with given real parts, which are popped from the list."""
    if isinstance(kind, types.BaseTuple):
        return _built(kind, [_rebuilt(item, parts) for item in kind])
    return parts.pop(0) if is_real(kind) else "0.0"


def _classes(kind: Any) -> list[type]:
    """Return the classes of named tuples in a type."""
    if not isinstance(kind, types.BaseTuple):
        return []
    own = [kind.instance_class] if hasattr(kind, "instance_class") else []
    return [*own, *(found for item in kind for found in _classes(item))]


# -- each once ------------------------------------------------------------------------------------

_CLASSES = {
    Pullback: VjpOfGradient,
    Pushforward: VjpOfPushforward,
    HessianProduct: VjpOfProduct,
    Jacobian: VjpOfJacobian,
}


@kept_with_function
def vjp(derivative: Derivative, positions: tuple[int, ...]) -> Vjp:
    """Return the cotangents of some arguments of a derivative."""
    kind = next(kind for kind in type(derivative).__mro__ if kind in _CLASSES)
    return _CLASSES[kind](derivative, positions)


Derivative.vjp = vjp
