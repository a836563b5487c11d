"""Modules that generated code names, which are imported when numba first asks for one of them.

A process that finds all its machine code on disk compiles nothing, and needs none of them: making
their functions known to numba takes longer than everything else that it does.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

from numba.core.registry import cpu_target

from tapegrad.imports import whole_imports


class _Deferred(types.ModuleType):
    """Another module, imported when one of its names is read; a module for numba's sake."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # of the import system, which looks at all modules
        with whole_imports(self.__name__):
            module = importlib.import_module(self.__name__)
        found = getattr(module, name)
        # numba asks in the middle of a compilation, and looks for new functions at its start only
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
        setattr(self, name, found)
        return found


runtime = _Deferred("tapegrad.transform.runtime")
arrays = _Deferred("tapegrad.transform.rules.arrays")
vector_math = _Deferred("tapegrad.transform.vector_math")
