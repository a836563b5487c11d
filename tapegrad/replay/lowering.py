"""Functions that are recorded as one value, and compiled as several: their loops are fused then."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node
from tapegrad.ops.op import TABLE
from tapegrad.replay.forms import BOOLEAN, FLOATS, axes_of

_FEW_TERMS = 4  # of an element of a product, up to which loops over the elements add them up
_MOST_PRODUCTS = 20  # that are spelt out: each takes a dozen lines


def lowered(recorded: list[Node]) -> tuple[list[Node], dict[Node, Node]]:
    """Return the values with some spelt out, and what stands for each of these.

    Parameters
    ----------
    recorded
        The values, in the order in which they were recorded.
    """
    nodes: list[Node] = []
    replaced: dict[Node, Node] = {}
    are_few = sum(map(_has_few_terms, recorded)) <= _MOST_PRODUCTS
    for node in recorded:
        if node.name == "logsumexp" and _is_of_floats(node):
            nodes += _logsumexp(node)
        elif are_few and _has_few_terms(node):
            nodes += _product(node)
        else:
            nodes.append(node)
            continue
        replaced[node] = nodes[-1]
    return nodes, replaced


def _has_few_terms(node: Node) -> bool:
    """Whether a node is a matrix product that loops compute faster than a call of BLAS."""
    if node.name != "matmul" or not all(isinstance(x, Node) for x in node.args):
        return False
    return (
        0 < node.args[0].shape[-1] <= _FEW_TERMS
        and 0 not in node.shape
        and node.dtype in FLOATS
        and all(x.dtype == node.dtype for x in node.args)
    )


def _product(node: Node) -> list[Node]:
    """Return the values of ``x[..., 0] * y[0, ...] + x[..., 1] * y[1, ...] + ...``."""
    x, y = node.args
    is_vector = len(x.shape) == 1, len(y.shape) == 1
    found: list[Node] = []
    total: Node | None = None
    for k in range(x.shape[-1]):
        at = slice(k, k + 1)
        column = _item(x, (..., k if is_vector[0] or is_vector[1] else at))
        row = _item(y, k if is_vector[1] else (..., k if is_vector[0] else at, slice(None)))
        term = _mapped("multiply", node.shape, column, row)
        found += [column, row, term]
        if total is not None:
            term = _mapped("add", node.shape, total, term)
            found.append(term)
        total = term
    return found


def _item(x: Node, index: Any) -> Node:
    """Return elements of an array."""
    shape = np.broadcast_to(np.zeros(()), x.shape)[index].shape
    return Node("getitem", _of(shape, x.dtype), (x,), {"index": index}, TABLE["getitem"])


def _is_of_floats(node: Node) -> bool:
    (x,) = node.args
    is_float = isinstance(x, Node) and x.dtype == node.dtype and node.dtype in FLOATS
    return is_float and bool(axes_of(node)) and 0 not in x.shape


def _logsumexp(node: Node) -> list[Node]:
    """Return the values of ``log(sum(exp(x - top))) + top``; derivatives do not pass `top`."""
    (x,) = node.args
    axes, keeps = axes_of(node), node.parameters["keepdims"]
    named = {"axis": axes, "keepdims": keeps}
    shape = node.shape
    top = Node("top", _of(shape, x.dtype), (x,), named)
    finite = Node("isfinite", _of(shape, BOOLEAN), (top,))
    shift = _mapped("where", shape, finite, top, 0.0)
    found = [top, finite, shift]
    beside = shift
    if shape and not keeps:  # as it is broadcast with x
        beside = _item(
            shift, tuple(None if k in axes else slice(None) for k in range(len(x.shape)))
        )
        found.append(beside)
    found.append(_mapped("subtract", x.shape, x, beside))
    found.append(_mapped("exp", x.shape, found[-1]))
    found.append(Node("sum", _of(shape, x.dtype), (found[-1],), named, TABLE["sum"]))
    found.append(_mapped("log", shape, found[-1]))
    found.append(_mapped("add", shape, found[-1], shift))
    return found


def _of(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Return an array of a shape without memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _mapped(name: str, shape: tuple[int, ...], *args: Any) -> Node:
    (dtype,) = {arg.dtype for arg in args if isinstance(arg, Node) and arg.dtype != BOOLEAN}
    return Node(name, _of(shape, dtype), args, {}, TABLE[name])
