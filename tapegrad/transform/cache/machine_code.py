"""Machine code on disk, of generated functions and of those that they call.

numba's own cache unpickles its index and data files without checks, and numbers the latter: if two
processes compile a function at the same time for different types, one may load the code of the
other. Here each compiled function has one file, named after its types, which is read only if it is
trusted and its checksum matches (`tapegrad.kernels.cache`), and which is written atomically.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import types
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps

from tapegrad.kernels import cache, native
from tapegrad.kernels.llvm import library
from tapegrad.kernels.llvm.pipeline import use_pipeline
from tapegrad.transform.cache import fingerprint


class MachineCode(NullCache):
    """The cache that numba asks for the compiled code of one function.

    Parameters
    ----------
    stem
        Common start of the paths of the files, None if there is no folder for them.
    key
        Identifies the text of the function and everything that it depends on.
    """

    stem: Path | None
    key: str

    def __init__(self, stem: Path | None, key: str) -> None:
        self.stem = stem
        self.key = key

    @property
    def cache_path(self) -> str | None:
        return None if self.stem is None else str(self.stem.parent)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature, None if there is no usable code."""
        target_context.refresh()
        place = self._place(sig, target_context.codegen())
        content = None if place is None else cache.read(*place)
        if place is None or content is None:
            return None
        try:
            kind, parts = pickle.loads(content)
            found = _REBUILD[kind](target_context, parts)
        except ModuleNotFoundError:
            return None  # of a function whose module this process does not have
        except Exception as error:
            cache.report(place[0], f"cannot be loaded ({type(error).__name__})")
            return None
        # a class that cannot be imported is rebuilt as a different class
        return found if tuple(found.signature.args) == tuple(sig) else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code for a signature, if it is valid in another process."""
        if data.library.has_dynamic_globals or any(not part.can_cache for part in data.lifted):
            return  # addresses of this process
        place = self._place(sig, data.codegen)
        if place is not None:
            linked = library.reduced(data)
            if linked is None:
                library.keep_object(data.library)
            kept = ("linked", linked) if linked is not None else ("emitted", data._reduce())
            cache.write(*place, dumps(kept))

    def _place(self, sig: Any, codegen: Any) -> tuple[Path, str] | None:
        """Return the file for a signature and the key in its checksum; None if not cached."""
        if self.stem is None or _has_identity(sig):
            return None
        key = repr((self.key, sig, codegen.magic_tuple()))
        short = hashlib.sha256(key.encode()).hexdigest()[:16]
        return self.stem.with_name(f"{self.stem.name}-{short}.nbc"), key


_REBUILD: dict[str, Callable[[Any, Any], CompileResult]] = {
    "linked": library.rebuilt,
    "emitted": lambda target_context, parts: CompileResult._rebuild(target_context, *parts),
}


def _has_identity(sig: Any) -> bool:
    """Whether a type in a signature is only equal to itself."""
    return any(isinstance(kind, (types.Omitted, types.Function)) for kind in sig)


def functions_of(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the numba functions that a generated module defines."""
    return {
        name: value
        for name, value in namespace.items()
        if isinstance(value, CPUDispatcher) and value.py_func.__globals__ is namespace
    }


def keep(functions: dict[str, Any], path: Path, key: str) -> None:
    """Keep the machine code of the functions of a generated module beside it."""
    for name, function in functions.items():
        stem = path.with_name(f"{path.stem}.{name[:64]}")  # names of files have a limit
        function._cache = MachineCode(stem, f"{key} {name}")


class _OfPackage(MachineCode):
    """The cache of a function of this package."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}"

    @functools.cached_property
    def stem(self) -> Path | None:  # type: ignore[override]
        folder = cache.folder("njit")
        return None if folder is None else folder / self.name

    @functools.cached_property
    def key(self) -> str:  # type: ignore[override]
        return native.fingerprint(fingerprint.package(), self.name.encode())


class _Inner(CPUDispatcher):
    """A function that compiled code calls.

    A wrapper for calls from Python would take numba as long to compile as a short function. Such
    calls compile it once more, with one.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_wrapper(*args, **kwargs)

    @functools.cached_property
    def _with_wrapper(self) -> Any:
        options = {k: v for k, v in self.targetoptions.items() if k not in native.NO_WRAPPERS}
        return numba.jit(**options)(self.py_func)


def as_inner(dispatcher: Any) -> Any:
    """Make a numba function, which is not compiled yet, one that compiled code calls."""
    if not isinstance(dispatcher, CPUDispatcher):  # with NUMBA_DISABLE_JIT it is Python's function
        return dispatcher
    dispatcher.targetoptions.update(native.NO_WRAPPERS)
    dispatcher.__class__ = _Inner
    return dispatcher


# numba would take them over from the function that happens to call one first
_OWN_OPTIONS = {"error_model": "numpy", "fastmath": False, "forceinline": False}


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function of this package with numba, for compiled code; cache its machine code."""
    made = uncached(function, **options)
    made._cache = _OfPackage(function)
    return made


def uncached(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function of this package that is on disk only as part of its callers."""
    made = as_inner(numba.njit(**{**_OWN_OPTIONS, **options})(function))
    use_pipeline(made)
    return made


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a short function of this package whose code is repeated where it is called."""
    return jit(function, forceinline=True)


def passive(function: Callable[..., Any]) -> Any:
    """Compile a function of this package that is not differentiated, and cache its machine code."""
    made = jit(function)
    made.tapegrad_passive = True
    return made


def constant(function: Callable[..., Any]) -> Any:
    """Compile a function of this package whose result is a constant for derivatives; cache it."""
    made = jit(function)
    made.tapegrad_constant = True
    return made


def merged(function: Callable[..., Any]) -> Any:
    """Compile a passive function of this package as a part of the one or two that call it.

    A function of its own takes numba a tenth of a second.
    """
    made = numba.njit(error_model="numpy", inline="always")(function)
    made.tapegrad_passive = True
    return made
