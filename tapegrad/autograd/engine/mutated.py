"""The error message for a saved value that was modified in place."""

from __future__ import annotations

from tapegrad.eager.frames import RuleFrame, SavedArrays, maker_of, node_name, title
from tapegrad.eager.modes import MODE
from tapegrad.ops.table.kinds import View
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import LEAF_CLOCK, OWN_SLOT
from tapegrad.tape.owner import Owner, op_and_flags
from tapegrad.tape.tape import TAPE, buffer_of


def mutated_message(slot: int, owner: Owner | None) -> str:
    """Return a message that names the modified value and the op that computed it, with a hint.

    Parameters
    ----------
    slot, owner
        Slot and owner of the record that saved it.
    """
    return message_of(saved_arrays(owner) if owner is not None else [], slot, owner)


def message_of(arrays: SavedArrays, slot: int, owner: Owner | None = None) -> str:
    """Return the message for the first of some arrays that was modified after a position.

    Parameters
    ----------
    arrays
        Saved arrays, with the record and output number that made each.
    slot
        The position on the clock at which they were saved.
    owner
        Owner of the record that saved them, if it is a record.
    """
    what = "a saved value"
    for array, maker, k in arrays:
        known = TAPE.mutations.get(id(buffer_of(array)))
        if known is not None and known.slots[-1] > slot:
            what = f"[{array.dtype} {list(array.shape)}]"
            if maker is not None and maker[OWN_SLOT] < LEAF_CLOCK:
                name = node_name(maker) if maker is owner or not known.op else title(known.op)
                what += f", which is output {k} of {name},"
            expected = known.version_before(slot)
            what += f" is at version {known.count}; expected version {expected} instead"
            break
    hint = (
        "the backtrace further above shows the operation that failed to compute its gradient. The "
        "variable in question was changed in there or anywhere later. Good luck!"
        if MODE.anomaly
        else "enable anomaly detection to find the operation that failed to compute its gradient, "
        "with tapegrad.autograd.set_detect_anomaly(True, check_nan=False)."
    )
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: {what}. Hint: {hint}"
    )


def saved_arrays(owner: Owner) -> SavedArrays:
    """Return the arrays saved by a record, with the record and output number that made each."""
    frame = owner[-1]
    if isinstance(frame, RuleFrame):
        return frame.saved_arrays(owner)
    op = OPS.ops[op_and_flags(owner)[0]]
    if isinstance(op, View):
        return []
    return [
        (owner[index], *maker_of(owner if maker == 0 else owner[maker] if maker > 0 else None))
        for _, index, maker in op.places
        if owner[index] is not None
    ]
