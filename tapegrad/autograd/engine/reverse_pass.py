"""The reverse pass: cotangents of outputs to cotangents of inputs.

Two engines share the graph. `sweep_arrays` runs the compiled sweep and calls Python only for
records that need it. `sweep_tensors` walks the same records in Python with tensors, so that the
result can be differentiated again or anomalies can be detected.

At each record, both handle in this order: complete leaves with hooks, hooks on the gradient of the
output, the retained or requested gradient, the node's prehooks, its vjp, its posthooks. Leaves
without hooks are left to the caller.
"""

from __future__ import annotations

import functools
import heapq
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.anomaly_mode import check_nan, warn_of_origin
from tapegrad.autograd.engine.marks import completed_leaves, marks_between
from tapegrad.autograd.engine.mutated import mutated_message
from tapegrad.autograd.engine.node import active_only, node_of, with_passive
from tapegrad.autograd.engine.running_hooks import (
    finish_gradient,
    run_hooks_of_unused,
    run_posthooks,
    run_prehooks,
    run_tensor_hooks,
)
from tapegrad.autograd.engine.saved_values import swept_values
from tapegrad.cuda.array import Array, DeviceArray, as_array, contiguous
from tapegrad.eager.dispatch import apply_op, passive
from tapegrad.eager.duals import arrays_of
from tapegrad.eager.frames import RuleFrame, SelectFrame, fit_array, node_name
from tapegrad.eager.item_by_item import or_item_by_item
from tapegrad.eager.modes import MODE
from tapegrad.eager.saved_values import SECOND_TIME
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops import elementwise as ew
from tapegrad.ops.shape import astype, unbroadcast
from tapegrad.ops.table.kinds import View
from tapegrad.probes import probe
from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import FREED, LEAF_CLOCK, OWN_AVAL, OWN_INPUTS, OWN_SLOT
from tapegrad.tape.owner import (
    Notes,
    Owner,
    free,
    inputs_of,
    op_and_flags,
    record_owner,
    segment_of,
)
from tapegrad.tape.sweep import Contributions, FreedError, MutatedError, Sweep

Wanted = Callable[[Owner], bool]
_OWN_REFERENCES = 4  # of an array: two dicts, a variable, and the argument of sys.getrefcount
FinishLeaf = Callable[[Owner, Tensor | None], None]  # called with a leaf and its gradient


# -- compiled -------------------------------------------------------------------------------------


def _seed_and_run(
    sweep: Sweep,
    roots: Sequence[tuple[Owner, Array]],
    inputs: Sequence[Owner] | None,
    finish_leaf: FinishLeaf,
) -> None:
    slots = [own[OWN_SLOT] for own, _ in roots]
    if inputs is not None:
        sweep.request(slots, [own[OWN_SLOT] for own in inputs])
    leaves = completed_leaves(slots, inputs)
    last = leaves.pop(0, ())
    for slot, complete in leaves.items():
        sweep.stop_before(slot, functools.partial(_finish_leaves, sweep, complete, finish_leaf))
    for own, cotangent in roots:
        if sweep.is_needed(own[OWN_SLOT]):
            sweep.seed(
                own[OWN_SLOT],
                own[OWN_AVAL],
                contiguous(cotangent),
            )
        elif type(own[0]) is Notes:  # not on a path to an input, but its gradient is known
            finish_gradient(own[0], passive(cotangent))
    sweep.run()
    _finish_leaves(sweep, last, finish_leaf)


def _finish_leaves(sweep: Sweep, leaves: Sequence[Owner], finish_leaf: FinishLeaf) -> None:
    for own in leaves:
        if own[OWN_SLOT] in sweep.arrays or own[OWN_SLOT] in sweep.undefined:
            g = sweep.take(own[OWN_SLOT])
            finish_leaf(own, None if g is None else passive(g))


def sweep_arrays(
    roots: Sequence[tuple[Owner, Array]],
    inputs: Sequence[Owner] | None,
    retain: bool,
    finish_leaf: FinishLeaf,
) -> dict[int, tuple[Owner, Array]]:
    """Run the compiled sweep.

    Parameters
    ----------
    roots
        Owners of the outputs with their cotangents (arrays with their avals).
    inputs
        Owners of the requested inputs; None for all leaves.
    retain
        Keep saved values.
    finish_leaf
        Called with each leaf that has hooks and its cotangent, once the cotangent is complete.

    Returns
    -------
    dict
        Owners and cotangents, by slot, of the inputs that were reached or of all leaves, except
        finished leaves.
    """
    sweep = Sweep(run_record, run_slot_hooks, retain)
    try:
        MODE.with_recording(False, _seed_and_run, sweep, roots, inputs, finish_leaf)
    except FreedError:
        raise RuntimeError(SECOND_TIME) from None
    except MutatedError as error:
        raise RuntimeError(mutated_message(error.slot, record_owner(error.slot))) from None
    arrays = {**sweep.arrays, **sweep.captured}
    for slot in sweep.borrowed & arrays.keys():
        array = arrays[slot]
        # if only this function and the sweep refer to it, a rule made it and nothing else has it
        is_own = array.flags.owndata and array.flags.writeable
        if not is_own or sys.getrefcount(array) > _OWN_REFERENCES or weakref.getweakrefcount(array):
            arrays[slot] = array.copy()
    if inputs is None:
        found: dict[int, tuple[Owner, Any]] = {}
        for slot in sweep.undefined:
            found[slot] = (owner_of_leaf(slot), None)
        for slot, array in arrays.items():
            if slot >= LEAF_CLOCK:
                found[slot] = (owner_of_leaf(slot), array)
    else:
        owners = {own[OWN_SLOT]: own for own in inputs}
        reached = arrays.keys() | sweep.undefined
        found = {slot: (own, arrays.get(slot)) for slot, own in owners.items() if slot in reached}
    sweep.finish()
    return found


def owner_of_leaf(slot: int) -> Owner:
    """Return the owner of a leaf that a live graph refers to."""
    owner = record_owner(slot)
    assert owner is not None
    return owner


def run_record(sweep: Sweep, slot: int, owner: Owner, g: Any) -> Contributions | None:
    """Run a record that needs Python, with its hooks (called by the compiled sweep)."""
    if g is None:
        if type(owner[0]) is Notes and slot not in sweep.hooked:
            run_tensor_hooks(owner[0].hooks, None)
        if not isinstance(owner[-1], RuleFrame) or not owner[-1].runs_undefined:
            for parent in inputs_of(owner):
                if parent is not None:
                    sweep.touch(parent[OWN_SLOT])
            return []
    elif type(owner[0]) is Notes:
        return _run_noted_record(sweep, slot, owner, owner[0], g)
    if type(g) is DeviceArray and not isinstance(owner[-1], RuleFrame):
        return _contributions_on_device(sweep, owner, g)
    return owner[-1].contributions(sweep, owner, g)


def _contributions_on_device(sweep: Sweep, owner: Owner, g: DeviceArray) -> Contributions:
    """Run the rules of a record that compiled code would process if it were on the host."""
    code, flags = op_and_flags(owner)
    if flags & FREED:  # by a hook
        raise RuntimeError(SECOND_TIME)
    op = OPS.ops[code]
    values = {name: arrays_of(value) for name, value in swept_values(owner, op).items()}
    cotangents = _cotangents_of_swept(owner, op, g, values, sweep.wants)
    return [
        (parent, fit_array(array, parent[OWN_AVAL], op.name))
        for parent, array in zip(inputs_of(owner), cotangents, strict=False)
        if parent is not None and array is not None and sweep.wants(parent)
    ]


def _run_noted_record(
    sweep: Sweep, slot: int, owner: Owner, notes: Notes, g: Array
) -> Contributions | None:
    if slot not in sweep.hooked:
        g = _run_slot_hooks(sweep, slot, notes, g)
    if notes.outputs:
        run_hooks_of_unused(notes, sweep.tuples[slot])
    frame = owner[-1] if isinstance(owner[-1], RuleFrame) else None
    if not notes.prehooks and not notes.posthooks:
        if frame is not None:
            return frame.contributions(sweep, owner, g)
        return _contributions_on_device(sweep, owner, g) if type(g) is DeviceArray else None
    outputs = None if frame is None else getattr(frame, "outputs", None)
    given: Any = wrap(g)
    if outputs is not None:
        given = {k: wrap(array) for k, array in sweep.tuples.pop(slot).items()}

    def wanted(parent: Owner) -> bool:
        return sweep.is_needed(parent[OWN_SLOT])

    contributions: Contributions = []
    for parent, cotangent in zip(
        inputs_of(owner), run_node(owner, notes, given, wanted), strict=False
    ):
        if parent is None or not wanted(parent):
            continue
        if cotangent is None:
            sweep.touch(parent[OWN_SLOT])
            continue
        array = cotangent._a if isinstance(cotangent, Tensor) else cotangent
        what = f"{node_name(owner)}Backward returned an invalid gradient"
        contributions.append((parent, fit_array(array, parent[OWN_AVAL], what)))
    return contributions


def run_slot_hooks(sweep: Sweep, slot: int) -> None:
    """Run the hooks of a requested output once its cotangent is complete."""
    owner = record_owner(slot)
    assert owner is not None
    if type(owner[0]) is Notes:
        if slot in sweep.arrays:
            _run_slot_hooks(sweep, slot, owner[0], sweep.arrays[slot])
        else:
            run_tensor_hooks(owner[0].hooks, None)
        sweep.hooked.add(slot)


def _run_slot_hooks(sweep: Sweep, slot: int, notes: Notes, g: Array) -> Array:
    if not notes.hooks and notes.retains is None:
        return g
    new = finish_gradient(notes, wrap(g))._a
    if new is not g:
        new = contiguous(new)
        sweep.replace(slot, new)
    return new


# -- with tensors ---------------------------------------------------------------------------------


def sweep_tensors(
    roots: Sequence[tuple[Owner, Tensor]],
    inputs: Sequence[Owner] | None,
    retain: bool,
    finish_leaf: FinishLeaf,
) -> dict[int, tuple[Owner, Tensor]]:
    """Run the reverse pass on tensors; parameters and result as for `sweep_arrays`."""
    requested: set[int] = set()
    needed: set[int] | None = None  # None: all
    passing: set[int] = set()
    if inputs is not None:
        requested = {own[OWN_SLOT] for own in inputs}
        needed, passing = marks_between([own[OWN_SLOT] for own, _ in roots], requested)
    try:
        with np.errstate(all="ignore"):  # as in compiled code
            leaves = completed_leaves([own[OWN_SLOT] for own, _ in roots], inputs)
            return _sweep_tensors(roots, requested, needed, passing, retain, leaves, finish_leaf)
    except MutatedError as error:
        raise RuntimeError(mutated_message(error.slot, record_owner(error.slot))) from None


def _sweep_tensors(
    roots: Sequence[tuple[Owner, Tensor]],
    requested: set[int],
    needed: set[int] | None,
    passing: set[int],
    retain: bool,
    leaves: dict[int, list[Owner]],
    finish_leaf: FinishLeaf,
) -> dict[int, tuple[Owner, Tensor]]:
    cotangents: dict[int, Any] = {}
    waiting: dict[int, Owner] = {}
    heap: list[int] = []
    found: dict[int, tuple[Owner, Tensor]] = {}

    def wanted(own: Owner) -> bool:
        return needed is None or own[OWN_SLOT] in needed

    def contribute(own: Owner, g: Any) -> None:
        slot = own[OWN_SLOT]
        if g is None:
            cotangents.setdefault(slot, None)
        elif type(g) is dict:  # for one output of several
            given = cotangents.setdefault(slot, {})
            for k, value in g.items():
                given[k] = ew.add(given[k], value) if k in given else value
        else:
            g = fit_tensor(g, own[OWN_AVAL])
            old = cotangents.get(slot)
            cotangents[slot] = g if old is None else ew.add(old, g)
        if slot not in waiting:
            waiting[slot] = own
            if slot < LEAF_CLOCK:
                heapq.heappush(heap, -slot)

    def finish(leaves: Sequence[Owner]) -> None:
        for leaf in leaves:
            if waiting.pop(leaf[OWN_SLOT], None) is not None:
                finish_leaf(leaf, cotangents.pop(leaf[OWN_SLOT]))

    for own, g in roots:
        if wanted(own):
            contribute(own, g)
        elif type(own[0]) is Notes:
            finish_gradient(own[0], g)
    while heap:
        slot = -heapq.heappop(heap)
        finish(leaves.get(slot, ()))
        own = waiting.pop(slot)
        g = cotangents.pop(slot)
        notes = own[0] if type(own[0]) is Notes else None
        if notes is not None:
            g = _finish(own, notes, g)
        if slot in requested:
            if g is not None:
                found[slot] = own, g
            if slot not in passing:
                continue
        may_leave = isinstance(own[-1], RuleFrame) and own[-1].runs_undefined
        parents = inputs_of(own)
        if g is None and not may_leave:
            cotangents_of_inputs: list[Any] = [None] * len(parents)
        else:
            cotangents_of_inputs = _step(own, notes, g, wanted)
        for parent, cotangent in zip(parents, cotangents_of_inputs, strict=False):
            if parent is None or not wanted(parent):
                continue
            if cotangent is not None or g is None or may_leave:
                contribute(parent, cotangent)
        if not retain:
            free(own)
    finish(leaves.get(0, ()))
    for slot, own in waiting.items():
        found[slot] = own, cotangents[slot]
    return found


def _finish(own: Owner, notes: Notes, g: Any) -> Any:
    """Run the hooks of a record's output."""
    if g is None:
        run_tensor_hooks(notes.hooks, None)
    elif isinstance(g, Tensor):
        if MODE.anomaly:
            return _watched(own, lambda: finish_gradient(notes, g))
        return finish_gradient(notes, g)
    elif notes.outputs:
        run_hooks_of_unused(notes, g)
    return g


def _name_in_profiles(args: tuple[Any, ...]) -> str | None:
    """Return the name of a record; outputs of an op with several are part of the op."""
    owner = args[0]
    return None if isinstance(owner[-1], SelectFrame) else f"{node_name(owner)}Backward"


@probe(_name_in_profiles, "sweep", describe=lambda args, _: args[0][OWN_SLOT])
def _step(own: Owner, notes: Notes | None, g: Any, wanted: Wanted) -> list[Any]:
    """Return the cotangents of a record's inputs; in anomaly mode, check them."""
    if not MODE.anomaly:
        return vjp_of_record(own, g, wanted) if notes is None else run_node(own, notes, g, wanted)
    before, MODE.thread.node = MODE.thread.node, node_of(own)

    def step() -> list[Any]:
        known = notes if notes is not None else Notes(segment_of(own))
        cotangents = run_node(own, known, g, wanted)
        if MODE.check_nan:
            check_nan(own, cotangents)
        return cotangents

    try:
        return _watched(own, step)
    finally:
        MODE.thread.node = before


def _watched(own: Owner, step: Callable[[], Any]) -> Any:
    """Run a step of a record; if it fails, warn of the call that recorded it."""
    try:
        return step()
    except Exception:
        warn_of_origin(own)
        raise


def run_node(own: Owner, notes: Notes, g: Any, wanted: Wanted) -> list[Any]:
    """Run a record's prehooks, its vjp on tensors, and its posthooks."""
    if not notes.prehooks and not notes.posthooks:
        return vjp_of_record(own, g, wanted)
    frame = own[-1] if isinstance(own[-1], RuleFrame) else None
    several = type(g) is dict
    outputs: tuple[Any, ...] = (
        tuple(g.get(k) for k in range(len(own[-1].outputs))) if several else (g,)
    )
    if notes.prehooks:
        outputs = run_prehooks(notes.prehooks, outputs)
        if several:
            g = {k: value for k, value in enumerate(outputs) if value is not None}
        else:
            g = outputs[0]
            if g is None and not (frame is not None and frame.runs_undefined):
                return [None] * len(inputs_of(own))
    cotangents = vjp_of_record(own, g, wanted)
    if not notes.posthooks:
        return cotangents
    fitted = [
        None if cotangent is None or parent is None else fit_tensor(cotangent, parent[OWN_AVAL])
        for parent, cotangent in zip(inputs_of(own), cotangents, strict=False)
    ]
    if frame is None:
        return list(run_posthooks(notes.posthooks, tuple(fitted), outputs))
    given = run_posthooks(notes.posthooks, tuple(with_passive(frame, fitted)), outputs)
    return active_only(frame, given)


def fit_tensor(g: Any, aval: int) -> Tensor:
    """Convert a cotangent to the shape and dtype of its input."""
    shape, dtype = AVALS.shapes[aval], AVALS.dtypes[aval]
    if not isinstance(g, Tensor):
        g = wrap(as_array(g))
    if g.shape != shape:
        g = unbroadcast(g, shape)
    if g.dtype is dtype or g.dtype == dtype:
        return g
    if g.dtype.kind == "c" and dtype.kind != "c":
        g = g.real
    return g if g.dtype == dtype else apply_op(astype, (g, dtype), {})


def vjp_of_record(own: Owner, g: Any, wanted: Wanted) -> list[Any]:
    """Return the cotangents of a record's inputs as tensors."""
    if MODE.special and MODE.thread.levels:
        return or_item_by_item(lambda item: _vjp_of_record(own, item, wanted), g)
    return _vjp_of_record(own, g, wanted)


def _vjp_of_record(own: Owner, g: Any, wanted: Wanted) -> list[Any]:
    code, flags = op_and_flags(own)
    if flags & FREED:
        raise RuntimeError(SECOND_TIME)
    frame = own[-1]
    if isinstance(frame, RuleFrame):
        return frame.cotangents(own, inputs_of(own), g, wanted)
    op = OPS.ops[code]
    return _cotangents_of_swept(own, op, g, swept_values(own, op), wanted)


def _cotangents_of_swept(
    own: Owner, op: Any, g: Any, values: dict[str, Any], wanted: Wanted
) -> list[Any]:
    """Return the cotangents of the inputs of a record without a frame, by the rules of its op."""
    if isinstance(op, View):
        return [op.cotangent("x", g, values)]
    return [
        op.cotangent(name, g, values) if parent is not None and wanted(parent) else None
        for name, parent in zip(op.differentiable, own[OWN_INPUTS:], strict=False)
    ]
