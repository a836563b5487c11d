"""A compiled function, or a derivative of one, called for one item after the other.

For a function of a number and a shared array that returns an array, the loop is::

    def f_of_items(size, x, y):
        result = function(x[0], y)
        out_0 = np.empty((size,) + result.shape, result.dtype)
        done = np.zeros(size, np.int8)
        out_0[0] = result
        done[0] = DONE
        for i in prange(1, size):
            result = function(x[i], y)
            state = DONE
            if result.shape == out_0.shape[1:]:
                out_0[i] = result
            else:
                state = OTHER_SHAPE
            done[i] = state
        return out_0, done

numba drops an error that an iteration of a parallel loop raises: such items are not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from tapegrad.kernels import native
from tapegrad.kernels.llvm.pipeline import use_pipeline

_DONE, _OTHER_SHAPE = 1, 2


def compiled(
    function: Any, has_items: Sequence[bool], result: Any, options: dict[str, Any]
) -> Callable[..., list[np.ndarray]]:
    """Return a function of the number of items and the arguments of all of them.

    Parameters
    ----------
    function
        The compiled function.
    has_items
        Which arguments have the items along their first axis; they share the others.
    result
        The numba type of a result.
    options
        Those of numba for the loop.
    """
    name = function.py_func.__name__
    leaves = list(leaves_of(result, "result", name))
    text = _text(has_items, leaves)
    made = native.compile_source(native.fingerprint(text.encode()), text, "of_items")
    made.__globals__.update(np=np, prange=numba.prange, function=function)
    for k, (_, kind) in enumerate(leaves):
        if not isinstance(kind, types.Array):
            made.__globals__[f"dtype_{k}"] = as_dtype(types.unliteral(kind))
    loop = numba.njit(**options)(made)
    use_pipeline(loop)  # nothing holds the function then but the loop

    def run(size: int, *args: Any) -> list[np.ndarray]:
        *found, done = loop(size, *args)
        if (done == _DONE).all():
            return found
        item = int(np.argmax(done != _DONE))
        if done[item] == _OTHER_SHAPE:
            raise ValueError(
                f"vmap: the result of {name} for item {item} has another shape than that for item "
                "0; the results of all items are one array"
            )
        function(*(a[item] if many else a for a, many in zip(args, has_items, strict=True)))
        raise RuntimeError(f"vmap: {name} raised an error for item {item}, but not on its own")

    return run


def leaves_of(kind: Any, place: str, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and arrays of a result: where they are, and their types."""
    if isinstance(kind, types.BaseTuple):
        for k, item in enumerate(kind):
            yield from leaves_of(item, f"{place}[{k}]", name)
    elif isinstance(kind, (types.Array, types.Number, types.Boolean)):
        yield place, kind
    else:
        raise TypeError(
            f"vmap({name}, ...): the function must only return numbers and arrays, got type {kind}."
        )


def _text(has_items: Sequence[bool], leaves: list[tuple[str, Any]]) -> str:
    """Return the text of the loop."""
    arguments = [f"a{k}" for k in range(len(has_items))]

    def call(index: str) -> str:
        pairs = zip(arguments, has_items, strict=True)
        given = [f"{a}[{index}]" if many else a for a, many in pairs]
        return f"result = function({', '.join(given)})"

    lines = [f"def of_items({', '.join(['size', *arguments])}):", f"    {call('0')}"]
    for k, (place, kind) in enumerate(leaves):
        whole = isinstance(kind, types.Array)
        what = f"(size,) + {place}.shape, {place}.dtype" if whole else f"size, dtype_{k}"
        lines += [f"    out_{k} = np.empty({what})", f"    out_{k}[0] = {place}"]
    lines += ["    done = np.zeros(size, np.int8)", f"    done[0] = {_DONE}"]
    lines += ["    for i in prange(1, size):", f"        {call('i')}", f"        state = {_DONE}"]
    for k, (place, kind) in enumerate(leaves):
        if isinstance(kind, types.Array):
            lines += [
                f"        if {place}.shape == out_{k}.shape[1:]:",
                f"            out_{k}[i] = {place}",
                "        else:",
                f"            state = {_OTHER_SHAPE}",
            ]
        else:
            lines += [f"        out_{k}[i] = {place}"]
    lines.append("        done[i] = state")
    outputs = "".join(f"out_{k}, " for k in range(len(leaves)))
    lines.append(f"    return ({outputs}done,)")
    return "\n".join(lines) + "\n"
