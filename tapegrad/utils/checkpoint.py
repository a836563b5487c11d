"""Checkpointing: values are recomputed in the backward pass instead of being kept until then."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor
from tapegrad.utils.reentrant import CheckpointFunction
from tapegrad.utils.regions import CheckpointError, ContextFn, Region, noop_context_fn
from tapegrad.utils.selective import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

__all__ = [
    "CheckpointError", "CheckpointFunction", "CheckpointPolicy", "SelectiveCheckpointContext",
    "checkpoint", "checkpoint_sequential", "create_selective_checkpoint_contexts",
    "noop_context_fn", "set_checkpoint_debug_enabled", "set_checkpoint_early_stop",
]  # fmt: skip

_CHECKS = ["default", "none"]
_PASS_IT = (
    "the use_reentrant parameter should be passed explicitly. use_reentrant=False is recommended, "
    "but if you need to preserve the current default behavior, you can pass use_reentrant=True. "
    "Refer to docs for more details on the differences between the two variants."
)


class _Settings:
    """Settings that replace the arguments of all calls."""

    early_stop: bool | None = None
    debug: bool | None = None


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Choose in a context whether recomputations end when they have all values that are needed.

    It replaces the argument ``early_stop`` of calls of `checkpoint` in the context.

    Parameters
    ----------
    enable
        Whether they end early, or call the function to its end.
    """
    before = _Settings.early_stop
    try:
        _Settings.early_stop = enable
        yield
    finally:
        _Settings.early_stop = before


@contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Choose in a context whether errors of checkpointing list the ops of both calls.

    It replaces the argument ``debug`` of calls of `checkpoint` in the context.

    Parameters
    ----------
    enabled
        Whether they do; None to use the argument.
    """
    before = _Settings.debug
    try:
        _Settings.debug = enabled
        yield
    finally:
        _Settings.debug = before


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: ContextFn = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call a function whose saved values are not kept, but recomputed in the backward pass.

    The function is called again when the backward pass needs the first of them. Inside of
    `tapegrad.vmap`, in a level of `tapegrad.autograd.forward_ad`, and where nothing is recorded, it
    is just called.

    Parameters
    ----------
    function
        Called with `args` and `kwargs`. It has to compute the same values again.
    *args, **kwargs
        Its arguments. In the non-re-entrant form, lists, tuples, dicts and dataclasses may contain
        tensors. In the re-entrant form, tensors are arguments of their own, and there are no
        keyword arguments.
    use_reentrant
        False (recommended): derivatives of any order and ``autograd.grad`` work, and gradients pass
        through tensors that the function closes over. True: the function is called without
        recording, and the backward pass runs another one inside; it works with ``backward()`` only,
        and if an argument requires grad. Only outputs, and tensors that were written to, are
        compared.
    context_fn
        Returns two contexts, for the first call and for the recomputation; see
        `create_selective_checkpoint_contexts`. Not for the re-entrant form.
    determinism_check
        "default": raise if a recomputed value differs from the dropped one, in shape, dtype or any
        bit. "none": do not compare.
    debug
        Whether an error lists the ops of both calls. Not for the re-entrant form.
    early_stop
        Whether the recomputation ends as soon as it has all values that are needed.
    preserve_rng_state
        Whether the recomputation starts with the same states of NumPy's global random generator
        and of that of `tapegrad.random`. Reading them takes a tenth of a millisecond.

    Returns
    -------
    object
        The result of the function.

    Raises
    ------
    CheckpointError
        In the backward pass, if the recomputation differs from the first call.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.utils.checkpoint import checkpoint
    >>> x = tg.tensor([0.0, 1.0], requires_grad=True)
    >>> y = checkpoint(lambda x: tg.exp(tg.sin(x)), x, use_reentrant=False)
    >>> y.sum().backward()
    >>> x.grad
    tensor([1.        , 1.25338077])
    """
    function = MODE.with_items(MODE.thread.items_are_values, function)
    if use_reentrant is None:
        warnings.warn(f"tapegrad.utils.checkpoint: {_PASS_IT}", UserWarning, stacklevel=2)
        use_reentrant = True
    if use_reentrant:
        if kwargs:
            raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
        if context_fn is not noop_context_fn or debug:
            raise ValueError(
                "Passing `context_fn` or `debug` is only supported when use_reentrant=False."
            )
        if _is_just_called():
            return function(*args)
        if MODE.recording and not any(isinstance(a, Tensor) and a.requires_grad for a in args):
            warnings.warn(
                "None of the inputs have requires_grad=True. Gradients will be None",
                UserWarning,
                stacklevel=2,
            )
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    if determinism_check not in _CHECKS:
        raise ValueError(
            f"determinism_check should be one of {_CHECKS}, but got {determinism_check}"
        )
    debug = debug if _Settings.debug is None else _Settings.debug
    if debug and context_fn is not noop_context_fn:
        raise ValueError("debug=True is incompatible with non-default context_fn")
    if not MODE.recording or _is_just_called():
        return function(*args, **kwargs)
    early_stop = early_stop if _Settings.early_stop is None else _Settings.early_stop
    region = Region(
        function, args, kwargs, context_fn, determinism_check, debug, early_stop, preserve_rng_state
    )
    return region.run(args, kwargs)


def _is_just_called() -> bool:
    """Whether values are kept: those of a batch, and those that may have tangents."""
    return bool(MODE.thread.levels) or MODE.thread.dual is not None


def checkpoint_sequential(
    functions: Sequence[Callable[[Any], Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Apply functions one after the other, in checkpointed segments of equal length.

    The values of the last segment are kept: the backward pass starts with them.

    Parameters
    ----------
    functions
        Functions of one argument.
    segments
        Number of segments.
    input
        The argument of the first function.
    use_reentrant, preserve_rng_state
        Those of `checkpoint`.
    **kwargs
        Refused.

    Returns
    -------
    object
        The result of the last function.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.utils.checkpoint import checkpoint_sequential
    >>> x = tg.tensor(0.5, requires_grad=True)
    >>> checkpoint_sequential([tg.sin, tg.exp, tg.cos], 3, x, use_reentrant=False).backward()
    >>> x.grad
    tensor(-1.41603047)
    """
    if use_reentrant is None:
        warnings.warn(
            f"tapegrad.utils.checkpoint.checkpoint_sequential: {_PASS_IT}",
            UserWarning,
            stacklevel=2,
        )
        use_reentrant = True
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    steps = list(functions)
    if not isinstance(segments, int) or not 1 <= segments <= len(steps):
        raise ValueError(
            f"checkpoint_sequential: segments is {segments!r}; expected an integer from 1 to the "
            f"number of functions, {len(steps)}"
        )
    size = len(steps) // segments
    for start in range(0, size * (segments - 1), size):
        input = checkpoint(
            _chain(steps[start : start + size]),
            input,
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve_rng_state,
        )
    return _chain(steps[size * (segments - 1) :])(input)


def _chain(steps: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return run
