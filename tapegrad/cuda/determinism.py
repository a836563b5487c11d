"""Whether kernels have to give the same result in every run."""

from __future__ import annotations

from typing import Any

_STATE = {"deterministic": False}


def use_deterministic_algorithms(mode: Any, *, warn_only: bool = False) -> None:
    """Choose whether operations on a device give the same result in every run.

    Values that are added to one element, such as the cotangents of an element that an index has
    several times, are added in the order in which threads happen to run, so that sums of floating
    point numbers may differ in their last digits. With `mode`, they are sorted and added in the
    order of the index, which takes longer. Everything else is deterministic in any case, and so is
    all that is computed on the host.

    Parameters
    ----------
    mode
        Whether to use deterministic algorithms.
    warn_only
        Accepted for compatibility, without effect: every operation has a deterministic algorithm.

    Raises
    ------
    TypeError
        If `mode` is not a bool.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.use_deterministic_algorithms(True)
    >>> tg.are_deterministic_algorithms_enabled()
    True
    >>> tg.use_deterministic_algorithms(False)
    """
    if not isinstance(mode, bool):
        raise TypeError(
            f"use_deterministic_algorithms: 'mode' must be a bool, got {type(mode).__name__}"
        )
    _STATE["deterministic"] = mode


def are_deterministic_algorithms_enabled() -> bool:
    """Return whether operations on a device give the same result in every run.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.are_deterministic_algorithms_enabled()
    False
    """
    return _STATE["deterministic"]
