"""Assignments of arrays to slices of others: the error for arrays of another shape.

numba composes the text of the error in compiled code. The functions for strings that this needs
take seconds to compile. Here the error is raised with the shapes, and Python composes the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.extending import overload
from numba.np import arrayobj

_RAISES = "raise_with_shape_context"
"""What numba's code for assignments calls, by the name of the function there."""


class SliceShapeError(ValueError):
    """An array was assigned to a slice of another shape. Its arguments are the two shapes."""

    def __str__(self) -> str:
        given, selected = self.args
        return f"cannot assign slice of shape {selected} from input of shape {given}"


def _raise(given: Any, selected: Any) -> None:
    raise NotImplementedError("only compiled code calls this")


@overload(_raise)
def _(given: Any, selected: Any) -> Any:
    def raise_error(given: Any, selected: Any) -> None:
        raise SliceShapeError(given, selected)

    return raise_error


@contextmanager
def short_errors() -> Iterator[None]:
    """The context in which numba, whose lock is held, writes assignments with this error."""
    before = getattr(arrayobj, _RAISES, None)
    if before is None:  # in versions whose error does not tell shapes
        yield
        return
    setattr(arrayobj, _RAISES, _raise)
    try:
        yield
    finally:
        setattr(arrayobj, _RAISES, before)
