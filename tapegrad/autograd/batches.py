"""Derivatives of batches: of functions of one item, and for many cotangents or tangents at once.

Inside of `vmap`, outputs and inputs are batched, and the records are those of all items. A pass
runs over these records. Cotangents that are batched where the outputs are not stand for many
cotangents: the pass then runs once, on tensors, and every rule is one batched op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.engine.history import size_of_batches
from tapegrad.cuda.array import HOST, as_array, filled, on_device_named
from tapegrad.eager.batched import (
    Batched,
    BatchError,
    Level,
    batched,
    expanded,
    innermost,
    is_at,
    open_level,
)
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops.table.op import refuse_masked
from tapegrad.tape.owner import Owner


def level_of_records(tensors: Sequence[Any]) -> Level | None:
    """Return the innermost level at which outputs or inputs are batched, None if they are not."""
    return innermost(tensors) if MODE.special and MODE.thread.levels else None


def lowered_inputs(inputs: Sequence[Any], level: Level) -> list[Any]:
    """Return inputs with the axis of a level.

    Raises
    ------
    BatchError
        If one has none: its derivative would be that of all items together.
    """
    for k, x in enumerate(inputs):
        if not is_at(x, level):
            raise BatchError(
                f"vmap: input {k} is not batched, but what is differentiated is: every item has a "
                "gradient of its own, and the graph of the input holds their sum. Differentiate a "
                "function of it inside of vmap, by tapegrad.grad or tapegrad.vjp"
            )
    return [x._value for x in inputs]


def lowered_outputs(outputs: Sequence[Any], level: Level) -> list[Any]:
    """Return outputs with the axis of a level, if they have it."""
    return [z._value if is_at(z, level) else z for z in outputs]


def of_array(g: Any) -> Tensor:
    """Return a cotangent that is an array or a number as a tensor; masks are refused."""
    refuse_masked(g)
    return wrap(as_array(g))


def implicit_seed(shape: tuple[int, ...], dtype: np.dtype, device: str) -> Tensor:
    """Return the cotangent of an output that is given none: 1, if it is a real number."""
    if math.prod(shape) != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    if dtype.kind == "c":
        raise RuntimeError(
            f"grad can be implicitly created only for real scalar outputs but got {dtype}"
        )
    return wrap(filled(1.0, shape, dtype, device))


def lowered_seeds(outputs: Sequence[Any], seeds: Sequence[Any], level: Level) -> list[Any]:
    """Return one cotangent for every output, with the axis of a level if the output has it.

    Parameters
    ----------
    outputs
        The outputs, not lowered.
    seeds
        Their cotangents; None for outputs that are single numbers.
    level
        The level.
    """
    found = []
    for z, g in zip(outputs, seeds, strict=True):
        if not is_at(z, level):
            found.append(g)
            continue
        if g is None:
            g = implicit_seed(z.shape, z.dtype, z.device)
        found.append(expanded(g if isinstance(g, Tensor) else of_array(g), level))
    return found


def items(found: Sequence[Any], level: Level) -> list[Any]:
    """Return derivatives with the axis of a level as those of one item."""
    return [None if g is None else batched(g, level) for g in found]


def is_many(seeds: Sequence[Any]) -> bool:
    """Whether cotangents or tangents stand for many."""
    return any(type(g) is Batched for g in seeds)


# -- many directions ------------------------------------------------------------------------------

Directions = Callable[[Any], Any]  # makes one direction, or a batch of them, of an array of several


def in_batches(
    count: int, step: int, derivative: Callable[[int, int, Directions], Sequence[Tensor | None]]
) -> list[Tensor | None]:
    """Return derivatives for many directions, stacked along a new first axis.

    Parameters
    ----------
    count
        Number of directions.
    step
        How many to take at once (`size_of_batches`).
    derivative
        Computes them for the directions from a start to an end. It is given these numbers, and a
        function that makes the directions in an array of several a batch.
    """
    rows: list[list[Any]] = []
    for start in range(0, count, step):
        if step == 1:
            found = derivative(start, start + 1, lambda several: several[0])
            rows.append([None if t is None else FUNCTIONS["expand_dims"](t, 0) for t in found])
            continue
        end = min(start + step, count)
        with open_level(end - start) as level:
            found = derivative(start, end, lambda several: batched(several, level))
            rows.append([None if t is None else expanded(t, level) for t in found])
    return [None if parts[0] is None else _joined(parts) for parts in zip(*rows, strict=True)]


def _joined(parts: Sequence[Any]) -> Tensor:
    """Return parts as one, with memory of its own: what a pass returns may share it."""
    if len(parts) == 1:
        return parts[0].clone()
    return FUNCTIONS["concatenate"](list(parts))


def along_units(
    like: Tensor,
    owners: list[Owner],
    inputs: list[Owner],
    create_graph: bool,
    derivative: Callable[[Tensor], Sequence[Tensor | None]],
) -> list[Tensor | None]:
    """Return derivatives along every unit direction, stacked along a new first axis.

    Parameters
    ----------
    like
        The tensor whose unit directions are taken.
    owners, inputs
        The records that a pass starts from, and where it ends.
    create_graph
        Whether the passes are recorded.
    derivative
        Returns the derivatives along a direction, which may be a batch of directions.
    """

    def along(start: int, end: int, make: Directions) -> Sequence[Tensor | None]:
        return derivative(make(unit_directions(like, start, end)))

    return in_batches(like.size, size_of_batches(owners, inputs, like.size, create_graph), along)


def unit_directions(like: Tensor, start: int, end: int) -> Tensor:
    """Return some of the tensors like another one with a single 1, along a new first axis."""
    found = np.zeros((end - start, like.size), like.dtype)
    found[np.arange(end - start), np.arange(start, end)] = 1.0
    shaped = found.reshape(end - start, *like.shape)
    return wrap(shaped if like.device == HOST else on_device_named(like.device, shaped))
