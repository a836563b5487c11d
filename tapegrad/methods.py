"""Operators, methods and protocols of Tensor, derived from the numeric namespace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad import array_api
from tapegrad.autograd import api
from tapegrad.autograd.engine import hooks
from tapegrad.cuda import dlpack
from tapegrad.cuda.array import HOST
from tapegrad.eager import devices, inplace, inplace_views
from tapegrad.eager.duals import any_dual, carry_tangent
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS, REFLECTED, operator
from tapegrad.eager.operators import wants_its_own
from tapegrad.eager.tensor import Tensor, has_values, wrap
from tapegrad.eager.traced_calls import made_inside
from tapegrad.eager.values import is_value
from tapegrad.eager.ways_out import no_array
from tapegrad.ops.shape import in_order, is_packed, laid_out
from tapegrad.ops.table.composite import COMPOSITES, declarations
from tapegrad.ops.table.kinds import Elementwise
from tapegrad.ops.table.op import TABLE, Op, memory_order
from tapegrad.tape import drawing
from tapegrad.tape.tape import TAPE

BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "pow": "power",
    "floordiv": "floor_divide",
    "mod": "mod",
    "matmul": "matmul",
}
PASSIVE_BINARY = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
}
REFLECTED_PASSIVE = {"and", "or", "xor", "lshift", "rshift"}  # these have in-place forms too
UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
# Methods of functions without derivatives; other methods are declared with their functions.
PASSIVE_METHODS = ["all", "any", "argmax", "argmin", "argsort"]


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(other, self)


def _install_operators() -> None:
    for symbol, name in BINARY.items():
        function = operator(name)
        setattr(Tensor, f"__{symbol}__", function)
        setattr(Tensor, f"__r{symbol}__", REFLECTED.get(name) or _swapped(FUNCTIONS[name]))
        setattr(Tensor, f"__i{symbol}__", _inplace_operator(TABLE[name], function))
    for symbol, name in PASSIVE_BINARY.items():
        function = operator(name)
        setattr(Tensor, f"__{symbol}__", function)
        if symbol in REFLECTED_PASSIVE:
            setattr(Tensor, f"__r{symbol}__", _swapped(FUNCTIONS[name]))
            setattr(Tensor, f"__i{symbol}__", _inplace_passive(symbol, function))
    for symbol, name in UNARY.items():
        setattr(Tensor, f"__{symbol}__", FUNCTIONS[name])


def _inplace_operator(op: Op, compute: Callable[..., Any]) -> Callable[..., Tensor]:
    def inplace_operator(self: Tensor, other: Any) -> Tensor:
        if is_value(self):
            return compute(self, other)
        try:
            return inplace.apply_inplace(op, self, other)
        except (TypeError, ValueError):
            if wants_its_own(other):
                return NotImplemented
            raise

    return inplace_operator


def _inplace_passive(symbol: str, compute: Callable[..., Any]) -> Callable[..., Tensor]:
    def inplace_operator(self: Tensor, other: Any) -> Tensor:
        found = compute(self, other)
        if is_value(self) or found is NotImplemented:
            return found
        return inplace.write(self, found, f"__i{symbol}__")

    return inplace_operator


# PyTorch's names of in-place methods that differ from NumPy's name of the op
INPLACE_NAMES = {
    "abs_": "absolute",
    "div_": "divide",
    "mul_": "multiply",
    "neg_": "negative",
    "pow_": "power",
    "remainder_": "mod",
    "round_": "rint",
    "sub_": "subtract",
}


def _install_methods() -> None:
    for name in PASSIVE_METHODS:
        setattr(Tensor, name, FUNCTIONS[name])
    for name, declared in declarations().items():
        if declared.is_method:
            setattr(Tensor, name, FUNCTIONS[name])
        is_method = isinstance(declared, Elementwise) and declared.arguments[0] == "x"
        if is_method and name in declared.names:  # and not in a namespace only
            setattr(Tensor, name, FUNCTIONS[name])
            setattr(Tensor, f"{name}_", _inplace_operator_n(name))
    for method, name in INPLACE_NAMES.items():
        setattr(Tensor, method, _inplace_operator_n(name))
    for method in ("clip_", "clamp_"):
        setattr(Tensor, method, _inplace_operator_n("clip"))
    for alias in ("abs", "expit"):
        setattr(Tensor, alias, FUNCTIONS[alias])


def _inplace_operator_n(name: str) -> Callable[..., Tensor]:
    op = TABLE.get(name) or COMPOSITES[name]

    def method(self: Tensor, *others: Any, **named: Any) -> Tensor:
        return inplace.apply_inplace(op, self, *others, **named)

    method.__name__ = f"{name}_"
    method.__doc__ = f"`{name}` in place: the tensor itself gets the result."
    return method


# -- methods with separate signatures -------------------------------------------------------------


def _reshape(self: Tensor, *shape: Any, order: str = "C") -> Tensor:
    """Return the elements in another shape, given as a tuple or as separate integers."""
    wanted = shape[0] if len(shape) == 1 else shape
    if order != "C":
        return in_order(self, wanted, order, "reshape")
    return FUNCTIONS["reshape"](self, wanted)


def _astype(
    self: Tensor,
    dtype: Any,
    order: str = "K",
    casting: str = "unsafe",
    subok: bool = True,
    copy: bool = True,
) -> Tensor:
    """Return the elements as another type; options that concern memory layout have no effect."""
    if not copy and self.dtype == dtype:
        return self
    if casting != "unsafe":  # raises NumPy's own error for a cast that is not allowed
        np.empty(0, self.dtype).astype(dtype, casting=casting)  # type: ignore[call-overload]
    return FUNCTIONS["astype"](self, dtype)


def _transpose(self: Tensor, *axes: Any) -> Tensor:
    """Permute the axes, given as a tuple or as separate integers (reverse them by default)."""
    wanted = None if not axes else axes[0] if len(axes) == 1 else axes
    return FUNCTIONS["transpose"](self, wanted)


def _flatten(self: Tensor, order: str = "C") -> Tensor:
    """Return a flattened copy."""
    return FUNCTIONS["positive"](FUNCTIONS["ravel"](self, order))


def _clone(self: Tensor) -> Tensor:
    """Return a copy; the copy is recorded."""
    if _is_outside(self):
        MODE.thread.trace.capture(self)
        return made_inside(self._a.copy("K"))
    if self.dtype == bool:
        return wrap(self._a.copy("K"))
    made: Tensor = FUNCTIONS["positive"](self)
    # of what is broadcast, NumPy's copies lie otherwise in memory than its results
    return made if self._is_contiguous else laid_out(made, memory_order(self))


def _is_outside(x: Tensor) -> bool:
    """Whether a function is recorded, and a tensor is a constant for it, whose copies are its own.

    Writes to these are recorded.
    """
    if not MODE.special or MODE.thread.trace is None:
        return False
    return type(x) is Tensor and x._own is None and x.device == HOST


def _copied(self: Tensor, order: str = "C") -> Tensor:
    """Return a copy with its elements in an order of NumPy's; the copy is recorded."""
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"copy: order {order!r} is none of 'C', 'F', 'A', 'K'")
    if order == "A":
        order = "F" if is_packed(self, 1) and not is_packed(self, -1) else "C"
    if order == "F":
        return _transpose(_copied(_transpose(self)))
    if order == "K" or self._is_contiguous:
        return self.clone()
    return FUNCTIONS["reshape"](_flatten(self), self.shape)


def _copy_(self: Tensor, source: Any) -> Tensor:
    """Overwrite in place with a source, which is broadcast; return self."""
    return inplace.write(self, source, "copy_", keep=True)


def _zero_(self: Tensor) -> Tensor:
    """Set all elements to 0, in place; return self."""
    return inplace.write(self, np.zeros((), self.dtype), "zero_", keep=True)


def _fill_(self: Tensor, value: Any) -> Tensor:
    """Set all elements to a number, in place; return self."""
    return inplace.write(self, value, "fill_", keep=True)


def _fill(self: Tensor, value: Any) -> None:
    """Set all elements to a number, in place."""
    inplace.write(self, value, "fill", keep=True)


def _backward(
    self: Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add this tensor's gradients to the `.grad` of its leaves (see `autograd.backward`).

    Parameters
    ----------
    gradient
        Cotangent of this tensor; optional if it has one element.
    retain_graph, create_graph, inputs
        As for `tapegrad.autograd.backward`.
    """
    cotangent = None if gradient is None else [gradient]
    api.backward(self, cotangent, retain_graph, create_graph, inputs=inputs)


# -- protocols ------------------------------------------------------------------------------------


def _array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    if self._own is not None and MODE.recording:
        raise RuntimeError(no_array(self.ndim, dtype))
    return np.array(self.numpy(), dtype=dtype, copy=copy)


def _repr(self: Tensor) -> str:
    shown = self._a if self.device == HOST else self._a.to_host()
    body = np.array2string(shown, separator=", ", prefix="tensor(")
    notes = [] if self.device == HOST else [f"device={self.device!r}"]
    if self.dtype not in (np.float64, np.int64, np.bool_) or not self.size:
        notes.append(f"dtype={self.dtype}")
    if self._own is not None:
        notes.append("requires_grad=True" if self.is_leaf else f"grad_fn={self.grad_fn}")
    return f"tensor({', '.join([body, *notes])})"


def _format(self: Tensor, spec: str) -> str:
    return format(self._read().item(), spec) if spec and not self.ndim else format(repr(self), spec)


def _keep_data(self: Tensor) -> None:
    raise RuntimeError("Deleting tensor data is not allowed. Delete tensor instead!")


def _data(self: Tensor) -> Tensor:
    self._read()
    # a separate array on the same memory: mutations of one are not noted for the other
    alone = self._a.alone() if self.device != HOST else np.lib.stride_tricks.as_strided(self._a)
    return wrap(alone, None, self.is_inference())


def _part(name: str) -> property:
    """Make the property of the real or imaginary part, which can be assigned to."""

    def assign(self: Tensor, value: Any) -> None:
        part = FUNCTIONS[name](self)
        if type(part) is Tensor and part._a.base is None:
            raise TypeError(f"{name}: a tensor of dtype {self.dtype} has no such part to assign to")
        inplace.assign_item(part, ..., value)

    return property(lambda self: FUNCTIONS[name](self), assign, doc=f"The {name} part.")


def _conj(self: Tensor) -> Tensor:
    """Return the complex conjugate; of real values the tensor itself, as NumPy's method does."""
    return FUNCTIONS["conj"](self) if self.dtype.kind == "c" else self


def _version(self: Tensor) -> int:
    meta = self.meta()
    if meta is not None and meta.inference:
        raise RuntimeError("Inference tensors do not track version counter.")
    return TAPE.version(self._a) + (0 if meta is None else meta.writes_before)


def _base(self: Tensor) -> Tensor | None:
    """Return what it is a view of; an inference tensor is a view of nothing, as in PyTorch."""
    meta = self.meta()
    return None if meta is None or meta.inference else meta.base


def _iter(self: Tensor) -> Any:
    if not self.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return (self[k] for k in range(len(self)))  # as they are when each is asked for


def _contains(self: Tensor, value: Any) -> bool:
    return value in self._a if not isinstance(value, Tensor) else value._a in self._a


def _reduce(self: Tensor) -> Any:
    if not self.is_leaf:
        raise RuntimeError(
            "only leaf tensors can be pickled (the graph stays behind); detach() first"
        )
    if any_dual((self,)):
        raise RuntimeError(
            "a tensor that has a tangent cannot be pickled, since the tangent would be lost; "
            "detach() first"
        )
    grad = self.grad
    if self.device != HOST:
        return _rebuild, (self._a.to_host(), self.requires_grad, grad, self.device)
    return _rebuild, (self._a, self.requires_grad, grad)


def _rebuild(
    array: Any, requires_grad: bool, grad: Tensor | None, device: str | None = None
) -> Tensor:
    result = wrap(devices.array_on(device, array))
    if requires_grad:
        result.requires_grad_()
    if grad is not None:
        result.grad = grad
    return result


def _copy(self: Tensor) -> Tensor:
    """Share the memory: a leaf that requires gradients with its `.grad`, others as a view.

    In functions of arrays, it is a copy, as of arrays.
    """
    if has_values(self):
        return self.clone()
    if self._own is None or not self.is_leaf:
        return inplace.read_item(self, ...)
    result = wrap(self._a, self._own)
    result._meta = self.meta()
    return result


def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """Copy a leaf, as a leaf; in transforms and functions of arrays, copy with the history."""
    if has_values(self) or MODE.thread.transform is not None:
        memo[id(self)] = copied = self.clone()
        return copied
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment; detach() first"
        )
    self._read()
    grad = copy.deepcopy(self.grad, memo)
    result: Tensor = _rebuild(self._a.copy(), self.requires_grad, grad)
    memo[id(self)] = result
    return carry_tangent(self, result)


def _dlpack(self: Tensor, **kwargs: Any) -> Any:
    if self.device == HOST:
        return self.numpy().__dlpack__(**kwargs)
    if self._own is not None:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    return dlpack.capsule(self._a, **kwargs)


def _array_namespace(self: Tensor, *, api_version: str | None = None) -> Any:
    """Return the namespace of the array API standard (see `tapegrad.array_api`)."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", array_api.__array_api_version__):
        raise ValueError(
            f"version {api_version!r} of the array API is not supported; "
            f"{array_api.__array_api_version__!r} is, and those before it"
        )
    return array_api


def _to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """Return the tensor on a device (the array API's name of `to`)."""
    if stream is not None:
        raise ValueError(f"to_device: got stream {stream!r}; all kernels run on the default stream")
    return devices.to_device(self, device)


def _dlpack_device(self: Tensor) -> Any:
    return self._a.__dlpack_device__() if self.device == HOST else (dlpack.CUDA[0], 0)


def _install_protocols() -> None:
    special: dict[str, Any] = {
        "T": property(lambda self: FUNCTIONS["transpose"](self), doc="The transpose."),
        "real": _part("real"),
        "imag": _part("imag"),
        "mT": property(lambda self: FUNCTIONS["matrix_transpose"](self), doc="Last axes swapped."),
        "_version": property(_version, doc="Mutations of the memory."),
        "_base": property(_base),
        "_is_view": lambda self: _base(self) is not None,
        "__array__": _array,
        "__array_namespace__": _array_namespace,
        "__contains__": _contains,
        "__divmod__": FUNCTIONS["divmod"],
        "__rdivmod__": lambda self, other: FUNCTIONS["divmod"](other, self),
        "__round__": lambda self, ndigits=None: FUNCTIONS["round"](self, ndigits or 0),
        "__copy__": _copy,
        "__deepcopy__": _deepcopy,
        "__dlpack__": _dlpack,
        "__cuda_array_interface__": property(devices.interface),
        "__dlpack_device__": _dlpack_device,
        "__format__": _format,
        "__getitem__": inplace.read_item,
        "__iter__": _iter,
        "__reduce__": _reduce,
        "__repr__": _repr,
        "__setitem__": inplace.assign_item,
        "astype": _astype,
        "backward": _backward,
        "clone": _clone,
        "conj": _conj,
        "conjugate": _conj,
        "copy": _copied,
        "copy_": _copy_,
        "expand_dims_": inplace_views.expand_dims_,
        "cpu": lambda self: devices.to_device(self, HOST),
        "cuda": devices.to_cuda,
        "data": property(
            _data, hooks.set_data, _keep_data, "The memory, mutations of which go unnoticed."
        ),
        "detach_": hooks.detach_,
        "fill": _fill,
        "fill_": _fill_,
        "flatten": _flatten,
        "draw": lambda self: drawing.draw(self._own),
        "grad_fn": property(hooks.grad_fn, doc="The node that recorded it, None for leaves."),
        "output_nr": property(hooks.output_nr, doc="Which output of its record it is."),
        "register_hook": hooks.register_hook,
        "register_post_accumulate_grad_hook": hooks.register_post_accumulate_grad_hook,
        "reshape": _reshape,
        "as_strided": inplace_views.as_strided,
        "as_strided_": inplace_views.as_strided,
        "resize_": inplace_views.resize_,
        "retain_grad": hooks.retain_grad,
        "retains_grad": property(hooks.retains_grad, doc="Whether `.grad` will be kept."),
        "squeeze_": inplace_views.squeeze_,
        "swapaxes_": inplace_views.swap_,
        "t_": inplace_views.t_,
        "transpose": _transpose,
        "transpose_": inplace_views.swap_,
        "to": devices.to,
        "to_device": _to_device,
        "unsqueeze_": inplace_views.expand_dims_,
        "zero_": _zero_,
    }
    for name, value in special.items():
        setattr(Tensor, name, value)


_install_operators()
_install_methods()
_install_protocols()
