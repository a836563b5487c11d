"""The interface of the lowering for its own modules."""

from __future__ import annotations

from typing import Any, Protocol

from tapegrad.transform.ir import Atom, Let
from tapegrad.transform.rules import generators


class Lowerer(generators.Lowerer, Protocol):
    """The lowering of one function, which appends operations as well."""

    def let(self, let: Let) -> None:
        """Lower an operation."""

    def conversion(self, value: Atom, kind: Any, target: str) -> Let:
        """Return the conversion of a number to a type."""

    def converted(self, value: Atom, kind: Any) -> Atom:
        """Append the conversion of a number to a type."""
