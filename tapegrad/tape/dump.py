"""Records of the tape as text."""

from __future__ import annotations

import numpy as np

from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import FREED, LEAF_CLOCK, NARY, NUMBERS, OP_INPUTS, PYTHON, SAVES

_FLAGS = {FREED: "freed", PYTHON: "python", NARY: "nary", SAVES: "saves", NUMBERS: "numbers"}


def slot_name(slot: int) -> str:
    """Return a short name of a slot: a number for ops, L and a number for leaves."""
    if slot == 0:
        return "-"
    return f"L{slot - LEAF_CLOCK}" if slot >= LEAF_CLOCK else str(slot)


def aval_name(aval: int) -> str:
    """Return the dtype and shape of an aval, such as ``float64[2,3]``."""
    return f"{AVALS.dtypes[aval]}[{','.join(map(str, AVALS.shapes[aval]))}]"


def dump(records: np.ndarray) -> str:
    """Return one line per record: slot, op, output, inputs, flags.

    Parameters
    ----------
    records
        Rows of the tape (`Tape.records` or a part of it).
    """
    lines = [f"{'slot':>8}  {'op':<16} {'output':<20} {'inputs':<16} flags"]
    for row in records:
        op, flags = int(row["op"]), int(row["flags"])
        if flags & NARY:
            inputs = f"{row['x']} inputs"
        else:
            slots = [int(row["x"])]
            if OPS.meta[op, OP_INPUTS] > 1:
                slots.append(int(row["y"]))
            inputs = " ".join(map(slot_name, slots))
        named = " ".join(name for bit, name in _FLAGS.items() if flags & bit)
        lines.append(
            f"{slot_name(int(row['slot'])):>8}  {OPS.ops[op].name:<16} "
            f"{aval_name(int(row['aval'])):<20} {inputs:<16} {named}".rstrip()
        )
    return "\n".join(lines)
