"""CUDA devices, through `numba.cuda`.

Tensors with ``device="cuda"`` are in the memory of a device, and ops on them are computed there.
`tapegrad.vmap` with ``target="cuda"`` computes a compiled function, or a derivative of one, for all
items of a batch on a device. Both need ``pip install 'tapegrad[cuda]'`` and an NVIDIA driver;
without them every name here exists and says what is missing.
"""

from tapegrad.cuda.memory import empty_cache as empty_cache
from tapegrad.cuda.memory import synchronize as synchronize
from tapegrad.cuda.toolkit import CudaUnavailableError as CudaUnavailableError
from tapegrad.cuda.toolkit import DeviceInfo as DeviceInfo
from tapegrad.cuda.toolkit import device_info as device_info
from tapegrad.cuda.toolkit import is_available as is_available

__all__ = [
    "CudaUnavailableError", "DeviceInfo", "device_info", "empty_cache", "is_available",
    "synchronize",
]  # fmt: skip
