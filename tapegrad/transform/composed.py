"""Derivatives composed of others: products with Hessians, and Jacobians, column by column."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from numba.core import types

from tapegrad.transform.base import Derivative, written_arguments
from tapegrad.transform.derivatives import is_tangent, once, pullback, pushforward
from tapegrad.transform.errors import TransformError
from tapegrad.transform.generated import parsed_function
from tapegrad.transform.ir import names_in
from tapegrad.transform.kinds import (
    holds_complex,
    holds_real,
    is_array,
    result_kind,
    shape_checks,
)
from tapegrad.transform.protocols import Program, Returns
from tapegrad.transform.syntax import identifier_of, unlike


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
        entry = program.fresh(identifier_of(self.py_func))
        names = list(inspect.signature(self.py_func).parameters)
        text = self.text(entry, names, kinds)
        placeholders = [f"_{k}_" for k in range(len(names))]
        own = {*_names_in(self.text(entry, placeholders, kinds)), *self.parts()}
        if own.intersection(names):  # the user's arguments have names that are used here
            names = [unlike(name, {*own, *names}) if name in own else name for name in names]
            text = self.text(entry, names, kinds)
        program.add(parsed_function(text), self.base)
        return entry

    def passed(self, names: list[str], kinds: tuple[Any, ...]) -> list[str]:
        """Return the text passed to a part for each argument; arrays that it changes are copied."""
        changed = written_arguments(self.base, kinds)
        return [
            f"{name}.copy()" if number in changed and is_array(kind) else name
            for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ]


def _names_in(text: str) -> set[str]:
    """Return the names that the body of a function uses."""
    return set(names_in(ast.parse(text)))


class HessianProduct(Composed):
    """The Hessian of a function times a vector."""

    def __init__(self, base: Any, number: int) -> None:
        self.number = number
        gradient = pullback(base, (number,), 0, Returns.GRADIENT)
        self.tangent_of_gradient = pushforward(gradient, (number,), False)
        super().__init__(base, "hvp", ("vector",))

    def spec(self) -> tuple[Any, ...]:
        return (self.number,)

    def parts(self) -> dict[str, Derivative]:
        return {"tangent_of_gradient": self.tangent_of_gradient}

    def text(self, name: str, names: list[str], kinds: tuple[Any, ...]) -> str:
        number, given = kinds[self.number], kinds[-1]
        if not is_tangent(number, given):
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
DIRECTIONS = 4


class Jacobian(Composed):
    """The matrix of all derivatives, by columns or by rows, whichever are fewer."""

    def __init__(self, base: Any, numbers: tuple[int, ...], single: bool) -> None:
        self.numbers = numbers
        self.single = single
        # derivatives are differentiated in forward mode; for gradients, columns equal rows
        self.columns_only = isinstance(base, Derivative)
        for number in numbers:
            setattr(self, f"column_{number}", pushforward(base, (number,), False))
            several = pushforward(base, (number,), False, DIRECTIONS)
            setattr(self, f"columns_{number}", several)
            if not self.columns_only:
                setattr(self, f"row_{number}", pullback(base, (number,), 1, Returns.GRADIENT))
        super().__init__(base, "jacobian")
        self.primal = base

    def spec(self) -> tuple[Any, ...]:
        return (self.numbers, self.single)

    def parts(self) -> dict[str, Derivative]:
        found = {"primal": self.base}
        for number in self.numbers:
            for name in (f"column_{number}", f"columns_{number}"):
                found[name] = getattr(self, name)
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
                lines.append(f"    found = np.zeros((1, {x}.size))")
                lines += [f"    {line}" for line in self._columns(number, names, kinds, 0)]
                lines.append(f"    found_{number} = found.reshape({x}.shape)")
            else:
                shape = f"value.shape + {x}.shape"
                lines.append(f"    found = np.empty((value.size, {x}.size), value.dtype)")
                wanted = {"column": (*kinds, kind), "row": (*kinds, result)}
                possible = self._possible(number, wanted)
                if "column" in possible:
                    columns = self._columns(number, names, kinds, result.ndim)
                rows = [
                    "g = np.zeros(value.size, value.dtype)",
                    "gs = g.reshape(value.shape)",
                    "for k in range(value.size):",
                    "    g[k] = 1.0",
                    f"    row = row_{number}({', '.join(given)}, gs)",
                    f"    flat = {'row' if kind.ndim == 1 else _FLAT.format('row')}",
                    "    for i in range(flat.size):",
                    "        found[k, i] = flat[i]",
                    "    g[k] = 0.0",
                ]
                if len(possible) == 1:
                    chosen = columns if "column" in possible else rows
                    lines += [f"    {line}" for line in chosen]
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

    def _possible(self, number: int, wanted: dict[str, tuple[Any, ...]]) -> list[str]:
        """Return in which of both ways derivatives are known, those with the types `wanted`.

        A function may have a rule for one of them only.
        """
        found = []
        refused: list[TransformError] = []
        for way, kinds in wanted.items():
            if way == "row" and self.columns_only:
                continue
            try:
                getattr(self, f"{way}_{number}").implementation(kinds)
            except TransformError as error:
                refused.append(error)
            else:
                found.append(way)
        if not found:
            raise refused[0]
        return found

    def _columns(
        self, number: int, names: list[str], kinds: tuple[Any, ...], ndim: int
    ) -> list[str]:
        """Return the lines that fill the matrix by columns, of arrays with `ndim` dimensions."""
        x, given = names[number], ", ".join(self.passed(names, kinds))
        if not getattr(self, f"columns_{number}").takes_directions(kinds):
            flat = [f"    column = {_FLAT.format('column')}"] if ndim > 1 else []
            return [
                f"tangent = np.zeros({x}.size, {x}.dtype)",
                f"tangents = tangent.reshape({x}.shape)",
                f"for k in range({x}.size):",
                "    tangent[k] = 1.0",
                f"    column = column_{number}({given}, tangents)",
                *flat,
                "    for i in range(found.shape[0]):",
                f"        found[i, k] = column{'[i]' if ndim else ''}",
                "    tangent[k] = 0.0",
            ]
        columns = [f"side_{k}" for k in range(DIRECTIONS)]
        tangents = [f"tangents[{k}].reshape({x}.shape)" for k in range(DIRECTIONS)]
        flat = [f"    {n} = {_FLAT.format(n)}" for n in columns] if ndim > 1 else []
        element = "{}[k]" if ndim else "{}"
        stores = [f"wide[k, first + {n}] = {element.format(c)}" for n, c in enumerate(columns)]
        return [  # the last pass may compute columns again
            f"count = min({DIRECTIONS}, {x}.size)",
            f"room = np.empty((found.shape[0], {DIRECTIONS}), found.dtype)",
            f"wide = found if count == {DIRECTIONS} else room",
            f"tangents = np.zeros(({DIRECTIONS}, {x}.size), {x}.dtype)",
            f"for start in range(0, {x}.size, {DIRECTIONS}):",
            f"    first = min(start, {x}.size - count)",
            "    for k in range(count):",
            "        tangents[k, first + k] = 1.0",
            f"    {', '.join(columns)} = columns_{number}({given}, {', '.join(tangents)})",
            *flat,
            "    for k in range(found.shape[0]):",
            *(f"        {line}" for line in stores),
            "    for k in range(count):",
            "        tangents[k, first + k] = 0.0",
            f"if count < {DIRECTIONS}:",
            "    for k in range(found.shape[0]):",
            "        for i in range(count):",
            "            found[k, i] = wide[k, i]",
        ]


def hessian_product(base: Any, number: int) -> HessianProduct:
    """Return the Hessian of a function times a vector."""
    return once(HessianProduct, base, number)


def jacobian(base: Any, numbers: tuple[int, ...], single: bool) -> Jacobian:
    """Return the Jacobian of a function."""
    return once(Jacobian, base, numbers, single)


HessianProduct.once = staticmethod(hessian_product)
Jacobian.once = staticmethod(jacobian)
