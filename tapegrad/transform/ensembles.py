"""Ensembles: a compiled function, or a derivative of one, for every item of a batch.

`tapegrad.vmap` compiles a loop over the items. With ``parallel=True`` it runs on all threads. For a
function of a number and a shared array that returns an array, it is::

    def f_of_items(size, x, y):
        result = function(x[0], y)
        out_0 = np.empty((size,) + result.shape, result.dtype)
        differs = np.zeros(size, np.bool_)
        out_0[0] = result
        for i in prange(1, size):
            result = function(x[i], y)
            if result.shape == out_0.shape[1:]:
                out_0[i] = result
            else:
                differs[i] = True
        return out_0, differs
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaPerformanceWarning
from numba.np.numpy_support import as_dtype

from tapegrad.kernels import native
from tapegrad.transform.base import Recording, complete, written_arguments
from tapegrad.transform.errors import TransformError

_OPTIONS = ("error_model", "boundscheck", "nogil")
Leaf = tuple[str, Any]  # where it is in a result, and its numba type


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
    if key not in known or known[key][0] is not code:  # or the function was compiled again
        known[key] = code, _compiled(function, kinds, has_items, code.signature.return_type)
    *found, differs = known[key][1](size, *args)
    if differs.any():
        raise ValueError(
            f"vmap: the result of {function.py_func.__name__} for item {int(np.argmax(differs))} "
            "has another shape than that for item 0; the results of all items are one array"
        )
    return _arranged(code.signature.return_type, iter(found))


def _item(kind: Any) -> Any:
    """Return the type of an item of an array."""
    if kind.ndim == 1:
        return kind.dtype
    return kind.copy(ndim=kind.ndim - 1, layout="C" if kind.layout == "C" else "A")


def _compiled(function: Any, kinds: tuple[Any, ...], has_items: Sequence[bool], result: Any) -> Any:
    """Return the compiled loop over the items."""
    name = f"{function.py_func.__name__}_of_items"
    leaves = list(_leaves(result, "result", function.py_func.__name__))
    text = _text(name, has_items, leaves)
    made = native.compile_source(native.fingerprint(text.encode()), text, name)
    made.__globals__.update(np=np, prange=numba.prange, function=function)
    for k, (_, kind) in enumerate(leaves):
        if not isinstance(kind, types.Array):
            made.__globals__[f"dtype_{k}"] = as_dtype(types.unliteral(kind))
    options = {n: function.targetoptions[n] for n in _OPTIONS if n in function.targetoptions}
    parallel = _may_run_in_parallel(function, kinds, has_items)
    return numba.njit(parallel=parallel, **options)(made)


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
    return bool(function.targetoptions.get("parallel"))


def _leaves(kind: Any, place: str, name: str) -> Iterator[Leaf]:
    """Yield the numbers and arrays of a result."""
    if isinstance(kind, types.BaseTuple):
        for k, item in enumerate(kind):
            yield from _leaves(item, f"{place}[{k}]", name)
    elif isinstance(kind, (types.Array, types.Number, types.Boolean)):
        yield place, kind
    else:
        raise TypeError(
            f"vmap({name}, ...): the function must only return numbers and arrays, got type {kind}."
        )


def _arranged(kind: Any, leaves: Iterator[Any]) -> Any:
    """Return leaves in the structure of a result."""
    if not isinstance(kind, types.BaseTuple):
        return next(leaves)
    items = [_arranged(item, leaves) for item in kind]
    return kind.instance_class(*items) if hasattr(kind, "instance_class") else tuple(items)


def _text(name: str, has_items: Sequence[bool], leaves: list[Leaf]) -> str:
    """Return the text of the loop."""
    arguments = [f"a{k}" for k in range(len(has_items))]

    def call(index: str) -> str:
        pairs = zip(arguments, has_items, strict=True)
        return (
            f"result = function({', '.join(f'{a}[{index}]' if many else a for a, many in pairs)})"
        )

    lines = [f"def {name}({', '.join(['size', *arguments])}):", f"    {call('0')}"]
    for k, (place, kind) in enumerate(leaves):
        whole = isinstance(kind, types.Array)
        what = f"(size,) + {place}.shape, {place}.dtype" if whole else f"size, dtype_{k}"
        lines += [f"    out_{k} = np.empty({what})", f"    out_{k}[0] = {place}"]
    lines += ["    differs = np.zeros(size, np.bool_)", "    for i in prange(1, size):"]
    lines += [f"        {call('i')}"]
    for k, (place, kind) in enumerate(leaves):
        if isinstance(kind, types.Array):
            lines += [
                f"        if {place}.shape == out_{k}.shape[1:]:",
                f"            out_{k}[i] = {place}",
                "        else:",
                "            differs[i] = True",
            ]
        else:
            lines += [f"        out_{k}[i] = {place}"]
    outputs = "".join(f"out_{k}, " for k in range(len(leaves)))
    lines.append(f"    return ({outputs}differs,)")
    return "\n".join(lines) + "\n"


Recording.over_items = staticmethod(over_items)
