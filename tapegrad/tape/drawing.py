"""Drawings of the graph of a tensor."""

from __future__ import annotations

from typing import Any

from tapegrad.tape.codes import OPS
from tapegrad.tape.dump import aval_name, slot_name
from tapegrad.tape.layout import LEAF_CLOCK, OWN_AVAL, OWN_SLOT
from tapegrad.tape.owner import Owner, inputs_of, op_and_flags

DRAWN_AT_MOST = 2000
GIVEN = {"shape": "box", "style": "filled", "fillcolor": "#dbe9f6"}  # what is not computed


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
