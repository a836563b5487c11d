"""The numeric namespace: every op and composite function on tensors, under NumPy's name.

Differentiable functions and their names are derived from the op table (`tapegrad.ops`), the others
from NumPy itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from tapegrad.cuda.array import as_array, is_array
from tapegrad.eager import inplace
from tapegrad.eager.batched import holds_batched
from tapegrad.eager.batched_calls import apply_composite, apply_passive
from tapegrad.eager.dispatch import operand, unwrap
from tapegrad.eager.fast_path import NumpyOptions, function_of
from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import OfTensors
from tapegrad.eager.operators import operator_of, wants_its_own
from tapegrad.eager.tensor import Tensor, has_values, meta_of_result, note_shared, wrap
from tapegrad.eager.traced import NotRecordedError, RecordingError, UnknownLayoutError, is_recording
from tapegrad.eager.traced_calls import call
from tapegrad.eager.values import as_array_without_axes
from tapegrad.ops import (  # noqa: F401 (importing them fills the table)
    complex,
    contractions,
    cumulative,
    devices,
    differences,
    elementwise,
    fourier,
    indexing,
    joining,
    linalg,
    matrix_functions,
    norms,
    passive,
    piecewise,
    polynomials,
    rearranging,
    reduction,
    sampling,
    scipy_special,
    shape,
    sparse,
    special,
    statistics,
    systems,
)
from tapegrad.ops.table.composite import COMPOSITES, Composite, declarations
from tapegrad.ops.table.op import TABLE, is_differentiated, refuse_iterator
from tapegrad.probes import add_probe

# Functions without derivatives, which return passive tensors.
PASSIVE = [
    "all", "any", "argmax", "argmin", "argsort", "array_equal", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "count_nonzero", "digitize", "equal", "greater", "greater_equal",
    "invert", "left_shift", "right_shift", "isclose", "allclose", "isfinite", "isinf", "isnan",
    "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "nonzero",
    "not_equal", "searchsorted", "signbit",
]  # fmt: skip
SHAPED_BY_VALUES = ("nonzero",)  # of these, whose results have other shapes for other values


def wrap_result(result: Any, *operands: Any) -> Any:
    """Return a result of NumPy for some operands, with tensors in place of its arrays."""
    if is_array(result) or isinstance(result, np.generic):
        made = wrap(as_array(result))
        made._meta = meta_of_result(*operands)
        is_view = made._a.base is not None or any(result is operand for operand in operands)
        return note_shared(made) if is_view else made
    if type(result) in (list, tuple):
        return type(result)(wrap_result(item, *operands) for item in result)
    if hasattr(result, "_fields"):
        return type(result)(*(wrap_result(item, *operands) for item in result))
    return result


# functions whose results NumPy leaves as arrays even without axes
_ARRAYS_WITHOUT_AXES = ("piecewise", "select", "tensordot")


def _composite_function(composite: Composite) -> Callable[..., Any]:
    """Return the public form of a composite function, from array-likes to tensors."""
    body = composite.function
    # Python numbers are weak scalars: they take the dtype of the arrays
    is_ufunc = isinstance(getattr(np, composite.name, None), np.ufunc)
    names = [*inspect.signature(body).parameters]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(body).parameters.values())

    def as_operand(name: str, value: Any) -> Any:
        """Return a list of tensors, which is no list of arrays, as one tensor."""
        is_list = type(value) in (list, tuple) and name not in composite.lists
        return operand(value) if is_list else value

    @functools.wraps(body)
    def function(*args: Any, **kwargs: Any) -> Any:
        if args and not (isinstance(args[0], (Tensor, str)) or callable(args[0])):
            first = args[0]
            is_weak = is_ufunc and type(first) in (bool, int, float)
            refuse_iterator(first, composite.name)
            is_list = composite.of_list and isinstance(first, (list, tuple))
            if is_list and not composite.nested:
                items = map(operand, first)
                args = (tuple(items) if isinstance(first, tuple) else [*items], *args[1:])
            elif not is_weak and not is_list:
                first = operand(first)
                if not (isinstance(first, Tensor) or is_array(first)):
                    first = wrap_result(np.asarray(first), first)
                args = (first, *args[1:])
        for arg in args[1:]:
            if type(arg) is list or type(arg) is tuple:
                named = (*names, *[names[-1]] * (len(args) - len(names)))
                args = (args[0], *map(as_operand, named[1:], args[1:]))
                break
        if kwargs:
            options = {} if takes_all else {k: v for k, v in kwargs.items() if k not in names}
            if options:
                kwargs = {k: v for k, v in kwargs.items() if k in names}
                return NumpyOptions.call(composite.name, args, kwargs, options)
            kwargs = {name: as_operand(name, value) for name, value in kwargs.items()}
        if MODE.special and holds_batched((*args, *kwargs.values())):
            result = apply_composite(composite, function, args, kwargs)
        elif MODE.special and MODE.thread.trace is not None:
            result = _traced_composite(composite, args, kwargs)
        else:
            result = wrap_result(body(*args, **kwargs), *args)
        if MODE.thread.items_are_values or _is_of_arrays(result):
            result = _with_values(composite, result)
        if composite.name in _ARRAYS_WITHOUT_AXES:
            result = as_array_without_axes(result)
        if composite.gives_views:
            for k, view in enumerate(result):
                if view.meta() is not None and view.meta().base is not None:
                    view.meta().one_of_several = composite.name.title().replace("_", ""), k
        return result

    return function


def _is_of_arrays(result: Any) -> bool:
    """Whether a result, or the first of several, is a tensor that is made of arrays."""
    if type(result) in (list, tuple):
        return bool(result) and _is_of_arrays(result[0])
    return type(result) is Tensor and has_values(result)


def _with_values(composite: Composite, result: Any) -> Any:
    """Return a result with values for views without axes, except those that were asked for."""
    if type(result) in (list, tuple):
        return type(result)(_with_values(composite, item) for item in result)
    is_item = isinstance(result, Tensor) and not result.shape
    is_view = composite.function.__module__ == shape.__name__ and not composite.gives_views
    return inplace.item_of(result) if is_item and not is_view else result


def _traced_composite(composite: Composite, args: Any, kwargs: Any) -> Any:
    """Call a composite function while a function is recorded: its ops, or itself as one call."""
    try:
        return wrap_result(composite.function(*args, **kwargs))
    except UnknownLayoutError:
        raise
    except (RecordingError, NotRecordedError):  # it decides by values
        if not is_recording((*args, *kwargs.values())) or not composite.names:
            raise
        MODE.thread.trace.outermost.failure = None  # it is recorded in another way
        return call(composite.names[0], OfTensors(composite.function), args, kwargs)


def _passive_function(name: str, module: Any = np) -> Callable[..., Any]:
    compute = getattr(module, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        if MODE.special and holds_batched((*args, *kwargs.values())):
            return apply_passive(name, compute, function, [*map(operand, args)], kwargs)
        if MODE.special and is_recording((*args, *kwargs.values())):
            if name in passive.IN_TERMS_OF_OTHERS:
                return passive.IN_TERMS_OF_OTHERS[name](*map(operand, args), **kwargs)
            decides = name in SHAPED_BY_VALUES
            return call(name, OfTensors(function) if decides else compute, args, kwargs)
        found = compute(*map(unwrap, args), **{k: unwrap(v) for k, v in kwargs.items()})
        return wrap_result(found, *args, *kwargs.values())

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{module.__name__}.{name} on tensors; the result is not differentiable."
    return function


def _frequencies(name: str) -> Callable[..., Any]:
    of_size = _passive_function(name, np.fft)

    @functools.wraps(of_size)
    def function(n: Any, d: Any = 1.0, **kwargs: Any) -> Any:
        return of_size(index(n), d, **kwargs)

    return function


# cheaper functions for x ** n, which also have cheaper derivatives
_POWERS = {2: "square", 0.5: "sqrt", -1: "reciprocal", 1: "positive"}


def _with_cheaper(general: Callable[..., Any]) -> Callable[..., Any]:
    """Return the power, computed by a cheaper function for some exponents."""

    @functools.wraps(general)
    def power(x: Any, y: Any, out: Any = None, where: Any = True) -> Any:
        if (type(y) is int or type(y) is float) and type(x) is Tensor and x.dtype.kind == "f":
            name = _POWERS.get(y)
            if name is not None:
                return FUNCTIONS[name](x, out, where)
        return general(x, y, out, where)

    return power


def _with_array(where: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results NumPy leaves as arrays even without axes."""

    @functools.wraps(where)
    def function(*args: Any, **kwargs: Any) -> Any:
        result = where(*args, **kwargs)
        return result if result.shape else as_array_without_axes(result)

    return function


def _logsumexp(x: Any, axis: Any = None, b: Any = None, *, keepdims: bool = False) -> Any:
    """log(sum(b * exp(x))) without overflow; elements equal to an infinite result share equally."""
    if b is None:
        return TABLE["logsumexp"].public(x, axis, keepdims=keepdims)
    return FUNCTIONS["weighted_logsumexp"](x, axis, b, keepdims)


_logsumexp.__name__ = _logsumexp.__qualname__ = "logsumexp"


def _polygamma(n: Any, x: Any) -> Any:
    """Derivative of order n of `digamma`; see the op of the same name."""
    if is_differentiated(n):
        raise TypeError(
            "polygamma has no derivative with respect to 'n' in tapegrad; detach() it, or write a "
            "Function with one"
        )
    return TABLE["polygamma"].public(n, x)


def _with_sparse(dense: Callable[..., Any], is_operator: bool = False) -> Callable[..., Any]:
    """Return a matrix product of which one operand may be a sparse matrix of SciPy."""

    @functools.wraps(dense)
    def matmul(x: Any, y: Any) -> Any:
        if type(x) is not Tensor and hasattr(x, "tocsr"):
            return _sparse_product(y, x)
        if type(y) is not Tensor and hasattr(y, "tocsr"):
            transposed = FUNCTIONS["transpose"]
            return transposed(_sparse_product(transposed(x), y.T))
        try:
            return dense(x, y)
        except (TypeError, ValueError):
            if is_operator and wants_its_own(y):
                return NotImplemented
            raise

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


def _build() -> tuple[dict[str, Callable[..., Any]], dict[str, Callable[..., Any]]]:
    """Return the public functions and the reflected functions of binary ops, both by op name."""
    functions: dict[str, Callable[..., Any]] = {}
    reflected: dict[str, Callable[..., Any]] = {}
    for name, op in TABLE.items():
        functions[name], swapped = function_of(op)
        op.public = functions[name]
        if swapped is not None:
            reflected[name] = swapped
    for name, composite in COMPOSITES.items():
        functions[name] = _composite_function(composite)
    for name in PASSIVE:
        functions[name] = _passive_function(name)
    for name, function in (*functions.items(), *reflected.items()):
        add_probe(function, name, is_leaf=name not in COMPOSITES)
    return functions, reflected


def _named(functions: dict[str, Callable[..., Any]]) -> dict[str, dict[str, Callable[..., Any]]]:
    """Return the functions by namespace and public name."""
    found: dict[str, dict[str, Callable[..., Any]]] = {
        "": {name: functions[name] for name in PASSIVE}
    }
    for declared, declaration in declarations().items():
        for dotted in declaration.names:
            namespace, _, name = dotted.rpartition(".")
            found.setdefault(namespace, {})[name] = functions[declared]
    found["fft"] |= {name: _frequencies(name) for name in ("fftfreq", "rfftfreq")}
    return found


FUNCTIONS, REFLECTED = _build()
FUNCTIONS["polygamma"] = functools.wraps(FUNCTIONS["polygamma"])(_polygamma)
FUNCTIONS["logsumexp"] = _logsumexp
_matmul = FUNCTIONS["matmul"]
FUNCTIONS["matmul"] = TABLE["matmul"].public = _with_sparse(_matmul)
FUNCTIONS["where"] = _with_array(FUNCTIONS["where"])
FUNCTIONS["power"] = _with_cheaper(FUNCTIONS["power"])
NAMESPACES = _named(FUNCTIONS)
PUBLIC = NAMESPACES[""]
ALIASES = PUBLIC.keys() - FUNCTIONS.keys()
FUNCTIONS |= {name: PUBLIC[name] for name in ALIASES}


def operator(name: str) -> Callable[..., Any]:
    """Return what an operator of two operands calls; it may return NotImplemented."""
    if name == "matmul":
        return _with_sparse(_matmul, is_operator=True)
    if name in PASSIVE:
        return _comparison(name)
    made = operator_of(TABLE[name].public)
    add_probe(made, name, is_leaf=True)
    return _with_cheaper(made) if name == "power" else made


def _comparison(name: str) -> Callable[..., Any]:
    """Return an operator without a derivative."""
    function = FUNCTIONS[name]
    # Python finds unequal what is no number
    leaves_all = name in ("equal", "not_equal")

    def compare(self: Tensor, other: Any) -> Any:
        try:
            return function(self, other)
        except TypeError:
            if leaves_all or wants_its_own(other):
                return NotImplemented
            raise

    return compare
