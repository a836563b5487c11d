"""The position of a walk, and its choice of path."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Set

from tapegrad.transform.verifier.code import Code
from tapegrad.transform.verifier.events import Value

Side = tuple[int, bool]  # of a branch, by its id

MOST_TURNS = 3
LEAST_WALKS, MOST_WALKS = 4, 10


class Frame:
    """The names of one iteration of a loop, or of a function.

    Attributes
    ----------
    names
        Their values: in forward code the current ones, in reverse code those that it reads, which
        for loop-carried names are the ones at the start of the iteration.
    own
        The names that were assigned in it.
    turns
        The frames of complete iterations of the loops in it.
    begun
        The same, including the iteration in which a loop is left.
    carried
        The arrays of cotangents that reverse code makes in it, for those of the next iteration.
    """

    def __init__(self, names: dict[str, Value], outer: Frame | None = None) -> None:
        self.names = names
        self.outer = outer
        self.own: set[str] = set()
        self.turns: dict[int, list[Frame]] = {}
        self.begun: dict[int, list[Frame]] = {}
        self.carried: set[str] = set()

    def get(self, name: str) -> Value | None:
        """Return the value of a name; outer frames may define cotangents later."""
        found = self.names.get(name)
        if found is None and self.outer is not None:
            return self.outer.get(name)
        return found

    def set(self, name: str, value: Value) -> None:
        """Assign a value to a name."""
        self.names[name] = value
        self.own.add(name)

    def replace(self, name: str, made: Value) -> None:
        """Give a name another value, for iterations that were walked as well."""
        before = self.names.get(name)
        self.names[name] = made
        if before is None:
            return
        for turns in (*self.turns.values(), *self.begun.values()):
            for frame in turns:
                if frame.names.get(name) is before:
                    frame.replace(name, made)


class Choices:
    """Random choices; branches that no walk has taken yet come first.

    Attributes
    ----------
    taken
        The sides of branches that walks have taken.
    avoided
        The last choices of walks that were abandoned; they may be right in other places.
    latest
        The side that was chosen last where both were possible.
    """

    def __init__(self, seed: int, taken: set[Side], avoided: Set[Side] = frozenset()) -> None:
        self.draw = random.Random(seed)
        self.taken = taken
        self.avoided = avoided
        self.asked: Side | None = None
        self.latest: Side | None = None
        self.walk = seed
        self.is_first = seed < 2
        self.is_early = seed < 3

    def side(self, node: ast.AST) -> bool:
        """Return which side of a branch to take."""
        sides = (id(node), True), (id(node), False)
        found = next((s for s in sides if s not in self.taken and s not in self.avoided), None)
        if found is None:
            one, two = (side in self.avoided for side in sides)
            found = sides[self.draw.random() >= 0.5 + 0.375 * (two - one)]
        self.asked = found
        return found[1]

    def follow(self, node: ast.AST) -> None:
        """Note that the outcome of a branch was open, so that it is the one that was chosen."""
        if self.asked is not None and self.asked[0] == id(node):
            self.latest = self.asked

    def turns(self) -> int:
        """Return the trip count of a loop."""
        return 2 if self.is_early else self.draw.choice((0, 1, 2, 3))

    def is_view(self) -> bool:
        """Return whether an array that may be new or a view of an argument is a view."""
        return self.walk == 0 if self.is_first else self.draw.random() < 0.5

    def last(self, limit: int) -> int:
        """Return the iteration in which a loop is left, if it can be left."""
        return limit if self.is_first else self.draw.randint(0, limit)


class AbandonedError(Exception):
    """A path that no execution takes."""


def go_ways(codes: list[Code], go: Callable[[Choices], None]) -> None:
    """Follow some paths through code, with both sides of every branch that can be reached.

    Where a path cannot go on, its last choice is made otherwise: a test like ``a or b`` of what
    raises an error is a branch of its own, and must not be true.
    """
    taken: set[Side] = set()
    avoided: set[Side] = set()
    branches = {
        (id(s), side)
        for code in codes
        for s in code.statements
        if isinstance(s, ast.If)
        for side in (True, False)
    }
    done, tries = 0, 0
    while tries < MOST_WALKS and (done < LEAST_WALKS or branches - taken):
        tried = set(taken)
        choices = Choices(tries, tried, avoided)
        try:
            go(choices)
        except AbandonedError:
            if choices.latest is None or choices.latest in avoided:
                tries += 1
            else:
                avoided.add(choices.latest)
            continue
        tries += 1
        done += 1
        if done >= LEAST_WALKS and taken == tried:
            break
        taken |= tried
    if not done:
        raise codes[0].wrong("no way through it was found", codes[0].body[0])
