"""Where the items of a batch are computed: by a loop on the host, or by a kernel on a device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from tapegrad.cuda.toolkit import require
from tapegrad.eager.lines import level_of_user
from tapegrad.transform.base import Derivative, written_arguments
from tapegrad.transform.ensembles import in_lanes, one_by_one
from tapegrad.transform.ensembles.on_device import Kernel
from tapegrad.transform.errors import SerialLoopWarning, TransformError

_OPTIONS = ("error_model", "boundscheck", "nogil")


def on_host(function: Any, kinds: tuple[Any, ...], has_items: Sequence[bool], result: Any) -> Any:
    """Return the compiled loop over the items, side by side if that is possible."""
    options = {n: function.targetoptions[n] for n in _OPTIONS if n in function.targetoptions}
    options["parallel"] = _may_run_in_parallel(function, kinds, has_items)
    try:
        return in_lanes.compiled(function, kinds, has_items, options)
    except in_lanes.NoLanesError:
        return one_by_one.compiled(function, has_items, result, options)


def on_device(function: Any, kinds: tuple[Any, ...], has_items: Sequence[bool], result: Any) -> Any:
    """Return what computes all items on a device."""
    cuda = require()
    name = function.py_func.__name__
    if written := written_arguments(function, kinds):
        raise TransformError(
            f"{name} writes to argument {min(written)}, which a function on a device cannot do; "
            "let it work on a copy, or return its results"
        )
    return Kernel(cuda, function, kinds, has_items, result)


def _may_run_in_parallel(function: Any, kinds: tuple[Any, ...], has_items: Sequence[bool]) -> bool:
    """Whether the items are computed at the same time, as the function asks for.

    Items that write to what they share are refused.
    """
    name = function.py_func.__name__
    root = function.root if isinstance(function, Derivative) else function
    is_wanted = bool(root.targetoptions.get("parallel"))
    try:
        written = written_arguments(function, kinds)
    except TransformError:
        if is_wanted:
            _warn(f"it is not known what {name} writes to")
        return False
    for number in sorted(written):
        if not has_items[number]:
            raise TransformError(
                f"{name} writes to argument {number}, which all items of a vmap share; give each "
                "item its own (in_axes), or let the function work on a copy"
            )
    if written and is_wanted:
        _warn(f"{name} writes to argument {min(written)}, whose items may share elements")
    return is_wanted and not written


def _warn(reason: str) -> None:
    message = f"vmap: the items are computed in order, not on all threads: {reason}"
    warnings.warn(SerialLoopWarning(message), stacklevel=level_of_user())
