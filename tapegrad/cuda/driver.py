"""Compiled kernels, started by the driver: one at a time, or many as a graph.

numba compiles kernels. Its own launch takes long on the host, most of it for arguments whose kinds
it looks up in each call; here they are packed by a format that is made once. A graph starts
all kernels that were noted, with their arguments, in one call of the driver.
"""

from __future__ import annotations

import functools
import importlib
import struct
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.toolkit import is_simulated, require, uses_stream_of_thread
from tapegrad.forks import object_lock

# Formats of module `struct`. Every parameter of a kernel has 8 bytes here; the driver reads as many
# of them as the parameter has, from the first on.
_FORMATS = {
    "bool": "?7x", "int8": "b7x", "int16": "h6x", "int32": "i4x", "int64": "q",
    "uint8": "B7x", "uint16": "H6x", "uint32": "I4x", "uint64": "Q",
    "float32": "f4x", "float64": "d", "complex64": "f4xf4x", "complex128": "dd",
}  # fmt: skip
# numba's structure for an array along one axis: owner, parent, size, size of an element, address,
# shape, strides
_OF_ARRAY = "QQqqQqq"

Launch = tuple["Entry", Any, Any, Sequence[Any]]  # with grid, block and arguments

_thread = threading.local()


class Entry:
    """A compiled kernel, as the driver knows it.

    Parameters
    ----------
    function
        Its handle.
    kinds
        The types of its arguments: NumPy's names of types of numbers, and None for arrays.
    """

    __slots__ = ("_addresses", "_format", "_function", "_kinds", "_lock", "_packed", "_places")

    def __init__(self, function: Any, kinds: Sequence[str | None]) -> None:
        self._function = function
        self._kinds = kinds
        parts = [_OF_ARRAY if kind is None else _FORMATS[kind] for kind in kinds]
        self._format = struct.Struct("=" + "".join(parts))
        self._packed = np.zeros(self._format.size // 8, np.uint64)
        # where the driver finds the parameters
        self._places = self._packed.ctypes.data + 8 * np.arange(self._packed.size, dtype=np.uint64)
        self._addresses = self._places.ctypes.data
        self._lock = object_lock()

    @classmethod
    def of(cls, dispatcher: Any) -> Entry | None:
        """Return the kernel that numba compiled; None if only numba can start it."""
        if is_simulated() or uses_stream_of_thread():
            return None
        try:
            (kernel,) = dispatcher.overloads.values()
            handle = kernel._codelibrary.get_cufunc().handle
            kinds = [*map(_kind_of, kernel.argument_types)]
        except (AttributeError, KeyError, ValueError):  # another version of numba-cuda
            return None
        return cls(_driver().CUfunction(int(handle)), kinds)

    @property
    def format(self) -> str:
        """The format of its parameters."""
        return self._format.format

    def start(self, grid: Any, block: Any, args: Sequence[Any], stream: Any = 0) -> None:
        """Start it.

        Parameters
        ----------
        grid, block
            Numbers of blocks and of threads, along up to three axes.
        args
            Numbers and `Elements`.
        stream
            Where it runs.
        """
        values: list[Any] = []
        for arg, kind in zip(args, self._kinds, strict=True):
            if kind is None:
                size, itemsize = arg.size, arg.dtype.itemsize
                values += 0, 0, size, itemsize, arg.address, size, itemsize
            elif kind[0] == "c":
                values += arg.real, arg.imag
            else:
                values.append(arg)
        _use_context()
        with self._lock:  # the driver copies the arguments
            self._format.pack_into(self._packed.data, 0, *values)
            found = _driver().cuLaunchKernel(
                self._function, *_axes(grid), *_axes(block), 0, stream, self._addresses, 0
            )
        _result(found, "start a kernel")


class Graph:
    """Kernels that the driver starts together, in order.

    Parameters
    ----------
    launches
        The kernels, with their arguments.
    """

    __slots__ = ("__weakref__", "_executable")

    def __init__(self, launches: Sequence[Launch]) -> None:
        driver = _driver()
        _use_context()
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING  # others may use the default stream
        stream = _result(driver.cuStreamCreate(flags), "make a stream")
        try:
            graph = _captured(launches, stream)
        finally:
            driver.cuStreamDestroy(stream)
        self._executable = _result(driver.cuGraphInstantiate(graph, 0), "make a graph")
        driver.cuGraphDestroy(graph)
        weakref.finalize(self, driver.cuGraphExecDestroy, self._executable).atexit = False

    def start(self) -> None:
        """Start the kernels."""
        _use_context()
        _result(_driver().cuGraphLaunch(self._executable, 0), "start a graph")


def _captured(launches: Sequence[Launch], stream: Any) -> Any:
    """Return a graph of kernels; none of them runs."""
    driver = _driver()
    # memory of arrays that are no longer used may be freed meanwhile
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _result(driver.cuStreamBeginCapture(stream, mode), "note kernels")
    try:
        for entry, grid, block, args in launches:
            entry.start(grid, block, args, stream)
    finally:
        found = driver.cuStreamEndCapture(stream)
    return _result(found, "note kernels")


def _kind_of(kind: Any) -> str | None:
    """Return the name of a type of numba; None for arrays along one axis."""
    if hasattr(kind, "ndim"):
        if kind.ndim != 1:
            raise ValueError(kind)
        return None
    name = str(kind)
    _ = _FORMATS[name]
    return name


def _axes(counts: Any) -> tuple[int, int, int]:
    if not isinstance(counts, tuple):
        return counts, 1, 1
    x, y, z = (*counts, 1, 1)[:3]
    return x, y, z


@functools.cache
def _driver() -> Any:
    return importlib.import_module("cuda.bindings.driver")


def _use_context() -> None:
    """Make the context of the device that of the thread."""
    if not hasattr(_thread, "context"):
        _thread.context = require().current_context()


def _result(found: tuple[Any, ...], what: str) -> Any:
    """Return what the driver returned.

    Raises
    ------
    RuntimeError
        If it did not do what it was told; the error may be of a kernel that was started before.
    """
    status, *values = found
    if int(status):
        raise RuntimeError(f"the driver did not {what}: {getattr(status, 'name', status)}")
    return values[0] if values else None
