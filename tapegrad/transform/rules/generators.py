"""The interfaces that rules use: of the code generators of both modes, and of the lowering.

Rules are called with a generator, which writes the code of one function: `ReverseCode` for their
vjps, `ForwardCode` for their jvps. Rules are made by a `Lowerer`, which knows the types.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable
from typing import Any, NoReturn, Protocol

from tapegrad.transform.builder import Builder
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import Atom, Block, FunctionIR, Let, Statement
from tapegrad.transform.protocols import Program


class ArrayClasses(Protocol):
    """Which names may show elements of the same array."""

    def of(self, array: str) -> str:
        """Return the name that stands for all names of the same array."""

    def is_stored(self, array: str) -> bool:
        """Whether an array is written."""


class ScopeOrder(Protocol):
    """Where statements stand."""

    roots: dict[int, int]  # positions, in the function's body, by the ids of statements


class Generator(Protocol):
    """The interface common to both modes."""

    program: Program
    function: FunctionIR
    types: dict[str, Any]
    builder: Builder

    @property
    def arrays(self) -> ArrayClasses:
        """The classes of names that may show the same elements."""

    def is_active(self, identifier: str) -> bool:
        """Whether a name carries derivatives."""

    def returned(self, let: Let) -> str:
        """Return a new name for several derivatives that a call returns together."""

    def is_settled(self, identifier: str) -> bool:
        """Whether functions that are constant at infinity are applied to what follows from it."""

    def refuse(self, what: str, line: int) -> NoReturn:
        """Raise an error that points to a line of the user's function."""

    def check_view(self, shown: list[str], let: Let, made_by: str, instead: str) -> None:
        """Refuse a view with derivatives of its own, of arrays that may be written later.

        The error says what makes the view, and what to do instead.
        """

    def derivative(self, identifier: str) -> str:
        """Return the name of the cotangent or tangent of a value."""

    def zero(self, identifier: str) -> ast.expr:
        """Return a zero derivative."""


class ForwardCode(Generator, Protocol):
    """The code generator of forward mode."""

    def dot(self, identifier: str) -> str:
        """Return the tangent of a name."""

    def is_summed(self, let: Let) -> bool:
        """Whether an operation adds to the sum of a loop, where a partial of it may be infinite."""

    def origins(self, identifier: str) -> list[str]:
        """Return the numbers that a number follows from."""

    def tangent(self, atom: ast.expr | None) -> ast.expr:
        """Return the tangent of an atom, zero if it has none."""

    def set_dot(self, let: Let, expr: ast.expr | None, broadcast: bool = False) -> None:
        """Write the tangent of a new value; with `broadcast`, broadcast it to the value's shape."""

    def set_handle(self, target: str, expr: ast.expr) -> None:
        """Write the tangent of a new array."""


class ShadowCode(Protocol):
    """The arrays of cotangents."""

    def want(self, bar: str) -> None:
        """Have the forward code make a shadow."""

    def is_wanted(self, array: str) -> bool:
        """Whether the forward code makes the shadow of an array."""

    def write(self, builder: Builder, statement: Statement) -> None:
        """Write the shadows of what an operation makes."""


class ReverseCode(Generator, Protocol):
    """The code generator of reverse mode."""

    shadows: ShadowCode
    undefined: set[str]  # values that may be infinite or nan where they are not used
    skipped: set[str]  # numbers whose cotangent may be zero because nothing uses them
    uses_tape: bool

    @property
    def scopes(self) -> ScopeOrder:
        """Where statements stand."""

    @property
    def has(self) -> set[str]:
        """The numbers whose cotangents are initialized."""

    def bar(self, identifier: str) -> str:
        """Return the cotangent of a number."""

    def part(self, identifier: str, number: int) -> str:
        """Return the name of a part of the cotangent of a number, which a call returns."""

    def shadow(self, identifier: str) -> ast.expr:
        """Return the shadow of an array; zeros if it has none."""

    def read(self, node: Any) -> None:
        """Note the primal values that an expression reads."""

    def line(self, expr: ast.expr) -> None:
        """Write an expression statement."""

    def add(
        self, target: str, g: ast.expr, factor: ast.expr, reads: ast.expr | None = None
    ) -> None:
        """Add ``g * factor`` to the cotangent of a number."""

    def add_array(self, target: str, g: ast.expr, ndim: int = -1) -> None:
        """Add an array of `ndim` dimensions to the cotangent of an array that was broadcast."""

    def add_element(self, array: str, index: ast.expr, g: ast.expr) -> None:
        """Add to an element of the cotangent of an array."""

    def is_marked(self, operand: str, is_polynomial: bool = False) -> bool:
        """Whether a cotangent of 0 has to mean that nothing uses the operand of a function."""

    def is_markable(self, target: str) -> bool:
        """Whether a cotangent of 0 means that nothing uses a value."""

    def handed_by(self, let: Any, variant: Any) -> list[str]:
        """Return the names of the numbers that a callee hands over."""

    def is_on_tape(self, array: str) -> bool:
        """Whether an array has to be kept on the tape for reverse code to read it."""

    def keeps(self, array: str, statement: Any) -> bool:
        """Whether the elements of an array cannot change from a statement onwards."""


class Lowerer(Protocol):
    """The lowering of one function, which makes rules."""

    program: Program
    function: FunctionIR
    types: dict[str, Any]
    statics: dict[str, Any]
    block: Block
    parts: dict[str, Any]  # atoms and structures that replace names
    known: dict[Hashable, str]  # names of values by the expressions that compute them
    chosen_numbers: set[str]  # by np.where, of which numba makes arrays
    call: ast.Call | None  # the call that is lowered, with its original names
    line: int

    def type_of(self, value: Any) -> Any:
        """Return the numba type of a value."""

    def types_of(self, value: Any) -> set[Any]:
        """Return the types that a value may have."""

    def value(self, atom: Atom) -> Any:
        """Return the current value of an atom: an atom, or the structure of a tuple."""

    def resolve(self, node: Any) -> Any:
        """Return an expression with every name replaced by its current value."""

    def fresh(self, stem: str) -> str:
        """Return an unused name."""

    def refuse(self, what: str) -> TransformError:
        """Return an error that points to the line that is lowered."""
