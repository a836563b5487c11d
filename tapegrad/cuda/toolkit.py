"""Whether there is a CUDA device, and what is missing if there is none.

`numba.cuda` is imported when it is first needed. With ``NUMBA_ENABLE_CUDASIM=1`` in the environment
numba simulates a device in Python, which is slow and needs no driver.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tapegrad.imports import whole_imports

_started: list[int] = []  # the process in which CUDA was first used


class CudaUnavailableError(RuntimeError):
    """There is no CUDA device, or what is needed to use it is not installed."""


class CudaCompilationError(RuntimeError):
    """numba does not compile a function for a device."""


@dataclass(frozen=True)
class DeviceInfo:
    """A CUDA device.

    Attributes
    ----------
    name
        Its name.
    compute_capability
        Major and minor number of its compute capability; 0 if it is simulated.
    total_memory
        Its memory, in bytes; 0 if it is simulated.
    multiprocessors
        How many multiprocessors it has; 0 if it is simulated.
    is_simulated
        Whether numba simulates it in Python.
    """

    name: str
    compute_capability: tuple[int, int]
    total_memory: int
    multiprocessors: int
    is_simulated: bool


def is_available() -> bool:
    """Return whether there is a CUDA device that can be used, or a simulated one.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.cuda.is_available() in (True, False)
    True
    """
    return _missing() is None


def device_info() -> list[DeviceInfo]:
    """Return the CUDA devices; the first one is used.

    Raises
    ------
    CudaUnavailableError
        If there is none; it says what is missing.

    Examples
    --------
    >>> import tapegrad as tg
    >>> found = tg.cuda.device_info() if tg.cuda.is_available() else []
    >>> [info.name for info in found]  # doctest: +SKIP
    ['NVIDIA H200']
    """
    cuda = require()
    if is_simulated():
        return [DeviceInfo("simulated by numba", (0, 0), 0, 0, True)]
    found = []
    for device in cuda.gpus.lst:
        with device:
            name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
            major, minor = device.compute_capability
            memory = int(cuda.current_context().get_memory_info().total)
            count = int(device.MULTIPROCESSOR_COUNT)
        found.append(DeviceInfo(name, (major, minor), memory, count, False))
    return found


def require() -> Any:
    """Return `numba.cuda`, with a device that can be used.

    Raises
    ------
    CudaUnavailableError
        If there is none, or if the process is a copy of one that uses CUDA already.
    """
    if not _started:
        if (reason := _missing()) is not None:
            raise CudaUnavailableError(reason)
        _started.append(os.getpid())
    if _started[0] != os.getpid():
        raise CudaUnavailableError(
            "CUDA cannot be used in a process that was forked from one that uses it; start "
            "processes with multiprocessing.get_context('spawn')"
        )
    with whole_imports("numba.cuda"):
        from numba import cuda

    return cuda


def is_simulated() -> bool:
    """Return whether numba simulates the device."""
    from numba.core import config

    return bool(config.ENABLE_CUDASIM)


def uses_stream_of_thread() -> bool:
    """Return whether kernels run on a stream of the thread, in place of the default stream."""
    from numba.core import config

    return bool(getattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0))


def known_ufuncs() -> Collection[Any]:
    """Return the functions of NumPy that numba compiles for a device."""
    from numba.cuda import ufuncs

    found = ufuncs.ufunc_db() if hasattr(ufuncs, "ufunc_db") else {}
    return frozenset(found)


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Turn numba's errors into ours while it compiles for a device, and ignore its advice.

    numba-cuda has classes of its own for errors and warnings.
    """
    modules = ["numba.core.errors", "numba.cuda.core.errors"]
    found = [importlib.import_module(name) for name in modules if _exists(name)]
    errors = tuple(module.NumbaError for module in found)
    with warnings.catch_warnings():
        for module in found:  # small batches do not fill a device
            warnings.simplefilter("ignore", module.NumbaPerformanceWarning)
        try:
            yield
        except errors as error:
            raise CudaCompilationError(f"numba does not compile {what}: {error}") from None


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of what it is in
        return False


def _missing() -> str | None:
    """Return what is missing for the use of a device, None if there is one."""
    if is_simulated():
        return None
    if importlib.util.find_spec("numba_cuda") is None:
        return "CUDA needs the package numba-cuda: pip install 'tapegrad[cuda]'"
    with whole_imports("numba.cuda"):
        from numba import cuda

    if cuda.is_available():
        return None
    reason = getattr(cuda, "cuda_error", lambda: None)() or "there is no device"
    return f"CUDA is not available: {' '.join(str(reason).split())}; it needs an NVIDIA driver"
