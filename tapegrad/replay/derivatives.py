"""Derivatives inside of a recorded function, spelt out by the rules of its ops.

A derivative is recorded as a block, whose body is the differentiated function, and compiled as a
call of what `tapegrad.transform` makes of that. The reverse pass over a few ops can as well be
recorded itself, by the rules that ops have for tensors. It is part of the program then: it shares
loops with what is around it, and the derivative of the program needs no derivative of a derivative,
which would compute most values again. So a derivative that is made of compiled ops, and of nothing
else, is spelt out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.grad_mode import enable_grad
from tapegrad.eager.nodes import Body, Node, bodies_of, nodes_in, replaced
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import NotRecordedError, Trace, record
from tapegrad.ops import elementwise as ew
from tapegrad.ops.shape import unbroadcast
from tapegrad.ops.table.op import Op
from tapegrad.replay.lowering import lowered
from tapegrad.replay.program import simplified
from tapegrad.replay.writer import Writer

_MOST_VALUES = 100  # of a differentiated function: many equal steps are better left a loop
_MOST_IN_ALL = 400  # values that derivatives become; calls of one function are compiled faster
_CONSTANT = ("stop_gradient", "top")  # what derivatives do not pass
_FLOAT = np.dtype(np.float64)

Tangents = dict[Node, Tensor]  # or cotangents


def spelt_out(nodes: Sequence[Node]) -> tuple[list[Node], dict[Node, Node]]:
    """Return recorded values with derivatives spelt out, and what stands for some of them.

    Those in the bodies of loops and branches, and in functions that are differentiated themselves,
    are spelt out in place.

    Parameters
    ----------
    nodes
        The values, in the order in which they were recorded.
    """
    for node in nodes:
        for body in bodies_of(node):
            body.nodes, inner = spelt_out(body.nodes)
            body.outputs = [replaced(output, inner) for output in body.outputs]
    spelt = _spelt(nodes)
    made: list[Node] = []
    same: dict[Node, Node] = {}
    for node in nodes:
        node.args = replaced(node.args, same)
        if node in spelt:
            function = spelt[node]
            places = dict(
                zip(function.inputs, [v for part in node.args for v in part], strict=True)
            )
            for own in function.nodes:
                own.args = replaced(own.args, places)
            made += function.nodes
            function.outputs = [replaced(output, places) for output in function.outputs]
        elif node.name == "item" and node.args[0] in spelt:
            same[node] = spelt[node.args[0]].outputs[node.parameters["number"]]
        else:
            made.append(node)
    return made, same


def _spelt(nodes: Sequence[Node]) -> dict[Node, Body]:
    """Return what derivatives are computed by; none of them if that is too much."""
    found: dict[Node, Body] = {}
    left = _MOST_IN_ALL
    for node in nodes:
        if node.name == "derivative" and (function := _function_of(node)) is not None:
            found[node] = function
            left -= len(function.nodes)
            if left < 0:
                return {}
    return found


def _function_of(node: Node) -> Body | None:
    """Return the function that a derivative is, None if it is left as it is."""
    starts, _, directions = node.args
    (body,) = node.parameters["bodies"]
    rule = _RULES.get(node.parameters["transform"])
    if rule is None or len(body.nodes) > _MOST_VALUES or any(map(bodies_of, body.nodes)):
        return None
    function = body.part(range(len(body.outputs)))  # a copy
    nodes, same = lowered(function.nodes, only_ops=True)
    outputs = [replaced(output, same) for output in function.outputs]
    along = [Node("input", direction.example) for direction in directions]
    try:
        with enable_grad(), record() as trace:
            for own in nodes:
                trace.add(own)
            found = rule(trace, function.inputs[: len(starts)], outputs, along)
            results = [trace.node_of(value) for value in found]
        made = Body(trace.nodes, [*function.inputs, *along], results)
        trial = made.part(range(len(results)))
        Writer(simplified(trial.nodes, trial.inputs, trial.outputs))  # raises if it has no form
    except NotRecordedError:
        return None
    return made


# -- transforms ------------------------------------------------------------------------------------


def _value_and_grad(
    trace: Trace, points: list[Node], outputs: list[Node], directions: list[Node]
) -> list[Tensor]:
    """Record the cotangents of arguments; return the one result, and these."""
    (output,) = outputs
    cotangents = _pulled_back(trace, points, output)
    return [
        trace.tensor(output),
        *(
            _constant(trace, 0.0, point.shape) if g is None else g
            for point, g in zip(points, cotangents, strict=True)
        ),
    ]


def _jvp(
    trace: Trace, points: list[Node], outputs: list[Node], directions: list[Node]
) -> list[Tensor]:
    """Record the tangents of results; return the results, and these."""
    tangents: Tangents = dict(zip(points, map(trace.tensor, directions), strict=True))
    _push_forward(trace, tangents)
    return [
        *map(trace.tensor, outputs),
        *(_tangent_of(tangents, trace, output) for output in outputs),
    ]


def _hvp(
    trace: Trace, points: list[Node], outputs: list[Node], directions: list[Node]
) -> list[Tensor]:
    """Record the tangent of the gradient, and return it."""
    gradients = _value_and_grad(trace, points, outputs, [])[1:]
    tangents: Tangents = dict(zip(points, map(trace.tensor, directions), strict=True))
    _push_forward(trace, tangents)
    return [_tangent_of(tangents, trace, trace.node_of(gradient)) for gradient in gradients]


_RULES = {"value_and_grad": _value_and_grad, "jvp": _jvp, "hvp": _hvp}


def _tangent_of(tangents: Tangents, trace: Trace, node: Node) -> Tensor:
    return tangents[node] if node in tangents else _constant(trace, 0.0, node.shape)


def _constant(trace: Trace, value: float, shape: tuple[int, ...]) -> Tensor:
    return trace.tensor(Node("constant", np.full(shape, value)))


# -- passes ----------------------------------------------------------------------------------------


def _pulled_back(trace: Trace, points: list[Node], output: Node) -> list[Tensor | None]:
    """Record the reverse pass over all that is recorded; return the cotangents of some values.

    They are None if the result does not depend on a value.
    """
    nodes = [*trace.nodes]
    active = _dependent(nodes, points)
    cotangents: Tangents = {}

    def contribute(node: Node, g: Any) -> None:
        if g.shape != node.shape:
            g = unbroadcast(g, node.shape)
        cotangents[node] = ew.add(cotangents[node], g) if node in cotangents else g

    if output in active:
        contribute(output, _constant(trace, 1.0, output.shape))
    for node in reversed(nodes):
        if node in cotangents:
            g = cotangents.pop(node)
            for arg, cotangent in _contributions(trace, node, g, active):
                contribute(arg, cotangent)
    return [cotangents.get(point) for point in points]


def _contributions(
    trace: Trace, node: Node, g: Tensor, active: set[Node]
) -> Iterator[tuple[Node, Any]]:
    """Yield what a value adds to the cotangents of those that it is computed from."""
    op, values = _op_and_values(trace, node)
    for name, arg in _differentiated(op, node):
        if not active.isdisjoint(nodes_in(arg)):
            _check_rule(node, op, name, values)
            found = op.cotangent(name, g, values)
            pairs = zip(arg, found, strict=True) if type(arg) is list else [(arg, found)]
            yield from ((item, part) for item, part in pairs if item in active)


def _push_forward(trace: Trace, tangents: Tangents) -> None:
    """Record the tangents of all that is recorded, given some; add them to these."""
    nodes = [*trace.nodes]
    active = _dependent(nodes, tangents)
    for node in nodes:
        if node in active:
            op, values = _op_and_values(trace, node)
            given: dict[str, Any] = {}
            for name, arg in _differentiated(op, node):
                if not tangents.keys().isdisjoint(nodes_in(arg)):
                    _check_rule(node, op, name, values)
                    is_list = type(arg) is list
                    given[name] = [*map(tangents.get, arg)] if is_list else tangents[arg]
            tangents[node] = op.tangent(given, values, (node.shape, node.dtype))


def _dependent(nodes: Sequence[Node], starts: Iterable[Node]) -> set[Node]:
    """Return the values that have derivatives with respect to some, and these."""
    active = {*starts}
    for node in nodes:
        if node.name in _CONSTANT or active.isdisjoint(node.inputs()):
            continue
        if node.dtype is None or node.dtype.kind in "fc":
            if node.dtype != _FLOAT or node.op is None:
                raise NotRecordedError(f"the rules of {node.name}")
            active.add(node)
    return active


def _op_and_values(trace: Trace, node: Node) -> tuple[Op, dict[str, Any]]:
    """Return the op of a value, and what its rules read, by name."""
    assert node.op is not None
    values = {**node.parameters, "z": trace.tensor(node)}
    for name, arg in zip(node.op.arguments, node.args, strict=True):
        values[name] = _tensors(trace, arg)
        values[f"{name}_shape"] = _shapes(arg)
    return node.op, values


def _differentiated(op: Op, node: Node) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of an op by name, but those that others determine."""
    pairs = zip(op.arguments, node.args, strict=True)
    return ((name, arg) for name, arg in pairs if name not in op.given)


def _check_rule(node: Node, op: Op, argument: str, values: dict[str, Any]) -> None:
    """Raise if there is no rule for an argument, or it reads what only arrays have."""
    if argument not in op.rules or not op.needs(argument) <= values.keys() | {"g"}:
        raise NotRecordedError(f"the rules of {node.name}")


def _tensors(trace: Trace, arg: Any) -> Any:
    if type(arg) is list:
        return [_tensors(trace, item) for item in arg]
    return trace.tensor(arg) if isinstance(arg, Node) else arg


def _shapes(arg: Any) -> Any:
    return [*map(_shapes, arg)] if type(arg) is list else np.shape(arg)
