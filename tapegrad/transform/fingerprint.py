"""What the code of a function depends on, as one hash and as a list of functions."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from pathlib import Path
from typing import Any

import numpy as np

from tapegrad.kernels import native


class Fingerprint:
    """The hash of a function with everything below it.

    Attributes
    ----------
    functions
        The Python functions reached, in a fixed order.
    complete
        Whether all that was reached has a hash that holds in another process.
    recursive
        Whether a function calls itself: numba crashes on the machine code of such on disk.
    """

    def __init__(self, root: Any) -> None:
        self.digest = hashlib.sha256()
        self.functions: list[types.FunctionType] = []
        self.complete = True
        self.recursive = False
        self._open: list[types.FunctionType] = []  # those that are being looked at
        self._add(root)

    def key(self, *parts: Any) -> str:
        """Return the hash, together with that of other parts and of the package."""
        return native.fingerprint(package(), self.digest.digest(), repr(parts).encode())

    def _note(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text}".encode())

    def _add(self, value: Any) -> None:
        if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
            self._note(repr(value))
        elif isinstance(value, (np.ndarray, np.generic)):
            self._note(f"{value.dtype}{np.shape(value)}")
            self.digest.update(np.asarray(value).tobytes())
        elif isinstance(value, (tuple, list)):
            self._note(type(value).__name__)
            for item in value:
                self._add(item)
        elif hasattr(value, "_tapegrad_recipe"):
            self._add(value._tapegrad_recipe())
        elif hasattr(value, "py_func"):
            self._note("compiled")
            self._add(getattr(value, "rule_vjp", None))
            self._add(getattr(value, "rule_jvp", None))
            self._note(repr(sorted(value.targetoptions.items(), key=repr)))
            self._function(value.py_func)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType, np.ufunc)):
            self._note(f"{getattr(value, '__module__', '')}.{getattr(value, '__name__', value)}")
        elif callable(value) and getattr(value, "__module__", None):
            self._note(f"{value.__module__}.{getattr(value, '__name__', '')}")
        else:
            self._note(type(value).__name__)
            self.complete = False

    def _function(self, function: types.FunctionType) -> None:
        if function in self.functions:
            self.recursive |= function in self._open
            self._note(str(self.functions.index(function)))
            return
        self.functions.append(function)
        self._open.append(function)
        self._content(function)
        self._open.pop()

    def _content(self, function: types.FunctionType) -> None:
        """Add the source of a function and what it names."""
        module = function.__module__ or ""
        if module.split(".")[0] in ("numpy", "numba", "math"):
            self._note(f"{module}.{function.__qualname__}")
            return
        try:
            self._note(inspect.getsource(function))
        except (OSError, TypeError):
            self.complete = False
        if module.startswith("tapegrad."):
            return  # the package's own: part of its hash
        self._add(function.__defaults__)
        closure = inspect.getclosurevars(function)
        scope = {**closure.globals, **closure.nonlocals}
        for identifier in sorted(scope):
            self._note(identifier)
            value = scope[identifier]
            if isinstance(value, types.ModuleType):
                self._note(value.__name__)
                self._attributes(function, identifier, value)
            else:
                self._add(value)

    def _attributes(self, function: Any, identifier: str, module: types.ModuleType) -> None:
        """Add what a function uses of a module of the user's."""
        if module.__name__.split(".")[0] in ("numpy", "math", "numba", "tapegrad", "operator"):
            return
        for attribute in function.__code__.co_names:
            if hasattr(module, attribute):
                self._note(attribute)
                self._add(getattr(module, attribute))


@functools.cache
def package() -> bytes:
    """Return the hash of the files that generate code."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for folder in (root, root.parent / "ops", root.parent / "kernels"):
        for file in sorted(folder.glob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()
