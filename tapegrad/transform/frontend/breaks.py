"""What is not read any more after a jump, and variables that get a value just before a `break`.

In structured code the paths of jumps go on to the end of the block or of the iteration. After a
return nobody reads a variable there, so that the types of its values must not count. For numba, a
variable that gets a value just before a `break` has the type of this value after the loop, not in
it: an integer that becomes a float where a loop is left was an integer in each iteration, and
``2 ** (k - 3)`` is computed with integers there. Where these types differ, the value that leaves
gets a variable of its own, and the function a second normal form.
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

Site = tuple[int, int]  # a loop and a variable that it assigns, by their numbers
Flags = frozenset[str]


@dataclass
class Breaks:
    """The breaks out of one loop.

    Attributes
    ----------
    number
        Which loop of the function it is.
    names
        The variables that the loop assigns.
    own
        The names that hold the values of variables where the loop was left.
    """

    number: int
    names: list[str]
    own: dict[str, str] = field(default_factory=dict)

    def site(self, variable: str) -> Site:
        """Return what tells a variable of the loop from all others of the function."""
        return self.number, self.names.index(variable)


class Departures:
    """The jumps of one function, and what the normal form makes of them.

    Attributes
    ----------
    apart
        The variables that have values of their own where a loop is left.
    by_flag
        The breaks of each loop, by the flag that says that it was left.
    unread
        What nobody reads after a return or a break, by the flag that says that it has happened.
    happened
        Flags of which one at least is set, at the point that the normal form has reached.
    """

    def __init__(self, apart: Set[Site] = frozenset()) -> None:
        self.apart = apart
        self.by_flag: dict[str, Breaks] = {}
        self.unread: dict[str, set[str]] = {}
        self.happened: frozenset[Flags] = frozenset()
        self._changed: set[Site] = set()
        self._rounds: dict[Site, Carried] = {}
        self._skips: dict[str, set[str]] = {}  # what is assigned around a `continue`, by its flag
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
        """Note a flag that says that a `continue` in these statements has happened."""
        self._skips[flag] = set(assigned(nodes))
        self.unread[flag] = set()

    def learn(self, test: ast.expr, outcome: bool) -> None:
        """Note what follows from a test of flags."""
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, outcome = test.operand, not outcome
        either = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
        parts = test.values if isinstance(test, ast.BoolOp) and either else [test]
        flags = frozenset(part.id for part in parts if isinstance(part, ast.Name))
        if outcome and len(flags) == len(parts) and all(map(self._counts, flags)):
            self.happened |= {flags}

    def at(self, values: dict[str, Any]) -> frozenset[Flags]:
        """Return the flags of which one at least is set, where variables have some values."""
        set_here = (flag for flag in self.unread if _is_set(values.get(flag)))
        return self.happened | {frozenset([flag]) for flag in set_here if self._counts(flag)}

    def meet(self, one: frozenset[Flags], two: frozenset[Flags]) -> None:
        """Note what is known where two paths meet, of which each knows something."""
        found = {first | second for first in one for second in two}
        self.happened = frozenset(f for f in found if not any(less < f for less in found))

    def _counts(self, flag: str) -> bool:
        """Whether a flag says what is not read: that of a `break` does so in its loop."""
        return flag in self.unread and (flag not in self.by_flag or flag in self._open)

    @contextlib.contextmanager
    def inside(self, flags: set[str]) -> Iterator[None]:
        """Go through a loop that is left if one of these flags is set."""
        happened, opened = self.happened, self._open
        self._open = opened | flags
        yield
        self.happened, self._open = happened, opened

    def is_unread(self, variable: str, happened: frozenset[Flags]) -> bool:
        """Whether nobody reads a variable that has a new value, by the flags that are set."""
        for flag in frozenset[str]().union(*happened):
            if flag in self.by_flag and variable in self.by_flag[flag].names:
                self._changed.add(self.by_flag[flag].site(variable))
            if variable in self._skips.get(flag, ()):
                self._skipped.add(variable)
        return any(all(variable in self.unread[flag] for flag in flags) for flags in happened)

    def carry(self, flags: set[str], variable: str, entry: Carried) -> None:
        """Note what becomes of a variable in the loop that is left if one of these flags is set."""
        for flag in flags & self.by_flag.keys():
            if variable in self.by_flag[flag].names:
                self._rounds[self.by_flag[flag].site(variable)] = entry
        if flags and variable in self._skipped:
            self._mixed.append((variable, entry))

    def mixed(self, kinds: dict[str, Any]) -> str | None:
        """Return a variable that may be an integer in a loop for numba, and is a float here.

        It becomes one on a path that leaves the loop, from where other paths continue it.

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
        """Return the variables that may have other types in a loop than where it is left.

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
    """Return the type of an atom, None if it is not known."""
    if isinstance(atom, ast.Name):
        return kinds.get(atom.id)
    return typeof(atom.value) if isinstance(atom, ast.Constant) else None


def _is_set(atom: ast.expr | None) -> bool:
    """Whether an atom is the constant that a flag is set to."""
    return isinstance(atom, ast.Constant) and atom.value is True
