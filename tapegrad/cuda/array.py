"""Arrays in the memory of a device.

A `DeviceArray` has what NumPy's arrays have: a shape, strides, views. Functions of NumPy that are
called with it compute on the device (`tapegrad.cuda.numeric.functions`); no element is copied to
the host unless that is asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.cuda.memory import POOL, Block, Memory, take
from tapegrad.cuda.recording import NOW
from tapegrad.cuda.toolkit import is_simulated, require

NAME = "cuda:0"
NO_NUMPY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
    "memory first."
)
_BYTES = np.dtype(np.uint8)

Array = Any  # an array of NumPy, or a `DeviceArray`


class Flags:
    """What NumPy's `flags` say of an array."""

    __slots__ = ("_array",)

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    @property
    def c_contiguous(self) -> bool:
        """Whether the elements lie in row-major order, without gaps."""
        return self._array.is_contiguous

    @property
    def owndata(self) -> bool:
        """Whether the array is not a view."""
        return self._array.base is None

    @property
    def writeable(self) -> bool:
        """Whether the elements may be written to."""
        return self._array.writeable

    @writeable.setter
    def writeable(self, value: bool) -> None:
        self._array.writeable = value


class DeviceArray:
    """An array in the memory of a device.

    Parameters
    ----------
    memory
        Where its elements are; None if they are not computed yet.
    shape, strides, dtype
        As for NumPy's arrays; strides are in bytes.
    offset
        Of the first element, in bytes.
    base
        The array that it is a view of.
    writeable
        Whether the elements may be written to.

    Attributes
    ----------
    expression
        What its elements are, if they are not computed yet.
    """

    __slots__ = (
        "__weakref__", "_memory", "base", "dtype", "expression", "offset", "shape", "strides",
        "writeable",
    )  # fmt: skip
    __array_priority__ = 500

    def __init__(
        self,
        memory: Memory | None,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype,
        offset: int = 0,
        base: DeviceArray | None = None,
        writeable: bool = True,
    ) -> None:
        self._memory = memory
        self.expression: Any = None
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.offset = offset
        self.base = base
        self.writeable = writeable

    @property
    def memory(self) -> Memory:
        """Where its elements are; they are computed if they are not yet."""
        expression = self.expression  # another thread may compute it meanwhile
        if self._memory is None and expression is not None:
            expression.compute()
        return self._memory

    def hold(self, memory: Memory) -> None:
        """Note where the elements are, once they are computed."""
        self._memory = memory
        self.expression = None

    # -- making and copying -----------------------------------------------------------------------

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """Return a new array whose elements are undefined."""
        nbytes = math.prod(shape) * dtype.itemsize
        return cls(take(nbytes), shape, row_major(shape, dtype.itemsize), dtype)

    @classmethod
    def without_memory(cls, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """Return a new array whose elements are not computed yet."""
        return cls(None, shape, row_major(shape, dtype.itemsize), dtype)

    @classmethod
    def from_host(cls, array: np.ndarray) -> DeviceArray:
        """Return a copy of an array of the host on the device."""
        check_dtype(array.dtype)
        shape, dtype = array.shape, array.dtype.newbyteorder("=")
        # kernels of a recording do not write to it, so it is never a block of their pool
        made = cls(POOL.take(array.nbytes), shape, row_major(shape, dtype.itemsize), dtype)
        if (recording := NOW.get()) is not None:
            recording.keep(made.memory)
        if array.size:
            elements = np.ascontiguousarray(array, made.dtype).reshape(-1)
            made.elements().copy_to_device(elements)
        return made

    def to_host(self, pinned: bool = False) -> np.ndarray:
        """Return a copy in the memory of the host; waits for the kernels that compute it.

        With `pinned`, in pages that the device can copy at full speed.
        """
        if not self.size:
            return np.empty(self.shape, self.dtype)
        if (recording := NOW.get()) is not None:
            recording.refuse("the host reads values")
        packed = self if self.is_contiguous else self.copy()
        target = require().pinned_array(self.size, self.dtype) if pinned else None
        return packed.elements().copy_to_host(target).reshape(self.shape)

    def elements(self) -> Any:
        """Return the elements of a contiguous array, as a flat array of numba."""
        first = self.offset // self.dtype.itemsize
        return self.memory.block.of(self.dtype)[first : first + self.size]

    # set by `tapegrad.cuda.numeric.functions.install`
    astype: Callable[..., DeviceArray]
    constant: Callable[..., DeviceArray]
    copy: Callable[..., DeviceArray]
    mapped: Callable[..., DeviceArray]
    reshape: Callable[..., DeviceArray]
    sum_of: Callable[..., DeviceArray]
    times_partial: Callable[..., DeviceArray]
    __getitem__: Callable[..., DeviceArray]
    __setitem__: Callable[..., None]

    # -- attributes -------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order, without gaps."""
        expected = self.dtype.itemsize
        for dim, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if dim != 1 and stride != expected:
                return self.size == 0
            expected *= dim
        return True

    @property
    def flags(self) -> Flags:
        """What NumPy's `flags` say."""
        return Flags(self)

    @property
    def device(self) -> str:
        """Name of the device."""
        return NAME

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({np.array2string(self.to_host(), separator=', ')}, device={NAME!r})"

    # -- views ------------------------------------------------------------------------------------

    def viewed(self, view: Callable[[np.ndarray], np.ndarray]) -> DeviceArray:
        """Return the view that a function returns for an array of NumPy with this layout.

        The function must return a view. It is called with an array that has no elements to read.
        """
        stand_in = np.lib.stride_tricks.as_strided(
            np.empty(1, self.dtype), self.shape, self.strides, writeable=self.writeable
        )
        shown = view(stand_in)
        base: Any = shown
        while isinstance(base, np.ndarray) and base is not stand_in:
            base = base.base
        if base is not stand_in and base is not stand_in.base:
            raise IndexError("only integers, slices, None, Ellipsis, and arrays are valid indices")
        return DeviceArray(
            self.memory,
            shown.shape,
            shown.strides,
            shown.dtype,
            self.offset + _address(shown) - _address(stand_in),
            self if self.base is None else self.base,
            shown.flags.writeable and self.writeable,
        )

    def view(self, dtype: Any = None) -> DeviceArray:
        """Return a view of all elements, or of their memory as another type."""
        return self.viewed(lambda array: array if dtype is None else array.view(dtype))

    def alone(self) -> DeviceArray:
        """Return an array on the same memory that is no view of this one."""
        return DeviceArray(
            self.memory, self.shape, self.strides, self.dtype, self.offset, None, self.writeable
        )

    # -- numbers ----------------------------------------------------------------------------------

    def item(self, *index: Any) -> Any:
        """Return one element as a Python number, copied to the host."""
        chosen = self
        if index:
            place = index[0] if isinstance(index[0], tuple) else index
            if len(place) == 1:
                at = place[0] + self.size if place[0] < 0 else place[0]
                if not 0 <= at < self.size:
                    raise IndexError(f"index {place[0]} is out of bounds for size {self.size}")
                place = np.unravel_index(at, self.shape)
            chosen = self.viewed(lambda array: array[(*place, ...)])
        if chosen.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return chosen.to_host().item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers, copied to the host."""
        return self.to_host().tolist()

    def __bool__(self) -> bool:
        return bool(self.to_host())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        return self.to_host().__index__()

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError(NO_NUMPY)

    # -- other libraries --------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory, for other libraries that compute on the device, and may write to it."""
        found = self.interface()
        self.memory.share()
        return found

    def interface(self) -> dict[str, Any]:
        """Return where the elements are, for other libraries that compute on the device."""
        if is_simulated():
            raise AttributeError("a simulated device has no memory of its own")
        if (recording := NOW.get()) is not None:
            recording.refuse("another library computes a value")
        first = self.memory.block.address if self.size else 0
        return {
            "shape": self.shape,
            "strides": None if self.is_contiguous else self.strides,
            "typestr": self.dtype.str,
            "data": (first + self.offset if self.size else 0, not self.writeable),
            "version": 3,
        }

    @classmethod
    def of_interface(cls, source: Any) -> DeviceArray:
        """Return an array on the memory of an object that has ``__cuda_array_interface__``."""
        given = source.__cuda_array_interface__
        if given.get("mask") is not None:
            raise TypeError("tensors have no masks; give an array without one")
        dtype, shape = np.dtype(given["typestr"]), tuple(given["shape"])
        strides = given.get("strides") or row_major(shape, dtype.itemsize)
        start, is_read_only = given["data"]
        stream = given.get("stream")
        found = cls.at_address(start, shape, tuple(strides), dtype, source, stream)
        found.writeable = not is_read_only
        return found

    @classmethod
    def at_address(
        cls, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype,
        owner: Any, stream: Any = None,
    ) -> DeviceArray:  # fmt: skip
        """Return an array on the memory of somebody else.

        Parameters
        ----------
        address
            Of the first element.
        shape, strides, dtype
            As for NumPy's arrays; strides are in bytes.
        owner
            What keeps the memory alive.
        stream
            Number of the stream on which the elements are computed; None if they are.
        """
        check_dtype(dtype)
        if 0 in shape:
            return cls.empty(shape, dtype)
        ends = [(dim - 1) * stride for dim, stride in zip(shape, strides, strict=True)]
        before = -sum(end for end in ends if end < 0)  # bytes before the first element, ...
        after = sum(end for end in ends if end > 0) + dtype.itemsize  # ... and from it on
        span = _Span(address - before, before + after, stream)
        memory = Memory(Block(require().as_cuda_array(span)), None, owner)
        return cls(memory, shape, strides, dtype, before)


class _Span:
    """Bytes of the device, for numba."""

    def __init__(self, address: int, nbytes: int, stream: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "strides": None,
            "typestr": _BYTES.str,
            "data": (address, False),
            "version": 3,
            "stream": stream,
        }


HOST = "cpu"


def as_array(value: Any) -> Any:
    """Return an array, of the host or of a device, unchanged, and anything else as one of NumPy."""
    kind = type(value)
    return value if kind is np.ndarray or kind is DeviceArray else np.asarray(value)


def is_array(value: Any) -> bool:
    """Whether a value is an array of the host or of a device."""
    return isinstance(value, (np.ndarray, DeviceArray))


def contiguous(array: Any, dtype: Any = None) -> Any:
    """Return an array of the host or of a device with its elements in row-major order.

    It is a copy if that is needed. The shape is kept.
    """
    if type(array) is not DeviceArray:
        return np.ascontiguousarray(array, dtype).reshape(array.shape)
    if dtype is not None and array.dtype != dtype:
        return array.astype(dtype)
    return array if array.is_contiguous else array.copy()


def device_of(value: Any) -> str:
    """Return the name of the device that an array is on."""
    return NAME if type(value) is DeviceArray else HOST


def on_host(value: Any) -> Any:
    """Return an array or number of a device as one of the host, and anything else unchanged."""
    return value.to_host()[()] if type(value) is DeviceArray else value


def on_device_named(device: str, array: Any) -> Any:
    """Return a copy of an array on a device."""
    if device == device_of(array):
        return array.copy()
    return DeviceArray.from_host(np.asarray(array)) if device != HOST else array.to_host()


def kind_of(array: Any) -> tuple[tuple[int, ...], np.dtype, str]:
    """Return the shape, dtype and device of an array."""
    return array.shape, array.dtype, device_of(array)


def filled(value: float, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
    """Return an array on a device with all elements equal."""
    if device == HOST:
        return np.full(shape, value, dtype)
    return DeviceArray.constant(value, shape, np.dtype(dtype))


def zeros(shape: tuple[int, ...], dtype: Any, device: str) -> Any:
    """Return an array of zeros on a device."""
    return np.zeros(shape, dtype) if device == HOST else filled(0, shape, dtype, device)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@functools.lru_cache(1024)
def row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a contiguous array."""
    strides = []
    for dim in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(dim, 1)
    return tuple(reversed(strides))


def check_dtype(dtype: np.dtype) -> None:
    """Raise if the device has no arrays of a type."""
    if dtype.kind not in "biufc" or dtype.itemsize > 16 or dtype == np.float16:
        raise TypeError(f"there are no arrays of dtype {dtype} on a device; convert with astype")
