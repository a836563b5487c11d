"""What to write where a tensor that requires grad cannot go: texts of errors."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

import numpy as np

from tapegrad.eager.lines import is_own_file
from tapegrad.eager.numeric import NAMESPACES
from tapegrad.eager.tensor import NO_NUMPY

# ufuncs of scipy.special that are other functions of tensors, by the names of their arguments
OF_SCIPY = {
    "betaincc": ("a, b, x", "1.0 - tg.special.betainc(a, b, x)"),
    "boxcox": ("x, p", "tg.expm1(p * tg.log(x)) / p"),
    "boxcox1p": ("x, p", "tg.expm1(p * tg.log1p(x)) / p"),
    "cosdg": ("x", "tg.cos(tg.deg2rad(x))"),
    "cosm1": ("x", "-2.0 * tg.sin(0.5 * x) ** 2"),
    "exp10": ("x", "10.0**x"),
    "exprel": ("x", "tg.expm1(x) / x"),
    "inv_boxcox": ("x, p", "tg.exp(tg.log1p(p * x) / p)"),
    "k0": ("x", "tg.special.kv(0, x)"),
    "k1": ("x", "tg.special.kv(1, x)"),
    "kl_div": ("x, y", "tg.special.rel_entr(x, y) - x + y"),
    "kn": ("n, x", "tg.special.kv(n, x)"),
    "log_expit": ("x", "-tg.softplus(-x)"),
    "poch": ("x, m", "tg.exp(tg.special.gammaln(x + m) - tg.special.gammaln(x))"),
    "powm1": ("x, y", "tg.expm1(y * tg.log(x))"),
    "pseudo_huber": ("d, x", "d**2 * (tg.sqrt(1.0 + (x / d) ** 2) - 1.0)"),
    "rgamma": ("x", "1.0 / tg.special.gamma(x)"),
    "sindg": ("x", "tg.sin(tg.deg2rad(x))"),
    "tandg": ("x", "tg.tan(tg.deg2rad(x))"),
    "y0": ("x", "tg.special.yv(0, x)"),
    "y1": ("x", "tg.special.yv(1, x)"),
    "yn": ("n, x", "tg.special.yv(n, x)"),
}

_NO_DERIVATIVE = "it has no derivative in tapegrad: write it with other functions, as a tg.Function"
_OTHERS = {
    "pandas": "pandas computes with arrays: take those of the frame, as in df.to_numpy() @ t",
    "matplotlib": "matplotlib draws arrays: t.detach()",
}
_PACKAGES = ("site-packages", "dist-packages")


def of_ufunc(ufunc: Any) -> tuple[str, str]:
    """Return the full name of a ufunc without a derivative, and what to write in its place."""
    name = ufunc.__name__
    special = sys.modules.get("scipy.special")
    if getattr(np, name, None) is ufunc or not hasattr(special, name.lstrip("_")):
        return f"numpy.{name}", f"{_NO_DERIVATIVE}, or detach() first"
    name = name.lstrip("_")
    if name in OF_SCIPY:
        arguments, text = OF_SCIPY[name]
        return f"scipy.special.{name}", f"{name}({arguments}) is {text}"
    return f"scipy.special.{name}", f"{_NO_DERIVATIVE}, or detach() first"


def no_array(ndim: int, dtype: Any) -> str:
    """Return the text of the error for a tensor that requires grad as an array of NumPy.

    Parameters
    ----------
    ndim
        Its number of axes.
    dtype
        The dtype that is asked for, or None.
    """
    frame: FrameType | None = sys._getframe(1)
    of_numpy: list[FrameType] = []
    while frame and (is_own_file(frame.f_code.co_filename) or _package(frame) == "numpy"):
        if _package(frame) == "numpy":
            of_numpy.insert(0, frame)
        frame = frame.f_back
    if frame is None:
        return NO_NUMPY
    if of_numpy:
        return f"{NO_NUMPY} {_in_numpy(of_numpy)}"
    if not any(part in frame.f_code.co_filename for part in _PACKAGES):
        return f"{NO_NUMPY} {_in_own_code(frame, ndim, dtype)}"
    package = _package(frame)
    frames = []
    while frame is not None and _package(frame) == package:
        frames.append(frame)
        frame = frame.f_back
    return f"{NO_NUMPY} {_in_package(package, frames[::-1])}"


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__") or ""
    return name.partition(".")[0]


def _in_numpy(frames: list[FrameType]) -> str:
    """Return what to write in place of a function of NumPy that is written in Python."""
    if any(frame.f_locals.get("self") is one for one in (np.r_, np.c_) for frame in frames):
        return "np.r_ and np.c_ take arrays; for tensors there are tg.r_ and tg.c_."
    if any(frame.f_code is np.full.__code__ for frame in frames):
        return "np.full takes arrays; for tensors there is tg.full."
    names = [f"{module}.{name}" for frame in frames for module, name in _functions(frame)]
    return f"{names[0] if names else 'NumPy'} takes arrays: t.detach()."


def _in_own_code(frame: FrameType, ndim: int, dtype: Any) -> str:
    code = frame.f_code.co_code
    if dis.opname[code[frame.f_lasti]] in ("STORE_SUBSCR", "STORE_SLICE"):
        return "An array of NumPy has no history: write to tg.zeros(shape), or to tg.array(array)."
    if dtype is not None and not ndim:
        return "A number without a history is t.item(), float(t) or int(t)."
    return "Tensors become one, with its history, by tg.array([t0, t1])."


def _in_package(package: str, frames: list[FrameType]) -> str:
    if package in _OTHERS:
        return f"{_OTHERS[package]}."
    for frame in frames:
        for module, name in _functions(frame):
            space = module.rpartition(".")[2]
            for known in (space, "linalg", ""):
                if name in NAMESPACES.get(known, ()):
                    ours = ".".join(part for part in ("tg", known, name) if part)
                    return f"{module}.{name} takes arrays; for tensors there is {ours}."
            if module == "scipy.sparse":
                return (
                    "scipy.sparse takes arrays; the product of S with a tensor is tg.matmul(S, t)."
                )
            return f"{module}.{name} takes arrays; {_NO_DERIVATIVE}."
    if any("scipy.stats" in frame.f_globals["__name__"] for frame in frames):
        return "scipy.stats takes arrays; for tensors there is tg.stats."
    return f"{package} takes arrays, and does not differentiate; call it in a tg.Function."


def _functions(frame: FrameType) -> Iterator[tuple[str, str]]:
    """Yield the public functions or classes that a frame may be a call of: module and name."""
    local = frame.f_locals
    called = [value for value in local.values() if isinstance(value, FunctionType)]  # of wrappers
    candidates = [(frame.f_globals.get("__name__"), frame.f_code.co_name)]
    candidates += [
        (value.__module__, value.__name__) for value in [*called, type(local.get("self"))]
    ]
    for path, name in candidates:
        module = ".".join(part for part in (path or "").split(".")[:2] if not part.startswith("_"))
        if not name.startswith("__") and "." in module and hasattr(sys.modules.get(module), name):
            yield module, name
