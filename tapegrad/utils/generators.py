"""The random generators whose states a recomputation restores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tapegrad import random

Generator = tuple[Callable[[], Any], Callable[[Any], None]]


def _numpy_state() -> Any:
    return np.random.get_state(legacy=False)  # noqa: NPY002 (users may draw from it)


def generators() -> list[Generator]:
    """Return the functions that get and set the state of every generator that is preserved."""
    return [(_numpy_state, np.random.set_state), (random.get_state, random.set_state)]


def states() -> list[Any]:
    """Return the states of all generators."""
    return [get() for get, _ in generators()]


@contextmanager
def restored(before: list[Any] | None) -> Iterator[None]:
    """Run a block with earlier states of the generators, which then go on from where they were.

    Parameters
    ----------
    before
        A result of `states`, or None to leave the generators alone.
    """
    if before is None:
        yield
        return
    now = states()
    try:
        _set(before)
        yield
    finally:
        _set(now)


def _set(values: list[Any]) -> None:
    for (_, set_state), value in zip(generators(), values, strict=True):
        set_state(value)
