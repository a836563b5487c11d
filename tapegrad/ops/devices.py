"""Moving arrays between the host and a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.cuda.array import HOST, DeviceArray, device_of
from tapegrad.ops.array_kinds import linear
from tapegrad.ops.op import internal


@internal
@linear(arrays=1)
def moved(x, device, source):
    """Return a copy of an array on another device; `source` is the one that it is on."""
    if device == device_of(x):
        return x.copy()
    return DeviceArray.from_host(np.asarray(x)) if device != HOST else x.to_host()


@moved.transpose("x")
def _(g, device, source):
    return moved(g, source, device)


@moved.batching
def _(x, device, source):
    return moved(x, device, source)


def on_device_of(x: Any, like: Any) -> Any:
    """Return an array on the device of another one."""
    device, source = device_of(like), device_of(getattr(x, "_a", x))
    return x if device == source else moved(x, device, source)
