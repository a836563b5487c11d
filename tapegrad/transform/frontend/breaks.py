"""Variables that are dead after a jump, and variables assigned just before a `break`.

In structured code, the path of a jump continues to the end of the block or iteration. After a
return, variables are not read there, so the types of their values must not matter. For numba, a
value assigned just before a `break` affects the type of the variable after the loop, not in it: an
integer that becomes a float when the loop is left is an integer in each iteration, where
``2 ** (k - 3)`` is computed with integers. If these types differ, the value that leaves the loop
gets a separate variable, and the function a second normal form.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any

from numba import typeof, types

from tapegrad.transform.frontend.liveness import assigned
from tapegrad.transform.ir import Carried
from tapegrad.transform.syntax import name_of

Site = tuple[int, int]  # the numbers of a loop and of a variable that it assigns
Flags = frozenset[str]


@dataclass
class Breaks:
    """The breaks out of one loop.

    Attributes
    ----------
    number
        The number of the loop in the function.
    names
        The variables that the loop assigns.
    own
        The names that hold the values of variables at the break.
    """

    number: int
    names: list[str]
    own: dict[str, str] = field(default_factory=dict)

    def site(self, variable: str) -> Site:
        """Return the site of a variable of the loop."""
        return self.number, self.names.index(variable)


class Departures:
    """The jumps of one function, and their effect on the normal form.

    Attributes
    ----------
    apart
        The sites whose values at a break get a separate variable.
    by_flag
        The breaks of each loop, by the flag that is set when it is left.
    unread
        The variables that are dead after a jump, by the flag that is set by the jump.
    happened
        Sets of flags, each with at least one flag set at the current point of the normal form.
    """

    def __init__(self, apart: Set[Site] = frozenset()) -> None:
        self.apart = apart
        self.by_flag: dict[str, Breaks] = {}
        self.unread: dict[str, set[str]] = {}
        self.happened: frozenset[Flags] = frozenset()
        self._changed: set[Site] = set()
        self._rounds: dict[Site, Carried] = {}
        self._skips: dict[str, set[str]] = {}  # variables assigned around a `continue`, by its flag
        self._skipped: set[str] = set()
        self._mixed: list[tuple[str, Carried]] = []
        self._loops = 0
        self._open: set[str] = set()

    def add(self, flag: str, body: list[ast.stmt], fresh: Callable[[str], str]) -> Breaks:
        """Return the breaks out of a new loop."""
        found = self.by_flag[flag] = Breaks(self._loops, assigned(body))
        self._loops += 1
        found.own = {v: fresh(v) for v in found.names if found.site(v) in self.apart}
        self.unread[flag] = set(found.own)
        return found

    def skip(self, flag: str, nodes: list[ast.stmt]) -> None:
        """Note a flag that is set by a `continue` in these statements."""
        self._skips[flag] = set(assigned(nodes))
        self.unread[flag] = set()

    def learn(self, test: ast.expr, outcome: bool) -> None:
        """Note what the outcome of a test says about flags."""
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                self.learn(operand, not outcome)
                return
            case ast.BoolOp(ast.Or(), parts):
                pass
            case _:
                parts = [test]
        flags = frozenset(map(name_of, parts)) - {""}
        if outcome and len(flags) == len(parts) and all(map(self._counts, flags)):
            self.happened |= {flags}

    def at(self, values: dict[str, Any]) -> frozenset[Flags]:
        """Return the sets of flags with at least one flag set, given the values of variables."""
        set_here = (flag for flag in self.unread if _is_set(values.get(flag)))
        return self.happened | {frozenset([flag]) for flag in set_here if self._counts(flag)}

    def meet(self, one: frozenset[Flags], two: frozenset[Flags]) -> None:
        """Note what is known where two paths meet, from what is known on each."""
        found = {first | second for first in one for second in two}
        self.happened = frozenset(f for f in found if not any(less < f for less in found))

    def _counts(self, flag: str) -> bool:
        """Whether a flag implies dead variables; that of a `break` does so only in its loop."""
        return flag in self.unread and (flag not in self.by_flag or flag in self._open)

    @contextlib.contextmanager
    def inside(self, flags: set[str]) -> Iterator[None]:
        """Enter a loop that is left if one of these flags is set."""
        happened, opened = self.happened, self._open
        self._open = opened | flags
        yield
        self.happened, self._open = happened, opened

    def is_unread(self, variable: str, happened: frozenset[Flags]) -> bool:
        """Whether a variable with a new value is dead, given the flags that are set."""
        for flag in frozenset[str]().union(*happened):
            if flag in self.by_flag and variable in self.by_flag[flag].names:
                self._changed.add(self.by_flag[flag].site(variable))
            if variable in self._skips.get(flag, ()):
                self._skipped.add(variable)
        return any(all(variable in self.unread[flag] for flag in flags) for flags in happened)

    def carry(self, flags: set[str], variable: str, entry: Carried) -> None:
        """Note the loop-carried entry of a variable in the loop that these flags leave."""
        for flag in flags & self.by_flag.keys():
            if variable in self.by_flag[flag].names:
                self._rounds[self.by_flag[flag].site(variable)] = entry
        if flags and variable in self._skipped:
            self._mixed.append((variable, entry))

    def mixed(self, kinds: dict[str, Any]) -> str | None:
        """Return a variable that may be an integer in a loop for numba but is a float here.

        It becomes a float on a path that leaves the loop, where other paths continue it.

        Parameters
        ----------
        kinds
            The types of all names.
        """
        for variable, entry in self._mixed:
            before = _type_of(entry.init, kinds)
            if isinstance(before, types.Integer) and kinds.get(entry.phi, before) != before:
                return variable
        return None

    def found(self, kinds: dict[str, Any]) -> set[Site]:
        """Return the sites of variables whose types in a loop and at its breaks may differ.

        Parameters
        ----------
        kinds
            The types of all names.
        """
        different = set()
        for site in self._changed & self._rounds.keys():
            entry = self._rounds[site]
            before = _type_of(entry.init, kinds)
            if before is not None and before != kinds.get(entry.phi, before):
                different.add(site)
        return different


def _type_of(atom: ast.expr | None, kinds: dict[str, Any]) -> Any:
    """Return the type of an atom, None if it is unknown."""
    match atom:
        case ast.Name(id=identifier):
            return kinds.get(identifier)
        case ast.Constant(value):
            return typeof(value)
    return None


def _is_set(atom: ast.expr | None) -> bool:
    """Whether an atom is a flag that is certainly set."""
    return isinstance(atom, ast.Constant) and atom.value is True
