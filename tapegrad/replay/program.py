"""What a recorded function computes: live values, equal ones once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tapegrad.eager.traced import Node, bodies_of
from tapegrad.replay.lowering import lowered


class Program:
    """The values that the results of a recorded function consist of.

    Parameters
    ----------
    recorded
        The values, in the order in which they were recorded.
    inputs
        Its arguments.
    outputs
        Its results: nodes.

    Attributes
    ----------
    inputs, outputs
        As above.
    constants
        The arrays from outside that are used.
    nodes
        The computed values, each after those that it consists of.
    recorded
        How many values were recorded.
    bodies
        The bodies of its loops and branches.
    """

    def __init__(self, recorded: list[Node], inputs: list[Node], outputs: list[Node]) -> None:
        self.inputs = inputs
        self.recorded = len(recorded)
        recorded, same = lowered(recorded)  # and the values that stand for others
        known: dict[Any, Node] = {}
        for node in recorded:
            node.args = _replaced(node.args, same)
            key = _key(node)
            first = known.setdefault(key, node)
            if first is not node:
                same[node] = first
        self.outputs = [_replaced(node, same) for node in outputs]
        live = _reached(self.outputs)
        self.nodes = [node for node in recorded if node in live and node not in same]
        self.constants = [node for node in live if node.name == "constant"]
        self.bodies = {
            body: Program(body.nodes, body.inputs, body.outputs)
            for node in self.nodes
            for body in bodies_of(node)
        }
        for node in (*recorded, *inputs):
            node.example = None


def _reached(outputs: Iterable[Node]) -> dict[Node, None]:
    """Return the nodes that some consist of, in the order in which they are found."""
    found: dict[Node, None] = {}
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            waiting += node.inputs()
    return found


def _replaced(value: Any, same: dict[Node, Node]) -> Any:
    while isinstance(value, Node) and value in same:
        value = same[value]
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, same) for item in value)
    return value


def _key(node: Node) -> Any:
    """Return what is equal for nodes that are equal."""
    return (node.name, node.op, key_of(node.args), key_of(node.parameters))


def key_of(value: Any) -> Any:
    """Return what is equal for equal arguments of equal types; it is hashable.

    Nodes are equal to themselves alone, and what is not hashable to nothing.
    """
    if isinstance(value, Node):
        return id(value)
    if type(value) in (list, tuple):
        return (type(value), *map(key_of, value))
    if type(value) is dict:
        return tuple((name, key_of(item)) for name, item in value.items())
    if type(value) is slice:
        return (slice, value.start, value.stop, value.step)
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if type(value) is float:
        return (float, value.hex())
    try:
        hash(value)
    except TypeError:
        return object()
    return (type(value), value)
