"""What takes the place of functions that generated code calls, on a device.

The tape of a thread is a column of an array. A thread that needs a longer one ends, and leaves how
long at the beginning of the tape, followed by `TOO_SHORT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.transform.runtime import INFINITESIMAL, NEGLIGIBLE

TOO_SHORT = -2.718281828459045e-299  # what no computation is expected to yield


def product(x: Any, y: Any) -> Any:
    """Return ``x * y`` as `runtime.product` does."""
    return 0.0 if x == 0.0 else (0.0 if abs(x) < NEGLIGIBLE else x) * y


def nonzero(partial: Any) -> Any:
    """Return a partial as `runtime.nonzero` does."""
    return INFINITESIMAL if partial == 0.0 else partial


def settled(partial: Any, divisor: Any) -> Any:
    """Return a partial as `runtime.settled` does."""
    return 0.0 if abs(partial) == math.inf and divisor != 0.0 else partial


def moved(tangent: Any, other: Any) -> Any:
    """Return a tangent as `runtime.moved` does."""
    return INFINITESIMAL if tangent == 0.0 and other != 0.0 else tangent


def inverse(value: Any) -> Any:
    """Return ``1 / value``."""
    return np.float64(1.0) / value


def quotient(x: Any, y: Any) -> Any:
    """Return ``x / y``."""
    return np.float64(x) / y


def plus(total: Any, term: Any) -> Any:
    """Return ``total + term``."""
    return total + term


def check_length(tape: Any, needed: Any, parts: Any) -> None:
    """End the thread if its tape, or one of several parts of it, is shorter than needed."""
    if needed > tape.size:
        tape[0] = needed * parts
        tape[1] = TOO_SHORT
        raise MemoryError


def give_tape(tape: Any) -> None:
    """Do nothing: the tape belongs to the launch."""


def stop_gradient(x: Any) -> Any:
    """Return `x`."""
    return x


def as_float(x: Any) -> Any:
    """Return a number as a float."""
    return float(x)


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return one of two numbers."""
    return x if condition else y


def _sign(x: Any) -> Any:
    return x if x != x else (1.0 if x > 0.0 else -1.0 if x < 0.0 else 0.0)


def _logaddexp(x: Any, y: Any) -> Any:
    if x == y:
        return x + 0.6931471805599453
    return max(x, y) + math.log1p(math.exp(-abs(x - y)))


_UFUNCS: dict[str, Callable[..., Any]] = {
    **{n: getattr(math, n) for n in ("copysign", "exp", "expm1", "fabs", "fmod", "isfinite")},
    **{n: getattr(math, n) for n in ("isinf", "log1p", "sqrt")},
    "absolute": lambda x: abs(x),
    "add": lambda x, y: x + y,
    "float_power": lambda x, y: float(x) ** float(y),
    "floor_divide": lambda x, y: x // y,
    "logaddexp": _logaddexp,
    "multiply": lambda x, y: x * y,
    "negative": lambda x: -x,
    "positive": lambda x: x,
    "power": lambda x, y: x**y,
    "reciprocal": lambda x: 1.0 / x,
    "remainder": lambda x, y: x % y,
    "sign": _sign,
    "square": lambda x: x * x,
    "subtract": lambda x, y: x - y,
}
_OF_LIBDEVICE = ("cbrt", "ceil", "exp2", "floor", "rint", "trunc")


def ufuncs(cuda: Any, known: Any) -> dict[Any, Callable[..., Any]]:
    """Return what stands for NumPy's functions that numba does not know on a device."""
    found = {getattr(np, name): function for name, function in _UFUNCS.items()}
    found |= {getattr(np, name): _calling(getattr(cuda.libdevice, name)) for name in _OF_LIBDEVICE}
    return {ufunc: function for ufunc, function in found.items() if ufunc not in known}


def _calling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a Python function that calls one that numba knows.

    The latter has a body in Python as well, which returns None.
    """
    return lambda x: function(x)


def bits(cuda: Any, is_simulated: bool) -> dict[str, Callable[..., Any]]:
    """Return what stands for the conversions between integers and floats of the same bits."""
    if is_simulated:
        return {
            "to_bits": lambda value: np.int64(value).view(np.float64),
            "from_bits": lambda value: np.float64(value).view(np.int64),
        }
    to_float, to_integer = cuda.libdevice.longlong_as_double, cuda.libdevice.double_as_longlong

    def to_bits(value: Any) -> Any:
        return to_float(np.int64(value))

    def from_bits(value: Any) -> Any:
        return to_integer(value)

    return {"to_bits": to_bits, "from_bits": from_bits}


RUNTIME = {
    f.__name__: f for f in (product, nonzero, settled, moved, inverse, quotient, plus, give_tape)
}
