"""The values of a recorded function, as nodes of a graph, and the functions inside of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tapegrad.ops.table.op import Op, layout_order


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
    results
        The number of these, if a function of NumPy's names returned them; 0 otherwise.
    like
        An array with the layout of the value when recorded; None afterwards, but for constants.
    is_unset
        Whether the elements of that array are none of the value yet: those of `example` are.
    line
        The file and number of the user's line that computes it, if known.
    compute
        Computes the value on arrays, if it is that of no op: an `OfTensors` also on tensors.
    """

    __slots__ = (
        "args", "compute", "dtype", "is_unset", "like", "line", "name", "op", "parameters",
        "results", "shape",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        example: np.ndarray | tuple[()],
        args: tuple[Any, ...] = (),
        parameters: dict[str, Any] | None = None,
        op: Op | None = None,
        compute: Callable[..., Any] | None = None,
        is_unset: bool = False,
    ) -> None:
        self.name = name
        self.op = op
        self.compute = compute
        self.args = args
        self.parameters = parameters or {}
        self.shape: tuple[int, ...] = ()
        self.dtype: Any = None
        self.like: Any = example
        self.is_unset = is_unset
        self.results = 0
        self.line: tuple[str, int] | None = None
        if not isinstance(example, tuple):
            self.shape, self.dtype = example.shape, example.dtype

    @property
    def example(self) -> Any:
        """The value when recorded; None afterwards, but for constants."""
        if self.is_unset:
            _set_elements(self)
        return self.like

    @property
    def decides_by_values(self) -> bool:
        """Whether its shape may depend on values; it is computed even if nothing reads it."""
        whole = self.args[0] if self.name == "item" else self
        return isinstance(whole.compute, OfTensors)

    def inputs(self) -> list[Node]:
        """Return the nodes that it is computed from."""
        found: list[Node] = []
        _collect(self.args, found)
        if self.parameters:
            _collect(self.parameters.values(), found)
        return found

    def forget(self) -> None:
        """Drop the value when recorded."""
        self.like, self.is_unset = None, False


def _set_elements(node: Node) -> None:
    """Compute the elements of the value of a node, and of those that it is computed from."""
    waiting = [node]
    while waiting:
        last = waiting[-1]
        before = [other for other in last.inputs() if other.is_unset]
        if before:
            waiting += before
            continue
        waiting.pop()
        if last.is_unset:
            found = computed(last.compute, last.args, last.parameters)
            if not np.may_share_memory(found, last.like):  # a view has them already
                last.like[...] = found
            last.is_unset = False


def computed(compute: Any, args: tuple[Any, ...], parameters: dict[str, Any]) -> Any:
    """Return what a function computes for the examples of nodes, numbers and lists of these."""
    examples = [*map(example_of, args)]
    with np.errstate(all="ignore"):
        try:
            return compute(*examples, **parameters)
        except np.linalg.LinAlgError:
            if are_known(args):
                raise
            # of placeholders: what loops, branches and derivatives return has no values yet
            return compute(*map(_regular, examples), **parameters)


def example_of(value: Any) -> Any:
    """Return a value with the examples of nodes in place of these."""
    if isinstance(value, Node):
        return value.example
    return [*map(example_of, value)] if type(value) is list else value


def _regular(example: Any) -> Any:
    """Return an identity matrix of the shape of an example, or a stack of these."""
    if type(example) is list:
        return [*map(_regular, example)]
    if not isinstance(example, np.ndarray) or example.ndim < 2:
        return example
    made = np.empty_like(example)
    made[...] = np.eye(*example.shape[-2:])
    return made


def are_known(args: Iterable[Any]) -> bool:
    """Whether some arguments do not depend on those of the recorded function."""
    return all(
        node.name == "constant" if isinstance(node, Node) else type(node) is not list
        for node in args
        for node in (node if type(node) is list else [node])
    )


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
    """A function that decides by values, called on tensors: its ops are recorded, if it has any.

    What it returned for the values of the recording may be of another shape for others.
    """

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


def nodes_in(value: Any) -> list[Node]:
    """Return the nodes in nested lists, tuples and dicts."""
    found: list[Node] = []
    _collect((value,), found)
    return found


def _collect(values: Iterable[Any], found: list[Node]) -> None:
    for value in values:
        kind = type(value)
        if kind is Node:
            found.append(value)
        elif kind is tuple or kind is list:
            _collect(value, found)
        elif kind is dict:
            _collect(value.values(), found)
