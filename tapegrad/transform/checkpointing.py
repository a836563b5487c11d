"""Loops whose derivatives keep few states, and compute the others again.

The derivative of a loop over ``checkpointed(range(n))`` takes its iterations in segments
(`tapegrad.transform.codegen.segments`).
"""

from __future__ import annotations

import operator
from typing import Any

from numba.core import types
from numba.core.errors import TypingError
from numba.extending import overload

from tapegrad.transform.deferred import runtime


def checkpointed(steps: Any, memory: int | None = None) -> Any:
    """Return a range, for a loop whose reverse pass keeps few states.

    Gradients keep values of every iteration of a loop, which may not fit into memory. The
    iterations of ``for i in tg.checkpointed(range(n))`` are divided into `memory` segments of equal
    length. The gradient keeps the state at the start of each segment, and what the iterations of
    one segment need: it computes them again, from the last segment to the first. That takes about
    as long as one more call of the function.

    The state are the variables that an iteration takes from the one before, and the arrays that the
    loop writes. Without derivatives, and in forward mode, the loop is a plain one. It is meant for
    functions that `tapegrad.njit` or numba compiles.

    Parameters
    ----------
    steps
        The range to loop over.
    memory
        The number of states that are kept, at least 1. By default, the square root of the number of
        iterations, which keeps the least.

    Returns
    -------
    range
        `steps`.

    Raises
    ------
    TypeError
        If `steps` is not a range, or `memory` not an integer.
    ValueError
        If `memory` is less than 1.
    TransformError
        From gradients, if the loop is left early, draws random numbers, uses lists, or writes to an
        array that has two names.

    Notes
    -----
    For nested loops, ``checkpointed`` may be nested as well. `tapegrad.checkpoint_scan` does the
    same for steps on tensors, and chooses the states by A. Griewank and A. Walther, Algorithm 799:
    Revolve, ACM Transactions on Mathematical Software 26, 19-45 (2000).

    Examples
    --------
    >>> import numpy as np
    >>> import tapegrad as tg
    >>> @tg.njit
    ... def heat(u, rate, steps):
    ...     u = u.copy()
    ...     for _ in tg.checkpointed(range(steps)):
    ...         before = u.copy()
    ...         for i in range(1, u.size - 1):
    ...             u[i] += rate * (before[i - 1] - 2.0 * before[i] + before[i + 1])
    ...     return np.sum(u ** 2)
    >>> tg.grad(heat, argnums=1)(np.array([0.0, 0.0, 1.0, 0.0, 0.0]), 0.1, 100)
    -0.000355...
    """
    if not isinstance(steps, range):
        raise TypeError(
            f"tapegrad.checkpointed: steps is a range, got {type(steps).__name__}; loop over the "
            "positions: range(len(items))"
        )
    if memory is not None and operator.index(memory) < 1:
        raise ValueError(f"tapegrad.checkpointed: memory is at least 1, got {memory}")
    return steps


def register() -> None:
    """Let numba compile calls of `checkpointed`."""
    overload(checkpointed)(_same)


def _same(steps: Any, memory: Any = None) -> Any:
    """Return the implementation of `checkpointed` for some types."""
    if not isinstance(steps, types.RangeType):
        raise TypingError(
            f"tapegrad.checkpointed: steps is a range, got {steps}; loop over the positions: "
            "range(len(items))"
        )
    if isinstance(memory, types.Omitted):
        memory = memory.value
    if memory is not None and not isinstance(memory, (types.NoneType, types.Integer, int)):
        raise TypingError(f"tapegrad.checkpointed: memory is an integer, got {memory}")
    if memory is None or isinstance(memory, types.NoneType):

        def same(steps: Any, memory: Any = None) -> Any:
            return steps

        return same

    def of_length(steps: Any, memory: Any = None) -> Any:
        runtime.check_memory(memory)
        return steps

    return of_length
