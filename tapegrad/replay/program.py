"""What a recorded function computes: live values, equal ones once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tapegrad.eager.traced import Node, Trace


class Program:
    """The values that the results of a recorded function consist of.

    Parameters
    ----------
    trace
        The recording.
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
    """

    def __init__(self, trace: Trace, inputs: list[Node], outputs: list[Node]) -> None:
        self.inputs = inputs
        self.recorded = len(trace.nodes) - len(inputs)
        same: dict[Node, Node] = {}  # the value that stands for an equal one
        known: dict[Any, Node] = {}
        for node in trace.nodes:
            node.args = _replaced(node.args, same)
            key = id(node) if node.name == "input" else _key(node)
            first = known.setdefault(key, node)
            if first is not node:
                same[node] = first
        self.outputs = [same.get(node, node) for node in outputs]
        live = _reached(self.outputs)
        self.nodes = [n for n in trace.nodes if n in live and n.name != "input" and n not in same]
        self.constants = [n for n in live if n.name == "constant"]
        for node in (*trace.nodes, *inputs):
            node.example = None

    def users(self) -> dict[Node, list[Node]]:
        """Return the nodes that read each node."""
        found: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for read in dict.fromkeys(node.inputs()):
                found.setdefault(read, []).append(node)
        return found


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
    if isinstance(value, Node):
        return same.get(value, value)
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
