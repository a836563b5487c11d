"""Loops and branches: as Python, unless a function is recorded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.control_flow.checks import length_of, next_state, pair_of, same_output, truth_of
from tapegrad.control_flow.recorded import (
    bound_of,
    recorded_for,
    recorded_scan,
    recorded_switch,
    recorded_while,
)
from tapegrad.eager.modes import MODE
from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import Traced
from tapegrad.pytrees import tree
from tapegrad.utils.scan import checkpoint_scan


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
    steps = length_of(rows, length)
    start, build = tree(state, "scan: the state")
    if memory is not None and operator.index(memory) < 1:
        raise ValueError(f"scan: memory is {memory}; expected at least 1")

    def row(parts: Sequence[Any]) -> Any:
        return None if xs is None else row_of([*parts])

    if MODE.special and MODE.thread.trace is not None and steps:
        return recorded_scan(step, start, build, state, rows, row, steps, memory)
    if memory is not None:
        return _checkpointed(step, state, rows, row, steps, memory), None
    outputs: list[Any] = []
    for k in range(steps):
        new, output = pair_of(step(state, row([array[k] for array in rows])), memory)
        state = next_state(state, new, "scan: the step")
        outputs.append(same_output(outputs[0], output) if outputs else output)
    if not outputs:
        return state, None
    build_output = tree(outputs[0], "scan: the output")[1]
    leaves = [tree(output, "scan: the output")[0] for output in outputs]
    return state, build_output([_stacked([*parts]) for parts in zip(*leaves, strict=True)])


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
        bounds = [*map(bound_of, (lower, upper))]
        if all(isinstance(bound, int) for bound in bounds) and bounds[0] >= bounds[1]:
            return state

        def function(leaves: Sequence[Any], i: Any) -> tuple[Any, list[Any]]:
            return step(i, build([*leaves])), []

        found, _ = recorded_for("fori_loop", function, start, state, [], bounds, None)
        return build(found)
    for i in range(operator.index(lower), operator.index(upper)):
        state = next_state(state, step(i, state), "fori_loop: the step")
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
        return recorded_while(test, step, state)
    while truth_of(test(state)):
        state = next_state(state, step(state), "while_loop: the step")
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
    decides = truth_of(test)
    if type(decides) is Traced and not decides.is_known():
        return recorded_switch("cond", decides, (if_true, if_false), operands)
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
    ...     return tg.switch(k, [tg.sin, tg.square, tg.exp], x)
    >>> [tg.grad(f, 1)(k, 0.0) for k in range(3)]
    [np.float64(1.0), np.float64(0.0), np.float64(1.0)]
    """
    count = len(branches)
    if type(which) is Traced and not which.is_known():
        if which.shape or which.dtype.kind not in "iu":
            raise TypeError(f"switch: the number is an integer, got {which.dtype}{which.shape}")
        return recorded_switch("switch", which, tuple(branches), operands)
    number = operator.index(which)
    if not -count <= number < count:
        raise IndexError(f"switch: there is no function {number} of {count}")
    return branches[number](*operands)


def _stacked(parts: list[Any]) -> Any:
    if any(isinstance(part, Tensor) for part in parts):
        return FUNCTIONS["stack"](parts)
    return np.stack([*map(np.asarray, parts)])


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
        return pair_of(step(state, row([array[i] for array in arrays])), memory)[0]

    return checkpoint_scan(advance, state, steps, *rows, memory=memory)
