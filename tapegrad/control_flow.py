"""Loops and branches that `tapegrad.jit` records as such: `scan`, `fori_loop`, `cond` and others.

Elsewhere they run as Python: a loop calls its step again and again, a branch calls one function.
While a function is recorded, a step or branch is called once, and becomes a loop or branch of the
compiled program. A Python loop of a recorded function is recorded iteration by iteration.

The state of a loop keeps its structure, shapes and dtypes; both ways check that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import Traced
from tapegrad.eager.traced_calls import checked
from tapegrad.eager.traced_control import (
    Recorded,
    add_block,
    index_of_loop,
    node_of,
    recorded_body,
)
from tapegrad.pytrees import Build, arranged, structure, tree
from tapegrad.utils.scan import checkpoint_scan

_ATTEMPTS = 4  # at the dtypes of a state that starts with integers


def scan(
    step: Callable[..., Any],
    state: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    memory: int | None = None,
) -> tuple[Any, Any]:
    """Apply a step to a state again and again, with one row of arrays each time.

    Parameters
    ----------
    step
        ``step(state, x)`` returns the next state and an output: a pytree of arrays and numbers of
        the same shapes each time, or None. `x` is a pytree of the rows of `xs`, None without it.
    state
        The initial state: an array, a tensor, a number, or a pytree of these.
    xs
        An array, or a pytree of arrays of the same length, whose rows the steps are given.
    length
        The number of steps; by default that of `xs`.
    memory
        The number of states that the backward pass keeps; it computes the others again (see
        `checkpoint_scan`). By default, it keeps all. The steps return no outputs then.

    Returns
    -------
    state
        The state after the last step.
    outputs
        The outputs of all steps, stacked.

    Raises
    ------
    TypeError
        If the step returns a state of another structure, shape or dtype.
    ValueError
        If the lengths of the arrays differ, or there is none, or with `memory`, if there are
        outputs.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> @tg.jit
    ... def last(rate, noise):
    ...     def step(x, e):
    ...         x = x + rate * tg.sin(x) + e
    ...         return x, x ** 2
    ...     x, squares = tg.scan(step, 1.0, noise)
    ...     return x + tg.mean(squares)
    >>> tg.grad(last)(0.1, np.zeros(50)).round(4)
    np.float64(29.4447)
    """
    rows, row_of = tree(xs, "scan: xs")
    rows = [row for row in rows if row is not None]
    steps = _length(rows, length)
    start, build = tree(state, "scan: the state")
    if memory is not None and operator.index(memory) < 1:
        raise ValueError(f"scan: memory is {memory}; expected at least 1")

    def row(parts: Sequence[Any]) -> Any:
        return None if xs is None else row_of([*parts])

    if MODE.special and MODE.thread.trace is not None and steps:
        return _recorded_scan(step, start, build, state, rows, row, steps, memory)
    if memory is not None:
        return _checkpointed(step, state, rows, row, steps, memory), None
    outputs: list[list[Any]] = []
    build_output: Build = lambda leaves: None  # noqa: E731
    for k in range(steps):
        new, output = _pair(step(state, row([array[k] for array in rows])), memory)
        _check(state, new, "scan: the step")
        state = new
        leaves, build_output = tree(output, "scan: the output")
        outputs.append([leaf for leaf in leaves if leaf is not None])
    stacked = [_stacked([*parts]) for parts in zip(*outputs, strict=True)]
    return state, build_output(stacked) if stacked else None


def fori_loop(lower: Any, upper: Any, step: Callable[..., Any], state: Any) -> Any:
    """Apply a step to a state for each integer of a range.

    Parameters
    ----------
    lower, upper
        The first integer, and the one after the last. They may depend on the arguments of a
        recorded function.
    step
        ``step(i, state)`` returns the next state.
    state
        The initial state: an array, a tensor, a number, or a pytree of these.

    Returns
    -------
    object
        The state after the last step.

    Raises
    ------
    TypeError
        If the step returns a state of another structure, shape or dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> @tg.jit
    ... def value(x, coefficients):
    ...     def step(i, total):
    ...         return total * x + coefficients[i]
    ...     return tg.fori_loop(0, len(coefficients), step, 0.0)
    >>> tg.value_and_grad(value)(2.0, np.array([1.0, 0.0, 3.0]))
    (np.float64(7.0), np.float64(4.0))
    """
    if MODE.special and MODE.thread.trace is not None:
        start, build = tree(state, "fori_loop: the state")
        bounds = [*map(_bound, (lower, upper))]
        if all(isinstance(bound, int) for bound in bounds) and bounds[0] >= bounds[1]:
            return state

        def function(leaves: Sequence[Any], i: Any) -> tuple[Any, list[Any]]:
            return step(i, build([*leaves])), []

        found, _ = _recorded_for("fori_loop", function, start, state, [], bounds, None)
        return build(found)
    for i in range(operator.index(lower), operator.index(upper)):
        new = step(i, state)
        _check(state, new, "fori_loop: the step")
        state = new
    return state


def while_loop(test: Callable[[Any], Any], step: Callable[[Any], Any], state: Any) -> Any:
    """Apply a step to a state as long as a test of it is true.

    Parameters
    ----------
    test
        ``test(state)`` returns whether there is another step.
    step
        ``step(state)`` returns the next state.
    state
        The initial state: an array, a tensor, a number, or a pytree of these.

    Returns
    -------
    object
        The first state of which the test is false.

    Raises
    ------
    TypeError
        If the step returns a state of another structure, shape or dtype, or the test something
        else than a truth value.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.jit
    ... def root(a):
    ...     def step(x):
    ...         return 0.5 * (x + a / x)
    ...     return tg.while_loop(lambda x: abs(x * x - a) > 1e-12, step, 1.0)
    >>> tg.value_and_grad(root)(2.0)
    (np.float64(1.4142135623...), np.float64(0.3535533905...))
    """
    if MODE.special and MODE.thread.trace is not None:
        return _recorded_while(test, step, state)
    while _truth(test(state)):
        new = step(state)
        _check(state, new, "while_loop: the step")
        state = new
    return state


def cond(
    test: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], *operands: Any
) -> Any:
    """Call one of two functions.

    Parameters
    ----------
    test
        What decides: a truth value, a number or a 0-d tensor.
    if_true, if_false
        The functions, of which one is called with the operands. Both return results of the same
        structure, shapes and dtypes.
    *operands
        The arguments.

    Returns
    -------
    object
        The result.

    Raises
    ------
    TypeError
        While a function is recorded, if the results of the two differ.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.jit
    ... def f(x):
    ...     return tg.cond(x > 1.0, lambda x: tg.log(x), lambda x: x - 1.0, x)
    >>> tg.grad(f)(2.0), tg.grad(f)(0.0)
    (np.float64(0.5), np.float64(1.0))
    """
    decides = _truth(test)
    if type(decides) is Traced and not decides.is_known():
        return _recorded_switch("cond", decides, (if_true, if_false), operands)
    return (if_true if decides else if_false)(*operands)


def switch(which: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """Call one of several functions.

    Parameters
    ----------
    which
        Its number.
    branches
        The functions, of which one is called with the operands. All return results of the same
        structure, shapes and dtypes.
    *operands
        The arguments.

    Returns
    -------
    object
        The result.

    Raises
    ------
    IndexError
        If there is no such function.
    TypeError
        While a function is recorded, if the results of the functions differ.

    Examples
    --------
    >>> import tapegrad as tg
    >>> @tg.jit
    ... def f(k, x):
    ...     return tg.switch(k, [tg.sin, tg.cos, tg.exp], x)
    >>> [tg.grad(f, 1)(k, 0.0) for k in range(3)]
    [np.float64(1.0), np.float64(0.0), np.float64(1.0)]
    """
    count = len(branches)
    if type(which) is Traced and not which.is_known():
        if which.shape or which.dtype.kind not in "iu":
            raise TypeError(f"switch: the number is an integer, got {which.dtype}{which.shape}")
        return _recorded_switch("switch", which, tuple(branches), operands)
    number = operator.index(which)
    if not -count <= number < count:
        raise IndexError(f"switch: there is no function {number} of {count}")
    return branches[number](*operands)


# -- checks ----------------------------------------------------------------------------------------


def _length(rows: list[Any], length: int | None) -> int:
    """Return the number of steps of a scan."""
    for row in rows:
        if np.ndim(row) == 0:
            raise ValueError("scan: xs has a part without rows: a number; give it by the state")
    lengths = {len(row) for row in rows}
    if length is not None:
        lengths.add(operator.index(length))
    if len(lengths) != 1:
        what = "give xs or length" if not lengths else f"got {sorted(lengths)}"
        raise ValueError(f"scan: xs and length say how many steps there are: {what}")
    (steps,) = lengths
    if steps < 0:
        raise ValueError(f"scan: length is {steps}; expected at least 0")
    return steps


def _pair(found: Any, memory: int | None) -> tuple[Any, Any]:
    """Return the next state and the output that a step of a scan returns."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError("scan: the step returns the next state and an output (or None)")
    if memory is not None and found[1] is not None:
        raise ValueError("scan: with memory, the step returns None as its output")
    return found


def _kind(leaf: Any) -> tuple[tuple[int, ...], str]:
    dtype = getattr(leaf, "dtype", None)
    return np.shape(leaf), str(np.asarray(leaf).dtype if dtype is None else dtype)


def _check(before: Any, after: Any, what: str) -> None:
    """Raise if a state has not the structure, shapes and dtypes of the one before."""
    if type(before) is type(after) and not isinstance(before, (list, tuple, dict)):
        if isinstance(before, Tensor) and before.shape == after.shape:
            if before.dtype == after.dtype:
                return
    if structure(before) != structure(after):
        raise TypeError(f"{what} returns a state of another structure than it is given")
    pairs = zip(tree(before, what)[0], tree(arranged(before, after), what)[0], strict=True)
    for k, (old, new) in enumerate(pairs):
        if old is None:
            continue
        (shape, dtype), (new_shape, new_dtype) = _kind(old), _kind(new)
        is_number = isinstance(old, (bool, int, float, complex))  # it may become a wider one
        fits = dtype == new_dtype or (is_number and np.can_cast(dtype, new_dtype))
        if shape != new_shape or not fits:
            raise TypeError(
                f"{what} changes part {k} of the state, of shape {shape} and dtype {dtype}, to "
                f"shape {new_shape} and dtype {new_dtype}; start with an array like the latter"
            )


def _stacked(parts: list[Any]) -> Any:
    if any(isinstance(part, Tensor) for part in parts):
        return FUNCTIONS["stack"](parts)
    return np.stack([*map(np.asarray, parts)])


# -- running and recording -------------------------------------------------------------------------


def _checkpointed(
    step: Callable[..., Any],
    state: Any,
    rows: list[Any],
    row: Callable[[Sequence[Any]], Any],
    steps: int,
    memory: int,
) -> Any:
    """Run a scan whose backward pass keeps few states."""

    def advance(i: int, state: Any, *arrays: Any) -> Any:
        return _pair(step(state, row([array[i] for array in arrays])), memory)[0]

    return checkpoint_scan(advance, state, steps, *rows, memory=memory)


def _bound(value: Any) -> Any:
    """Return a bound of a range: a number, or a node."""
    if type(value) is not Traced or value.is_known():
        return operator.index(value)
    if value.shape or value.dtype != np.int64:
        raise TypeError(f"fori_loop: a bound is an integer, got {value.dtype}{value.shape}")
    return node_of(value)


def _recorded_for(
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

    def body(*values: Any) -> list[Any]:
        after, outputs = function(values[:count], *values[count:])
        _check(state, after, f"{name}: the step")
        return [*tree(arranged(state, after), name)[0], *outputs]

    others = [index_of_loop(*bounds), *(array.example[0] for array in arrays)]
    first, made = _settled(first, lambda examples: recorded_body(body, [*examples, *others]))
    outputs = made.body.outputs
    examples = [node.example for node in outputs[:count]]
    is_known = all(isinstance(bound, int) for bound in bounds)
    length = bounds[1] - bounds[0] if is_known else 0
    examples += [np.broadcast_to(out.example, (length, *out.shape)) for out in outputs[count:]]
    args = (first, arrays, made.given, bounds)
    # without a step, the result is the initial state itself
    shared = [*start, *rows, *made.read] if made.is_shared or not is_known else None
    found = add_block("for_loop", args, (made.body,), examples, shared, memory=memory)
    return found[:count], found[count:]


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


def _recorded_scan(
    step: Callable[..., Any],
    start: list[Any],
    build: Build,
    state: Any,
    rows: list[Any],
    row: Callable[[Sequence[Any]], Any],
    steps: int,
    memory: int | None,
) -> tuple[Any, Any]:
    builds: list[Build] = []

    def function(leaves: Sequence[Any], i: Any, *parts: Any) -> tuple[Any, list[Any]]:
        after, output = _pair(step(build([*leaves]), row(parts)), memory)
        outputs, build_output = tree(output, "scan: the output")
        builds.append(build_output)
        return after, [leaf for leaf in outputs if leaf is not None]

    found, outputs = _recorded_for("scan", function, start, state, rows, [0, steps], memory)
    return build(found), builds[-1](outputs) if outputs else None


def _recorded_while(test: Callable[[Any], Any], step: Callable[[Any], Any], state: Any) -> Any:
    start, build = tree(state, "while_loop: the state")
    first = [*map(node_of, start)]

    def body(*leaves: Any) -> list[Any]:
        after = step(build([*leaves]))
        _check(state, after, "while_loop: the step")
        return tree(arranged(state, after), "while_loop")[0]

    def tested(*leaves: Any) -> list[Any]:
        return [_truth(test(build([*leaves])))]

    first, made = _settled(first, lambda examples: recorded_body(body, examples))
    examples = [node.example for node in first]
    tests = recorded_body(tested, examples)
    args = (first, tests.given, made.given)
    shared = [*start, *made.read]  # without a step, the result is the initial state itself
    return build(add_block("while_loop", args, (tests.body, made.body), examples, shared))


def _truth(found: Any) -> Any:
    """Return the truth value of a test, or a tensor that stands for it."""
    if np.size(found) != 1:
        raise TypeError("cond, while_loop: the test is one truth value; use tapegrad.all")
    if type(found) is not Traced:
        return bool(found)
    if found.shape:
        found = found.reshape(())
    return found if found.dtype == np.bool_ else FUNCTIONS["not_equal"](found, 0)


def _recorded_switch(
    name: str, which: Any, branches: tuple[Callable[..., Any], ...], operands: tuple[Any, ...]
) -> Any:
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

    made = [recorded_body(body(branch), [node.example for node in nodes]) for branch in branches]
    for k, own in enumerate(made[1:], 1):
        kinds = [[(n.shape, n.dtype) for n in one.body.outputs] for one in (made[0], own)]
        if structure(results[0][0]) != structure(results[k][0]) or kinds[0] != kinds[1]:
            raise TypeError(
                f"{name}: function {k} returns a result of another structure, shape or dtype than "
                "function 0"
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
    return results[0][1](add_block("switch", args, bodies, examples, shared))
