"""Forward mode: tangents are propagated over the recorded graph, oldest record first.

The jvp of a record's op maps the tangents of its inputs and the values saved for the gradient to
the tangent of its output (`tapegrad.ops.table.kinds`), and so does the jvp of a Function that
defines one. If a record has only a vjp, its tangent is obtained by differentiating the vjp, which
is linear in the cotangent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.api import grad
from tapegrad.autograd.batches import (
    along_units,
    is_many,
    level_of_records,
    lowered_inputs,
    lowered_outputs,
)
from tapegrad.autograd.engine.marks import marks_between, slots_between
from tapegrad.autograd.engine.mutated import mutated_message
from tapegrad.autograd.engine.reverse_pass import fit_tensor, vjp_of_record
from tapegrad.autograd.engine.saved_values import swept_values
from tapegrad.cuda.array import as_array, filled, zeros
from tapegrad.eager.batched import batched, expanded, is_at
from tapegrad.eager.duals import arrays_of
from tapegrad.eager.frames import OpFrame, RefusedFrame, RuleFrame, SelectFrame, node_name
from tapegrad.eager.item_by_item import or_item_by_item
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.saved_values import SECOND_TIME
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops.table.kinds import SweptOp
from tapegrad.ops.table.op import in_shape
from tapegrad.probes import probe
from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import FREED, OWN_AVAL, OWN_SLOT
from tapegrad.tape.owner import Owner, inputs_of, op_and_flags, record_owner
from tapegrad.tape.sweep import MutatedError
from tapegrad.tape.tangents import LARGE, Tangents

_FEW = 32  # records up to which compiled code takes longer to set up than it saves


def propagate_tangents(
    outputs: Sequence[Owner],
    inputs: Sequence[Owner],
    tangents: Sequence[Tensor],
    create_graph: bool,
) -> list[Tensor | None]:
    """Return the tangents of outputs for given tangents of inputs.

    Parameters
    ----------
    outputs, inputs
        Owners of their records.
    tangents
        One per input, with its shape.
    create_graph
        Record the walk, so that the tangents can be differentiated.

    Returns
    -------
    list of Tensor or None
        None for an output that depends on none of the inputs.
    """
    on_tensors = create_graph or is_many(tangents) or MODE.thread.dual is not None
    try:
        with np.errstate(all="ignore"):  # as in the sweep
            return MODE.with_recording(create_graph, _walk, outputs, inputs, tangents, on_tensors)
    except MutatedError as error:
        raise RuntimeError(mutated_message(error.slot, record_owner(error.slot))) from None


def tangents_of(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    tangents: Sequence[Tensor],
    create_graph: bool,
) -> list[Tensor | None]:
    """Return the tangents of tensors, None for those that depend on no input."""
    level = level_of_records((*outputs, *inputs))
    if level is not None:
        found_items = tangents_of(
            lowered_outputs(outputs, level),
            lowered_inputs(inputs, level),
            [expanded(t, level) for t in tangents],
            create_graph,
        )
        return [
            None if t is None else batched(t, level) if is_at(z, level) else t
            for z, t in zip(outputs, found_items, strict=True)
        ]
    recorded = {id(z): z._own for z in outputs if z._own is not None}
    rows = propagate_tangents(
        [*recorded.values()], [x._own for x in inputs if x._own is not None], tangents, create_graph
    )
    found = dict(zip(recorded, rows, strict=True))
    return [found.get(id(z)) for z in outputs]


def columns_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], create_graph: bool
) -> list[list[Tensor]]:
    """Return the Jacobians of outputs with respect to inputs, computed by columns.

    Parameters
    ----------
    outputs
        Tensors, recorded or not.
    inputs
        Recorded tensors.
    create_graph
        Record the walks, so that the Jacobians can be differentiated.

    Returns
    -------
    list of list of Tensor
        For every output, one Jacobian per input: the axes of the output, then those of the input.
    """
    blocks: list[list[Tensor]] = [[] for _ in outputs]
    for x in inputs:
        columns = along_units(
            x,
            [own for z in outputs if (own := z._own) is not None],
            [] if x._own is None else [x._own],
            create_graph,
            lambda unit: tangents_of(outputs, [x], [unit], create_graph),  # noqa: B023
        )
        for number, z in enumerate(outputs):
            joined = columns[number] if x.size else None
            if joined is None:
                joined = wrap(zeros((x.size, *z.shape), z.dtype, z.device))
            whole = FUNCTIONS["reshape"](joined, (*x.shape, *z.shape))
            order = (*range(x.ndim, x.ndim + z.ndim), *range(x.ndim))
            blocks[number].append(FUNCTIONS["transpose"](whole, order))
    return blocks


def _walk(
    outputs: Sequence[Owner], inputs: Sequence[Owner], tangents: Sequence[Tensor], on_tensors: bool
) -> list[Tensor | None]:
    known: dict[int, Any] = {
        own[OWN_SLOT]: fit_tensor(t, own[OWN_AVAL]) for own, t in zip(inputs, tangents, strict=True)
    }
    if not on_tensors:
        known = {slot: t._a for slot, t in known.items()}
    ends = {own[OWN_SLOT] for own in outputs}
    slots = slots_between([*ends], [*known])
    is_large = len(slots) > _FEW or any(t.size >= LARGE for t in known.values())
    if not on_tensors and is_large and not AVALS.on_device:  # else there may be some among them
        walked = _walk_arrays(slots, inputs, known, ends)
        arrays = [walked[own[OWN_SLOT]] for own in outputs]
        return [None if t is None else wrap(np.array(t)) for t in arrays]
    records = [_record(slot) for slot in slots.tolist() if slot not in known]
    last = {p[OWN_SLOT]: own for own, parents in records for p in parents if p is not None}
    for own, parents in records:
        given = [None if p is None else known.get(p[OWN_SLOT]) for p in parents]
        if MODE.special and MODE.thread.levels:
            known[own[OWN_SLOT]] = or_item_by_item(
                lambda items: _tangent(own, items, on_tensors),  # noqa: B023
                given,
            )
        else:
            known[own[OWN_SLOT]] = _tangent(own, given, on_tensors)
        for parent in parents:  # free each tangent after its last reader
            if parent is not None and last[parent[OWN_SLOT]] is own:
                if parent[OWN_SLOT] not in ends:
                    known.pop(parent[OWN_SLOT], None)
    found = [known.get(own[OWN_SLOT]) for own in outputs]
    return [t if t is None or isinstance(t, Tensor) else wrap(as_array(t).copy()) for t in found]


def _walk_arrays(
    slots: np.ndarray, inputs: Sequence[Owner], known: dict[int, np.ndarray], ends: set[int]
) -> Tangents:
    """Compute tangents that are arrays; compiled code computes what it can."""
    avals = {own[OWN_SLOT]: own[OWN_AVAL] for own in inputs}
    if np.setdiff1d([*known], slots, assume_unique=True).size:  # inputs that are not reached
        slots = np.union1d(slots, [*known])
    found = Tangents(slots, known, avals, ends)
    for slot in found.in_python():
        for parent in _record(slot)[1]:
            if parent is not None:
                found.note_reader(parent[OWN_SLOT], slot)

    def step(slot: int) -> None:
        own, parents = _record(slot)
        given = [None if p is None else found[p[OWN_SLOT]] for p in parents]
        found[slot] = _tangent(own, given, False)

    found.compute(step)
    return found


def _record(slot: int) -> tuple[Owner, list[Owner | None]]:
    """Return the owners of a record and of its inputs."""
    own = record_owner(slot)
    assert own is not None
    return own, inputs_of(own)


@probe(lambda args: f"{node_name(args[0]).lower()} (tangent)", "tangent")
def _tangent(own: Owner, given: list[Any], on_tensors: bool) -> Any:
    """Return the tangent of a record's output, or a tuple of tangents if it has several.

    `given` holds the tangents of its inputs, None for inputs without tangent: tensors, or arrays.
    """
    if all(t is None for t in given):
        return None
    code, flags = op_and_flags(own)
    if flags & FREED:
        raise RuntimeError(SECOND_TIME)
    frame = own[-1]
    if isinstance(frame, SelectFrame):
        return given[0][frame.k]
    if isinstance(frame, RuleFrame) and frame._has_jvp:
        return _by_frame(frame, own, given, on_tensors)
    op = frame.op if isinstance(frame, OpFrame) else OPS.ops[code]
    if isinstance(frame, OpFrame):
        values, tangents = frame.values(own), frame.named(given)
    elif isinstance(frame, RuleFrame) or not isinstance(op, SweptOp):
        return _by_transposition(own, given, on_tensors)
    else:
        values = swept_values(own, op)
        pairs = zip(op.differentiable, given, strict=False)
        tangents = {name: t for name, t in pairs if t is not None}
    if not on_tensors:
        values = {name: arrays_of(value) for name, value in values.items()}
    shape, dtype = AVALS.shapes[own[OWN_AVAL]], AVALS.dtypes[own[OWN_AVAL]]
    found = op.tangent(tangents, values, (shape, dtype))
    if type(found) is tuple:
        return found
    if isinstance(found, Tensor):
        return fit_tensor(in_shape(found, shape), own[OWN_AVAL])
    found = as_array(in_shape(as_array(found), shape))
    return found if found.dtype == dtype else found.astype(dtype)


def _by_frame(frame: Any, own: Owner, given: list[Any], on_tensors: bool) -> Any:
    """Return the tangent of a record that has a rule for tangents, such as that of a Function."""
    tensors = [t if t is None or isinstance(t, Tensor) else wrap(t) for t in given]
    aval = own[OWN_AVAL]
    outputs = frame.outputs or [AVALS.kind(aval)]
    found = [
        None if t is None or output is None else FUNCTIONS["astype"](t, output[1])
        for t, output in zip(frame.tangents(own, tensors), outputs, strict=True)
    ]
    if not on_tensors:
        found = [None if t is None else t._a.copy() for t in found]
    return tuple(found) if frame.outputs else found[0]


def _by_transposition(own: Owner, given: list[Any], on_tensors: bool) -> Any:
    """Return the tangent of a record by transposing its vjp."""
    outputs = getattr(own[-1], "outputs", None)
    kinds = outputs or [AVALS.kind(own[OWN_AVAL])]
    # a linear vjp allows any cotangent; nonzero ones expose gradients that do not depend on it
    seeds = [wrap(filled(1.0, *kind)).requires_grad_() for kind in kinds]
    wanted = {
        id(p): t
        for p, t in zip(inputs_of(own), given, strict=True)
        if p is not None and t is not None
    }

    def transposed() -> list[Any]:
        g: Any = dict(enumerate(seeds)) if outputs else seeds[0]
        found = vjp_of_record(own, g, lambda parent: id(parent) in wanted)
        return [
            fit_tensor(g, parent[OWN_AVAL]) if parent is not None and isinstance(g, Tensor) else g
            for parent, g in zip(inputs_of(own), found, strict=False)
        ]

    cotangents = MODE.with_recording(True, transposed)
    slots = [seed._own[OWN_SLOT] for seed in seeds if seed._own is not None]
    for g, t in zip(cotangents, given, strict=False):
        if t is not None and isinstance(g, Tensor) and np.any(g._a):
            made = g._own
            if (
                made is None
                or isinstance(made[-1], RefusedFrame)
                or not marks_between([made[OWN_SLOT]], slots)[0]
            ):
                raise RuntimeError(
                    f"jvp: the backward of {node_name(own)} returned a gradient that does not "
                    "depend on what it was given (it is marked @once_differentiable, or detaches), "
                    "so that no tangent can pass; write it with tapegrad's functions"
                )
    pairs = [
        (g, t if isinstance(t, Tensor) else wrap(t))
        for parent, g, t in zip(inputs_of(own), cotangents, given, strict=False)
        if parent is not None and t is not None and isinstance(g, Tensor) and g._own is not None
    ]
    if not pairs:
        return None
    found: Any = grad(
        [g for g, _ in pairs],
        seeds,
        [t for _, t in pairs],
        create_graph=MODE.recording,
        materialize_grads=True,
    )
    if not on_tensors:
        found = tuple(t._a for t in found)
    return found if outputs else found[0]
