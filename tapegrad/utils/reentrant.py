"""The re-entrant form of checkpointing: a Function whose backward runs a backward pass."""

from __future__ import annotations

from typing import Any

from tapegrad.autograd.api import backward as run_backward
from tapegrad.autograd.engine.history import history
from tapegrad.autograd.engine.mutated import saved_arrays
from tapegrad.autograd.engine.passes import RUNNING
from tapegrad.autograd.function import Function, once_differentiable
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.pytrees import CONTAINERS, holds_tensor
from tapegrad.tape.layout import LEAF_CLOCK, OWN_SLOT
from tapegrad.tape.tape import TAPE, buffer_of
from tapegrad.utils import generators
from tapegrad.utils.fingerprints import fingerprint
from tapegrad.utils.regions import CheckpointError

_INPUTS = (
    "When use_reentrant=True, tapegrad.utils.checkpoint is incompatible with .grad() or passing an "
    "`inputs` parameter to .backward(). To resolve this error, you can either set "
    "use_reentrant=False, or call .backward() without passing the `inputs` argument."
)
_DIFFERENT = (
    "tapegrad.utils.checkpoint: The recomputed outputs are different than during the forward pass, "
    "or something that they are computed from, so that gradients would be wrong. Something that "
    "the function reads has changed since, or it draws from a random generator whose state is not "
    "preserved."
)


class CheckpointFunction(Function):
    """The function is called without recording, and again, with recording, in backward."""

    @staticmethod
    def forward(ctx: Any, function: Any, preserve_rng_state: bool, *args: Any) -> Any:
        """Call the function."""
        ctx.function = function
        ctx.before = generators.states() if preserve_rng_state else None
        ctx.constants = [None if isinstance(a, Tensor) else a for a in args]
        ctx.places = [k for k, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.save_for_backward(*(args[k] for k in ctx.places))
        found = function(*args)
        if isinstance(found, CONTAINERS) and not isinstance(found, tuple) and holds_tensor([found]):
            raise TypeError(
                f"checkpoint: the function returned a {type(found).__name__} of tensors, through "
                "which no gradient passes if use_reentrant=True; return a tensor or a tuple of "
                "tensors, or pass use_reentrant=False"
            )
        ctx.prints = [fingerprint(z._a) for z in _tensors(found)]
        ctx.end = TAPE.next_slot()[1]
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Call the function again and run a backward pass over its graph."""
        if RUNNING.passes and RUNNING.passes[-1].inputs is not None:
            raise RuntimeError(_INPUTS)
        args = list(ctx.constants)
        needed = ctx.needs_input_grad[2:]
        for k, saved in zip(ctx.places, ctx.saved_tensors, strict=True):
            args[k] = wrap(saved._a)
            if needed[k]:
                args[k].requires_grad_()
        begin = TAPE.next_slot()[1]
        with generators.restored(ctx.before):
            found = MODE.with_recording(True, ctx.function, *args)
        prints = [fingerprint(z._a) for z in _tensors(found)]
        if prints != ctx.prints or _reads_written(_tensors(found), ctx.end, begin):
            raise CheckpointError(_DIFFERENT)
        results = found if isinstance(found, tuple) else (found,)
        pairs = [
            (z, g)
            for z, g in zip(results, cotangents, strict=True)
            if isinstance(z, Tensor) and z.requires_grad
        ]
        if not pairs:
            raise RuntimeError(
                "none of output has requires_grad=True, this checkpoint() is not necessary"
            )
        run_backward([z for z, _ in pairs], [g for _, g in pairs])
        return None, None, *(a.grad if isinstance(a, Tensor) else None for a in args)


def _reads_written(results: list[Tensor], start: int, end: int) -> bool:
    """Whether records since `end` saved what was written between two positions on the clock.

    The outputs may be the same: those of ``w * x`` where x is 0.
    """
    if not TAPE.mutations:
        return False
    owners = [own for z in results if (own := z._own) is not None]
    for own in history(owners, lambda own: own[OWN_SLOT] >= end):
        if end <= own[OWN_SLOT] < LEAF_CLOCK:
            for array, _, _ in saved_arrays(own):
                known = TAPE.mutations.get(id(buffer_of(array)))
                if known is not None and any(start < slot < end for slot in known.slots):
                    return True
    return False


def _tensors(found: Any) -> list[Tensor]:
    items = found if isinstance(found, tuple) else (found,)
    return [item for item in items if isinstance(item, Tensor)]
