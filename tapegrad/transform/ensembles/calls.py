"""Calls of compiled functions for all items of a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaPerformanceWarning

from tapegrad.transform.base import Derivative, Recording, complete, written_arguments
from tapegrad.transform.ensembles import in_lanes, one_by_one
from tapegrad.transform.errors import TransformError

_OPTIONS = ("error_model", "boundscheck", "nogil")


class _Items(NamedTuple):
    """An argument with one item for each place of the first axis."""

    array: np.ndarray


def over_items(
    function: Any, size: int, args: Sequence[Any], has_items: Sequence[bool], kwargs: dict[str, Any]
) -> Any:
    """Return what a function returns for all items, with the items along the first axis.

    Parameters
    ----------
    function
        The compiled function, or a derivative.
    size
        How many items there are, one at least.
    args
        Its arguments; where `has_items` is true, an array with the items along its first axis.
    has_items
        Which of the arguments they are.
    kwargs
        Arguments that all items share.

    Returns
    -------
    numpy.ndarray or tuple
        The results, in the structure of those of one item.

    Raises
    ------
    ValueError
        If the shapes of results differ between the items.
    TransformError
        If the function writes to an argument that all items share.
    TypeError
        If a result is neither a number nor an array.
    """
    items = [_Items(a) if many else a for a, many in zip(args, has_items, strict=True)]
    bound = complete(function, tuple(items), kwargs)  # with defaults
    has_items = [isinstance(a, _Items) for a in bound]
    args = [a.array if isinstance(a, _Items) else a for a in bound]
    given = tuple(map(numba.typeof, args))
    kinds = tuple(
        _item(kind) if many else kind for kind, many in zip(given, has_items, strict=True)
    )
    with warnings.catch_warnings():  # the loop is parallel, if not the function
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        function.compile(kinds)
    # its loops, by what decides on them, with its code when they were made
    known: dict[Any, tuple[Any, Any]] = vars(function).setdefault("_loops_over_items", {})
    key, code = (given, tuple(has_items)), function.overloads[kinds]
    result = code.signature.return_type
    if key not in known or known[key][0] is not code:  # or the function was compiled again
        known[key] = code, _loop(function, kinds, has_items, result)
    return _arranged(result, iter(known[key][1](size, *args)))


def _item(kind: Any) -> Any:
    """Return the type of an item of an array."""
    if kind.ndim == 1:
        return kind.dtype
    return kind.copy(ndim=kind.ndim - 1, layout="C" if kind.layout == "C" else "A")


def _loop(function: Any, kinds: tuple[Any, ...], has_items: Sequence[bool], result: Any) -> Any:
    """Return the compiled loop over the items, side by side if that is possible."""
    options = {n: function.targetoptions[n] for n in _OPTIONS if n in function.targetoptions}
    options["parallel"] = _may_run_in_parallel(function, kinds, has_items)
    try:
        return in_lanes.compiled(function, kinds, has_items, options)
    except in_lanes.NoLanesError:
        return one_by_one.compiled(function, has_items, result, options)


def _may_run_in_parallel(function: Any, kinds: tuple[Any, ...], has_items: Sequence[bool]) -> bool:
    """Whether the items may be computed at the same time, as the function asks for.

    Items that write to what they share are refused.
    """
    try:
        written = written_arguments(function, kinds)
    except TransformError:  # what it writes to is not known
        return False
    for number in sorted(written):
        if not has_items[number]:
            raise TransformError(
                f"{function.py_func.__name__} writes to argument {number}, which all items of a "
                "vmap share; give each item its own (in_axes), or let the function work on a copy"
            )
    root = function.root if isinstance(function, Derivative) else function
    return bool(root.targetoptions.get("parallel"))


def _arranged(kind: Any, leaves: Iterator[Any]) -> Any:
    """Return leaves in the structure of a result."""
    if not isinstance(kind, types.BaseTuple):
        return next(leaves)
    items = [_arranged(item, leaves) for item in kind]
    return kind.instance_class(*items) if hasattr(kind, "instance_class") else tuple(items)


Recording.over_items = staticmethod(over_items)
