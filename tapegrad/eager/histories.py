"""Writing to memory, and the histories that tensors and their views have afterwards.

An interrupt (Ctrl-C), or an error, may arrive anywhere. So a mutation is noted before memory
changes: a saved value that might have been overwritten is refused. The new histories are made
before, too, and given to the tensors right after the write; if that is interrupted, it is unknown
which of value and history are old, and derivatives of these tensors are refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tapegrad.eager.duals import spoil_tangent
from tapegrad.eager.frames import FRAMED, Active, OpFrame, RefusedFrame, append_record
from tapegrad.eager.modes import MODE
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.ops.indexing import put_view, show
from tapegrad.ops.table.array_kinds import ArrayOp
from tapegrad.tape.avals import AVALS
from tapegrad.tape.owner import Owner, ensure_notes, notes_of
from tapegrad.tape.tape import TAPE

FUNCTION_VIEW = (
    "was created inside a custom Function (or because an input was returned as-is) and the "
    "autograd logic to handle view+inplace would override the custom backward associated with the "
    "custom Function, leading to incorrect gradients. This behavior is forbidden. You can fix this "
    "by cloning the output of the custom Function."
)

Changes = list[tuple[Tensor, Owner | None]]  # tensors, each with its new history

# what NumPy raises for an index or a value that does not fit, before it writes anything
_NOT_WRITTEN = (IndexError, TypeError, ValueError)


def clarified(mode: str) -> str:
    """Return what to do about a view made in `no_grad` or inference mode that is written to."""
    block = "inference_mode" if mode == "inference" else "no_grad"
    return (
        "Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify "
        f"your code by moving both the view and the inplace either both inside the {block} block "
        "(if you don't want the inplace to be tracked) or both outside (if you want the inplace to "
        "be tracked)."
    )


# -- writes ---------------------------------------------------------------------------------------


def store(
    target: Tensor,
    index: Any,
    array: Any,
    what: str,
    changes: Changes,
    store_tangent: Callable[[], Any] | None = None,
) -> None:
    """Perform ``target[index] = array`` in memory, and give tensors the histories that follow.

    Parameters
    ----------
    target, index, array
        Where to write, and what.
    what
        The op, for messages.
    changes
        The result of `histories_after`.
    store_tangent
        Writes the tangent, if there is one.
    """
    if MODE.mutation_guard is not None:  # it copies saved values before their memory is written
        MODE.mutation_guard.before_write(target._a)
    slot = TAPE.note_mutation(target._a, what)
    written = False
    try:
        target._a[index] = array
        written = True
        for tensor, own in changes:
            give_history(tensor, own)
        if store_tangent is not None:
            store_tangent()
    except BaseException as error:
        if not written and isinstance(error, _NOT_WRITTEN):
            TAPE.forget_mutation(target._a, slot)
            raise
        spoil([(tensor, (own,)) for tensor, own in changes], what)
        if store_tangent is not None:
            spoil_tangent(target)
        raise


def spoil(changes: Iterable[tuple[Tensor, Iterable[Owner | None]]], what: str) -> None:
    """Refuse derivatives of tensors after a write to their memory that was interrupted.

    Parameters
    ----------
    changes
        The tensors, each with the histories besides its own that it may have.
    what
        The op, for messages.
    """
    for tensor, others in changes:
        found = [own for own in (tensor._own, *others) if own is not None]
        if not found:
            continue
        frame = RefusedFrame(
            f"an in-place operation ({what}) on a value needed for gradient computation was "
            "interrupted, so that the value or its history is incomplete: compute it again, or "
            "detach() it"
        )
        meta = tensor.meta()
        for own in found:
            notes = notes_of(own)
            if notes is not None and notes.retains is not None and notes.retains() is tensor:
                notes.retains = None
        if meta is not None and meta.retains_grad:
            meta.retains_grad = False
        tensor._own = append_record(FRAMED, AVALS.of(tensor._a), found, frame, False)


def spoil_writes(tensors: Iterable[Tensor], owners: Iterable[Owner], what: str) -> None:
    """Refuse derivatives of tensors, and of all that share their memory, as `spoil` does.

    Leaves and their views are left as they are: no history says what the value of a leaf is.

    Parameters
    ----------
    tensors
        Tensors whose memory was written.
    owners
        Histories that the new values may have.
    what
        The op, for messages.
    """
    owners = [*owners]
    for tensor in tensors:
        meta = tensor.meta()
        base = tensor if meta is None or meta.base is None else meta.base
        if base._own is not None and base.is_leaf:
            continue
        shown = [tensor for tensor, _ in _histories_of_views(base, base._own)]
        spoil([(one, owners) for one in (base, *shown)], what)


# -- histories ------------------------------------------------------------------------------------


def histories_after(target: Tensor, own: Owner | None) -> Changes:
    """Return the histories that follow from a write to a target: those of its base and its views.

    Parameters
    ----------
    target
        The target, which may be a view.
    own
        The history of its new value.
    """
    if not MODE.recording:
        return []
    meta = target.meta()
    base = target
    if meta is not None and meta.base is not None:
        base = meta.base
        if own is None and base._own is None and target._own is None:
            return []
        bound = {"x": wrap(base._a, base._own), "value": wrap(target._a, own), "steps": meta.steps}
        own = record_unrun(put_view, base._a, bound)
    return [(base, own), *_histories_of_views(base, own)]


def _histories_of_views(base: Tensor, own: Owner | None) -> Changes:
    """Return the history that every view of a base gets if the base has a history."""
    meta = base.meta()
    if meta is None or meta.views is None:
        return []
    changes: Changes = []
    for reference in meta.views:
        shown = reference()
        if shown is None:
            continue
        known = shown.ensure_meta()
        if known.function_view:
            if shown._own is not None:
                changes.append((shown, _refused(shown)))
        elif known.unrecorded_view:
            if own is not None:
                changes.append((shown, _refused(shown)))
        else:
            changes.append((shown, show(wrap(base._a, own), known.steps)._own))
    return changes


def record_leaf(target: Tensor, own: list[Any]) -> None:
    """Make a tensor without a history a leaf, and record its views; or leave all as they were."""
    changes = _histories_of_views(target, own)
    before = [(shown, shown._own) for shown, _ in changes]
    try:
        target._own = own
        for shown, new in changes:
            give_history(shown, new)
    except BaseException:
        target._own = None
        for shown, old in before:
            shown._own = old
        raise


class InvalidViewFrame(RefusedFrame):
    """The frame of a view that became invalid when its base was modified; it has no node."""

    __slots__ = ()


def _refused(shown: Tensor) -> Owner:
    """Record that a view can no longer be differentiated."""
    meta = shown._meta
    assert meta is not None
    modified = "and its base or another view of its base has been modified inplace."
    if meta.function_view:
        reason = f"Output 0 of {meta.function_view} is a view {modified} This view {FUNCTION_VIEW}"
    else:
        mode = meta.unrecorded_view
        reason = f"A view was created in {mode} mode {modified} {clarified(mode)}"
    frame = InvalidViewFrame(reason)
    return append_record(FRAMED, AVALS.of(shown._a), [shown._own], frame, False)


def give_history(target: Tensor, own: Owner | None) -> None:
    """Give a tensor another history: its hooks stay with the old one, a retained gradient moves."""
    meta = target.meta()
    old, target._own = target._own, own
    if meta is not None and meta.retains_grad:
        meta.retains_grad = False
        notes = None if old is None else notes_of(old)
        if notes is not None:
            notes.retains = None
        if own is not None:
            meta.retains_grad = True
            ensure_notes(own, stop=True).retains = weakref.ref(target)


def record_unrun(op: ArrayOp, z: np.ndarray, bound: dict[str, Any]) -> Owner | None:
    """Record an opaque op whose result is already in memory and whose rules read no values."""
    active = Active(op, bound)
    return OpFrame(active, bound, z).append(AVALS.of(z)) if active.mask else None


Tensor._record_leaf = record_leaf
