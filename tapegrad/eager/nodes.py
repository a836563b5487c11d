"""The values of a recorded function, as nodes of a graph, and the functions inside of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tapegrad.ops.op import Op
from tapegrad.ops.shape import layout_order


class Node:
    """A value of a recorded function.

    Attributes
    ----------
    name
        The op or function that computes it, ``"input"`` or ``"constant"``.
    op
        The op; None for other functions.
    args
        What it is computed from: nodes, numbers, and lists of these.
    parameters
        The other arguments, by name.
    shape, dtype
        Those of the value; () and None for what has several results, which are nodes themselves.
    example
        The value when recorded; None afterwards, but for constants.
    compute
        Computes the value on arrays, if it is that of no op: an `OfTensors` also on tensors.
    """

    __slots__ = ("args", "compute", "dtype", "example", "name", "op", "parameters", "shape")

    def __init__(
        self,
        name: str,
        example: np.ndarray | tuple[()],
        args: tuple[Any, ...] = (),
        parameters: dict[str, Any] | None = None,
        op: Op | None = None,
        compute: Callable[..., Any] | None = None,
    ) -> None:
        self.name = name
        self.op = op
        self.compute = compute
        self.args = args
        self.parameters = parameters or {}
        self.shape: tuple[int, ...] = ()
        self.dtype: Any = None
        self.example: Any = example
        if not isinstance(example, tuple):
            self.shape, self.dtype = example.shape, example.dtype

    def inputs(self) -> Iterator[Node]:
        """Yield the nodes that it is computed from."""
        return nodes_in((self.args, self.parameters))


def layout_of(array: Any) -> tuple[int, ...] | None:
    """Return the order of the axes of an array in memory, None if it is in C order without gaps.

    New arrays that are computed from it have that order, too, and `reshape` may copy them.
    """
    if array.flags.c_contiguous:
        return None
    return layout_order(array.strides)


def copy_with_layout(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return a copy of an array whose elements lie in memory as those of another one.

    Gaps between elements count, too: whether `reshape` makes a view or a copy depends on them.
    """
    if not like.size:
        return array.copy()
    reach = [(size - 1) * step for size, step in zip(like.shape, like.strides, strict=True)]
    start, end = sum(min(n, 0) for n in reach), sum(max(n, 0) for n in reach)
    memory = np.empty(end - start + like.itemsize, np.uint8)
    found = np.ndarray(like.shape, array.dtype, memory, -start, like.strides)
    found[...] = array
    return found


class OfTensors:
    """A function that consists of ops: they are recorded, and differentiated, on tensors."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.function(*args, **kwargs)


class Body:
    """What is recorded inside of a loop or branch: a function of its own.

    Parameters
    ----------
    nodes
        Its values.
    inputs
        Its arguments.
    outputs
        Its results.
    """

    def __init__(self, nodes: list[Node], inputs: list[Node], outputs: list[Node]) -> None:
        self.nodes = nodes
        self.inputs = inputs
        self.outputs = outputs

    def has_effects(self) -> bool:
        """Whether it calls Python, so that it must run as often as its code says."""
        return any(
            node.name == "callback" or any(body.has_effects() for body in bodies_of(node))
            for node in self.nodes
        )

    def part(self, numbers: Sequence[int]) -> Body:
        """Return a function with some of the results, and values of its own."""
        same: dict[Node, Node] = {}
        inputs = [Node("input", node.example, (), node.parameters) for node in self.inputs]
        same |= zip(self.inputs, inputs, strict=True)
        for node in self.nodes:
            same[node] = copied(node, same)
        outputs = [same.get(self.outputs[k], self.outputs[k]) for k in numbers]
        return Body([same[node] for node in self.nodes], inputs, outputs)


def bodies_of(node: Node) -> list[Body]:
    """Return the bodies of a loop or of branches; other values have none."""
    return [*node.parameters.get("bodies", ())]


def replaced(value: Any, same: Mapping[Node, Any]) -> Any:
    """Return a value with others in place of some nodes, in nested lists and tuples too."""
    while isinstance(value, Node) and value in same:
        value = same[value]
    if type(value) in (list, tuple):
        return type(value)(replaced(item, same) for item in value)
    return value


def copied(node: Node, same: Mapping[Node, Any]) -> Node:
    """Return a node that is computed from others in place of some."""
    made = copy.copy(node)
    made.args = replaced(node.args, same)
    return made


def nodes_in(value: Any) -> Iterator[Node]:
    """Yield the nodes in nested lists, tuples and dicts."""
    if isinstance(value, Node):
        yield value
    elif type(value) in (list, tuple):
        for item in value:
            yield from nodes_in(item)
    elif type(value) is dict:
        for item in value.values():
            yield from nodes_in(item)
