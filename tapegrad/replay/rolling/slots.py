"""What values are computed from, apart from what may differ between the steps of a loop.

A value has *slots* for the nodes, the numbers and the places in indices that it is computed from.
Values of one form differ in what is in their slots alone.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.eager.nodes import Node, nodes_in
from tapegrad.replay.forms import INTEGER, SINGLE
from tapegrad.replay.program import key_of

_MOST_EXACT = 1 << 53  # integers up to which are floats

# ops with an index, and those with one that is computed
_WITH_INDEX = {"getitem": "item_at", "put": "put_at", "add_at": "added_at"}


@dataclass(frozen=True)
class Place:
    """A number in an index, from 0 on."""

    number: int


def form_of_value(node: Node, slots: list[Any]) -> Any:
    """Return what is equal for nodes that differ in slots alone; add these."""
    are_numbers = _has_number_slots(node)
    args = _form_of(node.args, slots, are_numbers)
    parameters = node.parameters
    if nodes_in(parameters):
        return node  # as no other one
    if node.name == "gather" and (places := _arrays_of(node)) is not None:
        slots += [Node("constant", place) for place in places if isinstance(place, np.ndarray)]
        parameters = {"index": tuple(map(_form_of_place, places))}
    elif node.name in _WITH_INDEX:
        index = _form_of_index(node.args[0].shape, parameters["index"], slots)
        parameters = {**parameters, "index": index}
    return node.name, node.op, node.shape, node.dtype, args, key_of(parameters)


def _has_number_slots(node: Node) -> bool:
    """Whether numbers that a value is computed from may be arrays without axes."""
    if node.op is None:
        is_elementwise = isinstance(getattr(np, node.name, None), np.ufunc)
    else:
        is_elementwise = node.op.kind == "elementwise"
    arrays = [arg for arg in node.args if isinstance(arg, Node)]
    is_wide = all(a.dtype not in (SINGLE, INTEGER) for a in (node, *arrays))
    return is_elementwise and bool(arrays) and is_wide


def _form_of(value: Any, slots: list[Any], are_numbers: bool) -> Any:
    if isinstance(value, Node):
        slots.append(value)
        return Node
    if type(value) in (list, tuple):
        return type(value), *(_form_of(item, slots, are_numbers) for item in value)
    if are_numbers and _is_number(value):
        slots.append(complex(value) if isinstance(value, complex) else float(value))
        return type(slots[-1])
    return key_of(value)


def _is_number(value: Any) -> bool:
    """Whether a value is a number that is the same as a float, or complex."""
    is_exact = not isinstance(value, int) or abs(value) <= _MOST_EXACT
    return isinstance(value, (int, float, complex)) and type(value) is not bool and is_exact


def _arrays_of(node: Node) -> list[Any] | None:
    """Return the index of a gather for all axes, counted from their starts; None for a mask."""
    shape, index = node.args[0].shape, node.parameters["index"]
    parts = list(index) if type(index) is tuple else [index]
    parts = [part if type(part) is slice else np.asarray(part) for part in parts]
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(parts) > len(shape) or any(part.dtype.kind not in "iu" for part in arrays):
        return None
    found: list[Any] = []
    for part, extent in zip(parts, shape, strict=False):
        is_array = isinstance(part, np.ndarray)
        found.append(np.where(part < 0, part + extent, part).astype(INTEGER) if is_array else part)
    return [*found, *[slice(None)] * (len(shape) - len(parts))]


def _form_of_place(part: Any) -> Any:
    return (part.shape, Node) if isinstance(part, np.ndarray) else part


def _form_of_index(shape: tuple[int, ...], index: Any, slots: list[Any]) -> Any:
    parts = _parts(shape, index)
    if parts is None:
        return index
    axis, form = 0, []
    for part in parts:
        if type(part) is int:
            slots.append(Place(part % shape[axis]))
        form.append(Place if type(part) is int else part)
        axis += part is not None
    return tuple(form)


def _parts(shape: tuple[int, ...], index: Any) -> list[Any] | None:
    """Return the parts of an index of numbers and slices, for all axes; None for others."""
    parts = list(index) if type(index) is tuple else [index]
    parts = [int(part) if isinstance(part, np.integer) else part for part in parts]
    if not all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts):
        return None
    rest = len(shape) - sum(part is not None and part is not Ellipsis for part in parts)
    at = next((k for k, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[at : at + 1] = [slice(None)] * rest
    return parts


def with_slots(node: Node, slots: list[Any]) -> Node:
    """Return a value of the same form with others in the slots; places may be nodes."""
    left = list(slots)
    made = copy.copy(node)
    made.args = _filled(node.args, left, _has_number_slots(node))
    if node.name == "gather" and left:
        return _gathered(made, _arrays_of(node), left)
    parts = None
    if node.name in _WITH_INDEX and left:
        parts = _parts(node.args[0].shape, node.parameters["index"])
    if parts is not None:
        index = [left.pop(0) if type(part) is int else part for part in parts]
        if any(isinstance(part, Node) for part in index):
            made.name, made.args = _WITH_INDEX[node.name], (*made.args, index)
            made.op, made.compute, made.parameters = None, None, {}
        else:
            made.parameters = {**node.parameters, "index": tuple(index)}
    return made


def _gathered(made: Node, places: Any, left: list[Any]) -> Node:
    """Return a gather with other arrays in its index, some of which may not be constants."""
    index = [left.pop(0) if isinstance(part, np.ndarray) else part for part in places]
    arrays = [part for part in index if isinstance(part, Node)]
    if all(part.name == "constant" for part in arrays):
        known = tuple(part.example if isinstance(part, Node) else part for part in index)
        made.parameters = {"index": known}
    else:
        made.name, made.args, made.parameters = "item_at", (*made.args, index), {}
        made.op = made.compute = None
    return made


def _filled(value: Any, left: list[Any], are_numbers: bool) -> Any:
    if isinstance(value, Node):
        return left.pop(0)
    if type(value) in (list, tuple):
        return type(value)(_filled(item, left, are_numbers) for item in value)
    if are_numbers and _is_number(value):
        found = left.pop(0)
        return found if isinstance(found, Node) else value  # an integer remains one
    return value


# -- the same slot in several steps ----------------------------------------------------------------


def are_alike(one: Any, other: Any) -> bool:
    """Whether two values may be rows of an array: numbers, places of an axis, or constants."""
    if isinstance(one, Node) and isinstance(other, Node):
        are_constants = one.name == other.name == "constant"
        return are_constants and (one.shape, one.dtype) == (other.shape, other.dtype)
    return type(one) is type(other) and not isinstance(one, Node)


def are_equal(values: list[Any]) -> bool:
    """Whether a slot is the same in all steps; constants are if their elements are."""
    if isinstance(values[0], Node):
        others = {value: key_of(value.example) for value in values}
        return len({*others.values()}) == 1
    return len({*map(key_of, values)}) == 1


def running(places: list[Any]) -> tuple[int, int] | None:
    """Return the first place and the distance of the next ones; None if they do not run."""
    if not isinstance(places[0], Place):
        return None
    first, by = places[0].number, places[1].number - places[0].number
    runs = all(place.number == first + k * by for k, place in enumerate(places))
    return (first, by) if runs else None


def stacked(values: list[Any]) -> Node:
    """Return a constant with the values of all steps as its rows."""
    if isinstance(values[0], Node):
        return Node("constant", np.stack([value.example for value in values]))
    if isinstance(values[0], Place):
        return Node("constant", np.array([value.number for value in values], np.int64))
    return Node("constant", np.array(values))
