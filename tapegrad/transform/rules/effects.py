"""What functions of the rules do with arrays that they get, for passes over generated code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Effect(NamedTuple):
    """What a function does with its arguments; it reads them otherwise.

    Attributes
    ----------
    adds_to
        The position of the argument that it adds to, if there is one.
    assigns
        The position of the argument whose elements it assigns, if there is one.
    shows
        Whether its result may be a view of an argument.
    """

    adds_to: int | None = None
    assigns: int | None = None
    shows: bool = False


EFFECTS: dict[str, Effect] = {}
"""By the names that generated code calls functions by; others have effects that are not known."""
OF_RUNTIME = {
    **dict.fromkeys(("add_product", "add_product_nt", "add_product_tn"), Effect(adds_to=0)),
    **dict.fromkeys(("assign", "clear", "clear_from"), Effect(assigns=0)),
    "cleared": Effect(assigns=0, shows=True),
}
"""Of functions of the runtime that write to arrays; others use memory of their own or the tape."""


def has_effect(**given: Any) -> Callable[[Any], Any]:
    """Declare the effect of a function (a decorator)."""

    def enter(function: Any) -> Any:
        EFFECTS[function.__name__] = Effect(**given)
        return function

    return enter
