"""What the reverse code of a function is made of: cotangents of numbers and of arrays."""

from __future__ import annotations

import ast
from typing import Any, NoReturn

from numba.core import types

from tapegrad.transform.codegen.analysis import (
    Activity,
    Arrays,
    Scopes,
    check_known,
    scopes,
    undefined_at_times,
    unused_at_times,
    unused_suffix,
)
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import Block, Function, name, names_in, replace_names
from tapegrad.transform.kinds import holds_complex, is_complex, zero_text
from tapegrad.transform.printer import Writer, show

BAR = "_bar"
_MODULES = {"np", "math", "arrays", "runtime", "ops"}


# those that are written for the dimensions of what they add; numba takes long for the general one
_ADDITIONS = ("arrays.add_1_to_1", "arrays.add_2_to_1", "arrays.add_2_to_2", "arrays.add_3_to_3")


class Cotangents:
    """The state of the reverse mode, and what rules write through it.

    Parameters
    ----------
    program
        The module that the code is written for.
    function
        The function, lowered.
    inputs, outputs
        Names of the numbers and arrays to differentiate by, and of what.
    split
        Forward and reverse code become two functions; else they are one.
    """

    def __init__(
        self,
        program: Any,
        function: Function,
        arrays: Arrays,
        inputs: list[str],
        outputs: list[str],
        split: bool,
    ) -> None:
        self.program = program
        self.function = function
        self.types = dict(function.types)
        self.suffix = unused_suffix(BAR, self.types)
        self.arrays = arrays
        self.activity = Activity(function, arrays, inputs, outputs)
        self.split = split
        # numbers whose cotangent may be zero where their derivative is infinite
        uncertain = outputs if split or len(outputs) > 1 else ()
        self.doubtful = unused_at_times(function, uncertain)
        # the same because nothing uses them, and numbers that may then be infinite or nan
        self.skipped = unused_at_times(function, uncertain, vanishing=False)
        self.undefined = undefined_at_times(function)
        self.scopes: Scopes = scopes(function, split)
        self.unstable: set[str] = set()  # arrays that may change before the reverse code
        self.uses_tape = False
        self.count = 0
        self.writer = Writer()
        self.needs: dict[str, None] = {}
        self.has: set[str] = set()
        self.outward: dict[str, None] = {}
        self.shadows: dict[str, None] = {}
        self.arrays_of: dict[str, str] = {}  # arrays by the names of their shadows
        self.inner: list[str] = []  # arrays from outside that nothing is differentiated by
        self.local_classes: set[str] = set()  # arrays whose shadows are made in the reverse code
        self.wanted: set[str] = set()  # shadows that the forward code makes
        self.copies: dict[int, tuple[Block, Block]] = {}  # made before and after an operation
        self.scope = self.scopes.blocks[id(function.body)]
        self.frozen: set[str] = set()  # sums whose cotangents stay as they are
        self.renamed: dict[str, str] = {}  # cotangents that have another name for a while
        self.scale = ""  # what contributions to the outside are multiplied by
        self.starts: list[str] = []  # what the reverse code of the function begins with
        self.has_complex = any(map(holds_complex, self.types.values()))
        check_known(function, self.activity)

    def refuse(self, what: str, line: int) -> NoReturn:
        """Raise the error for a line of the user's."""
        raise TransformError(what, self.function.source, line)

    def is_active(self, identifier: str) -> bool:
        """Whether a name carries derivatives."""
        return identifier in self.activity

    def number(self) -> int:
        """Return a number that was not returned before."""
        self.count += 1
        return self.count

    def bar(self, identifier: str) -> str:
        """Return the cotangent of a number."""
        return self.renamed.get(identifier, identifier + self.suffix)

    def zero(self, identifier: str) -> str:
        """Return the text of the cotangent zero of a number."""
        return zero_text(self.types.get(identifier, types.float64))

    def projected(self, target: str, text: str) -> str:
        """Return what is added to a cotangent: of complex numbers the real part, if that is real.

        The cotangent of a real number is the derivative with respect to it alone (see
        `complex_numbers`).
        """
        if not self.has_complex or is_complex(self.types[target]):
            return text
        whole = ast.parse(text, mode="eval").body
        if isinstance(whole, ast.Attribute) and whole.attr in ("real", "imag"):
            return text
        nodes = list(ast.walk(whole))
        parts = [n.value for n in nodes if isinstance(n, ast.Constant)]
        names = {n.id for n in nodes if isinstance(n, ast.Name)} - _MODULES
        if not any(map(self._may_be_complex, names)):
            if not any(isinstance(part, complex) for part in parts):
                return text
        return f"{text}.real" if text.isidentifier() else f"({text}).real"

    def _may_be_complex(self, identifier: str) -> bool:
        """Whether a name of a value or cotangent may stand for a complex number, or for several."""
        kind = self.types.get(identifier, self.types.get(identifier.removesuffix(self.suffix)))
        return kind is None or holds_complex(kind)

    def read(self, node: Any) -> None:
        """Note the primal values that an expression reads."""
        for identifier in names_in(node):
            if identifier in self.scopes.scope_of and identifier not in self.arrays_of:
                self.needs[identifier] = None

    def write(self, text: str) -> None:
        """Write a line of reverse code."""
        self.writer(text)

    def replaced(self, expr: ast.expr, new: dict[str, str]) -> ast.expr:
        """Return an expression with names replaced."""
        return replace_names(expr, new)

    def line(self, expr: ast.expr) -> None:
        """Write an expression for its effect."""
        self.read(expr)
        self.writer(show(expr))

    def add(self, target: str, g: str, factor: ast.expr, reads: ast.expr | None = None) -> None:
        """Add ``g * factor`` to the cotangent of a number."""
        if not self.is_active(target) or target in self.frozen:
            return
        self.read(factor)
        self.read(reads)
        sign = "+"
        if isinstance(factor, ast.Constant) and factor.value in (1, -1):
            text = g
            sign = "-" if factor.value == -1 else "+"
        elif isinstance(factor, ast.UnaryOp) and isinstance(factor.op, ast.USub):
            text = show(ast.BinOp(name(g), ast.Mult(), factor.operand))
            sign = "-"
        else:
            text = show(ast.BinOp(name(g), ast.Mult(), factor))
        text = self.projected(target, text)
        bar = self.bar(target)
        if target in self.scope.own and target not in self.has:
            self.has.add(target)
            self.writer(f"{bar} = {text}" if sign == "+" else f"{bar} = -({text})")
            return
        if target not in self.scope.own and target not in self.has:
            self.outward[target] = None
            if self.scale:
                text = f"{self.scale} * ({text})"
        self.writer(f"{bar} {sign}= {text}")

    def add_array(self, target: str, g: ast.expr, ndim: int = -1) -> None:
        """Add an array of some dimensions to the cotangent of an array that was broadcast."""
        self.read(g)
        projected = self.projected(target, show(g))
        g = g if projected == show(g) else name(projected)
        function = f"arrays.add_{ndim}_to_{self.types[target].ndim}"
        if function not in _ADDITIONS:
            function = "arrays.add_to"
        self.writer(show(ast.Call(name(function), [name(self.shadow(target)), g], [])))

    def add_element(self, array: str, index: ast.expr, g: str) -> None:
        """Add to an element of the cotangent of an array."""
        self.read(index)
        place = ast.Subscript(name(self.shadow(array)), index, ast.Load())
        g = self.projected(array, g)
        if self.scale:
            g = f"{self.scale} * {g}"
        self.writer(f"{show(place)} += {g}")
