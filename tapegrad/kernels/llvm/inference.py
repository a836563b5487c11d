"""numba's type inference, with fewer questions about calls."""

from __future__ import annotations

import types as python_types
from typing import Any

from numba.core import types
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NopythonTypeInference

_KINDS = types.Function, python_types.BuiltinFunctionType  # the latter: reads of items


class _Remembering:
    """numba's rules of typing, asked once about each call of a function with some types.

    Type inference asks at every call, and again until no type changes.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._signatures: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        setattr(self, name, found)
        return found

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Return the signature of a call."""
        if type(func) not in _KINDS:  # others may have their types refined
            return self._context.resolve_function_type(func, args, kws)
        key = func, args, tuple(kws.items())
        found = self._signatures.get(key)
        if found is None:
            found = self._context.resolve_function_type(func, args, kws)
            self._signatures[key] = found
        return found


@register_pass(mutates_CFG=True, analysis_only=False)
class Inference(NopythonTypeInference):
    """numba's type inference, which asks once about equal calls."""

    _name = "tapegrad_type_inference"

    def run_pass(self, state: Any) -> bool:
        context = state.typingctx
        state.typingctx = _Remembering(context)
        try:
            changed: bool = super().run_pass(state)
        finally:
            state.typingctx = context
        return changed
