"""Writes to traced tensors: a write gives a tensor, and what it is a view of, new values.

What is written to is made inside of the recorded function. Writes to its arguments and to tensors
from outside are effects besides the result, which compiled code has not: the function then runs op
by op.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import Node
from tapegrad.eager.traced import IN_PLACE, NotRecordedError, Trace, Traced
from tapegrad.eager.traced_calls import added, assigned, example_of_index, index_of
from tapegrad.ops.piecewise import where
from tapegrad.ops.shape import astype, broadcast_to


def write(target: Any, value: Any) -> None:
    """Record ``target[...] = value``."""
    trace = _recording_of(target)
    node = trace.node_of(value)
    if not isinstance(node, Node):
        node = Node("constant", np.asarray(node))
    shape, dtype = target.shape, target.dtype
    if node.dtype != dtype or node.shape != shape:
        if np.broadcast_shapes(node.shape, shape) != shape:
            raise NotRecordedError(IN_PLACE)  # which raises an error
        if not np.can_cast(node.dtype, dtype, "same_kind"):
            raise NotRecordedError(IN_PLACE)
        made = trace.tensor(node)
        made = made if node.dtype == dtype else astype.public(made, dtype)
        made = made if node.shape == shape else broadcast_to.public(made, shape)
        node = trace.node_of(made)
    _rebind(target, trace.laid_out(node, target._node.like))


def assign_item(target: Any, index: Any, value: Any) -> None:
    """Record ``target[index] = value``."""
    trace = _recording_of(target)
    if type(index) is Traced and index.dtype == np.bool_ and index.shape == target.shape:
        if not np.shape(value):
            write(target, where.public(index, value, target))
            return
    node, place = _written(trace, target, index, value)
    _rebind(target, assigned(trace, target._node, node, place))


def add_at(target: Any, index: Any, value: Any) -> None:
    """Record ``numpy.add.at(target, index, value)``."""
    trace = _recording_of(target)
    node, place = _written(trace, target, index, value)
    _rebind(target, added(trace, target._node, node, place))


def _written(trace: Trace, target: Traced, index: Any, value: Any) -> tuple[Node, Any]:
    """Return the node of a value for a place in a tensor, in its dtype, and the place."""
    node = trace.node_of(value)
    place = index_of(trace, target.shape, index)
    if len(np.shape(value)) > np.ndim(target._node.example[example_of_index(place)]):
        raise NotRecordedError("a value with more axes than its place is assigned")
    if isinstance(node, Node) and not np.can_cast(node.dtype, target.dtype, "same_kind"):
        raise NotRecordedError("a value of another dtype is assigned")
    if not isinstance(node, Node):
        if not np.can_cast(np.min_scalar_type(node), target.dtype, "same_kind"):
            raise NotRecordedError("a value of another dtype is assigned")
        node = Node("constant", np.asarray(node, target.dtype))
    elif node.dtype != target.dtype:
        node = trace.node_of(astype.public(trace.tensor(node), target.dtype))
    return node, place


def _recording_of(target: Any) -> Any:
    """Return the recording in which a tensor can be written to."""
    trace = MODE.thread.trace
    if type(target) is not Traced or target._trace is not trace or not MODE.recording:
        raise NotRecordedError(IN_PLACE)
    return trace


def _rebind(target: Traced, node: Node) -> None:
    """Give a tensor another value, and what it is a view of."""
    base = target._base
    if base is not None:
        written = target._view.written
        if written is None:
            raise NotRecordedError("a view that is changed in place is none of elements or axes")
        _rebind(base, written(base._node, node))
        target._shown = base._node
    elif target._is_shared:
        raise NotRecordedError(
            "an argument is changed in place, what a loop or branch has read or made, or what "
            "reshape copied because of the order of axes in memory"
        )
    target._value = node
