"""Loops and branches of a function that is recorded: their bodies are recorded once.

A body is recorded as a function of its own. Its arguments are the state of the loop, and the values
from around it that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import Body, Node, copied
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import NotRecordedError, Trace, Traced, record, stopped

Function = Callable[..., list[Any]]


class Recorded(NamedTuple):
    """The body of a loop or a branch.

    Attributes
    ----------
    body
        What it computes.
    given
        The values from around it that it reads, which are its last arguments.
    around
        Tensors that stand for these.
    read
        The tensors that these belong to.
    is_shared
        Whether a result may have the memory of an argument, of what it reads or of another result.
    """

    body: Body
    given: list[Node]
    around: list[Traced]
    read: list[Traced]
    is_shared: bool


def recorded_body(
    function: Function, arguments: list[Any], numbers: Iterable[int] = ()
) -> Recorded:
    """Record a function of tensors.

    Parameters
    ----------
    function
        Takes tensors and returns a list of leaves.
    arguments
        Its arguments, or arrays of their shapes and dtypes.
    numbers
        Positions of those that may be numbers of Python op by op.
    """
    with record() as trace:
        inputs = [a if isinstance(a, Node) else Node("input", np.array(a)) for a in arguments]
        trace.numbers.update(inputs[k] for k in numbers)
        found = function(*map(trace.tensor, inputs))
        outputs = [_node_of_result(trace, leaf) for leaf in found]
        given = list(trace.given)
        own = [*inputs, *trace.given.values()]
        others = [node.like for node in own]
        is_shared = any(type(leaf) is Traced and leaf.is_shared() for leaf in found)
        for node in outputs:
            is_shared |= node.name == "constant"
            is_shared |= any(np.may_share_memory(node.like, other) for other in others)
            others.append(node.like)
        body = Body(trace.nodes, own, outputs)
        around = [trace.outer.tensor(node) for node in given] if trace.outer is not None else []
        return Recorded(body, given, around, trace.read, is_shared)


def inlined(recorded: Recorded, values: Iterable[Any]) -> list[Tensor]:
    """Record what a function computes for some values; return tensors for its results."""
    trace: Trace = MODE.thread.trace
    args = [*map(trace.node_of, values), *map(trace.node_of, recorded.around)]
    same = dict(zip(recorded.body.inputs, args, strict=True))
    for node in recorded.body.nodes:
        same[node] = trace.add(copied(node, same))
    made = [trace.tensor(same.get(node, node)) for node in recorded.body.outputs]
    return [tensor if MODE.recording else stopped(tensor) for tensor in made]


def numbers_among(values: Iterable[Any]) -> list[int]:
    """Return the positions of values that may be numbers of Python op by op."""
    trace: Trace = MODE.thread.trace
    return [
        k
        for k, value in enumerate(values)
        if type(value) in (bool, int, float)
        or (type(value) is Traced and trace.node_of(value) in trace.numbers)
    ]


def note_numbers(positions: Iterable[int], outputs: list[Node], results: list[Any]) -> None:
    """Note which results may be numbers op by op: of some of them, those whose outputs are."""
    trace: Trace = MODE.thread.trace
    for k in positions:
        if outputs[k] in trace.numbers and type(results[k]) is Traced:
            trace.numbers.add(trace.node_of(results[k]))


def _node_of_result(trace: Trace, leaf: Any) -> Node:
    """Return the node of a result of a body, which is one of its own."""
    node = trace.node_of(leaf)
    return node if isinstance(node, Node) else Node("constant", np.asarray(node))


def node_of(value: Any) -> Node:
    """Return the node of an initial value or operand; numbers are constants."""
    node = MODE.thread.trace.node_of(value)
    if isinstance(node, Node):
        return node
    if not isinstance(node, (bool, int, float)):
        raise NotRecordedError(f"a value of type {type(value).__name__} in a loop or branch")
    return Node("constant", np.asarray(node))


def index_of_loop(lower: Any, upper: Any) -> Node:
    """Return an argument that stands for the index of a loop over a range.

    Parameters
    ----------
    lower, upper
        The bounds: numbers or nodes.
    """
    named: dict[str, Any] = {}
    if isinstance(lower, int) and isinstance(upper, int):
        named["range"] = (lower, upper)
    first = lower.example if isinstance(lower, Node) else lower
    return Node("input", np.asarray(first), (), named)


def add_block(
    name: str,
    args: tuple[Any, ...],
    bodies: tuple[Body, ...],
    examples: list[Any],
    shared: Iterable[Any] | None,
    **named: Any,
) -> list[Tensor]:
    """Record a loop or branches; return tensors for the results.

    Parameters
    ----------
    name
        ``"for_loop"``, ``"while_loop"`` or ``"switch"``.
    args
        What it reads: lists of nodes.
    bodies
        Its bodies.
    examples
        Arrays with the shapes and dtypes of the results.
    shared
        The tensors that the results may share memory with; None if they share none. Writes to one
        of them are not recorded.
    **named
        Other properties.
    """
    trace: Trace = MODE.thread.trace
    block = trace.add(Node(name, (), args, {"bodies": bodies, **named}))
    made: list[Tensor] = []
    for value in shared or ():
        if type(value) is Traced:
            value.share()
    for number, example in enumerate(examples):
        part = trace.add(Node("item", np.array(example), (block,), {"number": number}))
        result: Traced = trace.tensor(part)
        result._is_shared = shared is not None
        made.append(result if MODE.recording else stopped(result))
    return made
