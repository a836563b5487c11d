"""What the functions of loops and branches must return."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tapegrad.eager.numeric import FUNCTIONS
from tapegrad.eager.tensor import Tensor
from tapegrad.eager.traced import Traced
from tapegrad.pytrees import arranged, structure, tree


def length_of(rows: list[Any], length: int | None) -> int:
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


def pair_of(found: Any, memory: int | None) -> tuple[Any, Any]:
    """Return the next state and the output that a step of a scan returns."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError("scan: the step returns the next state and an output (or None)")
    if memory is not None and found[1] is not None:
        raise ValueError("scan: with memory, the step returns None as its output")
    return found


def _kind(leaf: Any) -> tuple[tuple[int, ...], str]:
    dtype = getattr(leaf, "dtype", None)
    return np.shape(leaf), str(np.asarray(leaf).dtype if dtype is None else dtype)


def next_state(before: Any, after: Any, what: str) -> Any:
    """Return the state after a step, in the containers of the one before.

    Raises
    ------
    TypeError
        If it has not the structure, shapes and dtypes of the one before.
    """
    if type(before) is type(after) is Tensor:
        if before.shape == after.shape and before.dtype == after.dtype:
            return after
    if structure(before) != structure(after):
        raise TypeError(f"{what} returns a state of another structure than it is given")
    after = arranged(before, after)
    pairs = zip(tree(before, what)[0], tree(after, what)[0], strict=True)
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
    return after


def same_output(first: Any, output: Any) -> Any:
    """Return the output of a step of a scan, in the containers of the first one."""
    if structure(first) != structure(output):
        raise TypeError("scan: the step returns outputs of different structures")
    return arranged(first, output)


def truth_of(found: Any) -> Any:
    """Return the truth value of a test, or a tensor that stands for it."""
    if np.size(found) != 1:
        raise TypeError("cond, while_loop: the test is one truth value; use tapegrad.all")
    if type(found) is not Traced:
        return bool(found)
    if found.shape:
        found = found.reshape(())
    return found if found.dtype == np.bool_ else FUNCTIONS["not_equal"](found, 0)
