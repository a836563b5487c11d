"""Inspection of the tape: a readable dump of records, and a drawing of a tensor's graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.tape.avals import AVALS
from tapegrad.tape.codes import OPS
from tapegrad.tape.layout import (
    FREED,
    LEAF_CLOCK,
    NARY,
    NUMBERS,
    OP_INPUTS,
    OWN_AVAL,
    OWN_SLOT,
    PYTHON,
    SAVES,
)
from tapegrad.tape.owner import Owner, inputs_of, op_and_flags

_FLAGS = {FREED: "freed", PYTHON: "python", NARY: "nary", SAVES: "saves", NUMBERS: "numbers"}
DRAWN_AT_MOST = 2000
GIVEN = {"shape": "box", "style": "filled", "fillcolor": "#dbe9f6"}  # what is not computed


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


def new_graph(title: str) -> Any:
    """Return a `graphviz.Digraph` to draw values in.

    Raises
    ------
    ImportError
        If graphviz is not installed.
    """
    try:
        import graphviz
    except ImportError:
        raise ImportError(
            "draw needs graphviz; install it with: pip install 'tapegrad[draw]'"
        ) from None
    return graphviz.Digraph(title, node_attr={"fontname": "Helvetica", "fontsize": "10"})


def draw(own: Owner | None) -> Any:
    """Draw the records that an owner depends on, newest at the bottom.

    Parameters
    ----------
    own
        Owner of a tensor's record.

    Returns
    -------
    graphviz.Digraph
        Displayed in notebooks; ``render(path)`` writes a file.

    Raises
    ------
    ImportError
        If graphviz is not installed.
    ValueError
        If there is nothing to draw, or too much.
    """
    graph = new_graph("tape")
    if own is None:
        raise ValueError("draw: the tensor was not recorded (it does not require grad)")
    seen: set[int] = set()
    stack = [own]
    while stack:
        own = stack.pop()
        slot = own[OWN_SLOT]
        if slot in seen:
            continue
        seen.add(slot)
        if len(seen) > DRAWN_AT_MOST:
            raise ValueError(f"draw: more than {DRAWN_AT_MOST} records; draw an earlier tensor")
        shown = aval_name(own[OWN_AVAL])
        name = slot_name(slot)
        if slot >= LEAF_CLOCK:
            graph.node(name, f"leaf {name}\n{shown}", **GIVEN)
            continue
        op = OPS.ops[op_and_flags(own)[0]].name
        graph.node(name, f"{op}\n{name}: {shown}", shape="ellipse")
        for parent in inputs_of(own):
            if parent is not None:
                graph.edge(slot_name(parent[OWN_SLOT]), name)
                stack.append(parent)
    return graph
