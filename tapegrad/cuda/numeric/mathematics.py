"""Elementary functions of a device, in place of the vector math of the CPU.

`libm` stands for CUDA's libdevice in kernels, and for NumPy's functions on a simulated device:
those of Python's `math` raise errors where a device returns nan or inf.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.kernels.codegen import dependencies, tree_of
from tapegrad.kernels.functions import angles, slopes, special, vmath


def _exp(x: Any) -> Any:
    return math.exp(x)


def _exp2(x: Any) -> Any:
    return math.pow(2.0, x)


def _expm1(x: Any) -> Any:
    return math.expm1(x)


def _sigmoid(x: Any) -> Any:
    small = math.exp(-abs(x))
    return (1.0 if x >= 0.0 else small) / (1.0 + small)


def _softplus(x: Any) -> Any:
    return x if x != x else max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _cosh(x: Any) -> Any:
    return math.cosh(x)


def _sinh(x: Any) -> Any:
    return math.sinh(x)


def _tanh(x: Any) -> Any:
    return math.tanh(x)


def _log(x: Any) -> Any:
    return math.log(x)


def _log2(x: Any) -> Any:
    return math.log2(x)


def _log10(x: Any) -> Any:
    return math.log10(x)


def _log1p(x: Any) -> Any:
    return math.log1p(x)


def _pow(x: Any, y: Any) -> Any:
    return math.pow(x, y)


def _sin(x: Any) -> Any:
    return math.sin(x)


def _cos(x: Any) -> Any:
    return math.cos(x)


def _tan(x: Any) -> Any:
    return math.tan(x)


def _hypot(x: Any, y: Any) -> Any:
    return math.hypot(x, y)


def _arctan(x: Any) -> Any:
    return math.atan(x)


def _arctan2(y: Any, x: Any) -> Any:
    return math.atan2(y, x)


def _arcsin(x: Any) -> Any:
    return math.asin(x)


def _arccos(x: Any) -> Any:
    return math.acos(x)


def _erf(x: Any) -> Any:
    return math.erf(x)


def _erfc(x: Any) -> Any:
    return math.erfc(x)


def _ndtr(x: Any) -> Any:
    return 0.5 * math.erfc(x * -0.7071067811865476)


def _gaussian(x: Any) -> Any:
    return math.exp(-(x * x))


def _normal(x: Any) -> Any:
    return math.exp(-0.5 * (x * x))


def _tanh_slope(x: Any) -> Any:
    z = math.exp(-2.0 * abs(x))
    return 4.0 * z / ((1.0 + z) * (1.0 + z))


def _inverted(x: Any, y: Any) -> Any:
    a = abs(x)
    b = abs(y)
    m = max(b, a)
    u = x / m
    v = y / m
    found = u / (u * x + v * y)
    return 0.0 if m == math.inf and x == x else found


def _log_ratio(x: Any, y: Any) -> Any:
    q = x / y
    limit = q == math.inf or (q == 0.0 and math.copysign(1.0, q) > 0.0)
    return math.log(abs(x)) - math.log(abs(y)) if limit else math.log(q)


def _with_sign(magnitude: Any, x: Any) -> Any:
    return math.copysign(magnitude, x)


# what stands for a function of vector math in kernels
OF_DEVICE: dict[Any, Any] = {
    vmath.exp: _exp,
    vmath.exp2: _exp2,
    vmath.expm1: _expm1,
    vmath.sigmoid: _sigmoid,
    vmath.softplus: _softplus,
    vmath.cosh: _cosh,
    vmath.sinh: _sinh,
    vmath.tanh: _tanh,
    vmath.log: _log,
    vmath.log2: _log2,
    vmath.log10: _log10,
    vmath.log1p: _log1p,
    vmath.pow: _pow,
    vmath.sin: _sin,
    vmath.cos: _cos,
    vmath.tan: _tan,
    angles.hypot: _hypot,
    angles.arctan: _arctan,
    angles.arctan2: _arctan2,
    angles.arcsin: _arcsin,
    angles.arccos: _arccos,
    special.erf: _erf,
    special.erfc: _erfc,
    special.ndtr: _ndtr,
    special.gaussian: _gaussian,
    special.normal: _normal,
    slopes.tanh_slope: _tanh_slope,
    slopes.inverted: _inverted,
    slopes.log_ratio: _log_ratio,
    vmath._with_sign: _with_sign,
}
# NumPy's functions that kernels do not know, in libdevice (with an "f" at the end for float32)
LIBDEVICE = {f"np.{name}": name for name in ("cbrt", "ceil", "floor", "rint", "trunc")}


_SINES = {vmath.sin: "{sin}", vmath.cos: "{cos}"}


@functools.cache
def sine_of(formula: types.FunctionType) -> str:
    """Return the format of a formula that is a sine or a cosine, or minus one; else nothing."""
    if formula in _SINES:
        return _SINES[formula]
    found, sign = returned(formula), ""
    if isinstance(found, ast.UnaryOp) and isinstance(found.op, ast.USub):
        found, sign = found.operand, "-"
    if not isinstance(found, ast.Call) or not all(isinstance(x, ast.Name) for x in found.args):
        return ""
    called = dependencies(formula).get(ast.unparse(found.func))
    inner = getattr(called, "formula", called)  # that of an op
    known = isinstance(inner, types.FunctionType) and sine_of(inner)
    return (sign + known).replace("--", "") if known else ""


def returned(formula: types.FunctionType) -> ast.expr | None:
    """Return the expression that ends a formula."""
    last = tree_of(formula).body[-1]
    return last.value if isinstance(last, ast.Return) else None


def _sine_and_cosine(x: Any) -> tuple[Any, Any]:
    return np.sin(x), np.cos(x)


def _quiet(function: Callable[..., float]) -> Callable[..., Any]:
    """Return a function of `math` that returns inf where it has a pole."""

    def call(*args: Any) -> Any:
        try:
            return np.float64(function(*args))
        except (ValueError, OverflowError):
            return np.float64(math.inf)

    return call


class SimulatedMath(types.SimpleNamespace):
    """What kernels know as `math`, and as libdevice, on a simulated device."""

    def __init__(self) -> None:
        names = "exp expm1 log log2 log10 log1p sin cos tan sinh cosh tanh sqrt hypot copysign"
        names += " floor ceil trunc rint cbrt isnan isinf isfinite fmod fabs"
        found: dict[str, Any] = {name: getattr(np, name) for name in names.split()}
        for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh"):
            found[f"a{name}"] = getattr(np, f"arc{name}")
        found |= {"atan2": np.arctan2, "pow": np.power}
        found |= {"inf": math.inf, "nan": math.nan, "pi": math.pi}
        found |= {name: _quiet(getattr(math, name)) for name in ("erf", "erfc", "lgamma", "gamma")}
        found |= {f"{name}f": found[name] for name in LIBDEVICE.values()}
        found |= dict.fromkeys(("dmul_rn", "fmul_rn"), operator.mul)
        found |= dict.fromkeys(("sincos", "sincosf"), _sine_and_cosine)
        super().__init__(**found)
