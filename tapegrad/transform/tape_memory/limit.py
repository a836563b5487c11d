"""How much memory a tape may use, together with the arrays that it keeps."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tapegrad.kernels import native
from tapegrad.kernels.limits import checked_limit
from tapegrad.kernels.sources import sources

_SHARE = 0.9  # of the memory of the machine, which is the limit if none is set


def _machine_memory() -> int:
    """Return the memory that the process may use, in bytes."""
    found = [1 << 62]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path("/sys/fs/cgroup", file).read_text(encoding="ascii")))
    return min(size for size in found if size > 0)


class _Limit(ctypes.Structure):
    """What machine code, also that of the cache, finds by the name of a symbol.

    Attributes
    ----------
    size
        The limit in bytes.
    counting
        The address of `kept_arrays.kept_by`.
    """

    _fields_ = (("size", ctypes.c_int64), ("counting", ctypes.c_void_p))


def _compile_counting() -> int:
    text = b"".join(sources("transform/tape_memory/kept_arrays.py", "kernels/intrinsics.py"))
    module = f"{__package__}.kept_arrays"
    _limit.counting = native.compiled(module, "kept_by", "int64", 2, text)
    return int(_limit.counting)


_limit = _Limit(int(_SHARE * _machine_memory()), native.on_first_call(_compile_counting, 2))
binding.add_symbol("tapegrad_tape_limit", ctypes.addressof(_limit))


def set_tape_limit(limit: int | None) -> None:
    """Set how much memory a compiled gradient may use for what it keeps for its reverse pass.

    It holds for all compiled derivatives of the process, from the next call on. What a call keeps
    are the numbers on its tape, and the arrays that are alive only because of it. Beyond the limit
    MemoryError is raised, and the memory is released. Second derivatives keep the tangents of these
    values as well, which are not counted.

    Parameters
    ----------
    limit
        Bytes for each call that runs. None sets the default: 0.9 of the memory of the machine, or
        of the container that the process runs in.

    Raises
    ------
    ValueError
        If the limit is negative.
    TypeError
        If it is not an integer.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.njit
    ... def logistic(r, x, n):
    ...     for _ in range(n):
    ...         x = r * x * (1.0 - x)
    ...     return x
    >>> tg.set_tape_limit(10_000_000)
    >>> tg.grad(logistic)(3.7, 0.3, 10_000_000)
    Traceback (most recent call last):
    ...
    MemoryError: tapegrad: the values that the reverse pass needs do not fit into memory...
    >>> tg.set_tape_limit(None)
    """
    if limit is None:
        _limit.size = int(_SHARE * _machine_memory())
    else:
        _limit.size = checked_limit("set_tape_limit", limit)


def load_limit(builder: Any) -> Any:
    """Generate code that reads the limit of a tape with what it keeps, in bytes."""
    return _load(builder, 0)


def load_counting(builder: Any) -> Any:
    """Generate code that reads the address of the function that counts what a tape keeps."""
    return _load(builder, 1)


def _load(builder: Any, index: int) -> Any:
    name = "tapegrad_tape_limit"
    place = builder.module.globals.get(name)
    if place is None:
        words = ir.ArrayType(ir.IntType(64), 2)
        place = ir.GlobalVariable(builder.module, words, name)
        place.linkage = "external"
    return builder.load(cgutils.gep_inbounds(builder, place, 0, index))


@intrinsic
def limit(typingctx: Any) -> Any:
    """Return the limit of a tape with what it keeps, in bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return load_limit(builder)

    return types.int64(), codegen
