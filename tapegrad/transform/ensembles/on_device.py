"""A compiled function, or a derivative of one, for all items of a batch on a CUDA device.

Each thread computes one item. Items of arguments that are arrays, their gradients and the tapes lie
side by side, so that neighbouring threads read neighbouring elements. A tape that is too small ends
its thread: then all are launched again with larger ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from tapegrad.cuda.array import DeviceArray, contiguous, on_host
from tapegrad.cuda.array import is_array as is_array_value
from tapegrad.cuda.memory import POOL
from tapegrad.cuda.numeric import functions
from tapegrad.cuda.toolkit import CudaCompilationError, compiling, is_simulated, require
from tapegrad.kernels import native
from tapegrad.transform import frozen
from tapegrad.transform.base import Derivative
from tapegrad.transform.device.functions import DeviceFunctions
from tapegrad.transform.device.stand_ins import TOO_SHORT
from tapegrad.transform.ensembles.one_by_one import leaves_of
from tapegrad.transform.errors import TransformError
from tapegrad.transform.kinds import is_array

_THREADS = 128  # of a block
_FIRST = 64  # initial elements of a tape
_FAILED, _DONE = 0, 1  # how a thread ended
_SIMULATED_MEMORY = 1 << 28  # bytes, of a simulated device


def _on_device(array: Any) -> DeviceArray:
    """Return a contiguous array on the device."""
    if type(array) is DeviceArray:
        return contiguous(array)
    return DeviceArray.from_host(np.ascontiguousarray(array).reshape(array.shape))


def _for_numba(value: Any) -> Any:
    """Return an array of the device as numba takes it, and numbers unchanged."""
    return value.elements().reshape(value.shape) if type(value) is DeviceArray else value


class Kernel:
    """The function that is launched, for some types.

    Parameters
    ----------
    cuda
        The module `numba.cuda`.
    function
        The compiled function, or a derivative.
    kinds
        The numba types of its arguments, for one item.
    has_items
        Which arguments have items; all threads share the others.
    result
        The numba type of a result.
    """

    def __init__(
        self,
        cuda: Any,
        function: Any,
        kinds: tuple[Any, ...],
        has_items: Sequence[bool],
        result: Any,
    ) -> None:
        functions.install()
        self.cuda = cuda
        self.function = function
        self.has_items = has_items
        self.name = name = function.py_func.__name__
        code = function
        if isinstance(function, Derivative):
            code = function.implementation(kinds)
        else:
            frozen.check(function, kinds)  # the CPU has the same values of the names that it uses
        self.entry = DeviceFunctions(cuda, is_simulated()).entry(code.py_func, kinds)
        self.leaves = list(leaves_of(result, "found", name))
        self.returned = self.entry.returned
        if len(self.returned) != len(self.leaves):  # a name stands for several
            self.returned = [None] * len(self.leaves)
        for (_, kind), place in zip(self.leaves, self.returned, strict=True):
            if is_array(kind) and place is None:
                raise TransformError(
                    f"vmap: {name} returns an array that it makes, which a function on a device "
                    "cannot do; let it return numbers"
                )
        self.kinds = kinds
        self.like = [kinds[k] for k in self.entry.buffers]
        self.size = _FIRST  # elements of a tape
        text = self._text([getattr(kind, "ndim", 0) for kind in kinds])
        key = native.fingerprint(text.encode(), repr(id(self)).encode())
        made = native.execute(key, text, "over_items")
        made.update(cuda=cuda, entry=self.entry.run, FAILED=_FAILED, DONE=_DONE)
        made["one_item"] = cuda.jit(device=True)(made["one_item"])
        self.kernel = cuda.jit(made["over_items"])

    def __call__(self, size: int, *args: Any) -> list[Any]:
        """Return the leaves of the results of all items, on the device if an argument is."""
        require()  # once more: the process may be another one
        try:
            return self._results(size, args)
        except MemoryError as error:
            raise MemoryError(
                f"vmap: there is no memory on the device for {size} items of {self.name}; give it "
                f"fewer at a time ({error})"
            ) from None

    def _results(self, size: int, args: tuple[Any, ...]) -> list[Any]:
        stays = any(type(a) is DeviceArray for a in args)
        inputs = [
            _on_device(np.moveaxis(a, 0, -1) if many else a) if is_array_value(a) else a
            for a, many in zip(args, self.has_items, strict=True)
        ]
        buffers: list[Any] = [
            DeviceArray.empty(
                (*args[k].shape[1 if self.has_items[k] else 0 :], size), as_dtype(kind.dtype)
            )
            for k, kind in zip(self.entry.buffers, self.like, strict=True)
        ]
        numbers = [kind for _, kind in self.leaves if not is_array(kind)]
        outputs = [DeviceArray.empty((size,), as_dtype(types.unliteral(kind))) for kind in numbers]
        first = 0
        while first < size:
            first += self._launch(first, size, [*inputs, *outputs, *buffers], args)
        found = iter(outputs)
        results = [
            next(found) if place is None else np.moveaxis(buffers[place], -1, 0).alone()
            for place in self.returned
        ]
        return results if stays else [result.to_host() for result in results]

    def signature(self) -> tuple[Any, ...]:
        """Return the numba types of the arguments of the kernel."""
        given = [
            self._of_items(kind) if many else kind
            for kind, many in zip(self.kinds, self.has_items, strict=True)
        ]
        outputs = [self._of_items(kind) for _, kind in self.leaves if not is_array(kind)]
        buffers = [self._of_items(kind) for kind in self.like]
        tapes, ends = types.Array(types.float64, 2, "C"), types.Array(types.int8, 1, "C")
        return (types.int64, types.int64, *given, *outputs, *buffers, tapes, ends)

    @staticmethod
    def _of_items(kind: Any) -> Any:
        """Return the type of an array with items along its last axis."""
        kind = types.unliteral(kind)
        return types.Array(getattr(kind, "dtype", kind), getattr(kind, "ndim", 0) + 1, "C")

    def _text(self, dimensions: list[int]) -> str:
        """Return the text of the kernel, and of the function that computes an item.

        A thread that raises an error leaves the latter before it stores that it is done; what a
        kernel does after an error is undefined.
        """
        arguments = [f"a{k}" for k in range(len(dimensions))]
        buffers = [f"b{k}" for k in range(len(self.like))]
        numbers = [place for (place, kind) in self.leaves if not is_array(kind)]
        outputs = [f"out_{k}" for k in range(len(numbers))]
        given = [
            f"{a}[{':, ' * ndim}item]" if many else a
            for a, ndim, many in zip(arguments, dimensions, self.has_items, strict=True)
        ]
        given += [
            f"{b}[{':, ' * kind.ndim}item]" for b, kind in zip(buffers, self.like, strict=True)
        ]
        given += ["tapes[:, thread]"] if self.entry.has_tape else []
        arrays = ", ".join([*arguments, *outputs, *buffers, "tapes", "ends"])
        lines = [
            f"def one_item(thread, item, {arrays}):",
            "    ends[thread] = FAILED",
            "    tapes[1, thread] = 0.0",
        ]
        for buffer, kind in zip(buffers, self.like, strict=True):
            indices = [f"i{k}" for k in range(kind.ndim)]
            for k, index in enumerate(indices):
                lines.append(f"{'    ' * (1 + k)}for {index} in range({buffer}.shape[{k}]):")
            place = ", ".join([*indices, "item"])
            lines.append(f"{'    ' * (1 + kind.ndim)}{buffer}[{place}] = 0.0")
        lines.append(f"    found = entry({', '.join(given)})")
        lines += [f"    {o}[item] = {place}" for o, place in zip(outputs, numbers, strict=True)]
        lines += [
            "    ends[thread] = DONE",
            f"def over_items(first, count, {arrays}):",
            "    thread = cuda.grid(1)",
            "    if thread < count:",
            f"        one_item(thread, first + thread, {arrays})",
        ]
        return "\n".join(lines) + "\n"

    def _launch(self, first: int, size: int, arrays: list[Any], args: tuple[Any, ...]) -> int:
        """Compute some items; return how many."""
        while True:
            count = self._at_once(size - first)
            height = self.size if self.entry.has_tape else 2
            tapes = DeviceArray.empty((height, count), np.dtype(np.float64))
            ends = DeviceArray.empty((count,), np.dtype(np.int8))
            given = [_for_numba(a) for a in (*arrays, tapes, ends)]
            with np.errstate(all="ignore"):
                self._run(-(-count // _THREADS), first, count, *given)
            failed = np.flatnonzero(ends.to_host() == _FAILED)
            if not failed.size:
                return count
            needed, mark = tapes[:2].to_host()[:, failed]
            if not (mark == TOO_SHORT).any():
                self._fail(first + failed, args)
            # a later allocation of the thread may ask for more
            self.size = max(int(needed[mark == TOO_SHORT].max()), self.size + self.size // 2)

    def _run(self, blocks: int, *args: Any) -> None:
        """Launch the kernel."""
        try:
            with compiling(f"{self.name} for a device"):
                self.kernel[blocks, _THREADS](*args)
        except CudaCompilationError as error:
            raise TransformError(f"vmap: {error}") from None
        except Exception:
            if not is_simulated():  # where threads raise errors; on a device they just end
                raise

    def _at_once(self, items: int) -> int:
        """Return how many threads have room for their tapes."""
        limit = _SIMULATED_MEMORY if is_simulated() else self._free() // 2
        count = min(items, limit // (8 * self.size))
        if count < 1:
            raise MemoryError(
                f"vmap: there is no memory on the device for a tape of {8 * self.size} bytes, "
                f"which {self.name} needs for one item"
            )
        return count if count < _THREADS else count // _THREADS * _THREADS

    def _free(self) -> int:
        return int(self.cuda.current_context().get_memory_info().free) + POOL.nbytes

    def _fail(self, items: np.ndarray, args: tuple[Any, ...]) -> None:
        """Raise the error of one of some items."""
        for item in items:
            pairs = zip(args, self.has_items, strict=True)
            self.function(*(on_host(a[item] if many else a) for a, many in pairs))
        raise RuntimeError(
            f"vmap: {self.name} raised an error for item {items[0]} on the device, but not on the "
            "CPU"
        )
