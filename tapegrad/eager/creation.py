"""Creation of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.cuda import dlpack
from tapegrad.cuda.array import HOST, Array, DeviceArray, as_array
from tapegrad.eager.batched import Batched, holds_batched
from tapegrad.eager.batched_calls import made_like
from tapegrad.eager.detached import note_copied
from tapegrad.eager.devices import from_dlpack as from_dlpack_of_device
from tapegrad.eager.devices import shared, to_device
from tapegrad.eager.dispatch import holds_tracked, operand, passive, unwrap
from tapegrad.eager.modes import MODE
from tapegrad.eager.shared_memory import IMMUTABLE
from tapegrad.eager.tensor import (
    NUMBERS_ONLY,
    OF_ARRAYS,
    OF_NUMBERS,
    SHARED,
    Origin,
    Tensor,
    meta_of_result,
    note_shared,
    origin_of,
    wrap,
)
from tapegrad.eager.traced import Traced, refuse_traced
from tapegrad.eager.traced_calls import made_inside
from tapegrad.eager.values import as_array_without_axes
from tapegrad.ops.rearranging import rearranged
from tapegrad.ops.shape import moveaxis
from tapegrad.tape.avals import DIFFERENTIABLE

_COPIED = IMMUTABLE | {list, tuple}  # types of which NumPy makes a new array


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Make a tensor from a copy of data.

    Parameters
    ----------
    data
        A number, nested lists, an array or a tensor. The history of a tensor is not copied, which
        is an error where a transform needs it (`array` copies it). A list that contains recorded
        tensors becomes a tensor with their history.
    dtype
        Type of the elements; chosen by NumPy by default, so float32 stays float32.
    requires_grad
        Whether to record ops on it.
    device
        ``"cpu"`` or ``"cuda"``; default: that of the data.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.tensor([1, 2, 3])
    tensor([1, 2, 3])
    >>> tg.tensor([1.0, 2.0], requires_grad=True)
    tensor([1., 2.], requires_grad=True)
    """
    if isinstance(data, Tensor):
        if data._is_tracked or type(data) is Traced:
            _leave_history(data, requires_grad)
        made = array(data.detach(), dtype, device=device)
    else:
        made = array(data, dtype, device=device)
    if type(made._meta) is Origin:
        made._meta = None
    made = as_array_without_axes(made)
    return made.requires_grad_() if requires_grad else made


def _leave_history(data: Tensor, requires_grad: bool) -> None:
    """Refuse, in transforms, to copy a tensor without its history; warn elsewhere."""
    if data.dtype in DIFFERENTIABLE:
        refuse_traced((data,), "tensor() of a value that depends on the arguments")
        if not requires_grad or MODE.thread.transform is not None:
            note_copied(data._own)


def array(data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Make a tensor from a copy of data, with the history of tensors among these.

    Parameters
    ----------
    data
        A number, nested lists, an array or a tensor.
    dtype
        Type of the elements; chosen by NumPy by default, so float32 stays float32.
    requires_grad
        Whether to record ops on it.
    device
        ``"cpu"`` or ``"cuda"``; default: that of the data.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.grad(lambda x: tg.sum(tg.array(x) * x))(np.array([1.0, 2.0]))
    array([2., 4.])
    """
    made = operand(data)
    if isinstance(data, Tensor):
        result = as_array_without_axes(as_tensor(data.clone(), dtype))
    elif made is not data:
        result = as_tensor(made, dtype)
    elif is_of_device(data):
        result = passive(as_tensor(data, dtype)._a.copy())
    else:
        result = _made(np.array(unwrap(data), dtype=dtype, order="K", subok=False), data)
    if device is not None:
        result = to_device(result, device)
    return _requiring(result, requires_grad)


def _requiring(result: Tensor, requires_grad: bool) -> Tensor:
    """Return a tensor, made a leaf that requires gradients if this is asked for and it has none."""
    return result.requires_grad_() if requires_grad and not result.requires_grad else result


def _made(array: Array, *data: Any) -> Tensor:
    """Return a tensor for a new array that is made of data, or of numbers."""
    if MODE.special and MODE.thread.trace is not None and type(array) is np.ndarray:
        return as_array_without_axes(made_inside(array))
    result = passive(array)
    if result._meta is None:
        result._meta = NUMBERS_ONLY if origin_of(data) == OF_NUMBERS else meta_of_result(*data)
    return as_array_without_axes(result)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Make a tensor that shares the memory of data if possible.

    A tensor of the right dtype is returned unchanged, with its history.

    Parameters
    ----------
    data
        A number, nested lists, an array or a tensor.
    dtype
        Type of the elements; default: that of the data.
    device
        ``"cpu"`` or ``"cuda"``; default: that of the data. The memory of other libraries' arrays on
        a device (``__cuda_array_interface__``) is shared.
    """
    if device is not None:
        return to_device(as_tensor(data, dtype), device)
    if isinstance(data, Tensor):
        return data if dtype is None or data.dtype == dtype else data.astype(dtype)
    made = operand(data)
    if made is not data:
        return as_tensor(made, dtype)
    if is_of_device(data):
        return as_tensor(passive(data) if type(data) is DeviceArray else shared(data), dtype)
    result = passive(np.asarray(unwrap(data), dtype=dtype))
    return as_array_without_axes(result if type(data) in _COPIED else note_shared(result))


def asarray(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Make a tensor that shares the memory of data if possible, as `as_tensor` does.

    Items of the tensor of an array are numbers, as those of the array are. (Those of
    ``as_tensor(data)`` are views, as PyTorch's.)

    Parameters
    ----------
    data, dtype, device
        As for `as_tensor`.
    """
    found = as_tensor(data, dtype, device)
    if type(found) is not Tensor:  # traced or batched: what its items are is known
        return found
    known = found._meta
    if found is not data and found._own is None and (known is None or known is SHARED):
        found._meta = meta_of_result(data)
        return found if known is None else note_shared(found)
    return found


def is_of_device(data: Any) -> bool:
    """Whether data are in the memory of a device."""
    if type(data) is Tensor:
        return type(data._a) is DeviceArray
    return type(data) is not np.ndarray and hasattr(data, "__cuda_array_interface__")


def from_dlpack(source: Any) -> Tensor:
    """Make a tensor on the memory of an array of another library.

    Parameters
    ----------
    source
        An object with ``__dlpack__``, on the CPU or on a CUDA device.

    Raises
    ------
    RuntimeError
        If it is a tensor that requires gradients, and ops are recorded.
    """
    if isinstance(source, Tensor):  # the same array, so that writes are noted for both
        array = source._a if source.device != HOST and source._own is None else source.numpy()
        return wrap(array, None, source.is_inference())
    if is_of_device(source):
        return shared(source)
    if source.__dlpack_device__()[0] in dlpack.CUDA:
        return from_dlpack_of_device(source)
    return note_shared(passive(np.from_dlpack(source)))


# creation functions that take values, with a replacement that differentiates these
_OF_VALUES = {
    "logspace": "10.0 ** tg.linspace(start, stop, num)",
    "arange": "start + step * tg.arange(n)",
}


def _maker(name: str) -> Callable[..., Tensor]:
    make = getattr(np, name)

    def function(
        *args: Any, requires_grad: bool = False, device: Any = None, **kwargs: Any
    ) -> Tensor:
        if MODE.special and name.endswith("_like") and args and type(args[0]) is Batched:
            return as_array_without_axes(made_like(function, args[0], args[1:], kwargs))
        if MODE.special and name.endswith("_like") and args and type(args[0]) is Traced:
            args = (args[0]._node.like, *args[1:])  # for its shape and dtype
        if name in _OF_VALUES:
            values = (*args, *kwargs.values())
            refuse_traced(values, f"{name} of a value that depends on the arguments")
            if any(map(holds_tracked, values)):
                what = "is batched has no values" if holds_batched(values) else ""
                raise TypeError(
                    f"{name} of a tensor that {what or 'requires grad would lose its history'}; "
                    f"write {_OF_VALUES[name]}{'' if what else ', or detach() it'}"
                )
        plain = {key: unwrap(value) for key, value in kwargs.items()}
        like = args[:1] if name.endswith("_like") and origin_of(args[:1]) == OF_ARRAYS else ()
        result = _made(as_array(make(*map(unwrap, args), **plain)), *like)
        if device is not None:
            result = to_device(result, device)
        return result.requires_grad_() if requires_grad else result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"numpy.{name} as a tensor, with additional `requires_grad` and `device`."
    return function


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    requires_grad: bool = False,
    device: Any = None,
) -> Any:
    """numpy.linspace as a tensor, differentiable with respect to `start` and `stop`.

    Parameters
    ----------
    start, stop, num, endpoint, retstep, dtype, axis
        As for NumPy.
    requires_grad
        Make a leaf that requires gradients, if `start` and `stop` do not.
    device
        ``"cpu"`` or ``"cuda"``; default: that of `start` and `stop`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.grad(lambda stop: tg.linspace(0.0, stop, 5).sum())(1.0)
    np.float64(2.5)
    """
    is_plain = not holds_tracked([start, stop])  # a tracked tensor may have no array to ask
    if is_plain and not is_of_device(start) and not is_of_device(stop):
        ends: tuple[Any, Any] = unwrap(start), unwrap(stop)
        found, step = np.linspace(*ends, num, endpoint, retstep=True, dtype=dtype, axis=axis)
        made = array(found, requires_grad=requires_grad, device=device)
        if type(made._meta) is Origin:
            made._meta = meta_of_result(start, stop)
        return (made, step) if retstep else made
    one, two = (as_tensor(end, device=device) for end in (start, stop))
    # numbers of Python have no precision of their own
    kinds = [
        end if type(end) in (int, float, complex) else made.dtype
        for end, made in ((start, one), (stop, two))
    ]
    kind = np.result_type(*kinds, 0.0)
    one, two = one.astype(kind), two.astype(kind)
    share = np.linspace(0.0, 1.0, num, endpoint, dtype=np.finfo(kind).dtype)
    share = share.reshape(-1, *[1] * max(one.ndim, two.ndim))
    spaced = one + (two - one) * share
    spaced = moveaxis(spaced, 0, axis)
    if dtype is not None:
        spaced = spaced.astype(dtype)
    spaced = _requiring(spaced, requires_grad)
    if not retstep:
        return spaced
    count = num - endpoint
    return spaced, (two - one) * (1.0 / count if count else np.nan)


def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "C",
    *,
    requires_grad: bool = False,
    device: Any = None,
) -> Tensor:
    """numpy.full as a tensor, differentiable with respect to `fill_value`.

    Parameters
    ----------
    shape, fill_value, dtype, order
        As for NumPy.
    requires_grad
        Make a leaf that requires gradients, if `fill_value` does not.
    device
        ``"cpu"`` or ``"cuda"``; default: that of `fill_value`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.grad(lambda x: tg.full(3, x).sum())(1.0)
    np.float64(3.0)
    """
    if not holds_tracked([fill_value]):
        return _full(shape, fill_value, dtype, order, requires_grad=requires_grad, device=device)
    value = as_tensor(fill_value, dtype, device)
    place = value.device if type(value) is Tensor else None  # unknown of traced and batched ones
    ones = CREATION["ones"](shape, value.dtype, order, device=place)
    return _filled("full", ones, value, requires_grad)


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    requires_grad: bool = False,
    device: Any = None,
) -> Tensor:
    """numpy.full_like as a tensor, differentiable with respect to `fill_value`.

    Parameters
    ----------
    a, fill_value, dtype, order, subok, shape
        As for NumPy.
    requires_grad
        Make a leaf that requires gradients, if `fill_value` does not.
    device
        ``"cpu"`` or ``"cuda"``; default: that of `a`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.grad(lambda x: (tg.full_like(x, x[1]) * x).sum())(np.array([1.0, 2.0]))
    array([2., 5.])
    """
    options = {"dtype": dtype, "order": order, "subok": subok, "shape": shape, "device": device}
    if not holds_tracked([fill_value]):
        return _full_like(a, fill_value, requires_grad=requires_grad, **options)
    ones = CREATION["ones_like"](a, **options)
    return _filled("full_like", ones, as_tensor(fill_value, ones.dtype, device), requires_grad)


def _filled(name: str, ones: Tensor, value: Tensor, requires_grad: bool) -> Tensor:
    """Return a tensor like one of ones with elements that have a history."""
    found = ones * value
    if found.shape != ones.shape:
        raise ValueError(
            f"{name}: could not broadcast a value of shape {value.shape} to {ones.shape}"
        )
    return _requiring(found, requires_grad)


_full, _full_like = _maker("full"), _maker("full_like")


class Brackets:
    """``tg.r_[...]`` and ``tg.c_[...]``: join arrays, numbers and ranges, as NumPy does.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.r_[x, 0.0, 3:5]
    tensor([1., 2., 0., 3., 4.], grad_fn=<GatherBackward>)
    """

    def __init__(self, numpys: Any) -> None:
        self._numpys = numpys

    def __getitem__(self, key: Any) -> Tensor:
        items = key if isinstance(key, tuple) else (key,)
        plain = [unwrap(item) for item in items]
        dtype = self._numpys[tuple(plain)].dtype  # numbers do not raise the precision
        words = [item for item in items[:1] if isinstance(item, str)]
        parts = [np.r_[item] if isinstance(item, slice) else item for item in items[len(words) :]]
        joined = rearranged(lambda *places: self._numpys[(*words, *places)], parts, dtype)
        return as_tensor(joined)

    def __repr__(self) -> str:
        return f"<{'c_' if self._numpys is np.c_ else 'r_'}[...] of tensors>"


CREATION: dict[str, Any] = {
    name: _maker(name)
    for name in [
        "arange", "empty", "empty_like", "eye", "identity", "logspace", "ones", "ones_like", "tri",
        "zeros", "zeros_like",
    ]
}  # fmt: skip
CREATION |= {"full": full, "full_like": full_like}
CREATION |= {"r_": Brackets(np.r_), "c_": Brackets(np.c_)}
CREATION |= {"tensor": tensor, "array": array, "as_tensor": as_tensor, "from_dlpack": from_dlpack}
CREATION["linspace"] = linspace
CREATION["asarray"] = asarray
