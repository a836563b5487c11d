"""Tensors on a device: making them, moving them, and sharing their memory.

A tensor on a device has a `DeviceArray` where others have an array of NumPy; everything else is the
same code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.cuda import dlpack
from tapegrad.cuda.array import HOST, NAME, DeviceArray, device_of, on_device_named
from tapegrad.cuda.toolkit import require
from tapegrad.eager.dispatch import apply_op, passive
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import Traced
from tapegrad.imports import whole_imports
from tapegrad.ops.devices import moved


def device_named(device: Any) -> str:
    """Return the full name of a device, after checking that it can be used.

    Raises
    ------
    ValueError
        If there is no such device.
    CudaUnavailableError
        If there is no CUDA device that can be used.
    """
    name = str(device)
    if name == HOST:
        return HOST
    if name in ("cuda", NAME):
        _start()
        return NAME
    raise ValueError(f"device {device!r}: tensors are on 'cpu' or on 'cuda', the first CUDA device")


def _start() -> None:
    """Make sure that there is a device, and that NumPy's functions compute on it."""
    require()
    with whole_imports("tapegrad.cuda.numeric.functions"):
        from tapegrad.cuda.numeric import functions

    functions.install()


def to_device(tensor: Tensor, device: Any) -> Tensor:
    """Return a tensor on a device: itself if it is there, else a copy, which is recorded."""
    name = device_named(device)
    if type(tensor) is Traced and tensor.device == name:
        return tensor
    source = device_of(tensor._a)
    return tensor if name == source else apply_op(moved, (tensor, name, source), {})


def to_cuda(self: Tensor, device: Any = None) -> Tensor:
    """Return the tensor on a CUDA device.

    Parameters
    ----------
    device
        None or 0, the first device, or its name.
    """
    return to_device(self, NAME if device is None or device == 0 else device)


def array_on(device: Any, array: Any) -> Any:
    """Return an array on a device, or where it is if `device` is None."""
    name = device_of(array) if device is None else device_named(device)
    return array if name == device_of(array) else on_device_named(name, array)


def to(
    self: Tensor,
    *args: Any,
    device: Any = None,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
) -> Tensor:
    """Return the tensor on another device, or with another dtype.

    The move is recorded, and the gradient moves back.

    Parameters
    ----------
    *args
        A device, a dtype, a device and a dtype, or a tensor that has both.
    device
        ``"cpu"`` or ``"cuda"``.
    dtype
        Type of the elements.
    non_blocking
        Accepted for compatibility, without effect: kernels run while the host goes on, and copies
        to the host wait for them.
    copy
        Return a copy even if nothing changes.

    Raises
    ------
    CudaUnavailableError
        If there is no CUDA device that can be used.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> x.to("cpu") is x
    True
    >>> x.to("float32").dtype
    dtype('float32')
    """
    for value in args:
        if isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, str) and value.startswith((HOST, "cuda")):
            device = value
        elif value is not None:
            dtype = np.dtype(value)
    result = self if device is None else to_device(self, device)
    if dtype is not None and result.dtype != dtype:
        result = result.astype(dtype)
    return result.clone() if copy and result is self else result


def shared(source: Any) -> Tensor:
    """Return a tensor on the memory of an object that has ``__cuda_array_interface__``."""
    _start()
    return passive(DeviceArray.of_interface(source))


def from_dlpack(source: Any) -> Tensor:
    """Return a tensor on the memory of an object with ``__dlpack__`` on a device."""
    _start()
    return passive(dlpack.array_of(source))


def interface(self: Tensor) -> dict[str, Any]:
    """The memory, for other libraries that compute on the device."""
    if type(self._a) is not DeviceArray:
        raise AttributeError(
            "Can't get __cuda_array_interface__ on non-CUDA tensor; use to('cuda') to move it to a "
            "device"
        )
    if self._own is not None:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on Variable that requires grad. If gradients "
            "aren't required, use var.detach() to get Variable that doesn't require grad."
        )
    return self._a.__cuda_array_interface__
