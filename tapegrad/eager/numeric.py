"""The numeric namespace: every op and composed function under NumPy's name, on tensors.

Nothing is listed here: the functions are derived from the op table (`tapegrad.ops`), and those that
are not differentiable from NumPy itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.eager.dispatch import operand, unwrap
from tapegrad.eager.fast_path import function_of
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops import (  # noqa: F401 (importing them fills the table)
    complex,
    cumulative,
    differences,
    elementwise,
    fourier,
    indexing,
    joining,
    linalg,
    matrix_functions,
    norms,
    piecewise,
    polynomials,
    rearranging,
    reduction,
    scipy_special,
    shape,
    sparse,
    special,
    statistics,
    systems,
)
from tapegrad.ops.kinds import COMPOSITES, Composite
from tapegrad.ops.op import TABLE, is_differentiated

Function = Callable[..., Any]

# Functions of values that have no derivative: they answer with passive tensors.
PASSIVE = [
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "array_equal",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "count_nonzero",
    "equal",
    "greater",
    "greater_equal",
    "invert",
    "left_shift",
    "right_shift",
    "isclose",
    "allclose",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "nonzero",
    "not_equal",
    "searchsorted",
    "signbit",
]

# Ops that other functions are made of, without a public name of their own.
INTERNAL = {"getitem", "gather", "spread", "put", "put_view", "contract", "thin_svd", "at_least"}
INTERNAL |= {"at_most", "euclidean_norm", "cofactor", "imaginary", "product", "full_svd"}
INTERNAL |= {"cofactor_slope", "matrix_diagonal", "matrix_trace", "rounded", "sparse_product"}

LINALG = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "vecdot",
    "vector_norm",
    "trace",
    "diagonal",
]


def _declared_in(*modules: Any) -> list[str]:
    """Return the names of the functions that modules declare."""
    names = {module.__name__ for module in modules}
    found = {name: op.declaration for name, op in TABLE.items()}
    found |= {name: composite.function for name, composite in COMPOSITES.items()}
    return [name for name, declaration in found.items() if declaration.__module__ in names]


_FOURIER = {"fourier", "fourier_adjoint", "half_fourier", "real_fourier"}
_MATRIX_FUNCTIONS = _declared_in(matrix_functions)
_OF_SCIPY = [name for name in _declared_in(scipy_special) if name != "weighted_logsumexp"]
LINALG += _MATRIX_FUNCTIONS
FFT = [name for name in _declared_in(fourier) if name not in _FOURIER]
SPECIAL = [*_OF_SCIPY, "erf", "erfc", "gammaln", "digamma", "polygamma", "expit", "logsumexp"]
SPECIAL += ["cbrt", "exp2", "expm1", "log1p", "sinc"]
INTERNAL |= {*_FOURIER, *FFT, *_MATRIX_FUNCTIONS, *_OF_SCIPY, "weighted_logsumexp"}

# those that are other functions than the ones of the same name in NumPy itself
_OF_MATRICES = {"diagonal": "matrix_diagonal", "trace": "matrix_trace"}
_OF_WEIGHTS = {"logsumexp": "weighted_logsumexp"}

ALIASES = {
    "abs": "absolute",
    "around": "round",
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "concat": "concatenate",
    "degrees": "rad2deg",
    "fabs": "absolute",
    "fix": "trunc",
    "pow": "power",
    "radians": "deg2rad",
    "remainder": "mod",
    "true_divide": "divide",
}


def wrap_result(result: Any) -> Any:
    """Return a result of NumPy with tensors in the place of its arrays."""
    if isinstance(result, (np.ndarray, np.generic)):
        return wrap(np.asarray(result))
    if type(result) in (list, tuple):
        return type(result)(wrap_result(item) for item in result)
    if hasattr(result, "_fields"):
        return type(result)(*map(wrap_result, result))
    return result


def _composite_function(composite: Composite) -> Function:
    """Return the public form of a composed function: array-likes in, tensors out."""
    body = composite.function
    # a Python number has no dtype of its own beside arrays that have one
    is_ufunc = isinstance(getattr(np, composite.name, None), np.ufunc)

    @functools.wraps(body)
    def function(*args: Any, **kwargs: Any) -> Any:
        if args and not (isinstance(args[0], (Tensor, str)) or callable(args[0])):
            first = args[0]
            is_weak = is_ufunc and type(first) in (bool, int, float)
            is_list = composite.name in _OF_LISTS and isinstance(first, (list, tuple))
            if not is_weak and not is_list:
                first = operand(first)
                if not isinstance(first, (Tensor, np.ndarray)):
                    first = wrap(np.asarray(first))
                args = (first, *args[1:])
        result = wrap_result(body(*args, **kwargs))
        if composite.name in _SEVERAL_VIEWS:
            for k, view in enumerate(result):
                if view.meta() is not None:
                    view.meta().one_of_several = composite.name.title().replace("_", ""), k
        return result

    return function


_OF_LISTS = {
    "cho_solve",
    "multi_dot",
    "stack",
    "hstack",
    "vstack",
    "dstack",
    "column_stack",
    "block",
    "select",
}
_SEVERAL_VIEWS = {"array_split", "split", "unstack"}


def _passive_function(name: str, module: Any = np) -> Function:
    compute = getattr(module, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return wrap_result(compute(*map(unwrap, args), **{k: unwrap(v) for k, v in kwargs.items()}))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{module.__name__}.{name} on tensors; the result is not differentiable."
    return function


def _round(x: Any, decimals: int = 0) -> Any:
    """Round to a number of decimals; the derivative is 0 everywhere."""
    return FUNCTIONS["rounded"](x, decimals)


# x ** n as cheaper functions, which also have cheaper derivatives
_POWERS = {2: "square", 0.5: "sqrt", -1: "reciprocal", 1: "positive"}


def _power(x: Any, y: Any, out: Any = None, where: Any = True) -> Any:
    """X to the power y; see the op of that name."""
    if (type(y) is int or type(y) is float) and type(x) is Tensor and x.dtype.kind == "f":
        name = _POWERS.get(y)
        if name is not None:
            return FUNCTIONS[name](x, out, where)
    return TABLE["power"].public(x, y, out, where)


def _polygamma(n: Any, x: Any) -> Any:
    """Derivative of order n of `digamma`; see the op of that name."""
    if is_differentiated(n):
        raise TypeError(
            "polygamma has no derivative with respect to 'n' in tapegrad; detach() it, or write a "
            "Function with one"
        )
    return TABLE["polygamma"].public(n, x)


def _with_sparse(dense: Function) -> Function:
    """Return the product of matrices, of which one may be a sparse matrix of SciPy."""

    @functools.wraps(dense)
    def matmul(x: Any, y: Any) -> Any:
        if type(x) is not Tensor and hasattr(x, "tocsr"):
            return _sparse_product(y, x)
        if type(y) is not Tensor and hasattr(y, "tocsr"):
            transposed = FUNCTIONS["transpose"]
            return transposed(_sparse_product(transposed(x), y.T))
        return dense(x, y)

    return matmul


def _sparse_product(x: Any, matrix: Any) -> Any:
    if hasattr(x, "tocsr"):
        raise TypeError("matmul: of two sparse matrices, S @ T is SciPy's own product")
    if np.ndim(x) not in (1, 2) or matrix.ndim != 2:
        raise ValueError(
            f"matmul: the product of {matrix.ndim} sparse dimensions and {np.ndim(x)} others is "
            "not supported; expected a sparse matrix, and one or two dimensions"
        )
    return FUNCTIONS["sparse_product"](x, matrix)


def _build() -> tuple[dict[str, Function], dict[str, Function]]:
    """Return the public functions, and by op name the reflected ones of binary operators."""
    functions: dict[str, Function] = {}
    reflected: dict[str, Function] = {}
    for name, op in TABLE.items():
        functions[name], swapped = function_of(op)
        op.public = functions[name]
        if swapped is not None:
            reflected[name] = swapped
    for name, composite in COMPOSITES.items():
        functions[name] = _composite_function(composite)
    for name in PASSIVE:
        functions[name] = _passive_function(name)
    return functions, reflected


FUNCTIONS, REFLECTED = _build()
FUNCTIONS["round"] = _round
FUNCTIONS["polygamma"] = functools.wraps(FUNCTIONS["polygamma"])(_polygamma)
FUNCTIONS["matmul"] = TABLE["matmul"].public = _with_sparse(FUNCTIONS["matmul"])
FUNCTIONS["power"] = functools.wraps(FUNCTIONS["power"])(_power)
FUNCTIONS |= {alias: FUNCTIONS[name] for alias, name in ALIASES.items()}
LINALG_FUNCTIONS = {name: FUNCTIONS[_OF_MATRICES.get(name, name)] for name in LINALG}
SPECIAL_FUNCTIONS = {name: FUNCTIONS[_OF_WEIGHTS.get(name, name)] for name in SPECIAL}
FFT_FUNCTIONS = {name: FUNCTIONS[name] for name in FFT}
FFT_FUNCTIONS |= {name: _passive_function(name, np.fft) for name in ("fftfreq", "rfftfreq")}
PUBLIC = {name: function for name, function in FUNCTIONS.items() if name not in INTERNAL}
