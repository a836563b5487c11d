"""Running the hooks of one record: what both engines do around its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapegrad.tape.owner import Notes
from tapegrad.tensor import Tensor, wrap

Hooks = dict[int, Callable[..., Any]]
Grads = tuple[Tensor | None, ...]


def _name(hook: Any) -> str:
    name: str = getattr(hook, "__name__", repr(hook))
    return name


def checked(result: Any, g: Tensor | None, hook: Any) -> Tensor:
    """Return a hook's result, if it can stand in the place of a gradient."""
    if not isinstance(result, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(result).__name__}'")
    if g is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if result.dtype != g.dtype:
        raise RuntimeError(
            f"hook '{_name(hook)}' has changed the type of value (was {g.dtype} got {result.dtype})"
        )
    if result.shape != g.shape:
        raise RuntimeError(f"hook '{_name(hook)}' has changed the size of value")
    return result


def run_tensor_hooks(hooks: Hooks, g: Tensor) -> Tensor:
    """Pass a gradient through tensor hooks, each of which may replace it."""
    for hook in list(hooks.values()):
        result = hook(g)
        if result is not None:
            g = checked(result, g, hook)
    return g


def run_undefined(hooks: Hooks) -> None:
    """Call tensor hooks where a Function left the gradient undefined."""
    for hook in list(hooks.values()):
        result = hook(None)
        if result is not None:
            checked(result, None, hook)


def run_prehooks(hooks: Hooks, grads: Grads) -> Grads:
    """Pass the gradients of a node's outputs through its prehooks."""
    for hook in list(hooks.values()):
        result = hook(grads)
        if result is not None:
            grads = _replaced(result, grads, hook)
    return grads


def run_posthooks(hooks: Hooks, inputs: Grads, outputs: Grads) -> Grads:
    """Pass the gradients that a node computed through its posthooks."""
    for hook in list(hooks.values()):
        result = hook(inputs, outputs)
        if result is not None:
            inputs = _replaced(result, inputs, hook)
    return inputs


def _replaced(result: Any, grads: Grads, hook: Any) -> Grads:
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(result).__name__}'")
    given = result
    if len(given) != len(grads):
        raise RuntimeError(
            f"hook '{_name(hook)}' has returned an incorrect number of values (got {len(given)}, "
            f"but expected {len(grads)})"
        )
    return tuple(
        None if new is None else checked(new, old, hook)
        for new, old in zip(given, grads, strict=True)
    )


def finish_gradient(notes: Notes, g: Tensor) -> Tensor:
    """Run the hooks of an op's output on its gradient, and keep it where the tensor retains it."""
    if notes.hooks:
        g = run_tensor_hooks(notes.hooks, g)
    if notes.retains is not None:
        tensor = notes.retains()
        if tensor is not None:
            meta = tensor.ensure_meta()
            kept = g if g._own is not None else wrap(g._a.copy())
            meta.grad = kept if meta.grad is None else meta.grad + kept
    return g
