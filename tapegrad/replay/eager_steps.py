"""Values of a recorded program that are computed op by op, from tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tapegrad.func as transforms
from tapegrad.cuda.array import as_array, on_host
from tapegrad.eager.creation import as_tensor
from tapegrad.eager.dispatch import apply_op, unwrap
from tapegrad.eager.modes import MODE
from tapegrad.eager.nodes import Body, Node, OfTensors, replaced
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor, wrap
from tapegrad.replay.forms import OtherShapeError, other_shape
from tapegrad.utils.scan import checkpoint_scan

Run = Callable[[Body, Sequence[Any]], list[Any]]


def computed(node: Node, values: dict[Node, Any], run: Run) -> list[Any]:
    """Return what a node stands for: one value, or several results.

    Parameters
    ----------
    node
        The node.
    values
        The values of the nodes that it is computed from: tensors, arrays and numbers.
    run
        Runs a body of a loop, branch or derivative for some arguments.

    Raises
    ------
    OtherShapeError
        If it is not of the recorded shape, because a function decides by values.
    """
    found = _computed(node, values, run)
    if node.dtype is not None:
        return [as_recorded(node, found[0])]
    if node.results not in (0, len(found)):
        raise OtherShapeError(f"how many arrays {node.name} returns depends on values")
    return found


def as_recorded(node: Node, value: Any) -> Any:
    """Return a value; raise an error if it is not of the shape for which the rest was recorded."""
    if getattr(value, "shape", ()) != node.shape:
        raise OtherShapeError(other_shape(node))
    return value


def _computed(node: Node, values: dict[Node, Any], run: Run) -> list[Any]:
    args = replaced(node.args, values)
    if node.name in _BLOCKS:
        return _BLOCKS[node.name](node, args, run)
    if node.name == "callback":
        found: list[Any] = node.parameters["call"]([*map(as_tensor, args)])
        return found
    if node.name in _ASSIGNMENTS:
        return [_ASSIGNMENTS[node.name](*args)]
    if node.op is None:
        assert node.compute is not None
        given = args if isinstance(node.compute, OfTensors) else map(unwrap, args)
        with np.errstate(all="ignore"):
            result = node.compute(*given, **node.parameters)
    else:
        given = dict(zip(node.op.arguments, args, strict=True))
        result = apply_op(node.op, (), given | node.parameters)
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [part if isinstance(part, Tensor) else wrap(as_array(part)) for part in parts]


def _item_at(x: Any, places: Any) -> Any:
    return as_tensor(x)[_index(places)]


def _put_at(x: Any, value: Any, places: Any) -> Any:
    made = as_tensor(x).clone()
    made[_index(places)] = value
    return made


def _added_at(x: Any, value: Any, places: Any) -> Any:
    made = as_tensor(x).clone()
    np.add.at(made, _index(places), value)
    return made


def _index(places: Any) -> tuple[Any, ...]:
    """Return an index with arrays and integers in place of tensors."""
    parts = (on_host(unwrap(part)) for part in places)
    return tuple(
        part.item() if isinstance(part, np.ndarray) and not part.ndim else part for part in parts
    )


def _checked_index(index: Any, extent: int) -> Any:
    places = np.asarray(on_host(unwrap(index)))
    if not np.all((places >= -extent) & (places < extent)):
        raise IndexError(f"an index is out of bounds for an axis with size {extent}")
    return wrap(np.where(places < 0, places + extent, places))


_ASSIGNMENTS: dict[str, Callable[..., Any]] = {
    "item_at": _item_at,
    "put_at": _put_at,
    "added_at": _added_at,
    "checked_index": _checked_index,
    "stop_gradient": lambda x: as_tensor(x).detach(),
}


# -- loops, branches and derivatives ---------------------------------------------------------------


def _for_loop(node: Node, args: Any, run: Run) -> list[Any]:
    states, rows, given, (lower, upper) = args
    (body,) = node.parameters["bodies"]
    count = len(states)
    memory = node.parameters["memory"]
    if memory is not None:

        def advance(i: int, state: Any, *arrays: Any) -> Any:
            parts = [array[i] for array in arrays[: len(rows)]]
            return tuple(run(body, [*state, i, *parts, *arrays[len(rows) :]]))

        return [*checkpoint_scan(advance, tuple(states), upper, *rows, *given, memory=memory)]
    outputs: list[list[Any]] = []
    for i in range(int(unwrap(lower)), int(unwrap(upper))):
        found = run(body, [*states, i, *(row[i] for row in rows), *given])
        states = found[:count]
        outputs.append(found[count:])
    return [*states, *(FUNCTIONS["stack"](parts) for parts in zip(*outputs, strict=True))]


def _while_loop(node: Node, args: Any, run: Run) -> list[Any]:
    states, for_test, for_body = args
    test, body = node.parameters["bodies"]
    while unwrap(run(test, [*states, *for_test])[0]):
        states = run(body, [*states, *for_body])
    return [*states]


def _switch(node: Node, args: Any, run: Run) -> list[Any]:
    which, operands, *given = args
    bodies = node.parameters["bodies"]
    choice = np.asarray(on_host(unwrap(which)))
    number = int(not choice) if choice.dtype == np.bool_ else int(choice)
    return run(bodies[number], [*operands, *given[number]])


def _derivative(node: Node, args: Any, run: Run) -> list[Any]:
    starts, given, directions = args
    (body,) = node.parameters["bodies"]
    transform = getattr(transforms, node.parameters["transform"])

    def function(*values: Any) -> Any:
        found = run(body, [*values, *given])
        return found[0] if len(found) == 1 else tuple(found)

    numbers = 0 if transform is transforms.hvp else tuple(range(len(starts)))
    tensors = [*map(as_tensor, (*starts, *directions))]
    found = MODE.with_recording(True, lambda: transform(function, numbers)(*tensors))
    return _flat(found)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in _flat(part)]
    return [value]


_BLOCKS: dict[str, Callable[[Node, Any, Run], list[Any]]] = {
    "for_loop": _for_loop,
    "while_loop": _while_loop,
    "switch": _switch,
    "derivative": _derivative,
}
