"""Functions that are recorded as one value, and compiled as several: their loops are fused then."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node
from tapegrad.ops.op import TABLE
from tapegrad.replay.forms import BOOLEAN, FLOAT, axes_of


def lowered(recorded: list[Node]) -> tuple[list[Node], dict[Node, Node]]:
    """Return the values with some spelt out, and what stands for each of these.

    Parameters
    ----------
    recorded
        The values, in the order in which they were recorded.
    """
    nodes: list[Node] = []
    replaced: dict[Node, Node] = {}
    for node in recorded:
        if node.name == "logsumexp" and _can_lower(node):
            nodes += _logsumexp(node)
            replaced[node] = nodes[-1]
        else:
            nodes.append(node)
    return nodes, replaced


def _can_lower(node: Node) -> bool:
    (x,) = node.args
    is_float = isinstance(x, Node) and x.dtype == FLOAT and node.dtype == FLOAT
    return is_float and bool(axes_of(node)) and 0 not in x.shape


def _logsumexp(node: Node) -> list[Node]:
    """Return the values of ``log(sum(exp(x - top))) + top``; derivatives do not pass `top`."""
    (x,) = node.args
    axes, keeps = axes_of(node), node.parameters["keepdims"]
    named = {"axis": axes, "keepdims": keeps}
    shape = node.shape
    top = Node("top", _of(shape), (x,), named)
    finite = Node("isfinite", _of(shape, BOOLEAN), (top,))
    shift = _mapped("where", shape, finite, top, 0.0)
    found = [top, finite, shift]
    beside = shift
    if shape and not keeps:  # as it is broadcast with x
        index = tuple(None if k in axes else slice(None) for k in range(len(x.shape)))
        wide = tuple(1 if k in axes else extent for k, extent in enumerate(x.shape))
        beside = Node("getitem", _of(wide), (shift,), {"index": index}, TABLE["getitem"])
        found.append(beside)
    found.append(_mapped("subtract", x.shape, x, beside))
    found.append(_mapped("exp", x.shape, found[-1]))
    found.append(Node("sum", _of(shape), (found[-1],), named, TABLE["sum"]))
    found.append(_mapped("log", shape, found[-1]))
    found.append(_mapped("add", shape, found[-1], shift))
    return found


def _of(shape: tuple[int, ...], dtype: np.dtype = FLOAT) -> Any:
    """Return an array of a shape without memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _mapped(name: str, shape: tuple[int, ...], *args: Any) -> Node:
    return Node(name, _of(shape), args, {}, TABLE[name])
