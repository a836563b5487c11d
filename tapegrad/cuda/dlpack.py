"""Memory of a device for other libraries, and theirs for us, by the protocol DLPack.

Structures and names are those of ``dlpack.h``, version 0.8, whose capsules all libraries accept
(https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, row_major
from tapegrad.cuda.toolkit import is_simulated, uses_stream_of_thread
from tapegrad.kernels import native
from tapegrad.kernels.sources import sources

CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_NAME, _USED = b"dltensor", b"used_dltensor"
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}
_LEGACY_STREAM, _STREAM_OF_THREAD = 1, 2


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """A tensor, and the function that its user calls in the end."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_python = ctypes.pythonapi
_make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _python)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)
_set_context = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_SetContext", _python)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_SetName", _python)
)

# what other libraries use, by the address of the structure
_lent: dict[int, tuple[Any, ...]] = {}


@_Deleter
def _give_back(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


@functools.cache
def _forget() -> int:
    """Return the address of the function that capsules call last, which is compiled on first use.

    Capsules may be deleted when the process ends.
    """
    native.keep_forever()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_lent))
    text = b"".join(sources("cuda/capsules.py", "kernels/intrinsics.py"))
    return native.compiled("tapegrad.cuda.capsules", "forget", "void", 1, text)


def capsule(array: DeviceArray, stream: Any = None, **kwargs: Any) -> Any:
    """Return a capsule with the memory of an array.

    Parameters
    ----------
    array
        The array.
    stream
        The stream on which the memory will be used; work on it waits for what was asked of the
        device before.
    **kwargs
        What else the protocol has: `max_version` has no effect, `dl_device` must be that of the
        array, and `copy` tells whether to copy.

    Raises
    ------
    BufferError
        If the array cannot be lent in this way.
    """
    if kwargs.get("dl_device") not in (None, (CUDA[0], 0)):
        raise BufferError("a tensor on a device is lent on that device only; use cpu() for a copy")
    if kwargs.get("copy"):
        array = array.copy()
    if not array.writeable:
        raise BufferError("the tensor is read-only, which DLPack cannot tell; lend a copy")
    if is_simulated():
        raise BufferError("a simulated device has no memory that other libraries could use")
    address = array.__cuda_array_interface__["data"][0]
    if stream not in (None, -1, _LEGACY_STREAM) or uses_stream_of_thread():
        from numba import cuda

        cuda.default_stream().synchronize()
    return lend(array, address, CUDA[0])


def lend(array: Any, address: int, device: int) -> Any:
    """Return a capsule with the memory of an array at an address.

    Parameters
    ----------
    array
        The array, which is kept alive until the memory is given back.
    address
        Of its first element.
    device
        Number of the kind of device.
    """
    numbers = ctypes.c_int64 * array.ndim
    shape = numbers(*array.shape)
    strides = numbers(*(stride // array.dtype.itemsize for stride in array.strides))
    managed = _Managed(
        _Tensor(
            address, _Device(device, 0), array.ndim,
            _Type(_CODES[array.dtype.kind], 8 * array.dtype.itemsize, 1), shape, strides, 0,
        ),
        None,
        _give_back,
    )  # fmt: skip
    place = ctypes.addressof(managed)
    _lent[place] = managed, array, shape, strides
    made = _make(place, _NAME, _forget())
    _set_context(id(made), id(_lent))
    return made


def array_of(source: Any) -> DeviceArray:
    """Return an array on the memory of an object with ``__dlpack__`` on a device."""
    stream = _STREAM_OF_THREAD if uses_stream_of_thread() else _LEGACY_STREAM
    return taken(source.__dlpack__(stream=stream), DeviceArray.at_address)


def taken(lent: Any, make: Callable[..., Any]) -> Any:
    """Return what a function makes of the memory in a capsule.

    Parameters
    ----------
    lent
        The capsule.
    make
        Called with the address of the first element, the shape, the strides in bytes, the dtype,
        and an object after whose end the memory is given back.
    """
    if not _is_valid(id(lent), _NAME):
        raise BufferError("the capsule has no tensor, or its memory was taken before")
    managed = _Managed.from_address(_pointer(id(lent), _NAME) or 0)
    tensor = managed.tensor
    kind, lanes = _KINDS.get(tensor.dtype.code), tensor.dtype.lanes
    if kind is None or lanes != 1:
        raise TypeError(f"there is no dtype for code {tensor.dtype.code} and {lanes} lanes")
    dtype = np.dtype(f"{kind}{tensor.dtype.bits // 8}")
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(dtype.itemsize * step for step in tensor.strides[: tensor.ndim])
    else:
        strides = row_major(shape, dtype.itemsize)
    owner = _Owner()
    made = make((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, owner)
    _rename(id(lent), _USED)
    deleter = ctypes.cast(managed.deleter, ctypes.c_void_p).value
    if deleter:
        weakref.finalize(owner, managed.deleter, ctypes.pointer(managed)).atexit = False
    return made


class _Owner:
    """What keeps memory of another library alive."""

    __slots__ = ("__weakref__",)
