"""Modules of published packages, loaded without what they depend on.

The packages lie unpacked in a folder. Their modules are run statement by statement: one that fails,
such as the import of a library that is not there, is left out. What numba compiles rarely needs
those, and what does need them cannot be compiled and is never drawn. Files, lines and modules are
the package's own.
"""

import __future__

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from numba.core import typeinfer
from numba.core.dispatcher import Dispatcher

NOT_CODE = {"test", "tests", "testing", "docs", "doc", "examples", "benchmarks", "conftest"}
"""Folders and modules of a package that are not what it is for."""

LOADING: list[ModuleType] = []
"""Modules that are being run."""


class Tolerant(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules in a folder of packages, and runs what can be run of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        base = self.folder.joinpath(*fullname.split("."))
        for file in (base / "__init__.py", base.with_name(base.name + ".py")):
            if file.is_file():
                places = [str(base)] if file.name == "__init__.py" else None
                return importlib.util.spec_from_file_location(
                    fullname, file, loader=self, submodule_search_locations=places
                )
        if base.is_dir():
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(base)]
            return spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run each statement of the module; leave out what fails."""
        file = module.__spec__.origin
        tree = ast.parse(Path(file).read_text(encoding="utf-8"), file)
        LOADING.append(module)
        try:
            self._run_all(tree, file, module)
        finally:
            LOADING.pop()

    def _run_all(self, tree: ast.Module, file: str, module: ModuleType) -> None:
        flags = 0
        for statement in tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                for name in statement.names:
                    flags |= getattr(__future__, name.name).compiler_flag
                continue
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                continue  # sets something up: plots, warnings, locales
            self._run(statement, file, flags, module.__dict__)

    def _run(self, statement: ast.stmt, file: str, flags: int, scope: dict[str, Any]) -> None:
        if isinstance(statement, (ast.ImportFrom, ast.Import)) and len(statement.names) > 1:
            for name in statement.names:
                one = type(statement)(**{**vars(statement), "names": [name]})
                self._run(one, file, flags, scope)
            return
        try:
            code = compile(ast.Module([statement], []), file, "exec", flags, dont_inherit=True)
            exec(code, scope)
        except (Exception, SystemExit):
            pass


def open_packages(folder: str | Path) -> None:
    """Let modules of the packages in a folder be imported."""
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise SystemExit(f"no packages in {folder}: see --help")
    warnings.simplefilter("ignore")
    if not any(isinstance(finder, Tolerant) for finder in sys.meta_path):
        sys.meta_path.insert(0, Tolerant(folder))
        sys.path.append(str(folder))  # packages ask for their versions


def installed(folder: str | Path) -> dict[str, tuple[str, list[str]]]:
    """Version and top-level modules of each package in the folder."""
    found = {}
    for one in distributions(path=[str(folder)]):
        tops = {file.parts[0] for file in one.files or () if file.suffix == ".py"}
        tops = {top.removesuffix(".py") for top in tops}
        found[one.metadata["Name"]] = (
            one.version,
            sorted(top for top in tops if top not in NOT_CODE and not top.startswith((".", "_"))),
        )
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def module_names(folder: str | Path, top: str) -> Iterator[str]:
    """Modules of a package that mention numba's compiler, in order."""
    root = Path(folder)
    single = root / f"{top}.py"
    for file in sorted([single] if single.is_file() else root.joinpath(top).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if NOT_CODE.isdisjoint(parts) and not any(part.startswith("test_") for part in parts):
            if "jit" in file.read_text(encoding="utf-8", errors="replace"):
                yield ".".join(parts)


def compiled_functions(name: str) -> dict[str, Dispatcher]:
    """Functions of a module that numba compiles, by name."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit):
        return {}
    return {
        key: value
        for key, value in sorted(vars(module).items())
        if isinstance(value, Dispatcher)
        and value.py_func.__module__ == name
        and value.py_func.__name__ == key
    }


def compile_lazily() -> None:
    """Have functions with given signatures compiled when they are called, not when they are made.

    So that a module of a hundred such functions costs only the one that is asked for.
    """
    compile_now = Dispatcher.compile
    disable = Dispatcher.disable_compile

    def compile(self: Any, sig: Any) -> Any:
        if LOADING:
            self.__dict__.setdefault("given_signatures", []).append(sig)
            return None
        waiting = self.__dict__.get("given_signatures", [])
        if waiting and not self.overloads:
            with typeinfer.register_dispatcher(self):
                for one in waiting:
                    compile_now(self, one)
            disable(self)
        if waiting:
            if sig in self.overloads:
                return self.overloads[sig].entry_point
            for given, found in self.overloads.items():
                if all(
                    self.typingctx.can_convert(*two) is not None
                    for two in zip(sig, given, strict=True)
                ):
                    return found.entry_point  # numba chooses itself from the next call on
        return compile_now(self, sig)

    def disable_compile(self: Any, value: bool = True) -> None:
        if not LOADING:
            disable(self, value)

    Dispatcher.compile = compile
    Dispatcher.disable_compile = disable_compile
