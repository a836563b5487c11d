"""Running the hooks of one record, shared by both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tapegrad.eager.duals import carry_tangent
from tapegrad.eager.saved_values import with_own_memory
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.tape.owner import Notes

Hooks = dict[int, Callable[..., Any]]
Grads = tuple[Tensor | None, ...]
Gradient = TypeVar("Gradient", bound=Tensor | None)


def _name(hook: Any) -> str:
    return getattr(hook, "__name__", repr(hook))


def checked(result: Any, g: Tensor | None, hook: Any) -> Tensor:
    """Return a hook's result, after checking that it can replace a gradient."""
    if not isinstance(result, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(result).__name__}'")
    if g is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if result.dtype != g.dtype:
        raise RuntimeError(
            f"hook '{_name(hook)}' has changed the type of value (was {g.dtype} got {result.dtype})"
        )
    if result.device != g.device:
        raise RuntimeError(
            f"hook '{_name(hook)}' has changed the device of value (was {g.device} got "
            f"{result.device})"
        )
    if result.shape != g.shape:
        raise RuntimeError(f"hook '{_name(hook)}' has changed the size of value")
    return with_own_memory(result)


def _pass_through(hooks: Hooks, value: Any, accept: Callable[..., Any], *beside: Any) -> Any:
    """Pass a value through hooks; an accepted result of a hook replaces it."""
    for hook in list(hooks.values()):
        result = hook(value, *beside)
        if result is not None:
            value = accept(result, value, hook)
    return value


def run_tensor_hooks(hooks: Hooks, g: Gradient) -> Gradient:
    """Pass a gradient through tensor hooks; None (undefined) stays None."""
    return _pass_through(hooks, g, checked)


def run_prehooks(hooks: Hooks, grads: Grads) -> Grads:
    """Pass the gradients of a node's outputs through its prehooks."""
    return _pass_through(hooks, grads, _replaced)


def run_posthooks(hooks: Hooks, inputs: Grads, outputs: Grads) -> Grads:
    """Pass the gradients that a node computed through its posthooks."""
    return _pass_through(hooks, inputs, _replaced, outputs)


def _replaced(result: Any, grads: Grads, hook: Any) -> Grads:
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(result).__name__}'")
    if len(result) != len(grads):
        raise RuntimeError(
            f"hook '{_name(hook)}' has returned an incorrect number of values (got {len(result)}, "
            f"but expected {len(grads)})"
        )
    return tuple(
        None if new is None else checked(new, old, hook)
        for new, old in zip(result, grads, strict=True)
    )


def run_hooks_of_unused(notes: Notes, given: dict[int, Any]) -> None:
    """Run the hooks of an op's unused outputs, whose gradient is undefined."""
    for k, output in notes.outputs.items():
        if k not in given:
            run_tensor_hooks(output.hooks, None)


def finish_gradient(notes: Notes, g: Tensor) -> Tensor:
    """Run the hooks of an op's output on its gradient, and retain it if the tensor asks for it."""
    if notes.hooks:
        g = run_tensor_hooks(notes.hooks, g)
    if notes.retains is not None:
        tensor = notes.retains()
        if tensor is not None:
            meta = tensor.ensure_meta()
            kept = g if g._own is not None else carry_tangent(g, wrap(g._a.copy()))
            meta.grad = kept if meta.grad is None else meta.grad + kept
    return g
