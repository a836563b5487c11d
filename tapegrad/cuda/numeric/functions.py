"""NumPy's functions for arrays on a device.

NumPy calls `__array_ufunc__` and `__array_function__` of the arrays that it is given, so that the
functions of the op table, which are written with NumPy, compute on the device as they stand. What
is missing is refused.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray, check_dtype, contiguous
from tapegrad.cuda.numeric import (
    cupy_functions,
    elementwise,
    indexing,
    products,
    reductions,
    scans,
    sorting,
)
from tapegrad.cuda.numeric.elementwise import on_device
from tapegrad.cuda.numeric.reductions import (
    ALL,
    ANY,
    COUNT,
    MAXIMUM,
    MINIMUM,
    PRODUCT,
    SUM,
    Reduction,
)
from tapegrad.ops.table.composite import COMPOSITES
from tapegrad.ops.table.op import normalize_axis

# -- ufuncs ---------------------------------------------------------------------------------------


def _array_ufunc(self: DeviceArray, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    out = kwargs.pop("out", (None,))
    if any(not isinstance(value, _OPERANDS) for value in inputs):
        return NotImplemented
    if method == "__call__" and len(out) == 1 and not kwargs:
        if ufunc is np.matmul and out[0] is None:
            return products.matmul(*map(on_device, inputs))
        if ufunc is np.invert:
            return elementwise.inverted(*inputs)
        if any(value is None for value in inputs):
            return _compared_with_none(ufunc, inputs)
        function = elementwise.functions().get(ufunc)
        if function is not None:
            target = out[0]
            if target is not None and not isinstance(target, DeviceArray):
                raise RuntimeError("the result of arrays on a device cannot be written to the host")
            return elementwise.apply(function, inputs, target)
    if method == "reduce" and ufunc in reductions.OF_UFUNC and out[0] is None:
        kwargs.setdefault("axis", 0)
        if not {*kwargs} - {"axis", "keepdims"}:
            return reductions.reduce(reductions.OF_UFUNC[ufunc], *inputs, **kwargs)
    if method == "accumulate" and ufunc in scans.OF_UFUNC and out[0] is None:
        kwargs.setdefault("axis", 0)
        if not {*kwargs} - {"axis"}:
            return scans.accumulate(scans.OF_UFUNC[ufunc], *inputs, **kwargs)
    if method == "at" and ufunc is np.add and isinstance(inputs[0], DeviceArray):
        target, index, value = inputs
        indexing.add_at(target, index, on_device(value))
        return None
    name = ufunc.__name__ + ("" if method == "__call__" else f".{method}")
    if getattr(np, ufunc.__name__, None) is not ufunc:
        if method == "__call__" and not kwargs and len(out) == 1 and out[0] is None:
            return _of_cupy("scipy.special", name)(*inputs)
        raise _missing(name)
    raise _missing(f"numpy.{name}" + (f" with {', '.join(kwargs)}" if kwargs else ""))


def _compared_with_none(ufunc: Any, inputs: Sequence[Any]) -> DeviceArray:
    """Return what NumPy returns for ``x == None``: no element is None."""
    if ufunc not in (np.equal, np.not_equal):
        raise TypeError(f"{ufunc.__name__}: None is not a number")
    shape = next(value.shape for value in inputs if isinstance(value, DeviceArray))
    return _filled(ufunc is np.not_equal)(shape, np.bool_)


_OPERANDS = (DeviceArray, np.ndarray, np.generic, bool, int, float, complex, tuple, list, slice)
_OPERANDS += (type(None), type(Ellipsis))


def _missing(what: str) -> TypeError:
    return TypeError(
        f"{what} is not available for arrays on a device; use cpu() to compute on the host"
    )


def _of_cupy(module: str, name: str) -> Callable[..., Any]:
    """Return a function that CuPy computes, or raise."""
    found = cupy_functions.function_of_cupy(module, name)
    if found is not None:
        return found
    if cupy_functions.is_installed():
        raise _missing(f"{module}.{name}")
    raise TypeError(
        f"{module}.{name} is not available for arrays on a device; {cupy_functions.INSTALL}"
    )


# -- functions ------------------------------------------------------------------------------------


class _Open(threading.local):
    """The composite functions that are being computed: they may call NumPy's of the same name."""

    def __init__(self) -> None:
        self.names: list[str] = []


_OPEN = _Open()


def _array_function(
    self: DeviceArray, func: Any, kinds: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if (call := FUNCTIONS.get(func)) is not None:
        return call(*args, **kwargs)
    if func in VIEWS and isinstance(args[0], DeviceArray):
        return args[0].viewed(lambda array: func(array, *args[1:], **kwargs))
    known = elementwise.functions().get(func)
    if known is not None and not kwargs:
        return elementwise.apply(known, args)
    composite = COMPOSITES.get(func.__name__) if func.__module__ == "numpy" else None
    if composite is not None and composite.name not in _OPEN.names:
        _OPEN.names.append(composite.name)
        try:
            return composite.function(*args, **kwargs)
        finally:
            _OPEN.names.pop()
    if cupy_functions.is_of_cupy(func.__module__):
        return _of_cupy(func.__module__, func.__name__)(*args, **kwargs)
    raise _missing(f"{func.__module__}.{func.__name__}")


VIEWS = frozenset([
    np.broadcast_to, np.diagonal, np.expand_dims, np.flip, np.matrix_transpose, np.moveaxis,
    np.permute_dims, np.rollaxis, np.squeeze, np.swapaxes, np.transpose, np.real, np.imag,
])  # fmt: skip


def _copy(x: DeviceArray, *args: Any) -> DeviceArray:
    return _astype(x, x.dtype)


def _astype(x: DeviceArray, dtype: Any, copy: bool = True) -> DeviceArray:
    dtype = np.dtype(dtype)
    check_dtype(dtype)
    if not copy and dtype == x.dtype:
        return x
    computed = x.dtype if dtype == np.bool_ else dtype
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.viewed(lambda array: array.real)
        computed = dtype
    return elementwise.run(elementwise.copying(computed, dtype), [x])


def _reshape(x: DeviceArray, *shape: Any, order: str = "C") -> DeviceArray:
    if order != "C":
        raise _missing(f"reshape with order {order!r}")
    wanted = shape[0] if len(shape) == 1 else shape
    result = np.broadcast_to(np.zeros(()), x.shape).reshape(wanted).shape
    try:
        return x.viewed(lambda array: np.reshape(array, result, copy=False))
    except (TypeError, ValueError):  # the elements have to be put in order
        packed = x.copy()
        return packed.viewed(lambda array: array.reshape(result)).alone()


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, DeviceArray) or where is not True:
        raise _missing("numpy.copyto to an array of the host, or with `where`,")
    _write_all(dst, src, casting)


def _write_all(dst: DeviceArray, src: Any, casting: str = "unsafe") -> None:
    if not dst.writeable:
        raise ValueError("assignment destination is read-only")
    if isinstance(src, (np.ndarray, list, tuple)):
        src = DeviceArray.from_host(np.asarray(src))
    elif not isinstance(src, DeviceArray):
        src = np.asarray(src, dst.dtype)[()]  # raises what NumPy raises
    if isinstance(src, DeviceArray):
        if not np.can_cast(src.dtype, dst.dtype, casting):
            raise TypeError(
                f"Cannot cast array data from {src.dtype!r} to {dst.dtype!r} according to the rule "
                f"{casting!r}"
            )
        if src.dtype.kind == "c" and dst.dtype.kind not in "cb":
            src = src.viewed(lambda array: array.real)
        while src.ndim > dst.ndim and src.shape[0] == 1:  # as NumPy assigns
            src = src[0]
        shape = dst.shape
        src = src.viewed(lambda array: np.broadcast_to(array, shape))
    computed = dst.dtype if dst.dtype != np.bool_ else getattr(src, "dtype", np.dtype(bool))
    elementwise.run(elementwise.copying(computed, dst.dtype), [src], dst)


def _concatenate(arrays: Sequence[Any], axis: Any = 0, **kwargs: Any) -> DeviceArray:
    if kwargs:
        raise _missing(f"numpy.concatenate with {', '.join(kwargs)}")
    parts = [array if isinstance(array, DeviceArray) else on_device(array) for array in arrays]
    if axis is None:
        parts, axis = [part.reshape(-1) for part in parts], 0
    stand_ins = [np.broadcast_to(np.zeros((), part.dtype), part.shape) for part in parts]
    whole = np.concatenate(stand_ins, axis) if sum(p.size for p in parts) == 0 else None
    shape = list(parts[0].shape) if whole is None else list(whole.shape)
    if not shape:
        raise ValueError("zero-dimensional arrays cannot be concatenated")
    axis = normalize_axis(axis, len(shape))
    if whole is None:
        for part in parts[1:]:
            if [*part.shape[:axis], *part.shape[axis + 1 :]] != [*shape[:axis], *shape[axis + 1 :]]:
                raise ValueError(
                    "all the input array dimensions except for the concatenation axis must match "
                    f"exactly, but there are shapes {parts[0].shape} and {part.shape}"
                )
        shape[axis] = sum(part.shape[axis] for part in parts)
    out = DeviceArray.empty(tuple(shape), np.result_type(*(part.dtype for part in parts)))
    first = 0
    for part in parts:
        place = (slice(None),) * axis + (slice(first, first + part.shape[axis]),)
        out[place] = part
        first += part.shape[axis]
    return out


def _filled(value: Any) -> Callable[..., DeviceArray]:
    """Return the function that makes an array of one value, as ``np.zeros`` with ``like``."""

    def make(shape: Any, dtype: Any = float, *args: Any, **kwargs: Any) -> DeviceArray:
        lengths = (shape,) if np.ndim(shape) == 0 else tuple(shape)
        lengths = tuple(map(operator.index, lengths))
        if value is None:
            return DeviceArray.empty(lengths, np.dtype(dtype))
        return elementwise.constant(value, lengths, np.dtype(dtype))

    return make


def _filled_like(value: Any) -> Callable[..., DeviceArray]:
    def make(x: DeviceArray, dtype: Any = None, *args: Any, **kwargs: Any) -> DeviceArray:
        shape = kwargs.get("shape")
        return _filled(value)(x.shape if shape is None else shape, dtype or x.dtype)

    return make


def _full_like(x: DeviceArray, fill_value: Any, dtype: Any = None, **kwargs: Any) -> DeviceArray:
    if isinstance(fill_value, DeviceArray):
        made = DeviceArray.empty(x.shape, np.dtype(dtype or x.dtype))
        made[...] = fill_value
        return made
    return elementwise.constant(fill_value, x.shape, np.dtype(dtype or x.dtype))


def _reducing(reduction: Reduction) -> Callable[..., Any]:
    def call(x: DeviceArray, axis: Any = None, keepdims: Any = False, **options: Any) -> Any:
        if options:
            raise _missing(f"numpy.{reduction.name} with {', '.join(options)}")
        return reductions.reduce(reduction, x, axis, bool(keepdims))

    return call


def _array_equal(x: Any, y: Any, equal_nan: bool = False) -> bool:
    x, y = on_device(x), on_device(y)
    if x.shape != y.shape:
        return False
    same = x == y
    return bool((same | ((x != x) & (y != y)) if equal_nan else same).all())


def _arg(reduction: Reduction) -> Callable[..., Any]:
    """Return the function that finds the first element that is the result of a reduction."""

    def call(x: DeviceArray, axis: Any = None, keepdims: Any = False) -> DeviceArray:
        if axis is None:
            found = call(x.reshape(-1), 0)
            return found.reshape((1,) * x.ndim) if keepdims else found
        axis = normalize_axis(axis, x.ndim)
        best = reductions.reduce(reduction, x, axis, True)
        length = x.shape[axis]
        places = DeviceArray.from_host(np.arange(length)).reshape(
            (-1,) + (1,) * (x.ndim - 1 - axis)
        )
        chosen = (x == best) | ((x != x) & (best != best))
        return reductions.reduce(MINIMUM, np.where(chosen, places, length), axis, bool(keepdims))

    return call


def _cumulative(reduction: Reduction) -> Callable[..., Any]:
    def call(x: DeviceArray, axis: Any = None) -> DeviceArray:
        return scans.accumulate(reduction, x, axis)

    return call


def _isclose(
    x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> DeviceArray:
    x, y = (v.astype(np.int8) if v.dtype == np.bool_ else v for v in map(on_device, (x, y)))
    close = (x == y) | (np.isfinite(y) & (np.absolute(x - y) <= atol + rtol * np.absolute(y)))
    return close | ((x != x) & (y != y)) if equal_nan else close


def _nonzero(x: DeviceArray) -> tuple[DeviceArray, ...]:
    """Return the places of elements; how many there are is found on the host."""
    return tuple(map(DeviceArray.from_host, (x != 0).to_host().nonzero()))


def _argsort(x: DeviceArray, axis: Any = -1, kind: Any = None, **kwargs: Any) -> DeviceArray:
    if {*kwargs} - {"stable"}:
        raise _missing(f"numpy.argsort with {', '.join(kwargs)}")
    return sorting.argsort(x, axis)


def _einsum(subscripts: Any, *operands: Any, **kwargs: Any) -> DeviceArray:
    return products.einsum(subscripts, *map(on_device, operands))


def _round(x: DeviceArray, decimals: int = 0) -> DeviceArray:
    if x.dtype.kind not in "fc":
        return x.copy()
    scale = 10.0 ** abs(decimals)
    if not decimals:
        return np.rint(x)
    return np.rint(x * scale) / scale if decimals > 0 else np.rint(x / scale) * scale


def _matmul(x: Any, y: Any) -> DeviceArray:
    return products.matmul(on_device(x), on_device(y))


def _share_memory(x: Any, y: Any, max_work: Any = None) -> bool:
    """Return whether two arrays are in the same block of memory."""
    if type(x) is not DeviceArray or type(y) is not DeviceArray:
        return False
    if x.expression is not None or y.expression is not None:
        return x is y
    return x.memory is y.memory


def _asarray(x: Any, dtype: Any = None, **kwargs: Any) -> DeviceArray:
    return on_device(x, dtype)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.all: _reducing(ALL),
    np.amax: _reducing(MAXIMUM),
    np.amin: _reducing(MINIMUM),
    np.any: _reducing(ANY),
    np.allclose: lambda *args, **kwargs: bool(_isclose(*args, **kwargs).all()),
    np.argmax: _arg(MAXIMUM),
    np.argmin: _arg(MINIMUM),
    np.argsort: _argsort,
    np.array: lambda x, dtype=None, **kwargs: on_device(x, dtype).copy(),
    np.array_equal: _array_equal,
    np.asarray: _asarray,
    np.ascontiguousarray: lambda x, dtype=None, **kwargs: contiguous(on_device(x, dtype)),
    np.concatenate: _concatenate,
    np.copy: _copy,
    np.copyto: _copyto,
    np.count_nonzero: _reducing(COUNT),
    np.cumprod: _cumulative(PRODUCT),
    np.cumsum: _cumulative(SUM),
    np.einsum: _einsum,
    np.empty: _filled(None),
    np.empty_like: _filled_like(None),
    np.full_like: _full_like,
    np.isclose: _isclose,
    np.iscomplexobj: lambda x: x.dtype.kind == "c",
    np.isrealobj: lambda x: x.dtype.kind != "c",
    np.max: _reducing(MAXIMUM),
    np.may_share_memory: _share_memory,
    np.min: _reducing(MINIMUM),
    np.ndim: lambda x: x.ndim,
    np.nonzero: _nonzero,
    np.ones: _filled(1),
    np.ones_like: _filled_like(1),
    np.prod: _reducing(PRODUCT),
    np.ravel: lambda x, order="C": _reshape(x, -1, order=order),
    np.reshape: lambda x, shape, order="C": _reshape(x, shape, order=order),
    np.result_type: lambda *given: np.result_type(
        *(g.dtype if type(g) is DeviceArray else g for g in given)
    ),
    np.round: _round,
    np.shape: lambda x: x.shape,
    np.shares_memory: _share_memory,
    np.size: lambda x, axis=None: x.size if axis is None else x.shape[axis],
    np.sum: _reducing(SUM),
    np.zeros: _filled(0),
    np.zeros_like: _filled_like(0),
}


# -- indices --------------------------------------------------------------------------------------


def _getitem(self: DeviceArray, index: Any) -> DeviceArray:
    if indexing.is_basic(index):
        parts = index if type(index) is tuple else (index,)
        if Ellipsis not in parts:  # so that a single element is an array
            parts = (*parts, Ellipsis)
        return self.viewed(lambda array: array[parts])
    return indexing.gather(self, index)


def _setitem(self: DeviceArray, index: Any, value: Any) -> None:
    if indexing.is_basic(index):
        _write_all(_getitem(self, index), value)
        return
    if not self.writeable:
        raise ValueError("assignment destination is read-only")
    if not isinstance(value, DeviceArray):
        value = DeviceArray.from_host(np.asarray(value, self.dtype))
    indexing.put(self, index, value)


# -- methods --------------------------------------------------------------------------------------


def _operators() -> dict[str, Callable[..., Any]]:
    """Return the operators, and what is computed in place."""
    found: dict[str, Callable[..., Any]] = {}
    unary = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
    for name, ufunc in unary.items():
        found[f"__{name}__"] = lambda x, f=ufunc: f(x)
    binary = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide,
        "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power, "matmul": np.matmul,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    for name, ufunc in binary.items():
        found[f"__{name}__"] = lambda x, y, f=ufunc: f(x, y)
        found[f"__r{name}__"] = lambda x, y, f=ufunc: f(y, x)
        found[f"__i{name}__"] = lambda x, y, f=ufunc: f(x, y, out=x)
    compare = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
        "gt": np.greater, "ge": np.greater_equal,
    }  # fmt: skip
    for name, ufunc in compare.items():
        found[f"__{name}__"] = lambda x, y, f=ufunc: f(x, y)
    return found


def _transposed(self: DeviceArray, *axes: Any) -> DeviceArray:
    return self.viewed(lambda array: array.transpose(*axes))


_METHODS: dict[str, Any] = {
    **_operators(),
    "__array_function__": _array_function,
    "__contains__": lambda self, value: bool((self == value).any()),
    "__array_ufunc__": _array_ufunc,
    "__getitem__": _getitem,
    "__hash__": object.__hash__,
    "__setitem__": _setitem,
    "T": property(_transposed),
    "mT": property(lambda self: np.matrix_transpose(self)),
    "all": FUNCTIONS[np.all],
    "any": FUNCTIONS[np.any],
    "astype": _astype,
    "constant": staticmethod(elementwise.constant),
    "conj": lambda self: np.conjugate(self),
    "copy": _copy,
    "imag": property(lambda self: np.imag(self)),
    "mapped": staticmethod(elementwise.mapped),
    "max": FUNCTIONS[np.max],
    "min": FUNCTIONS[np.min],
    "prod": FUNCTIONS[np.prod],
    "ravel": lambda self: _reshape(self, -1),
    "real": property(lambda self: np.real(self)),
    "reshape": _reshape,
    "squeeze": lambda self, axis=None: np.squeeze(self, axis),
    "sum": FUNCTIONS[np.sum],
    "sum_of": reductions.sum_of,
    "swapaxes": lambda self, a, b: np.swapaxes(self, a, b),
    "times_partial": elementwise.times_partial,
    "transpose": _transposed,
}


def install() -> None:
    """Give arrays on a device their methods."""
    if not hasattr(DeviceArray, "astype"):
        for name, method in _METHODS.items():
            setattr(DeviceArray, name, method)
