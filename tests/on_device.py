"""A plugin of pytest: tests make their tensors on a CUDA device.

``pytest tests/autograd --device cuda`` runs the tests of the contract with tensors on the device
that numba simulates, or on a real one. What a test reads as an array is copied to the host.
"""

import tapegrad as tg
from tapegrad.eager import creation

MADE = [
    "tensor", "array", "arange", "empty", "eye", "full", "identity", "linspace", "logspace", "ones",
    "tri", "zeros",
]  # fmt: skip


def _made_on_device(make):
    def function(*args, device="cuda", **kwargs):
        return make(*args, device=device, **kwargs)

    return function


def _read_by_host(numpy):
    def function(tensor):
        return numpy(tensor if tensor.device == "cpu" or tensor.requires_grad else tensor.cpu())

    return function


def pytest_configure(config):
    for name in MADE:
        setattr(tg, name, _made_on_device(creation.CREATION[name]))
    tg.Tensor.numpy = _read_by_host(tg.Tensor.numpy)
