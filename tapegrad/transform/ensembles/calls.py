"""Calls of compiled functions for all items of a batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError, NumbaPerformanceWarning

from tapegrad.cuda.array import DeviceArray, on_host
from tapegrad.eager.dispatch import passive
from tapegrad.imports import whole_imports
from tapegrad.transform.base import Recording, complete


class _Items(NamedTuple):
    """An argument with one item for each place of the first axis."""

    array: np.ndarray


@dataclass
class _Loop:
    """The loop over the items for some types."""

    code: Any  # that of the function when the loop was made
    run: Callable[..., list[np.ndarray]]
    is_checked: bool = False  # see `tapegrad.transform.checks`


def over_items(
    function: Any,
    size: int,
    args: Sequence[Any],
    has_items: Sequence[bool],
    kwargs: dict[str, Any],
    arranged: Callable[[Any], Any],
    target: str,
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
    arranged
        Called with each array of results; returns what takes its place.
    target
        Where it is computed: ``"cpu"`` or ``"cuda"``.

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
    try:
        given = tuple(map(_typeof, args))
    except NumbaError:
        function.check_dtypes(args)
        raise
    kinds = tuple(
        _item(kind) if many else kind for kind, many in zip(given, has_items, strict=True)
    )
    if kinds not in function.overloads:
        function.check_dtypes(args)
        with warnings.catch_warnings():  # the loop is parallel, if not the function
            warnings.simplefilter("ignore", NumbaPerformanceWarning)
            function.compile(kinds)
    known: dict[Any, _Loop] = vars(function).setdefault("_loops_over_items", {})
    key, code = (target, given, tuple(has_items)), function.overloads[kinds]
    result = code.signature.return_type
    if key not in known or known[key].code is not code:  # or the function was compiled again
        with whole_imports("tapegrad.transform.ensembles.targets"):
            from tapegrad.transform.ensembles import targets

        made = targets.on_device if target == "cuda" else targets.on_host
        known[key] = _Loop(code, made(function, kinds, has_items, result))
    loop = known[key]
    if not loop.is_checked:
        first = (a[0] if many else a for a, many in zip(args, has_items, strict=True))
        loop.is_checked = function.enter(tuple(map(on_host, first)))
    found: list[Any] = loop.run(size, *args)
    return _arranged(result, (arranged(passive(z) if type(z) is DeviceArray else z) for z in found))


def _typeof(value: Any) -> Any:
    """Return the numba type of an argument; arrays on a device are made contiguous."""
    if type(value) is DeviceArray:
        return types.Array(numba.from_dtype(value.dtype), value.ndim, "C")
    return numba.typeof(value)


def _item(kind: Any) -> Any:
    """Return the type of an item of an array."""
    if kind.ndim == 1:
        return kind.dtype
    return kind.copy(ndim=kind.ndim - 1, layout="C" if kind.layout == "C" else "A")


def _arranged(kind: Any, leaves: Iterator[Any]) -> Any:
    """Return leaves in the structure of a result."""
    if not isinstance(kind, types.BaseTuple):
        return next(leaves)
    items = [_arranged(item, leaves) for item in kind]
    return kind.instance_class(*items) if hasattr(kind, "instance_class") else tuple(items)


Recording.over_items = staticmethod(over_items)
