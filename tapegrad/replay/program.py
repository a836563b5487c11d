"""What a recorded function computes: live values, equal ones once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Body, Node, bodies_of, replaced
from tapegrad.eager.numeric import PASSIVE
from tapegrad.replay.lowering import lowered

_WITHOUT_DERIVATIVES = frozenset([*PASSIVE, "stop_gradient"])


class Program:
    """The values that the results of a recorded function, or of a part of one, consist of.

    Parameters
    ----------
    nodes
        The computed values, each after those that it consists of.
    inputs
        Its arguments.
    outputs
        Its results: nodes.
    bodies
        The bodies of its loops and branches, and of others.

    Attributes
    ----------
    nodes, inputs, outputs, bodies
        As above.
    constants
        The arrays from outside that are used.
    """

    def __init__(
        self,
        nodes: list[Node],
        inputs: list[Node],
        outputs: list[Node],
        bodies: dict[Body, Program],
    ) -> None:
        self.nodes = nodes
        self.inputs = inputs
        self.outputs = outputs
        self.bodies = bodies
        read = [*outputs, *(node for own in nodes for node in own.inputs())]
        self.constants = [node for node in dict.fromkeys(read) if node.name == "constant"]

    def decides_by_values(self) -> bool:
        """Whether some shapes depend on values."""
        return any(node.decides_by_values for node in self.nodes) or any(
            program.decides_by_values() for program in self.bodies.values()
        )


def simplified(
    recorded: list[Node],
    inputs: list[Node],
    outputs: list[Node],
    known_bodies: dict[Body, Program] | None = None,
    spells_out: bool = True,
) -> Program:
    """Return the program of what was recorded: the values that are used, equal ones once.

    Parameters
    ----------
    recorded
        The values, in the order in which they were recorded.
    inputs
        The arguments.
    outputs
        The results: nodes.
    known_bodies
        Those of bodies, which several values may have.
    spells_out
        Whether some values become several (see `tapegrad.replay.lowering`).
    """
    programs = {} if known_bodies is None else known_bodies
    # and the values that stand for others
    nodes, same = lowered(recorded) if spells_out else ([*recorded], {})
    known: dict[Any, Node] = {}
    for node in nodes:
        node.args = replaced(node.args, same)
        key = _key(node)
        first = known.setdefault(key, node)
        if first is not node:
            same[node] = first
    outputs = [replaced(node, same) for node in outputs]
    effects = [node for node in nodes if node.name == "callback" or node.decides_by_values]
    live = _reached([*outputs, *effects])
    nodes = [node for node in nodes if node in live and node not in same]
    bodies = [body for node in nodes for body in bodies_of(node)]
    for body in bodies:
        if body not in programs:
            made = simplified(body.nodes, body.inputs, body.outputs, programs, spells_out)
            programs[body] = made
    for node in (*recorded, *inputs):
        node.forget()
    return Program(nodes, inputs, outputs, {body: programs[body] for body in bodies})


def depending(program: Program, are_chosen: Sequence[bool]) -> list[bool]:
    """Return which outputs have derivatives with respect to some of the arguments."""
    pairs = zip(program.inputs, are_chosen, strict=True)
    active = {node for node, is_chosen in pairs if is_chosen and node.dtype.kind in "fc"}
    for node in program.nodes:
        is_real = node.dtype is None or node.dtype.kind in "fc"
        if (
            is_real
            and node.name not in _WITHOUT_DERIVATIVES
            and not active.isdisjoint(node.inputs())
        ):
            active.add(node)
    return [node in active for node in program.outputs]


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


def _key(node: Node) -> Any:
    """Return what is equal for nodes that are equal."""
    return (node.name, node.op, key_of(node.args), key_of(node.parameters))


def key_of(value: Any) -> Any:
    """Return what is equal for equal arguments of equal types; it is hashable.

    Nodes are equal to themselves alone, and what is not hashable to nothing.
    """
    if isinstance(value, Node):
        return id(value)
    if type(value) in (int, str, bool):
        return (type(value), value)
    if type(value) is list or isinstance(value, tuple):
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
    # parts that are equal may have other types, as 1, 1.0 and True have
    if isinstance(value, frozenset):
        return (type(value), value, frozenset(map(key_of, value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name, None) for field in dataclasses.fields(value))
        return (type(value), value, *map(key_of, parts))
    return (type(value), value)
