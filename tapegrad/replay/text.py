"""The text of a compiled program while it is written: its lines, and the names of values."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node
from tapegrad.replay.forms import (
    BOOLEAN,
    FLOATS,
    INTEGER,
    Form,
    check_compiled,
    form_of,
    kind_of,
    number,
    place_in_base,
)
from tapegrad.replay.program import Program

SHORT = 4  # extents up to this are constants
_DIGITS = 5  # characters of a float, up to which it is written where it is used
_SMALL = 16  # integers up to this are
_MANY = 8  # more numbers among the constants are elements of one array
Lines = dict[int, list[str]]
Place = Callable[[list[str]], list[str]]


@dataclass
class Whole:
    """An array whose parts are computed where they belong.

    Attributes
    ----------
    name
        Its name.
    line
        The line that makes it.
    is_made
        Whether that line is written.
    """

    name: str
    line: str
    is_made: bool = False

    def makes(self) -> list[str]:
        """Return the line that makes the array, nothing the second time."""
        found = [] if self.is_made else [self.line]
        self.is_made = True
        return found


@dataclass
class Part:
    """A part of an array.

    Attributes
    ----------
    whole
        The array.
    place
        The index of an element in the array, by its index in the part.
    is_computed
        Whether its elements are there.
    """

    whole: Whole
    place: Place
    is_computed: bool = False


class Text:
    """What has been written of a function.

    Parameters
    ----------
    program
        The program that it computes.

    Attributes
    ----------
    lines
        The lines of its body.
    constants
        The arrays and numbers that are arguments after those of the program.
    names
        The names of arguments, stored arrays and numbers.
    forms
        The forms of all values that were met.
    stored
        The values that are in arrays.
    parts
        Those of them that are in arrays with others.
    reads
        How often each value is read, by others or as a result.
    nests
        How many loop nests it has.
    nest_of
        The numbers of those that compute values, from 1.
    in_python
        The values that functions without a compiled form return.
    """

    def __init__(self, program: Program) -> None:
        self.lines: list[str] = []
        self.constants: list[np.ndarray] = []
        self._places: dict[tuple[Any, ...], int] = {}  # of constants
        self.names: dict[Node, str] = {}
        self.forms: dict[Node, Form] = {}
        self.stored: set[Node] = set()
        self.parts: dict[Node, Part] = {}
        self.reads: Counter[Node] = Counter()
        self.nests = 0
        self.nest_of: dict[Node, int] = {}
        self.in_python: list[Node] = []
        self._depth = 1
        self._count = 0
        self._extents: dict[int, str] = {}
        for k, node in enumerate(program.inputs):
            self.names[node] = f"x{k}"
            for axis, extent in enumerate(node.shape):
                if extent > SHORT and extent not in self._extents:
                    self._extents[extent] = f"n{len(self._extents)}"
                    self.line(f"{self._extents[extent]} = x{k}.shape[{axis}]")
        self.enter(program)

    def enter(self, program: Program) -> None:
        """Get to know the values of a program, or of a part of it."""
        for node in program.constants:
            self.names[node] = self.constant(node.example)
        for node in (*program.inputs, *program.constants, *program.nodes):
            check_compiled(node)
            self.forms[node] = form_of(node)
        self.reads.update(program.outputs)
        self.reads.update(read for node in program.nodes for read in node.inputs())

    def constant(self, array: Any) -> str:
        """Return the text of a constant: a number, or an argument, one for equal arrays."""
        if array.ndim == 0 and array.dtype in (*FLOATS, INTEGER, BOOLEAN):
            return self.number(array.item())
        return self._given(array)

    def number(self, value: Any) -> str:
        """Return the text of a number that is known: an argument, if it is a special one.

        So there is one text for sizes, and numbers that were computed from them.
        """
        is_special = (
            len(repr(value)) > _DIGITS and np.isfinite(value)
            if type(value) is float
            else type(value) is int and _SMALL < abs(value) < 1 << 63
        )
        return self._given(np.asarray(value)[()]) if is_special else number(value)

    def _given(self, array: Any) -> str:
        """Return the name of an argument."""
        place = self._places.setdefault(
            (array.dtype, array.shape, array.tobytes()), len(self.constants)
        )
        if place == len(self.constants):
            self.constants.append(array)
        return f"c{place}"

    def finish(self) -> list[str]:
        """Return the names of the constants, when all lines are written.

        Many numbers become one array: a call takes time for each argument.
        """
        given = {f"c{k}": constant for k, constant in enumerate(self.constants)}
        numbers = [n for n, c in given.items() if c.ndim == 0 and c.dtype == np.float64]
        if len(numbers) > _MANY:
            self.lines[:0] = [f"    {name} = c[{k}]" for k, name in enumerate(numbers)]
            given["c"] = np.array([given.pop(name) for name in numbers])
            self.constants = [*given.values()]
        return [*given]

    # -- lines --------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Write a line."""
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def inside(self, head: str) -> Iterator[None]:
        """Write the head of a loop or branch, and in the context, what is inside."""
        self.line(head)
        count = len(self.lines)
        self._depth += 1
        yield
        if len(self.lines) == count:
            self.line("pass")
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """Return a name that is not used."""
        self._count += 1
        return f"{stem}{self._count}"

    def index(self, shape: tuple[int, ...]) -> list[str]:
        """Return new names for the index of an element of an array."""
        return [self.fresh("i") if extent != 1 else "0" for extent in shape]

    def extent(self, extent: int) -> str:
        """Return the text of an extent: that of an argument if one has it.

        So there is one text for arguments of all sizes. Short loops are unrolled. Extents of parts
        are constants: with them, the compiler knows that an index like ``1 + i`` is not negative.
        """
        return self._extents.get(extent, str(extent))

    @contextlib.contextmanager
    def shorter_in(self, number: str, by: int, nodes: list[Node]) -> Iterator[None]:
        """Write extents that are less by a number in each iteration of a loop.

        Parameters
        ----------
        number
            The number of the iteration.
        by
            How much less they are; nothing changes if that is 0.
        nodes
            The values of the first iteration, and what it reads of the one before.
        """
        extents = sorted({extent for node in nodes for extent in node.shape if by})
        if not extents:
            yield
            return
        known, least = self._extents, self.fresh("m")
        self.line(f"{least} = {extents[0]} - {by} * {number}")
        self._extents = {
            extent: f"{least} + {extent - extents[0]}" if extent > extents[0] else least
            for extent in extents
        }
        yield
        self._extents = known

    def shape(self, shape: tuple[int, ...]) -> str:
        """Return the text of the shape of a new array."""
        return f"({''.join(f'{self.extent(extent)}, ' for extent in shape).rstrip(' ')})"

    def empty(self, name: str, shape: tuple[int, ...], kind: str = "") -> str:
        """Return the line that makes an array of a shape (see `kind_of`)."""
        return f"{name} = np.empty({self.shape(shape)}{kind})"

    def loops(
        self,
        shape: tuple[int, ...],
        index: list[str],
        inside: list[str],
        before: Lines | None = None,
        after: Lines | None = None,
        depth: int = 0,
    ) -> None:
        """Write loops over a shape, with lines inside, and before and after those at some depth."""
        if depth == len(shape):
            for line in inside:
                self.line(line)
            return
        for line in (before or {}).get(depth, ()) if depth else ():
            self.line(line)
        if shape[depth] == 1:
            self.loops(shape, index, inside, before, after, depth + 1)
        else:
            with self.inside(f"for {index[depth]} in range({self.extent(shape[depth])}):"):
                self.loops(shape, index, inside, before, after, depth + 1)
        for line in (after or {}).get(depth, ()):
            self.line(line)

    def fill(
        self,
        name: str,
        shape: tuple[int, ...],
        element: Callable[[list[str]], str],
        place: Callable[[list[str]], list[str]] = list,
        sign: str = "=",
    ) -> None:
        """Write loops that assign elements of an array, or add to them.

        Parameters
        ----------
        name
            The array.
        shape
            The shape of what is assigned.
        element
            The text of an element, by its index.
        place
            The place of an element in the array, by its index.
        sign
            That of the assignment, ``+=`` to add.
        """
        index = self.index(shape)
        where = ", ".join(place(index))
        self.loops(shape, index, [f"{name}[{where or '()'}] {sign} {element(index)}"])

    # -- values -------------------------------------------------------------------------------

    def element(self, node: Node, index: list[str]) -> str:
        """Return the text of an element of a stored value, or of a view of one."""
        if node in self.names:
            name = self.names[node]
            return f"{name}[{', '.join(index)}]" if node.shape else name
        if self.forms[node] is not Form.VIEW:
            raise AssertionError(f"{node.name} is read before it is computed")
        return self.element(node.args[0], self.place(place_in_base(node, index)))

    def place(self, parts: list[Any]) -> list[str]:
        """Return the texts of an index, of which some parts are elements of arrays."""
        found = []
        for part in parts:
            if isinstance(part, tuple):
                array, own = part
                if isinstance(array, Node):
                    part = self.element(array, own)
                else:
                    part = f"{self.constant(array)}[{', '.join(own)}]"
            found.append(part)
        return found

    def array(self, node: Node) -> str:
        """Return the name of an array with the elements of a value: a copy for a view."""
        if node not in self.names:
            if not node.shape:
                return self.element(node, [])
            self.names[node] = self.copied(node)
        return self.names[node]

    def copied(self, node: Node) -> str:
        """Return the name of a new array with the elements of a value."""
        copy = self.fresh("z")
        self.line(self.empty(copy, node.shape, kind_of(node)))
        self.fill(copy, node.shape, lambda index: self.element(node, index))
        return copy

    def result(self, node: Node) -> str:
        """Return the name of an array for a result, which is neither an argument nor a view."""
        is_given = self.forms[node] is Form.GIVEN or node.name == "reshape"
        return self.copied(node) if is_given and node.shape else self.array(node)
