"""`register_multi_grad_hook`: one hook for the gradients of several tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tapegrad.autograd.engine.hooks import register_hook
from tapegrad.autograd.engine.node import RemovableHandle, check_hook
from tapegrad.autograd.engine.passes import RUNNING, Pass
from tapegrad.eager.tensor import Tensor
from tapegrad.forks import object_lock


class _Handles(RemovableHandle):
    """The handles of one hook on several tensors."""

    def __init__(self, handles: tuple[RemovableHandle, ...]) -> None:
        self.handles = handles

    def remove(self) -> None:
        """Remove the hook; further calls do nothing."""
        for handle in self.handles:
            handle.remove()

    def __getstate__(self) -> Any:
        return self.handles

    def __setstate__(self, state: Any) -> None:
        self.handles = state


class _Collector:
    """Gradients of one backward pass, collected until all that it computes are available."""

    def __init__(
        self, fn: Callable[[Sequence[Tensor | None]], None], expected: Sequence[bool]
    ) -> None:
        self.fn = fn
        self.grads: list[Tensor | None] = [None] * len(expected)
        self.missing = sum(expected)

    def add(self, k: int, g: Tensor) -> None:
        self.missing -= 1
        self.grads[k] = g
        if not self.missing:
            self.fn(self.grads)


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: Literal["all", "any"] = "all"
) -> RemovableHandle:
    """Register a function that is called when a backward pass has computed several gradients.

    Parameters
    ----------
    tensors
        The tensors. A backward pass ignores those whose gradient it does not compute.
    fn
        With mode "all", called with a list of the gradients (or None) when the last one has been
        computed; with "any", called with the first gradient computed. It should not modify them.
    mode
        "all" or "any".

    Returns
    -------
    RemovableHandle
        Its `remove` removes the hook.

    Raises
    ------
    ValueError
        If `mode` is neither of these.

    Examples
    --------
    >>> import tapegrad as tg
    >>> a = tg.tensor(1.0, requires_grad=True)
    >>> b = tg.tensor(2.0, requires_grad=True)
    >>> handle = tg.autograd.graph.register_multi_grad_hook(
    ...     (a, b), lambda grads: print([g is not None for g in grads]))
    >>> (a * b).backward()
    [True, True]
    >>> (a * a).backward()
    [True, False]
    """
    check_hook(fn, "register_multi_grad_hook")
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    lock = object_lock()
    if mode == "any":
        served: set[Pass] = set()

        @functools.wraps(fn)
        def first(g: Tensor) -> None:
            current = RUNNING.passes[-1]
            with lock:
                if current in served:
                    return
                served.add(current)
            current.at_end(lambda: served.discard(current))
            fn(g)

        return _Handles(tuple(register_hook(t, first) for t in tensors if t.requires_grad))
    collectors: dict[Pass, _Collector] = {}

    def collector(current: Pass) -> _Collector:
        with lock:
            found = collectors.get(current)
            if found is None:
                owners = [tensor._own for tensor in tensors if tensor._own is not None]
                found = collectors[current] = _Collector(fn, current.computes(owners))

                def forget() -> None:
                    del collectors[current]

                current.at_end(forget)
            return found

    def hook_of(k: int) -> Callable[[Tensor], None]:
        return lambda g: collector(RUNNING.passes[-1]).add(k, g)

    return _Handles(tuple(register_hook(t, hook_of(k)) for k, t in enumerate(tensors)))
