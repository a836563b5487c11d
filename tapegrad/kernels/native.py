"""Compile a numba function once, keep its machine code on disk, and load it without numba.

All code compiled here (the reverse sweep, the derivative kernels, the vector-math loops) consists
of functions of integers and addresses that neither allocate nor raise. numba compiles such a
function as a C callback, and its object code is written to the cache folder under a hash of
everything it was made from. A later process loads the object with llvmlite alone, which takes a few
milliseconds; importing numba and starting its compiler takes half a second.

If the cache folder (`tapegrad.kernels.cache`) is not writable, code is compiled for this process
only.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import hashlib
import importlib
import linecache
import os
import sys
import traceback
import types
import weakref
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tapegrad.forks import process_lock
from tapegrad.imports import whole_imports
from tapegrad.kernels import cache
from tapegrad.kernels.progress import compiling
from tapegrad.kernels.sources import sources
from tapegrad.probes import probe

# prefixes of numba's runtime, referenced on the (unreachable) error path of a C callback
_RUNTIME = ("numba_", "NRT_")
_lock = process_lock()
_keep: list[Any] = []  # kept until the process ends, since kernels are called by address


def _llvm() -> Any:
    with whole_imports("llvmlite.binding"):
        import llvmlite.binding
    return llvmlite.binding


def _numba() -> Any:
    with whole_imports("numba"):
        import numba
    return numba


@functools.cache
def _engine() -> Any:
    """Return the llvmlite engine that cached objects are loaded into.

    The lock is held: a second one would be deleted, with the code that is loaded into it.
    """
    llvm = _llvm()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())


def _target_machine() -> Any:
    llvm = _llvm()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=_cpu_features(),
        opt=3,
        reloc="static",
        codemodel="jitdefault",
        jit=True,
    )


@functools.cache
def _cpu_features() -> str:
    llvm = _llvm()
    return str(llvm.get_host_cpu_features().flatten())


# numba's options for functions that only compiled code calls: half of the work for short ones
NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

FORMAT = "2"  # format of the files


# settings of numba's compiler that change the generated code
_SETTINGS = """
BOUNDSCHECK CPU_FEATURES CPU_NAME DEBUGINFO ENABLE_AVX LOOP_VECTORIZE OPT SLP_VECTORIZE
"""


@functools.cache
def _environment() -> bytes:
    """Return everything besides the source that determines the machine code."""
    llvm = _llvm()
    settings = (f"{name}={os.environ.get(f'NUMBA_{name}', '')}" for name in _SETTINGS.split())
    parts = (
        *settings,
        *(
            text.decode() for text in sources("kernels/llvm")
        ),  # what numba's compiler is extended by
        FORMAT,
        sys.version,
        version("numba"),
        version("llvmlite"),
        str(find_spec("scipy") is not None),  # numba calls its BLAS
        llvm.get_default_triple(),
        llvm.get_host_cpu_name(),
        _cpu_features(),
    )
    return "\n".join(parts).encode()


def fingerprint(*parts: bytes) -> str:
    """Hash the inputs of a function's compilation, the compiler and the CPU."""
    digest = hashlib.sha256(_environment())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]


@probe("load or compile a kernel", "compile")
def load(key: str, build: Callable[[], Any]) -> int:
    """Return the address of a compiled function, from disk or by building it.

    Parameters
    ----------
    key
        `fingerprint` of everything that `build` depends on.
    build
        Called on a miss; returns a ``numba.cfunc``.
    """
    root = cache.folder()
    path = None if root is None else root / f"{key}.o"
    with _lock:
        is_there = path is not None and os.path.lexists(path)
        found = _from_disk(path, key) if is_there else 0
    if found:
        return found
    if _numba().config.DISABLE_JIT:
        raise RuntimeError(
            "NUMBA_DISABLE_JIT is set, so numba compiles nothing, and a function of tapegrad's "
            "own is not in its cache: unset it (to debug a function of yours in Python, remove "
            "its decorator)"
        )
    # numba's lock first: a thread that compiles may call this function
    with _compiler_lock(), _lock:
        if not is_there and (found := _from_disk(path, key)):
            return found  # another thread has compiled it meanwhile
        with compiling("its own functions"):
            compiled = build()
        _keep.append(compiled)
        if path is not None:
            cache.write(path, key, _object_of(compiled))
        return int(compiled.address)


def _compiler_lock() -> Any:
    found = importlib.import_module("numba.core.compiler_lock")
    return found.global_compiler_lock


def _from_disk(path: Path | None, key: str) -> int:
    """Return the address of a function whose machine code is on disk, 0 if it is not there."""
    content = None if path is None else cache.read(path, key)
    return 0 if content is None else _load_object(content)


def compiled(
    module: str, name: str, result: str, arguments: int, sources: bytes, **options: Any
) -> int:
    """Return the address of a function of int64 that stands in a module with numba's imports.

    Parameters
    ----------
    module, name
        Where the function stands. It is imported only if it is to be compiled.
    result
        numba's name of the type of its result.
    arguments
        Their number.
    sources
        The source of everything that it is made of.
    options
        Options of numba's.
    """

    def build() -> Any:
        numba = _numba()
        with whole_imports(module, "tapegrad.kernels.llvm.pipeline"):
            from tapegrad.kernels.llvm.pipeline import Pipeline

            function = getattr(importlib.import_module(module), name)
        function = getattr(function, "py_func", function)  # if it is also called by compiled code
        signature = getattr(numba, result)(*[numba.int64] * arguments)
        return numba.cfunc(signature, pipeline_class=Pipeline, **options)(function)

    return load(fingerprint(sources, f"{module}.{name}".encode()), build)


def on_first_call(resolve: Callable[[], int], arguments: int) -> int:
    """Return the address of a function that loads or compiles another one, and calls that.

    Machine code may be loaded and run without anything of this package: that of a function of the
    user which calls a derivative, from numba's cache.

    Parameters
    ----------
    resolve
        Returns the address of the other function, and puts it where the machine code finds that
        of this one. If it raises, the error is printed, and machine code gets 0.
    arguments
        The number of the arguments; they and the result are int64.
    """
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)

    def first(*args: int) -> int:
        try:
            found: int = kind(resolve())(*args)
        except BaseException as error:  # ctypes would return what happens to be in a register
            report(error)
            return 0
        return found

    made = kind(first)
    _keep.append(made)
    return ctypes.cast(made, ctypes.c_void_p).value or 0


def report(error: BaseException) -> None:
    """Print an error that cannot be raised, in a function that machine code calls.

    An interrupt is raised later, by the main thread.
    """
    if isinstance(error, KeyboardInterrupt):
        _thread.interrupt_main()
        return
    traceback.print_exception(error)


def keep_forever() -> None:
    """Keep what was compiled until the process ends, also while its modules are torn down."""
    with _lock:
        kept = _keep, _engine()
    for value in kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def compile_source(key: str, source: str, name: str) -> Any:
    """Execute generated source as a separate module and return the object called `name`."""
    return execute(key, source, name)[name]


def execute(key: str, source: str, name: str) -> dict[str, Any]:
    """Execute generated source as a separate module and return its namespace.

    The text is registered with `linecache` for tracebacks and debuggers; `name` is part of the file
    name that they show.
    """
    module = types.ModuleType(f"tapegrad_generated_{key}")
    filename = f"<tapegrad {name} {key}>"
    register(module, filename, source)
    exec(compile(source, filename, "exec"), module.__dict__)
    return module.__dict__


class _Life:
    """What only the namespace of a module holds."""


def register(module: types.ModuleType, filename: str, text: str) -> None:
    """Show a generated module to debuggers, and to numba, as long as its namespace is in use.

    numba asks for the modules that code was compiled in by name; what it gets is empty.
    """
    _list(module, sys.modules, module.__name__, types.ModuleType(module.__name__))
    show(module, filename, text)


def show(module: types.ModuleType, filename: str, text: str) -> None:
    """Show the text of a generated module to debuggers as long as its namespace is in use.

    numba asks for the lines of a file by its relative path, and nobody would delete what it reads.
    """
    names = {filename}
    with contextlib.suppress(ValueError):  # on another drive
        names.add(os.path.relpath(filename))
    for name in names:
        _list(module, linecache.cache, name, (len(text), None, text.splitlines(True), name))


def _list(module: types.ModuleType, table: dict[str, Any], name: str, value: Any) -> None:
    table[name] = value
    life = module.__dict__.setdefault("__life__", _Life())
    weakref.finalize(life, _forget, table, name, value).atexit = False


def _forget(table: dict[str, Any], name: str, value: Any) -> None:
    if table.get(name) is value:  # no other one of this name
        del table[name]


def _load_object(content: bytes) -> int:
    """Link object code from the cache; return its function's address, or 0 if it is not found."""
    llvm = _llvm()
    header, _, code = content.partition(b"\0")
    name, *runtime = header.decode().split()
    engine = _engine()
    for symbol in runtime:
        # numba registers the real symbols when it is imported; they take precedence.
        if llvm.address_of_symbol(symbol) is None:
            llvm.add_symbol(symbol, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    loaded = llvm.ObjectFileRef.from_data(code)
    engine.add_object_file(loaded)
    engine.finalize_object()
    _keep.append(loaded)
    return int(engine.get_function_address(name))


def _object_of(compiled: Any) -> bytes:
    """Return object code preceded by its symbol and those of numba's runtime."""
    library = compiled._library
    names = (function.name for function in library._final_module.functions)
    runtime = [name for name in names if name.startswith(_RUNTIME)]
    code: bytes = library._get_compiled_object()
    return " ".join([compiled.native_name, *runtime]).encode() + b"\0" + code
