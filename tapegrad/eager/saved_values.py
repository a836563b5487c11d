"""Values saved by records, plain or packed by the user's hooks.

A saved value is an array or a tensor, whose history is needed for higher derivatives. If
saved-tensor hooks are active, a `Packed` holds the result of the innermost pack hook.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.cuda.array import DeviceArray
from tapegrad.eager.duals import carry_tangent, saved_tangent, tangent_of, with_saved_tangent
from tapegrad.eager.modes import MODE
from tapegrad.eager.shared_memory import copied
from tapegrad.eager.tensor import Tensor, is_shared, wrap
from tapegrad.tape.owner import Owner
from tapegrad.tape.sweep import MutatedError
from tapegrad.tape.tape import TAPE

SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)

INFERENCE_SAVED = (
    "Inference tensors cannot be saved for backward. Please do not use Tensors created in "
    "inference mode in computation tracked by autograd. To work around this, you can make a clone "
    "to get a normal tensor and use it in autograd, or use `tapegrad.no_grad()` instead of "
    "`tapegrad.inference_mode()`."
)


class Packed:
    """A saved value in the form returned by the user's pack hook."""

    __slots__ = ("content", "own", "tangent", "unpack_hook")

    def __init__(self, value: Tensor, own: Owner | None) -> None:
        pack, self.unpack_hook = MODE.thread.saved_hooks[-1]
        self.own = own
        self.tangent = saved_tangent(value)
        shown = wrap(value._a, value._own)
        version = TAPE.version(value._a)
        self.content = MODE.with_recording(False, pack, shown)
        if TAPE.version(value._a) != version:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as "
                "input to pack hook can not be modified by in-place operations as this can lead to "
                "unexpected side-effects. Work on a copy (clone()) in the hook."
            )

    def unpack(self, own: Owner | None) -> Tensor:
        """Return the value restored by the unpack hook, with the history of the saved value."""
        found = self.unpack_hook(self.content)
        if not isinstance(found, Tensor):
            raise TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                f"{type(found).__name__}"
            )
        array = unshared_tensor(found)._a  # the hook may return a work array at every call
        return with_saved_tangent(wrap(array, self.own if own is None else own), self.tangent)


def check_savable(value: Any) -> None:
    """Raise if a tensor is an inference tensor, which cannot be saved."""
    meta = value._meta
    if meta is not None and meta.inference:
        raise RuntimeError(INFERENCE_SAVED)


def unshared_tensor(value: Tensor) -> Tensor:
    """Return a tensor, or one on a copy of its memory if the user can write to that."""
    if value._own is not None or not is_shared(value):
        return value
    return carry_tangent(value, wrap(copied(value._a)))


def with_own_memory(value: Tensor) -> Tensor:
    """Return what a rule or a hook of the user returned, copied if it may be a work array."""
    if value._meta is None or value._own is not None or not is_shared(value):
        return value
    return carry_tangent(value, wrap(value._a.copy()))


def save(value: Any, is_result: bool = False) -> Any:
    """Return a value to save; a tensor is kept with its present history, which may change later.

    The items of lists are saved one by one. Arrays of the user are copied. Other values are
    returned unchanged.

    Parameters
    ----------
    value
        An argument of an op, or its result.
    is_result
        Whether it is the result, whose arrays are new.
    """
    kind = type(value)
    if kind is Tensor:
        if value._meta is not None:
            check_savable(value)
            value = unshared_tensor(value)
        elif not MODE.special:  # no tangent either
            return wrap(value._a, value._own)
        if MODE.special and MODE.thread.saved_hooks:
            return Packed(value, value._own)
        return with_saved_tangent(wrap(value._a, value._own), saved_tangent(value))
    if isinstance(value, (list, tuple)):
        items = (save(item, is_result) for item in value)
        return kind(*items) if hasattr(value, "_fields") else kind(items)
    if isinstance(value, np.ndarray):
        value = value if is_result else copied(value)
    elif kind is not DeviceArray:
        return value
    return Packed(wrap(value), None) if MODE.special and MODE.thread.saved_hooks else value


def restore(value: Any, slot: int, own: Owner | None = None) -> Any:
    """Return a saved value after checking that it was not modified.

    Parameters
    ----------
    value
        A result of `save`.
    slot
        Slot of the record that saved it.
    own
        Owner of the value, if the saved value does not hold it.
    """
    kind = type(value)
    if kind is Packed:
        return value.unpack(own)
    if kind is np.ndarray or kind is DeviceArray:
        check_unmutated(slot, value)
        return value if own is None else wrap(value, own)
    if kind is Tensor:
        check_unmutated(slot, value._a)
        if value._meta is not None and (tangent := tangent_of(value)) is not None:
            check_unmutated(slot, tangent._a)
        return value
    if kind in (list, tuple):
        return kind(restore(item, slot) for item in value)
    return value


def check_unmutated(slot: int, array: np.ndarray) -> None:
    """Raise if a saved array was mutated after the record at `slot`."""
    if TAPE.is_written(array, slot):
        raise MutatedError(slot)
