"""Moving arrays between the host and a device."""

from __future__ import annotations

from typing import Any

from tapegrad.cuda.array import HOST, on_device_named
from tapegrad.ops.table.array_kinds import linear
from tapegrad.ops.table.op import internal


@internal
@linear(arrays=1)
def moved(x, device, source):
    """Return a copy of an array on another device; `source` is the one that it is on."""
    return on_device_named(device, x)


@moved.transpose("x")
def _(g, device, source):
    return moved(g, source, device)


@moved.batching
def _(x, device, source):
    return moved(x, device, source)


def on_device_of(x: Any, like: Any) -> Any:
    """Return an array on the device of another one."""
    device, source = getattr(like, "device", HOST), getattr(x, "device", HOST)
    return x if device == source else moved(x, device, source)
