"""Calls that go to compiled code with no look at what was recorded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.eager.tensor import wrap
from tapegrad.replay.arguments import Arguments
from tapegrad.replay.compiled import Region, as_tensors, is_tracked
from tapegrad.replay.guards import Guard
from tapegrad.replay.recorded import Recorded


class DirectCall:
    """Compiled code for calls with arguments of some kinds.

    Parameters
    ----------
    recorded
        What was recorded for them.
    region
        What computes it.
    arguments
        Some such arguments; their arrays are not kept.
    guard
        What recognises them.
    """

    def __init__(
        self, recorded: Recorded, region: Region, arguments: Arguments, guard: Guard
    ) -> None:
        self.guard = guard
        self.gradients: dict[Any, Callable[[Sequence[Any]], Any]] = {}
        self._recorded = recorded
        self._region = region
        self._compute, self._constants = region.value, tuple(region.constants)
        self._arguments = arguments.without_leaves()
        self._has_tensors = arguments.has_tensors
        self._finish = self._finishing()
        if any(map(is_tracked, arguments.leaves)):
            self._compute, self._constants = (lambda *leaves: region(leaves)), ()
            self._finish = lambda found: recorded.finished(found, True)

    def _finishing(self) -> Callable[[Any], Any]:
        """Return what makes results of what compiled code returns."""
        recorded, region, has_tensors = self._recorded, self._region, self._has_tensors
        if not recorded.is_single or recorded.shares:
            return lambda found: recorded.finished(region.typed(found), has_tensors)
        kind = region.scalar or (lambda found: found)
        return (lambda found: wrap(np.asarray(kind(found)))) if has_tensors else kind

    def value(self, leaves: Sequence[Any]) -> Any:
        """Return the results for the leaves of arguments."""
        return self._finish(self._compute(*leaves, *self._constants))

    def add_gradient(
        self, derivative: Any, places: tuple[int, ...], argnums: int | tuple[int, ...]
    ) -> None:
        """Note what computes the value and gradient, by some leaves that are some arguments.

        Parameters
        ----------
        derivative
            The compiled gradient.
        places
            The numbers of the leaves.
        argnums
            As it was given to the transform, a tuple if there are several: the key of `gradients`.
        """
        region, constants, has_tensors = self._region, self._constants, self._has_tensors
        scalar = region.scalar
        is_one = isinstance(argnums, int)
        numbers = (argnums,) if isinstance(argnums, int) else argnums
        arranged = self._arguments.like_arguments
        tokens = [object() for _ in places]
        kept = arranged(numbers, tokens)
        are_leaves = len(kept) == len(tokens) and all(map(operator.is_, kept, tokens))

        are_arrays = region.are_arrays(places)

        def gradient(leaves: Sequence[Any]) -> Any:
            value, found = derivative(*leaves, *constants)
            if are_arrays:
                value = scalar(value)
            else:
                value, found = region.as_results(value, found, places)
            if has_tensors:
                value, found = as_tensors(value, found)
            if not are_leaves:
                found = arranged(numbers, found)
            elif not is_one:
                found = tuple(found)
            return value, found[0] if is_one else found

        self.gradients[argnums] = gradient
