"""Functions of the user's inside of vmap: by their own rule, or by one made from their methods."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tapegrad.autograd.engine.context import FunctionCtx
from tapegrad.autograd.engine.custom import Function, FunctionMeta
from tapegrad.eager.batched import (
    BatchError,
    Level,
    all_lowered,
    batched,
    expanded,
    holds_batched,
    innermost,
    lowered,
    open_level,
)
from tapegrad.eager.frames import check_reducible
from tapegrad.eager.item_by_item import as_items
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.saved_values import with_own_memory
from tapegrad.eager.tensor import Tensor
from tapegrad.ops.shape import unbroadcast

Flags = tuple[bool, ...]  # which of some values are batched


class VmapInfo(NamedTuple):
    """What the `vmap` method of a Function is told about the batch."""

    batch_size: int
    randomness: str


def apply_to_batch(cls: type[Function], args: tuple[Any, ...]) -> Any:
    """Apply a Function of which an argument is batched."""
    level = innermost(args)
    assert level is not None
    has_rule = cls.vmap is not Function.vmap
    if cls.generate_vmap_rule and has_rule:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it has both generate_vmap_rule=True and "
            "an overridden vmap staticmethod. Please set generate_vmap_rule=False or delete the "
            "overridden vmap staticmethod to avoid ambiguity."
        )
    pairs = [lowered(a, level) if isinstance(a, Tensor) else (a, False) for a in args]
    given, flags = [value for value, _ in pairs], [flag for _, flag in pairs]
    for k, arg in enumerate(args):
        if not isinstance(arg, Tensor) and holds_batched([arg]):
            raise BatchError(
                f"{cls.__name__}.apply: argument {k} is a {type(arg).__name__} with a batched "
                "tensor; pass every tensor as an argument of its own"
            )
    if cls.generate_vmap_rule:
        return as_items(_generated(cls, level.size, tuple(flags)).apply(*given), level)
    if not has_rule:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it does not have vmap support. Please "
            "override and implement the vmap staticmethod or set generate_vmap_rule=True."
        )
    in_dims = tuple(0 if flag else None for flag in flags)
    # the rule is given whole batches, and draws random numbers for whole batches
    around = MODE.thread.levels[: level.depth]
    info = VmapInfo(level.size, level.randomness)
    found: Any = MODE.with_levels(around, cls.vmap, info, in_dims, *given)
    if not isinstance(found, tuple) or len(found) != 2:
        raise RuntimeError(
            "Expected the vmap staticmethod to have two returns, an output and out_dims with "
            f"structure compatible with the output. Got a {type(found)} instead"
        )
    return _outputs(*found, level)


def _outputs(output: Any, out_dims: Any, level: Level) -> Any:
    """Return the outputs of a Function's own rule as those of one item."""
    if not isinstance(output, tuple):
        if isinstance(output, np.ndarray):  # a work array, perhaps
            output = output.copy()
        elif isinstance(output, Tensor):
            output = with_own_memory(output)
        if isinstance(out_dims, tuple):
            raise RuntimeError(
                "The autograd.Function's vmap staticmethod returned an incompatible (output, "
                f"out_dims) tuple. Expected out_dims={out_dims} to be compatible with the "
                "structure of `output`."
            )
        if out_dims is None:
            return output
        return batched(FUNCTIONS["moveaxis"](output, out_dims, 0), level)
    places = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(output)
    if len(places) != len(output):
        raise RuntimeError(
            "The autograd.Function's vmap staticmethod returned an incompatible (output, out_dims) "
            f"tuple: {len(output)} outputs and {len(places)} axes."
        )
    return tuple(_outputs(z, place, level) for z, place in zip(output, places, strict=True))


# -- generated rules ------------------------------------------------------------------------------


class _ItemCtx(FunctionCtx):
    """The context that the methods of a Function get for one item of a batch."""

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        return tuple(self._given)

    def mark_dirty(self, *args: Tensor) -> None:
        """Refuse: the items of a batch are not written to."""
        raise RuntimeError(
            "generate_vmap_rule=True does not support ctx.mark_dirty; return a new tensor, or "
            "define the vmap staticmethod"
        )


class _ReopenedCtx(_ItemCtx):
    """The same context, with its attributes, while a rule runs."""

    __slots__ = ("_needs", "_restored")
    _restored: Sequence[Tensor | None]
    _needs: tuple[bool, ...]

    def __init__(self, item: _ItemCtx, saved: Sequence[Tensor | None], needs: Any) -> None:
        self.__dict__ = item.__dict__
        self._restored = saved
        self._needs = needs

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors given to `save_for_backward`, or in jvp to `save_for_forward`."""
        return tuple(self._restored)

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        return self._needs


@functools.lru_cache(maxsize=256)
def _generated(cls: type[Function], size: int, flags: Flags) -> type[Function]:
    """Return the Function of `size` items, of the arguments with a flag, from that of one item."""

    def forward(ctx: Any, *args: Any) -> Any:
        ctx.item = item = _ItemCtx()
        item._kinds = ctx._kinds
        with open_level(size) as level:
            given = [batched(a, level) if f else a for a, f in zip(args, flags, strict=True)]
            ctx.shapes = [a.shape if isinstance(a, Tensor) else None for a in given]
            if cls._separate:
                output = cls.forward(*given)
                cls.setup_context(item, tuple(given), output)
            else:
                output = cls.forward(item, *given)
            several = isinstance(output, tuple)
            items = output if several else (output,)
            for z in items:
                if not isinstance(z, Tensor):
                    raise TypeError(
                        f"{cls.__name__}: with generate_vmap_rule=True all outputs are tensors, "
                        f"got {type(z).__name__}"
                    )
            results = [expanded(z, level) for z in items]
            ctx.kept = _keep(ctx.save_for_backward, item._given, level)
            if item._given_forward:
                ctx.kept_forward = _keep(ctx.save_for_forward, item._given_forward, level)
        item._given = item._given_forward = ()
        skipped = {id(z) for z in item._non_differentiable}
        passive = [r for r, z in zip(results, items, strict=True) if id(z) in skipped]
        if passive:
            ctx.mark_non_differentiable(*passive)
        item._non_differentiable, item._closed = (), True
        ctx.set_materialize_grads(item._materialize)
        return tuple(results) if several else results[0]

    def backward(ctx: Any, *grads: Any) -> Any:
        with open_level(size) as level:
            item = _reopened(ctx, ctx.kept, level)
            given = [None if g is None else batched(g, level) for g in grads]
            found = cls._backward_cls._rule(item, *given)
            gradients = found if isinstance(found, tuple) else (found,)
            if len(gradients) < len(flags):
                return found  # refused with the right text
            return tuple(
                _total(g, flag, level, shape)
                for g, flag, shape in zip(gradients, flags, ctx.shapes, strict=False)
            )

    def jvp(ctx: Any, *tangents: Any) -> Any:
        with open_level(size) as level:
            item = _reopened(ctx, ctx.__dict__.get("kept_forward", ()), level)
            given = [
                batched(t, level) if f and t is not None else t
                for t, f in zip(tangents, flags, strict=True)
            ]
            found = cls.jvp(item, *given)
            if not isinstance(found, tuple):
                return None if found is None else expanded(found, level)
            return tuple(None if t is None else expanded(t, level) for t in found)

    methods: dict[str, Any] = {"forward": forward, "backward": backward}
    if cls._backward_cls._has_jvp:
        methods["jvp"] = jvp
    body = {name: staticmethod(method) for name, method in methods.items()}
    made: Any = FunctionMeta(cls.__name__, (Function,), {**body, "generate_vmap_rule": True})
    return made


def _keep(save: Any, tensors: Sequence[Any], level: Level) -> Flags:
    """Save the tensors of a batch; return which of them are batched."""
    values, flags = all_lowered(tensors, level)
    save(*values)
    return tuple(flags)


def _reopened(ctx: Any, kept: Flags, level: Level) -> _ReopenedCtx:
    """Return the context of an item, with what was saved, in a level that is open now."""
    saved = [
        batched(t, level) if flag else t for t, flag in zip(ctx.saved_tensors, kept, strict=True)
    ]
    return _ReopenedCtx(ctx.item, saved, ctx.needs_input_grad)


def _total(g: Any, is_batched: bool, level: Level, shape: Any) -> Any:
    """Return the gradient of an argument; that of a shared one is the sum over the items.

    A gradient that broadcasting has enlarged is first that of one item.
    """
    if not isinstance(g, Tensor) or shape is None:
        return g
    if g.shape != shape:
        check_reducible(g.shape, shape, "a Function returned an invalid gradient of an item")
        g = unbroadcast(g, shape)
    whole = expanded(g, level)
    return whole if is_batched else FUNCTIONS["sum"](whole, 0)


Function._apply_to_batch = staticmethod(apply_to_batch)
