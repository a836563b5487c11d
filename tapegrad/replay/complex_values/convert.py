"""Complex values as pairs of real ones: loops over real and imaginary parts, fused like others.

Compiled code then knows nothing of complex numbers but their parts, so all that holds for real
values holds for them: which loops are fused, which sums are added up in loops, and derivatives. A
part that is known to be a number is no array, and no operation on it is computed.

Arguments are taken apart where their parts are read, results put together where they are returned.
So are values of functions that are not known here: these are computed from complex tensors. A
product with a part that is known to be 0 is 0, also for infinite factors: ``1j * x`` is
``complex(0, x)``, as C's imaginary numbers have it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from tapegrad.eager.nodes import Body, Node, bodies_of, replaced
from tapegrad.replay.complex_values.parts import Parts, is_complex
from tapegrad.replay.complex_values.rules import RULES
from tapegrad.replay.forms import COMPLEX, FLOAT
from tapegrad.replay.lowering import of


def in_real_parts(nodes: list[Node], outputs: list[Node]) -> tuple[list[Node], list[Node]]:
    """Return recorded values without complex ones, as far as these are known, and the results.

    Parameters
    ----------
    nodes
        The values, in the order in which they were recorded.
    outputs
        The results.
    """
    if not _has_complex(nodes) or not _is_double(nodes):
        return nodes, outputs
    made = Parts()
    for node in nodes:
        _add(made, node)
    return made.nodes, [made.whole(output) for output in outputs]


def _has_complex(nodes: Sequence[Node]) -> bool:
    return any(
        node.dtype == COMPLEX
        or any(read.dtype == COMPLEX for read in node.inputs())
        or any(_has_complex(body.nodes) or _has_complex(body.inputs) for body in bodies_of(node))
        for node in nodes
    )


def _is_double(nodes: Sequence[Node]) -> bool:
    """Whether no complex number has single precision."""
    return not any(
        any(
            one.dtype is not None and one.dtype.kind == "c" and one.dtype != COMPLEX
            for one in (node, *node.inputs())
        )
        or any(not _is_double([*body.nodes, *body.inputs]) for body in bodies_of(node))
        for node in nodes
    )


def _add(parts: Parts, node: Node) -> None:
    """Add a value."""
    if node.name == "item" and node.args[0] in parts.same:  # of a loop with other results
        _add_item(parts, node)
        return
    if any(map(_has_complex_body, bodies_of(node))):
        rule: Any = _BLOCKS.get(node.name)
    elif not is_complex(node) and not any(map(is_complex, node.inputs())):
        rule = None
    else:
        rule = RULES.get(node.name)
    found = None if rule is None else rule(parts, node)
    if found is None:
        node.args = parts.with_wholes(node.args)
        parts.nodes.append(node)
        if is_complex(node):
            parts.wholes[node] = node
    elif isinstance(found, tuple):
        parts.pairs[node] = found
    else:
        parts.same[node] = found


def _add_item(parts: Parts, node: Node) -> None:
    loop = parts.same[node.args[0]]
    number = node.parameters["number"]
    numbers = parts.numbers[loop][number] if loop in parts.numbers else [number]
    dtype = FLOAT if is_complex(node) else node.dtype
    found = tuple(
        parts.new(Node("item", of(node.shape, dtype), (loop,), {"number": k})) for k in numbers
    )
    if len(found) == 2:
        parts.pairs[node] = found
    else:
        (parts.same[node],) = found


def _has_complex_body(body: Body) -> bool:
    return _has_complex(body.nodes) or any(map(is_complex, (*body.inputs, *body.outputs)))


# -- loops and branches ----------------------------------------------------------------------------

_BLOCKS: dict[str, Callable[[Parts, Node], Node | None]] = {}


def _block(name: str) -> Callable[[Any], Any]:
    def add(rule: Any) -> Any:
        _BLOCKS[name] = rule
        return rule

    return add


def _in_parts(body: Body) -> tuple[Body, list[list[int]]]:
    """Return a body without complex arguments and results, and the numbers of the results."""
    made = Parts()
    body = body.part(range(len(body.outputs)))  # a copy: other loops may have it
    inputs: list[Node] = []
    for given in body.inputs:
        if not is_complex(given):
            inputs.append(given)
            continue
        pair = [Node("input", of(given.shape, FLOAT), (), given.parameters) for _ in range(2)]
        made.pairs[given] = pair[0], pair[1]
        inputs += pair
    for node in body.nodes:
        _add(made, node)
    outputs: list[Node] = []
    numbers = []
    for node in body.outputs:
        found = (
            [made.array(part, node.shape) for part in made.pair(node)]
            if is_complex(node)
            else [made.whole(node)]
        )
        numbers.append([len(outputs) + k for k in range(len(found))])
        outputs += found
    return Body(made.nodes, inputs, outputs), numbers


def _spread(parts: Parts, values: Sequence[Any], inputs: Sequence[Node]) -> list[Any]:
    """Return arguments of a body with parts in place of complex ones.

    Parameters
    ----------
    values
        The arguments.
    inputs
        What stands for them in the body; rows of arrays stand for the arrays.
    """
    found: list[Any] = []
    for value, own in zip(values, inputs, strict=True):
        if is_complex(own):
            shape = value.shape if isinstance(value, Node) else own.shape
            found += [parts.array(part, shape) for part in parts.pair(value)]
        else:
            found.append(parts.whole(value) if isinstance(value, Node) else value)
    return found


def _block_of(parts: Parts, node: Node, args: list[Any], bodies: list[Any]) -> Node:
    made = copy.copy(node)
    made.args = tuple(args)
    made.parameters = {**node.parameters, "bodies": [body for body, _ in bodies]}
    parts.numbers[made] = bodies[-1][1]
    return parts.new(made)


@_block("for_loop")
def _for_loop(parts: Parts, node: Node) -> Node:
    starts, rows, given, bounds = node.args
    (body,) = node.parameters["bodies"]
    count = len(starts)
    places = [*range(count), *range(count + 1, len(body.inputs))]
    inputs = [body.inputs[k] for k in places]
    ends = [count, count + len(rows)]
    args = [
        _spread(parts, starts, inputs[: ends[0]]),
        _spread(parts, rows, inputs[ends[0] : ends[1]]),
        _spread(parts, given, inputs[ends[1] :]),
        replaced(bounds, parts.same),
    ]
    return _block_of(parts, node, args, [_in_parts(body)])


@_block("while_loop")
def _while_loop(parts: Parts, node: Node) -> Node:
    starts, for_test, for_body = node.args
    test, body = node.parameters["bodies"]
    count = len(starts)
    args = [
        _spread(parts, starts, body.inputs[:count]),
        _spread(parts, for_test, test.inputs[count:]),
        _spread(parts, for_body, body.inputs[count:]),
    ]
    return _block_of(parts, node, args, [_in_parts(test), _in_parts(body)])


@_block("switch")
def _switch(parts: Parts, node: Node) -> Node:
    which, operands, *given = node.args
    bodies = node.parameters["bodies"]
    count = len(operands)
    args = [
        parts.whole(which) if isinstance(which, Node) else which,
        _spread(parts, operands, bodies[0].inputs[:count]),
        *(
            _spread(parts, values, body.inputs[count:])
            for values, body in zip(given, bodies, strict=True)
        ),
    ]
    return _block_of(parts, node, args, [_in_parts(body) for body in bodies])


@_block("derivative")
def _derivative(parts: Parts, node: Node) -> Node | None:
    (body,) = node.parameters["bodies"]
    if any(map(is_complex, (*body.inputs, *body.outputs))):
        return None
    found = copy.copy(node)
    found.args = parts.with_wholes(node.args)
    found.parameters = {**node.parameters, "bodies": [_in_parts(body)[0]]}
    return parts.new(found)
