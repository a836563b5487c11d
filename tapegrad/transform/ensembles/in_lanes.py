"""Functions of numbers, their gradients, tangents and products with Hessians, side by side.

A chunk of items at a time stays in the cache. `lanes` writes the function of a chunk, which is
differentiated like any other. The chunks run on all threads if the function asks for them. numba
drops an error that an iteration of a parallel loop raises: such chunks are not done.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype

from tapegrad.kernels import native
from tapegrad.kernels.llvm.pipeline import use_pipeline
from tapegrad.transform import composed, derivatives, frozen
from tapegrad.transform.builder import function_of
from tapegrad.transform.checks.checking import is_on
from tapegrad.transform.codegen.program import Program
from tapegrad.transform.ensembles.lanes import Lanes, NoLanesError
from tapegrad.transform.errors import InternalError, TransformError
from tapegrad.transform.function import CompiledFunction, njit
from tapegrad.transform.functions import stop_gradient
from tapegrad.transform.ir import names_of, take
from tapegrad.transform.names import namespace
from tapegrad.transform.protocols import Returns

__all__ = ["NoLanesError", "compiled"]

WIDTH = 256  # items of a chunk
_NUMBERS = (types.Integer, types.Boolean)


def compiled(
    function: Any, kinds: tuple[Any, ...], has_items: Sequence[bool], options: dict[str, Any]
) -> Callable[..., list[np.ndarray]]:
    """Return a function of the number of items and the arguments of all of them.

    Parameters
    ----------
    function
        The compiled function, or a derivative of one.
    kinds
        The numba types of its arguments, for one item.
    has_items
        Which arguments have the items along their first axis; they share the others.
    options
        Those of numba for the loop over the chunks.

    Raises
    ------
    NoLanesError
        If the items cannot be computed side by side.
    """
    base, numbers, has_value = _parts_of(function)
    own = len(kinds) - getattr(function, "given", 0)  # the others are directions
    # a derivative by what the items share is one for each of them
    expanded = [k for k, given in enumerate(has_items) if not given and (k in numbers or k >= own)]
    many = [given or k in expanded for k, given in enumerate(has_items)]
    if not all(_is_number(kind) for kind, given in zip(kinds, many, strict=True) if given):
        raise NoLanesError("items that are arrays")
    try:
        has_tangents = isinstance(function, derivatives.Pushforward)
        of_chunk, results = _of_chunk(base, kinds[:own], many[:own], has_tangents)
        called, kind = of_chunk, "gradients"
        if has_tangents:
            called, kind = derivatives.Pushforward(of_chunk, numbers), "tangents"
        elif own < len(kinds):
            called, kind = composed.hessian_product(of_chunk, *numbers), "product"
        elif numbers:
            called = derivatives.pullback(of_chunk, numbers, 0, Returns.GRADIENTS)
        text = _text(many, own, _stored(len(results), len(numbers), kind), has_value)
        made = native.compile_source(
            native.fingerprint(text.encode(), repr(id(called)).encode()), text, "over_chunks"
        )
        made.__globals__.update(np=np, prange=numba.prange, of_chunk=called, width=WIDTH)
        made.__globals__.update((f"dtype_{k}", dtype) for k, dtype in enumerate(results))
        loop = numba.njit(**options)(made)
        use_pipeline(loop)  # nothing holds the function then but the loop
        arrays = [
            types.Array(kind, 1, "C") if given else kind
            for kind, given in zip(kinds, many, strict=True)
        ]
        loop.compile((types.int64, *arrays))
    except (TransformError, InternalError, NumbaError) as error:
        raise NoLanesError(str(error)) from error

    def run(size: int, *args: Any) -> list[np.ndarray]:
        given = [
            np.full(size, a) if k in expanded else np.ascontiguousarray(a) if many[k] else a
            for k, a in enumerate(args)
        ]
        *found, done = loop(size, *given)
        if not done.all():
            start = int(np.argmin(done)) * WIDTH
            part = [a[start : start + WIDTH] if many[k] else a for k, a in enumerate(given)]
            numba.njit(**{**options, "parallel": False})(made)(min(WIDTH, size - start), *part)
            raise RuntimeError(
                f"vmap: {function.py_func.__name__} raised an error for one of the {WIDTH} items "
                f"from item {start} on, but not on their own"
            )
        return found

    return run


def _parts_of(function: Any) -> tuple[Any, tuple[int, ...], bool]:
    """Return a function, by which arguments it is differentiated, and whether with its value.

    A derivative with directions is the product with the Hessian, or a tangent.
    """
    if isinstance(function, CompiledFunction):
        return function, (), True
    base = getattr(function, "base", None)
    if isinstance(function, derivatives.Pushforward) and isinstance(base, CompiledFunction):
        is_plain = function.has_value and function.directions == 1 and not is_on(function)
        if is_plain and base.rule_vjp is None:
            return base, function.numbers, True
    if isinstance(function, composed.HessianProduct) and isinstance(base, CompiledFunction):
        if base.rule_vjp is None and not is_on(function):
            return base, (function.number,), False
    if (
        not isinstance(function, derivatives.Pullback)
        or not isinstance(base, CompiledFunction)
        or function.seeds
        or function.into
        or base.rule_vjp is not None
        or is_on(function)
    ):
        raise NoLanesError("a derivative of another kind")
    return base, function.numbers, Returns.VALUE in function.returns


def _is_number(kind: Any) -> bool:
    return kind == types.float64 or isinstance(types.unliteral(kind), _NUMBERS)


def _of_chunk(
    base: Any, kinds: tuple[Any, ...], many: list[bool], returns_arrays: bool
) -> tuple[Any, list[Any]]:
    """Return the function of a chunk of items, and the dtypes of the results."""
    frozen.check(base, kinds)  # its code, and the names that it uses, are of the same time
    program = Program()
    instance = program.instance(base, kinds)
    program.analyse()
    function = instance.function
    tree = function_of(function, "of_chunk")
    assert isinstance(tree, ast.FunctionDef)
    taken = names_of(function) | function.statics.keys() | {"stop_gradient", "of_chunk"}
    items = [p for p, given in zip(function.params, many, strict=True) if given]

    def dtype_of(name: str) -> str:
        found = str(as_dtype(types.unliteral(function.types[name])))
        return "bool_" if found == "bool" else found

    lanes = Lanes(tree, items, lambda stem: take(stem, taken), dtype_of, returns_arrays)
    if not all(_is_number(function.types.get(n)) for n in lanes.varying):
        raise NoLanesError("values of other types")
    found = [
        function.types[leaf.id] if isinstance(leaf, ast.Name) else numba.typeof(leaf.value)
        for leaf in lanes.results
    ]
    if found[0] != types.float64 or not all(map(_is_number, found)):
        raise NoLanesError("results of other types")
    if returns_arrays and set(found) != {types.float64}:
        raise NoLanesError("results that have no tangents")
    text = lanes.text("of_chunk")
    key = native.fingerprint(text.encode(), repr(id(base)).encode())
    made = native.compile_source(key, text, "of_chunk")
    made.__globals__.update(namespace(function.statics))
    made.__globals__.update(stop_gradient=stop_gradient, _calls=base)
    options = {n: v for n, v in base.targetoptions.items() if n in ("error_model", "boundscheck")}
    of_chunk = njit(**options)(made)
    use_pipeline(of_chunk)
    return of_chunk, [as_dtype(types.unliteral(kind)) for kind in found]


def _stored(results: int, gradients: int, kind: str) -> dict[str, str]:
    """Return what is stored of a chunk, by the names of arrays; "" for what it has stored itself.

    Parameters
    ----------
    results, gradients
        How many there are.
    kind
        What the function of a chunk returns: ``"gradients"``, ``"product"`` (with the Hessian) or
        ``"tangents"`` after values.
    """
    if kind == "tangents":
        places = [f"[{k}]" if results > 1 else "" for k in range(results)]
        found = {f"out_{k}": f"found[0]{place}" for k, place in enumerate(places)}
        return found | {f"bar_{k}": f"found[1]{place}" for k, place in enumerate(places)}
    found = {f"out_{k}": "" for k in range(results)}
    bars = ["found"] if kind == "product" else [f"found[{k}]" for k in range(gradients)]
    return found | {f"bar_{k}": bar for k, bar in enumerate(bars)}


def _text(many: Sequence[bool], own: int, parts: dict[str, str], has_value: bool) -> str:
    """Return the text of the loop over the chunks; after its `own` arguments come directions."""
    arguments = [f"a{k}" for k in range(len(many))]
    given = [f"{a}[start:end]" if items else a for a, items in zip(arguments, many, strict=True)]
    given[own:own] = [f"{out}[start:end]" for out, part in parts.items() if not part]
    dtypes = {out: out.replace("out", "dtype") if out[0] == "o" else "np.float64" for out in parts}
    lines = [
        f"def over_chunks({', '.join(['size', *arguments])}):",
        *[f"    {out} = np.empty(size, {dtype})" for out, dtype in dtypes.items()],
        "    done = np.zeros((size + width - 1) // width, np.bool_)",
        "    for chunk in prange(done.size):",
        "        start = chunk * width",
        "        end = min(start + width, size)",
        f"        found = of_chunk({', '.join(given)})",
        *[f"        {out}[start:end] = {part}" for out, part in parts.items() if part],
        "        done[chunk] = True",
    ]
    outputs = [out for out in parts if has_value or out.startswith("bar")]
    lines.append(f"    return ({', '.join([*outputs, 'done'])},)")
    return "\n".join(lines) + "\n"
