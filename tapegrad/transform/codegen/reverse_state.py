"""The state of reverse mode while the code of one function is written.

Rules write their code through it. The cotangent of a number ``x`` is a variable ``x_bar``, that of
an array is a separate array ``x_bar`` (see `shadows`).
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from numba.core import types

from tapegrad.transform.builder import Builder
from tapegrad.transform.codegen.analysis import (
    Arrays,
    Scope,
    Scopes,
    scopes,
    undefined_at_times,
    unused_at_times,
)
from tapegrad.transform.codegen.mode import Mode
from tapegrad.transform.codegen.writes import Writes
from tapegrad.transform.ir import (
    FunctionIR,
    Let,
    Loop,
    Role,
    Statement,
    name,
    names_in,
    unused,
)
from tapegrad.transform.kinds import holds_complex, is_complex, zero_of
from tapegrad.transform.lowering.extents import Extents
from tapegrad.transform.nodes import attribute, binary, call_of, item, negative
from tapegrad.transform.protocols import Program
from tapegrad.transform.rules.generators import ShadowCode
from tapegrad.transform.syntax import subtree

BAR = "_bar"
_MODULES = {"np", "math", "arrays", "runtime", "ops", "scalar_ops"}


# additions specialized by dimension; numba compiles the general one slowly
_ADDITIONS = ("arrays.add_1_to_1", "arrays.add_2_to_1", "arrays.add_2_to_2", "arrays.add_3_to_3")


@dataclass
class Region:
    """A block whose reverse is being written.

    Attributes
    ----------
    scope
        The block.
    needs
        Values of the primal that its reverse reads.
    has
        Numbers whose cotangents are initialized.
    outward
        Numbers from outside whose cotangents it adds to.
    shadows
        Arrays whose cotangents it reads or writes, and which the reverse code makes.
    outer
        The block around it.
    """

    scope: Scope
    needs: dict[str, None] = field(default_factory=dict)
    has: set[str] = field(default_factory=set)
    outward: dict[str, None] = field(default_factory=dict)
    shadows: dict[str, None] = field(default_factory=dict)
    outer: Region | None = None


class ReverseState(Mode):
    """What is known of the function, and the code written so far.

    Parameters
    ----------
    program, function, arrays, inputs, outputs
        As for `Mode`.
    unstable
        Arrays that may change before the reverse code is called.
    marked
        What follows from guarded values, and from those that are infinite themselves (`guards`).
    unmarkable
        The guarded values whose marks could be lost.
    split
        Whether forward and reverse code become two functions instead of one.
    is_seeded
        Whether the cotangents of the results are given; otherwise that of the only one is 1.
    """

    shadows: ShadowCode

    def __init__(
        self,
        program: Program,
        function: FunctionIR,
        arrays: Arrays,
        inputs: list[str],
        outputs: list[str],
        unstable: Container[str] = (),
        *,
        marked: Sequence[set[str]],
        unmarkable: Container[str],
        split: bool,
        is_seeded: bool = True,
    ) -> None:
        super().__init__(program, function, arrays, inputs, outputs, BAR, Role.COTANGENT)
        self.unstable = unstable
        # numbers that may not be used, and numbers that may be infinite or nan then
        uncertain = outputs if is_seeded or len(outputs) > 1 else ()
        self.skipped = unused_at_times(function, uncertain)
        self.undefined = undefined_at_times(function)
        self._marked, self._infinite = marked
        self._unmarkable = unmarkable
        self.has_complex = any(map(holds_complex, self.types.values()))
        self.scopes: Scopes = scopes(function, split)
        self.writes = Writes(function, arrays, self.scopes)
        self.top = self.scopes.blocks[id(function.body)]
        self.arrays_of: dict[str, str] = {}  # arrays by the names of their shadows
        self.local: set[str] = set()  # arrays whose shadows are made in the reverse code
        self.frozen: set[str] = set()  # sums whose cotangents stay as they are
        self.renamed: dict[str, str] = {}  # cotangents that temporarily have another name
        self.scale = ""  # factor of contributions to cotangents from outside
        self.fused: set[str] = set()  # indices of loops with forward and reverse iterations in one
        self.recomputes = False  # results of costly functions as well
        self.uses_tape = False
        self.hands_over = False  # whether the caller keeps numbers for the function
        self.handed: dict[int, list[str]] = {}  # what callees hand over, by the ids of calls
        self.kept_elements: dict[str, str] = {}  # names of elements on the tape, and their arrays
        self.added: set[str] = set()  # copies and extents, which the function itself does not have
        self.region = Region(self.top)

    def is_marked(self, operand: str, is_polynomial: bool = False) -> bool:
        """Whether a cotangent of 0 has to mean that nothing uses the operand.

        A polynomial of what is infinite is infinite or nan, whatever its partials.
        """
        node = self.activity.node(operand)
        return node in self._marked or (not is_polynomial and node in self._infinite)

    def is_markable(self, target: str) -> bool:
        """Whether a cotangent of 0 means that nothing uses a value."""
        return target not in self._unmarkable

    @functools.cached_property
    def extents(self) -> Extents:
        """The extents of arrays that are known to be equal."""
        return Extents(self.function)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Builder]:
        """Redirect statements to a new builder."""
        outer, self.builder = self.builder, Builder()
        yield self.builder
        self.builder = outer

    @contextlib.contextmanager
    def entered(self, scope: Scope) -> Iterator[Region]:
        """Make a block the current region."""
        outer = self.region
        self.region = Region(scope, outer=outer)
        yield self.region
        self.region = outer

    @property
    def has(self) -> set[str]:
        """The numbers whose cotangents are initialized."""
        return self.region.has

    def handed_over(self, stored: list[str]) -> list[str]:
        """Return names that a caller keeps; note what the function has no variables for."""
        for identifier in stored:
            maker = self.scopes.makers.get(identifier)
            if isinstance(maker, Loop) and identifier == maker.trips:
                self.note(identifier, Role.KEPT, identifier)
        return stored

    def handed_by(self, let: Let, variant: Any) -> list[str]:
        """Return the names of the numbers that a callee hands over."""
        if id(let) not in self.handed:
            found = self.handed[id(let)] = []
            for stem, kind in variant.handed.items():
                found.append(identifier := unused(f"{variant.stem}_{stem}", self.types))
                self.note(identifier, Role.HANDED, let.target)
                self.types[identifier] = kind
                self.region.scope.own.add(identifier)
                self.scopes.scope_of[identifier] = self.region.scope
                self.scopes.makers[identifier] = let
        return self.handed[id(let)]

    def bar(self, identifier: str) -> str:
        """Return the cotangent of a number."""
        return self.renamed.get(identifier) or self.derivative(identifier)

    def part(self, identifier: str, number: int) -> str:
        """Return the name of a part of the cotangent of a number, which a call returns."""
        found = unused(f"{identifier}_part_{number}", self.types)
        return self.note(found, Role.PART, identifier)

    def zero(self, identifier: str) -> ast.expr:
        """Return a zero cotangent of a number."""
        return zero_of(self.types.get(identifier, types.float64))

    def projected(self, target: str, expr: ast.expr) -> ast.expr:
        """Return what is added to a cotangent: the real part if the target is a real number.

        The cotangent of a real number is the derivative with respect to that number alone (see
        `complex_numbers`).
        """
        if not self.has_complex or is_complex(self.types[target]):
            return expr
        if isinstance(expr, ast.Attribute) and expr.attr in ("real", "imag"):
            return expr
        nodes = list(subtree(expr))
        parts = [n.value for n in nodes if isinstance(n, ast.Constant)]
        names = {n.id.partition(".")[0] for n in nodes if isinstance(n, ast.Name)} - _MODULES
        if not any(map(self._may_be_complex, names)):
            if not any(isinstance(part, complex) for part in parts):
                return expr
        return attribute(expr, "real")

    def _may_be_complex(self, identifier: str) -> bool:
        """Whether a value or cotangent may be complex or hold complex numbers."""
        kind = self.types.get(identifier)
        if kind is None and identifier in self.values:
            kind = self.types.get(self.values[identifier].of)
        return kind is None or holds_complex(kind)

    def read(self, node: Any) -> None:
        """Note the primal values that an expression reads."""
        for identifier in names_in(node):
            if identifier in self.scopes.scope_of and identifier not in self.arrays_of:
                self.region.needs[identifier] = None

    def line(self, expr: ast.expr) -> None:
        """Write an expression statement."""
        self.read(expr)
        self.builder.do(expr)

    def add(
        self, target: str, g: ast.expr, factor: ast.expr, reads: ast.expr | None = None
    ) -> None:
        """Add ``g * factor`` to the cotangent of a number."""
        if not self.is_active(target) or target in self.frozen:
            return
        self.read(factor)
        self.read(reads)
        sign = "+"
        match factor:
            case ast.Constant(1):
                term = g
            case ast.Constant(-1):
                term, sign = g, "-"
            case ast.UnaryOp(ast.USub(), operand):
                term, sign = binary(g, "*", operand), "-"
            case _:
                term = binary(g, "*", factor)
        term = self.projected(target, term)
        bar = name(self.bar(target))
        if target in self.region.scope.own and target not in self.has:
            self.has.add(target)
            self.builder.assign(bar, term if sign == "+" else negative(term))
            return
        if target not in self.region.scope.own and target not in self.has:
            self.region.outward[target] = None
            term = self._scaled(term)
        self.builder.update(bar, sign, term)

    def _scaled(self, term: ast.expr) -> ast.expr:
        """Return a contribution to a cotangent from outside."""
        return binary(name(self.scale), "*", term) if self.scale else term

    def add_array(self, target: str, g: ast.expr, ndim: int = -1) -> None:
        """Add an array of `ndim` dimensions to the cotangent of an array that was broadcast."""
        self.read(g)
        function = f"arrays.add_{ndim}_to_{self.types[target].ndim}"
        if function not in _ADDITIONS:
            function = "arrays.add_to"
        self.builder.do(call_of(function, self.shadow(target), self.projected(target, g)))

    def add_element(self, array: str, index: ast.expr, g: ast.expr) -> None:
        """Add to an element of the cotangent of an array."""
        self.read(index)
        place = item(self.shadow(array), index)
        self.builder.update(place, "+", self._scaled(self.projected(array, g)))

    def shadow(self, identifier: str) -> ast.expr:
        """Return the shadow of an array for reverse code; zeros if it has none."""
        if not self.is_active(identifier):
            self.read(name(identifier))
            return call_of("np.zeros_like", name(identifier))
        bar = self.derivative(identifier)
        if identifier in self.local:
            self.region.shadows[identifier] = None
        else:
            self.region.needs[bar] = None
        return name(bar)

    def is_on_tape(self, array: str) -> bool:
        """Whether an array has to be kept on the tape for reverse code to read it."""
        root = self.writes.root(array)
        return root in self.scopes.makers and not self.scopes.scope_of[root].local

    def keeps(self, array: str, statement: Statement, is_whole: bool = True) -> bool:
        """Whether the elements of an array cannot change from a statement onwards.

        With `is_whole`, that includes arrays of an iteration, which would have to be kept.
        """
        if self.arrays.of(array) in self.unstable:
            return False
        is_last = self.arrays.keeps(array, self.scopes.roots[id(statement)])
        return is_last or (is_whole and self.writes.are_over(array, statement))
