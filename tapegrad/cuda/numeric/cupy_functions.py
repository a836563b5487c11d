"""Functions of arrays on a device that CuPy computes: decompositions, transforms and others.

CuPy is optional, and imported on first call. It computes on the stream of our kernels, and shares
their memory.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.cuda.toolkit import is_simulated

# where CuPy has the functions of a module of NumPy or SciPy, by the beginning of its name
_MODULES = {
    "numpy.linalg": "cupy.linalg",
    "numpy.fft": "cupy.fft",
    "scipy.special": "cupyx.scipy.special",
}
INSTALL = "install CuPy, which computes it (pip install 'tapegrad[cupy]'), or use cpu()"


def is_installed() -> bool:
    """Whether CuPy is there, and can compute on the device."""
    return not is_simulated() and importlib.util.find_spec("cupy") is not None


def is_of_cupy(module: str) -> bool:
    """Whether the functions of a module are among those that CuPy may compute."""
    return _place(module) is not None


def function_of_cupy(module: str, name: str) -> Callable[..., Any] | None:
    """Return the function of arrays on a device with the name of one of NumPy or SciPy.

    Parameters
    ----------
    module
        The module of NumPy or SciPy, as ``"numpy.linalg"``.
    name
        The name of the function.

    Returns
    -------
    callable
        None if CuPy is not installed, or has no such function.
    """
    place = _place(module)
    if place is None or not is_installed():
        return None
    function = getattr(importlib.import_module(place), name, None)
    if function is None:
        return None
    errors = importlib.import_module("cupyx").errstate

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [*map(_given, args)]
        named = {k: _given(v) for k, v in kwargs.items()}
        with errors(linalg="raise"):  # singular matrices raise NumPy's LinAlgError
            try:
                found = function(*given, **named)
            except TypeError as error:  # it has fewer parameters than NumPy's, or fewer types
                raise TypeError(f"{error}; use cpu() to compute on the host") from None
        return tuple(map(_returned, found)) if isinstance(found, tuple) else _returned(found)

    return call


def _place(module: str) -> str | None:
    return next((ours for known, ours in _MODULES.items() if module.startswith(known)), None)


class _Shown:
    """An array for CuPy, which only reads it."""

    def __init__(self, array: DeviceArray) -> None:
        self.__cuda_array_interface__ = array.interface()


def _given(value: Any) -> Any:
    """Return an argument as CuPy takes it."""
    cupy = importlib.import_module("cupy")
    if isinstance(value, DeviceArray):
        return cupy.asarray(_Shown(value))
    return cupy.asarray(value) if isinstance(value, np.ndarray) and value.ndim else value


def _returned(value: Any) -> Any:
    """Return a result of CuPy, whose memory nothing else writes to."""
    if not hasattr(value, "__cuda_array_interface__"):
        return value
    array = DeviceArray.of_interface(value)
    array.memory.is_shared = False
    return array
