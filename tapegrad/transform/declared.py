"""Types that a numba function was compiled with: its signatures, and those of its variables."""

from __future__ import annotations

from typing import Any

from numba.core import types

from tapegrad.transform.source import Source


class Declared:
    """What is declared of a function.

    Calls convert what they pass. That is understood of integers in calls of one signature.
    """

    def __init__(self, dispatcher: Any) -> None:
        # with explicit signatures a function takes these, and converts what it is given
        self.is_closed = not getattr(dispatcher, "_can_compile", True)
        self.signatures = list(getattr(dispatcher, "nopython_signatures", ()))
        self.variables = getattr(dispatcher, "locals", None) or {}

    def conversion(self, position: int, count: int, kind: Any) -> Any:
        """Return the type that an integer in a call is converted to, None if it stays as it is."""
        if not self.is_closed or len(self.signatures) != 1 or len(self.signatures[0].args) != count:
            return None
        declared = self.signatures[0].args[position]
        is_whole = isinstance(kind, (types.Integer, types.Boolean))
        converts = is_whole and isinstance(declared, types.Number) and kind != declared
        return declared if converts else None

    def check(self, kinds: tuple[Any, ...], result: Any, source: Source) -> None:
        """Refuse variables of declared types, and what a call converts.

        Parameters
        ----------
        kinds, result
            Types of the arguments, and the one that is found for the result.
        source
            The function.
        """
        if self.variables:
            names = ", ".join(self.variables)
            raise source.refuse(
                f"cannot differentiate a function with declared types of variables ({names}); "
                "leave out locals=, and convert: k = np.int64(k)",
                source.tree.lineno,
            )
        if not self.is_closed:
            return
        signature = self._signature(kinds)
        if signature is None:
            shown = " or ".join(str(signature.args) for signature in self.signatures)
            raise source.refuse(
                f"{source.name} is compiled for arguments of the types {shown}, and converts what "
                f"it is given, here {kinds}; convert before the call",
                source.tree.lineno,
            )
        declared = signature.return_type
        if not _holds_the_same(types.unliteral(result), declared):
            raise source.refuse(
                f"{source.name} is declared to return {declared}, and computes {result}; "
                "convert what it returns, or leave out the signature",
                source.tree.lineno,
            )

    def _signature(self, kinds: tuple[Any, ...]) -> Any:
        """Return the signature for arguments of some types, None if there is none."""
        for signature in self.signatures:
            if len(signature.args) == len(kinds):
                if all(map(_holds_the_same, kinds, signature.args)):
                    return signature
        return None


def _holds_the_same(kind: Any, declared: Any) -> bool:
    """Whether values of one type are as they are in another one: the layout may differ."""
    kind, declared = types.unliteral(kind), types.unliteral(declared)
    if isinstance(kind, types.Array) and isinstance(declared, types.Array):
        return bool(kind.dtype == declared.dtype and kind.ndim == declared.ndim)
    if isinstance(kind, types.BaseTuple) and isinstance(declared, types.BaseTuple):
        return len(kind) == len(declared) and all(map(_holds_the_same, kind, declared))
    return bool(kind == declared)
