"""Tensor: the user's handle on an array and its record on the tape."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.cuda.array import NO_NUMPY as NO_NUMPY_DEVICE
from tapegrad.cuda.array import Array, DeviceArray, device_of
from tapegrad.eager.detached import note_detached
from tapegrad.eager.modes import MODE
from tapegrad.kernels.dtypes import cast_of
from tapegrad.ops.shape import relaid
from tapegrad.ops.table.op import copied
from tapegrad.tape.avals import AVALS, DIFFERENTIABLE
from tapegrad.tape.layout import LEAF_CLOCK, OWN_SLOT
from tapegrad.tape.owner import Notes, Owner, notes_of, take_notes
from tapegrad.tape.tape import TAPE

if TYPE_CHECKING:  # derived from the op table (`tapegrad.methods`)
    from tapegrad.stubs.methods import Methods
else:
    Methods = object

NO_NUMPY = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
NO_NUMPY_DUAL = (
    "Can't call numpy() on a Tensor that has a tangent, which would be lost. Use "
    "tensor.detach().numpy() instead."
)


# What a tensor is made of: numbers only, arrays, or tensors that the user made. Items of what is
# made of arrays are values, as NumPy's are; those of others are views, as PyTorch's.
OF_NUMBERS, OF_ARRAYS, OF_TENSORS = range(3)


class Meta:
    """Attributes that few tensors have: a gradient, hooks, the base of a view.

    A leaf's owner holds its meta, and so does everything recorded from the leaf: gradients are
    accumulated even after the tensor itself is deleted.
    """

    grad: Tensor | None = None
    leaf: weakref.ref[Tensor] | None = None  # the tensor, if it is a leaf
    array: Array | None = None
    notes: Notes | None = None  # notes of its former record, while it does not require gradients
    retains_grad = False
    writes_before = 0  # difference of its version from that of the memory
    inference = False  # made in inference mode
    base: Tensor | None = None  # the tensor that it is a view of, ...
    steps: tuple[Any, ...] = ()  # ... by these view ops, ...
    unrecorded_view = ""  # ... made in this mode, without a record, ...
    unrecorded_source = ""  # ... or made from such a view by this op
    function_view = ""  # ... or by this Function, whose record is not a view
    one_of_several: tuple[str, int] | None = None  # ... or one of several views by this function
    views: list[weakref.ref[Tensor]] | None = None  # views of this tensor
    tangent: Any = None  # in forward mode: its tangent (`tapegrad.eager.duals.Tangent`), ...
    tangent_steps: tuple[Any, ...] = ()  # ... or that of which it is a view by these view ops
    origin = OF_TENSORS  # what it is made of, unless it is a view
    is_array = False  # whether it, without axes, is an array for NumPy too, and no number
    is_shared = False  # whether the user can write to its memory through NumPy

    def variable(self, own: Owner) -> Tensor:
        """Return the leaf, recreated if its tensor was deleted."""
        known = None if self.leaf is None else self.leaf()
        if known is None:
            assert self.array is not None
            known = wrap(self.array, own)
            known._meta = self
            self.leaf = weakref.ref(known)
        return known

    def add_view(self, view: Tensor) -> None:
        """Note a view of this tensor; drop views that were deleted."""
        if self.views is None:
            self.views = []
        elif len(self.views) > 8 and len(self.views) & (len(self.views) - 1) == 0:
            self.views = [known for known in self.views if known() is not None]
        self.views.append(weakref.ref(view))


class Origin(Meta):
    """The meta of all tensors of one origin that have no other rare attributes; never changed."""

    def __init__(self, origin: int, is_shared: bool = False) -> None:
        self.__dict__.update(origin=origin, is_shared=is_shared)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError(f"{name} would be set for all tensors of one origin")


NUMBERS_ONLY = Origin(OF_NUMBERS)
ARRAYS_ONLY = Origin(OF_ARRAYS)
ITEM = Origin(OF_ARRAYS)  # of a copy of an item, which stands for a number
SHARED = Origin(OF_TENSORS, is_shared=True)
SHARED_ARRAY = Origin(OF_ARRAYS, is_shared=True)


class Tensor(Methods):
    """An array whose computations are recorded for differentiation.

    Tensors are created by `tapegrad.tensor` and by ops. Functions and methods follow NumPy; the
    autograd attributes (`requires_grad`, `grad`, `backward`, ...) follow PyTorch.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([2., 4.])
    """

    __slots__ = ("__weakref__", "_a", "_meta", "_own")
    __array_priority__ = 1000
    __pandas_priority__ = 5000  # higher than a DataFrame's, so that pandas defers to tensors
    _apply_op = True  # ops dispatch on it instead of computing with it as an array
    _has_array = True  # see `tapegrad.ops.table.op.known`

    _a: Array
    _own: Owner | None
    _meta: Meta | None
    _record_leaf: Callable[..., None]  # set by `tapegrad.eager.histories`
    _is_dual: Callable[..., bool]  # set by `tapegrad.eager.duals`

    # -- the array --------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return self._a.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._a.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._a.size

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return self._a.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from an element to the next one along each axis."""
        return self._a.strides

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return self._a.itemsize

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""
        return self._a.nbytes

    @property
    def device(self) -> str:
        """Where the memory is: ``"cpu"`` or ``"cuda:0"``."""
        return device_of(self._a)

    def _read(self) -> Array:
        """Return the array, for code that reads values.

        While a function is recorded, those of a tensor that requires grad differ between calls.
        """
        if MODE.special and self._own is not None and MODE.thread.trace is not None:
            MODE.thread.trace.refuse_values()
        return self._a

    def __len__(self) -> int:
        if not self._a.ndim:
            raise TypeError("len() of a 0-d tensor")
        return len(self._a)

    def item(self, *index: int) -> Any:
        """Return one element as a Python number (the only one, or the one at `index`)."""
        return self._read().item(*index)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._read().tolist()

    def __bool__(self) -> bool:
        return bool(self._read())

    def __float__(self) -> float:
        if self._is_tracked:
            note_detached(self._own, "float()")
        return float(self._read())

    def __int__(self) -> int:
        if self._is_tracked:
            note_detached(self._own, "int()")
        return int(self._read())

    def __index__(self) -> int:
        return int(self._read().__index__())

    def __complex__(self) -> complex:
        if self._is_tracked:
            note_detached(self._own, "complex()")
        return complex(self._read())

    __hash__ = object.__hash__

    # -- the graph --------------------------------------------------------------------------------

    def meta(self) -> Meta | None:
        """Return the rare attributes or None (internal)."""
        return self._meta

    def ensure_meta(self) -> Meta:
        """Return the rare attributes, creating them if needed (internal)."""
        found = self._meta
        if found is None:
            found = self._meta = Meta()
        elif type(found) is Origin:
            known, found = found, Meta()
            found.origin, found.is_shared = known.origin, known.is_shared
            self._meta = found
        return found

    @property
    def _is_tracked(self) -> bool:
        """Whether derivatives pass through it: it requires grad, or has a tangent."""
        return self._own is not None or (bool(MODE.special) and self._is_dual())

    @property
    def _is_contiguous(self) -> bool:
        """Whether its elements lie in memory in row-major order, without gaps."""
        return bool(self._a.flags.c_contiguous)

    @property
    def _memory_strides(self) -> tuple[int, ...]:
        return self.strides

    def _laid_out(self, axes: tuple[int, ...], is_new: bool) -> Tensor:
        """Return a tensor without gaps in memory (see `tapegrad.ops.shape.laid_out`)."""
        is_view = self._meta is not None and self._meta.base is not None
        found: Tensor = self if is_new and not is_view else copied(self)
        found._a = relaid(found._a, axes)
        return found

    @property
    def is_leaf(self) -> bool:
        """Whether it is not the result of a recorded op."""
        own = self._own
        return own is None or own[OWN_SLOT] >= LEAF_CLOCK

    @property
    def requires_grad(self) -> bool:
        """Whether ops on it are recorded; settable on leaves."""
        return self._own is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, (bool, np.bool_)):
            raise RuntimeError("requires_grad must be a bool")
        self.requires_grad_(value)

    @requires_grad.deleter
    def requires_grad(self) -> None:
        raise RuntimeError("requires_grad must be a bool")

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Start (or stop) recording ops on this leaf; return it.

        Raises
        ------
        RuntimeError
            If it is not a leaf, or its dtype is neither floating point nor complex.
        TypeError
            If `requires_grad` is not a bool.
        """
        if not isinstance(requires_grad, (bool, np.bool_)):
            raise TypeError(
                "requires_grad_(): argument 'requires_grad' (position 1) must be bool, not "
                f"{type(requires_grad).__name__}"
            )
        if bool(requires_grad) is self.requires_grad:
            return self
        if not self.is_leaf:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a "
                "computed variable in a subgraph that doesn't require differentiation use "
                "var_no_grad = var.detach()."
            )
        if not requires_grad:
            assert self._own is not None
            self.ensure_meta().notes = notes_of(self._own)
            self._own = None
            return self
        if self._a.dtype not in DIFFERENTIABLE:
            cast = cast_of(self._a.dtype)
            raise RuntimeError(
                "Only Tensors of floating point and complex dtype can require gradients "
                f"(got {self._a.dtype}; tapegrad differentiates float32, float64, complex64 and "
                f"complex128{cast and '; ' + cast})"
            )
        meta = self.ensure_meta()
        if meta.inference and not MODE.thread.inference:
            raise RuntimeError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not "
                "allowed."
            )
        if meta.inference:
            MODE.note_inference_leaf(meta)
        meta.leaf, meta.array, meta.origin = weakref.ref(self), self._a, OF_TENSORS
        own = TAPE.new_leaf(AVALS.of(self._a), meta)
        if meta.notes is not None:  # from when it was a leaf before
            take_notes(own, meta.notes)
        if meta.views is None:
            self._own = own
        else:
            self._record_leaf(own)
        meta.notes = None
        return self

    def detach(self) -> Tensor:
        """Return a tensor on the same memory, outside the graph."""
        if MODE.special and MODE.thread.trace is not None and self._own is not None:
            return MODE.thread.trace.detached(self)
        found = wrap(self._a, None, self.is_inference())
        return note_shared(found) if is_shared(self) else found

    def is_inference(self) -> bool:
        """Return whether it was made in inference mode."""
        meta = self._meta
        return meta is not None and meta.inference

    def numpy(self) -> np.ndarray:
        """Return the array itself (shared memory).

        Raises
        ------
        RuntimeError
            If the tensor requires gradients and ops are recorded, or has a tangent: what is
            computed with the array is not differentiated.
        TypeError
            If the tensor is on a device.
        """
        self._read()
        if self._own is not None and MODE.recording:
            raise RuntimeError(NO_NUMPY)
        if MODE.special and MODE.thread.dual is not None and self._is_dual():
            raise RuntimeError(NO_NUMPY_DUAL)
        if type(self._a) is DeviceArray:
            raise TypeError(NO_NUMPY_DEVICE)
        return self._a

    @property
    def grad(self) -> Tensor | None:
        """Gradient accumulated by `backward`, or None; settable."""
        self._read()
        meta = self.meta()
        if not self.is_leaf and (meta is None or (not meta.retains_grad and meta.grad is None)):
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its "
                ".grad attribute won't be populated during autograd.backward(). If you indeed want "
                "the .grad field to be populated for a non-leaf Tensor, use .retain_grad() on the "
                "non-leaf Tensor.",
                UserWarning,
                stacklevel=2,
            )
        return None if meta is None else meta.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"assigned grad expected to be a Tensor or None but got grad of type "
                    f"{type(value).__name__}"
                )
            if value.device != self.device:
                raise RuntimeError(
                    f"attempting to assign a gradient with device type '{value.device}' to a "
                    f"tensor with device type '{self.device}'. Please ensure that the gradient and "
                    "the tensor are on the same device"
                )
            if value.shape != self.shape:
                raise RuntimeError(
                    f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor of "
                    f"size '{list(self.shape)}'. Please ensure that the gradient and the tensor "
                    "are the same size"
                )
            if value.dtype != self.dtype:
                raise RuntimeError(
                    f"assigned grad has data of a different type: expected {self.dtype}, got "
                    f"{value.dtype}"
                )
            if value is self:
                raise RuntimeError("can't assign Variable as its own grad")
        self.ensure_meta().grad = value

    @grad.deleter
    def grad(self) -> None:
        self.ensure_meta().grad = None


AVALS.at_complex = MODE.note_complex


def wrap(array: Array, own: Owner | None = None, inference: bool = False) -> Tensor:
    """Make a tensor on an array without copying."""
    tensor = Tensor()
    tensor._a = array
    tensor._own = own
    tensor._meta = None
    if inference:
        tensor.ensure_meta().inference = True
    return tensor


def note_shared(tensor: Tensor) -> Tensor:
    """Note that the user can write to the memory of a tensor through NumPy; return the tensor."""
    meta = tensor._meta
    if meta is None or meta is ARRAYS_ONLY:
        tensor._meta = SHARED if meta is None else SHARED_ARRAY
    else:
        tensor.ensure_meta().is_shared = True
    return tensor


def is_shared(tensor: Tensor) -> bool:
    """Whether the user can write to the memory of a tensor through NumPy."""
    meta = tensor._meta
    if meta is not None and meta.base is not None:
        meta = meta.base._meta
    return meta is not None and meta.is_shared


_OF_NUMBERS = frozenset([bool, int, float, complex, str, type(None), slice])


def origin_of(value: Any) -> int:
    """Return what a value is made of; arrays may be in lists and tuples."""
    if isinstance(value, Tensor):
        meta = value._meta
        if meta is not None and meta.base is not None:
            meta = meta.base._meta
        return OF_TENSORS if meta is None or value._own is not None else meta.origin
    if type(value) in (list, tuple):
        return max(map(origin_of, value), default=OF_NUMBERS)
    return OF_NUMBERS if type(value) in _OF_NUMBERS else OF_ARRAYS


def meta_of_result(*operands: Any) -> Meta | None:
    """Return the meta of a result that is not recorded; without tensors, numbers are arrays."""
    origin = max(map(origin_of, operands), default=OF_ARRAYS)
    if origin == OF_TENSORS:
        return None
    if origin == OF_NUMBERS and any(isinstance(value, Tensor) for value in operands):
        return NUMBERS_ONLY
    return ARRAYS_ONLY


def has_values(tensor: Tensor) -> bool:
    """Whether the items of a tensor are values, as NumPy's are."""
    if MODE.thread.items_are_values:
        return True
    return tensor._meta is not None and origin_of(tensor) == OF_ARRAYS
