"""The reverse pass: from cotangents of outputs to cotangents of inputs.

Two engines share the graph. `sweep_arrays` runs the compiled sweep; `sweep_tensors` walks the same
records in Python and computes with tensors, so that the result can be differentiated again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tapegrad.dispatch import apply_op
from tapegrad.frames import (
    FRAME,
    SECOND_TIME,
    check_unmutated,
    node_name,
    record_op,
    record_owner,
)
from tapegrad.modes import MODE
from tapegrad.ops import elementwise as ew
from tapegrad.ops.kinds import Reduction, View
from tapegrad.ops.shape import astype, broadcast_to, reshape, unbroadcast
from tapegrad.tape.aval import AVALS
from tapegrad.tape.code import OPS
from tapegrad.tape.layout import (
    FREED,
    LEAF_CLOCK,
    NARY,
    OWN_AVAL,
    OWN_INPUTS,
    OWN_SEGMENT,
    OWN_SLOT,
)
from tapegrad.tape.sweep import FreedError, MutatedError, Owner, Sweep, free, inputs_of
from tapegrad.tape.tape import TAPE, buffer_of
from tapegrad.tensor import Meta, Tensor, wrap


def mutated_message(error: MutatedError) -> str:
    """Say which saved value was modified, which op's output it was, and what to do."""
    what, hint = "a saved value", ""
    owner = record_owner(error.slot)
    for name, array, maker in saved_values(owner) if owner is not None else ():
        known = TAPE.mutations.get(id(buffer_of(array)))
        if known is not None and known.slots[-1] > error.slot:
            what = f"[{array.dtype} {list(array.shape)}]"
            if maker is not None and maker[OWN_SLOT] < LEAF_CLOCK:
                what += f", which is output 0 of {node_name(maker)},"
            expected = known.version_before(error.slot)
            what += f" is at version {known.count}; expected version {expected} instead"
            hint = f"{node_name(owner)} saved it as {name!r}; " if owner is not None else ""
            break
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: {what}. Hint: {hint}modify a copy (clone()), or do it before it is used."
    )


def saved_values(owner: Owner) -> Iterator[tuple[str, np.ndarray, Owner | None]]:
    """Yield name, array and maker's owner of everything that a record saved."""
    frame = owner[FRAME] if len(owner) > FRAME else None
    if hasattr(frame, "contributions"):
        saved = getattr(frame, "saved", {})
        items = saved.items() if isinstance(saved, dict) else enumerate(saved)
        for name, value in items:
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, Tensor):
                    yield str(name), item._a, item._own
                elif isinstance(item, np.ndarray):
                    yield str(name), item, owner
        return
    op = OPS.ops[record_op(owner)]
    if not isinstance(op, View):
        count = len(op.differentiable)
        makers = dict(zip(op.differentiable, owner[OWN_INPUTS:], strict=False))
        makers["z"] = owner
        for name, array in zip(op.saved, owner[OWN_INPUTS + count :], strict=False):
            if array is not None:
                yield name, array, makers.get(name)


def sweep_arrays(
    roots: Sequence[tuple[Owner, np.ndarray]], inputs: Sequence[Owner] | None, retain: bool
) -> dict[int, tuple[Owner, np.ndarray]]:
    """Run the compiled sweep.

    Parameters
    ----------
    roots
        Owners of the outputs with their cotangents (arrays of their avals).
    inputs
        Owners of the requested inputs; None for all leaves.
    retain
        Keep saved values.

    Returns
    -------
    dict
        By slot, the owners and cotangents of the inputs that were reached, or of all leaves.
    """
    sweep = Sweep(run_record, run_slot_hooks, retain)
    try:
        before = MODE.set_recording(False)
        try:
            if inputs is not None:
                sweep.request(
                    [own[OWN_SLOT] for own, _ in roots], [own[OWN_SLOT] for own in inputs]
                )
            for own, cotangent in roots:
                if sweep.is_needed(own[OWN_SLOT]):
                    sweep.seed(
                        own[OWN_SLOT],
                        own[OWN_AVAL],
                        np.ascontiguousarray(cotangent).reshape(cotangent.shape),
                    )
            sweep.run()
        finally:
            MODE.set_recording(before)
    except FreedError:
        raise RuntimeError(SECOND_TIME) from None
    except MutatedError as error:
        raise RuntimeError(mutated_message(error)) from None
    arrays = {**sweep.arrays, **sweep.captured}
    for slot in sweep.borrowed & arrays.keys():
        arrays[slot] = arrays[slot].copy()
    if inputs is None:
        found = {}
        for slot, array in arrays.items():
            leaf = record_owner(slot) if slot >= LEAF_CLOCK else None
            if leaf is not None:
                found[slot] = (leaf, array)
    else:
        owners = {own[OWN_SLOT]: own for own in inputs}
        found = {slot: (own, arrays[slot]) for slot, own in owners.items() if slot in arrays}
    sweep.finish()
    return found


def run_record(sweep: Sweep, slot: int, owner: Owner, g: np.ndarray) -> Any:
    """What the compiled sweep calls where a record needs Python: its hooks, its rule."""
    if slot not in sweep.hooked:
        g = _run_owner_hooks(sweep, slot, owner, g)
    if len(owner) > FRAME and hasattr(owner[FRAME], "contributions"):
        return owner[FRAME].contributions(sweep, owner, g)
    return None


def run_slot_hooks(sweep: Sweep, slot: int) -> None:
    """Run the hooks of a requested output when its cotangent is complete."""
    owner = record_owner(slot)
    assert owner is not None
    _run_owner_hooks(sweep, slot, owner, sweep.arrays[slot])
    sweep.hooked.add(slot)


def _run_owner_hooks(sweep: Sweep, slot: int, owner: Owner, g: np.ndarray) -> np.ndarray:
    meta = owner[-1]
    if type(meta) is not Meta:
        return g
    new = np.ascontiguousarray(finish_gradient(meta, wrap(g), False)._a).reshape(g.shape)
    if new is not g:
        sweep.replace(slot, new)
    return new


def finish_gradient(meta: Meta, g: Tensor, create_graph: bool) -> Tensor:
    """Run the hooks of a tensor that is not a leaf, and keep its gradient if it retains it."""
    if meta.hooks:
        g = run_hooks(meta.hooks, g)
    if meta.retains_grad:
        kept = g if create_graph else wrap(g._a.copy())
        meta.grad = kept if meta.grad is None else meta.grad + kept
    return g


def run_hooks(hooks: dict[int, Any], g: Tensor) -> Tensor:
    """Pass a gradient through tensor hooks, each of which may replace it."""
    for hook in list(hooks.values()):
        result = hook(g)
        if result is None:
            continue
        name = getattr(hook, "__name__", repr(hook))
        if not isinstance(result, Tensor):
            raise TypeError(
                f"hook '{name}' has returned an object of type {type(result).__name__}; expected "
                "a Tensor or None"
            )
        if result.shape != g.shape:
            raise RuntimeError(f"hook '{name}' has changed the size of value")
        g = result if result.dtype == g.dtype else apply_op(astype, (result, g.dtype), {})
    return g


# -- with tensors ---------------------------------------------------------------------------------


def sweep_tensors(
    roots: Sequence[tuple[Owner, Tensor]], inputs: Sequence[Owner] | None, retain: bool
) -> dict[int, tuple[Owner, Tensor]]:
    """Run the reverse pass on tensors, recording it. Same meaning as `sweep_arrays`."""
    needed = None if inputs is None else _needed(roots, inputs)
    requested = None if inputs is None else {own[OWN_SLOT] for own in inputs}
    cotangents: dict[int, Any] = {}
    owners: dict[int, Owner] = {}
    heap: list[int] = []

    def wanted(parent: Owner) -> bool:
        return needed is None or parent[OWN_SLOT] in needed

    def contribute(own: Owner, g: Any) -> None:
        slot = own[OWN_SLOT]
        if not wanted(own):
            return
        if type(g) is dict:  # of one output among several
            given = cotangents.setdefault(slot, {})
            for k, value in g.items():
                given[k] = ew.add(given[k], value) if k in given else value
        else:
            g = fit_tensor(g, own[OWN_AVAL])
            cotangents[slot] = ew.add(cotangents[slot], g) if slot in cotangents else g
        if slot not in owners:
            owners[slot] = own
            if slot < LEAF_CLOCK:
                heapq.heappush(heap, -slot)

    for own, g in roots:
        contribute(own, g)
    while heap:
        own = owners[-heapq.heappop(heap)]
        slot = own[OWN_SLOT]
        g = cotangents.pop(slot)
        if type(own[-1]) is Meta:
            g = finish_gradient(own[-1], g, True)
        if requested and slot in requested:
            cotangents[slot] = g
        for parent, cotangent in zip(inputs_of(own), pull_back(own, g, wanted), strict=True):
            if parent is not None and cotangent is not None:
                contribute(parent, cotangent)
        if not retain:
            free(own)
    return {
        slot: (owners[slot], g)
        for slot, g in cotangents.items()
        if slot >= LEAF_CLOCK or (requested and slot in requested)
    }


def _needed(roots: Sequence[tuple[Owner, Any]], inputs: Sequence[Owner]) -> set[int]:
    """Slots on a path from a root to an input."""
    needed = {own[OWN_SLOT] for own in inputs}
    order: dict[int, Owner] = {}
    stack = [own for own, _ in roots]
    while stack:
        own = stack.pop()
        if own[OWN_SLOT] not in order:
            order[own[OWN_SLOT]] = own
            if own[OWN_SLOT] < LEAF_CLOCK:
                stack.extend(parent for parent in inputs_of(own) if parent is not None)
    for slot in sorted(order):
        if slot < LEAF_CLOCK and any(
            parent is not None and parent[OWN_SLOT] in needed for parent in inputs_of(order[slot])
        ):
            needed.add(slot)
    return needed


def fit_tensor(g: Any, aval: int) -> Tensor:
    """Bring a cotangent to the shape and dtype of its input."""
    shape, dtype = AVALS.shapes[aval], AVALS.dtypes[aval]
    if not isinstance(g, Tensor):
        g = wrap(np.asarray(g, dtype))
    if g.shape != shape:
        g = unbroadcast(g, shape)
    return g if g.dtype == dtype else apply_op(astype, (g, dtype), {})


def pull_back(own: Owner, g: Any, wanted: Any) -> list[Any]:
    """Return the cotangents of a record's inputs as tensors."""
    segment, slot = own[OWN_SEGMENT], own[OWN_SLOT]
    words = segment.rows()[slot - segment.base]
    flags = int(words["flags"])
    if flags & FREED:
        raise RuntimeError(SECOND_TIME)
    try:
        if flags & NARY:
            return own[FRAME].cotangents(own, g, wanted)
        op = OPS.ops[int(words["op"])]
        if isinstance(op, View):
            parent = own[OWN_INPUTS]
            parameters = own[OWN_INPUTS + 1]
            shape = AVALS.shapes[parent[OWN_AVAL]]
            return [op.rules["x"](g, shape, **parameters)]
        return _pull_back_swept(op, own, g, int(words["y"]), wanted)
    except MutatedError as error:
        raise RuntimeError(mutated_message(error)) from None


def _pull_back_swept(op: Any, own: Owner, g: Tensor, y_word: int, wanted: Any) -> list[Any]:
    count = len(op.differentiable)
    parents = own[OWN_INPUTS : OWN_INPUTS + count]
    owner_of = dict(zip(op.differentiable, parents, strict=True))
    owner_of["z"] = own
    values: dict[str, Any] = {}
    for name, array in zip(op.saved, own[OWN_INPUTS + count :], strict=False):
        if array is not None:
            check_unmutated(own[OWN_SLOT], array)
            values[name] = wrap(array, owner_of.get(name))
    if isinstance(op, Reduction):
        shape = AVALS.shapes[parents[0][OWN_AVAL]]
        kept = tuple(1 if y_word >> k & 1 else dim for k, dim in enumerate(shape))
        g = reshape(g, kept)
        values = {n: v if n == "x" else reshape(v, kept) for n, v in values.items()}
    found: list[Any] = []
    for name, parent in zip(op.differentiable, parents, strict=True):
        if parent is None or not wanted(parent):
            found.append(None)
            continue
        partial = op.rules[name](**{read: values[read] for read in op.reads(name)})
        if isinstance(partial, float):
            cotangent = g if partial == 1.0 else ew.multiply(g, partial)
        else:
            cotangent = ew.multiply(g, partial)
        if isinstance(op, Reduction):
            cotangent = broadcast_to(cotangent, shape)
        found.append(cotangent)
    return found
