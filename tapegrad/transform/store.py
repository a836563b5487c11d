"""Generated modules on disk: written once, found again by what they were made from.

A module is a file of plain Python in the cache folder, so that numba keeps its machine code beside
it, tracebacks show it, and it can be read. What it names of the user's is put into its namespace
when it is loaded; a line in its head says where each of these is found.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import linecache
import math
import operator
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tapegrad.kernels import native
from tapegrad.transform.fingerprint import Fingerprint

_HEAD = "# tapegrad: "
_MISSING = object()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds generated modules for numba, which asks for them by name.

    Machine code from disk comes with the names of the modules that its parts were compiled in. They
    need not be filled: what they hold is compiled in.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.startswith(("tapegrad_derivative_", "tapegrad_generated_")):
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module empty."""


sys.meta_path.append(_Finder())


class Recipe:
    """Where the objects that a generated module names are found."""

    def __init__(self, fingerprint: Fingerprint, inner: Callable[[], Any]) -> None:
        self.fingerprint = fingerprint
        self.inner = inner  # returns the generated function that is differentiated once more

    def write(self, statics: dict[str, Any], origins: dict[str, Any]) -> dict[str, Any] | None:
        """Return how every object is found again, None if one cannot be."""
        if not self.fingerprint.complete:
            return None
        found: dict[str, Any] = {}
        for text in statics:
            origin = origins.get(text)
            if origin is None:
                return None
            steps = self._steps(origin)
            if steps is None:
                return None
            found[text] = steps
        return found

    def _steps(self, origin: Any) -> Any:
        if origin is None:
            return None
        kind, base, detail = origin
        if kind == "name":
            if detail == "derivative" and "derivative" in base.__globals__:
                return ["root", None, "base"]  # called by a function made for that
            if "_about" in base.__globals__:
                return ["inner", None, detail]
            if base not in self.fingerprint.functions:
                return None
            return ["name", self.fingerprint.functions.index(base), detail]
        if kind == "root":
            return ["root", None, detail]
        inner = self._steps(base)
        if inner is None:
            return None
        return [kind, inner, detail if isinstance(detail, str) else list(detail)]

    def read(self, steps: Any, root: Any) -> Any:
        """Return the object that some steps lead to, or MISSING."""
        kind, base, detail = steps
        if kind == "root":
            return getattr(root, detail) if detail else root
        if kind == "inner":
            return self.inner().py_func.__globals__[detail]
        if kind == "name":
            return lookup(self.fingerprint.functions[base], detail)
        found = self.read(base, root)
        if kind == "attribute":
            return getattr(found, detail)
        return getattr(found, kind)(tuple(detail))


def lookup(function: types.FunctionType, dotted: str) -> Any:
    """Return what a dotted name means in a function."""
    from tapegrad.transform.source import Source

    first, *rest = dotted.split(".")
    value = Source(function).lookup(first)
    for attribute in rest:
        value = getattr(value, attribute)
    return value


def namespace(statics: dict[str, Any]) -> dict[str, Any]:
    """Return what a generated module starts from."""
    import numba

    from tapegrad.transform import arrays, runtime
    from tapegrad.transform.functions import ops

    found: dict[str, Any] = {
        "np": np,
        "math": math,
        "numba": numba,
        "operator": operator,
        "runtime": runtime,
        "arrays": arrays,
        "ops": ops,
    }
    found.update(statics)
    return found


def path_of(key: str) -> Path:
    """Return the file of a generated module."""
    return native.cache_dir() / "njit" / f"derivative_{key}.py"


def load(key: str, recipe: Recipe, root: Any) -> dict[str, Any] | None:
    """Return the namespace of a module that is on disk, or None."""
    path = path_of(key)
    try:
        text = path.read_text()
    except OSError:
        return None
    head, _, rest = text.partition("\n")
    if not head.startswith(_HEAD) or not rest.rstrip().endswith("# end"):
        return None
    known = json.loads(head[len(_HEAD) :])
    statics = {name: recipe.read(steps, root) for name, steps in known["statics"].items()}
    module = execute(key, text, path, statics)
    module["_about"] = known
    return module


def save(key: str, body: str, about: dict[str, Any], statics: dict[str, Any]) -> dict[str, Any]:
    """Write a module to disk where that is possible, and return its namespace."""
    text = f"{_HEAD}{json.dumps(about)}\n{body}\n# end\n"
    path = path_of(key)
    if about["statics"] is None:
        return execute(key, text, None, statics)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError:
        return execute(key, text, None, statics)
    return execute(key, text, path, statics)


def execute(key: str, text: str, path: Path | None, statics: dict[str, Any]) -> dict[str, Any]:
    """Execute the text of a module; without a file, its machine code is not kept."""
    name = f"tapegrad_derivative_{key}"
    filename = str(path) if path is not None else f"<{name}>"
    if path is None:
        text = text.replace("cache=True", "cache=False")
    module = types.ModuleType(name)
    module.__file__ = filename
    module.__dict__.update(namespace(statics))
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    sys.modules[name] = module
    exec(compile(text, filename, "exec"), module.__dict__)
    return module.__dict__
