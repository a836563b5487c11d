"""Packing hooks for values saved for the backward pass, and their protection from mutation."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tapegrad.autograd.engine.node import check_hook
from tapegrad.cuda.array import HOST, DeviceArray
from tapegrad.eager.modes import MODE, ModeContext
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.tape.tape import TAPE, buffer_of

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


class saved_tensors_hooks(ModeContext):
    """Pass every value saved for the backward pass through a pair of functions.

    Contexts can be nested; the innermost pair is used.

    Parameters
    ----------
    pack_hook
        Called with the tensor when it is saved; its result is kept in place of the tensor.
    unpack_hook
        Called with that result when the backward pass needs the value; returns a tensor with the
        same content.

    Raises
    ------
    RuntimeError
        Inside `disable_saved_tensors_hooks`, with the message given there.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> with tg.autograd.graph.saved_tensors_hooks(lambda t: t.astype("float32"),
    ...                                            lambda t: t.astype("float64")):
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([2., 4.])
    """

    def __init__(self, pack_hook: Pack, unpack_hook: Unpack) -> None:
        check_hook(pack_hook, "saved_tensors_hooks")
        check_hook(unpack_hook, "saved_tensors_hooks")
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def now(self) -> Any:
        return MODE.thread.saved_hooks

    def enter(self) -> saved_tensors_hooks:
        if MODE.thread.hooks_forbidden is not None:
            raise RuntimeError(MODE.thread.hooks_forbidden)
        pair = self.pack_hook, self.unpack_hook
        MODE.set_saved_hooks((*MODE.thread.saved_hooks, pair))
        return self

    def leave(self, before: Any) -> None:
        """Pop it, with the pairs of inner contexts that were not left."""
        MODE.set_saved_hooks(before)


class save_on_cpu(saved_tensors_hooks):
    """Keep saved values in the memory of the host until they are needed.

    Values on a device are copied to the host, and back in the backward pass. Of values that are on
    the host already, copies are kept, which later mutations do not affect.

    Parameters
    ----------
    pin_memory
        Use pages of the host's memory that the device can copy at full speed.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cpu") -> None:
        def pack(tensor: Tensor) -> tuple[str, np.ndarray]:
            array = tensor._a
            if type(array) is DeviceArray:
                return array.device, array.to_host(pin_memory)
            return HOST, array.copy()

        def unpack(kept: tuple[str, np.ndarray]) -> Tensor:
            device, array = kept
            return wrap(array if device == HOST else DeviceArray.from_host(array))

        super().__init__(pack, unpack)


class disable_saved_tensors_hooks(ModeContext, contextlib.ContextDecorator):
    """Forbid saved-tensor hooks within a context or, as a decorator, within a function.

    Parameters
    ----------
    error_message
        Message of the error that is raised if they are used.
    """

    def __init__(self, error_message: str) -> None:
        self.error_message = error_message

    def now(self) -> Any:
        return MODE.thread.hooks_forbidden

    def enter(self) -> None:
        if MODE.thread.saved_hooks:
            raise RuntimeError(self.error_message)
        MODE.thread.hooks_forbidden = self.error_message

    def leave(self, before: Any) -> None:
        MODE.thread.hooks_forbidden = before


# -- mutation of saved values ----------------------------------------------------------------------


class _Handle:
    """A saved value, which is replaced by a copy when its memory is about to be written."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


class _MutationGuard:
    """The values saved within one context, by the buffers that they refer to."""

    def __init__(self) -> None:
        self.handles: dict[int, list[weakref.ref[_Handle]]] = {}
        self.active = True

    def pack(self, tensor: Tensor) -> _Handle:
        handle = _Handle(tensor._a)
        known = self.handles.setdefault(id(buffer_of(tensor._a)), [])
        known.append(weakref.ref(handle))
        return handle

    def unpack(self, handle: _Handle) -> Tensor:
        if not self.active:
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in "
                "which the graph was originally recorded."
            )
        return wrap(handle.array)

    def before_write(self, array: np.ndarray) -> None:
        copies: dict[int, np.ndarray] = {}
        key = id(buffer_of(array))
        for reference in self.handles.get(key, []):
            handle = reference()
            if handle is not None:
                shown = handle.array
                if id(shown) not in copies:
                    copies[id(shown)] = shown.copy()
                handle.array = copies[id(shown)]
        self.handles.pop(key, None)  # last, since an interrupt may come before all are copied

    def clear(self) -> None:
        """Forget all values; the graph can no longer run backward."""
        self.active = False
        self.handles.clear()


class allow_mutation_on_saved_tensors(ModeContext, contextlib.ContextDecorator):
    """Allow in-place writes to tensors that were saved for the backward pass.

    A saved value is copied before its memory is first written, so the backward pass still sees the
    saved value. The backward pass has to run within the context too.

    Raises
    ------
    RuntimeError
        If such contexts are nested.

    Examples
    --------
    >>> import tapegrad as tg
    >>> with tg.autograd.graph.allow_mutation_on_saved_tensors():
    ...     x = tg.tensor([2.0], requires_grad=True)
    ...     y = x * 1
    ...     z = (y * y).sum()
    ...     _ = y.zero_()
    ...     z.backward()
    >>> x.grad
    tensor([4.])
    """

    def now(self) -> Any:
        return MODE.thread.saved_hooks, _MutationGuard()

    def enter(self) -> _MutationGuard:
        if MODE.mutation_guard is not None:
            raise RuntimeError("allow_mutation_on_saved_tensors contexts cannot be nested")
        if MODE.thread.hooks_forbidden is not None:
            raise RuntimeError(MODE.thread.hooks_forbidden)
        hooks, guard = self._open[-1][1]
        MODE.mutation_guard = guard
        MODE.set_saved_hooks((*hooks, (guard.pack, guard.unpack)))
        return guard

    def leave(self, before: Any) -> None:
        hooks, guard = before
        if MODE.mutation_guard is guard:
            MODE.set_saved_hooks(hooks)
            MODE.mutation_guard = None
        guard.clear()


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Tell the engine that tensors were mutated in a way that it cannot detect.

    The backward pass then refuses values that were saved before.

    Parameters
    ----------
    tensor
        One or more tensors.
    """
    if not isinstance(tensor, (Tensor, Iterable)):
        raise RuntimeError("increment_version expect a Iterable[Tensor] as input")
    for one in (tensor,) if isinstance(tensor, Tensor) else tensor:
        if not isinstance(one, Tensor):
            raise RuntimeError(
                "increment_version expects each element of the iterable to be a tensor"
            )
        if not one.is_inference():
            TAPE.note_mutation(one._a)
