"""What all steps of a recorded loop compute alike is computed before the loop.

Steps check indices that never change, or transform parameters::

    for i in range(n):                      rows = checked_indices(index, m)
        rows = checked_indices(index, m)    rate = exp(log_rate)
        x = x * exp(log_rate) + y[rows]     for i in range(n):
                                                x = x * rate + y[rows]

So these are computed once, and so are their derivatives, for which nothing is kept in each step.
Arithmetic with arrays, and views, stay in the loop: there, they are parts of larger expressions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.eager.nodes import Body, Node, bodies_of, nodes_in, replaced
from tapegrad.ops.table.op import Fact
from tapegrad.replay.forms import BLOCKS, Form, form_of


def moved_out(nodes: list[Node]) -> list[Node]:
    """Return recorded values with what loops compute alike in all steps before the loops.

    Parameters
    ----------
    nodes
        The values, in the order in which they were recorded. Loops among them are changed.
    """
    made: list[Node] = []
    for node in nodes:
        for body in bodies_of(node):
            body.nodes = moved_out(body.nodes)
        if node.name == "for_loop" and _has_steps(node):
            made += _invariants(node)
        made.append(node)
    return made


def _has_steps(loop: Node) -> bool:
    """Whether a loop is known to have steps: what they compute may raise errors."""
    lower, upper = loop.args[3]
    return not isinstance(lower, Node) and not isinstance(upper, Node) and lower < upper


def _invariants(loop: Node) -> list[Node]:
    """Take values out of the steps of a loop; return them."""
    (body,) = loop.parameters["bodies"]
    if any(nodes_in(list(node.parameters.values())) for node in body.nodes):
        return []
    starts, rows, given, bounds = loop.args
    body = body.part(range(len(body.outputs)))  # another loop may have this one, too
    outside = body.inputs[len(body.inputs) - len(given) :]
    found = _chosen(body, {*outside})
    if not found:
        return []
    moved = {*found}
    left = [node for node in body.nodes if node not in moved]
    read = {other for node in left for other in node.inputs()} | {*body.outputs}
    inputs = {
        node: Node("input", np.zeros(node.shape, node.dtype)) for node in found if node in read
    }
    for node in left:
        node.args = replaced(node.args, inputs)
    outputs = [replaced(output, inputs) for output in body.outputs]
    places = dict(zip(outside, given, strict=True))
    for node in found:
        node.args = replaced(node.args, places)
    made = Body(left, [*body.inputs, *inputs.values()], outputs)
    loop.parameters = {**loop.parameters, "bodies": (made,)}
    loop.args = starts, rows, [*given, *inputs], bounds
    return found


def _chosen(body: Body, outside: set[Node]) -> list[Node]:
    """Return the values of a step that are computed before the loop."""
    known = {*outside}
    found: list[Node] = []
    for node in body.nodes:
        is_fixed = all(arg in known or arg.name == "constant" for arg in node.inputs())
        if is_fixed and node.name not in (*BLOCKS, "callback") and not node.decides_by_values:
            known.add(node)
            found.append(node)
    kept = {*body.outputs}  # and what the steps read
    for node in body.nodes:
        if node not in known:
            kept.update(node.inputs())
    needed: set[Node] = set()  # by what is computed before the loop
    for node in reversed(found):
        if node in kept and node not in needed and _stays(node):
            known.discard(node)
            kept.update(node.inputs())
        else:
            needed.update(node.inputs())
    return [node for node in found if node in known]


def _stays(node: Node) -> bool:
    """Whether a value that steps read is better computed by them."""
    if node.dtype is None:
        return True
    form: Any = form_of(node)
    if form is Form.VIEW:
        return True
    is_arithmetic = node.op is None or Fact.ARITHMETIC in getattr(node.op, "facts", Fact(0))
    return bool(node.shape) and form is Form.MAP and is_arithmetic
