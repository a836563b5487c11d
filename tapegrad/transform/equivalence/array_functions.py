"""NumPy's functions, for arrays of the numbers of a field.

Arrays of floats and complex numbers hold objects; those of integers and booleans are NumPy's own.
Functions of elements are random functions, functions that only move or add elements are NumPy's,
and all others are random functions of everything that their arguments hold: the shapes of their
results are those for random floats.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from tapegrad.transform.equivalence.field import (
    ONE,
    RUN,
    ZERO,
    Number,
    UnfollowedError,
    hashed,
    number,
    power,
    root,
    rounded,
    sign,
    unknown,
)

OBJECTS = np.dtype(object)


class Array(np.ndarray):
    """An array of numbers of the field, with the methods that NumPy has for floats only."""

    def _real(self) -> np.ndarray:
        return _each(lambda x: number(x).real, self) if _is_complex(self) else self

    def _imag(self) -> np.ndarray:
        return _each(lambda x: number(x).imag, self)

    def conj(self) -> Any:
        return _each(lambda x: number(x).conjugate(), self)

    real: Any = property(_real)
    imag: Any = property(_imag)
    conjugate = conj

    def __array_wrap__(self, made: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return made[()] if made.ndim == 0 else made.view(Array)

    def astype(self, dtype: Any, *_: Any) -> np.ndarray:
        kind = kind_of(dtype)
        if kind == OBJECTS:
            return self.copy()
        return np.array([int(x) for x in self.ravel()], kind).reshape(self.shape)


def _is_complex(array: np.ndarray) -> bool:
    return any(type(x) is Number and x.rest for x in array.ravel())


def _each(function: Callable[[Any], Any], array: np.ndarray) -> Any:
    """Return a function of each element; who writes to it would not write to the array."""
    made = empty(array.shape)
    for place in np.ndindex(array.shape):
        made[place] = function(array[place])
    made.flags.writeable = False
    return made


class DType:
    """A type of numbers: converts one, and names the type of the elements of an array."""

    def __init__(self, dtype: np.dtype, convert: Callable[[Any], Any]) -> None:
        self.dtype, self.convert = dtype, convert

    def __call__(self, given: Any = 0) -> Any:
        return given.astype(self.dtype) if isinstance(given, np.ndarray) else self.convert(given)


def kind_of(dtype: Any) -> np.dtype:
    """Return the type of the elements of an array that stands for one of another type."""
    if dtype is None:
        return OBJECTS
    if isinstance(dtype, types.Type):
        dtype = as_dtype(dtype)
    found = dtype.dtype if isinstance(dtype, DType) else np.dtype(dtype)
    return OBJECTS if found.kind in "fc" else found


# -- new arrays -------------------------------------------------------------------------------


def empty(shape: Any, dtype: Any = None) -> np.ndarray:
    """Return an array whose elements are undefined."""
    kind = kind_of(dtype)
    if kind != OBJECTS:
        return np.zeros(shape, kind)
    RUN.tick(math.prod(shape) if isinstance(shape, tuple) else int(shape))
    made = np.empty(shape, kind).view(Array)
    flat = made.reshape(-1)
    for k in range(flat.size):
        flat[k] = RUN.undefined()
    return made


def full(shape: Any, value: Any, dtype: Any = None) -> np.ndarray:
    """Return an array of one number."""
    given = np.asarray(value).dtype
    kind = kind_of(given if dtype is None else dtype)
    RUN.tick(math.prod(shape) if isinstance(shape, tuple) else int(shape))
    made = np.empty(shape, kind)
    made.fill(number(value) if kind == OBJECTS else value)
    return made.view(Array) if kind == OBJECTS else made


def zeros(shape: Any, dtype: Any = None) -> np.ndarray:
    """Return an array of zeros."""
    return full(shape, ZERO if kind_of(dtype) == OBJECTS else 0, kind_of(dtype))


def ones(shape: Any, dtype: Any = None) -> np.ndarray:
    """Return an array of ones."""
    return full(shape, ONE if kind_of(dtype) == OBJECTS else 1, kind_of(dtype))


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that makes an array with the shape, and the order, of another one."""

    def call(x: Any, *args: Any, dtype: Any = None) -> Any:
        own = x.dtype if isinstance(x, np.ndarray) else OBJECTS
        kind = own if dtype is None else dtype
        if isinstance(x, np.ndarray) and x.flags.f_contiguous and not x.flags.c_contiguous:
            return make(x.shape[::-1], *args, dtype=kind).T
        return make(np.shape(x), *args, dtype=kind)

    return call


def array(given: Any, dtype: Any = None) -> np.ndarray:
    """Return a new array of the numbers in a sequence or an array."""
    if dtype is not None:
        kind = kind_of(dtype)
    elif isinstance(given, np.ndarray):
        kind = given.dtype
    else:
        leaves = [np.asarray(leaf) for leaf in _leaves(given)]
        is_exact = bool(leaves) and all(leaf.dtype.kind in "iub" for leaf in leaves)
        kind = np.array(given).dtype if is_exact else OBJECTS
    made = np.array(given, kind)
    return made.view(Array) if kind == OBJECTS else made


def _leaves(given: Any) -> Iterator[Any]:
    if isinstance(given, (list, tuple)):
        for item in given:
            yield from _leaves(item)
    else:
        yield given


def _asarray(given: Any, dtype: Any = None) -> np.ndarray:
    if isinstance(given, np.ndarray) and (dtype is None or kind_of(dtype) == given.dtype):
        return given
    return array(given, dtype)


def _arange(*given: Any, dtype: Any = None) -> np.ndarray:
    if all(isinstance(bound, (int, np.integer)) for bound in given):
        RUN.tick(len(range(*given)))
    made = np.arange(*given)
    return made if dtype is None else array(made, dtype)


def _linspace(start: Any, stop: Any, num: int = 50) -> np.ndarray:
    made = empty(num)
    for k in range(num):
        made[k] = number(start) + (number(stop) - start) * k / (num - 1)
    return made


# -- functions of elements --------------------------------------------------------------------


def per_element(name: str, count: int) -> Any:
    """Return the function of numbers, or elements of arrays, that stands for one with a name."""
    function = OF_NUMBERS.get(name, functools.partial(unknown, name))
    return np.frompyfunc(function, count, 1)


_ROUNDING = "ceil", "fix", "floor", "rint", "trunc"
OF_NUMBERS: dict[str, Callable[..., Any]] = {
    **{name: functools.partial(rounded, name) for name in _ROUNDING},
    **dict.fromkeys(("abs", "absolute", "fabs"), abs),
    **dict.fromkeys(("pow", "power", "float_power"), power),
    "half_power": lambda x, count: power(x, count) * root(x),
    **dict.fromkeys(("root", "sqrt"), root),
    "sign": sign,
    **dict.fromkeys(("conj", "conjugate"), lambda x: number(x).conjugate()),
    "square": lambda x: x * x,
    "reciprocal": lambda x: ONE / x,
    # of derivatives; what distinguishes a 0 from what nothing uses does not change its value
    "product": lambda x, y: x * y,
    **dict.fromkeys(("nonzero", "settled", "moved"), lambda x, *_: x),
    "isnan": lambda x: False,
    "isinf": lambda x: False,
    "isfinite": lambda x: True,
    "where": lambda chosen, x, y: x if chosen else y,
    "at_least": lambda x, y: max(x, y),
    "at_most": lambda x, y: min(x, y),
    "stop_gradient": lambda x: Number(*number(x).residues),
}
# NumPy's own, for objects as well
_EXACT = frozenset([
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal", "floor_divide",
    "fmax", "fmin", "greater", "greater_equal", "invert", "left_shift", "less", "less_equal",
    "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "mod",
    "multiply", "negative", "not_equal", "positive", "remainder", "right_shift", "subtract",
    "true_divide",
])  # fmt: skip
# what moves, compares and adds elements, and does nothing else with them
_MOVING = frozenset([
    "amax", "amin", "append", "argmax", "argmin", "argsort", "array_split",
    "ascontiguousarray", "asfortranarray", "atleast_1d", "atleast_2d", "broadcast_arrays",
    "broadcast_to", "column_stack", "concatenate", "convolve", "copy", "copyto",
    "count_nonzero", "cross", "cumprod", "cumsum", "delete", "diag", "diagonal", "diff", "dot",
    "dstack", "expand_dims", "eye", "fill_diagonal", "flatnonzero", "flip", "fliplr", "flipud",
    "hstack", "identity", "inner", "insert", "kron", "max", "mean", "median", "min", "moveaxis",
    "ndenumerate", "ndindex", "nonzero", "outer", "prod", "ptp", "ravel", "repeat", "reshape",
    "roll", "rot90", "searchsorted", "shape", "size", "sort", "split", "squeeze", "stack",
    "sum", "swapaxes", "take", "tile", "trace", "transpose", "tril", "triu", "unique", "var",
    "vdot", "vstack", "where",
])  # fmt: skip


def _over(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `np.any` or `np.all`, which return an element of an array of objects."""

    def call(x: Any, axis: Any = None) -> Any:
        found = function(x, axis)
        return bool(found) if axis is None else found.astype(bool)

    return call


def _std(x: Any) -> Any:
    return root(np.var(x))


def _ufunc(name: str, real: np.ufunc) -> Any:
    made = per_element(name, real.nin)
    is_test = name in ("isnan", "isinf", "isfinite")

    def call(*args: Any, out: Any = None) -> Any:
        found = made(*args) if out is None else made(*args, out=out)
        return found.astype(bool) if is_test and isinstance(found, np.ndarray) else found

    return call


# -- functions of everything ------------------------------------------------------------------


def opaque(name: str, function: Callable[..., Any], *args: Any, **kws: Any) -> Any:
    """Return the result of a random function of everything that its arguments hold.

    Its shape is that of the result of the function for random floats.
    """
    given = tuple(map(_contents, args)), tuple((k, _contents(v)) for k, v in kws.items())
    if RUN.is_exact:
        raise UnfollowedError(f"{name}, which is random here")
    key = hashed(name, *given)
    draw = np.random.default_rng(0)
    try:
        with np.errstate(all="ignore"):
            like = function(
                *(_floats(arg, draw) for arg in args),
                **{k: _floats(arg, draw) for k, arg in kws.items()},
            )
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UnfollowedError(f"{name} of random floats: {error}") from None
    return _results(like, key, itertools.count())


def _contents(given: Any) -> Any:
    if isinstance(given, np.ndarray):
        return given.shape, tuple(_contents(x) for x in given.ravel().tolist())
    if isinstance(given, (tuple, list)):
        return tuple(map(_contents, given))
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, DType):
        return str(given.dtype)
    if isinstance(given, slice):
        return given.start, given.stop, given.step
    made = number(given)
    return made.residues


def _floats(given: Any, draw: np.random.Generator) -> Any:
    """Return random floats in place of numbers of the field; square matrices are regular."""
    if isinstance(given, np.ndarray) and given.dtype == OBJECTS:
        made: Any = draw.random(given.shape)
        if given.ndim >= 2 and given.shape[-1] == given.shape[-2]:
            made = made + made.swapaxes(-1, -2) + 4 * given.shape[-1] * np.eye(given.shape[-1])
        return made * (1 + 1j) if _is_complex(given) else made
    if isinstance(given, Number):
        return 0.5 + 0.5j if given.rest else 0.5
    if isinstance(given, (tuple, list)):
        return type(given)(_floats(item, draw) for item in given)
    if isinstance(given, DType):
        return np.float64 if given.dtype == OBJECTS else given.dtype
    return given


def _results(like: Any, key: int, places: Iterator[int]) -> Any:
    """Return random numbers in place of floats."""
    if isinstance(like, tuple):
        parts = [_results(item, key, places) for item in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    if isinstance(like, np.ndarray):
        if like.dtype.kind not in "fc":
            return like.copy()
        made = empty(like.shape)
        for place in np.ndindex(like.shape):
            made[place] = _results(like[place], key, places)
        return made
    RUN.tick()
    found = hashed("result", key, next(places))
    if isinstance(like, (bool, np.bool_)):
        return bool(found & 1)
    if isinstance(like, (int, np.integer)):
        return found % 3
    rest = hashed("rest", found) if isinstance(like, (complex, np.complexfloating)) else 0
    return Number(found, rest)


class NumPy:
    """What stands for NumPy."""

    linalg: Any
    newaxis = None
    empty = staticmethod(empty)
    zeros = staticmethod(zeros)
    ones = staticmethod(ones)
    full = staticmethod(full)
    array = staticmethod(array)
    asarray = staticmethod(_asarray)
    arange = staticmethod(_arange)
    linspace = staticmethod(_linspace)
    empty_like = staticmethod(_like(empty))
    zeros_like = staticmethod(_like(zeros))
    ones_like = staticmethod(_like(ones))
    full_like = staticmethod(_like(full))
    std = staticmethod(_std)
    any = staticmethod(_over(np.any))
    all = staticmethod(_over(np.all))

    @staticmethod
    def real(x: Any) -> Any:
        return x.real

    @staticmethod
    def imag(x: Any) -> Any:
        return x.imag

    def __getattr__(self, name: str) -> Any:
        found = self._meaning(name, getattr(np, name))
        if not isinstance(found, Number):  # which depends on the modulus
            setattr(self, name, found)
        return found

    def _meaning(self, name: str, real: Any) -> Any:
        if isinstance(real, float):
            return number(real)
        if isinstance(real, type) and issubclass(real, np.generic):
            kind = kind_of(real)
            return DType(kind, number if kind == OBJECTS else bool if kind.kind == "b" else int)
        if isinstance(real, type):
            return real
        if isinstance(real, np.ufunc) and name not in _EXACT:
            return _ufunc(name, real)
        if name in _EXACT or name in _MOVING:
            return real
        if callable(real):
            return functools.partial(opaque, name, real)
        raise UnfollowedError(f"numpy.{name}")


for _name in dir(np):  # NumPy calls methods of objects, for instance in `np.std`
    if isinstance(getattr(np, _name), np.ufunc) and not hasattr(Number, _name):
        setattr(
            Number, _name, functools.partialmethod(lambda x, name, *y: unknown(name, x, *y), _name)
        )
