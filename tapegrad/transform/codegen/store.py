"""Generated modules on disk, keyed by what they were made from.

A module is a file of plain Python in the cache folder, so that tracebacks show it and it can be
read; its machine code is kept beside it. The user's objects that it names are put into its
namespace when it is loaded; its first line says where to find each of them.
"""

from __future__ import annotations

import base64
import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

from tapegrad.kernels import cache, native
from tapegrad.kernels.llvm.pipeline import use_pipeline
from tapegrad.transform.cache import machine_code
from tapegrad.transform.cache.fingerprint import Fingerprint
from tapegrad.transform.frontend.source import MISSING, outside_value
from tapegrad.transform.lowering.stand_ins import core_of, made_for, stand_in
from tapegrad.transform.names import namespace

_HEAD = "# tapegrad: "


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds generated modules for numba, which asks for them by name.

    Machine code from disk refers by name to the modules that its parts were compiled in. These
    modules may stay empty: their contents are compiled in.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.startswith(("tapegrad_derivative_", "tapegrad_generated_")):
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module empty."""


sys.meta_path.append(_Finder())


class Recipe:
    """Where to find the objects that a generated module names in another process.

    Parameters
    ----------
    fingerprint
        The fingerprint of the derivative that the module is made for.
    root
        The derivative.
    kinds
        numba types of its arguments.
    """

    def __init__(self, fingerprint: Fingerprint, root: Any, kinds: tuple[Any, ...]) -> None:
        self.fingerprint = fingerprint
        self.root = root
        self.classes = _classes(kinds)

    def write(self, program: Any) -> dict[str, Any] | None:
        """Return how to find every object again, None if one cannot be found."""
        if not self.fingerprint.complete:
            return None
        found: dict[str, Any] = {}
        for text, value in program.statics.items():
            steps = self._steps(program.origins.get(text), program)
            if steps is None:
                steps = next(
                    (["class", None, k] for k, c in enumerate(self.classes) if c is value), None
                )
            if steps is None:
                return None
            found[text] = steps
        return found

    def _steps(self, origin: Any, program: Any) -> Any:
        if origin is None:
            return None
        kind, base, detail = origin
        if kind == "name":
            scope = base.__globals__
            if "_calls" in scope:  # made to call the function that is differentiated
                return ["root", None, "base"] if scope["_calls"] is self.root.base else None
            if "_about" in scope:
                made, kinds = scope["_made_for"]
                steps = self._steps_to(made, program)
                types_of = _pickled(kinds)
                found = steps is not None and types_of is not None
                return ["generated", steps, [types_of, detail]] if found else None
            if scope.get("__name__", "").startswith("tapegrad."):
                return ["package", None, [scope["__name__"], detail]]
            if base not in self.fingerprint.functions:
                return self._steps_of_stand_in(base, detail, program)
            return ["name", self.fingerprint.functions.index(base), detail]
        if kind in ("root", "default"):
            return [kind, None, detail]
        inner = self._steps(base, program)
        if inner is None:
            return None
        return [kind, inner, detail if isinstance(detail, str) else list(detail)]

    def _steps_of_stand_in(self, function: Any, detail: str, program: Any) -> Any:
        """Return how to find a name in the source of a stand-in for a callee."""
        made = made_for(function)
        if made is None:
            return None
        steps, call = self._steps_to(made[0], program), _pickled(made[1:])
        return None if steps is None or call is None else ["stand_in", steps, [call, detail]]

    def _steps_to(self, made: Any, program: Any) -> Any:
        """Return how to find an object whose code is part of the differentiated function."""
        if made is self.root.base:
            return ["root", None, "base"]
        for text, value in program.statics.items():
            if value is made:
                return self._steps(program.origins.get(text), program)
        return None

    def read(self, steps: Any) -> Any:
        """Return the object that some steps lead to."""
        kind, base, detail = steps
        if kind == "root":
            return getattr(self.root, detail) if detail else self.root
        if kind == "default":
            return inspect.signature(self.root.py_func).parameters[detail].default
        if kind == "class":
            return self.classes[detail]
        if kind == "package":
            module: Any = importlib.import_module(detail[0])
            return functools.reduce(getattr, detail[1].split("."), module)
        if kind == "name":
            return lookup(self.fingerprint.functions[base], detail)
        found = self.read(base)
        if kind == "stand_in":
            core = core_of(found)  # the only name in the loop of a ufunc
            if core is not None:
                return core
            made = stand_in(found, *pickle.loads(base64.b64decode(detail[0])))
            return lookup(made.py_func, detail[1])
        if kind == "generated":
            types_of, text = detail
            kinds = pickle.loads(base64.b64decode(types_of))
            return found.implementation(kinds).py_func.__globals__[text]
        if kind == "attribute":
            return getattr(found, detail)
        if kind == "parameter":
            return inspect.signature(found.py_func).parameters[detail].default
        return getattr(found, kind)(tuple(detail))


def _pickled(kinds: Any) -> str | None:
    """Return numba types as text, None for types that cannot be pickled (ufuncs as arguments)."""
    try:
        return base64.b64encode(pickle.dumps(kinds)).decode()
    except (AttributeError, TypeError, pickle.PicklingError):
        return None


def _classes(kinds: tuple[Any, ...]) -> list[Any]:
    """Return the classes of named tuples in types."""
    found = []
    for kind in kinds:
        if hasattr(kind, "instance_class"):
            found.append(kind.instance_class)
        if hasattr(kind, "types"):
            found += _classes(tuple(kind.types))
    return list(dict.fromkeys(found))


def lookup(function: types.FunctionType, dotted: str) -> Any:
    """Return what a dotted name means in a function."""
    first, *rest = dotted.split(".")
    value = outside_value(function, first)
    if value is MISSING:
        raise KeyError(dotted)
    for attribute in rest:
        value = getattr(value, attribute)
    return value


def load(key: str, recipe: Recipe) -> dict[str, Any] | None:
    """Return the namespace of a module that is on disk, or None."""
    path = _path_of(key)
    content = None if path is None else cache.read(path, key)
    if content is None:
        return None
    text = content.decode()
    known = json.loads(text.partition("\n")[0].removeprefix(_HEAD))
    try:
        statics = {name: recipe.read(steps) for name, steps in known["statics"].items()}
    except (AttributeError, IndexError, KeyError):
        return None  # the names are found elsewhere now
    return execute(key, text, path, known, statics)


def save(key: str, body: str, about: dict[str, Any], statics: dict[str, Any]) -> dict[str, Any]:
    """Write a module to disk if possible, and return its namespace."""
    text = f"{_HEAD}{json.dumps(about)}\n{body}\n# end\n"
    path = None if about["statics"] is None else _path_of(key)
    if path is not None and not cache.write(path, key, text.encode()):
        path = None
    return execute(key, text, path, about, statics)


def _path_of(key: str) -> Path | None:
    """Return the file of a generated module, None where there is no folder for it."""
    folder = cache.folder("njit")
    return None if folder is None else folder / f"derivative_{key}.py"


def execute(
    key: str, text: str, path: Path | None, about: dict[str, Any], statics: dict[str, Any]
) -> dict[str, Any]:
    """Execute the text of a module; without a file, its machine code is not kept.

    The text is shifted by one line because the file starts with a checksum.
    """
    name = f"tapegrad_derivative_{key}"
    filename = str(path) if path is not None else f"<{name}>"
    shown = f"\n{text}"
    module = types.ModuleType(name)
    module.__file__ = filename
    module.__dict__.update(namespace(statics))
    module.__dict__["_about"] = about
    native.register(module, filename, shown)
    exec(compile(shown, filename, "exec"), module.__dict__)
    made = machine_code.functions_of(module.__dict__)
    for function in made.values():
        use_pipeline(function)
    for function_name in made.keys() - {about["entry"], about["run"], about["assuming"]}:
        machine_code.as_inner(made[function_name])
    if path is not None and about["cache"]:
        machine_code.keep(made, path, cache.checksum(key, text.encode()))
    return module.__dict__
