"""Elementary functions that are compiled into the loops that call them, so that they vectorize.

They are those of the compiled loops of tensors, with the same accuracy
(`tapegrad.kernels.functions.vmath`).
"""

from __future__ import annotations

import math
import types as python
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tapegrad.kernels.functions import angles, slopes, special, vmath
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE
from tapegrad.transform.cache.machine_code import jit


def _compiled(function: Any) -> Any:
    return jit(function, fastmath={"contract"}, forceinline=True)


@intrinsic
def sqrt(typingctx: Any, x: Any) -> Any:
    """Return the square root of a number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = context.cast(builder, args[0], signature.args[0], types.float64)
        root = builder.module.declare_intrinsic("llvm.sqrt", [ir.DoubleType()])
        return builder.call(root, [wide])

    return types.float64(x), codegen


def _viewed(result: Any, given: Any) -> Any:
    """Return an intrinsic that gives the bits of a number another type."""

    def view(typingctx: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(result))

        return result(given), codegen

    return intrinsic(view)


# instead of views of scalars, which numba compiles as functions
_VIEWS = {
    "_bits": _viewed(types.int64, types.float64),
    "_from_bits": _viewed(types.float64, types.int64),
}


def _copies(*modules: Any) -> dict[str, Any]:
    """Return the functions of modules, compiled, with each other as globals."""
    # their machine code is found on disk by the name
    made: dict[str, Any] = {"__name__": __name__, **_VIEWS}
    for module in modules:
        for name, value in vars(module).items():
            if name in _VIEWS:
                continue
            if isinstance(value, python.FunctionType):
                if value.__module__ == module.__name__:
                    made[name] = _compiled(python.FunctionType(value.__code__, made, name))
            elif isinstance(value, (int, float, python.ModuleType)):
                made.setdefault(name, value)
    return made


_FUNCTIONS = _copies(vmath, angles, special, slopes)


@_compiled
def root(x: Any) -> Any:
    """Return ``x ** 0.5``, which is not the square root of -inf and of -0."""
    return math.inf if x == -math.inf else sqrt(x) + 0.0


@_compiled
def half_power(x: Any, whole: Any) -> Any:
    """Return ``x ** (whole + 0.5)`` for a constant integer."""
    found = root(x) if whole >= 0 else 1.0 / root(x)
    for _ in range(whole):
        found *= abs(x)
    for _ in range(-whole - 1):
        found /= abs(x)
    return found


MOST_FACTORS = 4
"""Powers with larger exponents are not computed by products and roots."""

SINES = ("cos", "sin", "tan")
LIMIT = vmath.REDUCED_LIMIT
"""The largest number that a sine here is computed for."""

exp, exp2, expm1 = (_FUNCTIONS[name] for name in ("exp", "exp2", "expm1"))
log, log2, log10, log1p = (_FUNCTIONS[name] for name in ("log", "log2", "log10", "log1p"))
sinh, cosh, tanh = (_FUNCTIONS[name] for name in ("sinh", "cosh", "tanh"))
sin, cos, tan = (_FUNCTIONS[f"{name}_reduced"] for name in ("sin", "cos", "tan"))
erf, erfc, pow, hypot = (_FUNCTIONS[name] for name in ("erf", "erfc", "pow", "hypot"))


def _of_op(name: str) -> Any:
    """Return the formula of an op, which has no branches, compiled."""
    op = TABLE[name]
    assert isinstance(op, Elementwise)
    formula: Any = op.formula
    compiled = dict.fromkeys(("vmath", "angles", "special", "slopes"), _MODULE)
    scope = {**formula.__globals__, "__name__": __name__, **compiled}
    return _compiled(python.FunctionType(formula.__code__, scope, name))


_MODULE = python.ModuleType("compiled_functions")
vars(_MODULE).update(_FUNCTIONS)
cosine, gaussian, inverted = (_of_op(name) for name in ("cosine", "gaussian", "inverted"))
one_minus_square, share, share2 = map(_of_op, ("one_minus_square", "share", "share2"))
sigmoid_slope, tanh_slope = (_of_op(name) for name in ("sigmoid_slope", "tanh_slope"))
logaddexp, logaddexp2 = (_of_op(name) for name in ("logaddexp", "logaddexp2"))
sigmoid, softplus, ndtr = (_FUNCTIONS[name] for name in ("sigmoid", "softplus", "ndtr"))
arctan, arctan2 = (_FUNCTIONS[name] for name in ("arctan", "arctan2"))
arcsin, arccos = (_FUNCTIONS[name] for name in ("arcsin", "arccos"))

_OF_ONE = ("erf", "erfc", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "sqrt")
ARGUMENTS = {
    **dict.fromkeys((*SINES, *_OF_ONE, "cosh", "sinh", "tanh", "gaussian", "one_minus_square"), 1),
    **dict.fromkeys(("sigmoid", "softplus", "ndtr", "arctan", "arcsin", "arccos"), 1),
    **dict.fromkeys(("logaddexp", "logaddexp2", "arctan2"), 2),
    **dict.fromkeys(
        ("pow", "hypot", "inverted", "share", "share2", "sigmoid_slope", "tanh_slope"), 2
    ),
    "cosine": 3,
}
"""The functions, with the number of their arguments."""
