"""Rules of what may show elements of an array, with derivatives of its own."""

from __future__ import annotations

from tapegrad.transform.ir import Let
from tapegrad.transform.rules.base import Rule
from tapegrad.transform.rules.generators import ForwardCode, ReverseCode


class ShownApart(Rule):
    """What may show elements of arrays, but has derivatives of its own.

    It stands before the class of the rule that says what these are. The arrays are not written
    later: the elements would change, but not their derivatives.

    Attributes
    ----------
    shown
        The names of the arrays.
    made_by, instead
        The function that shows them, and what to do instead if they are written, for the error.
    """

    shown: list[str]
    made_by: str
    instead: str

    def shared(self, let: Let) -> list[list[str]]:
        """Return the names that may share elements."""
        return [[let.target, *self.shown]]

    def apart(self, let: Let) -> list[str]:
        return [let.target]

    def write_vjp(self, gen: ReverseCode, let: Let) -> None:
        gen.check_view(self.shown, let, self.made_by, self.instead)
        super().write_vjp(gen, let)

    def write_jvp(self, gen: ForwardCode, let: Let) -> None:
        gen.check_view(self.shown, let, self.made_by, self.instead)
        super().write_jvp(gen, let)
