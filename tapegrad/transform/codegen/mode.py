"""What both modes know of the function whose code they write."""

from __future__ import annotations

import functools
from typing import NoReturn

from tapegrad.ops.table.op import Fact
from tapegrad.transform.builder import Builder
from tapegrad.transform.codegen.analysis import (
    Activity,
    Arrays,
    check_known,
    lost_by_rounding,
    scopes,
    unused_suffix,
)
from tapegrad.transform.codegen.writes import Writes
from tapegrad.transform.errors import TransformError
from tapegrad.transform.ir import FunctionIR, Let, Role, Value, unused, walk
from tapegrad.transform.protocols import Program
from tapegrad.transform.rules.base import Elementary


class Mode:
    """What both modes know of a function, and its code so far.

    Parameters
    ----------
    program
        The module that the code is written for.
    function
        The function, lowered.
    arrays
        Its alias classes.
    inputs, outputs
        The names to differentiate with respect to, and the names to differentiate.
    suffix
        What the names of derivatives end with, unless names of the function do.
    role
        What these are: cotangents or tangents.
    """

    def __init__(
        self,
        program: Program,
        function: FunctionIR,
        arrays: Arrays,
        inputs: list[str],
        outputs: list[str],
        suffix: str,
        role: Role,
    ) -> None:
        self.program = program
        self.function = function
        self.types = dict(function.types)
        self.suffix = unused_suffix(suffix, self.types)
        self.role = role
        self.values: dict[str, Value] = {}  # what names stand for
        self._calls = 0  # of those that return several derivatives
        self.arrays = arrays
        self.activity = Activity(function, arrays, inputs, outputs)
        check_known(function, self.activity)
        program.rounded += lost_by_rounding(function, self.activity)
        self.builder = Builder()

    def refuse(self, what: str, line: int) -> NoReturn:
        """Raise an error that points to a line of the user's function."""
        raise TransformError(what, self.function.source, line)

    def check_view(self, shown: list[str], let: Let, made_by: str, instead: str) -> None:
        """Refuse what shows arrays that may be written later, with derivatives of its own.

        Its elements would change, but not their derivatives.
        """
        if any(self._all_writes.may_follow(array, let) for array in shown):
            what = f"cannot differentiate {made_by} of an array that is written to later; {instead}"
            self.refuse(what, let.line)

    @functools.cached_property
    def _all_writes(self) -> Writes:
        return Writes(self.function, self.arrays, scopes(self.function, split=False))

    def is_active(self, identifier: str) -> bool:
        """Whether a name carries derivatives."""
        return identifier in self.activity

    def derivative(self, identifier: str) -> str:
        """Return the name of the cotangent or tangent of a value."""
        return self.note(identifier + self.suffix, self.role, identifier)

    def returned(self, let: Let) -> str:
        """Return a new name for several derivatives that a call returns together."""
        self._calls += 1
        stem = "cotangents" if self.role is Role.COTANGENT else "tangents"
        found = unused(f"{stem}_{self._calls}", self.types)
        return self.note(found, Role.RETURNED, let.target)

    def note(self, identifier: str, role: Role, of: str) -> str:
        """Note what a name stands for; return the name."""
        self.values[identifier] = Value(role, of)
        return identifier

    def is_settled(self, identifier: str) -> bool:
        """Whether functions that are constant at infinity are applied to what follows from it."""
        return self.activity.node(identifier) in self._settled

    @functools.cached_property
    def _settled(self) -> set[str]:
        elementary = [
            s.rule
            for s in walk(self.function.body)
            if isinstance(s, Let) and isinstance(s.rule, Elementary)
        ]
        flat = [rule for rule in elementary if Fact.VANISHING in rule.op.facts]
        return self.activity.preceding(n for rule in flat for n in rule.inputs())
