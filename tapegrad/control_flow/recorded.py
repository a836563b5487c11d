"""Loops and branches of a function that is recorded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.control_flow.checks import next_state, pair_of, truth_of
from tapegrad.eager.nodes import layout_of
from tapegrad.eager.traced import NotRecordedError, Traced
from tapegrad.eager.traced_calls import checked
from tapegrad.eager.traced_control import (
    Recorded,
    add_block,
    index_of_loop,
    node_of,
    note_numbers,
    numbers_among,
    recorded_body,
)
from tapegrad.pytrees import Build, arranged, settings_of, structure, tree

_ATTEMPTS = 4  # at the dtypes of a state that starts with integers


def bound_of(value: Any) -> Any:
    """Return a bound of a range: a number, or a node."""
    if type(value) is not Traced or value.is_known():
        return operator.index(value)
    if value.shape or value.dtype != np.int64:
        raise TypeError(f"fori_loop: a bound is an integer, got {value.dtype}{value.shape}")
    return node_of(value)


def recorded_for(
    name: str,
    function: Callable[[Sequence[Any], Any], tuple[Any, list[Any]]],
    start: list[Any],
    state: Any,
    rows: list[Any],
    bounds: list[Any],
    memory: int | None,
) -> tuple[list[Any], list[Any]]:
    """Record a loop over a range; return the last state and the outputs, stacked.

    Parameters
    ----------
    name
        What is called, for errors.
    function
        Takes the leaves of the state, the index and rows; returns the next state and outputs.
    start, state
        The initial state, as leaves and as it is given.
    rows
        Arrays, of which a row is given in each step.
    bounds
        Those of the range.
    memory
        The number of states to keep in the backward pass; None for all.
    """
    first = [*map(node_of, start)]
    arrays = [*map(node_of, rows)]
    count = len(first)
    numbers = numbers_among(start)

    def body(*values: Any) -> list[Any]:
        after, outputs = function(values[:count], *values[count:])
        after = next_state(state, after, f"{name}: the step")
        _check_settings(state, after, name)
        return [*tree(after, name)[0], *outputs]

    others = [index_of_loop(*bounds), *(array.example[0] for array in arrays)]
    with_index = [*numbers, count]
    first, made = _settled(
        first, lambda examples: recorded_body(body, [*examples, *others], with_index)
    )
    outputs = made.body.outputs
    examples = [node.example for node in outputs[:count]]
    is_known = all(isinstance(bound, int) for bound in bounds)
    length = bounds[1] - bounds[0] if is_known else 0
    examples += [_stacked(out.example, length) for out in outputs[count:]]
    args = (first, arrays, made.given, bounds)
    # without a step, the result is the initial state itself
    shared = [*start, *rows, *made.read] if made.is_shared or not is_known else None
    found = add_block("for_loop", args, (made.body,), examples, shared, memory=memory)
    note_numbers(numbers, outputs, found)
    return found[:count], found[count:]


def _stacked(example: np.ndarray, length: int) -> np.ndarray:
    """Return an array of so many equal ones, with the order of axes in memory that stacks have."""
    few = np.stack([example, example])
    found = np.empty_like(few, shape=(length, *example.shape))
    found[...] = example
    return found


def _settled(
    first: list[Any], record: Callable[[list[Any]], Recorded]
) -> tuple[list[Any], Recorded]:
    """Record a step until its state keeps its dtypes; return the initial values and the step.

    Parameters
    ----------
    first
        The nodes of the initial values. Numbers among them become wider.
    record
        Records the step, for examples of the state.
    """
    for _ in range(_ATTEMPTS):
        made = record([node.example for node in first])
        wider = [_wider(node, out) for node, out in zip(first, made.body.outputs, strict=False)]
        if wider == first:
            break
        first = wider
    return first, made


def _wider(start: Any, out: Any) -> Any:
    """Return an initial value with the wider dtype that a step gives it, if it is a number."""
    if start.dtype == out.dtype or start.name != "constant" or start.shape:
        return start
    if not np.can_cast(start.dtype, out.dtype):
        return start
    return node_of(start.example.astype(out.dtype)[()].item())


def recorded_scan(
    step: Callable[..., Any],
    start: list[Any],
    build: Build,
    state: Any,
    rows: list[Any],
    row: Callable[[Sequence[Any]], Any],
    steps: int,
    memory: int | None,
) -> tuple[Any, Any]:
    """Record a scan; return the last state and the outputs."""
    builds: list[Build] = []

    def function(leaves: Sequence[Any], i: Any, *parts: Any) -> tuple[Any, list[Any]]:
        after, output = pair_of(step(build([*leaves]), row(parts)), memory)
        outputs, build_output = tree(output, "scan: the output")
        builds.append(build_output)
        return after, outputs

    found, outputs = recorded_for("scan", function, start, state, rows, [0, steps], memory)
    return build(found), builds[-1](outputs)


def recorded_while(test: Callable[[Any], Any], step: Callable[[Any], Any], state: Any) -> Any:
    """Record a loop with a test; return the last state."""
    start, build = tree(state, "while_loop: the state")
    first = [*map(node_of, start)]
    numbers = numbers_among(start)

    def body(*leaves: Any) -> list[Any]:
        after = step(build([*leaves]))
        after = next_state(state, after, "while_loop: the step")
        _check_settings(state, after, "while_loop")
        return tree(after, "while_loop")[0]

    def tested(*leaves: Any) -> list[Any]:
        return [truth_of(test(build([*leaves])))]

    first, made = _settled(first, lambda examples: recorded_body(body, examples, numbers))
    examples = [node.example for node in first]
    tests = recorded_body(tested, examples, numbers)
    args = (first, tests.given, made.given)
    shared = [*start, *made.read]  # without a step, the result is the initial state itself
    found = add_block("while_loop", args, (tests.body, made.body), examples, shared)
    note_numbers(numbers, made.body.outputs, found)
    return build(found)


def _check_settings(before: Any, after: Any, name: str) -> None:
    """Raise if instances of dataclasses differ in what a recording takes for constant."""
    if settings_of(before) != settings_of(after):
        raise NotRecordedError(f"{name}: a field that is no array and no float changes")


def recorded_switch(
    name: str, which: Any, branches: tuple[Callable[..., Any], ...], operands: tuple[Any, ...]
) -> Any:
    """Record branches; return the result of the one that is taken."""
    leaves, build = tree(list(operands), f"{name}: the operands")
    results: list[tuple[Any, Build]] = []
    nodes = [*map(node_of, leaves)]

    def body(function: Callable[..., Any]) -> Callable[..., list[Any]]:
        def run(*values: Any) -> list[Any]:
            found = function(*build([*values]))
            if results and structure(found) == structure(results[0][0]):
                found = arranged(results[0][0], found)
            results.append((found, tree(found, name)[1]))
            return tree(found, name)[0]

        return run

    inputs, numbers = [node.example for node in nodes], numbers_among(leaves)
    made = [recorded_body(body(branch), inputs, numbers) for branch in branches]
    for k, own in enumerate(made[1:], 1):
        kinds = [[(n.shape, n.dtype) for n in one.body.outputs] for one in (made[0], own)]
        if structure(results[0][0]) != structure(results[k][0]) or kinds[0] != kinds[1]:
            raise TypeError(
                f"{name}: function {k} returns a result of another structure, shape or dtype than "
                "function 0"
            )
        _check_settings(results[0][0], results[k][0], name)
        for pair in zip(made[0].body.outputs, own.body.outputs, strict=True):
            if len({layout_of(node.example) for node in pair}) > 1:
                # whether reshape makes a view or a copy depends on which branch is taken
                raise NotRecordedError(
                    f"{name}: results whose elements are in different orders in memory"
                )
    decides = node_of(which)
    if name == "switch":
        decides = checked(decides, len(branches))
    examples = [node.example for node in made[0].body.outputs]
    args = (decides, nodes, *(own.given for own in made))
    shared = None
    if any(own.is_shared for own in made):
        shared = [*leaves, *(tensor for own in made for tensor in own.read)]
    bodies = tuple(own.body for own in made)
    found = add_block("switch", args, bodies, examples, shared)
    for own in made:
        note_numbers(range(len(found)), own.body.outputs, found)
    return results[0][1](found)
