"""Where a walk is, and which way it takes."""

from __future__ import annotations

import ast
import random

from tapegrad.transform.verifier.events import Value

MOST_TURNS = 3


class Frame:
    """The names of one turn of a loop, or of a function.

    Attributes
    ----------
    names
        Their values: while the forward code runs the present ones, for reverse code those that it
        reads, which are the ones at the start of the turn for what goes round the loop.
    own
        The names that were given values in it.
    turns
        The frames of the loops in it, those of whole turns.
    begun
        With that of a turn in which the loop is left.
    """

    def __init__(self, names: dict[str, Value], outer: Frame | None = None) -> None:
        self.names = names
        self.outer = outer
        self.own: set[str] = set()
        self.turns: dict[int, list[Frame]] = {}
        self.begun: dict[int, list[Frame]] = {}

    def get(self, name: str) -> Value | None:
        """Return the value of a name; cotangents may be made outside later than inside."""
        found = self.names.get(name)
        if found is None and self.outer is not None:
            return self.outer.get(name)
        return found


class Choices:
    """What is drawn: sides that no walk has taken yet come first."""

    def __init__(self, seed: int, taken: set[tuple[int, bool]]) -> None:
        self.draw = random.Random(seed)
        self.taken = taken
        self.is_first = seed < 2
        self.is_early = seed < 3

    def side(self, node: ast.AST) -> bool:
        """Return a side of a branch."""
        for side in (True, False):
            if (id(node), side) not in self.taken:
                return side
        return self.draw.random() < 0.5

    def turns(self) -> int:
        """Return how often a loop goes round."""
        return 2 if self.is_early else self.draw.choice((0, 1, 2, 3))

    def last(self, limit: int) -> int:
        """Return the turn in which a loop is left, if it can be."""
        return limit if self.is_first else self.draw.randint(0, limit)


class AbandonedError(Exception):
    """A way that no run of the code takes."""
