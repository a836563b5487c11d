"""Compile a numba function once, keep its machine code on disk, and load it without numba.

Everything compiled in tapegrad (the reverse sweep, the derivative kernels, the vector-math loops)
is a function of plain integers and addresses that neither allocates nor raises. Such a function is
compiled by numba as a C callback; its object code goes into the cache folder under a name that is
the hash of everything it was made from. A later process loads that object through llvmlite alone,
which takes a few milliseconds, while importing numba and starting its compiler takes half a second.

The cache folder is ``$TAPEGRAD_CACHE_DIR``, else ``$XDG_CACHE_HOME/tapegrad``, else
``~/.cache/tapegrad``; where none of them can be written, code is compiled for this process only.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import linecache
import os
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

# numba's runtime, which a C callback mentions on its (unreachable) error path
_RUNTIME = ("numba_", "NRT_")
_lock = threading.RLock()
_keep: list[Any] = []  # loaded objects live as long as the process: kernels are called by address


def cache_dir() -> Path:
    """Return the folder that holds compiled code (it need not exist yet)."""
    if chosen := os.environ.get("TAPEGRAD_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tapegrad"


@functools.cache
def _engine() -> Any:
    """Make the llvmlite engine that cached objects are loaded into."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())


def _target_machine() -> Any:
    import llvmlite.binding as llvm

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
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_features().flatten())


@functools.cache
def _environment() -> bytes:
    """Everything beside the source that decides what machine code comes out."""
    import llvmlite.binding as llvm

    parts = (
        sys.version,
        version("numba"),
        version("llvmlite"),
        llvm.get_default_triple(),
        llvm.get_host_cpu_name(),
        _cpu_features(),
    )
    return "\n".join(parts).encode()


def fingerprint(*parts: bytes) -> str:
    """Hash what a function is made from, together with the compiler and the CPU."""
    digest = hashlib.sha256(_environment())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]


def load(key: str, build: Callable[[], Any]) -> int:
    """Return the address of a compiled function, from disk or by building it.

    Parameters
    ----------
    key
        `fingerprint` of everything that `build` depends on.
    build
        Called on a miss; returns a ``numba.cfunc``.
    """
    with _lock:
        path = cache_dir() / f"{key}.o"
        try:
            blob = path.read_bytes()
        except OSError:
            blob = None
        if blob is not None:
            address = _load_object(blob)
            if address:
                return address
        compiled = build()
        _keep.append(compiled)
        _store(path, compiled)
        return int(compiled.address)


def compile_source(key: str, source: str, name: str) -> Any:
    """Execute generated source as a module of its own and return the object called `name`.

    The text is registered with `linecache`, so that tracebacks and debuggers show it.
    """
    module = types.ModuleType(f"tapegrad_generated_{key}")
    filename = f"<tapegrad {name} {key}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    exec(compile(source, filename, "exec"), module.__dict__)
    sys.modules[module.__name__] = module
    return module.__dict__[name]


def _load_object(blob: bytes) -> int:
    """Link an object file of the cache; 0 if the blob is not one (a damaged cache file)."""
    import llvmlite.binding as llvm

    header, _, rest = blob.partition(b"\0")
    digest, code = rest[:32], rest[32:]
    if hashlib.sha256(code).digest() != digest:
        return 0
    name, *runtime = header.decode().split()
    engine = _engine()
    for symbol in runtime:
        # Once numba is imported it registers the real ones, which take precedence.
        if llvm.address_of_symbol(symbol) is None:
            llvm.add_symbol(symbol, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    loaded = llvm.ObjectFileRef.from_data(code)
    engine.add_object_file(loaded)
    engine.finalize_object()
    _keep.append(loaded)
    return int(engine.get_function_address(name))


def _store(path: Path, compiled: Any) -> None:
    """Write object code after its symbol and those of numba's runtime; readers see all or none."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(compiled.inspect_llvm())
    runtime = [f.name for f in module.functions if f.name.startswith(_RUNTIME)]
    code = _target_machine().emit_object(module)
    header = " ".join([compiled.native_name, *runtime]).encode()
    blob = header + b"\0" + hashlib.sha256(code).digest() + code
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(blob)
        Path(file.name).replace(path)
    except OSError:
        return  # a read-only home is no reason to fail: the compiled function is in memory
