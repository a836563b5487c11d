"""The namespace of the Python array API standard, for libraries written against it.

``t.__array_namespace__()`` returns it. Its functions are NumPy's, with NumPy's argument names and
options. NumPy dispatches to its tensor arguments, so derivatives are those of `tapegrad`. Results
that NumPy computes itself are wrapped as tensors.

Examples
--------
>>> import tapegrad as tg
>>> x = tg.tensor([3.0, 4.0], requires_grad=True)
>>> xp = x.__array_namespace__()
>>> xp.linalg.vector_norm(x, keepdims=True)
tensor([5.], grad_fn=<EuclideanNormBackward>)
>>> xp.zeros(2, dtype=xp.float32)
tensor([0., 0.], dtype=float32)

Source: https://data-apis.org/array-api/2024.12
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tapegrad.cuda.array import HOST, NAME, as_array
from tapegrad.cuda.toolkit import is_available
from tapegrad.eager import creation, numeric
from tapegrad.eager.creation import CREATION, as_tensor
from tapegrad.eager.dispatch import holds_tracked, unwrap
from tapegrad.eager.tensor import Tensor

__array_api_version__ = "2024.12"

_CONSTANTS = "e inf nan newaxis pi".split()
_DTYPES = """
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
""".split()
_OF_DTYPES = "can_cast finfo iinfo isdtype result_type broadcast_shapes".split()
_MAKERS = """
arange empty empty_like eye full full_like linspace meshgrid ones ones_like tril triu zeros
zeros_like
""".split()
_FUNCTIONS = """
abs acos acosh add all any argmax argmin asin asinh atan atan2 atanh bitwise_and bitwise_invert
bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor broadcast_arrays broadcast_to ceil
clip concat conj copysign cos cosh count_nonzero cumulative_prod cumulative_sum diff divide equal
exp expand_dims expm1 flip floor floor_divide greater greater_equal hypot imag isfinite isin isinf
isnan less less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or
logical_xor matmul matrix_transpose max maximum mean min minimum moveaxis multiply negative
nextafter nonzero not_equal permute_dims positive pow prod real reciprocal remainder repeat
reshape roll round searchsorted sign signbit sin sinh sqrt square squeeze stack std subtract sum
take take_along_axis tan tanh tensordot tile trunc unique_all unique_counts unique_inverse
unique_values unstack var vecdot where
""".split()
_LINEAR_ALGEBRA = """
cholesky cross det diagonal eig eigh eigvals eigvalsh inv matmul matrix_norm matrix_power
matrix_rank matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot
vector_norm
""".split()
_FOURIER = """
fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftshift ifftshift
""".split()


def _of_tensors(name: str, module: ModuleType, ours: dict[str, Any]) -> Callable[..., Any]:
    """Return NumPy's function, made to return tensors; ours if this NumPy version lacks it."""
    function = getattr(module, name, None)
    if function is None:
        return ours[name]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return numeric.wrap_result(function(*args, **kwargs), *args, *kwargs.values())

    return call


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Tensor:
    """Return a tensor made of an array, a number, or nested lists of numbers or tensors.

    Parameters
    ----------
    obj
        Object to convert.
    dtype
        Type of the elements; chosen by NumPy by default.
    device
        ``"cpu"`` or ``"cuda"``; None: where the elements are.
    copy
        True always copies, False raises if a copy is needed, None copies if needed.
    """
    recorded = holds_tracked(obj)
    if not recorded and not isinstance(obj, Tensor) and not creation.is_of_device(obj):
        return as_tensor(np.asarray(obj, dtype=dtype, copy=copy), device=device)
    found = as_tensor(obj, dtype, device)
    if copy is False and found is not obj:
        raise ValueError("asarray: a copy is needed, and copy=False")
    return found.clone() if copy and found is obj else found


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Return a tensor of another type, with its own memory if `copy` is true."""
    found = as_tensor(x, dtype, device)
    return found.clone() if copy and found is x else found


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the elements in order along an axis."""
    found = numeric.FUNCTIONS["sort"](x, axis)
    return numeric.FUNCTIONS["flip"](found, axis) if descending else found


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the indices that sort the elements along an axis; equal elements keep their order."""
    values = as_array(unwrap(x))
    if not descending:
        return as_tensor(np.argsort(values, axis, stable=stable))
    backwards = np.argsort(np.flip(values, axis), axis, stable=stable)
    return as_tensor(values.shape[axis] - 1 - np.flip(backwards, axis))


def _frequencies(name: str) -> Callable[..., Tensor]:
    def call(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
        """Return the frequencies of a transform of n samples with spacing d."""
        return as_tensor(getattr(np.fft, name)(n, d), dtype, device)

    call.__name__ = name
    return call


def from_dlpack(x: Any, /, *, device: Any = None, copy: Any = None) -> Tensor:
    """Return a tensor on the memory of an array of another library, or a copy with `copy`."""
    source = creation.from_dlpack(x)
    found = as_tensor(source, device=device)
    return found.clone() if copy and found is source else found


class _Info:
    """NumPy's inspection namespace, and the devices that tensors are on."""

    def __init__(self) -> None:
        self._of_numpy = np.__array_namespace_info__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_numpy, name)

    def devices(self) -> list[str]:
        """Return the names of the devices."""
        return [HOST, *([NAME] if is_available() else [])]


def __array_namespace_info__() -> Any:  # noqa: N807 (the standard's name)
    """Return the inspection namespace of types and devices."""
    return _Info()


def _extension(name: str, module: Any, names: list[str], ours: dict[str, Any]) -> SimpleNamespace:
    found = {key: _of_tensors(key, module, ours) for key in names}
    return SimpleNamespace(__name__=f"{__name__}.{name}", **found)


globals().update({name: getattr(np, name) for name in (*_CONSTANTS, *_DTYPES, *_OF_DTYPES)})
globals().update(
    {name: _of_tensors(name, np, numeric.FUNCTIONS | CREATION) for name in (*_MAKERS, *_FUNCTIONS)}
)
linalg = _extension("linalg", np.linalg, _LINEAR_ALGEBRA, numeric.NAMESPACES["linalg"])
# SciPy looks for its special functions here
special = SimpleNamespace(
    __name__=f"{__name__}.special",
    psi=numeric.FUNCTIONS["digamma"],
    **numeric.NAMESPACES["special"],
)
fft = _extension("fft", np.fft, _FOURIER, numeric.NAMESPACES["fft"])
fft.fftfreq, fft.rfftfreq = _frequencies("fftfreq"), _frequencies("rfftfreq")

__all__ = [
    *_CONSTANTS, *_DTYPES, *_OF_DTYPES, *_MAKERS, *_FUNCTIONS, "argsort", "asarray", "astype",
    "fft", "from_dlpack", "linalg", "sort", "special",
]  # fmt: skip
